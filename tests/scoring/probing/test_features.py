"""Features: what the head would read, computed once, in the order of the pictures, unreadable ones left out."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.scoring.probing.making import make_folder
from vitrail.data.named import from_named
from vitrail.data.opening import open_source
from vitrail.scoring.feature_cache import FeatureStore
from vitrail.scoring.features import Extractor, extract, headless

MODELS = {
    "token": {"pool": "token"},
    "mean": {"pool": "mean", "final_norm": "pooled"},
    "map": {"pool": "map"},
    "pre_logits": {"pre_logits": 24},
    "distilled": {"distilled": True},
    "no head": {"num_classes": 0},
}


def classifier(**changes: object) -> vitrail.Classifier:
    torch.manual_seed(1)
    small = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 4}
    return vitrail.Classifier(vitrail.create("vit_ti16", **(small | changes)))


def resnet() -> vitrail.Classifier:
    torch.manual_seed(1)
    return vitrail.Classifier(vitrail.create("resnetv2_50x1_bit", img_size=32, layers=(1, 1, 1, 1), num_classes=4))


@pytest.mark.parametrize("kind", MODELS)
def test_pooled_features_are_what_the_head_reads(kind: str) -> None:
    model = classifier(**MODELS[kind]).model.eval()
    seen = []
    if isinstance(model.head, torch.nn.Linear):
        model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    pictures = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        logits = model(pictures)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        features = Extractor(vitrail.Classifier(model))(pictures)
    if kind == "distilled":
        both = model.forward_features(pictures)[:, :2]
        torch.testing.assert_close(features, both.mean(dim=1))
    else:
        torch.testing.assert_close(features, seen[0] if seen else logits)
    assert model.state_dict().keys() == before.keys()
    with torch.no_grad():
        assert torch.equal(model(pictures), logits)


def test_a_resnet_gives_the_mean_of_its_last_map() -> None:
    found = resnet()
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = found.model.eval().forward_features(pictures).mean(dim=(2, 3))
        torch.testing.assert_close(Extractor(found)(pictures), expected)
        torch.testing.assert_close(Extractor(found, "mean")(pictures), expected)
    with pytest.raises(vitrail.VitrailError, match="no class token"):
        Extractor(found, "cls")


def test_class_tokens_of_several_blocks_are_joined_as_dinov2_does(tiny) -> None:
    pictures = torch.randn(2, 3, 16, 16)
    model = tiny.model.eval()
    with torch.no_grad():
        tokens = model.forward_intermediates(pictures, [1, 2], norm=True).tokens
        expected = torch.cat([tokens[1][:, 0], tokens[2][:, 0], tokens[2][:, 1:].mean(dim=1)], dim=1)
        torch.testing.assert_close(Extractor(tiny, "cls+mean", 2)(pictures), expected)
        torch.testing.assert_close(Extractor(tiny, "cls")(pictures), Extractor(tiny)(pictures))
    for wrong in (("pooled", 2), ("cls", 4), ("cls", 0), ("median", 1)):
        with pytest.raises(vitrail.VitrailError):
            Extractor(tiny, *wrong)


def test_an_exception_gives_the_head_back(tiny) -> None:
    head = tiny.model.head
    with pytest.raises(ZeroDivisionError), headless(tiny.model):
        raise ZeroDivisionError
    assert tiny.model.head is head


def test_unreadable_pictures_are_named_and_shift_nothing(tiny, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", {"red": 4, "blue": 5})
    clean = open_source(folder)
    whole = extract(clean.all(), Extractor(tiny), batch_size=4, workers=0, cache=False)
    (folder / "blue" / "02.png").write_text("not a picture")
    source = open_source(folder)
    found = extract(source.all(), Extractor(tiny), batch_size=4, workers=0, cache=False)
    assert [bad.name for bad in found.bad] == ["blue/02.png"]
    assert found.valid.tolist() == [True, True, False, True, True, True, True, True, True]
    np.testing.assert_array_equal(found.vectors[found.valid], whole.vectors[found.valid])
    assert not found.vectors[2].any()


def test_features_are_kept_until_anything_changes(tiny, tmp_path: Path, own_cache: Path) -> None:
    folder = make_folder(tmp_path / "photos", {"red": 3, "blue": 3})

    def kept(model: vitrail.Classifier = tiny, kind: str = "pooled", **options: object) -> bool:
        return extract(open_source(folder).all(), Extractor(model, kind), workers=0, **options).kept

    assert not kept()
    assert kept()
    assert not kept(cache=False)
    assert not kept(kind="mean")
    other = vitrail.Classifier(tiny.model, vitrail.Preprocessing(size=(16, 16), crop_pct=1.0), tiny.classes)
    assert not kept(other)
    assert not kept(classifier())
    again = classifier(num_classes=7)  # the head has no part in it
    again.model.load_state_dict(
        {n: t for n, t in classifier().model.state_dict().items() if "head" not in n}, strict=False
    )
    assert kept(again)
    Image.new("RGB", (24, 20)).save(folder / "red" / "00.png")
    assert not kept()
    (folder / "red" / "00.png").rename(folder / "red" / "10.png")
    assert not kept()
    assert kept()
    first = extract(open_source(folder).all(), Extractor(tiny), workers=0)
    computed = extract(open_source(folder).all(), Extractor(tiny), workers=0, cache=False)
    np.testing.assert_array_equal(first.vectors, computed.vectors)
    for place in own_cache.iterdir():  # damaged: as good as absent
        (place / "vectors.npy").write_bytes(b"half")
    assert not kept()
    assert kept()


def test_pixels_in_memory_are_known_by_their_content(tiny) -> None:
    digits = from_named("digits")
    some = digits.all().__class__(digits, "some", np.arange(40))
    assert not extract(some, Extractor(tiny), workers=0).kept
    assert extract(some, Extractor(tiny), workers=0).kept
    digits.reader.array[3] = 255 - digits.reader.array[3]
    assert not extract(some, Extractor(tiny), workers=0).kept


def test_what_is_kept_stays_small(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, largest=3 * 4500)
    for number in range(5):
        store.write(f"mark{number}", np.full((100, 10), number, np.float32), np.ones(100, bool), ())
        os.utime(tmp_path / f"mark{number}", (number, number))
        if number == 2:
            assert store.read("mark0") is not None  # used, and so the newest
    assert store.read("mark1") is None
    assert store.read("mark0") is not None
    assert store.read("mark4")[0][0, 0] == 4
    assert {path.name for path in tmp_path.iterdir()} <= {f"mark{number}" for number in (0, 3, 4)}


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = FeatureStore(tmp_path / "file" / "below")
    store.write("mark", np.zeros((2, 2), np.float32), np.ones(2, bool), ())
    assert store.read("mark") is None
