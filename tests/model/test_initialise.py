"""What a fresh model is filled with: the statistics that the paper's, DeiT's and PyTorch's initialisations promise."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.model import ViT, ViTConfig
from vitrail.model.attention import keep_weights

SMALL: dict[str, Any] = {"img_size": 64, "embed_dim": 96, "depth": 2, "num_heads": 3, "num_classes": 100}


def fresh(seed: int = 0, **changes: Any) -> ViT:
    torch.manual_seed(seed)
    return ViT(ViTConfig(**{**SMALL, **changes}))


def assert_uniform(weight: Tensor, bound: float) -> None:
    assert 0.98 * bound < weight.abs().max() <= bound
    assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert abs(weight.mean()) < 0.03 * bound


@torch.no_grad()
def test_the_papers_matrices_are_glorots_with_each_of_q_k_v_a_matrix_of_its_own() -> None:
    model = fresh(mlp_ratio=4)
    for block in model.blocks:
        for part in block.attn.qkv.weight.split(96):
            assert_uniform(part, math.sqrt(6 / (96 + 96)))
        assert_uniform(block.attn.proj.weight, math.sqrt(6 / (96 + 96)))
        assert_uniform(block.mlp.fc1.weight, math.sqrt(6 / (96 + 384)))
        assert_uniform(block.mlp.fc2.weight, math.sqrt(6 / (96 + 384)))
    pool = fresh(pool="map").attn_pool
    for part in (pool.q.weight, *pool.kv.weight.split(96), pool.proj.weight):
        assert_uniform(part, math.sqrt(6 / (96 + 96)))


@torch.no_grad()
def test_the_papers_biases_are_zero_but_for_the_mlps_which_are_a_millionth() -> None:
    model = fresh()
    for name, tensor in model.named_parameters():
        if ".mlp." in name and name.endswith("bias"):
            assert tensor.std() == pytest.approx(1e-6, rel=0.3)
        elif name.endswith("bias"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert (tensor == 1).all(), name


@torch.no_grad()
def test_the_papers_tokens_positions_and_head() -> None:
    model = fresh(img_size=224, registers=4)
    assert not model.cls_token.any()
    assert not model.head.weight.any()
    assert model.pos_embed.std() == pytest.approx(0.02, rel=0.03)
    registers = model.reg_token[0]
    assert len({tuple(row.tolist()) for row in registers}) == 4  # equal ones would stay equal for ever
    assert not model(torch.randn(2, 3, 224, 224)).any()


@torch.no_grad()
def test_the_papers_patch_projection_is_lecuns_truncated_normal() -> None:
    """Flax's lecun_normal: variance 1 / fan_in after the cut, which is at two deviations of the uncut normal."""
    for chans, patch in ((3, 16), (1, 8)):
        weight = fresh(in_chans=chans, patch_size=patch, embed_dim=192).patch_embed.proj.weight
        deviation = math.sqrt(1 / (chans * patch**2))
        assert weight.std() == pytest.approx(deviation, rel=0.03)
        assert weight.abs().max() <= 2 * deviation / 0.87962566103423978 * (1 + 1e-6)


@torch.no_grad()
def test_the_line_of_deit_has_normals_of_two_hundredths_and_heads_of_one() -> None:
    model = fresh(init="trunc_normal", zero_head=False, distilled=True, num_classes=1000)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            deviation = 0.01 if name in ("head", "head_dist") else 0.02
            assert module.weight.std() == pytest.approx(deviation, rel=0.03), name
            assert not module.bias.any(), name
    assert model.pos_embed.std() == pytest.approx(0.02, rel=0.06)
    for token in (model.cls_token, model.dist_token):
        assert token.std() == pytest.approx(0.02, rel=0.3)


@torch.no_grad()
def test_the_plain_initialisation_is_pytorchs() -> None:
    model = fresh(init="plain", zero_head=False)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            bound = module.in_features**-0.5
            assert_uniform(module.weight, bound)
            assert module is model.head or 0 < module.bias.abs().max() <= bound


