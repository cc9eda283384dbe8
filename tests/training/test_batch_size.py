"""`--batch-size auto`: the largest batch that fits, what goes with it, and that it stays."""

import math
import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from tests.training.parallel_runs import SMALL
from tests.training.processes import run_ranks
from tests.training.running import RICH, TINY, assert_same_training, make_pictures, rows_of, state_of
from vitrail.cli import main
from vitrail.data.augmentation.mixing import Mix
from vitrail.data.batch import Batch
from vitrail.errors import ConfigError, VitrailError
from vitrail.model.vit import ViT
from vitrail.training import batch_size
from vitrail.training.batch_size import largest, with_batch
from vitrail.training.job import Job
from vitrail.training.log import read_log
from vitrail.training.loop import Trainer
from vitrail.training.recipe import Optimiser, Recipe
from vitrail.training.recipe_files import make_recipe, read_recipe, to_toml
from vitrail.training.train import resume, train


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_the_largest_power_of_two_that_fits_is_found_and_no_other_fails(room, limit):
    failed = []

    def fits(size):
        failed.extend([size] if size > room else [])
        return size <= room

    found = largest(fits, limit)
    most = min(room, limit)
    assert found == (2 ** int(math.log2(most)) if most >= 2 else 0)
    assert len(failed) <= 1


def test_rates_go_with_the_batch_in_proportion_or_by_its_root():
    rates = {"lr": 0.1, "muon_lr": 0.02}
    for name, lr, muon_lr in (("sgd", 0.8, 0.02), ("adamw", 0.282843, 0.02), ("muon", 0.282843, 0.0565685)):
        found = with_batch(Recipe(batch_size=64, auto_batch=True, optimiser=Optimiser(name=name, **rates)), 512)
        assert (found.optimiser.lr, found.optimiser.muon_lr) == (lr, muon_lr)
        assert (found.batch_size, found.auto_batch) == (512, False)
        assert with_batch(found, 64).optimiser.lr == pytest.approx(0.1, rel=1e-5)


def test_a_recipe_says_auto_and_keeps_its_number():
    assert make_recipe({"batch_size": "auto"}) == Recipe(auto_batch=True)
    digits = read_recipe("digits", {"batch_size": "auto"})
    assert (digits.batch_size, digits.auto_batch) == (32, True)
    assert make_recipe({"batch_size": "auto"}, {"batch_size": 64}) == Recipe(batch_size=64)
    assert make_recipe({"batch_size": 48}, {"batch_size": "auto"}) == Recipe(batch_size=48, auto_batch=True)
    assert make_recipe(tomllib.loads(to_toml(digits))) == digits
    with pytest.raises(ConfigError, match="batch_size = 'automatic': it must be a whole number"):
        make_recipe({"batch_size": "automatic"})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_batch_is_repeated_with_partners_inside_it(count):
    mix = Mix(torch.tensor([1, 0, 3, 2]), torch.rand(4), torch.rand(4), torch.zeros(4, 4, dtype=torch.int64))
    batch = Batch(torch.arange(4), torch.randint(0, 255, (4, 3, 8, 8), dtype=torch.uint8), torch.arange(4), mix=mix)
    found = batch.repeated(count)
    assert found.samples.tolist() == [place % 4 for place in range(count)]
    assert torch.equal(found.pixels, batch.pixels[found.samples])
    assert (found.mix.partner < count).all()
    assert found.mix.pixels(found.pixels.float()).shape == (count, 3, 8, 8)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures", each=180)


@pytest.fixture
def memory(monkeypatch):
    """A device whose memory takes so many pictures at once."""
    room = {"pictures": 8, "seen": [], "sides": []}
    forward = ViT.forward

    def limited(self, pictures, *rest, **options):
        if self.training:
            room["seen"].append(len(pictures))
            room["sides"].append(pictures.shape[-1])
            if len(pictures) > room["pictures"]:
                raise torch.OutOfMemoryError("out of memory")
        return forward(self, pictures, *rest, **options)

    monkeypatch.setattr(ViT, "forward", limited)
    monkeypatch.setattr(batch_size, "has_own_memory", lambda device: True)
    monkeypatch.setattr(Job, "_write_report", lambda *_: None)
    return room


def begin(pictures, run, settings, **options):
    return vitrail.train(pictures, recipe="small", out=run, changes=settings, device="cpu", **options)


def events(run):
    return [row["text"] for row in read_log(run.folder) if row["kind"] == "event"]


