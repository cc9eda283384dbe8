"""Other people's pages for runs: TensorBoard and MLflow, when they are installed and asked for."""

from __future__ import annotations

import logging
import math
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vitrail.errors import ConfigError, VitrailError

EXPERIMENT = "vitrail"
_RUN_FILE = "mlflow.run"  # in a run's folder: which of MLflow's runs it is
_NOT_DRAWN = ("kind", "step", "time")


class Tracker(Protocol):
    def log(self, row: Mapping[str, Any]) -> None:
        """Takes a row of the log."""

    def close(self, artifacts: Sequence[Path] = ()) -> None:
        """Ends, with files to keep beside the figures."""


class TensorBoard:
    """Events in `RUN/tensorboard`; see them with `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, run_name: str, resume_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        after = None if resume_at is None else resume_at + 1  # what is at later steps is taken back
        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=after)
        recipe = _recipe(folder)
        if recipe and resume_at is None:
            lines = [f"| {name} | {value} |" for name, value in recipe.items()]
            self._writer.add_text("recipe", "\n".join([f"| {run_name} | |", "|---|---|", *lines]), 0)

    def log(self, row: Mapping[str, Any]) -> None:
        for name, value in _figures(row).items():
            self._writer.add_scalar(name, value, row["step"])
        if row["kind"] == "eval":
            self._writer.flush()

    def close(self, artifacts: Sequence[Path] = ()) -> None:
        import numpy as np
        from PIL import Image

        for path in artifacts:
            if path.suffix == ".png" and path.is_file():
                with Image.open(path) as picture:
                    self._writer.add_image(path.stem, np.asarray(picture.convert("RGB")), dataformats="HWC")
        self._writer.close()


class MLflow:
    """A local store for all runs of a folder; see it with `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`."""

    def __init__(self, folder: Path, run_name: str, resume_at: int | None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a local store tells no one of it
        from mlflow import MlflowClient

        self._folder = folder
        with _quiet("alembic", "mlflow.store.db.utils"):
            self._client = MlflowClient(f"sqlite:///{folder.resolve().parent / 'mlflow.db'}")
            self._run = (self._resumed() if resume_at is not None else None) or self._created(run_name)

    def _resumed(self) -> str | None:
        from mlflow.exceptions import MlflowException

        path = self._folder / _RUN_FILE
        if not path.is_file():
            return None
        run = path.read_text(encoding="utf-8").strip()
        try:
            self._client.update_run(run, status="RUNNING")
        except MlflowException:  # the store was removed
            return None
        return run

    def _created(self, run_name: str) -> str:
        from mlflow.entities import Param

        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        place = (self._folder.resolve().parent / "mlflow").as_uri()
        number = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT, place)
        run = self._client.create_run(number, run_name=run_name).info.run_id
        (self._folder / _RUN_FILE).write_text(run + "\n", encoding="utf-8")
        params = [Param(name, str(value)) for name, value in _recipe(self._folder).items()]
        for start in range(0, len(params), 100):  # the most that MLflow takes at once
            self._client.log_batch(run, params=params[start : start + 100])
        return str(run)

    def log(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, row["step"]) for name, value in _figures(row).items()]
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)

    def close(self, artifacts: Sequence[Path] = ()) -> None:
        for path in artifacts:
            if path.is_file():
                self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run)


_KINDS: dict[str, tuple[str, Callable[[Path, str, int | None], Tracker]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "mlflow": ("mlflow", MLflow),
}


def make_trackers(names: Sequence[str], folder: Path, run_name: str, *, resume_at: int | None = None) -> list[Tracker]:
    """The trackers of these names, for a run in this folder. With `resume_at` a stopped run goes on after that step."""
    for name in names:
        if name not in _KINDS:
            raise ConfigError(f"there is no tracker {name!r}: choose from {', '.join(_KINDS)}")
        if find_spec(_KINDS[name][0]) is None:
            raise VitrailError(f"{name} is not installed: pip install 'vitrail[track]', or train without it")
    folder.mkdir(parents=True, exist_ok=True)
    return [_KINDS[name][1](folder, run_name, resume_at) for name in dict.fromkeys(names)]


def _figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row under names such as `eval/accuracy`."""
    return {
        f"{row['kind']}/{key}": float(value)
        for key, value in row.items()
        if key not in _NOT_DRAWN
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


def _recipe(folder: Path) -> dict[str, Any]:
    """The settings of the run's `recipe.toml`, flat: `optimiser.lr`."""
    path = folder / "recipe.toml"
    return dict(_flat(tomllib.loads(path.read_text(encoding="utf-8")))) if path.is_file() else {}


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Making the store is told in sixty lines, which no one wants to read."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
