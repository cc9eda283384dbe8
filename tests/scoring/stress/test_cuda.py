"""Stress on a GPU: the same pictures, made worse in the same way."""

import pytest
import torch

import vitrail
from tests.scoring.stress.test_corruptions import waves
from vitrail.scoring.stress.corruptions import CORRUPTIONS, corrupt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("size", [32, 96])
def test_a_corruption_is_the_same_on_both_devices(name: str, size: int) -> None:
    pixels, rows = waves(2, size), torch.arange(2)
    here, there = (corrupt(pixels.to(d), name, 4, rows.to(d), seed=1).cpu().int() for d in ("cpu", "cuda"))
    apart = (here - there).abs()
    assert (
        apart.double().mean() < 0.01
    )  # functions of float64 differ in the last bit, and pixels where they are rounded
    assert (apart > 1).double().mean() < 0.001


def test_all_of_a_stress_runs_on_the_gpu(vit, resnet, coloured) -> None:
    models = {"vit": vit, "resnet": resnet}
    how = {"seeds": 1, "steps": 2, "workers": 0}
    try:
        there = vitrail.stress(models, coloured, device="cuda", **how)
    finally:
        vit.to("cpu"), resnet.to("cpu")
    here = vitrail.stress(models, coloured, device="cpu", **how)
    for one, other in zip(here.models, there.models, strict=True):
        assert abs(one.clean.right - other.clean.right) <= 1
        assert [(c.test, c.series) for c in one.curves] == [(c.test, c.series) for c in other.curves]
        for mine, theirs in zip(one.curves, other.curves, strict=True):
            if mine.test != "patch":  # a sign of a gradient may fall the other way
                assert abs(mine.mean - theirs.mean) < 0.1, (mine.test, mine.series)
