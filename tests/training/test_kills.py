"""Killed at any moment, a training leaves checkpoints that are whole: a process saves in a loop, and is killed."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.training import processes
from vitrail.training.checkpoints import Checkpoints, find_latest, load_checkpoint
from vitrail.training.manifest import find_fault, list_checkpoints

NUMBERS = 1_000_000  # 4 MB, and as much again in half precision and integers
KEEP = 2


def state(step: int) -> dict[str, torch.Tensor]:
    """A state that follows from its step."""
    ramp = torch.arange(NUMBERS, dtype=torch.int32)
    return {
        "model.weight": (ramp * (step + 1)).float(),
        "optimiser.moment": (ramp % 251 + step % 100).to(torch.bfloat16),
        "loop.order": (ramp[: NUMBERS // 2] + step).view(-1, 10),
    }


def save_for_ever(folder: Path, reports: "processes.Any") -> None:
    """Resumes, and saves as fast as it can; says which step is saved once it is."""
    torch.set_num_threads(1)
    checkpoints = Checkpoints(folder, KEEP)
    found = checkpoints.latest()
    step = 0 if found is None else found.step + 1
    tensors = state(step)
    reports.send(-1)
    while True:
        checkpoints.save(step, tensors, {"step": step})
        for tensor in tensors.values():
            tensor.zero_()  # training goes on while it is written
        tensors = state(step + 1)
        checkpoints.wait()
        reports.send(step)
        step += 1


def phase(folder: Path) -> str:
    """What the process was doing when it was killed, by what it left."""
    hidden = {path.suffix: path for path in folder.glob(".step-*.*")}
    if ".gone" in hidden:
        return "removing an old one"
    if ".tmp" not in hidden:
        return "between two"
    names = {path.name for path in hidden[".tmp"].iterdir()}
    if "manifest.json" in names:
        return "whole, without its name"
    if "state.json" in names:
        return "writing the manifest"
    return "writing tensors" if names else "folder made"


def kill_once(folder: Path, delay: float, said: int) -> int:
    """The newest step that is saved after a kill; `said` is that before it."""
    reports, ours = processes.pipe()
    child = processes.start(save_for_ever, folder, ours)
    ours.close()
    assert reports.recv() == -1
    time.sleep(delay)
    child.kill()
    child.join()
    try:
        while True:
            said = reports.recv()
    except EOFError:
        pass
    for found in list_checkpoints(folder):
        assert find_fault(found.folder) is None
    return check_latest(folder, said)


def check_latest(folder: Path, said: int) -> int:
    """What was said to be saved is there, or the next one, which had no time to be reported."""
    found = find_latest(folder)
    if found is None:
        assert said == -1
        return said
    assert found.step in (said, said + 1)
    tensors, plain = load_checkpoint(found)
    assert plain == {"step": found.step}
    expected = state(found.step)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    return found.step


def test_a_killed_process_leaves_whole_checkpoints(tmp_path: Path) -> None:
    said = -1
    for delay in (0.02, 0.05, 0.1):
        said = kill_once(tmp_path / "checkpoints", delay, said)


@pytest.mark.slow
def test_a_hundred_kills_while_writing_leave_whole_checkpoints(tmp_path: Path) -> None:
    folder, chance, phases, said = tmp_path / "checkpoints", random.Random(0), Counter[str](), -1
    while phases.total() - phases["between two"] < 100:
        said = kill_once(folder, chance.uniform(0.005, 0.25), said)
        phases[phase(folder)] += 1
    print(f"{phases.total()} kills, {said + 1} checkpoints: {dict(phases)}")
    assert phases["writing tensors"] >= 20


def test_what_a_killed_process_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, {"w": torch.ones(3)}, {})
    (folder / ".step-00000002.tmp").mkdir()
    (folder / ".step-00000002.tmp" / "state.safetensors").write_bytes(b"half")
    (folder / ".step-00000000.gone").mkdir()
    (folder / "step-00000001").rename(folder / ".step-00000001.aside")  # killed while it was being replaced
    with Checkpoints(folder):
        assert {path.name for path in folder.iterdir()} == {".lock", "step-00000001"}
        assert find_latest(folder) is not None
