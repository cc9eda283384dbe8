"""A batch in parts gives the update of the whole; where memory is short, it goes in more parts."""

import pytest
import torch

import vitrail
from tests.training.running import TINY, make_pictures, rows_of, state_of
from vitrail.errors import VitrailError
from vitrail.model.vit import ViT


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = make_pictures(tmp_path_factory.mktemp("data") / "pictures")
    for number in range(20):  # so that classes have weights
        (folder / "kind 0" / f"{number:03}.png").unlink()
    return folder


def train(pictures, run, settings):
    return vitrail.train(pictures, recipe="small", out=run, changes=settings, device="cpu")


def weights(run):
    return {name: tensor for name, tensor in state_of(run)[0].items() if name.startswith("model.")}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"augmentation.mixup": 0.5, "augmentation.cutmix": 0.5},
        {"loss.class_weights": True},
        {"loss.class_weights": True, "loss.kind": "binary", "augmentation.mixup": 0.5},
        {"optimiser.sam": 0.05},
    ],
    ids=str,
)
def test_a_batch_in_four_parts_gives_the_update_of_the_whole(pictures, tmp_path, settings):
    whole = TINY | {"batch_size": 8, "steps": 3, "optimiser.name": "sgd", "optimiser.lr": 0.1} | settings
    whole |= {"architecture.drop_path": 0.0, "optimiser.clip": 0.0}
    train(pictures, tmp_path / "whole", whole)
    train(pictures, tmp_path / "parts", whole | {"accumulate": 4})
    ours, theirs = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    start = weights_at_start(pictures, tmp_path / "start", whole)
    assert any(not torch.equal(start[name], theirs[name]) for name in theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)
    for one, two in zip(rows_of(tmp_path / "whole"), rows_of(tmp_path / "parts"), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)
        assert one["accuracy"] == two["accuracy"]


def weights_at_start(pictures, run, settings):
    train(pictures, run, settings | {"steps": 1, "optimiser.lr": 1e-30, "optimiser.weight_decay": 0.0})
    return weights(run)


@pytest.fixture
def memory(monkeypatch):
    """A model that takes so many pictures at once."""
    room = {"pictures": 4, "refused": 0}
    original = ViT.forward

    def forward(self, pictures, *rest, **options):
        if self.training and len(pictures) > room["pictures"]:
            room["refused"] += 1
            raise torch.OutOfMemoryError("out of memory")
        return original(self, pictures, *rest, **options)

    monkeypatch.setattr(ViT, "forward", forward)
    return room


@pytest.mark.parametrize("sam", [0.0, 0.05])
def test_short_memory_makes_parts_and_the_run_is_that_of_parts(pictures, tmp_path, memory, sam):
    settings = TINY | {"batch_size": 16, "optimiser.name": "adamw", "optimiser.sam": sam, "steps": 4}
    run = train(pictures, tmp_path / "short", settings)
    assert memory["refused"] == 2  # 16, 8; 4 fit, from then on
    assert run.recipe.accumulate == 4
    assert [row["accumulate"] for row in rows_of(run.folder) if row["kind"] == "event"] == [2, 4]
    train(pictures, tmp_path / "parts", settings | {"accumulate": 4})
    ours, theirs = weights(tmp_path / "short"), weights(tmp_path / "parts")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_memory_that_runs_short_later_leaves_no_gradients_behind(pictures, tmp_path, memory, monkeypatch):
    """The second part of a batch fails when the first has given its gradients."""
    memory["pictures"] = 8
    settings = TINY | {"batch_size": 8, "accumulate": 2, "optimiser.name": "adamw", "steps": 4}
    original, calls = ViT.forward, []

    def forward(self, pictures, *rest, **options):
        if self.training:
            calls.append(len(pictures))
            if len(calls) == 4:
                raise torch.OutOfMemoryError("out of memory")
        return original(self, pictures, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ViT, "forward", forward)
        run = train(pictures, tmp_path / "later", settings | {"architecture.drop_path": 0.0})
    assert run.recipe.accumulate == 4
    train(pictures, tmp_path / "parts", settings | {"architecture.drop_path": 0.0})
    ours, theirs = weights(tmp_path / "later"), weights(tmp_path / "parts")
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-4)


def test_memory_too_short_for_one_picture_says_what_to_do(pictures, tmp_path, memory):
    memory["pictures"] = 0
    with pytest.raises(VitrailError, match="smaller model"):
        train(pictures, tmp_path / "run", TINY)
