"""Scores against scikit-learn, torch and closed forms; and that batches, order and processes change nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from vitrail.errors import VitrailError
from vitrail.scoring.metrics import Scores, Tally
from vitrail.scoring.scores import average_precision


def names(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


def scored(logits: Tensor, labels: Tensor, *, multi_label: bool = False, **options) -> Scores:
    tally = Tally(logits.shape[1], multi_label)
    tally.add(logits, labels, None, torch.arange(len(logits)))
    return tally.result(names(logits.shape[1]), **options)


@pytest.fixture(scope="module")
def guesses() -> tuple[Tensor, Tensor]:
    """Logits that are often right, for 12 classes, of which the last two have no picture."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (700,), generator=generator)
    logits = torch.randn(700, 12, generator=generator)
    logits[torch.arange(700), labels] += 1.5
    return logits, labels


def test_every_score_is_scikit_learns(guesses) -> None:
    logits, labels = guesses
    scores = scored(logits, labels)
    p, y = logits.double().softmax(1).numpy(), labels.numpy()
    answers, every, there = p.argmax(1), np.arange(12), np.arange(10)

    assert scores.pictures == 700
    assert scores.loss == pytest.approx(sk.log_loss(y, p, labels=every), abs=1e-12)
    assert scores.loss == pytest.approx(cross_entropy(logits.double(), labels).item(), abs=1e-12)
    assert scores.top1 == scores.score == sk.accuracy_score(y, answers)
    assert scores.top5 == sk.top_k_accuracy_score(y, p, k=5, labels=every)
    assert scores.balanced_accuracy == pytest.approx(np.mean([np.mean(answers[y == k] == k) for k in there]), abs=1e-12)
    assert scores.brier == pytest.approx(sk.brier_score_loss(y, p, labels=every), abs=1e-12)
    np.testing.assert_array_equal(scores.confusion(), sk.confusion_matrix(y, answers, labels=every))

    theirs = sk.precision_recall_fscore_support(y, answers, labels=every, zero_division=np.nan)
    ours = [[getattr(one, k) for one in scores.per_class] for k in ("precision", "recall", "f1", "support")]
    for mine, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine[:10], their[:10], atol=1e-12)
    macro = sk.precision_recall_fscore_support(y, answers, labels=there, average="macro", zero_division=0)
    np.testing.assert_allclose((scores.macro_precision, scores.macro_recall, scores.macro_f1), macro[:3], atol=1e-12)
    assert all(math.isnan(one.recall) for one in scores.per_class[10:])


def test_balanced_accuracy_is_scikit_learns_where_it_defines_it() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.cat([torch.zeros(50), torch.ones(5), torch.full((20,), 2)]).long()
    logits = torch.randn(75, 3, generator=generator)
    expected = sk.balanced_accuracy_score(labels.numpy(), logits.argmax(1).numpy())
    assert scored(logits, labels).balanced_accuracy == pytest.approx(expected, abs=1e-12)


def certain(probability: float, count: int) -> Tensor:
    """Logits of two classes that say class 0 with this probability."""
    return torch.tensor([[math.log(probability), math.log1p(-probability)]], dtype=torch.float64).repeat(count, 1)


def test_the_calibration_error_is_what_its_definition_says() -> None:
    # 10 answers of 0.9, all right: off by 0.1. 30 answers of 0.6, a third right: off by 0.6 - 1/3.
    logits = torch.cat([certain(0.9, 10), certain(0.6, 30)])
    labels = torch.cat([torch.zeros(20), torch.ones(20)]).long()
    scores = scored(logits, labels)
    assert scores.ece == pytest.approx(0.25 * 0.1 + 0.75 * (0.6 - 1 / 3), abs=1e-12)
    full = {
        (one.pictures, round(one.confidence, 9), round(one.accuracy, 9)) for one in scores.reliability if one.pictures
    }
    assert full == {(10, 0.9, 1.0), (30, 0.6, round(1 / 3, 9))}
    assert len(scores.reliability) == 15


def test_a_perfectly_calibrated_model_has_no_calibration_error() -> None:
    labels = torch.tensor([0, 0, 0, 1] * 25)
    assert scored(certain(0.75, 100), labels).ece == pytest.approx(0, abs=1e-12)


