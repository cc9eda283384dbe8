"""Confident learning against its published definition, and against cleanlab where that is installed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vitrail.checking.confident import (
    confident_classes,
    confident_joint,
    likely_wrong,
    normalised_margin,
    self_confidence,
    thresholds,
)

LABELS = np.array([0, 0, 0, 1, 1, 1])
PROBABILITIES = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.4, 0.6], [0.9, 0.1]])


def test_the_threshold_of_a_class_is_its_mean_self_confidence() -> None:
    assert thresholds(LABELS, PROBABILITIES) == pytest.approx([(0.9 + 0.7 + 0.2) / 3, (0.9 + 0.6 + 0.1) / 3])


def test_a_small_example_worked_out_by_hand() -> None:
    # thresholds 0.6 and 0.5333: row 2 is confidently of class 1, row 5 of class 0, the others of their own
    assert confident_classes(LABELS, PROBABILITIES).tolist() == [0, 0, 1, 1, 1, 0]
    assert confident_joint(LABELS, PROBABILITIES).tolist() == [[2, 1], [1, 2]]
    assert likely_wrong(LABELS, PROBABILITIES).tolist() == [5, 2]  # 0.1 against 0.9 is worse than 0.2 against 0.8
    assert self_confidence(LABELS, PROBABILITIES) == pytest.approx([0.9, 0.7, 0.2, 0.9, 0.6, 0.1])
    assert normalised_margin(LABELS, PROBABILITIES) == pytest.approx([0.9, 0.7, 0.2, 0.9, 0.6, 0.1])


def test_what_reaches_no_threshold_is_counted_nowhere() -> None:
    probabilities = np.array([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9], [0.4, 0.35, 0.25]])
    assert confident_joint(np.array([0, 1, 2, 2]), probabilities).sum() == 3


def test_a_class_that_no_picture_bears_is_never_suggested() -> None:
    probabilities = np.array([[0.2, 0.1, 0.7], [0.1, 0.2, 0.7]])
    assert likely_wrong(np.array([0, 1]), probabilities).tolist() == []


@st.composite
def judged(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    classes, rows = draw(st.integers(2, 5)), draw(st.integers(1, 40))
    scores = draw(arrays(np.float64, (rows, classes), elements=st.floats(0.01, 1)))
    labels = draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    return np.concatenate([np.arange(classes), labels]), np.concatenate(
        [np.full((classes, classes), 1 / classes), scores / scores.sum(axis=1, keepdims=True)]
    )


@given(judged())
def test_what_is_likely_wrong_is_off_the_diagonal_and_ranked(case: tuple[np.ndarray, np.ndarray]) -> None:
    labels, probabilities = case
    joint = confident_joint(labels, probabilities)
    found = likely_wrong(labels, probabilities)
    margins = normalised_margin(labels[found], probabilities[found])
    assert len(found) <= joint.sum() - np.trace(joint)
    assert (margins <= 0.5).all()
    assert (np.diff(margins) >= 0).all()


def noisy_task(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 8))
    truth = rng.integers(0, classes, 600)
    logits = rng.normal(0, 1, (600, classes))
    logits[np.arange(600), truth] += rng.uniform(1, 4)
    labels = np.where(rng.random(600) < 0.1, rng.integers(0, classes, 600), truth)
    exponents = np.exp(logits)
    return labels, exponents / exponents.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_cleanlabs_confident_learning(seed: int) -> None:
    count = pytest.importorskip("cleanlab.count", reason="cleanlab is not installed")
    filtering, rank = pytest.importorskip("cleanlab.filter"), pytest.importorskip("cleanlab.rank")
    labels, probabilities = noisy_task(seed)
    assert thresholds(labels, probabilities) == pytest.approx(count.get_confident_thresholds(labels, probabilities))
    theirs = count.compute_confident_joint(labels, probabilities, calibrate=False)
    assert confident_joint(labels, probabilities).tolist() == theirs.tolist()
    flagged = filtering.find_label_issues(
        labels,
        probabilities,
        filter_by="confident_learning",
        return_indices_ranked_by="normalized_margin",
        n_jobs=1,
    )
    assert likely_wrong(labels, probabilities).tolist() == list(flagged)
    scores = rank.get_normalized_margin_for_each_label(labels, probabilities)
    assert normalised_margin(labels, probabilities) == pytest.approx(scores)
