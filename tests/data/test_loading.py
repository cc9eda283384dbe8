"""Batches: the same bits however they are made, nothing lost, nothing counted twice."""

import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.conftest import jpeg
from vitrail.data.arrays import from_arrays
from vitrail.data.augmentation import Augmentation
from vitrail.data.batch import Batch
from vitrail.data.folder import from_folder
from vitrail.data.loading import EvaluationLoader, TrainingLoader
from vitrail.data.packing import pack
from vitrail.data.schedule import Schedule, Share
from vitrail.data.shards import from_shards
from vitrail.data.source import Subset
from vitrail.errors import DataError, PictureError
from vitrail.pictures import Preprocessing

PRE = Preprocessing(size=(16, 12), crop_pct=1.0)
FULL = Augmentation(policy="randaugment", erase=0.5, erase_fill="noise", cutout=0.3, mixup=0.8, cutmix=1.0, vflip=0.2)
UNMIXED = replace(FULL, mixup=0.0, cutmix=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number in range(45):
        path = root / f"class{number % 3}" / f"{number:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(number, (30 + number, 40)))
    return root


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packed") / "shards"
    pack(folder, place, shard_mb=1, workers=1)
    return place


def subset(place: Path) -> Subset:
    return (from_shards(place) if any(place.glob("*.tar")) else from_folder(place)).all()


def bits(batch: Batch) -> list[torch.Tensor]:
    return [batch.inputs(PRE), batch.targets(3), batch.samples]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def run(place: Path, start: int = 0, stop: int = 9, **options: object) -> list[list[torch.Tensor]]:
    schedule = Schedule(subset(place), 8, seed=3, run=options.pop("run", None))  # type: ignore[arg-type]
    loader = TrainingLoader(schedule, PRE, FULL, **options)  # type: ignore[arg-type]
    return [bits(batch) for batch in loader.batches(start, stop)]


@pytest.mark.parametrize("kind", ["folder", "shards"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_of_workers_changes_no_bit(kind, workers, request) -> None:
    place = request.getfixturevalue(kind)
    alone, many = run(place, workers=0), run(place, workers=workers)
    assert len(alone) == len(many) == 9
    assert all(map(same, alone, many))


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_after_stopping_in_mid_epoch_the_same_batches_follow(kind, request) -> None:
    place = request.getfixturevalue(kind)
    whole = run(place, workers=0)
    for stop in (2, 5, 6):  # an epoch has 5 steps
        assert all(map(same, whole[stop:], run(place, start=stop, workers=1)))


@pytest.mark.parametrize("kind", ["folder", "shards"])
@pytest.mark.parametrize("world", [2, 4])
def test_the_processes_of_a_world_share_one_processs_batches(kind, world, request) -> None:
    place = request.getfixturevalue(kind)
    parts = [run(place, workers=0, share=Share(rank, world)) for rank in range(world)]
    for step, whole in enumerate(run(place, workers=0)):
        joined = [torch.cat(tensors) for tensors in zip(*(part[step] for part in parts), strict=True)]
        assert same(whole, joined)


def _rank(place: Path, rank: int, answers) -> None:
    answers.put((rank, [[tensor.numpy() for tensor in step] for step in run(place, workers=1, share=Share(rank, 2))]))


def test_two_real_processes_with_workers_of_their_own_make_the_same_batches(folder) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_rank, args=(folder, rank, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    parts = dict(answers.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    for step, whole in enumerate(run(folder, workers=0)):
        for k, tensor in enumerate(whole):
            np.testing.assert_array_equal(tensor, np.concatenate([parts[0][step][k], parts[1][step][k]]))


def test_shards_give_the_batches_of_the_folder_they_were_packed_from(folder, shards) -> None:
    assert all(map(same, run(folder, workers=0), run(shards, workers=1, run=1)))


def test_shards_are_read_in_runs_and_every_sample_comes_once_an_epoch(shards) -> None:
    source = from_shards(shards)
    assert source.run > 1
    loader = TrainingLoader(Schedule(source.all(), 9, seed=1), PRE, Augmentation(), workers=0)
    seen = torch.cat([batch.samples for batch in loader.batches(0, 5)])
    assert sorted(seen.tolist()) == list(range(45))


def test_another_seed_and_another_epoch_are_other_batches(folder) -> None:
    first, again = run(folder, 0, 5, workers=0), run(folder, 5, 9, workers=0)
    assert not any(map(same, first, again))
    loader = TrainingLoader(Schedule(subset(folder), 8, seed=4), PRE, FULL, workers=0)
    assert not same(first[0], bits(next(loader.batches())))


# --- bad pictures ---


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    place = tmp_path / "damaged"
    shutil.copytree(folder, place)
    names = sorted(path for path in place.glob("*/*"))
    for path in (names[4], names[5], names[44]):
        path.write_bytes(b"not a picture")
    return place


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_picture_is_replaced_by_the_next_good_one_and_nothing_else_changes(
    folder, damaged, workers
) -> None:
    whole = TrainingLoader(Schedule(subset(folder), 9, seed=3), PRE, UNMIXED, workers=0)
    holed = TrainingLoader(Schedule(subset(damaged), 9, seed=3), PRE, UNMIXED, workers=workers)
    after = {4: 6, 5: 6, 44: 0}
    replaced, named = 0, set()
    for good, bad in zip(whole.batches(0, 5), holed.batches(0, 5), strict=True):
        expected = [after.get(sample, sample) for sample in good.samples.tolist()]
        assert bad.samples.tolist() == expected
        assert bad.labels.tolist() == subset(folder).labels[expected].tolist()
        kept = torch.tensor([a == b for a, b in zip(good.samples.tolist(), expected, strict=True)])
        assert torch.equal(good.pixels[kept], bad.pixels[kept])
        replaced += int((~kept).sum())
        named |= {name for name, _ in bad.bad}
    assert replaced == 3
    assert named == {subset(damaged).name_of(k) for k in (4, 5, 44)}


def test_a_replacement_is_augmented_as_itself(damaged) -> None:
    """The picture in the place of a bad one is the very picture that comes when it is drawn itself."""
    plan = Augmentation(policy="randaugment")
    loader = TrainingLoader(Schedule(subset(damaged), 45, seed=3), PRE, plan, workers=0)
    batch = next(loader.batches())
    twice = [k for k, sample in enumerate(batch.samples.tolist()) if sample == 6]
    assert len(twice) == 3
    assert all(torch.equal(batch.pixels[twice[0]], batch.pixels[k]) for k in twice)


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_stops_at_an_unreadable_picture_with_its_one_line(damaged, workers) -> None:
    loader = TrainingLoader(Schedule(subset(damaged), 9), PRE, UNMIXED, workers=workers, strict=True)
    with pytest.raises(PictureError, match=r"^[^\n]*\.jpg: holds text, not a picture[^\n]*$"):
        list(loader.batches(0, 5))


def test_a_set_without_one_good_picture_is_an_error(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"")
    loader = TrainingLoader(Schedule(subset(tmp_path), 2), PRE, Augmentation(), workers=0)
    with pytest.raises(DataError, match="none of the 3 pictures"):
        next(loader.batches())


# --- evaluation ---


@settings(max_examples=12, deadline=None)
@given(batch_size=st.integers(1, 50), world=st.integers(1, 7))
def test_evaluation_counts_each_sample_exactly_once_for_any_world_and_batch(folder, batch_size, world) -> None:
    seen: list[int] = []
    for rank in range(world):
        loader = EvaluationLoader(subset(folder), PRE, batch_size=batch_size, workers=0, share=Share(rank, world))
        batches = list(loader)
        assert len(batches) == len(loader)
        seen += [sample for batch in batches for sample in batch.samples.tolist()]
    assert sorted(seen) == list(range(45))


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_evaluation_pixels_are_the_preprocessings(kind, request) -> None:
    part = subset(request.getfixturevalue(kind))
    for batch in EvaluationLoader(part, PRE, batch_size=7, workers=2):
        for sample, values in zip(batch.samples.tolist(), batch.inputs(PRE), strict=True):
            np.testing.assert_array_equal(values, PRE(part.read(sample)))


def test_in_evaluation_a_bad_picture_is_marked_and_not_replaced(damaged) -> None:
    batches = list(EvaluationLoader(subset(damaged), PRE, batch_size=10, workers=0))
    valid = torch.cat([batch.valid for batch in batches])
    assert torch.cat([batch.samples for batch in batches]).tolist() == list(range(45))
    assert valid.logical_not().nonzero().flatten().tolist() == [4, 5, 44]
    assert sum(len(batch.bad) for batch in batches) == 3


# --- errors ---


@pytest.mark.parametrize(("side", "begun"), [(16, 0), (80, 2)])
def test_small_pictures_in_memory_are_evaluated_without_processes(side, begun, monkeypatch) -> None:
    monkeypatch.setattr("vitrail.data.loading.processors", lambda: 2)
    pictures = np.random.default_rng(0).integers(0, 256, (40, side, side, 3), np.uint8)
    source = from_arrays("noise", pictures, np.arange(40) % 2, ["a", "b"], {"test": 40})
    preprocessing = Preprocessing(size=(24, 24), crop_pct=1.0, fit="squash")
    there = set(multiprocessing.active_children())
    children, found = set(), []
    for batch in EvaluationLoader(Subset(source, "test", np.arange(40)), preprocessing, batch_size=8):
        children |= set(multiprocessing.active_children()) - there
        found += batch.samples.tolist()
    assert found == list(range(40))
    assert len(children) == begun


def test_a_batch_larger_than_the_set_is_refused(folder) -> None:
    with pytest.raises(DataError, match="a batch of 46 is larger than the 45 pictures"):
        Schedule(subset(folder), 46)


def test_a_batch_that_cannot_be_shared_or_paired_is_refused(folder) -> None:
    schedule = Schedule(subset(folder), 9)
    with pytest.raises(DataError, match="cannot be shared by 2 processes"):
        schedule.at(0, Share(0, 2))
    with pytest.raises(DataError, match="a batch of 9 leaves half a pair to mix: choose an even batch size"):
        TrainingLoader(schedule, PRE, FULL)


def test_workers_do_not_grow_with_epochs(folder) -> None:
    """The table of samples is shared, not copied page by page as objects would be when they are counted."""
    loader = TrainingLoader(Schedule(subset(folder), 9), PRE, Augmentation(), workers=1)
    sizes = []
    for batch in loader.batches(0, 5 * 40):
        if batch.step % 50 == 49:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            status = [Path(f"/proc/{child}/status").read_text() for child in children]
            sizes.append(max(int(text.split("RssAnon:")[1].split()[0]) for text in status if "RssAnon:" in text))
    assert sizes[-1] - sizes[0] < 4096  # kB
