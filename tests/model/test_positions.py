"""Where a patch is: tables against closed forms, rotations against complex numbers, resizing against the originals."""

import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.model import ViT
from vitrail.model.positions import (
    Resampling,
    relative_index,
    resample_patches,
    resize_bias_table,
    resize_line,
    resize_map,
    resize_positions,
    rotate,
    rotations,
    sincos_1d,
    sincos_2d,
)

CPU = torch.device("cpu")
Build = Callable[..., ViT]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_sincos_1d_is_the_formula_of_attention_is_all_you_need() -> None:
    table = sincos_1d(50, 12).numpy()
    for pos in range(50):
        for i in range(6):
            angle = pos / 10_000 ** (2 * i / 12)
            assert table[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_sincos_2d_has_sines_and_cosines_of_the_column_then_of_the_row() -> None:
    table = sincos_2d((3, 5), 16).numpy().reshape(3, 5, 4, 4)
    for row in range(3):
        for column in range(5):
            for i in range(4):
                rate = 10_000 ** (-i / 3)
                wanted = [np.sin(column * rate), np.cos(column * rate), np.sin(row * rate), np.cos(row * rate)]
                np.testing.assert_allclose(table[row, column, :, i], wanted, atol=1e-6)


def test_fixed_positions_leave_the_prefix_alone_and_are_not_learned(build: Build) -> None:
    model = build(positions="sincos_2d", registers=2)
    assert "pos_embed" not in dict(model.named_parameters())
    assert torch.equal(model.state_dict()["pos_embed"][0, :3], torch.zeros(3, 32))
    assert torch.equal(model.state_dict()["pos_embed"][0, 3:], sincos_2d((4, 4), 32))


def turned(x: Tensor, grid: tuple[int, int], theta: float = 100.0, num_prefix: int = 0) -> Tensor:
    return rotate(x, rotations(grid, x.shape[-1], theta, num_prefix, CPU))


@pytest.mark.parametrize("positions", ["sincos_1d", "sincos_2d"])
def test_sines_for_another_grid_are_computed_where_the_model_is(build: Build, positions: str) -> None:
    """A recorded step waits for no copy. The device without numbers stands for another one."""

    class OnMeta(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            for one in found if isinstance(found, list | tuple) else [found]:
                assert not isinstance(one, Tensor) or one.is_meta, func
            return found

    model = build(positions=positions, dynamic_img_size=True).to("meta")
    with OnMeta():
        table = model.position_table((3, 5))
    assert table is not None
    assert table.is_meta
    assert table.shape[1] == model.config.num_positioned + 15


def test_rope_multiplies_pairs_of_channels_by_complex_numbers() -> None:
    grid, width, theta = (3, 4), 16, 50.0
    x = noise(2, 2, 12, width)
    as_complex = np.asarray(x[..., ::2]) + 1j * np.asarray(x[..., 1::2])
    rows, columns = np.divmod(np.arange(12), 4)
    rates = theta ** (-np.arange(4) / 4)
    turn = np.exp(1j * np.concatenate([columns[:, None] * rates, rows[:, None] * rates], axis=1))
    wanted = as_complex * turn
    out = turned(x, grid, theta)
    np.testing.assert_allclose(out[..., ::2], wanted.real, atol=1e-5)
    np.testing.assert_allclose(out[..., 1::2], wanted.imag, atol=1e-5)


def test_rope_makes_attention_depend_on_differences_of_coordinates_alone() -> None:
    """One query and one key put at every place: their product is the same wherever the offset is the same."""
    q, k = noise(16), noise(16, seed=1)
    queries, keys = (turned(v.expand(1, 1, 35, 16), (5, 7))[0, 0] for v in (q, k))
    products = (queries @ keys.T).reshape(5, 7, 5, 7)
    for down, right in ((0, 0), (1, 0), (0, 1), (2, 3), (-1, 2)):
        same = [
            products[y, x, y + down, x + right]
            for y in range(5)
            for x in range(7)
            if 0 <= y + down < 5 and 0 <= x + right < 7
        ]
        assert torch.stack(same).std() < 1e-5
    assert products[0, 0].std() > 0.1


def test_rope_keeps_lengths_and_does_not_turn_the_prefix() -> None:
    x = noise(2, 3, 3 + 12, 8)
    out = turned(x, (3, 4), num_prefix=3)
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(out[:, :, :3], x[:, :, :3])
    assert torch.equal(out[:, :, 3], x[:, :, 3])  # the patch at (0, 0)
    assert not torch.allclose(out[:, :, 4:], x[:, :, 4:], atol=0.01)


@pytest.mark.parametrize(("grid", "prefix"), [((3, 4), 0), ((2, 3), 1), ((1, 4), 3), ((1, 1), 1)])
def test_the_relative_index_has_one_row_for_each_offset_and_three_for_the_prefix(grid, prefix: int) -> None:
    h, w = grid
    index = relative_index(grid, prefix > 0, prefix, CPU)
    places = [None] * prefix + [(y, x) for y in range(h) for x in range(w)]
    assert index.shape == (len(places), len(places))
    offsets = (2 * h - 1) * (2 * w - 1)
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            if query is None or key is None:
                wanted = offsets + (2 if query is None and key is None else 0 if query is None else 1)
            else:
                wanted = (query[0] - key[0] + h - 1) * (2 * w - 1) + query[1] - key[1] + w - 1
            assert index[i, j] == wanted


OLD, NEW = (14, 14), (7, 28)


def resized(how: str, new: tuple[int, int] = NEW, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A random table as an image, and our resized one as an image."""
    table = noise(1, 2 + 14 * 14, 6, seed=seed)
    out = resize_positions(table, OLD, new, 2, how)
    assert torch.equal(out[:, :2], table[:, :2])
    return table[:, 2:].reshape(1, *OLD, 6).permute(0, 3, 1, 2), out[:, 2:].reshape(1, *new, 6).permute(0, 3, 1, 2)


@pytest.mark.parametrize("new", [(7, 28), (24, 24), (10, 9)])
def test_googles_resizing_is_scipys_zoom(new: tuple[int, int]) -> None:
    """`scipy.ndimage.zoom(posemb_grid, zoom, order=1)` is the line of google-research/vision_transformer."""
    image, out = resized("google", new)
    wanted = zoom(image[0].permute(1, 2, 0).numpy(), (new[0] / 14, new[1] / 14, 1), order=1)
    np.testing.assert_allclose(out[0].permute(1, 2, 0), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("timm", {"mode": "bicubic", "antialias": True}),
        ("timm_npz", {"mode": "bilinear"}),
        ("transformers", {"mode": "bicubic"}),
        ("torchvision", {"mode": "bicubic", "align_corners": True}),
        ("dinov2_reg", {"mode": "bicubic", "antialias": True}),
    ],
)
def test_each_library_is_followed_in_its_own_interpolation(how: str, options: dict) -> None:
    image, out = resized(how)
    torch.testing.assert_close(out, F.interpolate(image, size=NEW, **options), atol=1e-6, rtol=0)


def test_dinov2_is_followed_in_its_tenth_of_a_pixel() -> None:
    image, out = resized("dinov2", (37, 30))
    wanted = F.interpolate(image, scale_factor=(37.1 / 14, 30.1 / 14), mode="bicubic")
    torch.testing.assert_close(out, wanted, atol=1e-6, rtol=0)
    assert not torch.allclose(out, F.interpolate(image, size=(37, 30), mode="bicubic"), atol=1e-3)


@pytest.mark.parametrize("how", ["timm", "timm_npz", "google", "transformers", "torchvision", "dinov2", "dinov2_reg"])
def test_a_constant_stays_constant_and_the_same_grid_is_left_bit_for_bit(how: str) -> None:
    table = noise(1, 1 + 14 * 14, 6)
    assert torch.equal(resize_positions(table, OLD, OLD, 1, how), table)
    flat = resize_positions(torch.full((1, 14 * 14, 6), 0.3), OLD, (9, 20), 0, how)
    torch.testing.assert_close(flat, torch.full((1, 180, 6), 0.3), atol=1e-6, rtol=0)
    line = resize_line(torch.full((1, 14, 6), 0.3), 20, how)
    torch.testing.assert_close(line, torch.full((1, 20, 6), 0.3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", get_args(Resampling))
@pytest.mark.parametrize(("old", "new"), [((8, 8), (4, 4)), ((14, 14), (7, 28)), ((5, 3), (9, 10)), ((8, 6), (8, 5))])
def test_where_runs_must_repeat_themselves_products_resize_as_the_kernel_does(monkeypatch, how: str, old, new) -> None:
    values = noise(1, 6, *old).requires_grad_()
    plain = resize_map(values, new, how)
    wanted = plain, *torch.autograd.grad(plain.square().sum(), values)
    learned_from: list[bool] = []
    kernel = F.interpolate
    monkeypatch.setattr(F, "interpolate", lambda x, **how: learned_from.append(x.requires_grad) or kernel(x, **how))
    torch.use_deterministic_algorithms(True)
    try:
        again = resize_map(values, new, how)
        found = again, *torch.autograd.grad(again.square().sum(), values)
    finally:
        torch.use_deterministic_algorithms(False)
    assert learned_from == [False, False]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_as_many_patches_in_another_shape_are_resized() -> None:
    table = noise(1, 14 * 14, 6)
    assert not torch.allclose(resize_positions(table, (14, 14), (7, 28), 0), table, atol=0.1)


def test_resizing_keeps_the_type_of_the_table() -> None:
    table = noise(1, 17, 8).bfloat16()
    out = resize_positions(table, (4, 4), (6, 6), 1)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out[:, :1], table[:, :1])


def test_a_bias_table_is_resized_over_offsets_and_keeps_the_rows_of_the_prefix() -> None:
    table = noise(7 * 5 + 3, 2)
    out = resize_bias_table(table, (4, 3), (6, 5))
    wanted = F.interpolate(table[:35].T.reshape(1, 2, 7, 5), size=(11, 9), mode="bicubic")
    torch.testing.assert_close(out[:99].T.reshape(1, 2, 11, 9), wanted)
    assert torch.equal(out[99:], table[35:])
    centre = torch.zeros(7 * 5, 1)
    centre[3 * 5 + 2] = 1.0  # the offset of a patch to itself stays in the middle
    assert resize_bias_table(centre, (4, 3), (6, 5)).argmax() == 5 * 9 + 4


@pytest.mark.parametrize("new", [(16, 16), (12, 20), (8, 9)])
def test_a_resampled_projection_gives_on_a_larger_patch_what_it_gave_on_the_patch(new: tuple[int, int]) -> None:
    """FlexiViT's promise: the dot product is preserved exactly where the resize loses nothing."""
    weight, patches = noise(5, 3, 8, 8), noise(10, 3, 8, 8, seed=1)
    larger = F.interpolate(patches, size=new, mode="bicubic", antialias=True)
    before = torch.einsum("nchw,dchw->nd", patches, weight)
    after = torch.einsum("nchw,dchw->nd", larger, resample_patches(weight, new))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("new", [(4, 6), (5, 5), (10, 6), (4, 16), (9, 7)])
def test_a_projection_for_patches_that_are_smaller_some_way_is_the_least_squares_solution(new: tuple[int, int]) -> None:
    weight = noise(5, 3, 8, 8)
    basis = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)
    resize = F.interpolate(basis, size=new, mode="bicubic", antialias=True).flatten(1)  # (old pixels, new pixels)
    wanted = np.linalg.lstsq(resize.numpy(), weight.double().flatten(0, 1).flatten(1).T.numpy(), rcond=1e-10)[0].T
    got = resample_patches(weight, new).flatten(0, 1).flatten(1)
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-4, rtol=1e-4)


def test_a_projection_for_the_same_patches_is_left_as_it_is() -> None:
    weight = noise(5, 3, 8, 8)
    assert resample_patches(weight, (8, 8)) is weight


@torch.no_grad()
def test_learned_2d_positions_are_halves_for_the_column_and_the_row(build: Build) -> None:
    """The paper's appendix D.4: X-embedding and Y-embedding, each half as wide, side by side."""
    model = build(positions="learned_2d", img_size=(24, 40))
    plain = build(positions="learned", img_size=(24, 40))
    table = torch.zeros(1, 16, 32)
    table[:, :1] = model.pos_embed_prefix
    for row in range(3):
        for column in range(5):
            halves = model.pos_embed_cols[0, column], model.pos_embed_rows[0, row]
            table[0, 1 + row * 5 + column] = torch.cat(halves)
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("pos_embed")}
    plain.load_state_dict({**state, "pos_embed": table})
    pictures = noise(2, 3, 24, 40)
    torch.testing.assert_close(model(pictures), plain(pictures))


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rotations_are_products_with_complex_numbers_with_a_compiler_or_without(kind, monkeypatch):
    torch.manual_seed(0)
    packed = torch.randn(2, 6, 3, 4, 16, dtype=torch.float64).to(kind)  # as the linear map packs them: not in a row
    x = packed.unbind(2)[1].transpose(1, 2)
    turn = rotations((2, 3), 16, 100.0, 0, torch.device("cpu"))
    pairs = x.double().numpy().reshape(2, 4, 6, 8, 2)
    numbers = (pairs[..., 0] + 1j * pairs[..., 1]) * (turn[0].double().numpy() + 1j * turn[1].double().numpy())
    right = torch.from_numpy(np.stack([numbers.real, numbers.imag], -1).reshape(x.shape))
    tolerance = {torch.float64: 1e-15, torch.float32: 1e-6, torch.bfloat16: 0.02, torch.float16: 0.003}[kind]
    for compiles in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiles=compiles: compiles)
        found = rotate(x, turn)
        assert found.dtype == kind
        assert (found.double() - right).abs().max() <= tolerance * right.abs().max()


def test_the_gradient_of_a_rotation_turns_back():
    x = torch.randn(1, 2, 6, 8, dtype=torch.float64, requires_grad=True)
    turn = rotations((2, 3), 8, 100.0, 0, torch.device("cpu"))
    given = torch.randn_like(x)
    (found,) = torch.autograd.grad(rotate(x, turn), x, given)
    assert torch.allclose(found, rotate(given, turn * torch.tensor([1.0, -1.0])[:, None, None]))
