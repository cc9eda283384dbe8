"""A configuration that describes no model is refused in one line, which names the field and says what would do."""

import re
from typing import Any

import pytest

from vitrail.errors import ConfigError, VitrailError
from vitrail.model import ResNetConfig, ViTConfig, create

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"img_size": 0}, "img_size=0 .*positive"),
    ({"img_size": -224}, "img_size=-224 .*positive"),
    ({"img_size": 224.0}, r"img_size=224\.0 .*whole"),
    ({"img_size": "224"}, "img_size='224' .*whole"),
    ({"img_size": True}, "img_size=True .*whole"),
    ({"img_size": (224, 224, 3)}, r"img_size=\(224, 224, 3\) .*pair"),
    ({"img_size": None}, "img_size=None "),
    ({"img_size": 225}, r"img_size=\(225, 225\) .*nearest size that fits is 224 x 224"),
    ({"img_size": 8}, r"img_size=\(8, 8\) .*patches of \(16, 16\).*16 x 16"),
    ({"img_size": (224, 230)}, "nearest size that fits is 224 x 224"),
    ({"patch_size": 0}, "patch_size=0 "),
    ({"stride": 17}, r"stride=\(17, 17\) is larger than patch_size=\(16, 16\)"),
    ({"stride": 0}, "stride=0 "),
    ({"stride": 12, "img_size": 224}, r"stride \(12, 12\): the nearest size that fits is 220 x 220"),
    ({"in_chans": 0}, "in_chans=0 .*greater than 0"),
    ({"in_chans": 3.0}, r"in_chans=3\.0 .*whole number"),
    ({"patch_bias": 1}, "patch_bias=1 .*true or false"),
    ({"patch_norm": "befor"}, "patch_norm='befor' .*did you mean 'before'"),
    ({"conv_stem": "ab"}, "conv_stem='ab' .*list of whole numbers"),
    ({"conv_stem": (8, 0)}, r"conv_stem=\(8, 0\) .*at least 1"),
    ({"conv_stem": (8,), "backbone": {}}, "backbone and conv_stem"),
    ({"backbone": "r50"}, "backbone='r50'"),
    ({"backbone": {"layrs": [1]}}, "no field 'layrs'; did you mean 'layers'"),
    ({"backbone": {"in_chans": 1}}, "in_chans=3, but the backbone has in_chans=1"),
    ({"registers": -1}, "registers=-1 "),
    ({"distilled": True, "class_token": False, "pool": "mean"}, "distilled=True .*class_token"),
    ({"distilled": True, "pool": "mean"}, "distilled .*pool .*'mean'"),
    ({"positions": "learnt"}, "positions='learnt' .*did you mean 'learned'"),
    ({"positions": "sincos_2d", "embed_dim": 30, "num_heads": 1}, "sincos_2d .*embed_dim .*30"),
    ({"positions": "sincos_2d", "embed_dim": 4, "num_heads": 1}, "sincos_2d .*embed_dim"),
    ({"positions": "learned_2d", "embed_dim": 15, "num_heads": 1}, "learned_2d .*embed_dim.* 15"),
    ({"positions": "sincos_1d", "embed_dim": 15, "num_heads": 1}, "sincos_1d .*embed_dim.* 15"),
    ({"rope": True, "embed_dim": 12, "num_heads": 2}, "rope .*head_dim .*6"),
    ({"rope_theta": 0}, r"rope_theta=0\.0 .*greater than 0"),
    ({"embed_dim": 0}, "embed_dim=0 "),
    ({"embed_dim": 100}, "embed_dim=100 .*num_heads=12"),
    ({"depth": 0}, "depth=0 "),
    ({"depth": "12"}, "depth='12' .*whole number"),
    ({"num_heads": 0}, "num_heads=0 "),
    ({"head_dim": 0}, "head_dim=0 "),
    ({"head_dim": 4.5}, r"head_dim=4\.5 "),
    ({"mlp_ratio": 0}, r"mlp_ratio=0\.0 "),
    ({"mlp_ratio": 0.001}, r"mlp_ratio=0\.001 .*embed_dim=768"),
    ({"mlp": "swiglu", "mlp_ratio": 1 / 256}, "SwiGLU .*mlp_ratio"),
    ({"act": "GELU"}, "act='GELU' .*'gelu'"),
    ({"norm": "rmsnorm"}, "norm='rmsnorm' .*'rms'"),
    ({"norm_eps": float("nan")}, "norm_eps=nan .*finite"),
    ({"attn_scale": 0}, r"attn_scale=0\.0 "),
    ({"attn_scale": float("inf")}, "attn_scale=inf .*finite"),
    ({"layer_scale": "1e-5"}, "layer_scale='1e-5' .*number"),
    ({"pool": "cls"}, "pool='cls' .*'token'"),
    ({"class_token": False}, "pool='token' .*class_token=True"),
    ({"class_token": False, "pool": "token_mean"}, "pool='token_mean' .*class_token=True"),
    ({"pool": "map", "final_norm": "pooled"}, "final_norm='pooled' .*pool='map'"),
    ({"pool": "map", "embed_dim": 100, "head_dim": 8}, "pool='map' .*embed_dim=100"),
    ({"levels": 3}, "levels=3 .*list"),
    ({"levels": (12,)}, r"levels=\(12,\) .*0 to 11"),
    ({"levels": (-1,)}, r"levels=\(-1,\) .*0 to 11"),
    ({"levels": (3, 3)}, r"levels=\(3, 3\) .*different"),
    ({"levels": (3,), "pool": "map"}, "levels .*pool"),
    ({"pre_logits": 0}, "pre_logits=0 "),
    ({"pre_logits": 8, "distilled": True}, "pre_logits and distilled"),
    ({"num_classes": -1}, "num_classes=-1 "),
    ({"dropout": 1}, r"dropout=1\.0 .*\[0, 1\)"),
    ({"attn_dropout": -0.1}, r"attn_dropout=-0\.1 "),
    ({"head_dropout": 1.5}, r"head_dropout=1\.5 "),
    ({"drop_path": 1.0}, r"drop_path=1\.0 "),
    ({"drop_path": (0.1, 0.2)}, "drop_path has 2 rates for 12 blocks"),
    ({"drop_path": (0.1,) * 11 + (2.0,)}, r"drop_path=2\.0 "),
    ({"drop_path": None}, "drop_path=None "),
    ({"init": "papers"}, "init='papers' .*did you mean 'paper'"),
    ({"head_bias": "priors"}, "head_bias='priors' .*'prior'"),
    ({"zero_head": "yes"}, "zero_head='yes' .*true or false"),
]
REFUSED_RESNETS: list[tuple[dict[str, Any], str]] = [
    ({"img_size": 0}, "img_size=0 "),
    ({"layers": 3}, "layers=3 .*list"),
    ({"layers": (1, 0)}, r"layers=\(1, 0\) .*at least 1"),
    ({"layers": (1,) * 6}, "layers=.*at most 5"),
    ({"layers": ()}, r"layers=\(\).*preact=False"),
    ({"width": 60}, "width=60 .*groups=32"),
    ({"groups": 0}, "groups=0 "),
    ({"padding": "valid"}, "padding='valid' .*'symmetric', 'same'"),
    ({"weight_eps": 0}, r"weight_eps=0\.0 "),
    ({"weight_eps_on": "varianse"}, "weight_eps_on='varianse' .*did you mean 'variance'"),
    ({"preact": None}, "preact=None .*true or false"),
    ({"num_classes": -1}, "num_classes=-1 "),
]


