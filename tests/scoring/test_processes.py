"""Several processes give the report of one, to the last digit."""

from pathlib import Path

import pytest
import torch

import vitrail
from tests.scoring.processes import evaluated_by


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_processes_gives_the_same_report(
    small: Path, photos: Path, tmp_path: Path, one_thread: None, world: int
) -> None:
    alone = vitrail.evaluate(small, photos, device="cpu", workers=0, batch_size=5).to_json()
    assert alone["pictures"] == 35
    for report in evaluated_by(world, small, photos, tmp_path, batch_size=5):
        assert report == alone


def test_the_trouble_of_one_process_is_that_of_all(small: Path, photos: Path, tmp_path: Path) -> None:
    for report in evaluated_by(2, small, photos, tmp_path, strict=True):
        assert "bad.png" in report["error"]