@torch.no_grad()
@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_blocks_that_begin_as_the_identity_leave_tokens_alone(mlp: str) -> None:
    model = fresh(init="identity", mlp=mlp)
    tokens = torch.randn(2, 17, model.config.embed_dim)
    for block in model.blocks:
        assert torch.equal(block(tokens), tokens)
        q, k, v = block.attn.qkv.weight.chunk(3)
        assert torch.equal(q, k)
        assert not torch.equal(k, v)
    paper = fresh(init="paper", mlp=mlp).state_dict()
    same = [
        name for name in paper if not name.endswith(("attn.proj.weight", "attn.qkv.weight", "fc2.weight", "fc2.bias"))
    ]
    assert all(torch.equal(paper[name], model.state_dict()[name]) for name in same)


def test_the_three_initialisations_differ_and_a_seed_settles_each() -> None:
    states = {init: fresh(init=init).state_dict() for init in ("paper", "trunc_normal", "plain")}
    for init, state in states.items():
        again, other = fresh(init=init).state_dict(), fresh(1, init=init).state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())
        assert not torch.equal(state["blocks.1.mlp.fc1.weight"], other["blocks.1.mlp.fc1.weight"])
        for another in set(states) - {init}:
            for name in ("blocks.0.attn.qkv.weight", "blocks.0.mlp.fc2.weight", "patch_embed.proj.weight"):
                assert not torch.equal(state[name], states[another][name]), (init, another, name)


@pytest.mark.parametrize(("head_bias", "wanted"), [("prior", -math.log(100)), (-10, -10.0), (0.0, 0.0)])
@pytest.mark.parametrize("init", ["paper", "trunc_normal", "plain"])
@torch.no_grad()
def test_the_first_answer_of_a_fresh_model_is_its_head_bias(init: str, head_bias: Any, wanted: float) -> None:
    model = fresh(init=init, head_bias=head_bias)
    torch.testing.assert_close(model(torch.randn(2, 3, 64, 64)), torch.full((2, 100), wanted))


@torch.no_grad()
def test_a_head_that_is_not_zero_answers_differently_for_different_pictures() -> None:
    for init in ("paper", "trunc_normal", "plain"):
        logits = fresh(init=init, zero_head=False)(torch.randn(2, 3, 64, 64))
        assert (logits[0] - logits[1]).abs().max() > 1e-3, init


@torch.no_grad()
def test_layer_scale_starts_at_its_value_and_relative_biases_start_small() -> None:
    model = fresh(layer_scale=1e-5, relative_bias=True, img_size=160)
    for block in model.blocks:
        assert (block.ls1.gamma == 1e-5).all()
        assert (block.ls2.gamma == 1e-5).all()
        assert block.attn.rel_pos.relative_position_bias_table.std() == pytest.approx(0.02, rel=0.1)


@torch.no_grad()
def test_heads_that_begin_local_look_at_their_neighbours_and_farther_in_the_upper_blocks() -> None:
    """Blind to what patches hold, a patch in the middle looks most at the one that its head was given."""
    rope = {"rope": True, "qk_norm": True, "norm": "rms", "class_token": False, "pool": "mean"}
    model = fresh(img_size=144, embed_dim=256, num_heads=8, init="local", **rope)
    seen: dict[int, Tensor] = {}
    for block in model.blocks:
        block.attn.qkv.weight.zero_()
    model(torch.randn(1, 3, 144, 144), watch={block: partial(keep_weights, seen, block) for block in (0, 1)})
    around = {(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)} - {(0, 0)}
    for block, distance in ((0, 1), (1, 2)):
        peaks = {(int(at) // 9 - 4, int(at) % 9 - 4) for at in seen[block][0, :, 4 * 9 + 4].argmax(-1)}
        assert peaks == {(distance * y, distance * x) for y, x in around}
    assert not model.blocks[0].attn.proj.weight.any()  # and every block begins as the identity
