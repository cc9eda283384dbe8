"""The zoo: exact sizes, exact arithmetic, every spelling, and shapes on the way from pixels to logits."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrail.errors import ConfigError, VitrailError
from vitrail.model import ResNet, ViT, ViTConfig, create
from vitrail.model.walk import flops, parameters, tokens, walk
from vitrail.model.zoo import configure, find, models, zoo

# with 1000 classes at 224 pixels, as google-research/vision_transformer's own tests and timm count them
PARAMETERS = {
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_s32": 22_878_952,
    "vit_b8": 86_576_872,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_l32": 306_535_400,
    "vit_h14": 632_045_800,
    "r_vit_ti16": 6_337_704,
    "r26_vit_s32": 36_431_912,
    "r26_vit_b32": 101_383_976,
    "r50_vit_b16": 98_659_112,
    "r50_vit_l32": 328_994_856,
    "vit_b16_gap": 86_566_120,
    "vit_b32_gap": 88_222_696,
    "vit_s16_gap": 22_049_896,
}
# billions of multiply-accumulates and parameters that torchvision publishes with its weights
TORCHVISION = {
    "vit_b16": (17.564, 86_567_656),
    "vit_b32": (4.409, 88_224_232),
    "vit_l16": (61.555, 304_326_632),
    "vit_l32": (15.378, 306_535_400),
    "vit_b16_384": (55.484, 86_859_496),
    "vit_l16_512": (361.986, 305_174_504),
    "vit_h14_518": (1016.717, 633_470_440),
}
MAP = ViTConfig(embed_dim=384, num_heads=6, class_token=False, pool="map")
COUNTED = [
    "vit_ti16",
    "vit_b8",
    "vit_b16_384",
    "vit_l32_in21k",
    "vit_s16_gap",
    "deit_b16_distilled",
    "deit3_m16",
    "r_vit_ti16_384",
    "r50_vit_b16",
    "r50",
    "r26_small",
    "dinov2_g14_reg",
    MAP,
]


def on_meta(name: str | ViTConfig) -> ViT | ResNet:
    with torch.device("meta"):
        return create(name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_has_exactly_the_published_number_of_parameters(name: str) -> None:
    assert sum(p.numel() for p in on_meta(name).parameters()) == PARAMETERS[name]
    assert parameters(find(name).config) == PARAMETERS[name]


@pytest.mark.parametrize("name", TORCHVISION)
def test_arithmetic_and_size_are_those_that_torchvision_publishes(name: str) -> None:
    billions, count = TORCHVISION[name]
    assert round(flops(find(name).config) / 2e9, 3) == billions
    assert parameters(find(name).config) == count


@pytest.mark.parametrize("name", COUNTED, ids=lambda name: name if isinstance(name, str) else "attention pooling")
def test_the_arithmetic_in_closed_form_is_what_torch_counts(name: str | ViTConfig) -> None:
    model = on_meta(name).requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        features = model.forward_features(torch.empty(1, 3, *model.config.img_size, device="meta"))
        model.forward_head(features)
    assert flops(model.config) == counter.get_total_flops()
    assert tokens(model.config) == (features.shape[1] if isinstance(model, ViT) else 0)


@pytest.mark.parametrize("name", zoo())
def test_every_row_counts_itself_and_survives_json(name: str) -> None:
    config = zoo()[name].config
    assert type(config).from_json(config.to_json()) == config
    assert parameters(config) == sum(p.numel() for p in on_meta(name).parameters())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("vit_b16", "vit_b16"),
        ("ViT-B/16", "vit_b16"),
        ("vit-b/16", "vit_b16"),
        ("B/16", "vit_b16"),
        ("ViT-B_16", "vit_b16"),
        ("ViT-L_32", "vit_l32"),
        ("vit_b_16", "vit_b16"),
        ("R50+ViT-B/16", "r50_vit_b16"),
        ("R50+ViT-B_16", "r50_vit_b16"),
        ("R26+ViT-S/32", "r26_vit_s32"),
        ("R+ViT-Ti/16", "r_vit_ti16"),
        ("vit_base_patch16_224", "vit_b16"),
        ("vit_base_patch16_384", "vit_b16_384"),
        ("vit_base_patch16_224.augreg_in21k", "vit_b16"),
        ("vit_base_patch16_224.augreg2_in21k_ft_in1k", "vit_b16"),
        ("vit_base_patch16_224_in21k", "vit_b16_in21k"),
        ("vit_base_r50_s16_224", "r50_vit_b16"),
        ("deit_base_distilled_patch16_384", "deit_b16_distilled_384"),
        ("deit3_medium_patch16_224", "deit3_m16"),
        ("vit_small_patch14_dinov2.lvd142m", "dinov2_s14"),
        ("vit_giant_patch14_reg4_dinov2", "dinov2_g14_reg"),
        ("resnetv2_50x1_bit", "r50"),
    ],
)
def test_the_papers_spelling_and_timms_find_the_same_model(spelling: str, name: str) -> None:
    assert find(spelling) is zoo()[name]


def test_every_spelling_of_every_row_finds_that_row() -> None:
    for row in zoo().values():
        for spelling in (row.name, row.title, row.timm, row.alias):
            assert spelling is None or find(spelling) is row, spelling


@pytest.mark.parametrize("name", ["vit_b16_512", "ViT-B/16-512", "ViT-B_16_512"])
def test_a_size_after_the_name_is_the_size_of_the_pictures(name: str) -> None:
    row = find(name)
    assert row.config == ViTConfig(img_size=512)
    assert row.name == "vit_b16_512"
    assert row.timm is None


def test_a_size_after_the_name_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(ConfigError, match="nearest size that fits is 496 x 496"):
        find("vit_b16_500")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("vit_bb16", "vit_b16"),
        ("vit_b17", "vit_b16"),
        ("deit_b16_destilled", "deit_b16_distilled"),
        ("vit_base_patch61_224", "vit_base_patch16_224"),
        ("dinov2_b14_regs", "dinov2_b14_reg"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(VitrailError, match=rf"no model named '{wrong}': did you mean '{meant}'\?.*vitrail models") as e:
        create(wrong)
    assert "\n" not in str(e.value)


def test_the_larger_of_two_giants_is_not_answered_with_the_smaller() -> None:
    """ViT-g/14 has a billion parameters, ViT-G/14 nearly two: capitals are all that tells them apart."""
    assert find("ViT-g/14").name == "vit_g14"
    assert find("ViT-G/14").name == find("ViT-G_14").name == find("vit_gigantic_patch14_224").name == "vit_bigg14"
    assert parameters(find("ViT-g/14").config) == pytest.approx(1.01e9, rel=0.01)
    assert parameters(find("ViT-G/14").config) == pytest.approx(1.84e9, rel=0.01)


def test_a_pattern_lists_the_rows_that_match() -> None:
    names = [row.name for row in models("deit*")]
    assert {"deit_ti16", "deit_b16_distilled_384", "deit3_h14"} <= set(names)
    assert all(name.startswith("deit") for name in names)
    assert models("no such*") == []
    assert len(models()) == len(zoo())


def test_fields_given_to_create_change_the_model() -> None:
    with torch.device("meta"):
        model = create("vit_b16", num_classes=10, img_size=384)
    assert model.config == ViTConfig(num_classes=10, img_size=384)
    assert model.head.weight.shape == (10, 768)
    assert model.pos_embed.shape == (1, 1 + 24 * 24, 768)


def test_the_channels_of_a_hybrid_change_in_its_backbone_too() -> None:
    config = configure("r_vit_ti16", in_chans=1, img_size=32)
    assert config.backbone.in_chans == 1
    assert create(config)(torch.zeros(1, 1, 32, 32)).shape == (1, 1000)


def test_the_walk_through_vit_b16_is_the_papers() -> None:
    shapes = [step.shape for step in walk(find("vit_b16").config)]
    stops = [(224, 224, 3), (14, 14, 768), (197, 768), (12, 197, 197), (197, 3072), (768,), (1000,)]
    assert [shape for shape in shapes if shape in stops and shape != (197, 768)] == [
        s for s in stops if s != (197, 768)
    ]
    assert shapes.index((14, 14, 768)) < shapes.index((197, 768)) < shapes.index((12, 197, 197))
    assert max(step.times for step in walk(find("vit_b16").config)) == 12


def test_the_walk_through_a_hybrid_shrinks_by_sixteen() -> None:
    shapes = [step.shape for step in walk(find("r50_vit_b16").config)]
    assert shapes[:6] == [(224, 224, 3), (56, 56, 64), (56, 56, 256), (28, 28, 512), (14, 14, 1024), (14, 14, 768)]
