"""Predictions by probes that have not seen what they judge."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import vitrail
from vitrail.checking.probe import FOLDS, features, fit, folds_of, held_out_probabilities
from vitrail.data import Names, Samples, Source


def silent(what: str, done: int, total: int) -> None:
    pass


@pytest.mark.parametrize(("classes", "decay"), [(2, 0.1), (3, 0.01), (7, 0.03)])
def test_the_probe_is_scikit_learns_logistic_regression(classes: int, decay: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(400, 12)).astype(np.float32)
    targets = (points[:, :classes] + rng.normal(0, 0.5, (400, classes))).argmax(axis=1)
    theirs = LogisticRegression(C=1 / (decay * len(points)), tol=1e-8, max_iter=2000).fit(points, targets)
    weight, bias = fit(torch.from_numpy(points), torch.from_numpy(targets), classes, decay)
    ours = torch.softmax(torch.from_numpy(points) @ weight.T + bias, dim=1).numpy()
    if classes > 2:  # with two, scikit-learn fits one weight, which is penalised differently
        assert ours == pytest.approx(theirs.predict_proba(points), abs=2e-3)
    assert (ours.argmax(axis=1) == theirs.predict(points)).mean() > 0.99


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=120), st.integers(0, 5))
def test_groups_stay_together_and_classes_are_spread_evenly(rows: list[tuple[int, int]], seed: int) -> None:
    names = [f"{i:03d}.jpg" for i in range(len(rows))]
    groups = np.array([group for _, group in rows])
    labels = np.array([groups[i] % 4 for i in range(len(rows))])  # a group has one label, as duplicates mostly have
    folds = folds_of(names, labels, groups, seed)
    assert all(len(set(folds[groups == group])) == 1 for group in set(groups.tolist()))
    for label in range(4):
        firsts = [int(np.flatnonzero(groups == group)[0]) for group in sorted(set(groups[labels == label].tolist()))]
        counts = np.bincount(folds[firsts], minlength=FOLDS)
        assert counts.max() - counts.min() <= 1
    order = np.random.default_rng(seed).permutation(len(rows))
    assert (folds_of([names[i] for i in order], labels[order], groups[order], seed) == folds[order]).all()


def test_a_picture_is_judged_without_its_own_label() -> None:
    """Flipping one label changes the probabilities of the other folds, and of its own fold not at all."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(100, 6)).astype(np.float32)
    labels = (vectors[:, 0] > 0).astype(np.int64)
    folds = np.arange(100) % FOLDS
    before = held_out_probabilities(vectors, labels, folds, 2, device="cpu", progress=silent)
    labels[17] = 1 - labels[17]
    after = held_out_probabilities(vectors, labels, folds, 2, device="cpu", progress=silent)
    same = folds == folds[17]
    assert (before[same] == after[same]).all()
    assert not np.isclose(before[~same], after[~same]).all()


class Arrays:
    def __init__(self, pictures: np.ndarray) -> None:
        self.pictures = pictures

    def read_many(self, rows):
        return [self.pictures[row] for row in rows]


@pytest.mark.parametrize("name", ["vit_ti16", "deit_ti16_distilled", "r26"])
def test_features_are_what_the_head_reads(name: str) -> None:
    torch.manual_seed(0)
    changes = {"img_size": 32} if name == "r26" else {"img_size": 32, "patch_size": 16, "depth": 2}
    classifier = vitrail.Classifier(vitrail.create(name, num_classes=3, **changes).eval())
    pictures = np.random.default_rng(0).integers(0, 256, (5, 40, 50, 3), np.uint8)
    samples = Samples(Names.of("abcde"), ("x",), np.zeros(5, np.int32), np.zeros(5, np.int8))
    source = Source("arrays", samples, Arrays(pictures), positions=np.array([3, 1, 4, 0, 2]))
    rows = np.array([0, 2, 4])
    options = {"device": "cpu", "batch_size": 2, "workers": 0, "progress": silent}
    found = features(source, rows, classifier, **options)
    taken: list[torch.Tensor] = []
    head = classifier.model.head.fc if name == "r26" else classifier.model.head
    head.register_forward_hook(lambda module, inputs, output: taken.append(inputs[0].flatten(1)))
    if name == "deit_ti16_distilled":
        classifier.model.head_dist.register_forward_hook(lambda module, inputs, output: taken.append(inputs[0]))
    classifier.logits(list(pictures[rows]))
    expected = torch.stack(taken).mean(dim=0)
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-4)
    assert classifier.model.config.num_classes == 3  # the caller's model keeps its head
