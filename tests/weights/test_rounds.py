"""Any model, through any format that can hold it, and back: the same logits; what a format cannot hold, it says."""

import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from vitrail.errors import ConfigError, WeightsError

FILES = {"vitrail": "x", "timm": "x", "transformers": "x", "torchvision": "x.pth", "google": "x.npz"}

options = {
    "img_size": st.sampled_from([(32, 32), (32, 48)]),
    "patch_size": st.sampled_from([(8, 8), (16, 16), (16, 8)]),
    "in_chans": st.sampled_from([3, 3, 1]),
    "class_token": st.sampled_from([True, True, False]),
    "registers": st.sampled_from([0, 0, 1, 3]),
    "distilled": st.sampled_from([False, False, False, True]),
    "positions": st.sampled_from(["learned", "learned", "sincos_2d", "learned_2d", "none"]),
    "prefix_positions": st.sampled_from(["all", "all", "class", "none"]),
    "rope": st.sampled_from([False, False, False, True]),
    "relative_bias": st.sampled_from([False, False, False, True]),
    "num_heads": st.sampled_from([1, 2, 4]),
    "head_dim": st.sampled_from([None, None, None, 8]),
    "mlp_ratio": st.sampled_from([4.0, 2.0, 2.75]),
    "mlp": st.sampled_from(["plain", "plain", "swiglu"]),
    "act": st.sampled_from(["gelu", "gelu", "gelu_tanh", "gelu_tanh", "quick_gelu", "relu"]),
    "norm": st.sampled_from(["layer", "layer", "layer", "rms"]),
    "norm_eps": st.sampled_from([1e-6, 1e-6, 1e-5, 1e-12]),
    "qkv_bias": st.sampled_from([True, True, False]),
    "qk_norm": st.sampled_from([False, False, True]),
    "layer_scale": st.sampled_from([None, None, 0.5]),
    "pre_norm": st.sampled_from([False, False, True]),
    "patch_bias": st.sampled_from([True, True, False]),
    "pool": st.sampled_from(["token", "token", "mean", "map", "token_mean"]),
    "final_norm": st.sampled_from(["tokens", "tokens", "pooled", "none"]),
    "pre_logits": st.sampled_from([None, None, 24]),
    "num_classes": st.sampled_from([5, 5, 0]),
}
# a few choices at a time, so that most models are near what the formats can hold
choices = st.fixed_dictionaries({}, optional=options).map(
    lambda found: dict(sorted(found.items(), key=lambda item: crc32(repr(item).encode()))[:6])
)
HELD = dict.fromkeys(FILES, 0)


def make(fields: dict) -> vitrail.Classifier:
    torch.manual_seed(0)
    base = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    model = vitrail.create("vit_ti16", zero_head=False, **{**base, **fields}).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            torch.nn.init.normal_(tensor, mean=centre, std=0.1)
    return vitrail.Classifier(model, vitrail.Preprocessing(size=model.config.img_size, fit="squash", crop_pct=1.0,
                              mean=(0.5,) * model.config.in_chans, std=(0.5,) * model.config.in_chans))  # fmt: skip


def refusal(act: Callable[[], object]) -> str | None:
    """What a format says that it cannot hold, if it says so."""
    try:
        act()
    except WeightsError as error:
        return str(error)
    return None


@pytest.mark.parametrize("to", FILES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(fields=choices)
def test_a_format_holds_a_model_exactly_or_says_what_it_cannot_hold(to: str, fields: dict) -> None:
    if to == "google":
        fields = {"act": "gelu_tanh", **fields}  # the only one that its tree knows
    try:
        classifier = make(fields)
    except ConfigError:
        return
    config = classifier.model.config
    pictures = torch.randn(2, config.in_chans, *config.img_size, generator=torch.Generator().manual_seed(1))
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that timm has no such architecture
        classifier.save(Path(folder) / "source")
        target = Path(folder) / FILES[to]
        reason = refusal(lambda: vitrail.convert(Path(folder) / "source", target, to))
        if reason is not None:
            assert "\n" not in reason
            assert any(word in reason for word in ("cannot hold", "has no architecture"))
            assert not target.exists()
            assert to != "vitrail"
            return
        HELD[to] += 1
        known = {"num_heads": config.num_heads, "norm_eps": config.norm_eps, "act": config.act}
        if to in ("torchvision", "google"):
            known["img_size"] = config.img_size
        if target.is_dir():
            known = {}
        again = vitrail.weights.read_checkpoint(target, **known) if to not in ("vitrail", "timm") else None
        model = again.build() if again is not None else vitrail.load(target).model
        with torch.no_grad():
            torch.testing.assert_close(model(pictures), classifier.model(pictures), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("to", FILES)
def test_each_format_held_many_of_the_models(to: str) -> None:
    """Runs after the test above: a format that refuses everything would pass it."""
    if not any(HELD.values()):
        pytest.skip("the test above did not run")
    assert HELD[to] >= 4, HELD
