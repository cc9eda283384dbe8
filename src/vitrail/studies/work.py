"""One run of a study: trained, or gone on with, and judged."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.data.source import Source
from vitrail.model.devices import choose_device
from vitrail.scoring.evaluation import evaluate
from vitrail.training.recipe import Recipe
from vitrail.training.run import FACTS, Run
from vitrail.training.train import resume, train


@dataclass(frozen=True)
class Workplace:
    """What all runs share."""

    address: str
    options: Mapping[str, Any]
    source: Source
    device: str | None

    def train(self, folder: Path, recipe: Recipe) -> None:
        """Unless it is complete; what was stopped goes on."""
        if is_complete(folder):
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* loads in vitrail alone")  # models of a study are no gifts
            try:
                if (folder / FACTS).is_file():
                    resume(folder, device=self.device, source=self.source)
                    return
                given: dict[str, Any] = {"data_options": self.options, "source": self.source, "device": self.device}
                train(self.address, recipe=recipe, out=folder, **given)
            finally:
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

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
