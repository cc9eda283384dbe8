"""torchvision's own VisionTransformer, saved by torch.save, against ours; and our tensors in its own model."""

import re
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model_weights, vision_transformer
from torchvision.ops.misc import Conv2dNormActivation

import vitrail
from vitrail.errors import WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.zoo import create
from vitrail.weights import read_checkpoint, to_torchvision
from vitrail.weights import torchvision as family

SMALL = {"image_size": 64, "patch_size": 16, "num_layers": 3, "num_heads": 2, "hidden_dim": 128, "mlp_dim": 512}
ARCHITECTURES = {
    "plain": {},
    "small patch": {"patch_size": 8},
    "patch of 14": {"image_size": 98, "patch_size": 14},
    "large patch": {"patch_size": 32},
    "one patch": {"patch_size": 64},
    "224 pixels": {"image_size": 224},
    "pre-logits": {"representation_size": 48},
    "odd mlp width": {"mlp_dim": 333},
    "narrow mlp": {"mlp_dim": 77},
    "five classes": {"num_classes": 5},
    "other heads": {"num_heads": 8},
    "deep": {"num_layers": 11},
    "epsilon": {"norm_layer": lambda width: torch.nn.LayerNorm(width, eps=1e-3)},
}
KNOWN = {"other heads": {"num_heads": 8}, "epsilon": {"norm_eps": 1e-3}}


def theirs(kind: str) -> torch.nn.Module:
    """A model of torchvision's with random weights that do not hide anything: no zeros, no ones."""
    torch.manual_seed(0)
    model = vision_transformer.VisionTransformer(**{**SMALL, "num_classes": 1000, **ARCHITECTURES[kind]}).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            centre = 1.0 if re.search(r"ln(_\d)?\.weight$", key) else 0.0
            torch.nn.init.normal_(tensor, mean=centre, std=0.3 if tensor.ndim != 2 and tensor.ndim != 4 else 0.05)
    return model


def pictures_for(config) -> torch.Tensor:
    return torch.randn(2, config.in_chans, *config.img_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ARCHITECTURES)
@torch.no_grad()
def test_a_checkpoint_of_torchvision_gives_the_same_logits_and_the_same_tensors_back(kind: str, tmp_path: Path) -> None:
    peer = theirs(kind)
    torch.save(peer.state_dict(), tmp_path / "vit.pth")
    checkpoint = read_checkpoint(tmp_path / "vit.pth", **KNOWN.get(kind, {}))
    assert checkpoint.family == "torchvision"
    ours = checkpoint.build()
    pictures = pictures_for(ours.config)
    wanted = peer(pictures)
    assert 0.05 < wanted.std() < 20
    torch.testing.assert_close(ours(pictures), wanted, atol=1e-5, rtol=1e-5)

    if kind == "epsilon":
        return
    back = to_torchvision.write(ours.config, ours.state_dict())
    again = vision_transformer.VisionTransformer(**{**SMALL, "num_classes": 1000, **ARCHITECTURES[kind]}).eval()
    again.load_state_dict(back)  # strict: no name missing, none too many
    assert back.keys() == peer.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in peer.state_dict().items())
    assert torch.equal(again(pictures), wanted)


@torch.no_grad()
def test_names_of_older_releases_are_the_same_model(tmp_path: Path) -> None:
    peer = theirs("plain")
    old = {re.sub(r"mlp\.([03])\.", lambda m: f"mlp.linear_{1 + int(m[1]) // 3}.", name): tensor
           for name, tensor in peer.state_dict().items()}  # fmt: skip
    assert "encoder.layers.encoder_layer_2.mlp.linear_2.bias" in old
    fresh = vision_transformer.VisionTransformer(**SMALL)
    fresh.load_state_dict(dict(old))  # torchvision itself takes these for its older names
    assert torch.equal(fresh.encoder.layers[1].mlp[3].weight, peer.encoder.layers[1].mlp[3].weight)
    torch.save({"model": old, "epoch": 3}, tmp_path / "vit.pth")
    ours = read_checkpoint(tmp_path / "vit.pth").build()
    pictures = pictures_for(ours.config)
    torch.testing.assert_close(ours(pictures), peer(pictures), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [torch.nn.Linear(128, 5), torch.nn.Identity()], ids=["another head", "no head"])
