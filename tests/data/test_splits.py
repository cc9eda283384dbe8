"""Splits: what a source says is used; what it does not say is made by name, stratified, groups whole."""

import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold

from vitrail.data.folder import from_folder
from vitrail.data.samples import UNSAID, Names, Samples
from vitrail.data.source import Source
from vitrail.data.splits import make_splits
from vitrail.errors import DataError

fractions = st.integers(1, 99).map(lambda percent: percent / 100)
seeds = st.integers(-5, 1 << 40)


class Nothing:
    def read_many(self, rows):
        raise AssertionError("to split is not to read")


def source_of(labels, names=None, splits=None, groups=None, sets=None) -> Source:
    """A source of samples that are only labels; `sets` are label sets."""
    count = len(labels if sets is None else sets)
    several = {}
    if sets is not None:
        several = {
            "label_list": np.array([label for each in sets for label in each], np.int32),
            "label_ends": np.cumsum([len(each) for each in sets], dtype=np.int64),
        }
    samples = Samples(
        Names.of(names or [f"{i:05d}.jpg" for i in range(count)]),
        tuple(f"c{i}" for i in range(10)),
        np.array([] if sets is not None else labels, np.int32),
        np.full(count, UNSAID, np.int8) if splits is None else np.array(splits, np.int8),
        groups=None if groups is None else np.array(groups, np.int64),
        **several,
    )
    return Source("test", samples, Nothing())


def expected_part(labels: list[int], names: list[str], fraction: str, seed: int) -> set[str]:
    """The rule in a few lines: of each class the names with the smallest hashes; the running sum is rounded."""

    def rank(name: str) -> bytes:
        return blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()

    sizes = Counter(labels)
    chosen, seen, given = set(), 0, 0
    for label in sorted(sizes, key=lambda label: (sizes[label], label)):
        seen += sizes[label]
        share = int(Fraction(fraction) * seen + Fraction(1, 2)) - given
        given += share
        own = sorted((name for name, own in zip(names, labels, strict=True) if own == label), key=rank)
        chosen |= set(own[:share])
    return chosen


NAMES = [f"{kind}/{i:02d}.jpg" for kind, n in (("cat", 14), ("dog", 25), ("éléphant", 11)) for i in range(n)]
LABELS = [0] * 14 + [1] * 25 + [2] * 11


@pytest.mark.parametrize("seed", [0, 1, -3, 12345678901])
def test_the_part_is_the_smallest_hashes_of_each_class(seed: int) -> None:
    made = make_splits(source_of(LABELS, NAMES), fraction=0.2, seed=seed)
    assert set(made.val.names()) == expected_part(LABELS, NAMES, "0.2", seed)
    assert made.made


def test_the_part_of_a_small_set_is_the_same_on_every_machine_and_in_every_release() -> None:
    made = make_splits(source_of(LABELS, NAMES), fraction=0.1, seed=0)
    assert list(made.val.names()) == PINNED


