"""The encoder block: equations 2 and 3."""

from __future__ import annotations

from torch import Tensor, nn

from vitrail.model.attention import Attention, Watch
from vitrail.model.config import ViTConfig
from vitrail.model.fp8_training import foretold
from vitrail.model.layers import DropPath, LayerScale, Mlp, SwiGLU, beside_norm, make_norm


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
        x: Tensor,
        turn: Tensor | None = None,
        offsets: Tensor | None = None,
        mask: Tensor | None = None,
        read: int | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """Tokens in, tokens out; with `read`, only that many of the first tokens come out."""
        x, normed = beside_norm(x, self.norm1)
        known = foretold(self.norm1, self.attn)
        x = x[:, :read] + self.drop_path1(self.ls1(self.attn(normed, turn, offsets, mask, read, watch, **known)))
        x, normed = beside_norm(x, self.norm2)
        return x + self.drop_path2(self.ls2(self.mlp(normed, **foretold(self.norm2, self.mlp))))
