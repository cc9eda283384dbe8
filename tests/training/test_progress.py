"""The stopwatch: closed forms on a clock that is set by hand."""

import pytest
import torch

from vitrail.training.progress import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A watch and its time."""
    watch, time = Stopwatch(torch.device("cpu"), first=3), [0.0]
    monkeypatch.setattr(watch, "_now", lambda: time[0])
    return watch, time


def steps(clock, *seconds):
    watch, time = clock
    for each in seconds:
        time[0] += each
        watch.step()


def test_first_steps_are_set_up_and_count_as_others_do(clock):
    watch, _ = clock
    watch.begin()
    steps(clock, 50, 10, 3, 1, 1, 1, 1)
    watch.pause()
    assert watch.setup == 63
    assert watch.each() == 1


def test_what_happens_while_it_stands_still_does_not_count(clock):
    watch, time = clock
    watch.begin()
    steps(clock, 9, 9, 9, 2, 2)
    with watch.paused():
        time[0] += 100
    steps(clock, 2)
    watch.pause()
    time[0] += 100
    assert watch.each() == 2


def test_another_kind_of_step_compiles_again_and_has_a_time_of_its_own(clock):
    watch, _ = clock
    watch.begin()
    steps(clock, 50, 10, 3, *[1] * 7)  # ten steps of one second
    watch.begin()
    steps(clock, 70, 5, 5, *[3] * 27)  # thirty of three
    watch.begin()
    steps(clock, 40)  # one that tells nothing
    watch.pause()
    assert watch.setup == 63 + 80
    assert watch.each() == (10 * 1 + 30 * 3) / 40


def test_first_steps_alone_tell_nothing(clock):
    watch, _ = clock
    watch.begin()
    steps(clock, 5, 5, 5)
    assert watch.each() is None
