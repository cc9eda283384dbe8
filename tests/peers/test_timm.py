"""timm's own models, saved by its own saver, against ours; and our folders in its own loader."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitrail
from vitrail.errors import WeightsError
from vitrail.model.walk import parameters
from vitrail.model.zoo import create, zoo
from vitrail.weights import read_checkpoint, to_timm
from vitrail.weights import timm as family

timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")

SMALL = {"embed_dim": 128, "depth": 3, "num_heads": 2, "num_classes": 7}
# name, then what is changed so that it is small enough for a test
ARCHITECTURES = {
    "plain": ("vit_base_patch16_224", {}),
    "large patch": ("vit_base_patch32_224", {}),
    "distilled": ("deit_base_distilled_patch16_224", {}),
    "deit-iii": ("deit3_base_patch16_224", {}),
    "clip's norm": ("vit_base_patch16_clip_224", {}),
    "clip with quick gelu": ("vit_base_patch16_clip_quickgelu_224", {}),
    "registers": ("vit_base_patch14_reg4_dinov2", {"img_size": 98}),
    "dinov2": ("vit_base_patch14_dinov2", {"img_size": 98}),
    "swiglu": ("vit_giant_patch14_dinov2", {"img_size": 98}),
    "hybrid r50": ("vit_base_r50_s16_224", {}),
    "hybrid r26": ("vit_small_r26_s32_224", {}),
    "hybrid stem": ("vit_tiny_r_s16_p8_224", {}),
    "not square": ("vit_base_patch16_224", {"img_size": (96, 160)}),
    "not square patches": ("vit_base_patch16_224", {"img_size": (96, 160), "patch_size": (8, 16)}),
    "odd mlp width": ("vit_base_patch16_224", {"mlp_ratio": 2.7}),
    "qk-norm": ("vit_base_patch16_224", {"qk_norm": True}),
    "no qkv bias": ("vit_base_patch16_224", {"qkv_bias": False}),
    "mean": ("vit_base_patch16_224", {"global_pool": "avg"}),
    "mean without class token": (
        "vit_base_patch16_224",
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
    ),
    "attention pooling": ("vit_base_patch16_siglip_224", {}),
    "no positions": ("vit_base_patch16_224", {"pos_embed": "none"}),
    "rms norm": ("vit_base_patch16_224", {"norm_layer": "rmsnorm"}),
    "tanh gelu": ("vit_base_patch16_224", {"act_layer": "gelu_tanh"}),
    "grey": ("vit_base_patch16_224", {"in_chans": 1}),
    "features": ("vit_base_patch16_224", {"num_classes": 0}),
    "norm after the patches": ("vit_base_patch16_224", {"embed_norm_layer": "layernorm"}),
    "axial rope": ("vit_small_patch16_rope_224", {}),
    "rope with positions": ("vit_small_patch16_rope_224", {"use_abs_pos_emb": True, "rope_temperature": 50.0}),
    "relative bias": ("vit_relpos_base_patch16_224", {"rel_pos_type": "bias"}),
    "relative bias and class token": (
        "vit_relpos_base_patch16_224",
        {"rel_pos_type": "bias", "class_token": True, "global_pool": "token", "fc_norm": False},
    ),
}


def theirs(kind: str) -> tuple[torch.nn.Module, dict]:
    """A model of timm's with random weights that do not hide anything: no zeros, no tiny scales."""
    name, args = ARCHITECTURES[kind]
    args = {**SMALL, **args}
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **args).eval()
    for key, tensor in model.named_parameters():
        if tensor.ndim <= 1 or "token" in key or "pos" in key or "latent" in key:
            torch.nn.init.normal_(tensor, mean=float("norm" in key and "weight" in key) or 0.0, std=0.3)
    return model, args


def pictures_for(config) -> torch.Tensor:
    return torch.randn(2, config.in_chans, *config.img_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ARCHITECTURES)
@torch.no_grad()
def test_a_checkpoint_of_timm_gives_the_same_logits_here_and_the_same_tensors_back(kind: str, tmp_path: Path) -> None:
    peer, args = theirs(kind)
    timm.models.save_for_hf(peer, tmp_path / "theirs", model_args=args, safe_serialization=True)
    checkpoint = read_checkpoint(tmp_path / "theirs")
    ours = checkpoint.build()
    pictures = pictures_for(ours.config)
    wanted = peer(pictures)
    assert 0.05 < wanted.std() < 20
    torch.testing.assert_close(ours(pictures), wanted, atol=1e-5, rtol=1e-5)

    back = to_timm.write(ours.config, ours.state_dict())
    again = timm.create_model(back.architecture, num_classes=ours.config.num_classes, **back.model_args)
    again.load_state_dict(back.state)  # strict: no name missing, none too many
    for name, tensor in peer.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    torch.testing.assert_close(again.eval()(pictures), wanted, atol=0, rtol=0)


