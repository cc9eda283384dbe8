"""The same picture more than once: who is in a group, in two splits, under two labels."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from vitrail.checking.duplicates import contradictory, find_duplicates, leaked, merged
from vitrail.checking.looking import look
from vitrail.checking.records import RECORD
from vitrail.data.samples import Names, Samples


def records_of(pictures: list) -> np.ndarray:
    records = np.zeros(len(pictures), RECORD)
    for record, picture in zip(records, pictures, strict=True):
        look(picture, "picture", record)
    return records


def encoded(picture: Image.Image, form: str = "JPEG", **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


@given(st.integers(1, 30).flatmap(lambda n: st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)).map(lambda p: (n, p))))
def test_links_are_merged_as_scipy_merges_them(case: tuple[int, list[tuple[int, int]]]) -> None:
    size, links = case
    first, second = (np.array(side, np.int64) for side in zip(*links, strict=True)) if links else ([], [])
    groups = merged(np.arange(size), [(first, second)] if links else [])
    graph = coo_array((np.ones(len(links)), (first, second)), shape=(size, size))
    theirs = connected_components(graph, directed=False)[1]
    assert ((groups[:, None] == groups) == (theirs[:, None] == theirs)).all()
    assert (groups[groups] == groups).all()
    assert (groups <= np.arange(size)).all()


@pytest.fixture(scope="module")
def photographs(imagenet_sample: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(imagenet_sample.rglob("*.JPEG"))[:300]]


CHANGES = {
    "re-encoded": lambda p: encoded(p, quality=40),
    "another format": lambda p: encoded(p, "WEBP", quality=50),
    "half the size": lambda p: encoded(p.resize((p.width // 2, p.height // 2))),
    "brighter": lambda p: encoded(ImageEnhance.Brightness(p).enhance(1.1)),
    "grey": lambda p: encoded(p.convert("L")),
    "cropped a little": lambda p: encoded(p.crop((2, 1, p.width - 2, p.height - 2))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_of_real_pictures_are_found_and_different_pictures_are_not(change: str, photographs) -> None:
    copies = [CHANGES[change](Image.open(io.BytesIO(content)).convert("RGB")) for content in photographs[:60]]
    found = find_duplicates(records_of(photographs + copies))
    groups = [group.tolist() for group in found.groups()]
    expected = [[i, len(photographs) + i] for i in range(len(copies))]
    assert all(group in expected for group in groups)
    assert len(groups) >= 0.97 * len(copies)
    assert not any(found.is_exact(np.array(group)) for group in groups)


def test_the_same_bytes_are_exact_duplicates_and_the_same_pixels_are_near_ones() -> None:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((64, 64))
    other = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((64, 64))
    found = find_duplicates(records_of([encoded(picture, "PNG"), encoded(other, "PNG"), encoded(picture, "PNG")]))
    assert [group.tolist() for group in found.groups()] == [[0, 2]]
    assert found.is_exact(found.groups()[0])
    found = find_duplicates(records_of([encoded(picture, "PNG"), encoded(other, "PNG"), encoded(picture, "BMP")]))
    assert [group.tolist() for group in found.groups()] == [[0, 2]]
    assert not found.is_exact(found.groups()[0])


def test_arrays_are_exact_duplicates_by_their_pixels_and_their_shape() -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (12, 18, 3), np.uint8)
    found = find_duplicates(records_of([array, array.reshape(18, 12, 3), array.copy()]))
    assert [group.tolist() for group in found.groups()] == [[0, 2]]


def test_plain_and_tiny_pictures_are_near_duplicates_of_nobody() -> None:
    pictures = [Image.new("RGB", (64, 64), colour) for colour in ("white", "black", "red")]
    rng = np.random.default_rng(0)
    tiny = [Image.fromarray(np.full((8, 8), 9, np.uint8) + rng.integers(0, 90, (8, 8), np.uint8)) for _ in range(9)]
    assert find_duplicates(records_of(pictures + tiny)).groups() == []


def test_unreadable_files_are_duplicates_of_nobody() -> None:
    assert find_duplicates(np.zeros(5, RECORD)).groups() == []


def test_ten_thousand_copies_are_one_group_at_once() -> None:
    records = np.zeros(10_000, RECORD)
    rng = np.random.default_rng(0)
    look(rng.integers(0, 256, (40, 40, 3), np.uint8), "picture", records[0])
    records[1:] = records[0]
    records["digest"][:, 0] = np.arange(10_000)  # other bytes, equal hashes
    assert [len(group) for group in find_duplicates(records).groups()] == [10_000]


def table(labels: list[int], splits: list[int]) -> Samples:
    names = Names.of(f"{i}.jpg" for i in range(len(labels)))
    return Samples(names, ("a", "b"), np.array(labels, np.int32), np.array(splits, np.int8))


def test_leaks_are_counted_as_pictures_of_the_later_split() -> None:
    samples = table([0] * 8, [0, 0, 1, 1, 1, 2, -1, -1])
    groups = [np.array([0, 2, 3]), np.array([1, 5, 6]), np.array([4, 5]), np.array([6, 7])]
    assert leaked(groups, samples) == {"val in train": 2, "test in train": 1, "test in val": 1}


def test_a_missing_label_contradicts_nobody() -> None:
    samples = table([0, 1, -1, 0], [0, 0, 0, 0])
    groups = [np.array([0, 1]), np.array([0, 2]), np.array([0, 3])]
    assert [group.tolist() for group in contradictory(groups, samples)] == [[0, 1]]


def test_several_labels_contradict_where_their_sets_differ() -> None:
    names = Names.of(["a", "b", "c"])
    labels = np.array([0, 1, 1, 0, 1], np.int32)
    empty = np.zeros(0, np.int32)
    samples = Samples(names, ("x", "y"), empty, np.zeros(3, np.int8), label_list=labels, label_ends=np.array([2, 4, 5]))
    groups = [np.array([0, 1]), np.array([0, 2])]
    assert [group.tolist() for group in contradictory(groups, samples)] == [[0, 2]]
