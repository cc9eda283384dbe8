"""Training on several processes beside training on one: the same gradients, losses, scores, and one writer."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.training.parallel_runs import SMALL, begin, go_on, notes_of, with_noise
from tests.training.processes import run_ranks
from vitrail.classifier import Classifier
from vitrail.errors import DataError, VitrailError
from vitrail.model import ViT, ViTConfig
from vitrail.training import loop, parallel
from vitrail.training.checkpoints import find_latest, load_checkpoint
from vitrail.training.log import read_log
from vitrail.training.objective import Classification
from vitrail.training.optimisers import step
from vitrail.training.parallel import Launch, World, joined_world
from vitrail.training.precision import Precision
from vitrail.training.run import Run
from vitrail.training.spreading import in_step, is_sharded, load_whole, replicate, shard, whole_state
from vitrail.training.train import train

CPU = torch.device("cpu")
SHARDED = {"copies": False, "shards": True}


def rows(run: Path, kind: str, *columns: str) -> torch.Tensor:
    return torch.tensor([[row[name] for name in ("step", *columns)] for row in read_log(run) if row["kind"] == kind])


def assert_same_course(run: Path, other: Path, tolerance: float) -> None:
    for kind, columns in (("train", ("loss", "accuracy", "grad_norm")), ("eval", ("loss", "accuracy", "top5"))):
        one, two = rows(run, kind, *columns), rows(other, kind, *columns)
        assert len(one) > 0
        torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    run_ranks(1, folder, begin, folder / "run", None, SMALL)
    return folder / "run"


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same training by two processes, each with a copy of the model, and each with a part of it."""
    folder = tmp_path_factory.mktemp("together")
    for kind, sharded in SHARDED.items():
        run_ranks(2, folder, begin, folder / kind, None, SMALL | {"shard": sharded})
    return {kind: folder / kind for kind in SHARDED}


@pytest.mark.parametrize("kind", ["copies", "shards"])
def test_two_processes_learn_as_one_does(alone: Path, together: dict[str, Path], kind: str) -> None:
    run = together[kind]
    [expected], both = notes_of(alone, 1), notes_of(run, 2)
    for notes in both:
        assert notes["gradients"].keys() == expected["gradients"].keys()
        for name, gradient in expected["gradients"].items():
            torch.testing.assert_close(notes["gradients"][name], gradient, rtol=1e-6, atol=1e-6)
    assert len(rows(run, "train")) == 20
    assert_same_course(alone, run, 1e-5)
    # the order of the data is that of one process, and each sample is one process's
    assert [a + b for a, b in zip(both[0]["samples"], both[1]["samples"], strict=True)] == expected["samples"]
    pictures = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for name in ("best", "last"):  # keys' biases have no gradient but rounding, which Adam makes large: so by answers
        answers = [Classifier.load(place / name).model(pictures) for place in (run, alone)]
        torch.testing.assert_close(*answers, rtol=1e-3, atol=1e-4)
    # rank 0 writes; another process its parts of checkpoints, and nothing else
    assert {".run.json.new", "log.jsonl"} <= set(both[0]["written"])
    assert both[1]["written"] == (["state-00002-of-00002.safetensors"] if kind == "shards" else [])
    assert Run.open(run).facts["processes"] == 2
    assert Run.open(run).is_complete


def test_shards_learn_as_copies_do(together: dict[str, Path]) -> None:
    for copied, sharded in zip(*(notes_of(together[kind], 2) for kind in ("copies", "shards")), strict=True):
        assert copied["gradients"].keys() == sharded["gradients"].keys()
        for name, gradient in copied["gradients"].items():
            torch.testing.assert_close(sharded["gradients"][name], gradient, rtol=1e-6, atol=1e-6)
        assert copied["samples"] == sharded["samples"]
    losses = [rows(together[kind], "train", "loss") for kind in ("copies", "shards")]
    assert len(losses[0]) == 20
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-5)
    assert_same_course(together["copies"], together["shards"], 1e-5)


@pytest.mark.parametrize("kind", ["copies", "shards"])
def test_a_run_of_two_processes_goes_on_with_one_and_with_three(alone: Path, tmp_path: Path, kind: str) -> None:
    stopped = tmp_path / "stopped"
    run_ranks(2, tmp_path, begin, stopped, 11, SMALL | {"shard": SHARDED[kind]})
    found = find_latest(stopped / "checkpoints")
    assert found is not None
    assert found.step == 11
    assert len(found.files) == (2 if kind == "shards" else 1)
    for world in (1, 3):
        run = tmp_path / f"on-{world}"
        shutil.copytree(stopped, run)
        run_ranks(world, tmp_path, go_on, run)
        assert_same_course(alone, run, 1e-5)
        shares = zip(*(notes["samples"] for notes in notes_of(run, world)), strict=True)
        samples = [[sample for share in step for sample in share] for step in shares]
        assert samples == notes_of(alone, 1)[0]["samples"][11:]