@pytest.mark.parametrize("kind", ["plain", "distilled", "registers", "hybrid r26", "axial rope", "swiglu", "rms norm"])
@torch.no_grad()
def test_a_folder_saved_here_loads_in_timm_with_the_same_logits_and_names(kind: str, tmp_path: Path) -> None:
    peer, args = theirs(kind)
    timm.models.save_for_hf(peer, tmp_path / "theirs", model_args=args, safe_serialization=True)
    names = [f"kind {i}" for i in range(7)]
    model = read_checkpoint(tmp_path / "theirs").build()
    vitrail.Classifier(model, classes=names).save(tmp_path / "ours")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval()
    pictures = pictures_for(model.config)
    torch.testing.assert_close(loaded(pictures), peer(pictures), atol=0, rtol=0)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["label_names"] == names
    again = vitrail.load(tmp_path / "ours")
    assert again.classes == names
    assert torch.equal(again.model(pictures), model(pictures))


@pytest.mark.parametrize("size", [384, 160, (160, 320)])
@torch.no_grad()
def test_another_image_size_is_timms_own_resizing(size, tmp_path: Path) -> None:
    peer, args = theirs("plain")
    timm.models.save_for_hf(peer, tmp_path / "theirs", model_args=args, safe_serialization=True)
    resized = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True, img_size=size).eval()
    ours = vitrail.load(tmp_path / "theirs", img_size=size).model
    pictures = pictures_for(ours.config)
    torch.testing.assert_close(ours(pictures), resized(pictures), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_grid_of_another_shape_but_as_many_patches_is_resized(tmp_path: Path) -> None:
    """14 x 14 and 7 x 28 are both 196 patches: what counts is the shape."""
    peer, args = theirs("plain")
    timm.models.save_for_hf(peer, tmp_path / "theirs", model_args=args, safe_serialization=True)
    ours = vitrail.load(tmp_path / "theirs", img_size=(112, 448)).model
    image = peer.pos_embed[:, 1:].reshape(1, 14, 14, -1).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(image, (7, 28), mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ours.pos_embed[:, 1:], wanted, atol=1e-6, rtol=1e-6)
    assert torch.equal(ours.pos_embed[:, :1], peer.pos_embed[:, :1])


@torch.no_grad()
def test_another_patch_size_is_timms_own_resampling() -> None:
    peer, _ = theirs("plain")
    ours = family.read(peer.state_dict(), {"model_args": {"num_heads": 2}}).build()
    peer.set_input_size((224, 224), (32, 32))
    ours.set_image_size(224, 32)
    pictures = pictures_for(ours.config)
    torch.testing.assert_close(ours(pictures), peer.eval()(pictures), atol=2e-4, rtol=1e-4)


# blocks that are not the paper's: parallel, differential, with norms inside, with split gates
EXOTIC = re.compile(r"xp_|18x2|pwee|vit_d(little|wee)|aimv2|beit3")


def vits_of_timm() -> list[str]:
    """All architectures of timm whose parameters are plain ViT's."""
    names = timm.list_models(module="vision_transformer") + timm.list_models(module="deit")
    return [name for name in names if not name.startswith(("vit_gigantic", "test_"))]


@pytest.mark.parametrize("name", vits_of_timm())
def test_every_vit_of_timm_is_understood_or_refused_by_name(name: str) -> None:
    """What a state dict does not hold (heads, epsilon, activation) follows from the architecture's name."""
    with torch.device("meta"):
        peer = timm.create_model(name)
    hub = {"architecture": name, "pretrained_cfg": peer.pretrained_cfg, "global_pool": peer.global_pool}
    if EXOTIC.search(name):
        with pytest.raises(WeightsError, match=r"not those of a plain ViT|does not fit|pools by"):
            family.read(dict(peer.state_dict()), hub).build()
        return
    block, config = peer.blocks[0], family.read(dict(peer.state_dict()), hub).config
    with torch.device("meta"):
        ours = create(config)
    expected = {key: tensor.shape for key, tensor in peer.state_dict().items()}
    assert {key: tensor.shape for key, tensor in ours.state_dict().items()} == expected
    assert config.num_heads == block.attn.num_heads
    assert config.norm_eps == pytest.approx(block.norm1.eps)
    activation = (
        type(getattr(block.mlp, "act", None)).__name__,
        getattr(getattr(block.mlp, "act", None), "approximate", ""),
    )
    if config.mlp == "plain":
        wanted = {"gelu": ("GELU", "none"), "gelu_tanh": ("GELUTanh", ""), "quick_gelu": ("QuickGELU", "")}
        assert activation == wanted[config.act]


@pytest.mark.parametrize("row", [row for row in zoo().values() if row.timm], ids=lambda row: row.name)
def test_a_zoo_name_that_is_given_as_timms_is_the_same_architecture_there(row) -> None:
    with torch.device("meta"):
        peer = timm.create_model(row.timm, num_classes=row.config.num_classes)
    assert sum(p.numel() for p in peer.parameters()) == parameters(row.config)


@pytest.mark.parametrize("place", ["deit_tiny_patch16_224.safetensors", ".", "deit_tiny_patch16_224"])
def test_a_file_that_is_named_like_an_architecture_says_its_preprocessing_in_a_folder_too(place, tmp_path) -> None:
    file = "model.safetensors" if place == "deit_tiny_patch16_224" else "deit_tiny_patch16_224.safetensors"
    folder = tmp_path / place if file == "model.safetensors" else tmp_path
    folder.mkdir(exist_ok=True)
    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    save_file(state, folder / file)
    theirs = timm.get_pretrained_cfg("deit_tiny_patch16_224")
    pixels = vitrail.load(tmp_path / place).preprocessing
    assert (pixels.mean, pixels.std) == (theirs.mean, theirs.std)
