"""Multi-head self-attention, once, and the pooling by attention (MAP) that is made like it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.model.config import ViTConfig
from vitrail.model.devices import cpu_multiplies_bf16, half_on_gpu, is_hopper, kernel_type
from vitrail.model.fp8_training import linear, linear_as_ever, reach_after, trains_in_eight_bits
from vitrail.model.halves import trained_weight
from vitrail.model.kernel_sizes import MID, MID_WIDTHS, SHORT, SHORT_WIDTHS, SINGLE, SINGLE_HEADS, TRAINED_WIDTHS
from vitrail.model.layers import Mlp, make_dropout, make_norm
from vitrail.model.positions import rotate

PLAIN = 640  # tokens for which a CPU trains by plain products: the weights that these keep add half to a block's memory


class Seen(NamedTuple):
    """What a watcher is shown of one attention."""

    weights: Callable[[], Tensor]  # computes softmax(q k / sqrt(d)) in float32: (batch, heads, queries, keys)
    values: Tensor  # (batch, heads, keys, head_dim)
    mixed: Tensor  # the values so weighted, as they go on, for the first queries: (batch, heads, read, head_dim)


Watch = Callable[[Seen], None]


def keep_weights(kept: dict[int, Tensor], block: int, seen: Seen) -> None:
    """A watcher, when the first two are given: it computes the weights and keeps them."""
    kept[block] = seen.weights()


class RelativeBias(nn.Module):
    """A learned bias for every offset between two patches."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        h, w = config.grid
        rows = (2 * h - 1) * (2 * w - 1) + (3 if config.num_prefix else 0)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, config.num_heads))

    def forward(self, index: Tensor) -> Tensor:
        """(…, heads, tokens, tokens) from (…, tokens, tokens)."""
        return self.relative_position_bias_table[index].movedim(-1, -3)


