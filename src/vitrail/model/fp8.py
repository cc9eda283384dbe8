"""Inference in eight-bit floating point: the linear maps inside the blocks, weights and tokens both.

A number has four bits of exponent and three of mantissa (e4m3), times one factor for each tensor: the weights' from
their largest number, the tokens' from the largest that some pictures make. All else is in bfloat16. GPUs since Hopper
and Ada have such products; elsewhere this is slower than bfloat16, and a way to see what accuracy it costs.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.model.attention import Attention, Watch
from vitrail.model.config import ViTConfig
from vitrail.model.devices import half_on_gpu, is_hopper
from vitrail.model.kernel_sizes import MID, MID_WIDTHS
from vitrail.model.layers import Mlp
from vitrail.model.vit import ViT

KIND = torch.float8_e4m3fn
LARGEST = torch.finfo(KIND).max
ROOM = 2.0  # tokens of other pictures may be so much larger; of a floating point nothing is lost by it


class Fp8Linear(nn.Module):
    """A linear map of tokens that are made eight bits wide on the way in; the result is bfloat16."""

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, largest: float) -> None:
        """Of a given one, whose inputs are at most `largest`."""
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax().clamp(min=1e-12) / LARGEST
        self.register_buffer("weight", _rounded(weight, scale))
        self.register_buffer("weight_scale", scale)
        self.register_buffer("input_scale", scale.new_tensor(max(ROOM * largest, 1e-12) / LARGEST))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return self.product(_rounded(x, self.input_scale))

    def product(self, x: Tensor) -> Tensor:
        """Of tokens that are eight bits wide."""
        tokens = x.flatten(0, -2)
        scales = {"scale_a": self.input_scale, "scale_b": self.weight_scale}
        result = torch._scaled_mm(
            tokens, self.weight.T, **scales, bias=self.bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return result.view(*x.shape[:-1], -1)


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    """To eight bits; what is too large becomes the largest number there is."""
    return (x.float() * (1 / scale)).clamp(-LARGEST, LARGEST).to(KIND)


class Fp8Attention(Attention):
    """Attention between two such maps; for up to some hundred tokens one kernel, which hands on eight bits."""

    def __init__(self, config: ViTConfig, given: Attention) -> None:
        """With another's parts, whose linear maps are in eight bits."""
        with torch.device("meta"):
            super().__init__(config)
        for name, part in given.named_children():
            setattr(self, name, part)

    def forward(
        self,
        x: Tensor,
        turn: Tensor | None = None,
        offsets: Tensor | None = None,
        mask: Tensor | None = None,
        read: int | None = None,
        watch: Watch | None = None,
        reach: Tensor | None = None,
    ) -> Tensor:
        """What is watched, masked, turned or read in part goes the usual way, and is rounded elsewhere."""
        if any(one is not None for one in (turn, mask, read, watch)) or not self._has_kernel_for(x):
            return super().forward(x, turn, offsets, mask, read, watch, reach)
        from vitrail.model.kernels.mid_attention import mid_attention_in_eight_bits

        proj: nn.Module = self.proj
        assert isinstance(proj, Fp8Linear)
        mixed = mid_attention_in_eight_bits(self.qkv(x), self.num_heads, self.factor, proj.input_scale)
        return proj.product(mixed)

    def _has_kernel_for(self, x: Tensor) -> bool:
        plain = self.rel_pos is None and isinstance(self.q_norm, nn.Identity)
        few = x.shape[1] <= MID and self.head_dim in MID_WIDTHS
        return plain and few and half_on_gpu(x) is not None and is_hopper()


class Fp8Mlp(nn.Module):
    """Two such maps with GELU between, which hands on eight bits: on a GPU in its tanh form, which differs less than
    they do."""

    def __init__(self, fc1: Fp8Linear, act: nn.GELU, fc2: Fp8Linear) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = fc1, act, fc2

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        if half_on_gpu(hidden) is not None:
            from vitrail.model.kernels.gelu import gelu_in_eight_bits

            return self.fc2.product(gelu_in_eight_bits(hidden, self.fc2.input_scale))
        return self.fc2(self.act(hidden))


def quantise(model: ViT, pictures: Tensor) -> ViT:
    """A copy for inference, in bfloat16 with linear maps in eight bits; `pictures`, a few dozen like those to come, say
    how large tokens are."""
    strange = [name for name in ("embed_dim", "mlp_dim") if getattr(model.config, name) % 16]
    if strange:
        raise ConfigError(f"eight-bit products need {strange[0]} to be a multiple of 16: use bfloat16")
    small = copy.deepcopy(model).eval().requires_grad_(False)
    names = [name for name, part in small.blocks.named_modules() if isinstance(part, nn.Linear)]
    largest = dict.fromkeys(names, 0.0)

    def look(name: str, inputs: tuple[Tensor, ...]) -> None:
        largest[name] = max(largest[name], float(inputs[0].abs().amax()))

    parts = [(name, small.blocks.get_submodule(name)) for name in names]
    hooks = [part.register_forward_pre_hook(lambda _, given, name=name: look(name, given)) for name, part in parts]
    with torch.inference_mode():
        small(pictures)
    for hook in hooks:
        hook.remove()
    small = small.bfloat16()
    for name in names:
        owner, _, last = name.rpartition(".")
        linear = model.blocks.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        setattr(small.blocks.get_submodule(owner), last, Fp8Linear(linear, largest[name]))
    for block in small.blocks:
        assert isinstance(block.attn, Attention)
        block.attn = Fp8Attention(small.config, block.attn)
        if isinstance(block.mlp, Mlp) and isinstance(block.mlp.act, nn.GELU):
            fc1, fc2 = block.mlp.fc1, block.mlp.fc2
            assert isinstance(fc1, Fp8Linear)
            assert isinstance(fc2, Fp8Linear)
            block.mlp = Fp8Mlp(fc1, block.mlp.act, fc2)
    return small.eval()
