"""How fast a model computes: usually, now, and at its slowest of late. How much may wait, and how long, follows."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

_MEMORY = 60.0  # seconds over which batches are remembered
_QUICK = 0.12  # weight of the newest batch in the present speed: about as many batches count as fill a queue
_FEW = 8  # batches of a kind, before which nothing is said of its speed
_MOST = 4.0  # times its usual seconds: a batch that takes longer was held up, which says little of the next
_KINDS = 16  # of tasks, whose usual seconds are known


@dataclass(slots=True)
class _Usual:
    """Full batches of one kind of task over the last minute; older ones have less weight."""

    batches: float = 0.0
    pictures: float = 0.0
    seconds: float = 0.0
    noted: int = 0
    last: float = 0.0

    def note(self, pictures: int, seconds: float, now: float) -> None:
        kept = math.exp(-seconds / _MEMORY)
        self.batches = kept * self.batches + 1
        self.pictures = kept * self.pictures + pictures
        self.seconds = kept * self.seconds + seconds
        self.noted, self.last = self.noted + 1, now

    @property
    def of_one(self) -> float:
        return self.seconds / self.pictures

    @property
    def of_batch(self) -> float:
        return self.seconds / self.batches


class Pace:
    """The speed of one model, from its full batches. What takes long by its nature, such as attention, is compared
    with its own kind alone.

    A queue of so many pictures is a promise of a wait: queue / throughput. A model does not always keep its usual
    speed, since it shares its processors; then fewer pictures may wait, so that the promise holds at the speed it
    has at its slowest (`room`), and what came before it grew slow and would be late is given up (`patience`).
    """

    def __init__(self) -> None:
        self._usual: dict[Hashable, _Usual] = {}
        self._present = 1.0  # seconds of a batch now, as a multiple of the usual
        self._slowest = 1.0  # the largest of these, forgotten slowly
        self._noted = 0.0

    def note(self, task: Hashable, pictures: int, seconds: float, now: float) -> None:
        """A full batch of this task ended now, after so many seconds."""
        usual = self._usual.pop(task, None) or _Usual()
        if usual.noted >= _FEW:
            multiple = min(seconds / usual.of_batch, _MOST)
            self._present += _QUICK * (multiple - self._present)
            self._slowest, self._noted = max(self._present, self.slowest(now)), now
        usual.note(pictures, max(seconds, 1e-6), now)
        self._usual[task] = usual  # the newest stands last
        oldest, first = next(iter(self._usual.items()))
        if len(self._usual) > _KINDS or now - first.last > _MEMORY:
            del self._usual[oldest]

    def slowest(self, now: float) -> float:
        """The seconds of a batch at the slowest of late, as a multiple of the usual; 1: it is steady."""
        return 1 + (self._slowest - 1) * math.exp(-(now - self._noted) / _MEMORY)

    def room(self, queue: int, least: int, now: float) -> int:
        """How many pictures may be inside; at least so many, without which batches would not be full."""
        return max(min(queue, least), round(queue / self.slowest(now)))

    def patience(self, queue: int) -> float:
        """Seconds from a picture's coming to its batch, beyond which its answer would be later than was promised."""
        known = [usual for usual in self._usual.values() if usual.noted > _FEW]
        if not known:
            return math.inf
        longest = max(known, key=lambda usual: usual.of_one)
        return queue * longest.of_one - max(1.0, self._present) * longest.of_batch
