"""All inputs of a job, frozen in a file: a million of them take a hundred megabytes of disk, and next to no memory."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from vitrail.shipping.bulk.items import Item

_STEP = 64  # lines from one known place in the file to the next


@dataclass(frozen=True)
class Listing:
    """One line for each input. Worker processes read theirs by themselves."""

    path: Path
    count: int
    digest: str  # of all names, places and stamps in their order
    has_truth: bool  # whether any input brings a label along
    _offsets: array[int] = field(repr=False)

    @classmethod
    def write(cls, items: Iterable[Item], path: Path) -> Listing:
        digest, offsets, count, has_truth = hashlib.blake2b(digest_size=16), array("q"), 0, False
        with path.open("wb") as file:
            for item in items:
                line = to_text(item).encode() + b"\n"
                digest.update(line)
                if count % _STEP == 0:
                    offsets.append(file.tell())
                file.write(line)
                count += 1
                has_truth = has_truth or item.truth is not None
        return cls(path, count, digest.hexdigest(), has_truth, offsets)

    def items(self, start: int, stop: int) -> Iterator[Item]:
        """The inputs from number `start` to number `stop`."""
        if start >= stop:
            return
        with self.path.open("rb") as file:
            file.seek(self._offsets[start // _STEP])
            for line in islice(file, start % _STEP, start % _STEP + stop - start):
                yield from_text(line)


def to_text(item: Item) -> str:
    """One line of ASCII: names that are no UTF-8 survive. Most items lie where their path says."""
    return json.dumps(item._replace(place="") if item.place == item.path else item)


def from_text(line: str | bytes) -> Item:
    item = Item(*json.loads(line))
    return item if item.place else item._replace(place=item.path)
