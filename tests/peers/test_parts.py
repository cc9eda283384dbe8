"""Parts of the model beside the peers' own: positions, biases, patches, ResNets, intermediates, vit-pytorch's whole."""

from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.model import ResNet, ResNetConfig, ViT, ViTConfig
from vitrail.model.attention import RelativeBias
from vitrail.model.positions import relative_index, resample_patches, resize_positions, sincos_2d

timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")
vit_pytorch = pytest.importorskip("vit_pytorch", reason="vit-pytorch is not installed: uv run --all-extras pytest")

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Vectors that are neither zeros nor ones, so that none can be forgotten or exchanged unseen."""
    torch.manual_seed(0)
    for name, tensor in model.named_parameters():
        if tensor.ndim <= 1 or "token" in name or "pos" in name:
            tensor.normal_(mean=float("norm" in name and name.endswith("weight")), std=0.3)
    if isinstance(getattr(model, "head", None), nn.Linear):
        model.head.weight.normal_(std=0.3)
    return model.eval()


@pytest.mark.parametrize("grid", [(4, 4), (3, 7)])
def test_sincos_2d_is_the_table_of_simple_vit(grid: tuple[int, int]) -> None:
    from vit_pytorch.simple_vit import posemb_sincos_2d

    torch.testing.assert_close(sincos_2d(grid, 64), posemb_sincos_2d(*grid, 64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("prefix", [0, 1])
@torch.no_grad()
def test_a_relative_bias_is_timms(prefix: int) -> None:
    peer = timm.layers.RelPosBias((3, 5), num_heads=4, prefix_tokens=prefix)
    config = ViTConfig(**TINY | {"img_size": (24, 40)}, class_token=prefix > 0, pool="token" if prefix else "mean")
    ours = RelativeBias(config)
    ours.relative_position_bias_table.copy_(peer.relative_position_bias_table)
    index = relative_index((3, 5), prefix > 0, prefix, torch.device("cpu"))
    assert torch.equal(ours(index[None]), peer.get_bias())


@pytest.mark.parametrize("size", [(16, 16), (14, 14), (4, 4), (10, 6)])
def test_a_resampled_projection_is_timms(size: tuple[int, int]) -> None:
    weight = noise(6, 3, 8, 8)
    wanted = timm.layers.resample_patch_embed(weight, list(size))
    torch.testing.assert_close(resample_patches(weight, size), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [7, 24])
def test_positions_are_resized_as_torchvision_does_it(size: int) -> None:
    from torchvision.models.vision_transformer import interpolate_embeddings

    table = noise(1, 1 + 14 * 14, 8)
    state = OrderedDict({"encoder.pos_embedding": table.clone()})
    wanted = interpolate_embeddings(size * 16, 16, state)["encoder.pos_embedding"]
    got = resize_positions(table, (14, 14), (size, size), 1, "torchvision")
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("new", [(24, 24), (7, 28), (9, 10)])
def test_positions_are_resized_as_timm_does_it(new: tuple[int, int]) -> None:
    table = noise(1, 2 + 14 * 14, 8)
    wanted = timm.layers.resample_abs_pos_embed(table, list(new), [14, 14], num_prefix_tokens=2)
    torch.testing.assert_close(resize_positions(table, (14, 14), new, 2, "timm"), wanted, atol=1e-6, rtol=0)


def resnet_of_timm(preact: bool) -> nn.Module:
    from timm.layers import StdConv2d, StdConv2dSame
    from timm.models.resnetv2 import ResNetV2

    conv = partial(StdConv2d if preact else StdConv2dSame, eps=1e-8)
    stem = "fixed" if preact else "same"
    return ResNetV2((2, 1, 1, 1), num_classes=6, preact=preact, stem_type=stem, conv_layer=conv)


@pytest.mark.parametrize("preact", [True, False], ids=["BiT", "hybrid's"])
@pytest.mark.parametrize("size", [(64, 64), (65, 79)])
@torch.no_grad()
def test_a_resnet_is_timms(preact: bool, size: tuple[int, int]) -> None:
    peer = randomise(resnet_of_timm(preact))
    config = ResNetConfig(layers=(2, 1, 1, 1), num_classes=6, preact=preact, img_size=size)
    ours = ResNet(config if preact else config.replace(padding="same")).eval()
    ours.load_state_dict(peer.state_dict())  # strict: the names are timm's
    x = noise(2, 3, *size)
    features = peer.forward_features(x)
    assert features.std() > 0.05
    torch.testing.assert_close(ours.forward_features(x), features, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours(x), peer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", [False, True])
@torch.no_grad()
def test_intermediates_are_timms(norm: bool) -> None:
    args = TINY | {"reg_tokens": 2}
    peer = randomise(timm.models.VisionTransformer(**args, no_embed_class=True, init_values=0.5))
    ours = ViT(ViTConfig(**TINY, registers=2, prefix_positions="none", layer_scale=0.5)).eval()
    ours.load_state_dict(peer.state_dict())
    x = noise(2, 3, 32, 32)
    final, wanted = peer.forward_intermediates(x, indices=[0, 2], norm=norm)
    maps = ours.forward_intermediates(x, [0, 2], maps=True, norm=norm)
    assert sorted(maps.tokens) == [0, 2]
    for i, theirs in zip((0, 2), wanted, strict=True):
        torch.testing.assert_close(maps.tokens[i], theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.forward_features(x), final, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(maps.logits, peer(x), atol=1e-5, rtol=1e-5)
    pairs = peer.forward_intermediates(x, [1], return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True)
    joined = torch.cat([pairs[0][1], pairs[0][0]], dim=1)
    torch.testing.assert_close(ours.forward_intermediates(x, [1]).tokens[1], joined, atol=1e-5, rtol=1e-5)


def from_vit_pytorch(peer: nn.Module, patch: tuple[int, int]) -> dict[str, Tensor]:
    """vit-pytorch's tensors under our names; it flattens a patch with its channels last."""
    state, ours = peer.state_dict(), {}

    def take(theirs: str, name: str, kinds: tuple[str, ...] = ("weight", "bias")) -> None:
        for kind in kinds:
            ours[f"{name}.{kind}"] = state[f"{theirs}.{kind}"]

    def channels_first(tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (*patch, 3)).movedim(-1, -3)

    for kind in ("weight", "bias"):
        ours[f"patch_embed.norm_pixels.{kind}"] = channels_first(state[f"to_patch_embedding.1.{kind}"]).flatten()
    ours["patch_embed.proj.weight"] = channels_first(state["to_patch_embedding.2.weight"])
    ours["patch_embed.proj.bias"] = state["to_patch_embedding.2.bias"]
    take("to_patch_embedding.3", "patch_embed.norm")
    for i in range(len(peer.transformer.layers)):
        there, here = f"transformer.layers.{i}", f"blocks.{i}"
        take(f"{there}.0.norm", f"{here}.norm1")
        take(f"{there}.0.to_qkv", f"{here}.attn.qkv", ("weight",))
        output = f"{there}.0.to_out.0" if f"{there}.0.to_out.0.weight" in state else f"{there}.0.to_out"
        ours[f"{here}.attn.proj.weight"] = state[f"{output}.weight"]
        ours[f"{here}.attn.proj.bias"] = state.get(f"{output}.bias", torch.zeros(len(state[f"{output}.weight"])))
        for part, number in (
            ("norm2", 0),
            ("mlp.fc1", 1),
            ("mlp.fc2", len(peer.transformer.layers[i][1].net) // 2 + 1),
        ):
            take(f"{there}.1.net.{number}", f"{here}.{part}")
    take("transformer.norm", "norm")
    take("mlp_head" if "mlp_head.weight" in state else "linear_head", "head")
    if "pos_embedding" in state:
        ours["pos_embed"] = state["pos_embedding"][None]
    if len(state.get("cls_token", ())):
        ours["cls_token"] = state["cls_token"][None]
    return ours


@pytest.mark.parametrize("kind", ["cls", "mean", "simple"])
@torch.no_grad()
def test_vit_pytorch_gives_the_same_logits_with_the_same_tensors(kind: str) -> None:
    """Norms on both sides of the patch projection, heads wider than the model's width, oblong pictures and patches."""
    from vit_pytorch.simple_vit import SimpleViT

    patch = (8, 4)
    args = {"image_size": (24, 32), "patch_size": patch, "num_classes": 5, "dim": 32, "depth": 2, "heads": 3}
    args |= {"mlp_dim": 80, "dim_head": 16}
    peer = randomise(SimpleViT(**args) if kind == "simple" else vit_pytorch.ViT(**args, pool=kind))
    config = ViTConfig(
        img_size=(24, 32), patch_size=patch, num_classes=5, embed_dim=32, depth=2, num_heads=3, head_dim=16,
        mlp_ratio=80 / 32, patch_norm="both", qkv_bias=False, norm_eps=1e-5, class_token=kind == "cls",
        pool="token" if kind == "cls" else "mean", positions="sincos_2d" if kind == "simple" else "learned",
    )  # fmt: skip
    ours = ViT(config).eval()
    state = from_vit_pytorch(peer, patch)
    if kind == "simple":
        state["pos_embed"] = ours.state_dict()["pos_embed"]
    ours.load_state_dict(state)
    x = noise(2, 3, 24, 32)
    assert peer(x).std() > 0.05
    torch.testing.assert_close(ours(x), peer(x), atol=1e-5, rtol=1e-5)
