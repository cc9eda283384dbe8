"""Noise in training: what is dropped, how often, and that nothing is dropped when it counts."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitrail.model import ViT, ViTConfig
from vitrail.model.layers import DropPath

Build, Pictures = Callable[..., ViT], Callable[..., Tensor]


def test_drop_path_drops_whole_samples_and_scales_the_others() -> None:
    torch.manual_seed(0)
    drop, n = DropPath(0.3).train(), 4000
    out = drop(torch.ones(n, 3, 2))
    kept = out[:, 0, 0] > 0
    assert torch.equal(out, (kept / 0.7)[:, None, None].expand(n, 3, 2))
    assert abs(kept.float().mean() - 0.7) < 4 * (0.3 * 0.7 / n) ** 0.5
    assert torch.equal(drop.eval()(torch.ones(n, 3, 2)), torch.ones(n, 3, 2))


def test_rates_grow_linearly_with_depth_or_are_as_given(build: Build) -> None:
    def rates(model: ViT) -> list[float]:
        return [getattr(block.drop_path1, "rate", 0.0) for block in model.blocks]

    assert rates(build(depth=5, drop_path=0.2)) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert rates(build(depth=3, drop_path=(0.3, 0.0, 0.1))) == pytest.approx([0.3, 0, 0.1])
    assert ViTConfig(depth=1, num_heads=1, drop_path=0.5).drop_paths == (0.0,)
    for block in build(depth=3, drop_path=0.2).blocks:
        assert getattr(block.drop_path1, "rate", 0) == getattr(block.drop_path2, "rate", 0)


@torch.no_grad()
def test_a_block_leaves_its_branch_out_for_some_samples_and_doubles_it_for_the_others(build: Build) -> None:
    block = build(depth=1, drop_path=(0.5,)).blocks[0].train()
    block.mlp.fc2.weight.zero_()
    block.mlp.fc2.bias.zero_()
    x = torch.randn(400, 5, 32, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    added, branch = block(x) - x, block.attn(block.norm1(x))
    dropped = added.abs().amax((1, 2)) < 1e-6
    torch.testing.assert_close(added[~dropped], 2 * branch[~dropped], atol=1e-5, rtol=1e-5)
    assert 160 < dropped.sum() < 240  # 200 expected, four deviations of 10


@pytest.mark.parametrize("rate", ["dropout", "attn_dropout", "embed_dropout", "head_dropout", "drop_path"])
@torch.no_grad()
def test_noise_is_there_in_training_alone(rate: str, build: Build, pictures: Pictures) -> None:
    noisy, quiet = build(**{rate: 0.4}), build()
    x = pictures(noisy)
    assert torch.equal(noisy(x), quiet(x))
    assert torch.equal(quiet.train()(x), quiet.eval()(x))
    noisy.train()
    torch.manual_seed(0)
    first, second = noisy(x), noisy(x)
    torch.manual_seed(0)
    assert torch.equal(noisy(x), first)
    assert (second - first).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("rate", "place"),
    [
        ("dropout", "blocks.0.attn.proj_drop"),
        ("dropout", "blocks.0.mlp.drop1"),
        ("dropout", "blocks.0.mlp.drop2"),
        ("embed_dropout", "pos_drop"),
        ("head_dropout", "head_drop"),
    ],
)
@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
@torch.no_grad()
def test_dropout_drops_numbers_at_its_rate_and_scales_the_others(rate, place, mlp, build, pictures) -> None:
    model = build(**{rate: 0.25}, mlp=mlp, pool="mean").train()
    seen: list[tuple[Tensor, Tensor]] = []
    model.get_submodule(place).register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    torch.manual_seed(0)
    model(pictures(model, batch=64))
    before, after = seen[0]
    kept = after != 0
    torch.testing.assert_close(after[kept], before[kept] / 0.75)
    assert abs(kept.float().mean() - 0.75) < 5 * (0.25 * 0.75 / kept.numel()) ** 0.5


@torch.no_grad()
def test_both_heads_of_a_distilled_model_have_dropout(build: Build, pictures: Pictures) -> None:
    model = build(distilled=True, head_dropout=0.5)
    x = pictures(model)
    clean = model.forward_heads(model.forward_features(x))
    model.train()
    torch.manual_seed(0)
    noisy = model.forward_heads(model.forward_features(x))
    for before, after in zip(clean, noisy, strict=True):
        assert (after - before).abs().max() > 0.05


@torch.no_grad()
def test_noise_keeps_the_expected_value(build: Build, pictures: Pictures) -> None:
    """A linear read-out of dropped tokens is unbiased: the mean over many draws is the value without noise."""
    model = build(embed_dropout=0.3)
    x, seen = pictures(model, batch=1), []
    model.pos_drop.register_forward_hook(lambda _, __, out: seen.append(out))
    model(x)
    model.train()
    torch.manual_seed(0)
    model(x.expand(4000, -1, -1, -1))
    clean, noisy = seen[0][0], seen[1].mean(0)
    deviation = clean.abs() * (0.3 / 0.7 / 4000) ** 0.5
    assert ((noisy - clean).abs() <= 6 * deviation + 1e-6).all()
