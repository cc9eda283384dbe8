"""Corruption errors beside those of a baseline: CE and mCE (Hendrycks and Dietterich, 2019)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.scoring.stress.corruptions import CORRUPTIONS

# AlexNet's top-1 errors on ImageNet-C, each the mean over the five severities, as its authors published them
ALEXNET = dict(
    zip(
        CORRUPTIONS,
        (
            *(0.886428, 0.894468, 0.922640),  # noise
            *(0.819880, 0.826268, 0.785948, 0.798360),  # blur
            *(0.866816, 0.826572, 0.819324, 0.564592),  # weather
            *(0.853204, 0.646056, 0.717840, 0.606500),  # digital
        ),
        strict=True,
    )
)


@dataclass(frozen=True)
class Baseline:
    """Errors to divide by: of each corruption the mean over the severities."""

    name: str
    errors: Mapping[str, float]

    def ce(self, errors: Mapping[str, float]) -> dict[str, float]:
        """Errors as shares of the baseline's: 1 is as many as it makes."""
        return {name: errors[name] / self.errors[name] for name in errors}

    def mce(self, errors: Mapping[str, float]) -> float:
        return statistics.fmean(self.ce(errors).values())


def read_baseline(path: Path) -> Baseline:
    """From a JSON file: for each corruption its error, from 0 to 1, or a list of the errors at the five severities."""
    try:
        plain: Any = json.loads(path.read_text(encoding="utf-8"))
        errors = {name: _mean(plain[name]) for name in CORRUPTIONS}
    except (OSError, ValueError, TypeError) as error:
        words = " ".join(str(error).split())
        raise VitrailError(f"{path} is no table of errors: {words}; it has an error for each corruption") from error
    except KeyError as error:
        raise VitrailError(
            f"{path} has no error for {error.args[0]}: it must have all of {len(CORRUPTIONS)}"
        ) from error
    if not all(0 < value <= 1 for value in errors.values()):
        raise VitrailError(f"{path} has errors that are not above 0 and at most 1: give shares, not percent")
    return Baseline(path.name, errors)


def _mean(value: Any) -> float:
    return statistics.fmean(map(float, value)) if isinstance(value, list) else float(value)
