"""The encoder block: equations 2 and 3."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitrail.model.attention import Attention, Watch
from vitrail.model.config import ViTConfig
from vitrail.model.fp8_training import foretold
from vitrail.model.layers import DropPath, LayerScale, Mlp, Sum, SwiGLU, beside_norm, make_norm


class Block(nn.Module):
    """z' = MSA(LN(z)) + z, then MLP(LN(z')) + z'."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        width, scale = config.embed_dim, config.layer_scale
        self.norm1 = make_norm(config, width)
        self.attn = Attention(config)
        self.ls1 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = make_norm(config, width)
        if config.mlp == "swiglu":
            self.mlp: Mlp | SwiGLU = SwiGLU(width, config.mlp_dim, config.dropout)
        else:
            self.mlp = Mlp(width, config.mlp_dim, config.act, config.dropout)
        self.ls2 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(
        self,
        x: Tensor | Sum,
        turn: Tensor | None = None,
        offsets: Tensor | None = None,
        mask: Tensor | None = None,
        read: int | None = None,
        watch: Watch | None = None,
        defer: bool = False,
    ) -> Tensor | Sum:
        """Tokens in, tokens out; with `read`, only that many of the first tokens come out. With `defer`, the last sum
        is left to the next block's norm, which does it in the same pass."""
        x, normed = beside_norm(x, self.norm1)
        bare = self._leaves_bias(self.attn, self.ls1, normed)
        known = foretold(self.norm1, self.attn) | bare
        branch = self.ls1(self.attn(normed, turn, offsets, mask, read, watch, **known))
        x = x if read is None else x[:, :read]
        x = Sum(x, branch, self.attn.proj.bias if bare else None, _factor(self.drop_path1, branch))
        x, normed = beside_norm(x, self.norm2)
        bare = self._leaves_bias(self.mlp, self.ls2, normed)
        branch = self.ls2(self.mlp(normed, **foretold(self.norm2, self.mlp) | bare))
        x = Sum(x, branch, self.mlp.fc2.bias if bare else None, _factor(self.drop_path2, branch))
        return x if defer else x.added()

    def _leaves_bias(self, branch: nn.Module, scale: nn.Module, x: Tensor) -> dict[str, Any]:
        """What tells a branch to leave its last bias to the norm that follows, if it can."""
        if not self.training or not isinstance(scale, nn.Identity) or not isinstance(branch, (Attention, Mlp)):
            return {}
        return {"bare": True} if branch.can_be_bare(x) else {}


def _factor(drop_path: nn.Module, branch: Tensor) -> Tensor | None:
    """What drop-path multiplies each sample's branch by."""
    return drop_path.factor(branch) if isinstance(drop_path, DropPath) else None
