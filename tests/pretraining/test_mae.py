"""The masked autoencoder beside transformers' ViTMAE, with the same weights and the same noise."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail
from vitrail.errors import ConfigError, WeightsError
from vitrail.model import ViTConfig
from vitrail.pretraining.mae import MaskedAutoencoder, Reconstruction, decoder_positions
from vitrail.pretraining.mae_weights import load_autoencoder
from vitrail.pretraining.masking import Places, cut, joined, order_by
from vitrail.training.methods import Mae

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 1, "intermediate_size": 256, "image_size": 32,
    "patch_size": 8, "decoder_hidden_size": 48, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 192,
}  # fmt: skip


def peer(**changes: Any) -> Any:
    """With weights that are all at random: fresh ones leave many at zero."""
    torch.manual_seed(0)
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**(SIZES | changes))).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.3 if tensor.ndim in (1, 3) else 0.05)
    return model


def pictures_and_noise(model: Any, count: int = 3) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    side = model.config.image_size
    patches = (side // model.config.patch_size) ** 2
    return torch.randn(count, 3, side, side, generator=made), torch.rand(count, patches, generator=made)


@pytest.mark.parametrize("ratio", [0.75, 0.4])
@pytest.mark.parametrize("norm_pixels", [True, False])
def test_forward_loss_and_gradients_are_those_of_transformers(tmp_path: Path, norm_pixels: bool, ratio: float) -> None:
    theirs = peer(norm_pix_loss=norm_pixels, mask_ratio=ratio)
    theirs.save_pretrained(tmp_path / "folder")
    ours, encoder = load_autoencoder(tmp_path / "folder", Mae(mask_ratio=ratio, norm_pixels=norm_pixels))
    pictures, noise = pictures_and_noise(theirs)
    wanted = theirs(pictures, noise=noise)
    order = order_by(noise)
    found = ours(pictures, order)
    hidden = int(wanted.mask[0].sum())
    assert found.shape == (3, hidden, 8 * 8 * 3)
    assert torch.equal(torch.zeros(3, 16).scatter(1, order[:, -hidden:], 1.0), wanted.mask)
    place = order[:, -hidden:, None].expand_as(found)
    torch.testing.assert_close(found, wanted.logits.gather(1, place), atol=1e-5, rtol=1e-5)
    loss, _ = Reconstruction(ours, Places(0, torch.device("cpu")))(ours, pictures, order)
    torch.testing.assert_close(loss, wanted.loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    wanted.loss.backward()
    for mine, other in (
        (ours.mask_token, theirs.decoder.mask_token),
        (ours.cls_token, theirs.vit.embeddings.cls_token),
        (ours.patch_embed.proj.weight, theirs.vit.embeddings.patch_embeddings.projection.weight),
        (ours.decoder_pred.weight, theirs.decoder.decoder_pred.weight),
    ):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-4)
    assert encoder.classes == []


def test_facebooks_own_names_load_with_the_decoder(tmp_path: Path) -> None:
    from tests.peers.test_originals import as_mae

    theirs = peer(layer_norm_eps=1e-6, decoder_num_attention_heads=16, norm_pix_loss=True)
    torch.save({"model": as_mae(dict(theirs.state_dict()))}, tmp_path / "mae.pth")
    ours, _ = load_autoencoder(tmp_path / "mae.pth")
    pictures, noise = pictures_and_noise(theirs)
    wanted, order = theirs(pictures, noise=noise), order_by(noise)
    found = ours(pictures, order)
    torch.testing.assert_close(
        found, wanted.logits.gather(1, order[:, -12:, None].expand_as(found)), atol=1e-5, rtol=1e-5
    )


def test_the_names_that_the_hub_has_load_too(tmp_path: Path) -> None:
    """Files on the Hub say `decoder.decoder_layers`, which newer releases of transformers write otherwise."""
    from safetensors.torch import load_file, save_file

    theirs = peer()
    theirs.save_pretrained(tmp_path / "folder")
    file = tmp_path / "folder" / "model.safetensors"
    state = {re.sub("decoder_encoder.layer", "decoder_layers", name): t for name, t in load_file(file).items()}
    assert any(name.startswith("decoder.decoder_layers.1.") for name in state)
    save_file(state, file)
    ours, _ = load_autoencoder(tmp_path / "folder", Mae(norm_pixels=False))
    pictures, noise = pictures_and_noise(theirs)
    found, order = ours(pictures, order_by(noise)), order_by(noise)
    wanted = theirs(pictures, noise=noise).logits.gather(1, order[:, -12:, None].expand_as(found))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_what_has_no_decoder_is_no_autoencoder(tmp_path: Path) -> None:
    model = vitrail.create("vit_ti16", img_size=32, depth=1, num_classes=0)
    vitrail.Classifier(model, classes=[]).save(tmp_path / "model")
    with pytest.raises(WeightsError, match="has no decoder"):
        load_autoencoder(tmp_path / "model")


def test_fresh_positions_of_the_decoder_are_transformers() -> None:
    config = ViTConfig(img_size=48, patch_size=8, num_classes=0)
    theirs = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**(SIZES | {"image_size": 48})))
    theirs.decoder.initialize_weights(36)
    wanted = theirs.decoder.decoder_pos_embed
    torch.testing.assert_close(decoder_positions(config, 48), wanted.detach(), atol=1e-6, rtol=0)


def test_patches_are_cut_as_transformers_cuts_them_and_put_together_again() -> None:
    theirs, pictures = peer(), torch.randn(2, 3, 32, 32)
    patches = cut(pictures, (8, 8))
    assert torch.equal(patches, theirs.patchify(pictures))
    assert torch.equal(joined(patches, (8, 8), (4, 4)), pictures)


CONFIG = ViTConfig(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=0)
SMALL = Mae(decoder_dim=16, decoder_depth=1, decoder_heads=2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"class_token": False, "pool": "mean"},
        {"registers": 2, "prefix_positions": "none"},
        {"rope": True, "qk_norm": True, "norm": "rms", "class_token": False, "pool": "mean"},
        {"positions": "sincos_2d"},
        {"relative_bias": True},
    ],
)
def test_hidden_pixels_have_no_part_in_what_is_drawn(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = MaskedAutoencoder(CONFIG.replace(**changes), SMALL).eval()
    pictures, noise = torch.randn(2, 3, 16, 16), torch.rand(2, 16)
    order = order_by(noise)
    other = cut(pictures, (4, 4)).scatter(1, order[:, -12:, None].expand(-1, -1, 48), 7.0)
    with torch.no_grad():
        assert torch.equal(model(pictures, order), model(joined(other, (4, 4), (4, 4)), order))
        seen = cut(pictures, (4, 4)).scatter(1, order[:, :1, None].expand(-1, -1, 48), 7.0)
        assert not torch.allclose(model(pictures, order), model(joined(seen, (4, 4), (4, 4)), order))


def test_pictures_of_one_colour_have_a_finite_loss_and_finite_gradients() -> None:
    model = MaskedAutoencoder(CONFIG, SMALL)
    pictures = torch.full((2, 3, 16, 16), 0.7)
    loss, _ = Reconstruction(model, Places(0, torch.device("cpu")))(model, pictures, order_by(torch.rand(2, 16)))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)


def test_what_is_drawn_keeps_what_is_seen() -> None:
    model = MaskedAutoencoder(CONFIG, SMALL).eval()
    pictures, order = torch.randn(2, 3, 16, 16), order_by(torch.rand(2, 16))
    masked, drawn = (cut(one, (4, 4)) for one in model.drawn(pictures, order))
    seen, hidden = order[:, :4, None].expand(-1, -1, 48), order[:, 4:, None].expand(-1, -1, 48)
    true = cut(pictures, (4, 4)).gather(1, seen)
    assert torch.equal(masked.gather(1, seen), true)
    assert torch.equal(drawn.gather(1, seen), true)
    assert (masked.gather(1, hidden) == 0).all()


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.1, 1.5])
def test_a_ratio_that_hides_nothing_or_all_is_refused(ratio: float) -> None:
    with pytest.raises(ConfigError, match=r"mae.mask_ratio = .* choose a number above 0 and below 1"):
        Mae(mask_ratio=ratio)


def test_a_grid_too_small_for_the_ratio_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves none of 4 patches to be seen"):
        MaskedAutoencoder(CONFIG.replace(patch_size=8), Mae(mask_ratio=0.99, decoder_dim=16, decoder_heads=2))


def test_the_model_compiles_into_one_graph() -> None:
    model = MaskedAutoencoder(CONFIG, SMALL).eval()
    pictures, order = torch.randn(2, 3, 16, 16), order_by(torch.rand(2, 16))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(pictures, order), model(pictures, order))
