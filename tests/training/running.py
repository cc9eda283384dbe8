"""Trainings that take a second: tiny pictures, a tiny model, and commands in processes of their own."""

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.training.processes import start
from vitrail.training.checkpoints import find_latest, load_checkpoint
from vitrail.training.log import read_log

TINY: dict[str, Any] = {
    "model": "vit_ti16",
    "img_size": 8,
    "architecture.patch_size": 4,
    "architecture.embed_dim": 32,
    "architecture.depth": 2,
    "architecture.num_heads": 2,
    "batch_size": 4,
    "steps": 12,
    "eval_epochs": 0.25,
    "checkpoint_minutes": 0.0,
    "data.workers": 0,
    "schedule.warmup_epochs": 0,
}
# every kind of noise and of state at once
RICH: dict[str, Any] = TINY | {
    "architecture.dropout": 0.1,
    "architecture.drop_path": 0.2,
    "augmentation.mixup": 0.3,
    "augmentation.cutmix": 0.5,
    "augmentation.erase": 0.3,
    "augmentation.erase_fill": "noise",
    "augmentation.policy": "trivialaugment",
    "optimiser.name": "muon",
    "ema": 0.9,
    "accumulate": 2,
    "loss.smoothing": 0.1,
}


def make_pictures(folder: Path, *, classes: int = 2, each: int = 53, size: int = 8, split: str = "") -> Path:
    """Classes that differ in brightness: a folder for each."""
    for label in range(classes):
        place = folder / split / f"kind {label}"
        place.mkdir(parents=True)
        noise = np.random.default_rng([label, len(split)])
        for number in range(each):
            pixels = noise.integers(0, 120, (size, size, 3)) + 135 * label // max(1, classes - 1)
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number:03}.png")
    return folder


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as one gives them to the command."""
    return [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]


def command(
    arguments: list[str],
    output: Path,
    *,
    die: tuple[int, float] | None = None,
    alone: bool = False,
    full_after: tuple[int, int] | None = None,
    ballast: tuple[int, int, Path] | None = None,
    hang: tuple[int, Path] | None = None,
) -> BaseProcess:
    """`vitrail ARGUMENTS` in a process, with its words in the file `output`.

    `die`: it kills itself so many seconds after it began this step. `alone`: it leads a group of processes.
    `full_after`: once this step is done, no file may have more than so many bytes. `ballast`: once this step is done,
    so many bytes are free beside this file, which takes the others. `hang`: this step takes a minute, once it has made
    this file.
    """
    hooks = [
        (hook, given)
        for hook, given in ((_die_at, die), (_limit_files, full_after), (_fill_disk, ballast), (_hang_at, hang))
        if given is not None
    ]
    return start(_command, arguments, str(output), alone, hooks)


def _command(arguments: list[str], output: str, alone: bool, hooks: list[tuple[Any, tuple[Any, ...]]]) -> None:
    torch.set_num_threads(1)
    # as in a process that a shell started: workers are its own children, and end when it does
    multiprocessing.set_start_method("fork", force=True)
    if alone:
        os.setsid()
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    for hook, given in hooks:
        hook(*given)
    from vitrail.cli import main

    sys.exit(main(arguments))


def _die_at(step: int, seconds: float) -> None:
    from vitrail.training.loop import Trainer

    original = Trainer.train_step

    def train_step(trainer: Any, *rest: Any) -> None:
        if trainer.progress.step == step:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        original(trainer, *rest)

    Trainer.train_step = train_step  # type: ignore[method-assign]


def _limit_files(step: int, room: int) -> None:
    _after(step, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))


def _fill_disk(step: int, room: int, ballast: Path) -> None:
    def fill() -> None:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            file.write(bytes(shutil.disk_usage(ballast.parent).free - room))

    _after(step, fill)


def _hang_at(step: int, begun: Path) -> None:
    def hang() -> None:
        begun.touch()
        time.sleep(60)

    _after(step, hang)


def _after(step: int, act: Callable[[], None]) -> None:
    """Once this step is done."""
    from vitrail.training.loop import Trainer

    original = Trainer.train_step

    def train_step(trainer: Any, *rest: Any) -> None:
        original(trainer, *rest)
        if trainer.progress.step == step:
            act()

    Trainer.train_step = train_step  # type: ignore[method-assign]


def state_of(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Of the newest checkpoint; what a clock says is left out."""
    found = find_latest(run / "checkpoints")
    assert found is not None
    tensors, plain = load_checkpoint(found)
    plain["progress"].pop("seconds")
    return tensors, plain


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Of the log, without what a clock says."""
    return [{k: v for k, v in row.items() if k not in ("time", "pictures_per_s")} for row in read_log(run)]


def assert_same_training(one: Path, two: Path) -> None:
    """Bit for bit: weights, average, optimiser, counters, log, models."""
    (tensors, plain), (others, other) = state_of(one), state_of(two)
    assert tensors.keys() == others.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []
    assert plain == other
    assert rows_of(one) == rows_of(two)
    for name in ("best", "last"):
        assert (one / name / "model.safetensors").read_bytes() == (two / name / "model.safetensors").read_bytes()
