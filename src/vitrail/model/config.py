"""Everything that defines an architecture: `ViTConfig`, and `ResNetConfig` for the hybrids and the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError
from vitrail.model.fields import JsonFields, Pair, fraction, number, pair, positive, whole_numbers

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu"]
Positions = Literal["learned", "learned_2d", "sincos_1d", "sincos_2d", "none"]
Pool = Literal["token", "mean", "map", "token_mean"]
RATES = ("dropout", "attn_dropout", "embed_dropout", "head_dropout", "patch_drop")
NOISE = (*RATES, "drop_path")  # in training; it holds no weights


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(JsonFields):
    """A ResNet with weight-standardised convolutions and group norm (BiT): the paper's baseline and hybrid stem."""

    img_size: Pair = (224, 224)
    in_chans: int = 3
    num_classes: int = 1000  # 0: features
    layers: tuple[int, ...] = (3, 4, 6, 3)  # bottlenecks in each stage; none: the stem alone
    width: int = 64  # channels after the stem
    small_stem: bool = False  # a 3 x 3 convolution of stride 1 and no pooling, for pictures of 32 pixels
    preact: bool = True  # BiT's order (norm, relu, convolution); the hybrids have convolution, norm, relu
    padding: Literal["symmetric", "same"] = "symmetric"  # "same" as in TensorFlow: the hybrids
    groups: int = 32
    norm_eps: float = 1e-5  # timm 1e-5, Google 1e-6
    weight_eps: float = 1e-8  # timm 1e-8, Google 1e-5
    weight_eps_on: Literal["variance", "deviation"] = "variance"  # timm sqrt(var + eps), Google sqrt(var) + eps
    zero_head: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", pair("img_size", self.img_size))
        object.__setattr__(self, "layers", whole_numbers("layers", self.layers))
        self.check_types()
        positive(self, "in_chans", "width", "groups", "norm_eps", "weight_eps")
        if self.num_classes < 0:
            raise ConfigError(f"num_classes={self.num_classes} must be 0 (features) or more")
        if len(self.layers) > 5 or any(n < 1 for n in self.layers):
            raise ConfigError(f"layers={self.layers} must be at most 5 numbers of blocks, each at least 1")
        if self.width % self.groups:
            raise ConfigError(f"width={self.width} must be a multiple of groups={self.groups}")
        if not self.layers and self.preact:
            raise ConfigError("a stem alone (layers=()) ends in a norm: it needs preact=False")

    @property
    def out_chans(self) -> int:
        """Channels of the last feature map."""
        return self.width * 2 ** (len(self.layers) + 1) if self.layers else self.width

    def feature_size(self, img_size: Pair) -> Pair:
        """Height and width of the last feature map."""
        return -(-img_size[0] // self.reduction), -(-img_size[1] // self.reduction)

    @property
    def reduction(self) -> int:
        """How many times the feature map is smaller than the picture."""
        return (1 if self.small_stem else 4) * 2 ** max(len(self.layers) - 1, 0)


@dataclass(frozen=True, kw_only=True)
class ViTConfig(JsonFields):
    """A Vision Transformer. The defaults are the paper's ViT-B/16 with a linear head on the class token."""

    # pictures and patches
    img_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    stride: Pair | None = None  # None: patches side by side; less than the patch: they overlap
    in_chans: int = 3
    patch_bias: bool = True
    patch_norm: Literal["none", "before", "after", "both"] = "none"  # of the projection
    conv_stem: tuple[int, ...] = ()  # channels of 3 x 3 convolutions of stride 2 before the patches
    backbone: ResNetConfig | None = None  # the hybrids: patches of a ResNet's feature map
    dynamic_img_size: bool = False  # take any size that fits, positions resized on the way

    # tokens and positions
    class_token: bool = True
    registers: int = 0
    distilled: bool = False  # DeiT's distillation token and second head
    positions: Positions = "learned"
    prefix_positions: Literal["all", "class", "none"] = "all"  # which tokens before the patches have positions
    rope: bool = False  # axial rotation of queries and keys
    rope_theta: float = 100.0
    relative_bias: bool = False  # a learned bias on attention for each offset between patches

    # blocks
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    head_dim: int | None = None  # None: embed_dim / num_heads
    mlp_ratio: float = 4.0  # SwiGLU: of both halves together
    mlp: Literal["plain", "swiglu"] = "plain"
    act: Activation = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    qk_norm: bool = False
    attn_scale: float | None = None  # None: head_dim ** -0.5
    layer_scale: float | None = None  # initial value; None: no LayerScale
    pre_norm: bool = False  # a norm before the blocks (CLIP)

    # head
    pool: Pool = "token"
    final_norm: Literal["tokens", "pooled", "none"] = "tokens"  # before pooling, after it, or not at all
    levels: tuple[int, ...] = ()  # blocks whose tokens are joined before the head; none: the last alone
    pre_logits: int | None = None  # width of the tanh layer before the head
    num_classes: int = 1000  # 0: features

    # noise in training
    dropout: float = 0.0  # after the attention's projection and in the MLP
    attn_dropout: float = 0.0
    embed_dropout: float = 0.0
    head_dropout: float = 0.0
    drop_path: float | tuple[float, ...] = 0.0  # a number grows linearly from 0 with depth; or one per block
    patch_drop: float = 0.0  # the part of the patches that are left out, others for each picture

    # initialisation
    init: Literal["paper", "identity", "local", "trunc_normal", "plain"] = "paper"
    zero_head: bool = True
    head_bias: float | Literal["prior"] = 0.0  # "prior": -log(num_classes)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "img_size", pair("img_size", self.img_size))
        put(self, "patch_size", pair("patch_size", self.patch_size))
        if self.stride is not None:
            stride = pair("stride", self.stride)
            put(self, "stride", None if stride == self.patch_size else stride)
        put(self, "conv_stem", whole_numbers("conv_stem", self.conv_stem))
        put(self, "levels", whole_numbers("levels", self.levels))
        if isinstance(self.backbone, Mapping):
            put(self, "backbone", ResNetConfig.from_json(self.backbone))
        elif self.backbone is not None and not isinstance(self.backbone, ResNetConfig):
            raise ConfigError(f"backbone={self.backbone!r} must be a ResNetConfig, a table of its fields, or null")
        for name in ("attn_scale", "layer_scale"):
            if getattr(self, name) is not None:
                put(self, name, number(name, getattr(self, name)))
        if isinstance(self.drop_path, Sequence):
            put(self, "drop_path", tuple(number("drop_path", rate) for rate in self.drop_path))
        else:
            put(self, "drop_path", number("drop_path", self.drop_path))
        if self.head_bias != "prior":
            if isinstance(self.head_bias, str):
                raise ConfigError(f"head_bias={self.head_bias!r} must be a number, or 'prior' for -log(num_classes)")
            put(self, "head_bias", number("head_bias", self.head_bias))
        self.check_types()
        self._check_patches()
        self._check_blocks()
        self._check_tokens()
        self._check_head()

    def _check_patches(self) -> None:
        positive(self, "in_chans")
        if self.backbone and self.conv_stem:
            raise ConfigError("backbone and conv_stem cannot both come before the patches: choose one")
        if self.backbone and (self.backbone.in_chans != self.in_chans):
            raise ConfigError(f"in_chans={self.in_chans}, but the backbone has in_chans={self.backbone.in_chans}")
        if any(n < 1 for n in self.conv_stem):
            raise ConfigError(f"conv_stem={self.conv_stem} must be numbers of channels, each at least 1")
        if self.stride and any(s > p for s, p in zip(self.stride, self.patch_size, strict=True)):
            raise ConfigError(f"stride={self.stride} is larger than patch_size={self.patch_size}: pixels would be lost")
        self.grid_of(self.img_size)

    def _check_blocks(self) -> None:
        positive(self, "embed_dim", "depth", "num_heads", "mlp_ratio", "norm_eps", "rope_theta")
        if self.head_dim is None and self.embed_dim % self.num_heads:
            raise ConfigError(
                f"embed_dim={self.embed_dim} is no multiple of num_heads={self.num_heads}: change one, or give head_dim"
            )
        if self.head_dim is not None:
            if isinstance(self.head_dim, bool) or not isinstance(self.head_dim, int) or self.head_dim < 1:
                raise ConfigError(f"head_dim={self.head_dim!r} must be a positive whole number, or null")
            if self.head_dim * self.num_heads == self.embed_dim:
                object.__setattr__(self, "head_dim", None)
        if self.mlp_dim < 1:
            raise ConfigError(f"mlp_ratio={self.mlp_ratio} leaves the MLP no width at embed_dim={self.embed_dim}")
        if self.mlp == "swiglu" and self.mlp_dim % 2:
            raise ConfigError(f"SwiGLU halves the MLP's width, which is {self.mlp_dim} here: change mlp_ratio")
        if self.attn_scale is not None:
            positive(self, "attn_scale")
        for name in RATES:
            fraction(name, getattr(self, name))
        for rate in self.drop_path if isinstance(self.drop_path, tuple) else (self.drop_path,):
            fraction("drop_path", rate)
        if isinstance(self.drop_path, tuple) and len(self.drop_path) != self.depth:
            raise ConfigError(f"drop_path has {len(self.drop_path)} rates for {self.depth} blocks: give one per block")

    def _check_tokens(self) -> None:
        if self.registers < 0:
            raise ConfigError(f"registers={self.registers} must be 0 or more")
        if self.distilled and not self.class_token:
            raise ConfigError("distilled=True needs the class token: set class_token=True")
        if self.rope and self.key_dim % 4:
            raise ConfigError(f"rope needs a head_dim that is a multiple of 4; it is {self.key_dim}")
        if self.init == "local" and not (self.rope and self.qkv_bias):
            raise ConfigError("init='local' tells heads by rotations where to look: set rope=True and qkv_bias=True")
        if self.positions == "sincos_2d" and (self.embed_dim % 4 or self.embed_dim < 8):
            raise ConfigError(f"sincos_2d needs an embed_dim that is a multiple of 4, 8 or more, not {self.embed_dim}")
        if self.positions in ("learned_2d", "sincos_1d") and self.embed_dim % 2:
            raise ConfigError(f"{self.positions} needs an even embed_dim, not {self.embed_dim}")
        if self.prefix_positions == "class" and (not self.class_token or self.num_prefix == 1):
            object.__setattr__(self, "prefix_positions", "all" if self.class_token else "none")
        if self.num_prefix == 0 or self.positions == "none":
            object.__setattr__(self, "prefix_positions", "all")

    def _check_head(self) -> None:
        if self.num_classes < 0:
            raise ConfigError(f"num_classes={self.num_classes} must be 0 (features) or more")
        if self.pool in ("token", "token_mean") and not self.class_token:
            raise ConfigError(f"pool={self.pool!r} reads the class token: set class_token=True, or pool='mean'")
        if self.distilled and self.pool != "token":
            raise ConfigError(f"a distilled model reads its two tokens: pool must be 'token', not {self.pool!r}")
        if self.final_norm == "pooled" and self.pool in ("map", "token_mean"):
            raise ConfigError(f"final_norm='pooled' does not go with pool={self.pool!r}: use 'tokens'")
        if self.pool == "map" and self.embed_dim % self.num_heads:
            raise ConfigError(f"pool='map' needs embed_dim={self.embed_dim} to be a multiple of {self.num_heads} heads")
        if self.levels:
            if any(not 0 <= level < self.depth for level in self.levels) or len(set(self.levels)) < len(self.levels):
                raise ConfigError(f"levels={self.levels} must be different blocks, from 0 to {self.depth - 1}")
            if self.pool == "map" or self.final_norm == "pooled" or self.distilled:
                raise ConfigError("levels go with pool 'token', 'mean' or 'token_mean', final_norm 'tokens' or 'none'")
        if self.pre_logits is not None and (
            isinstance(self.pre_logits, bool) or not isinstance(self.pre_logits, int) or self.pre_logits < 1
        ):
            raise ConfigError(f"pre_logits={self.pre_logits!r} must be a positive whole number, or null")
        if self.pre_logits is not None and self.distilled:
            raise ConfigError("pre_logits and distilled do not go together: no published model has both")

    @property
    def key_dim(self) -> int:
        """Width of one head."""
        return self.head_dim or self.embed_dim // self.num_heads

    @property
    def mlp_dim(self) -> int:
        """Width of the MLP's hidden layer (of SwiGLU: of both halves together)."""
        return int(self.embed_dim * self.mlp_ratio)

    @property
    def num_prefix(self) -> int:
        """Tokens before the patches: class token, distillation token, registers."""
        return int(self.class_token) + int(self.distilled) + self.registers

    @property
    def num_positioned(self) -> int:
        """Tokens before the patches that have positions of their own."""
        return {"all": self.num_prefix, "class": 1, "none": 0}[self.prefix_positions]

    @property
    def grid(self) -> Pair:
        """Rows and columns of patches."""
        return self.grid_of(self.img_size)

    @property
    def num_patches(self) -> int:
        """Patches of a picture of `img_size`."""
        return self.grid[0] * self.grid[1]

    @property
    def pooled_dim(self) -> int:
        """Width of what the head reads."""
        return self.embed_dim * max(len(self.levels), 1) * (2 if self.pool == "token_mean" else 1)

    @property
    def drop_paths(self) -> tuple[float, ...]:
        """The rate of every block."""
        if isinstance(self.drop_path, tuple):
            return self.drop_path
        return tuple(self.drop_path * i / max(self.depth - 1, 1) for i in range(self.depth))

    def feature_size(self, img_size: Pair) -> Pair:
        """Height and width of what is cut into patches: the picture, or a feature map of it."""
        return -(-img_size[0] // self.reduction), -(-img_size[1] // self.reduction)

    @property
    def reduction(self) -> int:
        """How many times what is cut into patches is smaller than the picture."""
        return self.backbone.reduction if self.backbone else 2 ** len(self.conv_stem)

    def grid_of(self, img_size: Pair) -> Pair:
        """Rows and columns of patches of a picture of this size; a size that does not fit is an error."""
        step = self.stride or self.patch_size
        size = self.feature_size(img_size)
        rests = [(s - p) % t for s, p, t in zip(size, self.patch_size, step, strict=True)]
        if any(rests) or any(s < p for s, p in zip(size, self.patch_size, strict=True)):
            fits = " x ".join(
                str(self.reduction * (p + t * max(0, round((s - p) / t))))
                for s, p, t in zip(size, self.patch_size, step, strict=True)
            )
            raise ConfigError(
                f"img_size={img_size} is not filled by patches of {self.patch_size}"
                + (f" with stride {self.stride}" if self.stride else "")
                + f": the nearest size that fits is {fits}"
            )
        return (size[0] - self.patch_size[0]) // step[0] + 1, (size[1] - self.patch_size[1]) // step[1] + 1