def test_the_training_is_that_of_the_batch_that_fits(pictures, tmp_path, memory):
    """RICH goes through the model in two parts, with an average, noise, mixing and Muon."""
    found = begin(pictures, tmp_path / "found", RICH | {"batch_size": "auto"})
    assert found.recipe.batch_size == 16  # two parts of 8
    tried = memory["seen"][: memory["seen"].index(16) + 1]
    assert tried == [2] * 4 + [4] * 4 + [8] * 4 + [16]  # two steps of two parts of each, then one too many
    rate = math.sqrt(16 / read_recipe("small").batch_size)
    words = f"batch size auto: 16, the largest that fits the memory; learning rates are times {rate:.3g}"
    assert events(found) == [words]
    settings = found.recipe.optimiser
    assert settings.lr == pytest.approx(read_recipe("small").optimiser.lr * rate, rel=1e-5)
    by_hand = RICH | {"batch_size": 16, "optimiser.lr": settings.lr, "optimiser.muon_lr": settings.muon_lr}
    plain = begin(pictures, tmp_path / "plain", by_hand)
    assert found.recipe == plain.recipe
    assert [row for row in rows_of(found.folder) if row["kind"] != "event"] == rows_of(plain.folder)
    (found.folder / "log.jsonl").write_bytes((plain.folder / "log.jsonl").read_bytes())
    assert_same_training(found.folder, plain.folder)


def test_where_pictures_grow_the_largest_are_tried(pictures, tmp_path, memory):
    stages = [{"until": 0.5, "img_size": 4}, {"until": 0.8, "patch_drop": 0.5}]
    found = begin(pictures, tmp_path / "run", TINY | {"batch_size": "auto", "steps": 10, "stages": stages})
    assert found.recipe.batch_size == 8
    tried = memory["seen"].index(16) + 1
    assert memory["sides"][:tried] == [8] * tried
    assert memory["sides"][tried:] == [4] * 5 + [8] * 5


def test_a_run_that_goes_on_keeps_its_batch(pictures, tmp_path, memory, monkeypatch):
    settings = TINY | {"batch_size": "auto", "steps": 4}
    straight = begin(pictures, tmp_path / "straight", settings)

    def stop(trainer, *_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            begin(pictures, tmp_path / "broken", settings)
    memory["pictures"] = 10**6  # more fits now, and it does not matter
    again = resume(tmp_path / "broken", device="cpu")
    assert again.recipe == straight.recipe
    assert again.recipe.batch_size == 8
    tensors, others = state_of(straight.folder)[0], state_of(again.folder)[0]
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_an_epoch_keeps_steps_enough(pictures, tmp_path, memory):
    memory["pictures"] = 10**6
    run = begin(pictures, tmp_path / "run", TINY | {"batch_size": "auto", "steps": 1, "data.val_fraction": 0.0})
    most = max(read_recipe("small").batch_size, 360 // 16)
    assert run.recipe.batch_size == largest(lambda size: True, min(most, 360))
    assert "would leave an epoch too few steps" in events(run)[0]


def test_memory_for_no_batch_at_all_says_so_and_leaves_no_folder(pictures, tmp_path, memory):
    memory["pictures"] = 1
    with pytest.raises(VitrailError, match="too small for a batch of 2: choose a smaller model"):
        begin(pictures, tmp_path / "run", TINY | {"batch_size": "auto"})
    assert not (tmp_path / "run").exists()


def test_on_the_cpu_the_batch_is_the_recipes_and_a_line_says_why(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Job, "_write_report", lambda *_: None)
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in (TINY | {"batch_size": "auto", "steps": 1}).items()]
    out = tmp_path / "run"
    assert main(["train", str(pictures), "--recipe", "small", "--out", str(out), "--device", "cpu", *flags]) == 0
    recipe = read_recipe(out)
    assert recipe.batch_size == min(read_recipe("small").batch_size, 322)
    assert recipe.optimiser == read_recipe("small").optimiser
    assert "cpu has no memory of its own" in capsys.readouterr().out


def test_another_word_than_auto_is_refused(pictures, capsys):
    assert main(["train", str(pictures), "--batch-size", "largest"]) == 2
    assert "largest" in capsys.readouterr().err


def begin_unevenly(rank, size, folder):
    """The second of two has half the memory."""
    Job._write_report = lambda *_: None
    batch_size.has_own_memory = lambda device: True
    forward = ViT.forward

    def limited(self, pictures, *rest, **options):
        if self.training and len(pictures) > 16 // (1 + rank):
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, pictures, *rest, **options)

    ViT.forward = limited
    run = train(None, out=folder / "run", device="cpu", **(SMALL | {"steps": 2, "batch_size": "auto"}))
    assert run.recipe.batch_size == 2 * 8
    with pytest.raises(ConfigError, match="give --batch-size a number with --shard"):
        train(None, out=folder / "shards", device="cpu", shard=True, **(SMALL | {"batch_size": "auto"}))


@pytest.mark.slow
def test_the_process_with_least_memory_decides(tmp_path):
    run_ranks(2, tmp_path, begin_unevenly, tmp_path)
    assert "batch size auto: 16, the largest that fits" in read_log(tmp_path / "run")[0]["text"]
