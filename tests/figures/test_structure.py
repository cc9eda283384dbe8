"""Filters, positions and distances against closed forms and other people's components."""

import math

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from tests.figures.models import KINDS, make, make_resnet, pictures_for
from vitrail import figures
from vitrail.figures.structure import patch_distances
from vitrail.model import ResNetConfig, ViT


def with_uniform_attention(model: ViT) -> ViT:
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.zero_()
            block.attn.qkv.bias.zero_()
    return model


def test_distances_are_those_between_the_centres_of_patches_in_pixels() -> None:
    model = make(img_size=(8, 24), patch_size=8)
    assert patch_distances(model, (8, 24)).tolist() == [[0, 8, 16], [8, 0, 8], [16, 8, 0]]
    overlapping = make(img_size=(16, 16), patch_size=8, stride=4)
    assert patch_distances(overlapping, (16, 16))[0].tolist() == pytest.approx(
        [4 * math.hypot(row, column) for row in range(3) for column in range(3)]
    )
    assert patch_distances(make("convolutions first"), (32, 32))[0, :3].tolist() == [0, 8, 16]


def test_uniform_attention_looks_as_far_as_patches_are_apart_in_the_mean() -> None:
    two = with_uniform_attention(make(img_size=(8, 16), patch_size=8))
    far = figures.attention_distance(two, pictures_for(two))
    assert far.shape == (2, 3, 4)
    torch.testing.assert_close(far, torch.full((2, 3, 4), 4.0))  # half to itself, half 8 pixels away
    four = with_uniform_attention(make(img_size=16, patch_size=8, registers=2))
    wanted = (0 + 8 + 8 + 8 * 2**0.5) / 4
    torch.testing.assert_close(figures.attention_distance(four, pictures_for(four)), torch.full((2, 3, 4), wanted))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_distance_is_the_weighted_mean_written_out(kind: str) -> None:
    model = make(kind, depth=1, levels=()).eval()
    pixels, prefix = pictures_for(model, 1), model.config.num_prefix
    weights = model.forward_intermediates(pixels, attention=0).attention[0][0].double().tolist()
    distances = patch_distances(model, model.config.img_size).tolist()
    for head, rows in enumerate(weights):
        means = []
        for query, row in enumerate(rows[prefix:]):
            total = sum(row[prefix:])
            means.append(sum(w * d for w, d in zip(row[prefix:], distances[query], strict=True)) / total)
        got = figures.attention_distance(model, pixels)[0, 0, head]
        assert float(got) == pytest.approx(sum(means) / len(means), rel=1e-5)


GRIDS = [(14, 14), (7, 28), (37, 37)]


@pytest.mark.parametrize("grid", GRIDS)
def test_learned_positions_are_compared_by_their_cosine(grid: tuple[int, int]) -> None:
    model = make(img_size=(grid[0] * 8, grid[1] * 8), registers=1)
    (kind, values), *others = figures.position_similarity(model).items()
    assert kind == "learned"
    assert not others
    assert values.shape == (*grid, *grid)
    table = model.pos_embed[0, 2:].detach().double().numpy()
    for one, other in ((0, 5), (17, 17), (grid[0] * grid[1] - 1, 3)):
        wanted = table[one] @ table[other] / np.linalg.norm(table[one]) / np.linalg.norm(table[other])
        assert float(values.flatten(2).flatten(0, 1)[one, other]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
def test_fixed_positions_and_rotations_have_their_closed_form(grid: tuple[int, int]) -> None:
    size = (grid[0] * 8, grid[1] * 8)
    model = make(img_size=size, positions="sincos_2d", rope=True, num_heads=2)
    found = figures.position_similarity(model)
    assert list(found) == ["fixed", "rope"]
    fixed = [10_000 ** -(band / 7) for band in range(8)]  # width 32: eight frequencies for each axis
    turning = [100 ** -(band / 4) for band in range(4)]  # head of 16: four
    for (row, column), (y, x) in (((0, 0), (3, 6)), ((2, 5), (6, 1))):
        for kind, frequencies in (("fixed", fixed), ("rope", turning)):
            wanted = sum(math.cos(f * (row - y)) + math.cos(f * (column - x)) for f in frequencies)
            got = float(found[kind][row, column, y, x])
            assert got == pytest.approx(wanted / len(frequencies) / 2, abs=1e-5)


def test_other_positions_and_none() -> None:
    axes = figures.position_similarity(make(positions="learned_2d"))["learned"]
    torch.testing.assert_close(axes[2, 2, 2, 2], torch.tensor(1.0))
    model = make("relative bias", positions="none")
    bias = figures.position_similarity(model)["bias"]
    assert bias.shape == (4, 4, 4, 4)
    torch.testing.assert_close(bias[0, 0, 1, 2], bias[2, 1, 3, 3])  # the same offset
    tables = torch.stack([block.attn.rel_pos.relative_position_bias_table for block in model.blocks])
    torch.testing.assert_close(bias[1, 1, 1, 1], tables[:, 24].mean().detach())  # 49 offsets: none is in the middle
    assert figures.position_similarity(make(positions="none")) == {}


def test_components_of_filters_are_scikit_learns() -> None:
    model = make(embed_dim=96)
    found = figures.filter_components(model, 10)
    assert found.filters.shape == (10, 3, 8, 8)
    weight = model.patch_embed.proj.weight.detach().flatten(1).numpy()
    wanted = PCA(10, svd_solver="full").fit(weight.astype(np.float64))
    np.testing.assert_allclose(found.share, wanted.explained_variance_ratio_, rtol=1e-4)
    cosines = (found.filters.flatten(1).numpy() * wanted.components_).sum(1)
    np.testing.assert_allclose(np.abs(cosines), 1, rtol=1e-4)


def test_filters_are_those_that_read_pixels() -> None:
    assert figures.filter_components(make("convolutions first")).filters.shape == (16, 3, 3, 3)
    assert figures.filter_components(make_resnet(), 5).filters.shape == (5, 3, 7, 7)
    stem = ResNetConfig(img_size=32, layers=(), width=32, preact=False, num_classes=0)
    hybrid = make(backbone=stem, patch_size=1)
    assert figures.filter_components(hybrid, 5).filters.shape == (5, 3, 7, 7)
