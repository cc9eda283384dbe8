"""What was found, by name; as JSON too."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.checking.duplicates import between_splits, contradictory, leaked
from vitrail.checking.hashes import distances
from vitrail.checking.looking import LONG, TINY
from vitrail.checking.mislabelled import LabelReport
from vitrail.checking.records import KINDS, Doubt, Records, Trait, with_doubt, with_trait
from vitrail.data.samples import SPLITS, UNSAID, Integers
from vitrail.data.source import Source

PERCENTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)
TRAITS = {
    "grey": Trait.GREY,
    "colour files without colour": Trait.COLOURLESS,
    "with alpha": Trait.ALPHA,
    "more than 8 bits": Trait.DEEP,
    "CMYK": Trait.CMYK,
    "palette": Trait.PALETTE,
    "turned by EXIF": Trait.TURNED,
}
DOUBTS = {
    "one single colour": Doubt.PLAIN,
    f"smaller than {TINY} pixels": Doubt.TINY,
    f"sides beyond 1 to {LONG}": Doubt.LONG,
    "wrong suffix": Doubt.SUFFIX,
    "several frames": Doubt.ANIMATED,
    "huge": Doubt.HUGE,
}


@dataclass(frozen=True)
class Finding:
    """A picture and what is wrong with it."""

    row: int
    reason: str


@dataclass(frozen=True)
class Group:
    """Pictures that are the same."""

    rows: Integers
    exact: bool  # byte for byte; otherwise to the eye


@dataclass(frozen=True)
class CheckReport:
    """Everything `vitrail check` found. Pictures are rows of `source`; `name_of` has their names."""

    source: Source = field(repr=False)
    records: Records = field(repr=False)
    unreadable: list[Finding] = field(repr=False)
    duplicates: list[Group] = field(repr=False)
    labels: LabelReport | None = field(default=None, repr=False)  # with a model

    def name_of(self, row: int) -> str:
        return self.source.samples.names[row]

    def split_of(self, row: int) -> str:
        split = int(self.source.samples.splits[row])
        return "" if split == UNSAID else SPLITS[split]

    def label_of(self, row: int) -> str:
        return ", ".join(self.source.classes[label] for label in self.source.samples.labels_of(row))

    @cached_property
    def readable(self) -> NDArray[np.bool_]:
        return with_trait(self.records, Trait.READABLE)

    @cached_property
    def suspicious(self) -> list[Finding]:
        rows = np.flatnonzero(self.records["doubts"] * self.readable)
        return [Finding(int(row), _doubtful(self.records[row], self.name_of(int(row)))) for row in rows]

    @cached_property
    def leaks(self) -> list[Group]:
        """The groups with pictures in two splits."""
        return self._groups(between_splits([group.rows for group in self.duplicates], self.source.samples))

    @cached_property
    def leaked(self) -> dict[str, int]:
        """How many pictures of one split are also in another: {"val in train": 3}."""
        return leaked([group.rows for group in self.leaks], self.source.samples)

    @cached_property
    def contradictions(self) -> list[Group]:
        """The groups whose pictures have different labels."""
        return self._groups(contradictory([group.rows for group in self.duplicates], self.source.samples))

    def _groups(self, chosen: list[Integers]) -> list[Group]:
        firsts = {int(rows[0]) for rows in chosen}
        return [group for group in self.duplicates if int(group.rows[0]) in firsts]

    def distance(self, group: Group, row: int) -> int:
        """In how many of the 128 bits of its hashes a picture differs from the first of its group."""
        if group.exact:
            return 0
        first, other = self.records[[int(group.rows[0]), row]]
        return int(sum(distances(first[bits], other[bits]) for bits in ("phash", "dhash")))

    @cached_property
    def class_counts(self) -> dict[str, Integers]:
        """For each split, the pictures of each class; "all" where the source says no splits."""
        samples = self.source.samples
        names = {UNSAID: "all" if (samples.splits == UNSAID).all() else "no split", **dict(enumerate(SPLITS))}
        present = np.unique(samples.splits).tolist()
        order = sorted(present, key=lambda split: (split == UNSAID, split))
        return {names[split]: samples.counts(np.flatnonzero(samples.splits == split)) for split in order}

    @cached_property
    def missing_classes(self) -> dict[str, list[str]]:
        """For each split with labels, the classes it has no picture of."""
        return {
            split: [self.source.classes[i] for i in np.flatnonzero(counts == 0)]
            for split, counts in self.class_counts.items()
            if counts.any() and not counts.all()
        }

    @cached_property
    def totals(self) -> Integers:
        """The pictures of each class."""
        return self.source.samples.counts()

    @cached_property
    def imbalance(self) -> float | None:
        """Pictures of the largest class for each picture of the smallest that has any."""
        total = self.totals[self.totals > 0]
        return float(total.max() / total.min()) if len(total) else None

    @cached_property
    def split_sizes(self) -> dict[str, int]:
        splits = self.source.samples.splits
        found = {name: int((splits == number).sum()) for number, name in enumerate(SPLITS)}
        found["no split"] = int((splits == UNSAID).sum())
        return {name: count for name, count in found.items() if count}

    @cached_property
    def formats(self) -> dict[str, int]:
        counts = np.bincount(self.records["kind"][self.readable], minlength=len(KINDS)).tolist()
        found = {kind: count for kind, count in zip(KINDS, counts, strict=True) if count}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def traits(self) -> dict[str, int]:
        return {words: int((with_trait(self.records, trait) & self.readable).sum()) for words, trait in TRAITS.items()}

    @cached_property
    def doubts(self) -> dict[str, int]:
        return {words: int((with_doubt(self.records, doubt) & self.readable).sum()) for words, doubt in DOUBTS.items()}

    @cached_property
    def sides(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The shorter and the longer side of each readable picture."""
        width, height = self.records["width"][self.readable], self.records["height"][self.readable]
        return np.minimum(width, height), np.maximum(width, height)

    @cached_property
    def percentiles(self) -> dict[str, list[float]]:
        """At `PERCENTILES`: sides in pixels, ratio of the sides, kilobytes of a file."""
        short, long = self.sides
        if not len(short):
            return {}
        columns: dict[str, NDArray[Any]] = {
            "shorter side": short,
            "longer side": long,
            "ratio": long / short,
            "kilobytes": self.records["size"][self.readable] / 1000,
        }
        return {name: np.percentile(values, PERCENTILES).round(2).tolist() for name, values in columns.items()}

    @property
    def found(self) -> bool:
        """Whether there is anything to look at."""
        doubts = self.labels is not None and self.labels.doubts
        return bool(self.unreadable or self.suspicious or self.duplicates or doubts or self.missing_classes)

    def to_json(self) -> dict[str, Any]:
        return {
            "data": shown(self.source.name),
            "pictures": len(self.source),
            "splits": self.split_sizes,
            "unreadable": [self._finding(finding) for finding in self.unreadable],
            "suspicious": [self._finding(finding) for finding in self.suspicious],
            "duplicates": [self._group(group) for group in self.duplicates],
            "leaks": self.leaked,
            "leaking_groups": len(self.leaks),
            "contradictory_groups": len(self.contradictions),
            "labels": self._labels(),
            "classes": {
                "names": [shown(name) for name in self.source.classes],
                "counts": {split: counts.tolist() for split, counts in self.class_counts.items()},
                "missing": {split: [shown(c) for c in names] for split, names in self.missing_classes.items()},
                "imbalance": self.imbalance,
            },
            "formats": self.formats,
            "traits": self.traits,
            "percentiles": {"at": list(PERCENTILES), **self.percentiles},
            "notes": list(self.source.notes),
        }

    def _finding(self, finding: Finding) -> dict[str, str]:
        return {"name": shown(self.name_of(finding.row)), "reason": finding.reason}

    def _group(self, group: Group) -> dict[str, Any]:
        rows = [int(row) for row in group.rows]
        members = [
            {"name": shown(self.name_of(row)), "split": self.split_of(row), "label": shown(self.label_of(row))}
            for row in rows
        ]
        return {"exact": group.exact, "pictures": members}

    def _labels(self) -> dict[str, Any] | None:
        if self.labels is None:
            return None
        doubts = [
            {
                "name": shown(self.name_of(doubt.row)),
                "label": shown(self.source.classes[doubt.given]),
                "suggested": shown(self.source.classes[doubt.suggested]),
                "self_confidence": round(doubt.self_confidence, 4),
                "probability": round(doubt.probability, 4),
                "margin": round(doubt.margin, 4),
            }
            for doubt in self.labels.doubts
        ]
        agreement = round(self.labels.agreement, 4)
        judged, unjudged = self.labels.judged, self.labels.unjudged
        return {"judged": judged, "unjudged": unjudged, "agreement": agreement, "doubts": doubts}


def shown(name: str) -> str:
    """A name that any encoding can print: bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _doubtful(record: np.void, name: str) -> str:
    """In words, why a picture should be looked at."""
    width, height = int(record["width"]), int(record["height"])
    kind, suffix = KINDS[record["kind"]], PurePath(name).suffix
    words = {
        Doubt.PLAIN: "one single colour",
        Doubt.TINY: f"only {width} x {height} pixels",
        Doubt.LONG: f"{width} x {height}, sides as 1 to {max(width, height) / max(1, min(width, height)):.1f}",
        Doubt.SUFFIX: f"holds {kind}, and is named {suffix}",
        Doubt.ANIMATED: "has several frames, of which the first is used",
        Doubt.HUGE: f"{width * height / 1e6:.0f} megapixels",
    }
    return "; ".join(text for doubt, text in words.items() if record["doubts"] & doubt)
