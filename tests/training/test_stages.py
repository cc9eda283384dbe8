"""The stages of a training: which steps each has, what is told when one begins, and what is left to compute."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.augmentation.plan import Augmentation
from vitrail.model.walk import flops
from vitrail.model.zoo import configure
from vitrail.training.recipe import Recipe, Stage
from vitrail.training.stages import change_at, span_at, spans, work_until

CONFIG = configure("vit_ti16", img_size=64, patch_size=4)


def recipe(*stages: Stage) -> Recipe:
    return Recipe(stages=stages)


@given(
    st.lists(st.floats(0.01, 1.0), max_size=4, unique=True),
    st.integers(1, 500),
)
def test_every_step_belongs_to_the_first_stage_that_has_not_ended(untils: list[float], steps: int) -> None:
    made = recipe(*(Stage(until=until, img_size=16) for until in untils))
    found = spans(made, steps)
    assert [span.first for span in found] == [0, *(span.until for span in found[:-1])]
    assert found[-1].until == steps
    for step in range(steps):
        wanted = min((until for until in untils if step < round(until * steps)), default=1.0)
        assert span_at(made, steps, step).stage.until == wanted


def test_what_is_another_way_is_told_where_it_begins() -> None:
    made = recipe(
        Stage(until=0.25, img_size=32, patch_drop=0.5),
        Stage(until=0.5, img_size=32),
        Stage(until=0.75, augmentation=Augmentation(mixup=0.5)),
        Stage(until=0.9, augmentation=Augmentation(mixup=0.5)),
    )
    told = {step: change for step in range(101) if (change := change_at(made, CONFIG, 100, step)) is not None}
    assert {step: change.words for step, change in told.items()} == {
        0: "to step 25: pictures of 32 x 32, 50% of the patches left out",
        25: "from step 26 on: no patch left out",
        50: "from step 51 on: pictures of 64 x 64, other augmentation",
        90: "from step 91 on: other augmentation",
    }
    assert [change.of_shapes for change in told.values()] == [False, True, True, False]
    dropped = replace(CONFIG, patch_drop=0.25)
    change = change_at(recipe(Stage(until=0.5, patch_drop=0.0)), dropped, 10, 5)
    assert change is not None
    assert change.words == "from step 6 on: 25% of the patches left out"


def test_work_is_the_arithmetic_of_the_steps_that_are_done() -> None:
    small, large = flops(replace(CONFIG, img_size=(32, 32))), flops(CONFIG)
    work = work_until(recipe(Stage(until=0.7, img_size=32), Stage(until=0.2, img_size=32, patch_drop=0.5)), CONFIG, 10)
    assert work(0) == 0
    assert work(2) == small
    assert work(7) == pytest.approx(small + 5 * small)
    assert work(8) - work(7) == pytest.approx(large)
    assert work(10) == pytest.approx(6 * small + 3 * large)