PINNED = ["cat/01.jpg", "cat/10.jpg", "dog/10.jpg", "dog/21.jpg", "éléphant/04.jpg"]


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=120), fractions, seeds)
def test_each_class_gives_its_share_within_one_picture_and_the_sum_is_right(labels, fraction, seed) -> None:
    source = source_of(labels)
    share = Fraction(str(fraction))
    sizes = Counter(labels)
    least = sum(int(share * n) for n in sizes.values())
    most = sum(min(-int(-share * n // 1), n - 1) for n in sizes.values())
    total = min(max(int(share * len(labels) + Fraction(1, 2)), least), most)
    if not total:
        with pytest.raises(DataError, match="too few"):
            make_splits(source, fraction=fraction, seed=seed)
        return
    made = make_splits(source, fraction=fraction, seed=seed)
    given_away = Counter(made.val.labels.tolist())
    for label, n in sizes.items():
        assert abs(given_away[label] - share * n) < 1
        assert given_away[label] < n
    assert len(made.val) == total
    assert sorted([*made.train.rows, *made.val.rows]) == list(range(len(labels)))
    assert made.test is None


@given(st.permutations(range(40)), seeds)
def test_the_order_in_which_files_are_found_makes_no_difference(order, seed) -> None:
    names = [f"{i % 3}/{i}.jpg" for i in range(40)]
    labels = [i % 3 for i in range(40)]
    straight = make_splits(source_of(labels, names), seed=seed)
    shuffled = make_splits(source_of([labels[i] for i in order], [names[i] for i in order]), seed=seed)
    assert set(straight.val.names()) == set(shuffled.val.names())


def test_where_the_folder_lies_makes_no_difference(photos) -> None:
    tree = {"a": 12, "b/deep": 15, "c": 9}
    one, other = from_folder(photos(tree, "one")), from_folder(photos(tree, "else/where/other".replace("/", "_")))
    assert list(make_splits(one).val.names()) == list(make_splits(other).val.names())


def test_the_hash_seed_of_python_makes_no_difference(photos) -> None:
    root = photos({"a": 12, "b": 15, "c": 9})
    code = (
        "import sys; from vitrail.data import from_folder, make_splits;"
        "s = make_splits(from_folder(sys.argv[1], group_by='0(.).jpg')); print(*s.val.names())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code, root],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(answers) == 1
    assert answers != {"\n"}


def test_another_seed_is_another_part_and_no_name_is_favoured() -> None:
    source = source_of([0] * 100)
    times = Counter(row for seed in range(200) for row in make_splits(source, seed=seed).val.rows.tolist())
    assert sum(times.values()) == 2000
    # 200 draws at 1 in 10: 20 with a deviation of 4.2; five of those is one in 10^6 for each of 100 names
    assert max(times.values()) < 42
    assert min(times[row] for row in range(100)) > 1


def straddling(source: Source, *sides) -> set[int]:
    owners = [set(source.samples.groups[side.rows].tolist()) - {UNSAID} for side in sides]
    return set.intersection(*owners)


def unevenness(source: Source, rows, fraction: float) -> float:
    """The sum over the classes of the squared distance from the share, relative to the class."""
    sizes = source.samples.counts()
    there = sizes > 0
    return float((((source.samples.counts(rows) - fraction * sizes)[there] / sizes[there]) ** 2).sum())


groups_with_labels = st.lists(st.tuples(st.integers(-1, 12), st.integers(0, 3)), min_size=1, max_size=80)


@settings(deadline=None)
@given(groups_with_labels, fractions, seeds)
def test_groups_stay_whole_and_no_other_group_would_make_it_better(pairs, fraction, seed) -> None:
    groups, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    source = source_of(labels, groups=groups)
    units = [group if group != UNSAID else -2 - row for row, group in enumerate(groups)]
    holders = {label: {unit for unit, own in zip(units, labels, strict=True) if own == label} for label in labels}
    if all(any(holders[label] == {unit} for label in labels) for unit in units):  # each is the last of some class
        with pytest.raises(DataError, match="no group can be spared"):
            make_splits(source, fraction=fraction, seed=seed)
        return
    made = make_splits(source, fraction=fraction, seed=seed)
    assert not straddling(source, made.train, made.val)
    assert sorted([*made.train.rows, *made.val.rows]) == list(range(len(labels)))
    assert set(labels) == set(made.train.labels.tolist())
    now = unevenness(source, made.val.rows, fraction)
    for group in (set(groups) - {UNSAID}) & set(source.samples.groups[made.train.rows].tolist()):
        more = np.flatnonzero(source.samples.groups == group)
        left = np.setdiff1d(made.train.rows, more)
        if set(labels) == set(source.samples.labels[left].tolist()):
            assert unevenness(source, np.concatenate([made.val.rows, more]), fraction) >= now - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_many_small_groups_come_nearly_as_near_as_those_of_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    groups = draw.integers(0, 300, 3000)
    labels = (groups + (draw.random(3000) < 0.3)) % 5
    source = source_of(labels, groups=groups)
    made = make_splits(source, fraction=0.1, seed=seed)
    folds = StratifiedGroupKFold(10, shuffle=True, random_state=seed).split(labels, labels, groups)
    theirs = max(unevenness(source, rows, 0.1) for _, rows in folds)
    assert unevenness(source, made.val.rows, 0.1) < max(theirs, 1e-4)


label_sets = st.lists(st.sets(st.integers(0, 4)).map(sorted), min_size=10, max_size=80)


@given(label_sets, fractions, seeds)
def test_label_sets_are_strata_and_every_label_keeps_a_picture_for_training(sets, fraction, seed) -> None:
    source = source_of(None, sets=sets)
    share = Fraction(str(fraction))
    total = int(share * len(sets) + Fraction(1, 2))
    assume(total > 5)  # of each of five labels one picture may have to be given back
    made = make_splits(source, fraction=fraction, seed=seed)
    strata = Counter(map(tuple, sets))
    there = Counter(tuple(sets[row]) for row in made.val.rows)
    returned = 0
    for labels, n in strata.items():
        assert there[labels] - share * n < 1
        returned += max(0, int(share * n) - there[labels])
    assert returned <= 5
    assert total - 5 <= len(made.val) <= total
    assert ((made.train.counts() > 0) == (source.samples.counts() > 0)).all()


def test_what_the_source_says_is_used_as_it_is() -> None:
    splits = [0] * 6 + [1] * 2 + [2] * 2
    said = make_splits(source_of([0, 1] * 5, splits=splits), fraction=0.5)
    assert [side.rows.tolist() for side in (said.train, said.val, said.test)] == [[*range(6)], [6, 7], [8, 9]]
    assert (said.made, said.notes) == (False, ())


def test_train_and_test_without_validation_give_a_part_of_train() -> None:
    made = make_splits(source_of([0, 1] * 15, splits=[0] * 20 + [2] * 10))
    assert made.made
    assert made.test.rows.tolist() == [*range(20, 30)]
    assert set(made.val.rows.tolist()) < set(range(20))
    assert made.val.counts()[:2].tolist() == [1, 1]


def test_pictures_in_no_split_are_for_training_and_told() -> None:
    said = make_splits(source_of([0] * 6, splits=[0, 0, UNSAID, UNSAID, 1, 1]))
    assert said.train.rows.tolist() == [0, 1, 2, 3]
    assert said.notes == ("2 pictures in no split: used for training",)


def test_groups_on_both_sides_of_said_splits_are_told() -> None:
    said = make_splits(source_of([0] * 6, splits=[0, 0, 0, 1, 1, 1], groups=[0, 1, UNSAID, 1, 2, UNSAID]))
    assert said.notes == ("1 group with pictures on both sides of the splits that are said",)


def test_fraction_zero_makes_no_validation() -> None:
    made = make_splits(source_of([0, 1]), fraction=0)
    assert (len(made.train), len(made.val), made.test, made.made) == (2, 0, None, False)


def test_a_class_without_a_picture_for_validation_is_told() -> None:
    made = make_splits(source_of([0] * 30 + [1] * 2))
    assert made.notes == ("val has no pictures of 'c1'",)


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan"), "0.1"])
def test_a_fraction_that_is_none_is_one_line(fraction) -> None:
    with pytest.raises(DataError, match="the fraction for validation is"):
        make_splits(source_of([0, 1]), fraction=fraction)


@pytest.mark.parametrize(("splits", "said"), [([1, 1], "has val,"), ([1, 2], "has val and test,"), ([], "no pictures")])
def test_nothing_to_train_on_is_one_line(splits, said: str) -> None:
    with pytest.raises(DataError, match=said):
        make_splits(source_of([0] * len(splits), splits=splits))


def test_one_group_cannot_be_cut() -> None:
    with pytest.raises(DataError, match="no group can be spared"):
        make_splits(source_of([0] * 10, groups=[4] * 10))


def test_three_pictures_are_too_few() -> None:
    with pytest.raises(DataError, match="3 pictures are too few"):
        make_splits(source_of([0] * 3))
