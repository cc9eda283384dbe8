"""Pixels decoded once, and batches made of them where they are."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.arrays import Arrays
from vitrail.data.augmentation import Augmentation
from vitrail.data.cache import Decoded, decode_all, sampled_sizes, stored_size
from vitrail.data.folder import from_folder
from vitrail.data.loading import TrainingLoader
from vitrail.data.resident import ResidentLoader
from vitrail.data.samples import Names, Samples
from vitrail.data.schedule import Schedule, Share
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.pictures import Preprocessing

PRE = Preprocessing(size=(16, 16), crop_pct=1.0)
PLANS = {
    "pad": Augmentation(crop="pad", cutout=0.5),
    "resized": Augmentation(erase=0.5, mixup=0.2),
    "all": Augmentation(crop="pad", policy="randaugment", mixup=0.8, cutmix=1.0, repeats=2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pictures of one size, without loss."""
    root, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(0)
    for number in range(40):
        path = root / f"class{number % 4}" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((16, 16), Image.Resampling.BICUBIC).save(path)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("share", [Share(), Share(1, 2)])
def test_resident_pixels_make_the_batches_that_workers_make(folder, cache, plan, share) -> None:
    subset = from_folder(folder).all()
    schedule = Schedule(subset, 8, seed=5, repeats=plan.repeats)
    decoded = decode_all(subset, PRE, folder=cache, workers=0)
    through_workers = TrainingLoader(schedule, PRE, plan, workers=0, share=share)
    resident = ResidentLoader(schedule, decoded, PRE, plan, share=share)
    for one, other in zip(through_workers.batches(3, 9), resident.batches(3, 9), strict=True):
        assert one.step == other.step
        assert torch.equal(one.samples, other.samples)
        assert torch.equal(one.targets(4), other.targets(4))
        apart = (one.pixels.float() - other.pixels.float()).abs()
        assert apart.mean() < 0.05  # grey levels
        assert (apart > 1).float().mean() < 0.005
        assert (one.inputs(PRE) - other.inputs(PRE)).abs().mean() < 0.001


@pytest.mark.parametrize("pictures", [8, 16, 24, 32, 40, 1000])
@pytest.mark.parametrize("start", [0, 3])
def test_batches_are_the_same_however_many_pictures_are_augmented_at_once(folder, cache, pictures, start) -> None:
    """Also where an epoch is no whole number of groups, or training stops before one is whole."""
    subset = from_folder(folder).all()
    schedule = Schedule(subset, 8, seed=5, repeats=2)
    decoded = decode_all(subset, PRE, folder=cache, workers=0)
    alone = ResidentLoader(schedule, decoded, PRE, PLANS["all"])
    together = ResidentLoader(schedule, decoded, PRE, PLANS["all"])
    together.at_once = pictures * 3 * 16 * 16
    sizes = []
    inner = together._pixels
    together._pixels = lambda view, samples, drawn: sizes.append(len(samples)) or inner(view, samples, drawn)
    for one, other in zip(alone.batches(start, 17), together.batches(start, 17), strict=True):
        assert torch.equal(one.samples, other.samples)
        assert torch.equal(one.pixels, other.pixels)
    assert set(sizes) == {min(pictures, 40)}


def test_pixels_are_kept_and_found_again_until_a_picture_changes(folder, cache, tmp_path) -> None:
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    subset = from_folder(place).all()
    first = decode_all(subset, PRE, folder=cache, workers=0)
    kept = list(cache.iterdir())
    assert len(kept) == 1
    again = decode_all(subset, PRE, folder=cache, workers=0)
    assert isinstance(again.pixels, np.memmap)
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert list(cache.iterdir()) == kept
    path = place / "class0" / "00.png"
    Image.new("RGB", (16, 16), "red").save(path)
    changed = decode_all(subset, PRE, folder=cache, workers=0)
    assert changed.pixels[0].tolist() == [[[255, 0, 0]] * 16] * 16
    decode_all(subset, Preprocessing(size=(8, 8)), folder=cache, workers=0)
    assert len(list(cache.iterdir())) == 3


def test_pixels_and_sizes_are_those_of_the_preprocessing(folder, cache) -> None:
    subset = from_folder(folder).all()
    squash = Preprocessing(size=(10, 14), fit="squash", crop_pct=1.0)
    decoded = decode_all(subset, squash, folder=cache, workers=2)
    for sample in range(len(subset)):
        np.testing.assert_array_equal(decoded.pixels[sample], squash.pixels(subset.read(sample)))
    assert decoded.full.tolist() == [[16, 16]] * 40
    assert decoded.valid.all()


