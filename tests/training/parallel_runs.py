"""Small trainings on the digits that tests run in processes of their own, and what is written down about them."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

import vitrail.training.job as job
import vitrail.training.loop as loop
from vitrail.training.loop import StoppedError
from vitrail.training.train import resume, train

# 16 steps to an epoch, so that each step is in the log; 96 is divided by 1, 2, 3 and by two for pairs to mix
SMALL: dict[str, Any] = {
    "recipe": "small",
    "steps": 20,
    "batch_size": 96,
    "ema": 0.9,
    "quiet": True,
    "changes": {
        "img_size": 8,
        "eval_epochs": 0.5,
        "architecture": {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "zero_head": False},
        "schedule.warmup_epochs": 0,
        "optimiser.name": "adamw",
        "optimiser.lr": 1e-3,
        "augmentation.mixup": 0.2,
        "data.engine": "resident",
        "data.workers": 0,
    },
}


def with_noise(options: dict[str, Any]) -> dict[str, Any]:
    architecture = options["changes"]["architecture"] | {"drop_path": 0.2, "dropout": 0.2}
    return options | {"changes": options["changes"] | {"architecture": architecture}}


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


class Notes:
    """What a process sees: its samples, the seeds of its noise, the first gradients, the files it opens to write."""

    def __init__(self, run: Path, stop_at: int | None) -> None:
        self.run, self.stop_at = run, stop_at
        self.samples: list[list[int]] = []
        self.seeds: list[int] = []
        self.gradients: dict[str, Tensor] = {}
        self.written: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(self.run)):
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and arguments[2] != os.O_RDONLY:
                self.written.add(Path(arguments[0]).name)

    def listen(self) -> None:
        take, one = loop.step, loop.Trainer._one

        def step(optimiser: torch.optim.Optimizer, ok: Tensor, *rest: Tensor) -> None:
            if not self.gradients:
                for group in optimiser.param_groups:
                    for name, parameter in zip(group["names"], group["params"], strict=True):
                        self.gradients[name] = whole(parameter.grad)
            self.seeds.append(torch.initial_seed())
            take(optimiser, ok, *rest)

        def watched(trainer: loop.Trainer, batch: Any, preprocessing: Any) -> None:
            self.samples.append(batch.samples.tolist())
            if trainer.progress.step + 1 == self.stop_at and trainer.world.rank == trainer.world.size - 1:
                signal.raise_signal(signal.SIGTERM)  # one process alone is asked to stop
            one(trainer, batch, preprocessing)

        loop.step, loop.Trainer._one = step, watched  # type: ignore[assignment, method-assign]
        job.Job._write_report = lambda *_: None  # type: ignore[assignment, method-assign] # drawing takes seconds

    def keep(self, rank: int) -> None:
        plain = {"samples": self.samples, "seeds": self.seeds, "written": sorted(self.written)}
        place = self.run.with_name(f"{self.run.name}.notes")
        place.mkdir(exist_ok=True)
        (place / f"{rank}.json").write_text(json.dumps(plain))
        torch.save(self.gradients, place / f"{rank}.pt")


def begin(rank: int, world: int, run: Path, stop_at: int | None, options: dict[str, Any]) -> None:
    notes = Notes(run, stop_at)
    notes.listen()
    try:
        train(None, out=run, device="cpu", **options)
    except StoppedError:
        assert stop_at is not None
    else:
        assert stop_at is None
    notes.keep(rank)


def go_on(rank: int, world: int, run: Path) -> None:
    notes = Notes(run, None)
    notes.listen()
    resume(run, device="cpu")
    notes.keep(rank)


def notes_of(run: Path, world: int) -> list[dict[str, Any]]:
    place = run.with_name(f"{run.name}.notes")
    return [
        json.loads((place / f"{rank}.json").read_text()) | {"gradients": torch.load(place / f"{rank}.pt")}
        for rank in range(world)
    ]
