"""After whitening, the projection of training patches has uncorrelated inputs."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import unfold

import vitrail
from tests.training.running import TINY, make_pictures
from vitrail.data.opening import open_source
from vitrail.data.splits import make_splits
from vitrail.errors import ConfigError, DataError
from vitrail.pictures import Preprocessing
from vitrail.training.whitening import FLOOR, whiten, whitening


def test_whitened_patches_have_the_unit_matrix_for_covariance():
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(12, 12, generator=generator, dtype=torch.double)
    patches = (
        (mixing @ torch.randn(12, 40_000, generator=generator, dtype=torch.double)).view(12, 40, 1000).movedim(1, 0)
    )
    turn = whitening(patches)
    covariance = np.cov((turn @ patches).movedim(1, -1).flatten(0, 1).numpy().T)
    values = np.linalg.eigvalsh(np.cov(patches.movedim(1, -1).flatten(0, 1).numpy().T))
    expected = values / (values + FLOOR * values.mean())  # 1, but for what is smaller than the floor
    assert np.allclose(np.sort(np.linalg.eigvalsh(covariance)), np.sort(expected), atol=1e-9)
    assert torch.allclose(turn, turn.mT)


def test_a_model_projects_whitened_patches_as_it_projected_patches(tmp_path):
    pixels = Preprocessing(size=(8, 8))
    train = make_splits(open_source(make_pictures(tmp_path / "pictures")), fraction=0.1, seed=0).train
    before, after = (vitrail.create("vit_ti16", img_size=8, patch_size=4, num_classes=2).patch_embed.proj for _ in "ab")
    after.load_state_dict(before.state_dict())
    model = vitrail.create("vit_ti16", img_size=8, patch_size=4, num_classes=2)
    model.patch_embed.proj = after
    whiten(model, train, pixels)
    pictures = torch.stack([torch.from_numpy(pixels.pixels(train.read(k))) for k in range(len(train))]).permute(
        0, 3, 1, 2
    )
    values = (pictures.float() / 255 - 0.5) / 0.5
    patches = unfold(values.double(), 4, stride=4)
    wanted = before.weight.double().flatten(1) @ (whitening(patches) @ patches)
    found = after.weight.double().flatten(1) @ patches
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_whitening_is_refused_where_it_means_nothing(tmp_path):
    pictures = make_pictures(tmp_path / "pictures")
    overlapping = TINY | {"whiten": True, "architecture.stride": 2}
    with pytest.raises(ConfigError, match="whiten needs a model that cuts the picture itself"):
        vitrail.train(pictures, recipe="small", out=tmp_path / "a", device="cpu", changes=overlapping)
    run = vitrail.train(
        pictures, recipe="small", out=tmp_path / "b", device="cpu", changes=TINY | {"whiten": True, "steps": 1}
    )
    with pytest.raises(ConfigError, match="whiten is for models from scratch"):
        vitrail.train(
            pictures, start=str(run.folder), out=tmp_path / "c", device="cpu", changes={"whiten": True, "steps": 1}
        )
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("count", [1, 30])
def test_pictures_of_one_colour_are_said(tmp_path, count):
    for number in range(count):
        (tmp_path / "green").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (100, 120, 30)).save(tmp_path / "green" / f"{number}.png")
    train = make_splits(open_source(tmp_path), fraction=0, seed=0).train
    with pytest.raises(DataError, match=f"all patches of the {count} pictures.*of one colour.*--no-whiten"):
        whiten(vitrail.create("vit_ti16", img_size=8, patch_size=4), train, Preprocessing(size=(8, 8)))