def test_the_calibration_error_is_that_of_guo_et_al(guesses) -> None:
    logits, labels = guesses
    p, answers = logits.double().softmax(1).max(1)
    right, expected = (answers == labels).double(), 0.0
    for lower in np.arange(15) / 15:
        mine = (p > lower) & (p <= lower + 1 / 15)
        if mine.any():
            expected += float((p[mine].mean() - right[mine].mean()).abs() * mine.double().mean())
    assert scored(logits, labels).ece == pytest.approx(expected, abs=1e-12)


def test_of_equal_logits_the_first_class_goes_first() -> None:
    same = torch.zeros(7, 7)
    scores = scored(same, torch.arange(7))
    assert scores.top1 == 1 / 7
    assert scores.top5 == 5 / 7
    assert scores.confusion()[:, 0].tolist() == [1] * 7
    assert scores.loss == pytest.approx(math.log(7), abs=1e-12)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_ranks_with_many_ties_are_those_of_a_stable_sort(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 3, (40, 8), generator=generator).float()
    labels = torch.randint(0, 8, (40,), generator=generator)
    order = np.argsort(-logits.numpy(), axis=1, kind="stable")
    rank = (order == labels.numpy()[:, None]).argmax(1)
    scores = scored(logits, labels)
    assert scores.top1 == (rank == 0).mean()
    assert scores.top5 == (rank < 5).mean()
    assert np.trace(scores.confusion()) == (rank == 0).sum()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_a_number_is_never_right(broken: float) -> None:
    logits = torch.eye(6) * 9
    logits[2, 2] = broken
    logits[3] = math.nan
    scores = scored(logits, torch.arange(6))
    assert scores.top1 == scores.top5 == 4 / 6
    assert scores.unanswered == 2
    assert math.isnan(scores.loss)
    assert math.isnan(scores.ece)
    assert math.isnan(scores.brier)
    assert scores.confusion().sum() == 4
    assert [one.recall for one in scores.per_class] == [1, 1, 0, 0, 1, 1]


def test_classes_that_are_ruled_out_by_minus_infinity_are_no_trouble() -> None:
    logits = torch.tensor([[1.0, -math.inf, 0.0], [0.0, -math.inf, 3.0]])
    scores = scored(logits, torch.tensor([0, 2]))
    assert scores.top1 == 1
    assert scores.loss == pytest.approx(cross_entropy(logits.double(), torch.tensor([0, 2])).item(), abs=1e-12)


def test_the_most_confident_mistakes_come_first() -> None:
    logits = torch.cat([certain(p, 1) for p in (0.6, 0.99, 0.7, 0.8)])
    scores = scored(logits, torch.tensor([1, 0, 1, 1]), mistakes=2)
    assert [(one.sample, one.labels, one.answer) for one in scores.mistakes] == [
        (3, ("class 1",), "class 0"),
        (2, ("class 1",), "class 0"),
    ]
    assert [one.probability for one in scores.mistakes] == pytest.approx([0.8, 0.7], abs=1e-12)
    assert scores.confused() == [("class 1", "class 0", 3)]


def test_pictures_that_are_unreadable_or_without_a_label_are_not_counted(guesses) -> None:
    logits, labels = guesses
    expected = scored(logits[:500], labels[:500])
    tally = Tally(12, False)
    valid = torch.arange(700) < 600
    without = torch.where(torch.arange(700) < 500, labels, -1)
    tally.add(logits, without, valid, torch.arange(700))
    assert tally.result(names(12)) == expected
    assert tally.answers()[0].tolist() == list(range(500))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_batches_order_processes_and_repeats_change_no_bit(data: st.DataObject) -> None:
    n, classes = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 9))
    multi_label, repeats = data.draw(st.booleans()), data.draw(st.integers(0, 10))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1)))
    logits = torch.randn(n, classes, generator=generator) * 3
    labels = torch.randint(0, classes, (n,), generator=generator)
    if multi_label:
        labels = (torch.rand(n, classes, generator=generator) < 0.4).float()
    samples = torch.randperm(10 * n, generator=generator)[:n]
    whole = Tally(classes, multi_label)
    whole.add(logits, labels, None, samples)

    again = torch.randint(0, n, (repeats,), generator=generator)
    order = torch.cat([torch.arange(n), again])[torch.randperm(n + repeats, generator=generator)]
    world = data.draw(st.integers(1, 4))
    parts = [Tally(classes, multi_label) for _ in range(world)]
    start = 0
    while start < len(order):
        some = order[start : start + data.draw(st.integers(1, 20))]
        parts[data.draw(st.integers(0, world - 1))].add(logits[some], labels[some], None, samples[some])
        start += len(some)
    joined = Tally.joined([part.state() for part in parts])
    one, other = whole.result(names(classes)), joined.result(names(classes))
    assert repr(one) == repr(other)  # NaN is not equal to itself
    assert repr(one.per_class) == repr(other.per_class)
    assert one.mistakes == other.mistakes
    np.testing.assert_array_equal(one.confusion(), other.confusion())