@pytest.mark.parametrize("kind", ["copies", "shards"])
def test_noise_differs_between_processes_and_is_the_same_when_a_run_goes_on(tmp_path: Path, kind: str) -> None:
    options = with_noise(SMALL) | {"shard": SHARDED[kind]}
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_ranks(2, tmp_path, begin, straight, None, options)
    seeds = [notes["seeds"] for notes in notes_of(straight, 2)]
    assert len({*seeds[0], *seeds[1]}) == 40
    run_ranks(2, tmp_path, begin, broken, 7, options)
    first = [notes["seeds"] for notes in notes_of(broken, 2)]
    run_ranks(2, tmp_path, go_on, broken)
    second = [notes["seeds"] for notes in notes_of(broken, 2)]
    assert [a + b for a, b in zip(first, second, strict=True)] == seeds
    assert_same_course(straight, broken, 0)
    ends = [find_latest(run / "checkpoints") for run in (straight, broken)]
    states = [load_checkpoint(found)[0] for found in ends if found is not None]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def break_one_loss(rank: int, size: int, run: Path, sharded: bool) -> None:
    """On the second process alone a loss is infinite, with gradients that are not."""
    compute, oks = Classification.__call__, []

    def broken(self: Classification, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        loss, right = compute(self, model, inputs, targets)
        return loss + (torch.inf if rank == 1 and len(oks) == 2 else 0), right

    def note(optimiser: torch.optim.Optimizer, ok: torch.Tensor, *rest: torch.Tensor) -> None:
        oks.append(bool(ok))
        step(optimiser, ok, *rest)

    Classification.__call__, loop.step = broken, note  # type: ignore[assignment, method-assign]
    train(None, out=run, device="cpu", shard=sharded, **(SMALL | {"steps": 4}))
    assert oks == [True, True, False, True]


@pytest.mark.parametrize("kind", ["copies", "shards"])
def test_a_loss_that_is_not_finite_in_one_process_is_left_out_by_all(tmp_path: Path, kind: str) -> None:
    run_ranks(2, tmp_path, break_one_loss, tmp_path / "run", SHARDED[kind])
    found = [row["skipped_steps"] for row in read_log(tmp_path / "run") if row["kind"] == "train"]
    assert found == [0, 0, 1, 0]


def small_model() -> ViT:
    torch.manual_seed(0)
    return ViT(ViTConfig(img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=5, zero_head=False))


def evaluate_unevenly(rank: int, size: int) -> None:
    """Three batches for the first process and none for the last, with other weights than training has."""
    world, model, plain = World(rank, size, CPU), small_model(), small_model().eval()
    shard(model, world)
    assert is_sharded(model)
    pictures = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    expected, before = plain(pictures), {name: one.clone() for name, one in plain.state_dict().items()}
    with torch.no_grad():
        for weights in (model, plain):
            for parameter in weights.parameters():
                parameter.mul_(2)
    batches = 0 if rank == size - 1 else 3
    model.eval()
    with torch.no_grad(), in_step(model, world, batches, pictures[:1]):
        for _ in range(batches):
            torch.testing.assert_close(model(pictures), plain(pictures))
    load_whole(model, before if rank == 0 else {}, world)
    torch.testing.assert_close(model(pictures), expected)  # not with what the evaluation had gathered
    state = whole_state(model, world)
    assert state.keys() == (before.keys() if rank == 0 else set())
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_processes_with_fewer_pictures_to_evaluate_keep_the_others_company(tmp_path: Path) -> None:
    run_ranks(3, tmp_path, evaluate_unevenly)


def clip_and_scale(rank: int, size: int) -> None:
    world, model, plain = World(rank, size, CPU), small_model(), small_model()
    shard(model, world)
    pictures, labels = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(4)
    for weights in (model, plain):
        F.cross_entropy(weights(pictures), labels).backward()
    norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    found = Precision("fp32", CPU).unscaled_norm(list(model.parameters()), 0.1)
    torch.testing.assert_close(found, norm)
    again = Precision("fp32", CPU).unscaled_norm(list(model.parameters()), 0)
    torch.testing.assert_close(again, torch.tensor(0.1), rtol=1e-4, atol=0)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad)  # type: ignore[union-attr]