@torch.no_grad()
def test_heads_that_were_exchanged_for_fine_tuning_are_understood(heads: torch.nn.Module, tmp_path: Path) -> None:
    peer = theirs("plain")
    peer.heads = heads
    torch.save(peer.state_dict(), tmp_path / "vit.pth")
    ours = read_checkpoint(tmp_path / "vit.pth").build()
    pictures = pictures_for(ours.config)
    torch.testing.assert_close(ours(pictures), peer(pictures), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "size"), [("plain", 112), ("plain", 32), ("patch of 14", 168), ("224 pixels", 384)])
@torch.no_grad()
def test_another_image_size_is_torchvisions_own_resizing(kind: str, size: int, tmp_path: Path) -> None:
    peer = theirs(kind)
    torch.save(peer.state_dict(), tmp_path / "vit.pth")
    args = {**SMALL, **ARCHITECTURES[kind], "image_size": size}
    resized = vision_transformer.VisionTransformer(**args).eval()
    state = vision_transformer.interpolate_embeddings(size, args["patch_size"], peer.state_dict())
    resized.load_state_dict(state)
    ours = vitrail.load(tmp_path / "vit.pth", img_size=size).model
    torch.testing.assert_close(ours.pos_embed, state["encoder.pos_embedding"], atol=1e-6, rtol=1e-6)
    pictures = pictures_for(ours.config)
    torch.testing.assert_close(ours(pictures), resized(pictures), atol=1e-5, rtol=1e-5)


# weights whose file looks like another's: the more common ones are meant
NOT_TOLD_APART = {"ViT_B_16_Weights.IMAGENET1K_SWAG_LINEAR_V1", "ViT_L_16_Weights.IMAGENET1K_SWAG_LINEAR_V1"}
PUBLISHED = [
    w for name in ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14") for w in get_model_weights(name)
]


@pytest.mark.parametrize("weights", [w for w in PUBLISHED if str(w) not in NOT_TOLD_APART], ids=str)
def test_every_published_model_is_understood_with_its_preprocessing(weights) -> None:
    name = re.sub(r"ViT_(.)_(\d+)_Weights.*", r"vit_\1_\2", str(weights)).lower()
    with torch.device("meta"):
        peer = getattr(vision_transformer, name)(image_size=weights.meta["min_size"][0])
    checkpoint = family.read(dict(peer.state_dict()))
    config = checkpoint.config
    assert config.num_heads == peer.encoder.layers[0].num_heads
    assert config.norm_eps == peer.encoder.ln.eps
    assert config.img_size == weights.meta["min_size"]
    assert sum(t.numel() for t in checkpoint.state.values()) == weights.meta["num_params"]
    with torch.device("meta"):
        expected = {key: tensor.shape for key, tensor in create(config).state_dict().items()}
    assert {key: tensor.shape for key, tensor in checkpoint.state.items()} == expected
    wanted, found = weights.transforms(), checkpoint.preprocessing
    assert found.size == (wanted.crop_size[0],) * 2
    assert int(found.size[0] / found.crop_pct) == wanted.resize_size[0]
    assert found.interpolation == wanted.interpolation.value
    assert (list(found.mean), list(found.std)) == (wanted.mean, wanted.std)
    assert found.fit == "crop"
    assert checkpoint.assumed.keys() == {"num_heads", "norm_eps", "preprocessing"}


