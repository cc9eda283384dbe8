"""How much may wait for a model whose speed swings: closed forms, and a queue in virtual time."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.serving.pace import Pace

BATCH, QUEUE, LEAST = 16, 256, 64


def paced(*seconds: float, batch: int = BATCH) -> tuple[Pace, float]:
    pace, now = Pace(), 0.0
    for one in seconds:
        now += one
        pace.note("plain", batch, one, now)
    return pace, now


def test_a_steady_model_has_the_whole_queue_and_the_time_that_it_takes() -> None:
    pace, now = paced(*[0.1] * 100)
    assert pace.room(QUEUE, LEAST, now) == QUEUE
    assert pace.patience(QUEUE) == pytest.approx(QUEUE / BATCH * 0.1 - 0.1)


def test_nothing_is_said_before_there_are_some_batches() -> None:
    pace, now = paced(0.1, 0.5, 0.1)
    assert pace.room(QUEUE, LEAST, now) == QUEUE
    assert pace.patience(QUEUE) == math.inf


def test_a_model_that_slows_down_has_less_room_at_once_and_more_again_later() -> None:
    pace, now = paced(*[0.1] * 600, *[0.2] * 16)
    usual = (600 * 0.1 * math.exp(-3.2 / 60) + 16 * 0.2) / (600 * math.exp(-3.2 / 60) + 16)  # 60 s are one e-folding
    assert pace.room(QUEUE, LEAST, now) == pytest.approx(QUEUE * usual / 0.2, rel=0.15)
    assert pace.room(QUEUE, LEAST, now) < 0.63 * QUEUE
    assert pace.room(QUEUE, LEAST, now + 60) > 0.75 * QUEUE
    assert pace.room(QUEUE, LEAST, now + 600) == QUEUE


def test_a_model_that_stays_slow_has_the_whole_queue_again() -> None:
    pace, now = paced(*[0.1] * 600, *[0.2] * 3000)
    assert pace.room(QUEUE, LEAST, now) > 0.97 * QUEUE
    assert pace.patience(QUEUE) == pytest.approx(QUEUE / BATCH * 0.2 - 0.2, rel=0.02)


def test_one_batch_that_was_held_up_costs_little_and_never_more_than_leaves_batches_full() -> None:
    pace, now = paced(*[0.1] * 600, 30.0)
    assert pace.room(QUEUE, LEAST, now) > 0.7 * QUEUE
    pace, now = paced(*[0.1] * 600, *[30.0] * 50)
    assert pace.room(QUEUE, LEAST, now) >= LEAST
    assert pace.room(32, LEAST, now) == 32  # a short queue is as it was asked for


def test_what_takes_long_by_its_nature_is_not_taken_for_slowness() -> None:
    pace, now = paced(*[0.1] * 100)
    for _ in range(20):
        now += 0.5
        pace.note("attention", 4, 0.4, now)
        pace.note("plain", BATCH, 0.1, now)
    assert pace.room(QUEUE, LEAST, now) == QUEUE
    assert pace.patience(QUEUE) == pytest.approx(QUEUE / 4 * 0.4 - 0.4)  # they wait for one another
    for _ in range(700):
        now += 0.1
        pace.note("plain", BATCH, 0.1, now)
    assert pace.patience(QUEUE) == pytest.approx(QUEUE / BATCH * 0.1 - 0.1)  # it is long ago


def test_many_kinds_of_tasks_take_no_memory() -> None:
    pace = Pace()
    for kind in range(10_000):
        pace.note(kind, BATCH, 0.1, kind * 0.001)
    assert len(pace._usual) <= 16


def waits(batches: Sequence[float], *, paced: bool) -> tuple[np.ndarray, int]:
    """Seconds from coming to answer at five times the load, by such batches; and how many were given up."""
    pace, waiting, answered, given_up = Pace(), deque[float](), list[float](), 0
    now = coming = 0.0
    between = float(np.mean(batches)) / BATCH / 5

    def let_in(until: float, computing: int) -> None:
        nonlocal coming
        while coming < until:
            room = pace.room(QUEUE, LEAST, coming) if paced else QUEUE
            if len(waiting) + computing < room:
                waiting.append(coming)
            coming += between

    let_in(batches[0], 0)
    now = batches[0]
    for seconds in batches:
        while paced and waiting and now - waiting[0] > pace.patience(QUEUE):
            waiting.popleft()
            given_up += 1
        batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        let_in(now + seconds, len(batch))
        now += seconds
        answered += [now - came for came in batch]
        if len(batch) == BATCH:
            pace.note("plain", BATCH, seconds, now)
    return np.array(answered), given_up


def bound(batches: Sequence[float], answered: np.ndarray) -> float:
    return QUEUE / (len(answered) / sum(batches)) + 2 * float(np.mean(batches))


def swinging(parts: Sequence[tuple[float, float]], seed: int) -> list[float]:
    """Batches of 75 ms, times a factor for some seconds, with the noise that they have on a busy machine."""
    noise, batches = np.random.default_rng(seed), list[float]()
    for factor, seconds in parts:
        until = sum(batches) + seconds
        while sum(batches) < until:
            batches.append(0.075 * factor * float(noise.lognormal(0, 0.1)))
    return batches


PARTS = st.lists(st.tuples(st.sampled_from([1.0, 1.0, 1.2, 1.5, 2.0]), st.floats(3.0, 10.0)), min_size=6, max_size=9)


@given(parts=PARTS, seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_answers_come_within_queue_over_throughput_and_two_batches_however_the_speed_swings(
    parts: list[tuple[float, float]], seed: int
) -> None:
    batches = swinging([(1.0, 10.0), *parts], seed)
    answered, given_up = waits(batches, paced=True)
    assert np.quantile(answered, 0.99) <= bound(batches, answered)
    assert len(answered) > 0.98 * BATCH * len(batches)  # batches stay full
    assert given_up < 0.1 * len(answered)


def test_a_queue_that_counts_pictures_alone_does_not_keep_its_promise() -> None:
    batches = swinging([(1.0, 20.0), (2.0, 6.0), (1.0, 20.0), (2.0, 6.0)], 0)
    answered, _ = waits(batches, paced=False)
    assert np.quantile(answered, 0.99) > 1.3 * bound(batches, answered)
    answered, _ = waits(batches, paced=True)
    assert np.quantile(answered, 0.99) <= bound(batches, answered)
