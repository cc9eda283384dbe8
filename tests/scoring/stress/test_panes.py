"""Panes dropped, removed and shuffled, against definitions written out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import vitrail
from vitrail.scoring.stress.dice import Dice
from vitrail.scoring.stress.panes import blanked, by_saliency, dropped, kept, shuffled


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_shuffled_pictures_have_the_same_panes_in_the_order_that_was_drawn(n: int, rows: int, columns: int, seed: int):
    pictures = torch.rand(n, 2, 3 * rows, 2 * columns)
    order = Dice(torch.arange(n), seed, "shuffle").order(rows * columns)
    changed = shuffled(pictures, order, (rows, columns))
    for k in range(n):
        assert sorted(order[k].tolist()) == list(range(rows * columns))
        for place, origin in enumerate(order[k].tolist()):
            (r, c), (y, x) = divmod(place, columns), divmod(origin, columns)
            wanted = pictures[k, :, 3 * y : 3 * y + 3, 2 * x : 2 * x + 2]
            assert torch.equal(changed[k, :, 3 * r : 3 * r + 3, 2 * c : 2 * c + 2], wanted)


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_what_is_dropped_at_one_share_is_dropped_at_every_larger_one(panes: int, one: float, other: float) -> None:
    order = Dice(torch.arange(3), 0, "occlusion").order(panes)
    few, many = (dropped(order, share) for share in sorted((one, other)))
    assert (few.sum(dim=1) == round(min(one, other) * panes)).all()
    assert not (few & ~many).any()
    stay = kept(few)
    assert stay.shape == (3, panes - round(min(one, other) * panes))
    for k in range(3):
        assert stay[k].tolist() == [pane for pane in range(panes) if not few[k, pane]]


def test_every_pane_is_dropped_equally_often() -> None:
    gone = dropped(Dice(torch.arange(4000), 3, "occlusion").order(16), 0.25)
    assert np.abs(gone.double().mean(dim=0).numpy() - 0.25).max() < 0.03


def test_blanked_panes_are_the_mean_and_the_others_are_untouched() -> None:
    pictures = torch.rand(2, 3, 12, 8) + 1
    gone = torch.zeros(2, 12, dtype=torch.bool)
    gone[0, 5] = gone[1, 0] = True  # of 4 rows and 3 columns
    changed = blanked(pictures, gone, (4, 3))
    hidden = changed == 0
    assert torch.equal(changed[~hidden], pictures[~hidden])
    assert hidden[0, 0].nonzero().amin(dim=0).tolist() == [3, 6]  # columns of 8 pixels: 0 to 2, 3 to 5, 6 and 7
    assert hidden[0, 0].nonzero().amax(dim=0).tolist() == [5, 7]
    assert hidden[1, 0].nonzero().amax(dim=0).tolist() == [2, 2]


CONFIGS = {
    "class token": {},
    "registers": {"registers": 2},
    "distilled": {"distilled": True},
    "mean, RoPE": {
        "class_token": False,
        "pool": "mean",
        "positions": "none",
        "rope": True,
        "norm": "rms",
        "qk_norm": True,
    },
    "no positions": {"positions": "none"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_without_a_patch_is_the_model_on_the_other_tokens_by_hand(name: str) -> None:
    """In float64 with plain loops over heads; the oracle sees only the vectors of the patches that stay."""
    torch.manual_seed(0)
    small = {"img_size": 24, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    model = vitrail.create("vit_ti16", zero_head=False, **small, **CONFIGS[name]).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    pictures = torch.randn(2, 3, 24, 24, dtype=torch.double)
    gone = dropped(Dice(torch.arange(2), 0, "occlusion").order(9), 0.5)
    with torch.no_grad():
        ours = model(pictures, keep=kept(gone))
        for k in range(2):
            stay = [pane for pane in range(9) if not gone[k, pane]]
            apart = (ours[k] - by_hand(model, pictures[k], stay)).abs().max()
            assert apart < (1e-5 if model.config.rope else 1e-9)  # angles are float32 there


def by_hand(model, picture: torch.Tensor, stay: list[int]) -> torch.Tensor:
    config = model.config
    tokens = []
    for pane in stay:
        row, column = divmod(pane, 3)
        part = picture[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].reshape(-1)
        vector = model.patch_embed.proj.weight.flatten(1) @ part + model.patch_embed.proj.bias
        if model.pos_embed is not None:
            vector = vector + model.pos_embed[0, config.num_positioned + pane]
        tokens.append(vector)
    prefix = [t[0] for t in (model.cls_token, model.dist_token, model.reg_token) if t is not None]
    first = torch.cat(prefix) if prefix else torch.zeros(0, 16, dtype=torch.double)
    if model.pos_embed is not None:
        n = config.num_positioned
        first = torch.cat([first[:n] + model.pos_embed[0, :n], first[n:]])
    x = torch.cat([first, torch.stack(tokens)])
    for block in model.blocks:
        x = x + attention(block.attn, block.norm1(x), config, len(first), stay)
        x = x + block.mlp(block.norm2(x))
    x = model.norm(x)
    if config.distilled:
        return (model.head(x[0]) + model.head_dist(x[1])) / 2
    return model.head(x[0] if config.pool == "token" else model.fc_norm(x[len(first) :].mean(dim=0)))


def attention(module, x: torch.Tensor, config, prefix: int, stay: list[int]) -> torch.Tensor:
    d = config.key_dim
    q, k, v = module.qkv(x).view(len(x), 3, config.num_heads, d).permute(1, 2, 0, 3)
    if config.qk_norm:
        q, k = module.q_norm(q), module.k_norm(k)
    if config.rope:
        frequencies = [config.rope_theta ** (-band / (d // 4)) for band in range(d // 4)]
        angles = [[0.0] * (d // 2)] * prefix
        angles += [[place * f for place in (pane % 3, pane // 3) for f in frequencies] for pane in stay]
        turn = torch.tensor(angles, dtype=torch.double)
        q, k = (turned(one, turn.cos(), turn.sin()) for one in (q, k))
    heads = [F.softmax(q[h] @ k[h].T / d**0.5, dim=-1) @ v[h] for h in range(config.num_heads)]
    return module.proj(torch.cat(heads, dim=-1))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def test_saliency_is_an_order_of_the_panes_of_any_grid_for_both_kinds_of_model() -> None:
    torch.manual_seed(0)
    vit = vitrail.create("vit_ti16", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    resnet = vitrail.ResNet(
        vitrail.ResNetConfig(
            img_size=(32, 32), layers=(1, 1), width=32, small_stem=True, num_classes=3, zero_head=False
        )
    )
    for model in (vit, resnet):
        for grid in ((4, 4), (2, 4)):
            order = by_saliency(model.eval(), torch.randn(2, 3, 32, 32), grid)
            assert order.sort(dim=1).values.tolist() == [list(range(grid[0] * grid[1]))] * 2
