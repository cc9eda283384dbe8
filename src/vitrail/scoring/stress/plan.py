"""What is tried: every test at every strength with every seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from vitrail.data.notes import quoted
from vitrail.errors import VitrailError
from vitrail.model.fields import Pair
from vitrail.scoring.stress.adversary import Attack
from vitrail.scoring.stress.corruptions import CERTAIN, CORRUPTIONS, SEVERITIES


class Test(NamedTuple):
    title: str
    axis: str  # what its levels are
    factor: float = 1  # by which levels are shown
    unit: str = ""  # behind a level


TESTS = {
    "occlusion": Test("Random patches dropped", "patches dropped", 100, "%"),
    "salient": Test("Patches dropped by saliency", "patches dropped", 100, "%"),
    "shuffle": Test("Patches shuffled", "panes on each side"),
    "corruptions": Test("Common corruptions", "severity"),
    "style": Test("Another picture's style", "strength", 100, "%"),
    "patch": Test("Adversarial patch", "side of the patch, of the picture's", 100, "%"),
    "rotation": Test("Rotation", "angle", 1, "°"),
    "scale": Test("Scale", "size of the content", 1, "×"),
}
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
STYLES = (0.25, 0.5, 0.75, 1.0)
SIDES = (1 / 16, 1 / 8, 3 / 16, 1 / 4)
ANGLES = (15, 30, 45, 60, 90, 120, 150, 180)
FACTORS = (0.25, 0.35, 0.5, 0.7, 1.4, 2.0, 2.8, 4.0)
MOST_PANES = 14  # on a side, shuffled


class Trial(NamedTuple):
    """One pass over all pictures."""

    test: str  # "clean": the pictures as they are
    series: str = ""  # of occlusion and saliency, which panes and how; of corruptions, which
    level: float = 0.0
    seed: int = 0


CLEAN = Trial("clean")


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    tests: tuple[str, ...]
    seeds: int
    grid: Pair  # of the panes that are blanked, the same for all models
    attack: Attack

    def trials(self, size: Pair, has_sequence: bool) -> Iterator[Trial]:
        """Of a model that reads pictures of this size. Only where there is a sequence can patches leave it."""
        yield CLEAN
        for test in self.tests:
            for series, levels, by_chance in _levels(test, size, has_sequence):
                for level in levels:
                    yield from (Trial(test, series, level, seed) for seed in range(self.seeds if by_chance else 1))

    def facts(self, test: str) -> dict[str, Any]:
        """What else decides the result of a test."""
        found: dict[str, dict[str, Any]] = {
            "occlusion": {"grid": list(self.grid)},
            "salient": {"grid": list(self.grid)},
            "patch": asdict(self.attack),
        }
        return found.get(test, {})


def _levels(test: str, size: Pair, has_sequence: bool) -> Iterator[tuple[str, Sequence[float], bool]]:
    """Series of a test, with their levels, and whether chance plays a part."""
    if test == "occlusion":
        yield from ((series, SHARES, True) for series in ("blanked", *(["removed"] * has_sequence)))
    elif test == "salient":
        yield from ((series, SHARES, False) for series in ("most", "least"))
    elif test == "shuffle":
        yield "", shuffle_grids(size), True
    elif test == "corruptions":
        yield from ((name, SEVERITIES, name not in CERTAIN) for name in CORRUPTIONS)
    else:
        yield "", {"style": STYLES, "patch": SIDES, "rotation": ANGLES, "scale": FACTORS}[test], test != "scale"


def shuffle_grids(size: Pair) -> list[int]:
    """Numbers of panes on a side that divide both sides of a picture."""
    return [panes for panes in range(2, MOST_PANES + 1) if not size[0] % panes and not size[1] % panes]


def chosen_tests(only: str | Sequence[str] | None) -> tuple[str, ...]:
    """All, or those that are named, in the order of `TESTS`."""
    if only is None:
        return tuple(TESTS)
    words = [word.strip() for one in ([only] if isinstance(only, str) else only) for word in one.split(",")]
    unknown = [word for word in words if word not in TESTS]
    if unknown or not words:
        raise VitrailError(f"there is no test {quoted(unknown or [''])}: choose from {', '.join(TESTS)}")
    return tuple(test for test in TESTS if test in words)
