"""The paper's masked patch prediction: what is corrupted, in closed form; what is predicted, by plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional as F

from vitrail.data.augmentation.draws import Stream
from vitrail.data.batch import Batch
from vitrail.data.schedule import Share
from vitrail.errors import ConfigError
from vitrail.model import ViTConfig
from vitrail.pictures import Preprocessing
from vitrail.pretraining.masked import MaskedPrediction, MaskedPredictor, colour_numbers, draw_sources, painted
from vitrail.pretraining.masking import Places, cut, order_by
from vitrail.training.methods import Masked

CPU = torch.device("cpu")
CONFIG = ViTConfig(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0)
PIXELS = Preprocessing(size=(32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


def batch_of(pixels: torch.Tensor) -> Batch:
    return Batch(torch.arange(len(pixels)), pixels, torch.zeros(len(pixels), dtype=torch.int64))


def objective(target: str = "mean-colour", **changes: float) -> MaskedPrediction:
    torch.manual_seed(0)
    model = MaskedPredictor(CONFIG, Masked(target=target, **changes))  # type: ignore[arg-type]
    return MaskedPrediction(model, Places(3, CPU), PIXELS)


def test_half_is_corrupted_and_the_three_fates_have_their_shares() -> None:
    """Of exactly half the patches, 80% are [mask], 10% another patch, 10% themselves: within four deviations."""
    n, patches = 2_000, 16
    torch.manual_seed(0)
    sources = draw_sources(order_by(torch.rand(n, patches)), *torch.rand(2, n, patches), 8, Masked())
    order, source = sources.unbind(1)
    chosen = torch.zeros(n, patches, dtype=torch.bool).scatter(1, order[:, -8:], True)
    own = torch.arange(patches).expand(n, -1)
    assert (chosen.sum(1) == 8).all()
    assert (source[~chosen] == own[~chosen]).all()
    total = 8 * n
    for found, share in (
        ((source == -1) & chosen, 0.8),
        ((source >= 0) & (source != own) & chosen, 0.1),
        ((source == own) & chosen, 0.1),
    ):
        assert abs(int(found.sum()) - share * total) < 4 * math.sqrt(total * share * (1 - share))
    # each patch is corrupted equally often, and each other patch comes equally often in its place
    assert (chosen.sum(0) - n / 2).abs().max() < 4.5 * math.sqrt(n / 4)
    swapped = (source >= 0) & (source != own)
    counts = torch.bincount((source[swapped] - own[swapped]) % patches, minlength=patches)
    assert counts[0] == 0
    expected = int(swapped.sum()) / (patches - 1)
    assert (counts[1:] - expected).abs().max() < 4.5 * math.sqrt(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 20), st.floats(0, 0.999999), st.data())
def test_another_patch_is_never_the_same_one(patches: int, number: float, data: st.DataObject) -> None:
    corrupted = data.draw(st.integers(1, patches - 1))
    others = torch.full((1, patches), number, dtype=torch.double)
    settings = Masked(replaced=0.0, swapped=1.0)
    order, source = draw_sources(order_by(torch.rand(1, patches)), others, others, corrupted, settings).unbind(1)
    at = order[0, -corrupted:]
    assert (source[0, at] != at).all()
    assert ((source >= 0) & (source < patches)).all()


def test_the_encoder_reads_mask_and_other_patches_in_their_places() -> None:
    """By hand: the embeddings are computed, exchanged, and given their positions."""
    task = objective("pixels")
    model = task.plain.eval()
    pictures, sources = task.prepare(batch_of(torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)), PIXELS)
    with torch.no_grad():
        patches = model.patch_embed(pictures)[0]
        for n in range(3):
            rows = [model.mask_token[0, 0] if s < 0 else patches[n, s] for s in sources[n, 1].tolist()]
            x = torch.cat([model.cls_token, torch.stack(rows)[None]], 1) + model.pos_embed
            for block in model.blocks:
                x = block(x)
            x = model.norm(x)[0, 1:]
            wanted = model.predict(x[sources[n, 0, -8:]])
            torch.testing.assert_close(model(pictures, sources)[n], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cells", [1, 4])
def test_colours_are_the_first_three_bits_of_the_means(cells: int) -> None:
    """Beside NumPy, with whole numbers alone."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32))
    pixels[0, :, :8, :8] = 255
    pixels[1, :, :8, :8] = np.array([31, 32, 128])[:, None, None]
    found = colour_numbers(torch.from_numpy(pixels).float(), (8, 8), (cells, cells))
    side = 8 // cells
    for n in range(2):
        for patch in range(16):
            top, left = patch // 4 * 8, patch % 4 * 8
            for cell in range(cells * cells):
                y, x = top + cell // cells * side, left + cell % cells * side
                sums = pixels[n, :, y : y + side, x : x + side].sum((1, 2))
                red, green, blue = (int(s) // (32 * side * side) for s in sums)
                assert found[n, patch, cell] == red * 64 + green * 8 + blue
    assert (found[0, 0] == 511).all()
    assert (found[1, 0] == 0 * 64 + 1 * 8 + 4).all()


def test_a_patch_of_sixteen_pixels_is_its_own_four_by_four() -> None:
    pixels = torch.randint(0, 256, (1, 3, 4, 4)).float()
    found = colour_numbers(pixels, (4, 4), (4, 4)).view(4, 4)
    bits = (pixels[0] / 32).floor().long()
    assert torch.equal(found, bits[0] * 64 + bits[1] * 8 + bits[2])


@pytest.mark.parametrize("target", ["mean-colour", "patch-4x4", "pixels"])
def test_the_loss_is_that_of_the_corrupted_patches_alone(target: str) -> None:
    task = objective(target)
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    inputs, sources = task.prepare(batch_of(pixels), PIXELS)
    loss, right = task(task.plain, inputs, sources)
    found = task.plain(inputs, sources)
    terms, hits = [], []
    for n in range(3):
        for k, patch in enumerate(sources[n, 0, -8:].tolist()):
            if target == "pixels":
                true = cut(inputs, (8, 8))[n, patch]
                terms.append(((found[n, k] - true) ** 2).mean())
                continue
            cells = 1 if target == "mean-colour" else 4
            colours = colour_numbers(pixels.float(), (8, 8), (cells, cells))[n, patch]
            logits = found[n, k].view(len(colours), 512)
            terms.append(-F.log_softmax(logits, -1)[torch.arange(len(colours)), colours].mean())
            hits.append((logits.argmax(-1) == colours).float().mean())
    torch.testing.assert_close(loss, torch.stack(terms).mean())
    assert float(right) == pytest.approx(float(sum(hits)) / 8 if hits else 0.0)


def test_masks_are_a_function_of_seed_and_step_whatever_the_number_of_processes() -> None:
    def noise(seed: int, step: int, share: Share, pictures: int) -> torch.Tensor:
        places = Places(seed, CPU, share)
        places.begin(step)
        return places.numbers(Stream.MASK, pictures, 16)

    whole = noise(0, 5, Share(0, 1), 12)
    assert torch.equal(torch.cat([noise(0, 5, Share(rank, 3), 4) for rank in range(3)]), whole)
    assert torch.equal(noise(0, 5, Share(0, 1), 12), whole)
    for other in (noise(0, 6, Share(0, 1), 12), noise(1, 5, Share(0, 1), 12)):
        assert (other == whole).float().mean() < 0.01
    assert len(whole.unique()) == whole.numel()


@pytest.mark.parametrize("target", ["mean-colour", "patch-4x4", "pixels"])
def test_pictures_of_one_colour_can_be_learned_from(target: str) -> None:
    task = objective(target)
    inputs, sources = task.prepare(batch_of(torch.full((2, 3, 32, 32), 200, dtype=torch.uint8)), PIXELS)
    task(task.plain, inputs, sources)[0].backward()
    grads = [one.grad for one in task.plain.parameters() if one.grad is not None]
    assert all(torch.isfinite(one).all() for one in grads)


def test_painted_colours_have_the_number_they_were_painted_by() -> None:
    colours = torch.randint(0, 512, (2, 5, 16))
    patches = painted(colours, (8, 8), (4, 4), 3, PIXELS)
    mean, std = torch.tensor(PIXELS.mean), torch.tensor(PIXELS.std)
    levels = ((patches.view(10, 8, 8, 3) * std + mean) * 255).permute(0, 3, 1, 2)
    assert torch.equal(colour_numbers(levels, (8, 8), (4, 4)).view(2, 5, 16), colours)


def test_what_is_drawn_can_be_looked_at(tmp_path) -> None:
    for target in ("mean-colour", "patch-4x4", "pixels"):
        task = objective(target)
        inputs, sources = task.prepare(batch_of(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)), PIXELS)
        for picture in task.plain.drawn(inputs, sources, PIXELS):
            assert picture.shape == inputs.shape
            Image.fromarray((picture[0].permute(1, 2, 0).sigmoid() * 255).byte().numpy())


def test_what_cannot_be_predicted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"masked.mask_ratio = 1: nothing is left to see"):
        Masked(mask_ratio=1.0)
    with pytest.raises(ConfigError, match=r"masked.mask_ratio = 0: nothing is left to predict"):
        Masked(mask_ratio=0.0)
    with pytest.raises(ConfigError, match="nor above 1 together"):
        Masked(replaced=0.95)
    with pytest.raises(ConfigError, match="needs patches of 4 x 4 pixels or more"):
        MaskedPredictor(CONFIG.replace(patch_size=2), Masked(target="patch-4x4"))
    with pytest.raises(ConfigError, match="two patches or more"):
        MaskedPredictor(CONFIG.replace(patch_size=32), Masked())
