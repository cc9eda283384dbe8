"""The classifier: what it takes, what it says, and its folder, which is there whole or not at all."""

import io
import json
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import ConfigError, PictureError, VitrailError, WeightsError

NAMES = ["rose", "tulip", "daisy"]


@pytest.fixture
def classifier() -> vitrail.Classifier:
    torch.manual_seed(0)
    changes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 3}
    return vitrail.Classifier(vitrail.create("vit_ti16", zero_head=False, **changes).eval(), classes=NAMES)


@pytest.fixture
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def test_all_forms_of_a_picture_give_the_same_answer(classifier, picture, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    picture.save(path)
    array = np.asarray(picture)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    forms = [str(path), path, path.read_bytes(), io.BytesIO(path.read_bytes()), picture, array, tensor]
    forms += [array / 255.0, tensor.float() / 255, tensor.double() / 255]
    wanted = classifier.logits(picture)
    for form in forms:
        torch.testing.assert_close(classifier.logits(form), wanted, atol=1e-6, rtol=1e-6)
    several = classifier.logits(forms[:2] + forms[4:])
    torch.testing.assert_close(several, wanted.expand_as(several), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(classifier.logits(np.stack([array, array])), wanted.expand(2, -1), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(classifier.logits(torch.stack([tensor] * 3)), wanted.expand(3, -1), atol=1e-6, rtol=1e-6)


def test_a_large_photograph_is_the_same_picture_by_every_way_in(classifier, picture, tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    picture.resize((803, 605)).save(path)
    with open(path, "rb") as file:
        answers = [classifier.predict(source, top=3)[0] for source in (path, str(path), path.read_bytes(), file)]
    pixels = classifier.preprocessing.pixels(path)
    answers.append(classifier.predict_pixels(pixels[None], top=3)[0])
    assert answers == [answers[0]] * 5
    twice = classifier.predict_pixels(np.stack([pixels, pixels]))
    assert [answer.label for answer in twice] == [answers[0].label] * 2
    with pytest.raises(ValueError, match="not uint8"):
        classifier.predict_pixels(pixels[None] / 255)
    with pytest.raises(VitrailError, match="at least 1"):
        classifier.predict_pixels(pixels[None], top=0)


def test_a_prediction_is_the_softmax_of_the_logits(classifier, picture) -> None:
    (prediction,) = classifier.predict(picture, top=5)
    scores = classifier.logits(picture)[0].double().softmax(0)
    order = scores.argsort(descending=True).tolist()
    assert [label for label, _ in prediction.top] == [NAMES[i] for i in order]
    assert [score for _, score in prediction.top] == pytest.approx([scores[i].item() for i in order])
    assert (prediction.label, prediction.index) == (NAMES[order[0]], order[0])
    assert prediction.score == prediction.top[0][1]


def test_the_size_of_batches_changes_nothing_and_a_generator_will_do(classifier, picture) -> None:
    pictures = [picture.rotate(10 * i) for i in range(7)]
    wanted = classifier.logits(pictures, batch_size=7)
    torch.testing.assert_close(classifier.logits((p for p in pictures), batch_size=2), wanted, atol=1e-6, rtol=1e-5)
    assert classifier.predict([]) == []


def test_prediction_leaves_the_model_in_training_mode_if_it_was(classifier, picture) -> None:
    classifier.model.train()
    classifier.predict(picture)
    assert classifier.model.training


@pytest.mark.parametrize("bad", [b"", b"not a picture", 3, None, np.zeros((2, 2, 7), np.uint8), torch.zeros(5)])
def test_what_is_no_picture_is_refused_in_one_line(classifier, bad) -> None:
    with pytest.raises(VitrailError) as caught:
        classifier.predict(bad)
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_is_named(classifier, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_text("hello")
    with pytest.raises(PictureError, match=r"broken\.jpg"):
        classifier.predict(tmp_path / "broken.jpg")


def test_a_folder_comes_back_as_it_was_saved(classifier, picture, tmp_path: Path) -> None:
    folder = classifier.save(tmp_path / "deep" / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = vitrail.load(folder)
    assert again.classes == NAMES
    assert again.preprocessing == classifier.preprocessing
    assert again.model.config == classifier.model.config
    assert torch.equal(again.logits(picture), classifier.logits(picture))
    assert not again.model.training
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"positions": "learned_2d"}, "factorised 2-D positions"),
        ({"stride": 4}, "overlapping patches"),
        ({"pre_logits": 10}, "pre_logits"),
        ({"norm_eps": 1e-12}, "norm_eps=1e-12"),
        ({"head_dim": 16}, "head_dim"),
        ({"levels": (0, 1)}, "several levels"),
        ({"patch_norm": "both"}, "norm before the patch projection"),
        ({"conv_stem": (8,), "patch_size": 4}, "convolutional stem"),
    ],
)
def test_where_timm_has_no_such_architecture_saving_says_so(fields, reason: str, picture, tmp_path: Path) -> None:
    base = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 3}
    classifier = vitrail.Classifier(vitrail.create("vit_ti16", zero_head=False, **{**base, **fields}).eval())
    with pytest.warns(UserWarning, match=f"loads in vitrail alone: timm has no architecture with .*{reason}"):
        classifier.save(tmp_path / "model")
    again = vitrail.load(tmp_path / "model")
    assert again.model.config == classifier.model.config
    assert torch.equal(again.logits(picture), classifier.logits(picture))


def test_an_existing_folder_is_kept_unless_told_otherwise(classifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    classifier.model.reset_head(3)
    with pytest.raises(VitrailError, match="already there: choose another name, or save with overwrite=True"):
        classifier.save(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    classifier.save(tmp_path / "model", overwrite=True)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != before
    assert os.listdir(tmp_path) == ["model"]


def test_a_failed_save_leaves_nothing_behind(classifier, tmp_path: Path, monkeypatch) -> None:
    classifier.save(tmp_path / "model")
    monkeypatch.setattr("vitrail.classifier.save_file", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(VitrailError, match="bytes: disk full"):
        classifier.save(tmp_path / "model", overwrite=True)
    assert os.listdir(tmp_path) == ["model"]
    assert vitrail.load(tmp_path / "model").classes == NAMES


def test_another_number_of_classes_replaces_the_head_and_another_size_resizes(classifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "model")
    wider = vitrail.load(tmp_path / "model", num_classes=5, img_size=(48, 64))
    assert wider.classes == ["0", "1", "2", "3", "4"]
    assert wider.logits(np.zeros((100, 100, 3), np.uint8)).shape == (1, 5)
    assert wider.preprocessing.size == (48, 64)
    same = classifier.model.state_dict()["blocks.0.attn.qkv.weight"]
    assert torch.equal(wider.model.state_dict()["blocks.0.attn.qkv.weight"], same)


def test_a_model_without_head_says_so(classifier, picture, tmp_path: Path) -> None:
    classifier.save(tmp_path / "model")
    features = vitrail.load(tmp_path / "model", num_classes=0)
    with pytest.raises(VitrailError, match="no head, so it cannot predict"):
        features.predict(picture)
    assert features.logits(picture).shape == (1, 64)


def test_what_does_not_belong_together_is_refused(classifier) -> None:
    with pytest.raises(ConfigError, match="the model has 3 classes, but 2 names were given"):
        vitrail.Classifier(classifier.model, classes=["a", "b"])
    with pytest.raises(ConfigError, match=r"preprocessing makes \(64, 64\), the model reads \(32, 32\)"):
        vitrail.Classifier(classifier.model, vitrail.Preprocessing(size=64))


def test_a_folder_of_a_later_format_asks_for_an_upgrade(classifier, tmp_path: Path) -> None:
    folder = classifier.save(tmp_path / "model")
    plain = json.loads((folder / "config.json").read_text())
    plain["vitrail"]["format"] = 99
    (folder / "config.json").write_text(json.dumps(plain))
    with pytest.raises(WeightsError, match="has format 99, this vitrail reads 1: upgrade vitrail"):
        vitrail.load(folder)


def test_a_grey_model_reads_colour_pictures_and_the_other_way_round(tmp_path: Path, picture) -> None:
    changes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 2}
    grey = vitrail.Classifier(vitrail.create("vit_ti16", in_chans=1, zero_head=False, **changes).eval())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grey.save(tmp_path / "grey")
    again = vitrail.load(tmp_path / "grey")
    torch.testing.assert_close(again.logits(picture), grey.logits(picture.convert("L")))


def test_resnets_are_saved_and_loaded_too(tmp_path: Path, picture) -> None:
    model = vitrail.create("r26_small", width=32, zero_head=False).eval()
    classifier = vitrail.Classifier(model)
    with pytest.warns(UserWarning, match="timm has no architecture with this ResNet"):
        classifier.save(tmp_path / "r26")
    assert torch.equal(vitrail.load(tmp_path / "r26").logits(picture), classifier.logits(picture))


def test_predictions_from_several_threads_are_equal(classifier, picture) -> None:
    wanted = classifier.logits(picture)
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(classifier.logits(picture))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(one, wanted) for one in found)