def test_a_bad_picture_is_named_and_replaced_by_the_next_good_one(folder, cache, tmp_path) -> None:
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    names = sorted(place.glob("*/*"))
    for path in (names[3], names[39]):
        path.write_bytes(b"")
    subset = from_folder(place).all()
    decoded = decode_all(subset, PRE, folder=cache, workers=0)
    again = decode_all(subset, PRE, folder=cache, workers=0)
    assert (
        [bad.name for bad in decoded.bad] == [bad.name for bad in again.bad] == [subset.name_of(3), subset.name_of(39)]
    )
    plan, schedule = Augmentation(crop="pad"), Schedule(subset, 40, seed=1)
    resident = next(ResidentLoader(schedule, decoded, PRE, plan).batches())
    through_workers = next(TrainingLoader(schedule, PRE, plan, workers=0).batches())
    assert torch.equal(resident.samples, through_workers.samples)
    assert torch.equal(resident.pixels, through_workers.pixels)
    assert resident.samples.tolist().count(4) == 2


def test_nothing_readable_is_an_error_and_leaves_nothing_behind(cache, tmp_path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "0.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"none of the 1 pictures .* the first because: .*0\.jpg: is empty"):
        decode_all(from_folder(tmp_path / "set").all(), PRE, folder=cache, workers=0)
    assert list(cache.iterdir()) == []


def test_arrays_that_are_there_already_are_not_decoded(cache) -> None:
    array = np.random.default_rng(0).integers(0, 256, (6, 16, 16), np.uint8)
    names = Names.of(map(str, range(6)))
    samples = Samples(names, ("a",), np.zeros(6, np.int32), np.full(6, -1, np.int8))
    subset = Source("grey", samples, Arrays(array)).all()
    decoded = decode_all(subset, PRE, folder=cache, workers=0)
    np.testing.assert_array_equal(decoded.pixels, np.repeat(array[..., None], 3, 3))
    assert not cache.exists()
    for sample in range(6):
        np.testing.assert_array_equal(decoded.pixels[sample], PRE.pixels(subset.read(sample)))


def test_a_squashed_store_is_cropped_in_the_proportions_of_the_picture(cache, tmp_path) -> None:
    """A wide gradient stored in a square: crops of it are those of the picture itself, to a few grey levels."""
    across = np.linspace(0, 255, 96)[None, :, None] * np.ones((32, 1, 3))
    down = np.linspace(0, 255, 32)[:, None, None] * np.ones((1, 96, 3))
    (tmp_path / "set" / "a").mkdir(parents=True)
    for number, pixels in enumerate((across, down)):
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "set" / "a" / f"{number}.png")
    subset = from_folder(tmp_path / "set").all()
    squash = Preprocessing(size=(48, 48), fit="squash", crop_pct=1.0)
    decoded = decode_all(subset, squash, folder=cache, workers=0)
    schedule, plan = Schedule(subset, 2), Augmentation()
    for one, other in zip(
        TrainingLoader(schedule, PRE, plan, workers=0).batches(0, 30),
        ResidentLoader(schedule, decoded, PRE, plan).batches(0, 30),
        strict=True,
    ):
        assert (one.pixels.float() - other.pixels.float()).abs().max() < 12


def test_pictures_are_stored_at_their_own_size_if_small_and_all_alike(folder, tmp_path) -> None:
    subset = from_folder(folder).all()
    assert stored_size(sampled_sizes(subset), (16, 16)) == (16, 16)
    assert stored_size(sampled_sizes(subset), (4, 4)) == (5, 5)
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    Image.new("RGB", (20, 20)).save(place / "class0" / "00.png")
    assert stored_size(sampled_sizes(from_folder(place).all()), (16, 16)) == (20, 20)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_gpu_makes_the_batches_of_the_cpu(plan, compiled) -> None:
    rng = np.random.default_rng(0)
    names = Names.of(f"{number:03}" for number in range(64))
    samples = Samples(names, tuple("abcd"), np.arange(64, dtype=np.int32) % 4, np.full(64, -1, np.int8))
    pixels = rng.integers(0, 256, (64, 16, 16, 3), np.uint8)
    subset = Source("random", samples, Arrays(pixels)).all()
    decoded = Decoded(pixels, np.full((64, 2), 16, np.int32), np.ones(64, bool))
    schedule = Schedule(subset, 8, repeats=plan.repeats)
    here = ResidentLoader(schedule, decoded, PRE, plan).batches(0, 20)
    there = ResidentLoader(schedule, decoded, PRE, plan, device="cuda", compiled=compiled).batches(0, 20)
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.samples, other.samples.cpu())
        assert ((one.pixels.float() - other.pixels.cpu().float()).abs() > 1).float().mean() < 0.005
        assert (one.inputs(PRE) - other.inputs(PRE).cpu()).abs().mean() < 0.001
