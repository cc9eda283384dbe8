"""The learning rate over the steps, beside Google's formulae and torch's schedulers."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.training.recipe import Schedule
from vitrail.training.schedules import make_schedule, warmup_of


def google(kind: str, step: float, total: int, warmup: int, cooldown: int = 0, timescale: int = 10_000) -> float:
    """As in big_vision and vision_transformer, with a peak of 1."""
    progress = min(1.0, max(0.0, (step - warmup) / (total - warmup)))
    course = {
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        "linear": 1.0 - progress,
        "rsqrt": 1.0 / math.sqrt(1 + (step - warmup) / timescale) if step >= warmup else 1.0,
    }[kind]
    course *= min(1.0, step / warmup) if warmup else 1.0
    return course * (min(1.0, (total - step) / cooldown) if cooldown else 1.0)


@given(
    kind=st.sampled_from(["cosine", "linear", "rsqrt"]),
    total=st.integers(1, 500),
    share=st.floats(0, 0.99),
    cooldown=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_after_the_warm_up_factors_are_googles(kind: Any, total: int, share: float, cooldown: float) -> None:
    warmup = int(share * total)
    made = make_schedule(Schedule(kind, warmup_steps=warmup, timescale=50, cooldown=cooldown), total, 10)
    cool = round(cooldown * total) if kind == "rsqrt" else 0
    for step in range(warmup, total):
        assert made(step) == pytest.approx(google(kind, step, total, warmup, cool, 50), abs=1e-12)
    if not cool:
        for step in range(warmup):  # no step is lost at 0: ours is one step ahead
            assert made(step) == pytest.approx(google(kind, step + 1, total, warmup, 0, 50), abs=1e-12)


def by_torch(make: Any, steps: int) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimiser)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def test_cosine_is_torchs() -> None:
    made = make_schedule(Schedule("cosine", final=0.1), 40, 10)
    wanted = by_torch(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40, eta_min=0.1), 40)
    assert [made(step) for step in range(40)] == pytest.approx(wanted, abs=1e-12)


def test_linear_is_torchs() -> None:
    made = make_schedule(Schedule("linear", final=0.25), 30, 10)
    wanted = by_torch(lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.25, 30), 30)
    assert [made(step) for step in range(30)] == pytest.approx(wanted, abs=1e-12)


def test_the_warm_up_is_torchs() -> None:
    made = make_schedule(Schedule("constant", warmup_steps=3, warmup_epochs=0.5), 30, 10)
    wanted = by_torch(lambda o: torch.optim.lr_scheduler.LinearLR(o, 1 / 8, 1.0, 7), 30)
    assert [made(step) for step in range(30)] == pytest.approx(wanted, abs=1e-12)
    assert made(0) == 1 / 8
    assert made(7) == 1


def test_steps_count_epochs_not_batches() -> None:
    made = make_schedule(Schedule("step", step_epochs=2, step_factor=0.1), 70, 10)
    wanted = by_torch(lambda o: torch.optim.lr_scheduler.StepLR(o, 20, 0.1), 70)
    assert [made(step) for step in range(70)] == pytest.approx(wanted, rel=1e-9)
    assert (made(19), made(20), made(40)) == pytest.approx((1, 0.1, 0.01))


def test_warm_up_stable_decay() -> None:
    made = make_schedule(Schedule("wsd", warmup_steps=10, cooldown=0.2, final=0.5), 100, 10)
    assert [made(step) for step in (0, 4, 9, 10, 79, 80)] == pytest.approx([0.1, 0.5, 1, 1, 1, 1])
    assert [made(step) for step in (90, 99, 100)] == pytest.approx([0.75, 0.5 + 0.5 / 20, 0.5])


def test_without_cool_down_a_wsd_is_constant() -> None:
    made = make_schedule(Schedule("wsd", cooldown=0), 10, 1)
    assert {made(step) for step in range(10)} == {1.0}


@given(
    kind=st.sampled_from(["cosine", "linear", "step", "rsqrt", "wsd", "constant"]),
    total=st.integers(1, 200),
    step=st.integers(0, 400),
    final=st.floats(0, 1),
)
def test_a_factor_is_never_negative_nor_above_one(kind: Any, total: int, step: int, final: float) -> None:
    made = make_schedule(Schedule(kind, final=final, step_epochs=0.01), total, 7)
    assert 0 <= made(step) <= 1 + 1e-12
    if step < total and kind != "linear":
        assert made(step) > 0


@pytest.mark.parametrize("warmup", [10, 11, 500])
def test_a_warm_up_as_long_as_the_run_is_cut_to_its_half_and_told(warmup: int) -> None:
    long, half = (make_schedule(Schedule(warmup_steps=steps), 10, 5) for steps in (warmup, 5))
    assert [long(step) for step in range(10)] == [half(step) for step in range(10)]
    cut, words = warmup_of(Schedule(warmup_steps=warmup), 10, 5)
    assert (cut, words) == (5, f"the warm-up of {warmup} steps is cut to 5: there are 10 in all")
    assert warmup_of(Schedule(warmup_steps=9), 10, 5) == (9, None)
    assert make_schedule(Schedule(warmup_steps=1), 1, 5)(0) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"warmup_steps": -1}, {"final": -0.1}, {"final": 2.0}, {"step_epochs": 0}, {"step_factor": 0}, {"timescale": 0}],
)
def test_settings_that_make_no_schedule_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="schedule: "):
        make_schedule(Schedule(**wrong), 100, 10)
