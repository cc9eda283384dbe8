"""The written forms of a preprocessing: ours, timm's, and transformers', whose own processors give the same pixels."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.errors import ConfigError
from vitrail.pictures import Preprocessing

INTERPOLATIONS = ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


TRANSFORMERS_CASES = [
    Preprocessing(224, "squash", 1.0, "bilinear"),
    Preprocessing((192, 160), "squash", 1.0, "bicubic", **IMAGENET),
    Preprocessing(224, "squash", 0.875, "bicubic", **IMAGENET),
    Preprocessing(224, "crop", 1.0, "bicubic", **IMAGENET),
    Preprocessing(224, "crop", 0.875, "bicubic", **IMAGENET),
    Preprocessing(224, "crop", 0.9, "bilinear"),
    Preprocessing(96, "crop", 0.95, "lanczos"),
]


@pytest.mark.parametrize("chosen", TRANSFORMERS_CASES, ids=lambda chosen: chosen.describe())
@pytest.mark.parametrize("size", [(640, 480), (301, 301), (50, 80)])
def test_pixels_are_those_of_transformers(chosen: Preprocessing, size: tuple[int, int]) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
    config = json.loads(json.dumps(chosen.to_transformers()))
    processor = getattr(transformers, config["image_processor_type"] + "Pil").from_dict(config)
    picture = noise(*size)
    theirs = processor(picture, return_tensors="np")["pixel_values"][0]
    ours = chosen(picture)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("chosen", TRANSFORMERS_CASES[:6], ids=lambda chosen: chosen.describe())
def test_the_default_processor_of_transformers_differs_by_a_grey_level_or_two(chosen: Preprocessing) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
    config = chosen.to_transformers()
    processor = getattr(transformers, config["image_processor_type"]).from_dict(config)
    y, x = np.mgrid[:480, :640]
    smooth = Image.fromarray(np.uint8(np.stack([127 + 120 * np.sin(x / (20 + 9 * c) + y / 31) for c in range(3)], -1)))
    theirs = processor(smooth, return_tensors="pt")["pixel_values"][0].numpy()
    levels = np.abs(chosen(smooth) - theirs) * np.reshape(chosen.std, (3, 1, 1)) * 255
    assert levels.max() <= 2.01


def test_a_crop_that_cannot_be_centred_lies_one_pixel_beside_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
    chosen = Preprocessing(32, "crop", 1.0, "bicubic")
    picture = noise(35, 32)  # three columns too many: timm and torchvision drop two on the left, transformers one
    theirs = transformers.CLIPImageProcessorPil.from_dict(chosen.to_transformers())(picture, return_tensors="np")
    np.testing.assert_allclose(chosen(picture)[:, :, :-1], theirs["pixel_values"][0][:, :, 1:], rtol=0, atol=2e-6)


channels = st.sampled_from([1, 3])
valid = channels.flatmap(
    lambda count: st.builds(
        Preprocessing,
        st.tuples(st.integers(1, 600), st.integers(1, 600)) | st.integers(1, 600),
        st.sampled_from(["crop", "pad", "squash"]),
        st.floats(0.05, 1.0),
        st.sampled_from(INTERPOLATIONS),
        st.tuples(*[st.floats(-2, 2)] * count),
        st.tuples(*[st.floats(0.01, 2)] * count),
    )
)


@given(valid)
def test_what_is_written_is_read_back(chosen: Preprocessing) -> None:
    assert Preprocessing.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert Preprocessing.from_timm(json.loads(json.dumps(chosen.to_timm()))) == chosen
    assert len(chosen.describe().splitlines()) == 1


@given(valid)
def test_what_transformers_can_express_means_the_same_when_read_back(chosen: Preprocessing) -> None:
    height, width = chosen.size
    if chosen.channels == 1 or chosen.fit == "pad" or (chosen.fit == "crop" and height != width):
        with pytest.raises(ConfigError, match="transformers"):
            chosen.to_transformers()
        return
    config = chosen.to_transformers()
    back = Preprocessing.from_transformers(json.loads(json.dumps(config)))
    assert replace(back, crop_pct=1.0) == replace(chosen, crop_pct=1.0)
    assert back._large == chosen._large
    assert back.to_transformers() == config


def test_every_pair_of_resize_and_crop_has_a_ratio() -> None:
    for crop in (16, 97, 224, 256, 384, 518):
        for edge in range(crop, 2 * crop + 1):
            config = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": edge}, "crop_size": crop}
            assert Preprocessing.from_transformers(config)._large == (edge, edge)


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown key 'sizes'"):
        Preprocessing.from_json({"sizes": 224})
    with pytest.raises(ConfigError, match="not list"):
        Preprocessing.from_json([1])  # type: ignore[arg-type]


def test_a_config_of_timm_is_read_with_the_defaults_of_timm() -> None:
    config = pytest.importorskip("timm.data", reason="compares with timm, which is not installed")
    for given_config in (
        {"input_size": (3, 96, 128), "url": "", "num_classes": 1000},
        {"crop_mode": "squash", "crop_pct": None, "fixed_input_size": True},
        {
            "input_size": [3, 384, 384],
            "crop_pct": 1.0,
            "interpolation": "bilinear",
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
        },
    ):
        resolved = config.resolve_data_config(pretrained_cfg=given_config)
        expected = {key: list(value) if isinstance(value, tuple) else value for key, value in resolved.items()}
        assert Preprocessing.from_timm(given_config).to_timm() == expected
    for wrong in (
        {"crop_mode": "corner"},
        {"input_size": 224},
        {"input_size": (1, 28, 28)},
        {"interpolation": "random"},
    ):
        with pytest.raises(ConfigError):
            Preprocessing.from_timm(wrong)


def test_well_known_processors_of_transformers_are_understood() -> None:
    half, clip = (0.5, 0.5, 0.5), (0.48145466, 0.4578275, 0.40821073)
    cases: list[tuple[dict[str, Any], Preprocessing]] = [
        (
            {"feature_extractor_type": "ViTFeatureExtractor", "do_resize": True, "size": 224, "resample": 2}
            | {"do_normalize": True, "image_mean": half, "image_std": half},
            Preprocessing(224, "squash", 1.0, "bilinear"),
        ),
        ({"image_processor_type": "ViTImageProcessorFast"}, Preprocessing(224, "squash", 1.0, "bilinear")),
        (
            {"image_processor_type": "DeiTImageProcessor", "size": {"height": 256, "width": 256}, "crop_size": 224},
            Preprocessing(224, "squash", 0.875, "bicubic"),
        ),
        (
            {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "image_mean": half}
            | {"crop_size": {"height": 224, "width": 224}, "image_std": half, "do_center_crop": True},
            Preprocessing(224, "crop", 0.875, "bicubic"),
        ),
        (
            {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "do_center_crop": True},
            Preprocessing(224, "crop", 1.0, "bicubic", clip, (0.26862954, 0.26130258, 0.27577711)),
        ),
        (
            {"image_processor_type": "ViTImageProcessor", "do_normalize": False},
            Preprocessing(224, "squash", 1.0, "bilinear", (0, 0, 0), (1, 1, 1)),
        ),
        ({"image_processor_type": "SiglipImageProcessor"}, Preprocessing(224, "squash", 1.0, "bicubic")),
    ]
    for config, expected in cases:
        assert Preprocessing.from_transformers(config) == expected


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "Beit", "CLIP", "Bit", "Siglip"])
def test_where_a_file_is_silent_the_processor_speaks(kind: str) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
    name = f"{kind}ImageProcessor"
    complete = getattr(transformers, name + "Pil")().to_dict()
    assert Preprocessing.from_transformers({"image_processor_type": name}) == Preprocessing.from_transformers(complete)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"do_rescale": False}, "do_rescale=False cannot be expressed"),
        ({"do_resize": False}, "do_resize=False"),
        ({"rescale_factor": 1 / 127.5}, "rescale_factor"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"do_pad": True}, "do_pad"),
        ({"size": {"shortest_edge": 224}}, "another size"),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 192}},
            "square",
        ),
        ({"size": {"shortest_edge": 200}, "do_center_crop": True, "crop_size": 224}, "one ratio"),
        ({"size": {"height": 300, "width": 224}, "do_center_crop": True, "crop_size": 224}, "one ratio"),
        ({"size": {"max_height": 9}}, "no height and width"),
        ({"size": {"height": "a", "width": 3}}, "whole pixels"),
        ({"resample": 9}, "codes 0 to 5"),
        ({"image_processor_type": "OwnImageProcessor", "size": {"height": 9, "width": 9}}, "does not say its resample"),
    ],
)
def test_what_cannot_be_expressed_is_refused_in_one_line(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Preprocessing.from_transformers({"image_processor_type": "ViTImageProcessor", **config})
    assert len(str(caught.value).splitlines()) == 1
