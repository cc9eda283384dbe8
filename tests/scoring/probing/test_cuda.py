"""The probes on a GPU: the same answers as on the CPU."""

import pytest
import torch
from sklearn.datasets import load_digits

from vitrail.scoring.probing.methods import METHODS, make_methods

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("pictures", [40, 1200])
def test_a_gpu_answers_as_the_cpu_does(name: str, pictures: int) -> None:
    digits = load_digits()
    points, labels = torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target)
    answers = []
    for device in ("cpu", "cuda"):
        method = make_methods([name], torch.device(device), l2="sweep", ks=(1, 5, 20), temperature=0.07)[0]
        grid = method.settings(pictures)
        answers.append(method.answer(points[:pictures], labels[:pictures], points[1200:], 10, grid, 0))
    assert (answers[0] == answers[1]).double().mean() > 0.99
