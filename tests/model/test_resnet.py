"""The ResNet of the baseline and the hybrids: TensorFlow's padding, standardised weights, the small stem."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.model import ResNet, ResNetConfig
from vitrail.model.resnet import MaxPool, StdConv, pad_same
from vitrail.model.walk import walk

TINY: dict[str, Any] = {"img_size": 32, "layers": (1, 1), "width": 8, "groups": 4, "num_classes": 5}


@pytest.mark.parametrize("size", [7, 8, 9, 15, 32])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2), (2, 3)])
def test_same_padding_is_tensorflows(size: int, kernel: int, stride: int) -> None:
    """pad = max((ceil(n / s) - 1) s + k - n, 0), of which the smaller half comes first."""
    out = math.ceil(size / stride)
    total = max((out - 1) * stride + kernel - size, 0)
    marked = torch.ones(1, 1, size, size + 3)
    padded = pad_same(marked, kernel, stride)
    rows = padded[0, 0].amax(1)
    assert len(rows) == size + total
    assert rows.argmax() == total // 2
    assert rows.flip(0).argmax() == total - total // 2
    convolved = F.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=stride)
    assert convolved.shape[-2:] == (out, math.ceil((size + 3) / stride))


def test_the_odd_pixel_of_padding_goes_to_the_end() -> None:
    padded = pad_same(torch.ones(1, 1, 4, 4), 3, 2, value=-5.0)
    wanted = F.pad(torch.ones(1, 1, 4, 4), (0, 1, 0, 1), value=-5.0)
    assert torch.equal(padded, wanted)


def test_pooling_pads_with_zeros_in_bit_and_with_nothing_in_tensorflow() -> None:
    negative = -torch.ones(1, 1, 4, 4)
    assert torch.equal(MaxPool(same=False)(negative), torch.tensor([[[[0.0, 0.0], [0.0, -1.0]]]]))
    assert torch.equal(MaxPool(same=True)(negative), -torch.ones(1, 1, 2, 2))


def filters_of(conv: StdConv) -> Tensor:
    """The filters that a 3 x 3 convolution of two channels really uses: what it makes of single bright pixels."""
    impulses = torch.zeros(2, 2, 5, 5)
    impulses[0, 0, 2, 2] = impulses[1, 1, 2, 2] = 1
    return conv(impulses)[:, :, 1:4, 1:4].flip(2, 3).transpose(0, 1)  # (out, chans, 3, 3)


@pytest.mark.parametrize("padding", ["symmetric", "same"])
@pytest.mark.parametrize("eps_on", ["variance", "deviation"])
@torch.no_grad()
def test_every_filter_is_standardised_as_it_is_used(padding: str, eps_on: str) -> None:
    conv = StdConv(ResNetConfig(padding=padding, weight_eps_on=eps_on, weight_eps=1e-3), chans=2, out=6, kernel=3)
    conv.weight.normal_(mean=0.3, std=0.05)
    weight = conv.weight.double()
    mean, var = weight.mean((1, 2, 3), keepdim=True), weight.var((1, 2, 3), correction=0, keepdim=True)
    wanted = (weight - mean) / (torch.sqrt(var + 1e-3) if eps_on == "variance" else torch.sqrt(var) + 1e-3)
    torch.testing.assert_close(filters_of(conv).double(), wanted, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_standardised_filters_have_mean_zero_and_variance_one_and_forget_their_scale() -> None:
    conv = StdConv(ResNetConfig(), chans=2, out=6, kernel=3)
    conv.weight.normal_(mean=-0.2, std=0.1)
    filters = filters_of(conv)
    torch.testing.assert_close(filters.mean((1, 2, 3)), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(filters.var((1, 2, 3), correction=0), torch.ones(6), atol=1e-4, rtol=0)
    conv.weight.mul_(3).add_(0.7)
    torch.testing.assert_close(filters_of(conv), filters, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("padding", ["symmetric", "same"])
@pytest.mark.parametrize("preact", [True, False])
@pytest.mark.parametrize("size", [(32, 32), (33, 47)])
@torch.no_grad()
def test_the_feature_map_has_the_size_that_the_configuration_says(padding: str, preact: bool, size) -> None:
    model = ResNet(ResNetConfig(**TINY | {"img_size": size}, padding=padding, preact=preact)).eval()
    features = model.forward_features(torch.randn(2, 3, *size))
    assert features.shape == (2, 8 * 4 * 2, *model.config.feature_size(size))
    assert features.shape[-2:] == tuple(math.ceil(n / 8) for n in size)


@torch.no_grad()
def test_the_small_stem_keeps_the_resolution_of_small_pictures() -> None:
    model = ResNet(ResNetConfig(**TINY, small_stem=True)).eval()
    assert model.stem(torch.randn(1, 3, 32, 32)).shape == (1, 8, 32, 32)
    assert model.forward_features(torch.randn(1, 3, 32, 32)).shape == (1, 64, 16, 16)
    assert walk(model.config)[1].shape == (32, 32, 8)


@torch.no_grad()
def test_a_fresh_resnet_and_a_new_head_answer_with_zeros() -> None:
    model = ResNet(ResNetConfig(**TINY)).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(x), torch.zeros(2, 5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if not name.startswith("head")}
    model.reset_head(7)
    assert model.config.num_classes == 7
    assert torch.equal(model(x), torch.zeros(2, 7))
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    model.reset_head(0)
    torch.testing.assert_close(model(x), model.forward_features(x).mean((2, 3)))


@torch.no_grad()
def test_a_resnet_takes_other_sizes_and_types() -> None:
    model = ResNet(ResNetConfig(**TINY, zero_head=False)).eval()
    x = torch.randn(2, 3, 48, 40)
    model.set_image_size((48, 40))
    assert model.config.img_size == (48, 40)
    wanted = model(x)
    assert wanted.std() > 1e-3
    out = model.bfloat16()(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out.float() - wanted).abs().max() < 0.1


def test_a_picture_with_the_wrong_channels_is_named_with_the_right_ones() -> None:
    with pytest.raises(ConfigError, match=r"reads 3 channels.*has 1"):
        ResNet(ResNetConfig(**TINY))(torch.zeros(1, 1, 32, 32))
