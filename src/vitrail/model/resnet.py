"""The ResNet that the paper compares with and builds its hybrids on: standardised weights, group norm, bottlenecks."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.model.config import ResNetConfig
from vitrail.model.layers import check_pictures


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """TensorFlow's padding: the output has ceil(size / stride) rows, the odd pixel goes to the end."""
    (top, bottom), (left, right) = ((n // 2, n - n // 2) for n in (
        max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:]
    ))  # fmt: skip
    return F.pad(x, (left, right, top, bottom), value=value) if top + bottom + left + right else x


class StdConv(nn.Conv2d):
    """A convolution whose weights are standardised, filter by filter, each time that it is used."""

    def __init__(self, config: ResNetConfig, chans: int, out: int, kernel: int, stride: int = 1) -> None:
        self.same = config.padding == "same"
        super().__init__(chans, out, kernel, stride, padding=0 if self.same else kernel // 2, bias=False)
        self.eps, self.eps_on = config.weight_eps, config.weight_eps_on

    def forward(self, x: Tensor) -> Tensor:
        if self.same:
            x = pad_same(x, self.kernel_size[0], self.stride[0])
        weight = self.weight.float()
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        scale = (variance + self.eps).rsqrt() if self.eps_on == "variance" else 1 / (variance.sqrt() + self.eps)
        return F.conv2d(x, ((weight - mean) * scale).to(x.dtype), None, self.stride, self.padding)


class MaxPool(nn.Module):
    """3 x 3, stride 2."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.same = same

    def forward(self, x: Tensor) -> Tensor:
        if self.same:
            return F.max_pool2d(pad_same(x, 3, 2, float("-inf")), 3, 2)
        # BiT pads with zeros here, not with minus infinity
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)


class NormAct(nn.GroupNorm):
    """Group norm, and a ReLU after it unless said otherwise."""

    def __init__(self, config: ResNetConfig, chans: int, act: bool = True) -> None:
        super().__init__(config.groups, chans, eps=config.norm_eps)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return F.relu(x) if self.act else x


class Downsample(nn.Module):
    """The 1 x 1 convolution on the shortcut of a stage's first block."""

    def __init__(self, config: ResNetConfig, chans: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv = StdConv(config, chans, out, 1, stride)
        self.norm = nn.Identity() if config.preact else NormAct(config, out, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (with the stride), 1 x 1, and the shortcut."""

    def __init__(self, config: ResNetConfig, chans: int, out: int, stride: int, first: bool) -> None:
        super().__init__()
        self.preact, inner = config.preact, out // 4
        self.downsample = Downsample(config, chans, out, stride) if first else nn.Identity()
        self.norm1 = NormAct(config, chans if self.preact else inner)
        self.conv1 = StdConv(config, chans, inner, 1)
        self.norm2 = NormAct(config, inner)
        self.conv2 = StdConv(config, inner, inner, 3, stride)
        self.norm3 = NormAct(config, inner) if self.preact else NormAct(config, out, act=False)
        self.conv3 = StdConv(config, inner, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.preact:
            h = self.norm1(x)
            shortcut = x if isinstance(self.downsample, nn.Identity) else self.downsample(h)
            return shortcut + self.conv3(self.norm3(self.conv2(self.norm2(self.conv1(h)))))
        h = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        return F.relu(self.downsample(x) + self.norm3(self.conv3(h)))


class Stage(nn.Module):
    """Bottlenecks of one resolution."""

    def __init__(self, config: ResNetConfig, chans: int, out: int, stride: int, depth: int) -> None:
        super().__init__()
        first = Bottleneck(config, chans, out, stride, first=True)
        self.blocks = nn.Sequential(first, *(Bottleneck(config, out, out, 1, first=False) for _ in range(depth - 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def make_stem(config: ResNetConfig) -> nn.Sequential:
    """7 x 7 with stride 2 and pooling; or 3 x 3 alone, for small pictures."""
    kernel, stride = (3, 1) if config.small_stem else (7, 2)
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["conv"] = StdConv(config, config.in_chans, config.width, kernel, stride)
    if not config.preact:
        parts["norm"] = NormAct(config, config.width)
    if not config.small_stem:
        parts["pool"] = MaxPool(config.padding == "same")
    return nn.Sequential(parts)


class Backbone(nn.Module):
    """Stem and stages: pictures to a feature map."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.stem = make_stem(config)
        chans, stages = config.width, []
        for i, depth in enumerate(config.layers):
            out = config.width * 4 * 2**i
            stages.append(Stage(config, chans, out, stride=1 if i == 0 else 2, depth=depth))
            chans = out
        self.stages = nn.Sequential(*stages)
        self.norm = NormAct(config, chans) if config.preact else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, out_chans, h, w)."""
        return self.norm(self.stages(self.stem(x)))


def make_backbone(config: ResNetConfig) -> nn.Module:
    """What stands before the patches of a hybrid; without stages it is the stem itself, as checkpoints have it."""
    return Backbone(config) if config.layers else make_stem(config)


class ClassifierHead(nn.Module):
    """The linear head, which checkpoints keep as a 1 x 1 convolution."""

    def __init__(self, chans: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(chans, num_classes, 1) if num_classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x[..., None, None])[..., 0, 0]


class ResNet(Backbone):
    """The same network as a classifier of its own: mean over the feature map, then a linear head."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        self.config = config
        self.head = ClassifierHead(config.out_chans, config.num_classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Kaiming convolutions; a head of zeros, if the configuration says so."""
        for module in self.modules():
            if isinstance(module, StdConv):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self._init_head()

    def _init_head(self) -> None:
        if isinstance(self.head.fc, nn.Conv2d) and self.head.fc.bias is not None:
            nn.init.zeros_(self.head.fc.bias)
            if self.config.zero_head:
                nn.init.zeros_(self.head.fc.weight)

    def reset_head(self, num_classes: int) -> None:
        """Replaces the head for another number of classes (0: features)."""
        self.config = self.config.replace(num_classes=num_classes)
        weight = self.stem[0].weight
        self.head = ClassifierHead(self.config.out_chans, num_classes).to(weight.device, weight.dtype)  # type: ignore[arg-type]
        self._init_head()

    def set_image_size(self, img_size: tuple[int, int]) -> None:
        """Nothing in a ResNet depends on the size; only the configuration changes."""
        self.config = self.config.replace(img_size=img_size)

    def forward_features(self, pictures: Tensor) -> Tensor:
        """The last feature map: (batch, channels, h, w)."""
        check_pictures(pictures, self.config.in_chans)
        return super().forward(pictures)

    def forward_head(self, features: Tensor) -> Tensor:
        """(batch, classes) from the feature map."""
        return self.head(features.mean(dim=(2, 3)))

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits: (batch, classes)."""
        return self.forward_head(self.forward_features(pictures))
