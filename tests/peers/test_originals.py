"""The originals of DeiT, DeiT-III, MAE and DINOv2, whose files have timm's names but for a few, against timm's own
loading of such files and transformers' models with the same tensors."""

import re
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.errors import WeightsError
from vitrail.weights import read_checkpoint

timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")
filter_names = pytest.importorskip("timm.models.vision_transformer").checkpoint_filter_fn

SMALL = {"embed_dim": 128, "depth": 4, "num_heads": 2}
State = dict[str, torch.Tensor]


def perturbed(name: str, **args) -> torch.nn.Module:
    """A model of timm's with random weights that do not hide anything: no zeros, no ones."""
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **{**SMALL, **args}).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.3 if tensor.ndim in (1, 3) else 0.05)
    return model


def pictures_for(config) -> torch.Tensor:
    return torch.randn(2, config.in_chans, *config.img_size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: torch.nn.Module, peer: torch.nn.Module) -> None:
    pictures = pictures_for(ours.config)
    wanted = peer(pictures)
    assert 0.05 < wanted.std() < 20
    torch.testing.assert_close(ours(pictures), wanted, atol=1e-5, rtol=1e-5)


DINOV2 = {
    "plain": ("vit_small_patch14_dinov2", {}),
    "registers": ("vit_small_patch14_reg4_dinov2", {}),
    "swiglu": ("vit_giant_patch14_dinov2", {"mlp_ratio": 2.66667 * 2}),
    "swiglu with registers": ("vit_giant_patch14_reg4_dinov2", {"mlp_ratio": 2.66667 * 2}),
}


def dinov2(kind: str, grid: int = 7) -> tuple[torch.nn.Module, State]:
    """A state dict as DINOv2 writes it, and timm's model with timm's own conversion of that state dict."""
    name, args = DINOV2[kind]
    peer = perturbed(name, img_size=14 * grid, num_classes=0, **args)
    state = {key: tensor.clone() for key, tensor in peer.state_dict().items()}
    if "reg_token" in state:
        state["register_tokens"] = state.pop("reg_token")
        state["pos_embed"] = torch.cat([torch.randn(1, 1, 128), state["pos_embed"]], dim=1)
    state = {re.sub(r"\.fc(\d)\.", lambda m: {"1": ".w12.", "2": ".w3."}[m[1]], key) if "swiglu" in kind else key: t
             for key, t in state.items()}  # fmt: skip
    state["mask_token"] = torch.randn(1, 128)
    peer.load_state_dict(filter_names(dict(state), peer))
    return peer, state


@pytest.mark.parametrize("kind", DINOV2)
@torch.no_grad()
def test_dinov2s_own_files_give_the_same_features_as_in_timm(kind: str, tmp_path: Path) -> None:
    peer, state = dinov2(kind)
    torch.save(state, tmp_path / "dinov2.pth")
    checkpoint = read_checkpoint(tmp_path / "dinov2.pth")
    assert checkpoint.family == "DINOv2"
    assert checkpoint.config.prefix_positions == ("class" if "registers" in kind else "all")
    assert checkpoint.resampling == ("dinov2_reg" if "registers" in kind else "dinov2")
    assert checkpoint.preprocessing.mean == (0.485, 0.456, 0.406)
    assert_same(checkpoint.build(), peer)


@pytest.mark.parametrize("grid", [2, 3, 5])
@torch.no_grad()
def test_registers_never_have_positions_whatever_the_grid(grid: int, tmp_path: Path) -> None:
    """1 + 2 x 2 positions are also those of five tokens and no patch; 1 + 5 x 5 of as many without a class token."""
    peer, state = dinov2("registers", grid)
    torch.save(state, tmp_path / "dinov2.pth")
    checkpoint = read_checkpoint(tmp_path / "dinov2.pth")
    assert checkpoint.config.img_size == (14 * grid, 14 * grid)
    assert_same(checkpoint.build(), peer)


@pytest.mark.parametrize("kind", DINOV2)
@torch.no_grad()
def test_blocks_in_chunks_are_the_same_blocks(kind: str, tmp_path: Path) -> None:
    peer, state = dinov2(kind)
    chunked = {re.sub(r"^blocks\.(\d+)\.", lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}.", key): t
               for key, t in state.items()}  # fmt: skip
    assert "blocks.1.3.norm1.weight" in chunked
    torch.save({"model": chunked}, tmp_path / "dinov2.pth")
    assert_same(read_checkpoint(tmp_path / "dinov2.pth").build(), peer)


@pytest.mark.parametrize("size", [(56, 56), (126, 126), (84, 140)])
@pytest.mark.parametrize("kind", ["plain", "registers"])
@torch.no_grad()
def test_positions_of_dinov2_are_resized_as_its_authors_do_it(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """With a small offset in the scale; with registers, to the size and without aliasing."""
    _, state = dinov2(kind)
    torch.save(state, tmp_path / "dinov2.pth")
    ours = vitrail.load(tmp_path / "dinov2.pth", img_size=size)
    image = state["pos_embed"][:, 1:].reshape(1, 7, 7, -1).permute(0, 3, 1, 2)
    rows, cols = size[0] // 14, size[1] // 14
    if kind == "plain":
        how = {"scale_factor": ((rows + 0.1) / 7, (cols + 0.1) / 7)}
    else:
        how = {"size": (rows, cols), "antialias": True}
    wanted = torch.nn.functional.interpolate(image, mode="bicubic", **how).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ours.model.pos_embed[:, 1:], wanted, atol=1e-6, rtol=1e-6)
    assert torch.equal(ours.model.pos_embed[:, :1], state["pos_embed"][:, :1])
    assert ours.preprocessing.size == size


