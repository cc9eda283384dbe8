"""`vitrail.evaluate`: what is scored, of which pictures, under which names."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

import vitrail
from tests.training.running import make_pictures
from vitrail.classifier import Classifier
from vitrail.data import open_source
from vitrail.data.schedule import Share
from vitrail.errors import DataError, PictureError, VitrailError
from vitrail.scoring.evaluation import mean_of_probabilities

MODEL = ["tulip", "sun flower", "rose", "daisy"]


def readable(photos: Path, split: str = "val") -> list[Path]:
    return sorted(path for path in (photos / split).glob("*/*.png") if path.stem != "bad")


def truth(paths: list[Path]) -> torch.Tensor:
    return torch.tensor([MODEL.index(path.parent.name) for path in paths])


def test_it_scores_what_the_classifier_says_of_each_picture(small: Path, photos: Path) -> None:
    report = vitrail.evaluate(small, photos, device="cpu", workers=0, batch_size=8)
    paths = readable(photos)
    logits = vitrail.load(small).logits(paths).double()
    assert report.split == "val"
    assert report.pictures == len(paths) == 35
    assert report.scores.top1 == (logits.argmax(1) == truth(paths)).double().mean().item()
    assert report.scores.loss == pytest.approx(cross_entropy(logits, truth(paths)).item(), abs=1e-6)
    assert [bad.name for bad in report.skipped] == ["val/rose/bad.png"]
    worst = report.scores.mistakes[0]
    assert report.mistaken[0].split("/")[1] == worst.labels[0] != worst.answer


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (7, 2), (35, 0), (1000, 0)])
def test_the_batch_size_changes_no_count(small: Path, photos: Path, batch_size: int, workers: int) -> None:
    one = vitrail.evaluate(small, photos, device="cpu", workers=0, batch_size=16)
    other = vitrail.evaluate(small, photos, device="cpu", workers=workers, batch_size=batch_size)
    assert (one.scores.top1, one.scores.top5) == (other.scores.top1, other.scores.top5)
    np.testing.assert_array_equal(one.scores.confusion(), other.scores.confusion())
    assert one.scores.loss == pytest.approx(other.scores.loss, abs=1e-6)
    assert one.skipped == other.skipped


def test_the_split_is_val_then_test_then_everything(small: Path, photos: Path, tmp_path: Path) -> None:
    def split(folder: Path, **options) -> tuple[str, int]:
        report = vitrail.evaluate(small, folder, device="cpu", workers=0, **options)
        return report.split, report.pictures

    assert split(photos, split="train") == ("train", 9)
    assert split(photos, split="all") == ("all", 44)
    shutil.copytree(photos / "train", tmp_path / "b" / "test")
    assert split(tmp_path / "b") == ("test", 9)
    assert split(photos / "train") == ("all", 9)
    with pytest.raises(DataError, match="no pictures in test: it has train, val, all"):
        split(photos, split="test")
    with pytest.raises(DataError, match="'dev' is no split"):
        split(photos, split="dev")


def test_a_source_and_a_part_of_it_are_taken_as_they_are(small: Path, photos: Path) -> None:
    source, classifier = open_source(photos), vitrail.load(small)
    classifier.model.train()
    report = vitrail.evaluate(classifier, source.said("train"), workers=0, name="mine")
    assert (report.model, report.split, report.pictures) == ("mine", "train", 9)
    assert classifier.model.training
    assert vitrail.evaluate(classifier, source, workers=0).pictures == 35
    with pytest.raises(DataError, match="leave split out"):
        vitrail.evaluate(classifier, source.said("train"), split="val", workers=0)
    with pytest.raises(VitrailError, match="load this one with img_size"):
        vitrail.evaluate(classifier, source, img_size=64, workers=0)
    with pytest.raises(VitrailError, match="precision one of fp32"):
        vitrail.evaluate(classifier, source, precision="int3", workers=0)


def test_an_unreadable_picture_is_an_error_when_asked(small: Path, photos: Path) -> None:
    with pytest.raises(PictureError, match=r"bad\.png"):
        vitrail.evaluate(small, photos, device="cpu", workers=0, strict=True)


def test_a_class_that_the_model_does_not_know_is_named_or_left_out_and_never_shifts(
    small: Path, photos: Path, tmp_path: Path
) -> None:
    shutil.copytree(photos / "train", tmp_path / "more")
    (tmp_path / "more" / "Sun_Flower").mkdir()
    (tmp_path / "more" / "oak").mkdir()
    for number, path in enumerate(readable(photos)[:5]):
        shutil.copy(path, tmp_path / "more" / ("oak" if number < 3 else "Sun_Flower") / path.name)
    with pytest.raises(DataError, match=r"1 class of the data: 'oak' .*--ignore-unknown"):
        vitrail.evaluate(small, tmp_path / "more", device="cpu", workers=0)
    report = vitrail.evaluate(small, tmp_path / "more", device="cpu", workers=0, ignore_unknown=True)
    assert report.ignored == {"oak": 3}
    assert report.pictures == 11
    assert {one.name: one.support for one in report.scores.per_class} == {
        "tulip": 3,
        "sun flower": 2,
        "rose": 3,
        "daisy": 3,
    }
    shutil.copytree(tmp_path / "more" / "oak", tmp_path / "oaks" / "oak")
    with pytest.raises(DataError, match="knows no class"):
        vitrail.evaluate(small, tmp_path / "oaks", device="cpu", workers=0, ignore_unknown=True)


def test_a_model_without_names_is_scored_in_order_only_when_told(small: Path, photos: Path) -> None:
    named = vitrail.load(small)
    nameless = vitrail.Classifier(named.model, named.preprocessing)
    with pytest.raises(DataError, match="no names for its 4 outputs"):
        vitrail.evaluate(nameless, photos, workers=0)
    three = vitrail.load(small, num_classes=3)
    with pytest.raises(DataError, match="say --in-order"):
        vitrail.evaluate(three, photos, workers=0)
    assert vitrail.evaluate(three, photos, workers=0, in_order=True).pictures == 35


def test_pictures_without_labels_cannot_be_scored(small: Path, tmp_path: Path) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="has no labels"):
        vitrail.evaluate(small, tmp_path, device="cpu", workers=0)


def test_flipping_takes_the_mean_of_the_probabilities(small: Path, photos: Path) -> None:
    report = vitrail.evaluate(small, photos, device="cpu", workers=0, flip=True)
    classifier, paths = vitrail.load(small), readable(photos)
    pixels = torch.stack([torch.from_numpy(classifier.preprocessing(path)) for path in paths])
    with torch.inference_mode():
        both = [classifier.model(x).double().softmax(1) for x in (pixels, pixels.flip(-1))]
    p = (both[0] + both[1]) / 2
    assert report.scores.top1 == (p.argmax(1) == truth(paths)).double().mean().item()
    loss = -p.log().gather(1, truth(paths)[:, None]).mean().item()
    assert report.scores.loss == pytest.approx(loss, abs=1e-6)
    assert report.flip


def test_the_mean_of_probabilities_holds_for_several_labels_and_far_out() -> None:
    one, other = torch.randn(2, 5, 3).mul(4).unbind()
    mean = (one.double().sigmoid() + other.double().sigmoid()) / 2
    torch.testing.assert_close(mean_of_probabilities(one, other, True).sigmoid(), mean)
    far = mean_of_probabilities(torch.tensor([[800.0]]), torch.tensor([[900.0]]), True)
    assert 800 < far.item() < 801  # its probability rounds to 1, but it is still below that of 900


def test_half_precision_is_near(small: Path, photos: Path) -> None:
    full = vitrail.evaluate(small, photos, device="cpu", workers=0)
    half = vitrail.evaluate(small, photos, device="cpu", workers=0, precision="bf16")
    assert half.precision == "bf16"
    assert half.scores.loss == pytest.approx(full.scores.loss, rel=0.05)
    assert half.scores.loss != full.scores.loss


def test_another_picture_size_is_read(small: Path, photos: Path) -> None:
    report = vitrail.evaluate(small, photos, device="cpu", workers=0, img_size=48)
    assert "48 x 48" in report.preprocessing


def test_several_labels_to_a_picture_are_scored_for_the_classes_that_the_data_has(
    small: Path, photos: Path, tmp_path: Path
) -> None:
    from sklearn.metrics import average_precision_score

    paths, rng = readable(photos), np.random.default_rng(3)
    targets = rng.random((len(paths), 3)) < 0.5
    flowers = np.array(["Daisy", "rose", "tulip"])
    rows = [f"{path},{'|'.join(flowers[row])}" for path, row in zip(paths, targets, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    report = vitrail.evaluate(small, tmp_path / "table.csv", separator="|", device="cpu", workers=0)
    logits = vitrail.load(small).logits(paths)[:, [3, 2, 0]].double().numpy()
    theirs = average_precision_score(targets, logits, average=None)
    assert [one.name for one in report.scores.per_class] == ["daisy", "rose", "tulip"]
    assert [one.average_precision for one in report.scores.per_class] == pytest.approx(list(theirs), abs=1e-9)
    assert report.scores.score == pytest.approx(theirs.mean(), abs=1e-9)
    assert json.loads(json.dumps(report.to_json()))["mean_average_precision"] == pytest.approx(theirs.mean())
    assert "mAP" in report.text()


def test_a_share_needs_the_processes_to_share_with(small: Path, photos: Path) -> None:
    with pytest.raises(VitrailError, match="needs as many processes"):
        vitrail.evaluate(small, photos, device="cpu", workers=0, share=Share(0, 2))


def test_an_encoder_without_a_head_is_refused_by_what_it_is(tmp_path: Path) -> None:
    encoder = Classifier(vitrail.create("vit_ti16", img_size=16, patch_size=8, num_classes=0), classes=())
    folder = make_pictures(tmp_path / "pictures", each=2)
    with pytest.raises(VitrailError, match="an encoder without a head: probe it, or train one on it"):
        vitrail.evaluate(encoder, folder, workers=0)
