"""Losses beside torch's, scikit-learn's and the papers' formulae; parts of a batch that add up to the whole."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.training.losses import class_weights, distilled, make_loss
from vitrail.training.recipe import Distillation, Loss

CLASSES = 7
COUNTS = np.array([10, 200, 3, 1, 50, 50, 8])


def batch(n: int = 12, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, labels, mixed rows, rows of several labels."""
    g = torch.Generator().manual_seed(seed)
    logits, labels = 3 * torch.randn(n, CLASSES, generator=g), torch.randint(CLASSES, (n,), generator=g)
    share = torch.rand(n, 1, generator=g)
    mixed = share * F.one_hot(labels, CLASSES) + (1 - share) * F.one_hot(labels.flip(0), CLASSES)
    return logits, labels, mixed, (torch.rand(n, CLASSES, generator=g) < 0.3).float()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(smoothing: float) -> None:
    logits, labels, mixed, _ = batch()
    loss = make_loss(Loss(smoothing=smoothing), CLASSES, None, multi_label=False)
    for targets in (labels, mixed):
        wanted = F.cross_entropy(logits, targets, label_smoothing=smoothing)
        torch.testing.assert_close(loss(logits, targets), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["cross-entropy", "binary"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_label_and_its_row_have_the_same_loss(smoothing: float, kind: Any, weighted: bool) -> None:
    logits, labels, _, _ = batch()
    loss = make_loss(Loss(kind, smoothing, weighted), CLASSES, COUNTS, multi_label=False)
    torch.testing.assert_close(loss(logits, labels), loss(logits, F.one_hot(labels, CLASSES).float()))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_weights_are_torchs_but_for_what_they_are_divided_by(smoothing: float) -> None:
    logits, labels, mixed, _ = batch()
    loss = make_loss(Loss(smoothing=smoothing, class_weights=True), CLASSES, COUNTS, multi_label=False)
    weights = class_weights(COUNTS)
    theirs = F.cross_entropy(logits, labels, weights, label_smoothing=smoothing)
    torch.testing.assert_close(loss(logits, labels), theirs * weights[labels].sum() / len(labels))
    theirs = F.cross_entropy(logits, mixed, weights, label_smoothing=smoothing)
    torch.testing.assert_close(loss(logits, mixed), theirs)


def test_class_weights_are_scikit_learns_and_one_on_average() -> None:
    utils = pytest.importorskip("sklearn.utils.class_weight")
    labels = np.repeat(np.arange(CLASSES), COUNTS)
    wanted = utils.compute_class_weight("balanced", classes=np.arange(CLASSES), y=labels)
    weights = class_weights(COUNTS).numpy()
    np.testing.assert_allclose(weights, wanted, rtol=1e-6)
    assert weights[labels].mean() == pytest.approx(1)
    assert class_weights(np.array([4, 0, 4])).tolist() == [1, 1, 1]


def test_the_binary_loss_is_the_sum_over_classes_and_the_mean_over_pictures() -> None:
    logits, labels, mixed, several = batch()
    loss = make_loss(Loss("binary"), CLASSES, None, multi_label=False)
    for targets, rows in ((labels, F.one_hot(labels, CLASSES).double()), (mixed, mixed.double())):
        log_p, log_not_p = F.logsigmoid(logits.double()), F.logsigmoid(-logits.double())
        wanted = -(rows * log_p + (1 - rows) * log_not_p).sum(-1).mean()  # big_vision's sigmoid_xent
        torch.testing.assert_close(loss(logits, targets).double(), wanted, rtol=1e-5, atol=1e-6)
    several_loss = make_loss(Loss("auto"), CLASSES, None, multi_label=True)
    wanted = F.binary_cross_entropy_with_logits(logits, several) * CLASSES
    torch.testing.assert_close(several_loss(logits, several), wanted)


def test_smoothing_of_the_binary_loss_is_timms() -> None:
    timm_loss = pytest.importorskip("timm.loss", reason="timm is not installed: uv run --all-extras pytest")
    logits, labels, _, several = batch()
    theirs = timm_loss.BinaryCrossEntropy(smoothing=0.1, sum_classes=True)(logits, labels)
    ours = make_loss(Loss("binary", smoothing=0.1), CLASSES, None, multi_label=False)(logits, labels)
    torch.testing.assert_close(ours, theirs)
    ours = make_loss(Loss(smoothing=0.1), CLASSES, None, multi_label=True)(logits, several)
    wanted = F.binary_cross_entropy_with_logits(logits, several * 0.9 + 0.05) * CLASSES
    torch.testing.assert_close(ours, wanted)


def test_in_the_binary_loss_the_yes_of_a_rare_class_costs_more() -> None:
    logits, _, _, several = batch()
    ours = make_loss(Loss(class_weights=True), CLASSES, COUNTS, multi_label=True)(logits, several)
    wanted = F.binary_cross_entropy_with_logits(logits, several, pos_weight=class_weights(COUNTS)) * CLASSES
    torch.testing.assert_close(ours, wanted)


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["cross-entropy", "binary"]),
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1]),
    soft=st.booleans(),
    cuts=st.lists(st.integers(1, 11), max_size=4, unique=True),
)
def test_parts_of_a_batch_add_up_to_the_batch(
    kind: Any, weighted: bool, smoothing: float, soft: bool, cuts: list[int]
) -> None:
    logits, labels, mixed, _ = batch()
    targets = mixed if soft else labels
    loss = make_loss(Loss(kind, smoothing, weighted), CLASSES, COUNTS, multi_label=False)

    def gradient(parts: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        value = sum((loss(leaf[a:b], targets[a:b]) * ((b - a) / 12) for a, b in parts), torch.zeros(()))
        value.backward()
        assert leaf.grad is not None
        return value.detach(), leaf.grad

    edges = [0, *sorted(cuts), 12]
    whole, parted = gradient([(0, 12)]), gradient(list(pairwise(edges)))
    torch.testing.assert_close(whole, parted, rtol=1e-5, atol=1e-6)


def test_half_precision_logits_lose_nothing_more() -> None:
    logits, labels, _, _ = batch()
    rounded = logits.bfloat16()
    loss = make_loss(Loss(), CLASSES, None, multi_label=False)
    assert torch.equal(loss(rounded, labels), loss(rounded.float(), labels))


def test_several_labels_refuse_cross_entropy() -> None:
    with pytest.raises(ConfigError, match="binary"):
        make_loss(Loss("cross-entropy"), CLASSES, None, multi_label=True)


def test_class_weights_need_counts() -> None:
    with pytest.raises(ConfigError, match="class_weights"):
        make_loss(Loss(class_weights=True), CLASSES, None, multi_label=False)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("weight", [0.0, 0.5, 0.9])
def test_hard_distillation_is_the_papers_formula(weight: float) -> None:
    (first, labels, _, _), (second, _, _, _), (teacher, _, _, _) = batch(), batch(seed=1), batch(seed=2)
    loss = make_loss(Loss(), CLASSES, None, multi_label=False)
    got = distilled(loss, Distillation("x", "hard", weight), (first, second), labels, teacher)
    rows = np.arange(len(labels))
    own = -np.log(softmax(first.double().numpy())[rows, labels.numpy()]).mean()
    theirs = -np.log(softmax(second.double().numpy())[rows, teacher.numpy().argmax(1)]).mean()
    assert got.item() == pytest.approx((1 - weight) * own + weight * theirs, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_distillation_is_the_papers_formula(temperature: float) -> None:
    (first, _, mixed, _), (second, _, _, _), (teacher, _, _, _) = batch(), batch(seed=1), batch(seed=2)
    loss = make_loss(Loss(smoothing=0.1), CLASSES, None, multi_label=False)
    got = distilled(loss, Distillation("x", "soft", 0.3, temperature), (first, second), mixed, teacher)
    p = softmax(teacher.double().numpy() / temperature)
    q = softmax(second.double().numpy() / temperature)
    divergence = (p * np.log(p / q)).sum(1).mean()
    wanted = 0.7 * loss(first, mixed).item() + 0.3 * temperature**2 * divergence
    assert got.item() == pytest.approx(wanted, rel=1e-5)


def test_a_teacher_of_other_classes_is_refused() -> None:
    logits, labels, _, _ = batch()
    loss = make_loss(Loss(), CLASSES, None, multi_label=False)
    with pytest.raises(ConfigError, match="teacher knows 1000 classes, the data has 7"):
        distilled(loss, Distillation("x"), (logits, logits), labels, torch.zeros(len(labels), 1000))
