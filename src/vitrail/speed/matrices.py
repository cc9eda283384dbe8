"""The matrices inside a model's blocks: what eight bits multiply, and what Muon makes orthogonal."""

from __future__ import annotations

from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.walk import tokens

ROUNDS = 5  # of Newton and Schulz, in a step of Muon


def matrices(config: ViTConfig | ResNetConfig) -> list[tuple[int, int]]:
    """Rows and columns of each in one block, packed ones taken apart."""
    if isinstance(config, ResNetConfig):
        return []
    width, inner, hidden = config.embed_dim, config.num_heads * config.key_dim, config.mlp_dim
    gated = config.mlp == "swiglu"
    mlp = [(hidden // 2, width)] * 2 + [(width, hidden // 2)] if gated else [(hidden, width), (width, hidden)]
    return [(inner, width)] * 3 + [(width, inner)] + mlp


def _numbers(config: ViTConfig | ResNetConfig) -> int:
    depth = config.depth if isinstance(config, ViTConfig) else 0
    return depth * sum(rows * columns for rows, columns in matrices(config))


def linear_flops(config: ViTConfig | ResNetConfig) -> int:
    """Of the blocks' linear maps, for one picture, forward."""
    return 2 * tokens(config) * _numbers(config)


def muon_flops(config: ViTConfig | ResNetConfig) -> int:
    """Of a step's update, whatever the batch: of m x n, m ≤ n, its square, the square of that, and their product."""
    pairs = [sorted(shape) for shape in matrices(config)]
    depth = config.depth if isinstance(config, ViTConfig) else 0
    return depth * ROUNDS * sum(2 * m * m * n + 2 * m**3 + 2 * m * m * n for m, n in pairs)


def muon_bytes(config: ViTConfig | ResNetConfig) -> int:
    """The same of what it carries: in each round, a matrix is read for its square, and for the sum that replaces it."""
    return ROUNDS * 2 * 4 * _numbers(config)