def test_gradients_are_clipped_by_the_norm_of_all_shards(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, clip_and_scale)


def freeze_in_copies(rank: int, size: int) -> None:
    model = small_model()
    model.blocks[0].requires_grad_(False)
    copy = replicate(model, World(rank, size, CPU))
    for _ in range(2):
        F.cross_entropy(copy(torch.full((2, 3, 8, 8), float(rank))), torch.tensor([rank, 2])).backward()
    mean = model.head.weight.grad
    plain = small_model()
    for number in range(size):
        for _ in range(2):
            (
                F.cross_entropy(plain(torch.full((2, 3, 8, 8), float(number))), torch.tensor([number, 2])) / size
            ).backward()
    torch.testing.assert_close(mean, plain.head.weight.grad)


def test_copies_average_their_gradients_and_may_be_frozen_in_part(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, freeze_in_copies)


def talk(rank: int, size: int, folder: Path) -> None:
    with joined_world("cpu") as world:
        assert (world.rank, world.size, world.is_first) == (rank, size, rank == 0)
        assert world.agreed(f"from {rank}") == "from 0"
        assert world.gathered(rank) == list(range(size))
        assert world.any(rank == 1)
        assert not world.any(False)
        assert world.first(lambda: f"by {rank}") == "by 0"

        def fail(on: int) -> int:
            if rank == on:
                raise DataError(f"{on} cannot")
            return rank

        with pytest.raises(DataError, match="0 cannot"):
            world.first(lambda: fail(0))
        assert world.one_then_all(lambda: rank) == rank
        with pytest.raises(DataError, match="0 cannot"):
            world.one_then_all(lambda: fail(0))

    other = World(rank, size, CPU, local_rank=rank)

    def fetch() -> list[str]:
        """A download: who comes first makes the file, and must not find it half made."""
        if rank == 0:
            (folder / "data").mkdir()
            (folder / "data" / "whole").touch()
        return [path.name for path in (folder / "data").iterdir()]

    assert other.one_then_all(fetch) == ["whole"]
    with pytest.raises(DataError, match="1 cannot"):
        other.one_then_all(lambda: fail(1))


def test_what_fails_for_one_process_fails_for_all_and_one_downloads_for_all(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, talk, tmp_path)


def test_a_run_is_gone_on_with_only_by_the_launch_that_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    alone = World(0, 1, CPU)
    assert Launch.of(alone) == Launch("a", again=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert Launch.of(alone) == Launch("a", again=False)

    def make(folder: str, **facts: Any) -> Run:
        run = Run(Path(folder))
        run.folder.mkdir(parents=True)
        run.write_facts(facts)
        return run

    first, second = make("runs/photos-1", launch="a"), make("runs/photos-2", launch="b", complete=True)
    unnamed, before = make("unnamed", launch="none"), make("before", launch=None)
    find = Run.begun_by
    assert find(Launch("a", again=True), None, "photos") == first
    assert find(Launch("a"), None, "photos") == first  # another machine lost a process, or this one came later
    assert find(Launch("a"), "runs/photos-1", "photos") == first
    assert find(Launch("a"), "runs/photos-2", "photos") is None
    assert find(Launch("b"), None, "photos") is None  # complete: another one begins
    assert find(Launch("b", again=True), None, "photos") == second  # it ended while another process was lost
    assert find(Launch("c", again=True), None, "photos") is None
    assert find(Launch("none"), "unnamed", "photos") is None
    assert find(Launch("none", again=True), "unnamed", "photos") == unnamed
    assert find(Launch(None), before.folder, "photos") is None
    assert find(Launch("a", again=True), "nowhere", "photos") is None
    with pytest.raises(VitrailError, match="runs/photos-1 is already there: go on with --resume"):
        Run.begin("runs/photos-1", "photos", None, {})  # type: ignore[arg-type]


def test_alone_the_gpu_that_is_asked_for_is_the_current_one(monkeypatch):
    """Kernels of our own and recordings begin on that, wherever their tensors lie."""
    seen: list[Any] = []

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        seen.append(chosen)
        yield
        seen.append("left")

    monkeypatch.setattr(parallel, "choose_device", lambda name, rank: torch.device(name))
    monkeypatch.setattr(torch.cuda, "device", device)
    with joined_world("cuda:1") as world:
        assert seen == [world.device] == [torch.device("cuda:1")]
    assert seen[1:] == ["left"]
    with joined_world("cpu"):
        pass
    assert len(seen) == 2
