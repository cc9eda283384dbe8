"""Many pictures in several processes: in order, and past what crashes."""

import itertools
import os
import signal
from contextlib import closing
from dataclasses import dataclass

import pytest

from vitrail.data.workers import in_order


@dataclass(frozen=True)
class Squares:
    deadly: tuple[int, ...] = ()

    def __call__(self, rows):
        if set(rows) & set(self.deadly):
            os.kill(os.getpid(), signal.SIGKILL)
        return [row * row for row in rows]

    def lost(self, row):
        return ["lost"]


def flat(results) -> list:
    return [value for rows, values in results for value in values if len(rows) == len(values)]


CHUNKS = [list(range(start, start + 5)) for start in range(0, 60, 5)]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_order_whatever_the_number_of_processes(workers: int) -> None:
    assert flat(in_order(Squares(), CHUNKS, workers)) == [n * n for n in range(60)]


def test_a_row_that_kills_its_process_is_lost_alone() -> None:
    found = flat(in_order(Squares(deadly=(17, 44)), CHUNKS, 2))
    assert found == ["lost" if n in (17, 44) else n * n for n in range(60)]


def test_an_error_in_a_process_is_raised_here() -> None:
    with pytest.raises(TypeError):
        list(in_order(Squares(), [[1], ["a"]], 2))


def test_chunks_of_a_long_list_are_taken_as_they_are_needed() -> None:
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield [number]

    with closing(in_order(Squares(deadly=(10,)), endless(), 2)) as results:
        first = list(itertools.islice(results, 30))
    assert flat(first) == ["lost" if n == 10 else n * n for n in range(30)]
    assert len(taken) < 50