def test_of_two_rows_for_one_sample_the_worse_counts_whichever_comes_first() -> None:
    rows, label = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([0])
    for order in ([0, 1], [1, 0]):
        tally = Tally(2, False)
        for k in order:
            tally.add(rows[k : k + 1], label, None, torch.tensor([4]))
        assert tally.result(["a", "b"]).top1 == 0


@pytest.fixture(scope="module")
def tags() -> tuple[Tensor, Tensor]:
    """Logits with many ties, and any number of labels; class 6 has none."""
    generator = torch.Generator().manual_seed(2)
    targets = (torch.rand(400, 7, generator=generator) < 0.25).float()
    targets[:, 6] = 0
    return ((torch.randn(400, 7, generator=generator) + 2 * targets - 1) * 4).round() / 4, targets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_scores_of_several_labels_are_scikit_learns(tags, dtype: torch.dtype) -> None:
    logits, targets = tags
    scores = scored(logits.to(dtype), targets, multi_label=True)
    x, y = logits.double().numpy(), targets.numpy().astype(int)
    said = (x > 0).astype(int)
    theirs = sk.average_precision_score(y[:, :6], x[:, :6], average=None)
    np.testing.assert_allclose([one.average_precision for one in scores.per_class[:6]], theirs, atol=1e-12)
    assert scores.mean_average_precision == scores.score == pytest.approx(theirs.mean(), abs=1e-12)
    assert math.isnan(scores.per_class[6].average_precision)
    assert scores.micro_f1 == pytest.approx(sk.f1_score(y, said, average="micro"), abs=1e-12)
    assert scores.macro_f1 == pytest.approx(sk.f1_score(y[:, :6], said[:, :6], average="macro"), abs=1e-12)
    assert scores.loss == pytest.approx(
        binary_cross_entropy_with_logits(logits.double(), targets.double()).item(), abs=1e-12
    )
    assert scores.top1 is None
    assert scores.confused() == []


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=1, max_size=40))
def test_average_precision_is_scikit_learns(rows: list[tuple[bool, int]]) -> None:
    truth, logits = np.array([row[0] for row in rows]), np.array([float(row[1]) for row in rows])
    if not truth.any():
        assert math.isnan(average_precision(truth, logits))
    else:
        assert average_precision(truth, logits) == pytest.approx(sk.average_precision_score(truth, logits), abs=1e-12)


def test_with_several_labels_a_confident_wrong_answer_is_a_mistake_and_nan_is_no_answer() -> None:
    logits = torch.tensor([[4.0, -1.0, 2.0], [math.nan, 3.0, -2.0]])
    targets = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    scores = scored(logits, targets, multi_label=True)
    assert [(one.sample, one.labels, one.answer) for one in scores.mistakes] == [(0, ("class 1", "class 2"), "class 0")]
    assert scores.mistakes[0].probability == pytest.approx(torch.tensor(4.0).sigmoid().item(), abs=1e-6)
    assert scores.per_class[0].recall == 0
    assert scores.unanswered == 1


def test_what_cannot_be_scored_is_said() -> None:
    with pytest.raises(VitrailError, match="nothing was scored"):
        Tally(3, False).result(names(3))
    with pytest.raises(VitrailError, match="3 classes were expected"):
        Tally(3, False).add(torch.zeros(2, 4), torch.zeros(2).long(), None, torch.arange(2))
    with pytest.raises(VitrailError, match="2 names were given"):
        Tally(3, False).result(names(2))
    with pytest.raises(VitrailError, match="cannot be joined"):
        Tally.joined([Tally(3, False).state(), Tally(4, False).state()])
    with pytest.raises(VitrailError, match="without classes"):
        Tally(0, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_nothing_waits_before_the_result(guesses) -> None:
    logits, labels = (one.cuda() for one in guesses)
    samples, tally = torch.arange(700).cuda(), Tally(12, False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        tally.add(logits, labels, labels >= 0, samples)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    cpu = scored(*guesses)
    gpu = tally.result(names(12))
    assert (gpu.top1, gpu.top5) == (cpu.top1, cpu.top5)
    assert gpu.loss == pytest.approx(cpu.loss, abs=1e-12)
