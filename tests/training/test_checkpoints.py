"""Checkpoints come back as they were saved, or they are not there."""

import json
import multiprocessing
import resource
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from vitrail.errors import ConfigError, VitrailError
from vitrail.training import locks
from vitrail.training.checkpoints import Checkpoints, find_latest
from vitrail.training.writer import Room
from vitrail.weights.files import DTYPES

State = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def small(value: float = 1.0) -> State:
    return {"w": torch.full((4, 3), value), "step": torch.tensor(value)}


def save(folder: Path, *steps: int, keep: int = 9) -> None:
    with Checkpoints(folder, keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, small(step), {"step": step})


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)


@st.composite
def states(draw: Any) -> State:
    state = {}
    for name in draw(st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=6)):
        dtype = draw(st.sampled_from(list(DTYPES.values())))
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        values = torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)
        state[name] = values.transpose(0, -1) if values.dim() > 1 and draw(st.booleans()) else values
    return state


@given(states())
@settings(max_examples=40, deadline=None)
def test_any_state_comes_back_bit_for_bit_and_safetensors_reads_it_too(
    tmp_path_factory: pytest.TempPathFactory, state: State
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(7, state, {"a": [1, 0.1, None, "ü"]})
    found = find_latest(folder)
    assert found is not None
    assert found.step == 7
    assert found.names == tuple(sorted(state))
    tensors, plain = checkpoints.load(found)
    assert plain == {"a": [1, 0.1, None, "ü"]}
    for read in (tensors, load_file(found.folder / "state.safetensors")):
        assert read.keys() == state.keys()
        assert all(same_bits(read[name], state[name]) for name in state)


def test_the_state_is_that_of_the_moment_and_training_does_not_wait_for_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write = threading.Event(), Room.write

    def slowly(self: Room, *arguments: Any) -> Any:
        disk.wait(30)
        return write(self, *arguments)

    monkeypatch.setattr(Room, "write", slowly)
    with Checkpoints(folder) as checkpoints:
        state, plain = small(1), {"seen": [1]}
        checkpoints.save(1, state, plain)
        for tensor in state.values():
            tensor.fill_(2)
        plain["seen"].append(2)
        assert not (folder / "step-00000001").exists()
        assert find_latest(folder) is None
        disk.set()
        checkpoints.save(2, state, plain)  # waits for the first
        assert (folder / "step-00000001").exists()
        checkpoints.wait()
        assert 0 < checkpoints.waited_seconds < 30
        for step, found in ((1, json.loads((folder / "step-00000001" / "state.json").read_text())), (2, plain)):
            assert found == {"seen": [1, 2][:step]}
            tensors = load_file(folder / f"step-0000000{step}" / "state.safetensors")
            assert all(torch.equal(tensors[name], small(step)[name]) for name in tensors)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_state_on_a_gpu_is_that_of_the_moment(folder: Path) -> None:
    state = {str(i): torch.full((1024, 1024), float(i), device="cuda") for i in range(64)} | {"cpu": torch.ones(3)}
    with Checkpoints(folder) as checkpoints:
        for step in range(3):
            checkpoints.save(step, state, {})
            for tensor in state.values():
                tensor.add_(1)
    found = find_latest(folder)
    assert found is not None
    tensors, _ = checkpoints.load(found, "cuda")
    assert all(torch.equal(tensors[name] + 1, state[name].cuda()) for name in state)


def test_the_newest_stay_and_those_that_are_pinned(folder: Path) -> None:
    with Checkpoints(folder, 2) as checkpoints:
        checkpoints.pin(2)
        for step in range(1, 7):
            checkpoints.save(step, small(), {})
        checkpoints.wait()
        assert visible(folder) == ["step-00000002", "step-00000005", "step-00000006"]
        checkpoints.unpin(2)
        checkpoints.save(7, small(), {})
        checkpoints.wait()
        assert visible(folder) == ["step-00000006", "step-00000007"]
    with pytest.raises(ConfigError, match="at least 1"):
        Checkpoints(folder, 0)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit of the tensors": (
        lambda path: flip(path / "state.safetensors"),
        "state.safetensors is not what was written",
    ),
    "a bit of the rest": (lambda path: flip(path / "state.json"), "state.json is not what was written"),
    "cut": (lambda path: (path / "state.safetensors").write_bytes(b"123"), "has 3 bytes instead of"),
    "no tensors": (lambda path: (path / "state.safetensors").unlink(), "state.safetensors is missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
    "half a manifest": (lambda path: (path / "manifest.json").write_text('{"format":'), "cannot be read as JSON"),
    "an empty manifest": (lambda path: (path / "manifest.json").write_text("{}"), "no manifest of version"),
    "another step": (lambda path: path.rename(path.with_name("step-00000009")), "of another step"),
    "a file from elsewhere": (lambda path: (path / "x.safetensors").write_bytes(b""), "x.safetensors does not belong"),
    "an empty folder": (lambda path: [file.unlink() for file in path.iterdir()], "manifest.json is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_passed_over_and_stays(folder: Path, damage: str) -> None:
    save(folder, 1, 2)
    DAMAGE[damage][0](folder / "step-00000002")
    before = visible(folder)
    with pytest.warns(UserWarning, match=DAMAGE[damage][1]) as caught:
        found = find_latest(folder)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert found is not None
    assert found.step == 1
    assert visible(folder) == before


def test_damaged_checkpoints_do_not_count_among_those_kept(folder: Path) -> None:
    save(folder, 1, 2, 3)
    (folder / "step-00000003" / "state.json").unlink()
    (folder / "step-00000002" / "manifest.json").unlink()
    with Checkpoints(folder, 2) as checkpoints:
        checkpoints.save(4, small(), {})
        checkpoints.wait()
        assert visible(folder) == [f"step-0000000{step}" for step in (1, 2, 3, 4)]


def test_a_step_that_is_saved_again_replaces_the_first_and_a_damaged_one_is_put_aside(folder: Path) -> None:
    save(folder, 5)
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(5, small(50), {})
        checkpoints.wait()
        assert visible(folder) == ["step-00000005"]
        flip(folder / "step-00000005" / "state.safetensors")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            checkpoints.save(5, small(60), {})
            checkpoints.wait()
        assert "is now step-00000005.damaged-1" in str(caught[0].message)
        assert visible(folder) == ["step-00000005", "step-00000005.damaged-1"]
        found = checkpoints.latest()
        assert found is not None
        assert torch.equal(checkpoints.load(found)[0]["w"], small(60)["w"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_number_that_is_not_finite_is_refused_by_name(folder: Path, bad: float, dtype: torch.dtype) -> None:
    state = small() | {"optimiser.moment": torch.ones(1000, dtype=dtype)}
    state["optimiser.moment"][777] = bad
    with Checkpoints(folder) as checkpoints:
        with pytest.raises(VitrailError, match=r"step 3 .* optimiser\.moment holds"):
            checkpoints.save(3, state, {})
        assert visible(folder) == []
        checkpoints.save(3, state, {}, check_finite=False)
    found = find_latest(folder)
    assert found is not None
    assert same_bits(checkpoints.load(found)[0]["optimiser.moment"], state["optimiser.moment"])


def test_large_numbers_whose_sum_overflows_are_finite(folder: Path) -> None:
    state = {
        str(d): torch.full((9,), torch.finfo(d).max, dtype=d) for d in (torch.float64, torch.float32, torch.float16)
    }
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, state, {"best": -float("inf")})
        with pytest.raises(VitrailError, match="NaN"):
            checkpoints.save(2, state, {"losses": [{"a": float("nan")}]})
    found = find_latest(folder)
    assert found is not None
    assert found.plain == {"best": -float("inf")}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("known_before", [True, False])
def test_a_full_disk_leaves_the_checkpoint_before_and_says_what_was_needed(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, known_before: bool
) -> None:
    state = {"w": torch.ones(700_000)}  # 2.8 MB
    with Checkpoints(small_disk / "checkpoints") as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        free = shutil.disk_usage(small_disk).free
        if known_before:  # then nothing is written at all
            monkeypatch.setattr(Room, "write", None)
        else:  # another program takes the space meanwhile
            monkeypatch.setattr(Room, "make", lambda self, needed: self.path.mkdir())
        checkpoints.save(2, state, {})
        with pytest.raises(VitrailError, match=f"step 2 is not written: it needs 2,800,...* where {free:,} are free"):
            checkpoints.wait()
        assert visible(small_disk / "checkpoints") == ["step-00000001"]
        found = checkpoints.latest()
        assert found is not None
        assert torch.equal(checkpoints.load(found)[0]["w"], state["w"])
        monkeypatch.undo()
        checkpoints.save(3, small(), {})  # a smaller one fits: training went on


@pytest.fixture
def short_files() -> Iterator[None]:
    """The system lets no file grow beyond 100,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("short_files")
def test_a_limit_on_the_length_of_files_is_told(folder: Path) -> None:
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, small(), {})
        checkpoints.save(2, {"w": torch.ones(50_000)}, {})
        with pytest.raises(VitrailError, match=r"needs 200,...* bytes, but files here may have 100,000 at most"):
            checkpoints.wait()
        assert visible(folder) == ["step-00000001"]


def test_an_error_of_the_writer_is_raised_once_by_what_waits_next(folder: Path) -> None:
    with Checkpoints(folder) as checkpoints:
        (folder / ".step-00000001.tmp").write_text("no folder can be made here")
        checkpoints.save(1, small(), {})
        with pytest.raises(VitrailError, match=r"^the checkpoint of step 1 is not written to .*: File exists;.*$"):
            checkpoints.save(2, small(), {})
        checkpoints.save(3, small(), {})
        checkpoints.wait()
        assert (folder / "step-00000003").exists()


def test_types_that_the_format_does_not_know_are_refused_by_name(folder: Path) -> None:
    with Checkpoints(folder) as checkpoints, pytest.raises(VitrailError, match=r"^phase cannot be saved.*complex64"):
        checkpoints.save(1, {"phase": torch.ones(2, dtype=torch.complex64)}, {})


def test_one_process_at_a_time_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_PATIENCE", 0.1)
    with Checkpoints(folder) as checkpoints:
        with pytest.raises(VitrailError, match="another process is writing to"):
            Checkpoints(folder)
        checkpoints.save(1, small(), {})
    forked = multiprocessing.get_context("fork")
    leave = forked.Event()
    with Checkpoints(folder):
        worker = forked.Process(target=leave.wait, args=(30,))
        worker.start()
    Checkpoints(folder).close()  # a worker that outlives the training holds no lock
    leave.set()
    worker.join()
    assert worker.exitcode == 0
    Checkpoints(folder)  # nothing refers to it any more
    Checkpoints(folder).close()


def test_other_processes_of_a_training_with_whole_states_write_nothing(folder: Path) -> None:
    with Checkpoints(folder, rank=1, world=2) as checkpoints:
        checkpoints.save(1, small(), {})
        checkpoints.wait()
    assert not folder.exists()
