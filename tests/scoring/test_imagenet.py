"""Real weights on real pictures: the number is timm's, whatever the batch size and the number of processes."""

import json
from pathlib import Path

import pytest

import vitrail
from tests.scoring.processes import evaluated_by
from vitrail.errors import DataError
from vitrail.scoring.real_labels import RealScore


@pytest.fixture(scope="module")
def whole(deit_tiny: Path, imagenet_sample: Path) -> vitrail.Report:
    return vitrail.evaluate(deit_tiny, imagenet_sample, device="cpu", batch_size=50)


def test_deit_tiny_has_timms_accuracy_on_a_thousand_pictures(whole: vitrail.Report) -> None:
    assert whole.pictures == 1000
    assert whole.split == "all"
    assert whole.scores.top1 == 0.692  # timm's, on the same pictures


@pytest.fixture(scope="module")
def some(imagenet_sample: Path, tmp_path_factory) -> Path:
    """A tenth of the classes: their names alone say which outputs they are."""
    folder = tmp_path_factory.mktemp("some")
    for path in sorted(imagenet_sample.iterdir())[::10]:
        (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize("batch_size", [7, 64])
def test_a_part_of_the_classes_in_other_batches_gets_the_same_answers(
    deit_tiny: Path, some: Path, whole: vitrail.Report, batch_size: int
) -> None:
    part = vitrail.evaluate(deit_tiny, some, device="cpu", workers=0, batch_size=batch_size)
    assert part.pictures == 100
    expected = whole.scores.confusion()[::10]
    assert part.scores.confusion()[::10].tolist() == expected.tolist()
    assert part.scores.top1 == expected[range(100), range(0, 1000, 10)].sum() / 100


def test_two_processes_report_what_one_does(deit_tiny: Path, some: Path, tmp_path: Path, one_thread: None) -> None:
    alone = vitrail.evaluate(deit_tiny, some, device="cpu", workers=0, batch_size=20).to_json()
    first, second = evaluated_by(2, deit_tiny, some, tmp_path, batch_size=20)
    assert first == second == alone


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 33, 250])
def test_all_pictures_give_the_same_number_in_any_way(
    deit_tiny: Path, imagenet_sample: Path, tmp_path: Path, batch_size: int, world: int
) -> None:
    for report in evaluated_by(world, deit_tiny, imagenet_sample, tmp_path, batch_size=batch_size):
        assert report["top1"] == 0.692


def test_reassessed_labels_count_a_hit_in_any_of_them(
    deit_tiny: Path, some: Path, whole: vitrail.Report, tmp_path: Path
) -> None:
    """Every valid label right, none right, none valid: a share of each is known beforehand."""
    answers = whole.scores.confusion()[::10].argmax(1)
    numbers = [int(next((some / name).iterdir()).stem[-8:]) for name in sorted(path.name for path in some.iterdir())]
    entries: list[list[int]] = [[] for _ in range(50_000)]
    for k, (number, answer) in enumerate(zip(numbers, answers.tolist(), strict=True)):
        wrong = (answer + 1) % 1000
        entries[number - 1] = [wrong, answer] if k < 50 else [wrong] if k < 80 else []
    (tmp_path / "real.json").write_text(json.dumps(entries))
    report = vitrail.evaluate(deit_tiny, some, device="cpu", workers=0, real=tmp_path / "real.json")
    assert report.real == RealScore(50 / 80, 80, 20)
    assert "ReaL top-1" in report.text()
    (tmp_path / "short.json").write_text("[[1]]")
    with pytest.raises(DataError, match="has no ReaL labels"):
        vitrail.evaluate(deit_tiny, some, device="cpu", workers=0, real=tmp_path / "short.json")
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(DataError, match="holds no ReaL labels"):
        vitrail.evaluate(deit_tiny, some, device="cpu", workers=0, real=tmp_path / "no.json")
