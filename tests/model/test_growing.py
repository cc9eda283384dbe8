"""A model that grows deeper: at first the same function, and every block learns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from vitrail.errors import ConfigError
from vitrail.model.config import ViTConfig
from vitrail.model.growing import grow, sources
from vitrail.model.vit import ViT

TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
TINY |= {"zero_head": False}
KINDS = {
    "plain": {},
    "layer scale": {"layer_scale": 1e-4},
    "small": {"qk_norm": True, "rope": True, "pool": "mean", "class_token": False},
    "distilled": {"distilled": True},
    "swiglu": {"mlp": "swiglu", "norm": "rms", "registers": 2},
    "relative": {"relative_bias": True, "positions": "sincos_2d"},
    "map": {"pool": "map", "positions": "learned_2d"},
    "noise": {"dropout": 0.3, "drop_path": 0.5},
}


def trained(**options: object) -> ViT:
    """Weights that no initialisation gives: none is zero, and no two blocks are alike."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**TINY, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.mark.parametrize("depth", [3, 4, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_the_grown_model_answers_as_the_shallow_one(kind, depth):
    shallow = trained(**KINDS[kind])
    deep = grow(shallow, shallow.config.replace(depth=depth))
    pictures = torch.randn(3, 3, 16, 16)
    assert len(deep.blocks) == depth
    torch.testing.assert_close(deep(pictures), shallow(pictures), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_a_new_block_learns_within_two_steps(kind):
    shallow = trained(**KINDS[kind], zero_head=False)
    deep = grow(shallow, shallow.config.replace(depth=4, drop_path=0.0)).train()
    before = {name: tensor.detach().clone() for name, tensor in deep.named_parameters()}
    optimiser = torch.optim.SGD(deep.parameters(), lr=0.1)
    pictures, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    for _ in range(2):
        optimiser.zero_grad()
        functional.cross_entropy(deep(pictures), labels).backward()
        optimiser.step()
    still = [name for name, tensor in deep.named_parameters() if torch.equal(tensor, before[name])]
    assert [name for name in still if name.startswith(("blocks.1.", "blocks.3."))] == []
    assert not torch.equal(deep.blocks[1].attn.proj.weight, deep.blocks[3].attn.proj.weight)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_trained_blocks_keep_their_order_and_lie_evenly(shallow, more):
    places = sources(shallow, shallow + more)
    assert places == sorted(places)
    assert sorted(set(places)) == list(range(shallow))
    assert places[0] == 0
    counts = [places.count(block) for block in range(shallow)]
    assert max(counts) - min(counts) <= 1


def test_blocks_whose_tokens_are_joined_are_those_after_which_they_came():
    shallow = trained(levels=(0, 1))
    pictures = torch.randn(2, 3, 16, 16)
    for levels in ((0, 3), (1, 2)):
        deep = grow(shallow, shallow.config.replace(depth=4, levels=levels))
        torch.testing.assert_close(deep(pictures), shallow(pictures), rtol=0, atol=1e-6)
    with pytest.raises(ConfigError, match="levels"):
        grow(shallow, shallow.config.replace(depth=4, levels=(0, 1)))


def test_other_classes_get_a_fresh_head_on_the_same_features():
    shallow = trained()
    deep = grow(shallow, shallow.config.replace(depth=3, num_classes=9), keep_head=False)
    pictures = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(deep.forward_features(pictures), shallow.forward_features(pictures), rtol=0, atol=1e-6)
    assert deep(pictures).shape == (2, 9)
    with pytest.raises(ConfigError, match="5 classes, not 9"):
        grow(shallow, shallow.config.replace(depth=3, num_classes=9))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 2}, "depth 2 does not grow to depth 2"),
        ({"depth": 1}, "choose more"),
        ({"embed_dim": 32}, "has embed_dim=16, not 32: only its depth may differ"),
        ({"num_heads": 4}, "num_heads"),
        ({"patch_size": 4}, "patch_size"),
        ({"img_size": 32}, "img_size"),
        ({"rope": True}, "rope"),
        ({"layer_scale": 1e-5}, "only the deeper one has a LayerScale"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said_in_one_line(changes, words):
    shallow = trained()
    with pytest.raises(ConfigError, match=words):
        grow(shallow, shallow.config.replace(**{"depth": 4, **changes}))