class Attention(nn.Module):
    """Softmax(q k / sqrt(d)) v for every head; the weights themselves are computed beside it, only when asked for."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.key_dim
        self.scale = config.attn_scale  # None: head_dim ** -0.5
        self.attn_dropout = config.attn_dropout
        inner = config.num_heads * config.key_dim
        self.qkv = nn.Linear(config.embed_dim, 3 * inner, bias=config.qkv_bias)
        self.q_norm = make_norm(config, config.key_dim) if config.qk_norm else nn.Identity()
        self.k_norm = make_norm(config, config.key_dim) if config.qk_norm else nn.Identity()
        self.rel_pos = RelativeBias(config) if config.relative_bias else None
        self.proj = nn.Linear(inner, config.embed_dim)
        self.proj_drop = make_dropout(config.dropout)

    def forward(
        self,
        x: Tensor,  # (batch, tokens, width)
        turn: Tensor | None = None,  # RoPE: (2, 1 or batch, 1, tokens, head_dim / 2)
        offsets: Tensor | None = None,  # relative bias: (1 or batch, tokens, tokens)
        mask: Tensor | None = None,  # keys that are seen: (batch, 1, 1, tokens)
        read: int | None = None,  # only the first tokens' results are wanted
        watch: Watch | None = None,  # is shown what happens here
        reach: Tensor | None = None,  # how long a token can be, where that is known
        bare: bool = False,  # without the projection's bias, if it `can_be_bare`
    ) -> Tensor:
        batch, tokens, _ = x.shape
        if mask is None and read is None and watch is None and self._has_kernel(x, turn):
            x = self._packed(x, turn, reach)
            return self._project(x, bare, self._largest_value(reach))
        qkv = linear(self.qkv, x, reach) if read is None else linear_as_ever(self.qkv, x)
        if mask is None and watch is None and self._is_single(qkv, turn):
            from vitrail.model.kernels.single_attention import single_attention

            return self.proj(single_attention(qkv, self.num_heads, self.factor, read or tokens))
        # unbinding before the transpose lets the backward pass gather the three gradients in one copy
        q, k, v = qkv.view(batch, tokens, 3, self.num_heads, self.head_dim).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (batch, heads, tokens, head_dim)
        q, k = self.q_norm(q), self.k_norm(k)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        bias = mask
        if self.rel_pos is not None:
            bias = self.rel_pos(offsets).to(q.dtype)
            if mask is not None:
                bias = bias.masked_fill(~mask, float("-inf"))
        weights = partial(attention_weights, q, k, bias, self.scale)
        if read is not None:
            q = q[:, :, :read]
            bias = bias[..., :read, :] if bias is not None and bias.shape[-2] > 1 else bias
        dropout = self.attn_dropout if self.training else 0.0
        if mask is None and self._is_by_products(v):
            x = attend_by_products(q, k, v, bias, dropout, self.scale)
        else:
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=self.scale)
        if watch is not None:
            watch(Seen(weights, v, x))
        del qkv, q, k, v, weights  # the projection can take their memory
        x = x.transpose(1, 2).flatten(2)  # (batch, tokens, heads * head_dim)
        return self._project(x, bare, None if dropout else self._largest_value(reach))

    def _project(self, x: Tensor, bare: bool, largest: Tensor | None) -> Tensor:
        return F.linear(x, trained_weight(self.proj)) if bare else self.proj_drop(linear(self.proj, x, largest))

    def can_be_bare(self, x: Tensor) -> bool:
        """Whether the projection's bias can be left to a norm that follows: where kernels of our own train."""
        is_plain = type(self.proj) is nn.Linear and isinstance(self.proj_drop, nn.Identity)
        return self.training and is_plain and kernel_type(x) is not None

    def _largest_value(self, reach: Tensor | None) -> Tensor | None:
        """What no number exceeds in values, and so in what attention makes of them."""
        if reach is None:
            return None
        first = 2 * self.num_heads * self.head_dim
        bias = None if self.qkv.bias is None else self.qkv.bias[first:]
        return reach_after(self.qkv.weight[first:], bias, reach)

    @property
    def factor(self) -> float:
        """What products of queries and keys are multiplied by."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    def _has_kernel(self, x: Tensor, turn: Tensor | None) -> bool:
        """Whether kernels of our own can do it. In training alone: what is read of a model must not depend on who
        watches."""
        if not self.training or self.rel_pos is not None or self.attn_dropout > 0 or half_on_gpu(x) is None:
            return False
        if not isinstance(self.q_norm, (nn.Identity, nn.RMSNorm)):
            return False
        if x.shape[1] <= SHORT:
            return self.head_dim in SHORT_WIDTHS
        plain = turn is None and isinstance(self.q_norm, nn.Identity)
        is_known = self.head_dim in (TRAINED_WIDTHS if plain else MID_WIDTHS)
        return is_known and x.shape[1] <= MID and kernel_type(x) is not None and is_hopper()

    def _is_single(self, qkv: Tensor, turn: Tensor | None) -> bool:
        """Whether one picture or a few are answered by a compiled model, which starts our kernel for them itself."""
        if self.training or torch.is_grad_enabled() or not torch.compiler.is_dynamo_compiling():
            return False
        plain = turn is None and self.rel_pos is None and isinstance(self.q_norm, nn.Identity) and self.factor > 0
        few = qkv.shape[1] <= SINGLE and len(qkv) * self.num_heads <= SINGLE_HEADS
        return plain and few and self.head_dim in MID_WIDTHS and half_on_gpu(qkv) == qkv.dtype

    def _is_by_products(self, values: Tensor) -> bool:
        """Whether plain products train faster: torch's fused kernel for CPUs is slow in bfloat16 on its way back."""
        is_half = values.is_cpu and values.dtype == torch.bfloat16
        return self.training and is_half and values.shape[-2] <= PLAIN and cpu_multiplies_bf16()

    def _packed(self, x: Tensor, turn: Tensor | None, reach: Tensor | None) -> Tensor:
        """The same as below up to the projection, (batch, tokens, heads * head_dim)."""
        from vitrail.model.kernels.packed_attention import PackedAttention

        norms = [norm.weight.float() if isinstance(norm, nn.RMSNorm) else None for norm in (self.q_norm, self.k_norm)]
        eps = self.q_norm.eps if isinstance(self.q_norm, nn.RMSNorm) else None
        angles = None if turn is None else turn.float().contiguous()
        kind = half_on_gpu(x)
        rest = *norms, angles, self.num_heads, self.factor, eps or 0.0
        if reach is not None and trains_in_eight_bits(self.qkv, x):
            from vitrail.model.kernels.eight_bit_attention import AttentionInEightBits

            return AttentionInEightBits.apply(x.to(kind), self.qkv.weight, self.qkv.bias, reach, *rest)
        return PackedAttention.apply(x.to(kind), trained_weight(self.qkv), self.qkv.bias, *rest)


def attend_by_products(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, scale: float | None
) -> Tensor:
    """The definition, in the numbers that come; autograd keeps the weights."""
    logits = (q * (scale or q.shape[-1] ** -0.5)) @ k.transpose(-2, -1)
    weights = (logits if bias is None else logits + bias).softmax(dim=-1)
    return F.dropout(weights, dropout) @ v


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """(batch, heads, queries, keys) in float32: each row adds up to one."""
    with torch.autocast(q.device.type, enabled=False):
        logits = q.float() @ k.float().transpose(-2, -1) * (scale or q.shape[-1] ** -0.5)
        if bias is not None:
            logits = logits.masked_fill(~bias, float("-inf")) if bias.dtype == torch.bool else logits + bias.float()
        return logits.softmax(dim=-1)


class AttentionPool(nn.Module):
    """MAP: one learned query attends to all tokens, then an MLP."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.embed_dim
        self.num_heads = config.num_heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = make_norm(config, width)
        self.mlp = Mlp(width, config.mlp_dim, config.act, 0.0)

    def forward(self, x: Tensor, mask: Tensor | None = None, watch: Watch | None = None) -> Tensor:
        """(batch, width) from (batch, tokens, width) and the tokens that are seen, (batch, 1, 1, tokens)."""
        batch, tokens, width = x.shape
        q = self.q(self.latent.expand(batch, -1, -1)).view(batch, 1, self.num_heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(batch, tokens, 2, self.num_heads, -1).unbind(2)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if watch is not None:
            watch(Seen(partial(attention_weights, q, k, mask, None), v, x))
        x = self.proj(x.transpose(1, 2).reshape(batch, width))
        return x + self.mlp(self.norm(x))