MAE_NAMES = (
    (r"^vit\.embeddings\.cls_token$", "cls_token"),
    (r"^vit\.embeddings\.position_embeddings$", "pos_embed"),
    (r"^vit\.embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^vit\.layernorm\.", "norm."),
    (r"^decoder\.mask_token$", "mask_token"),
    (r"^decoder\.decoder_(embed|norm|pred|pos_embed)", r"decoder_\1"),
    (r"^decoder\.decoder_layers\.", "decoder_blocks."),
    (r"^vit\.(?:encoder\.layer|layers)\.", "blocks."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(?:output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.(?:intermediate\.dense|mlp\.fc1)\.", ".mlp.fc1."),
    (r"\.(?:output\.dense|mlp\.fc2)\.", ".mlp.fc2."),
    (r"\.attention\.(?:attention\.(q|k|v)(?:uery|ey|alue)|(q|k|v)_proj)\.", r".attn.\1\2."),
)


def as_mae(state: State) -> State:
    """transformers' tensors under the names of MAE's own files."""
    found = {}
    for name, tensor in state.items():
        for pattern, to in MAE_NAMES:
            name = re.sub(pattern, to, name)
        found[name] = tensor
    for name in [name for name in found if ".attn.q." in name]:
        parts = [found.pop(name.replace(".q.", f".{part}.")) for part in "qkv"]
        found[name.replace(".q.", ".qkv.")] = torch.cat(parts)
    return found


@torch.no_grad()
def test_maes_pretrained_files_give_the_same_features_as_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ViTMAEConfig(
        hidden_size=128, num_hidden_layers=3, num_attention_heads=2, intermediate_size=512, image_size=96,
        layer_norm_eps=1e-6, decoder_hidden_size=64, decoder_num_hidden_layers=2, decoder_num_attention_heads=4,
        decoder_intermediate_size=256, mask_ratio=0.0)  # fmt: skip
    torch.manual_seed(0)
    peer = transformers.ViTMAEForPreTraining(config).eval()
    for tensor in peer.parameters():
        tensor.add_(torch.randn_like(tensor), alpha=0.3 if tensor.ndim in (1, 3) else 0.05)
    state = as_mae(dict(peer.state_dict()))
    assert {"mask_token", "decoder_pos_embed", "decoder_blocks.1.attn.qkv.weight", "decoder_pred.bias"} <= state.keys()
    torch.save({"model": state}, tmp_path / "mae.pth")
    checkpoint = read_checkpoint(tmp_path / "mae.pth")
    assert (checkpoint.family, checkpoint.resampling) == ("MAE", "transformers")
    ours = checkpoint.build()
    pictures = pictures_for(ours.config)
    in_order = torch.arange(36.0).expand(2, -1)  # nothing is masked, and nothing changes places
    wanted = peer.vit(pictures, noise=in_order).last_hidden_state
    torch.testing.assert_close(ours.forward_features(pictures), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours(pictures), wanted[:, 0], atol=1e-5, rtol=1e-5)


OTHERS = {
    "mae, fine-tuned": ("vit_base_patch16_224", {"global_pool": "avg", "img_size": 96}, {}),
    "mae, linear probe": ("vit_base_patch16_224", {"img_size": 96}, {}),
    "deit": ("deit_base_patch16_224", {"img_size": 96}, {}),
    "deit, distilled": ("deit_base_distilled_patch16_224", {"img_size": 96}, {}),
    "deit-iii": ("deit3_base_patch16_224", {"img_size": 96}, {r"\.ls(\d)\.gamma": r".gamma_\1"}),
}


@pytest.mark.parametrize("kind", OTHERS)
@torch.no_grad()
def test_files_of_deit_and_mae_give_the_same_logits_as_in_timm(kind: str, tmp_path: Path) -> None:
    name, args, names = OTHERS[kind]
    peer = perturbed(name, num_classes=7, **args)
    state = dict(peer.state_dict())
    for pattern, to in names.items():
        state = {re.sub(pattern, to, key): tensor for key, tensor in state.items()}
        assert "blocks.3.gamma_2" in state
    torch.save({"model": state, "epoch": 299}, tmp_path / "weights.pth")
    ours = read_checkpoint(tmp_path / "weights.pth").build()
    assert ours.config.pool == ("mean" if kind == "mae, fine-tuned" else "token")
    assert_same(ours, peer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"blocks.2.mlp.w3.bias": None},
            r"the DINOv2 .* 1 missing \(blocks\.2\.mlp\.fc2\.bias\)",
        ),
        ({"cls_token": None}, "pos_embed is"),
        ({"blocks.0.mlp.fc1.weight": torch.zeros(2, 2)}, "two tensors for blocks.0.mlp.fc1.weight"),
        ({"blocks.1.0.norm1.weight": torch.zeros(128)}, "two tensors for blocks.0.norm1.weight"),
        ({"heads.head.weight": torch.zeros(3, 128)}, r"1 unexpected \(heads\.head\.weight\)"),
        ({"encoder.mask_token": torch.zeros(3, 128)}, r"1 unexpected \(encoder\.mask_token\)"),
    ],
)
def test_a_checkpoint_that_is_mixed_or_not_whole_is_refused_in_one_line(changes, message, tmp_path: Path) -> None:
    state = {**dinov2("swiglu with registers")[1], **changes}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "dinov2.pth")
    with pytest.raises(WeightsError, match=message) as error:
        read_checkpoint(tmp_path / "dinov2.pth").build()
    assert "\n" not in str(error.value)
