"""A part of the training pictures: of each class its share, the smaller inside the larger, validation as it was."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_splits import source_of
from vitrail.data.splits import make_splits
from vitrail.errors import DataError

parts = st.integers(1, 1000).map(lambda thousandths: thousandths / 1000)
seeds = st.integers(-5, 1 << 40)
some_labels = st.lists(st.integers(0, 6), min_size=2, max_size=150).filter(
    lambda labels: max(Counter(labels).values()) > 1
)


@given(some_labels, parts, seeds)
def test_each_class_gives_its_share_to_within_one_picture_and_never_none(labels, part, seed) -> None:
    made = make_splits(source_of(labels), fraction=0, seed=seed, subset=part)
    kept = Counter(made.train.labels.tolist())
    for label, n in Counter(labels).items():
        assert 1 <= kept[label] <= n
        assert abs(kept[label] - Fraction(str(part)) * n) < 1
    assert list(made.train.rows) == sorted(set(made.train.rows.tolist()))


@given(some_labels, parts, parts, seeds)
def test_the_smaller_part_lies_inside_the_larger(labels, one, other, seed) -> None:
    source = source_of(labels)
    small, large = (make_splits(source, fraction=0, seed=seed, subset=part) for part in sorted((one, other)))
    assert set(small.train.rows.tolist()) <= set(large.train.rows.tolist())


@given(st.lists(st.integers(0, 3), min_size=60, max_size=150), parts, seeds)
def test_validation_is_the_same_for_every_part_and_none_of_it_trains(labels, part, seed) -> None:
    source = source_of(labels)
    whole, some = make_splits(source, seed=seed), make_splits(source, seed=seed, subset=part)
    assert some.val.rows.tolist() == whole.val.rows.tolist()
    assert set(some.train.rows.tolist()) <= set(whole.train.rows.tolist())


@given(st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=120), parts, parts, seeds)
def test_sets_of_labels_give_their_share_too(sets, one, other, seed) -> None:
    source = source_of([], sets=[sorted(each) for each in sets])
    kept = []
    for part in sorted((one, other)):
        rows, refusal = set(), ""
        try:
            rows = set(make_splits(source, fraction=0, seed=seed, subset=part).train.rows.tolist())
        except DataError as error:
            refusal = str(error)
        assert rows or "is none" in refusal
        kept.append(rows)
        sizes, of_each = Counter(map(frozenset, sets)), Counter(frozenset(sets[row]) for row in kept[-1])
        assert all(abs(of_each[each] - Fraction(str(part)) * n) < 1 for each, n in sizes.items())
    assert kept[0] <= kept[1]


def test_rare_sets_of_labels_are_not_all_left_out() -> None:
    sets = [[i % 10, (i // 10) % 10] for i in range(100) if i % 10 != (i // 10) % 10]  # no two alike
    kept = make_splits(source_of([], sets=sets), fraction=0, subset=0.25).train
    assert 10 <= len(kept) <= 35  # about a quarter of 90


def test_the_part_is_a_matter_of_names_not_of_order() -> None:
    names, labels = [f"{i % 3}/{i}.jpg" for i in range(60)], [i % 3 for i in range(60)]
    straight = make_splits(source_of(labels, names), subset=0.3)
    back = make_splits(source_of(labels[::-1], names[::-1]), subset=0.3)
    assert set(straight.train.names()) == set(back.train.names())


def test_all_of_it_is_just_what_it_was_and_a_part_is_told() -> None:
    source = source_of([0] * 50 + [1] * 50)
    assert make_splits(source, subset=1.0).train.rows.tolist() == make_splits(source).train.rows.tolist()
    assert make_splits(source, subset=1).notes == ()
    assert make_splits(source, subset=0.2).notes == ("18 of the 90 training pictures are used: 20% of each class",)


@pytest.mark.parametrize("part", [0, -0.5, 1.01, float("nan"), "half"])
def test_a_part_that_is_none_is_one_line(part) -> None:
    with pytest.raises(DataError, match="above 0, at most 1"):
        make_splits(source_of([0, 1]), subset=part)
