"""Several crops of one picture: the same from both engines, and whatever the number of workers and processes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.augmentation import Augmentation
from vitrail.data.cache import decode_all
from vitrail.data.loading import TrainingLoader
from vitrail.data.opening import open_source
from vitrail.data.resident import ResidentLoader
from vitrail.data.schedule import ALONE, Schedule, Share
from vitrail.data.views import View
from vitrail.pictures import Preprocessing

PIXELS = Preprocessing(size=(16, 16), fit="squash", crop_pct=1.0)
FIRST = Augmentation(scale=(0.4, 1.0), brightness=0.4, grey=0.3, solarize=0.3)
VIEWS = (
    View(Augmentation(scale=(0.4, 1.0), blur=0.5), (16, 16), 1, 1),
    View(Augmentation(scale=(0.1, 0.4)), (8, 8), 3, 2),
)


@pytest.fixture(scope="module")
def subset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    numbers = np.random.default_rng(0)
    for k in range(12):
        small = numbers.integers(0, 256, (5, 5, 3)).astype(np.uint8)
        Image.fromarray(small).resize((16, 16), Image.Resampling.BICUBIC).save(folder / f"{k:02}.png")
    (folder / "07.png").write_bytes(b"no picture")
    return open_source(folder).all()


def batches(subset, engine="workers", share=ALONE, workers=0, steps=3, tmp: Path | None = None):
    schedule = Schedule(subset, 4, seed=5)
    if engine == "resident":
        decoded = decode_all(subset, PIXELS, folder=tmp, workers=0)
        return list(ResidentLoader(schedule, decoded, PIXELS, FIRST, share=share, views=VIEWS).batches(0, steps))
    return list(TrainingLoader(schedule, PIXELS, FIRST, share=share, workers=workers, views=VIEWS).batches(0, steps))


def test_a_batch_has_each_kind_of_crop(subset):
    for batch in batches(subset):
        assert [tuple(crops.shape) for crops in batch.crops] == [(4, 1, 3, 16, 16), (4, 3, 3, 8, 8)]
        assert [tuple(x.shape) for x in batch.crop_inputs(PIXELS)] == [(4, 1, 3, 16, 16), (4, 3, 3, 8, 8)]
        small = batch.crops[1]
        assert not torch.equal(small[:, 0], small[:, 1])  # each is drawn by itself
        assert batch.to("cpu").crops[1].shape == (4, 3, 3, 8, 8)


def test_workers_and_processes_change_no_crop(subset):
    whole = batches(subset)
    for one, two in zip(whole, batches(subset, workers=2), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.crops, two.crops, strict=True))
    parts = [batches(subset, share=Share(rank, 2)) for rank in range(2)]
    for step, one in enumerate(whole):
        for kind in range(2):
            assert torch.equal(torch.cat([part[step].crops[kind] for part in parts]), one.crops[kind])


def test_both_engines_make_the_same_crops(subset, tmp_path):
    for one, two in zip(batches(subset), batches(subset, "resident", tmp=tmp_path), strict=True):
        assert torch.equal(one.samples, two.samples)
        for mine, other in zip((one.pixels, *one.crops), (two.pixels, *two.crops), strict=True):
            apart = (mine.int() - other.int()).abs()
            assert apart.max() <= 2  # of 255: see the tests of the engines


def test_crops_leave_the_first_view_as_it_is(subset):
    schedule = Schedule(subset, 4, seed=5)
    plain = TrainingLoader(schedule, PIXELS, FIRST, workers=0).batches(0, 3)
    for one, two in zip(plain, batches(subset), strict=True):
        assert torch.equal(one.pixels, two.pixels)
        assert one.crops == ()


def test_a_crop_shows_a_part_of_its_own_picture(tmp_path):
    for k in range(4):
        Image.new("RGB", (20, 20), (60 * k, 60 * k, 60 * k)).save(tmp_path / f"{k}.png")
    subset = open_source(tmp_path).all()
    plan = Augmentation(scale=(0.1, 0.5))
    view = View(plan, (8, 8), 2, 1)
    for batch in TrainingLoader(Schedule(subset, 4), PIXELS, plan, workers=0, views=(view,)).batches(0, 2):
        for sample, crops in zip(batch.samples.tolist(), batch.crops[0], strict=True):
            assert (crops == 60 * sample).all()
