"""Weighted nearest neighbours beside scikit-learn's."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from vitrail.scoring.probing.knn import knn_answers, neighbours


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data), torch.tensor(digits.target)


@pytest.mark.parametrize("temperature", [0.02, 0.07, 1.0])
def test_answers_are_scikit_learns(digits, temperature: float) -> None:
    points, labels = digits
    ks = [1, 5, 20, 200]
    ours = knn_answers(points[:1200], labels[:1200], points[1200:], 10, ks, temperature=temperature)
    for k, answers in zip(ks, ours, strict=True):
        theirs = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / temperature))
        theirs.fit(points[:1200].numpy(), labels[:1200].numpy())
        assert (answers.numpy() == theirs.predict(points[1200:].numpy())).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 300), (50, 7), (7, 64), (4096, 599), (4096, 601)])
def test_the_size_of_blocks_changes_nothing(digits, rows: int, columns: int) -> None:
    points, labels = digits
    known, own, some = points[:600], labels[:600], points[1200:1220]
    whole = neighbours(known, some, 30, rows=10_000, columns=10_000)
    parts = neighbours(known, some, 30, rows=rows, columns=columns)
    torch.testing.assert_close(parts[0], whole[0])
    assert (parts[1] == whole[1]).double().mean() > 0.99  # of equally near ones either may come first
    answers = knn_answers(known, own, some, 10, [1, 30], rows=rows, columns=columns)
    assert (answers == knn_answers(known, own, some, 10, [1, 30])).all()


def test_more_neighbours_than_points_are_all_points(digits) -> None:
    points, _ = digits
    near, whose = neighbours(points[:12], points[20:23], 50, columns=5)
    assert near.shape == (3, 12)
    assert (whose.sort(dim=1).values == torch.arange(12)).all()
    assert (near.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_no_temperature_overflows(digits, temperature: float) -> None:
    points, labels = digits
    nearest = knn_answers(points[:500], labels[:500], points[500:600], 10, [1])
    answers = knn_answers(points[:500], labels[:500], points[500:600], 10, [15], temperature=temperature)
    if temperature < 1:
        assert (answers == nearest).all()
    assert (answers == labels[500:600]).double().mean() > 0.8


MILLION = """
import resource, torch
from vitrail.scoring.probing.knn import knn_answers
torch.manual_seed(0)
torch.set_num_threads(2)
points = torch.randn(1_000_000, 64)
labels = torch.arange(len(points)) % 1000
queries = points[::2000] + 0.1 * torch.randn(500, 64)  # each lies beside one of the points
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
answers = knn_answers(points, labels, queries, 1000, [1, 200])
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(int((answers[0] == labels[::2000]).sum()), grown // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_a_million_points_fit_in_little_memory() -> None:
    assert resource.RUSAGE_SELF == 0
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True)
    right, mebibytes = map(int, done.stdout.split())
    assert right == 500
    assert mebibytes < 200  # all similarities at once would be 2,000
