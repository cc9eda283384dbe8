"""Where a study trains: one run at a time, or what goes on of it, and judged; and what went wrong with it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.data.source import Source
from vitrail.errors import (
    NO_MEMORY,
    ConfigError,
    DataError,
    ShortMemoryError,
    VitrailError,
    WeightsError,
    is_short_of_memory,
)
from vitrail.model.devices import choose_device
from vitrail.scoring.evaluation import evaluate
from vitrail.training.recipe import Recipe
from vitrail.training.run import FACTS, Run
from vitrail.training.stopping import StoppedError
from vitrail.training.train import resume, train


class Failure(NamedTuple):
    """What became of a run that did not come to its end."""

    words: str
    kind: type[Exception] = VitrailError

    @property
    def is_of_memory(self) -> bool:
        return issubclass(self.kind, ShortMemoryError)

    @property
    def is_of_any_seed(self) -> bool:
        """Whatever is drawn, and however far a step goes, it comes to the same."""
        return issubclass(self.kind, ShortMemoryError | ConfigError | DataError | WeightsError)


@dataclass(frozen=True)
class Workplace:
    """What all runs share."""

    address: str
    options: Mapping[str, Any]
    source: Source
    device: str | None

    def attempt(self, folder: Path, recipe: Recipe, judged: bool) -> Failure | None:
        """Trains a run, and judges it on the test part if asked: what went wrong, if anything did."""
        try:
            self._train(folder, recipe)
            if judged:
                self.score(folder, recipe)
        except StoppedError:
            raise
        except VitrailError as error:
            return Failure(str(error), type(error))
        except Exception as error:
            if not is_short_of_memory(error):
                raise
            return Failure(NO_MEMORY, ShortMemoryError)
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return None

    def _train(self, folder: Path, recipe: Recipe) -> None:
        """Unless it is complete; what was stopped goes on."""
        if is_complete(folder):
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* loads in vitrail alone")  # models of a study are no gifts
            if (folder / FACTS).is_file():
                run = resume(folder, device=self.device, source=self.source)
            else:
                given: dict[str, Any] = {"data_options": self.options, "source": self.source, "device": self.device}
                run = train(self.address, recipe=recipe, out=folder, **given)
        run.write_facts({**run.facts, "threads": torch.get_num_threads()})

    def score(self, folder: Path, recipe: Recipe) -> None:
        """The best model on the test part, once; the score is kept with the run."""
        run, test = Run.open(folder), self.source.said("test")
        if not len(test) or "test" in run.facts:
            return
        device = choose_device(self.device)
        report = evaluate(run.best, test, device=device, batch_size=512, workers=recipe.data.workers)
        run.write_facts({**run.facts, "test": report.scores.headline()})


def is_complete(folder: Path) -> bool:
    return (folder / FACTS).is_file() and Run.open(folder).is_complete