CANNOT = {
    "not square": {"img_size": (32, 64)},
    "patches that are not square": {"patch_size": (8, 16)},
    "3 channels": {"in_chans": 1},
    "without a bias": {"patch_bias": False},
    "overlapping": {"stride": 8, "img_size": 64},
    "normed patches": {"patch_norm": "after"},
    "before the patches": {"conv_stem": (16,)},
    "without class token": {"class_token": False, "pool": "mean"},
    "registers": {"registers": 2},
    "distillation": {"distilled": True},
    "without positions": {"positions": "none"},
    "factorised": {"positions": "learned_2d"},
    "rope": {"rope": True},
    "relative_bias": {"relative_bias": True},
    "head_dim": {"head_dim": 16},
    "SwiGLU": {"mlp": "swiglu"},
    "exact GELU": {"act": "quick_gelu"},
    "RMSNorm": {"norm": "rms"},
    "epsilon is 1e-6": {"norm_eps": 1e-5},
    "qkv_bias": {"qkv_bias": False},
    "QK-norm": {"qk_norm": True},
    "attention scale": {"attn_scale": 0.5},
    "LayerScale": {"layer_scale": 0.1},
    "norm before the blocks": {"pre_norm": True},
    "pooling by mean": {"pool": "mean"},
    "final norm": {"final_norm": "pooled"},
    "several levels": {"levels": (0, 1)},
    "without head": {"num_classes": 0},
}


@pytest.mark.parametrize("words", CANNOT)
def test_what_torchvision_cannot_hold_is_refused_in_one_line(words: str) -> None:
    small = {"img_size": 32, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = create(ViTConfig(**{**small, **CANNOT[words]}))
    with pytest.raises(WeightsError, match=words) as error:
        to_torchvision.write(model.config, model.state_dict())
    assert "\n" not in str(error.value)


def test_a_resnet_is_refused() -> None:
    with pytest.raises(WeightsError, match="ResNet"):
        to_torchvision.write(ResNetConfig(), {})


@pytest.mark.parametrize("fields", [{"prefix_positions": "none"}, {"positions": "sincos_2d"}], ids=str)
@torch.no_grad()
def test_a_model_made_here_computes_the_same_there(fields: dict) -> None:
    small = {"img_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 3, "zero_head": False}
    model = create(ViTConfig(**small, **fields)).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.05)
    peer = vision_transformer.VisionTransformer(**{**SMALL, "num_layers": 2, "num_classes": 3}).eval()
    peer.load_state_dict(to_torchvision.write(model.config, model.state_dict()))
    pictures = pictures_for(model.config)
    torch.testing.assert_close(peer(pictures), model(pictures), atol=1e-5, rtol=1e-5)


def broken(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    state = {**theirs("plain").state_dict(), **changes}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_proj.weight": None}, "nothing for patch_embed.proj.weight"),
        ({"encoder.pos_embedding": None}, "nothing for pos_embed"),
        ({"encoder.layers.encoder_layer_1.ln_1.bias": None}, r"1 missing \(blocks\.1\.norm1\.bias\)"),
        ({"class_token": None}, r"1 missing \(cls_token\)"),
        ({"head.weight": torch.zeros(1000, 128)}, r"does not have \(head\.weight\)"),
        ({"vit.layernorm.weight": torch.zeros(128)}, r"does not have \(vit\.layernorm\.weight\)"),
        ({"encoder.layers.encoder_layer_0.mlp.linear_1.weight": torch.zeros(512, 128)}, r"mlp\.0\.weight.*linear_1"),
        ({"encoder.pos_embedding": torch.zeros(1, 13, 128)}, "12 positions make no square picture: give its img_size"),
        ({"encoder.ln.weight": torch.zeros(64)}, "norm.weight is"),
    ],
)
def test_a_checkpoint_that_is_mixed_or_not_whole_is_refused_in_one_line(changes, message, tmp_path: Path) -> None:
    torch.save(broken(**changes), tmp_path / "vit.pth")
    with pytest.raises(WeightsError, match=message) as error:
        read_checkpoint(tmp_path / "vit.pth").build()
    assert "\n" not in str(error.value)


def test_a_convolutional_stem_with_batch_norm_is_refused(tmp_path: Path) -> None:
    stem = [vision_transformer.ConvStemConfig(out_channels=32, kernel_size=3, stride=2) for _ in range(4)]
    peer = vision_transformer.VisionTransformer(**SMALL, conv_stem_configs=stem)
    assert any(isinstance(module, Conv2dNormActivation) for module in peer.modules())
    torch.save(peer.state_dict(), tmp_path / "vit.pth")
    with pytest.raises(WeightsError, match="batch norm"):
        read_checkpoint(tmp_path / "vit.pth")
