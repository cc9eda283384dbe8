"""Maps beside captum and pytorch-grad-cam, on the same weights in timm's models."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.figures.models import make, make_resnet, pictures_for
from vitrail import figures
from vitrail.weights import read_checkpoint, to_timm

timm = pytest.importorskip("timm")
captum = pytest.importorskip("captum.attr")
gradcam = pytest.importorskip("pytorch_grad_cam")
TARGET = [3, 1]


def theirs(model: torch.nn.Module) -> torch.nn.Module:
    """The same model in timm, with attention in plain operations, which has weights to look at."""
    form = to_timm.write(model.config, model.state_dict())
    peer = timm.create_model(form.architecture, num_classes=model.config.num_classes, **form.model_args)
    peer.load_state_dict(form.state)
    for module in peer.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return peer.eval()


def attention_x_gradient(peer: torch.nn.Module, pixels: Tensor, block: int, target: list[int]) -> Tensor:
    """By captum, where timm has the weights: (batch, heads, tokens, tokens)."""
    explainer = captum.LayerGradientXActivation(peer, peer.blocks[block].attn.attn_drop)
    return explainer.attribute(pixels, target=target).detach()


@pytest.mark.parametrize("kind", ["class token", "registers", "mean beside a class token", "not square"])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_attention_x_gradient_is_captums(kind: str, block: int) -> None:
    model = make(kind).eval()
    pixels, prefix = pictures_for(model), model.config.num_prefix
    wanted = attention_x_gradient(theirs(model), pixels, block, TARGET).clamp(min=0).mean(1)
    rows = wanted[:, 0] if model.config.pool == "token" else wanted[:, prefix:].sum(1)
    maps = figures.attention_gradient(model, pixels, TARGET, block)
    torch.testing.assert_close(maps.flatten(1), rows[:, prefix:], rtol=1e-4, atol=1e-7)


def test_attribution_is_made_of_captums_layers() -> None:
    model = make("registers").eval()
    pixels = pictures_for(model)
    peer, relevance = theirs(model), torch.eye(1 + 3 + 16)
    for block in range(3):
        relevance = relevance + attention_x_gradient(peer, pixels, block, TARGET).clamp(min=0).mean(1) @ relevance
    maps = figures.attribution(model, pixels, TARGET)
    torch.testing.assert_close(maps.flatten(1), relevance[:, 0, 4:], rtol=1e-4, atol=1e-6)


def cam_by_peer(model: torch.nn.Module, layer: torch.nn.Module, pixels: Tensor, reshape: object = None) -> Tensor:
    targets = [gradcam.utils.model_targets.ClassifierOutputTarget(one) for one in TARGET]
    with gradcam.GradCAM(model, [layer], reshape_transform=reshape) as cam:
        cam.batch_size = len(pixels)
        cam(pixels, targets)
        activations, gradients = cam.activations_and_grads.activations[0], cam.activations_and_grads.gradients[0]
        return torch.as_tensor(cam.get_cam_image(pixels, layer, targets, activations.numpy(), gradients.numpy())).clamp(
            min=0
        )


@pytest.mark.parametrize("kind", ["class token", "not square", "mean beside a class token"])
def test_grad_cam_of_a_vit_is_pytorch_grad_cams(kind: str) -> None:
    model = make(kind).eval()
    pixels, prefix, grid = pictures_for(model), model.config.num_prefix, model.config.grid
    peer = theirs(model)
    layer = peer.blocks[-2 if model.config.pool == "token" else -1]
    wanted = cam_by_peer(peer, layer, pixels, lambda x: x[:, prefix:].transpose(1, 2).unflatten(2, grid))
    torch.testing.assert_close(figures.grad_cam(model, pixels, TARGET), wanted, rtol=1e-4, atol=1e-6)


def test_grad_cam_of_a_resnet_is_pytorch_grad_cams() -> None:
    model = make_resnet().eval()
    pixels = pictures_for(model)
    wanted = cam_by_peer(model, model.norm, pixels)
    torch.testing.assert_close(figures.grad_cam(model, pixels, TARGET), wanted, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_attention_of_the_real_deit_tiny_is_what_timm_extracts(deit_tiny: Path) -> None:
    from timm.utils import AttentionExtract

    model = read_checkpoint(deit_tiny).build().eval()
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    extracted = AttentionExtract(theirs(model), method="fx")(pixels)
    maps = figures.attention_maps(model, pixels)
    assert len(extracted) == 12
    for block, weights in enumerate(extracted.values()):
        torch.testing.assert_close(maps[:, block].flatten(2), weights[:, :, 0, 1:], rtol=1e-3, atol=1e-5)
