"""The table of samples: names in one block, labels one or many to a picture."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MultiLabelBinarizer

from vitrail.data.samples import UNSAID, Names, Samples
from vitrail.errors import DataError

file_names = st.binary(max_size=12).map(os.fsdecode)
lists_of_names = st.lists(file_names, max_size=20)


@given(lists_of_names)
def test_names_come_back_as_they_were_even_if_they_are_no_utf8(names: list[str]) -> None:
    packed = Names.of(names)
    assert list(packed) == names
    assert [packed[i] for i in range(len(packed))] == names
    assert list(packed.all_encoded()) == [os.fsencode(name) for name in names]
    assert list(Names.of(map(os.fsencode, names))) == names
    assert list(pickle.loads(pickle.dumps(packed))) == names


@given(lists_of_names, st.data())
def test_names_are_taken_and_sliced_as_a_list_is(names: list[str], data: st.DataObject) -> None:
    packed = Names.of(names)
    chosen = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=30) if names else st.just([]))
    assert list(packed.take(np.array(chosen, np.int64))) == [names[i] for i in chosen]
    cut = data.draw(st.slices(len(names)))
    assert list(packed[cut]) == names[cut]


def test_many_names_are_taken_in_pieces_that_join() -> None:
    names = [f"class_{i % 7}/{i}.jpg" for i in range(150_000)]
    order = np.random.default_rng(0).permutation(len(names))
    assert list(Names.of(names).take(order)) == [names[i] for i in order]


@pytest.mark.parametrize("index", [3, -4])
def test_a_name_that_is_not_there_is_an_index_error(index: int) -> None:
    names = Names.of(["a", "b", "c"])
    assert names[-1] == "c"
    with pytest.raises(IndexError, match="3 names"):
        names[index]


def many_labels(sets: list[list[int]], classes: int) -> Samples:
    return Samples(
        Names.of(f"{i}.jpg" for i in range(len(sets))),
        tuple(f"c{i}" for i in range(classes)),
        np.empty(0, np.int32),
        np.full(len(sets), UNSAID, np.int8),
        label_list=np.array([label for labels in sets for label in labels], np.int32),
        label_ends=np.cumsum([len(labels) for labels in sets], dtype=np.int64),
    )


@given(st.lists(st.lists(st.integers(0, 4), max_size=5, unique=True), max_size=12), st.data())
def test_several_labels_become_the_rows_that_scikit_learn_makes(sets: list[list[int]], data: st.DataObject) -> None:
    samples = many_labels(sets, 5)
    places = st.lists(st.integers(0, len(sets) - 1), max_size=20) if sets else st.just([])
    chosen = np.array(data.draw(places), np.int64)
    expected = MultiLabelBinarizer(classes=range(5)).fit_transform([sets[i] for i in chosen])
    assert np.array_equal(samples.targets(chosen), expected.reshape(len(chosen), 5))
    assert np.array_equal(samples.counts(chosen), expected.reshape(-1, 5).sum(0))
    assert [samples.labels_of(i).tolist() for i in range(len(sets))] == sets


@given(st.lists(st.integers(-1, 3), max_size=12))
def test_one_label_or_none_is_one_one_or_none_in_a_row(labels: list[int]) -> None:
    samples = Samples(
        Names.of(map(str, range(len(labels)))),
        ("a", "b", "c", "d"),
        np.array(labels, np.int32),
        np.full(len(labels), UNSAID, np.int8),
    )
    everything = np.arange(len(labels))
    assert np.array_equal(samples.targets(everything), np.eye(5)[labels, :4].reshape(-1, 4))
    assert samples.counts().tolist() == [labels.count(i) for i in range(4)]


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match="labels has 1 rows for 2 pictures"):
        Samples(Names.of(["a", "b"]), ("x",), np.zeros(1, np.int32), np.zeros(2, np.int8))
