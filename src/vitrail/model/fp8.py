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
        self.register_buffer("input_scale", scale.new_tensor(_step(largest)))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return self.product(_rounded(x, self.input_scale))

    def product(self, x: Tensor) -> Tensor:
        """Of tokens that are eight bits wide."""
        return _product(x, self.weight, self.input_scale, self.weight_scale, self.bias, torch.bfloat16)


class Fp8Hidden(Fp8Linear):
    """The same with a result of eight bits, over `out_scale`: half as much to write, and to read again."""

    out_scale: Tensor
    product_scale: Tensor

    def __init__(self, linear: nn.Linear, largest: float, largest_result: float) -> None:
        super().__init__(linear, largest)
        self.register_buffer("out_scale", self.input_scale.new_tensor(_step(largest_result)))
        self.register_buffer("product_scale", self.input_scale / self.out_scale)
        if linear.bias is not None:
            self.bias = (linear.bias.detach().float() / self.out_scale).bfloat16()

    def product(self, x: Tensor) -> Tensor:
        rest = x, self.weight, self.product_scale, self.weight_scale, self.bias
        # a GPU makes the largest number of what is too large; what a CPU makes of it is not said
        return _product(*rest, KIND) if x.is_cuda else _within(_product(*rest, torch.bfloat16))


def _product(
    x: Tensor, weight: Tensor, scale: Tensor, weight_scale: Tensor, bias: Tensor | None, kind: torch.dtype
) -> Tensor:
    tokens = x.flatten(0, -2)
    result = torch._scaled_mm(tokens, weight.T, scale, weight_scale, bias, out_dtype=kind, use_fast_accum=True)
    return result.view(*x.shape[:-1], -1)


def _step(largest: float) -> float:
    """What numbers are taken over, so that twice the largest that was seen still fits."""
    return max(ROOM * largest, 1e-12) / LARGEST


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    """To eight bits; what is too large becomes the largest number there is."""
    return _within(x.float() * (1 / scale))


def _within(x: Tensor) -> Tensor:
    return x.clamp(-LARGEST, LARGEST).to(KIND)


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
        bare: bool = False,
    ) -> Tensor:
        """What is watched, masked, turned or read in part goes the usual way, and is rounded elsewhere."""
        if any(one is not None for one in (turn, mask, read, watch)) or not self._has_kernel_for(x):
            return super().forward(x, turn, offsets, mask, read, watch, reach, bare)
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
    """Two such maps with GELU between, which is handed and hands on eight bits: on a GPU in its tanh form, which
    differs less than they do."""

    def __init__(self, fc1: Fp8Hidden, act: nn.GELU, fc2: Fp8Linear) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = fc1, act, fc2

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.fc1(x)
        if half_on_gpu(x) is not None:
            from vitrail.model.kernels.gelu import gelu_in_eight_bits

            return self.fc2.product(gelu_in_eight_bits(hidden, self.fc2.input_scale, self.fc1.out_scale))
        return self.fc2(self.act(hidden.float() * self.fc1.out_scale))


def quantise(model: ViT, pictures: Tensor) -> ViT:
    """A copy for inference, in bfloat16 with linear maps in eight bits; `pictures`, a few dozen like those to come, say
    how large tokens are."""
    strange = [name for name in ("embed_dim", "mlp_dim") if getattr(model.config, name) % 16]
    if strange:
        raise ConfigError(f"eight-bit products need {strange[0]} to be a multiple of 16: use bfloat16")
    small = copy.deepcopy(model).eval().requires_grad_(False)
    sizes = _largest(small, pictures)
    small = small.bfloat16()
    for name, (given, _) in sizes.items():
        owner, _, last = name.rpartition(".")
        setattr(small.blocks.get_submodule(owner), last, Fp8Linear(_linear(model, name), given))
    for number, block in enumerate(small.blocks):
        assert isinstance(block.attn, Attention)
        block.attn = Fp8Attention(small.config, block.attn)
        if isinstance(block.mlp, Mlp) and isinstance(block.mlp.act, nn.GELU):
            name, fc2 = f"{number}.mlp.fc1", block.mlp.fc2
            assert isinstance(fc2, Fp8Linear)
            block.mlp = Fp8Mlp(Fp8Hidden(_linear(model, name), *sizes[name]), block.mlp.act, fc2)
    return small.eval()


def _linear(model: ViT, name: str) -> nn.Linear:
    found = model.blocks.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


def _largest(model: ViT, pictures: Tensor) -> dict[str, tuple[float, float]]:
    """The largest number that each linear map of the blocks is given, and that it makes."""
    found: dict[str, tuple[float, float]] = {}

    def look(name: str, given: tuple[Tensor, ...], made: Tensor) -> None:
        found[name] = float(given[0].abs().amax()), float(made.abs().amax())

    parts = [(name, part) for name, part in model.blocks.named_modules() if isinstance(part, nn.Linear)]
    hooks = [part.register_forward_hook(lambda _, *seen, name=name: look(name, *seen)) for name, part in parts]
    with torch.inference_mode():
        model(pictures)
    for hook in hooks:
        hook.remove()
    return found
