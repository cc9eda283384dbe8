"""Looking inside: attention weights and the tokens of every block, without touching the logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ViT

Build, Pictures = Callable[..., ViT], Callable[..., Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mean": {"pool": "mean"},
    "no qkv bias": {"qkv_bias": False},
    "scale": {"attn_scale": 0.3, "head_dim": 12},
    "relative bias": {"relative_bias": True, "registers": 2},
    "rope, qk-norm": {"rope": True, "qk_norm": True},
    "distilled": {"distilled": True},
}


def by_hand(model: ViT, x: Tensor, block: int) -> Tensor:
    """softmax(q k^T / sqrt(d)) from what `qkv` gave, written out."""
    config, seen = model.config, []
    hook = model.blocks[block].attn.qkv.register_forward_hook(lambda _, __, out: seen.append(out))
    model(x)
    hook.remove()
    heads, d = config.num_heads, config.head_dim or config.embed_dim // config.num_heads
    q, k, _ = seen[0].double().unflatten(-1, (3, heads, d)).unbind(2)  # (batch, tokens, heads, d)
    scale = config.attn_scale or d**-0.5
    return (torch.einsum("bihd,bjhd->bhij", q, k) * scale).softmax(-1).float()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_attention_weights_are_rows_that_add_up_to_one(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**KINDS[kind])
    out = model.forward_intermediates(pictures(model), attention="all")
    n = model.config.num_prefix + 16
    assert sorted(out.attention) == [0, 1]
    for weights in out.attention.values():
        assert weights.shape == (2, 4, n, n)
        assert weights.dtype == torch.float32
        assert (weights >= 0).all()
        assert (weights.sum(-1) - 1).abs().max() < 1e-5
        assert weights.std() > 0.005


@pytest.mark.parametrize("kind", ["plain", "mean", "no qkv bias", "scale", "distilled"])
@torch.no_grad()
def test_attention_weights_are_the_softmax_of_queries_and_keys(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**KINDS[kind])
    x = pictures(model)
    out = model.forward_intermediates(x, attention=[0, -1])
    for block in (0, 1):
        torch.testing.assert_close(out.attention[block], by_hand(model, x, block), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "scale", "relative bias", "rope, qk-norm"])
@torch.no_grad()
def test_attention_weights_are_those_the_kernel_used(kind: str, build: Build, pictures: Pictures) -> None:
    """Values that are one in one place and zero elsewhere carry the kernel's own weights out of it."""
    model = build(**KINDS[kind] | {"pool": "mean", "num_heads": 1, "embed_dim": 32, "head_dim": None})
    attn, seen = model.blocks[0].attn, []
    n = model.config.num_prefix + 16
    attn.qkv.register_forward_hook(
        lambda _, __, out: torch.cat([out[..., :64], torch.eye(n, 32).expand(2, -1, -1)], -1)
    )
    attn.proj.register_forward_hook(lambda _, args, __: seen.append(args[0]))
    out = model.forward_intermediates(pictures(model), attention=[0])
    torch.testing.assert_close(out.attention[0][:, 0], seen[0][..., :n], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@torch.no_grad()
def test_asking_for_attention_changes_no_bit_of_the_logits(
    kind: str, autocast: bool, build: Build, pictures: Pictures
) -> None:
    model = build(**KINDS[kind])
    x = pictures(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert torch.equal(model.forward_intermediates(x, attention="all").logits, model(x))


@torch.no_grad()
def test_attention_weights_are_float32_under_autocast_too(build: Build, pictures: Pictures) -> None:
    model = build()
    with torch.autocast("cpu", torch.bfloat16):
        out = model.forward_intermediates(pictures(model), attention="all")
    for weights in out.attention.values():
        assert weights.dtype == torch.float32
        assert (weights.sum(-1) - 1).abs().max() < 1e-5
    full = model.forward_intermediates(pictures(model), attention=[0]).attention[0]
    torch.testing.assert_close(out.attention[0].float(), full, atol=0.02, rtol=0)


@torch.no_grad()
def test_a_compiled_model_is_one_graph_and_asking_changes_no_bit_of_its_logits(
    build: Build, pictures: Pictures
) -> None:
    model = build(depth=1, embed_dim=16, num_heads=2)
    x = pictures(model)
    plain = torch.compile(model, fullgraph=True)
    watched = torch.compile(lambda x: model.forward_intermediates(x, attention="all"), fullgraph=True)
    out = watched(x)
    assert torch.equal(out.logits, plain(x))
    torch.testing.assert_close(out.logits, model(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.attention[0].sum(-1), torch.ones(2, 2, 17))


@torch.no_grad()
def test_intermediate_tokens_are_what_each_block_gave(build: Build, pictures: Pictures) -> None:
    model = build(depth=3, registers=1)
    x, seen = pictures(model), []
    hooks = [block.register_forward_hook(lambda _, __, out: seen.append(out)) for block in model.blocks]
    features = model.forward_features(x)
    for hook in hooks:
        hook.remove()
    out = model.forward_intermediates(x, "all")
    assert sorted(out.tokens) == [0, 1, 2]
    assert all(torch.equal(out.tokens[i], seen[i]) for i in range(3))
    assert out.attention == {}
    normed = model.forward_intermediates(x, [-1], norm=True).tokens[2]
    assert torch.equal(normed, features)
    torch.testing.assert_close(out.logits, model(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_maps_are_the_patches_in_their_places(build: Build, pictures: Pictures) -> None:
    model = build(img_size=(24, 40), registers=2)
    x = pictures(model)
    tokens = model.forward_intermediates(x, [0]).tokens[0]
    maps = model.forward_intermediates(x, [0], maps=True).tokens[0]
    assert tokens.shape == (2, 3 + 15, 32)
    assert maps.shape == (2, 32, 3, 5)
    for row in range(3):
        for column in range(5):
            assert torch.equal(maps[:, :, row, column], tokens[:, 3 + row * 5 + column])


@torch.no_grad()
def test_blocks_count_from_the_end_too(build: Build, pictures: Pictures) -> None:
    model = build(depth=3)
    x = pictures(model)
    out, same = model.forward_intermediates(x, [-1, -3], attention=[-2]), model.forward_intermediates(x, [2, 0])
    assert sorted(out.tokens) == [0, 2]
    assert sorted(out.attention) == [1]
    assert all(torch.equal(out.tokens[i], same.tokens[i]) for i in (0, 2))


@pytest.mark.parametrize("wrong", [3, -4, "first", 1.0])
def test_a_block_that_does_not_exist_is_named(wrong: object, build: Build, pictures: Pictures) -> None:
    model = build(depth=3)
    for where in ("layers", "attention"):
        with pytest.raises(ConfigError, match=f"no block {wrong!r}: the model has blocks 0 to 2"):
            model.forward_intermediates(pictures(model), **{where: [wrong]})


@torch.no_grad()
def test_levels_and_intermediates_do_not_disturb_each_other(build: Build, pictures: Pictures) -> None:
    model = build(depth=3, levels=(0, 2), pool="token_mean")
    x = pictures(model)
    out = model.forward_intermediates(x, [1], attention=[0])
    assert sorted(out.tokens) == [1]
    assert torch.equal(out.logits, model(x))