def said_by(kind: Any, args: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        kind(**args)
    return str(caught.value)


@pytest.mark.parametrize(("args", "words"), REFUSED, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_a_vit_that_cannot_be_is_refused_in_one_line_that_names_the_field(args: dict[str, Any], words: str) -> None:
    line = said_by(ViTConfig, args)
    assert re.search(words, line), line
    assert "\n" not in line


@pytest.mark.parametrize(("args", "words"), REFUSED_RESNETS, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_a_resnet_that_cannot_be_is_refused_in_one_line_that_names_the_field(args: dict[str, Any], words: str) -> None:
    line = said_by(ResNetConfig, args)
    assert re.search(words, line), line
    assert "\n" not in line


@pytest.mark.parametrize(
    "make",
    [lambda d: ViTConfig.from_json(d), lambda d: ViTConfig().replace(**d), lambda d: create("vit_b16", **d)],
    ids=["from_json", "replace", "create"],
)
def test_a_misspelt_field_is_answered_with_the_nearest(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"^ViTConfig has no field 'embed_dims'; did you mean 'embed_dim'\?$"):
        make({"embed_dims": 64})


def test_a_field_that_resembles_none_is_refused_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"^ResNetConfig has no field 'zzz'$"):
        ResNetConfig.from_json({"zzz": 1})


def test_a_refusal_is_an_error_for_the_user_and_a_value_error_for_the_programmer() -> None:
    assert issubclass(ConfigError, VitrailError)
    assert issubclass(ConfigError, ValueError)


def test_a_resnet_refuses_a_patch_size() -> None:
    with pytest.raises(ConfigError, match="patch"):
        create("r50", img_size=64, patch_size=16)
