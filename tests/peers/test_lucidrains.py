"""vit-pytorch's own `ViT` and `SimpleViT`, saved by torch.save, against ours."""

import re
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.errors import WeightsError
from vitrail.weights import read_checkpoint

vit_pytorch = pytest.importorskip("vit_pytorch", reason="vit-pytorch is not installed: uv run --all-extras pytest")
registers = pytest.importorskip("vit_pytorch.simple_vit_with_register_tokens")
deepvit = pytest.importorskip("vit_pytorch.deepvit")

SMALL = {"image_size": 64, "patch_size": 16, "num_classes": 7, "dim": 96, "depth": 3, "heads": 2, "mlp_dim": 200}
# class, what is changed, what the file cannot say, what is assumed
ARCHITECTURES = {
    "class token": ("ViT", {}, {}, {"num_heads": 2}),
    "mean": ("ViT", {"pool": "mean"}, {}, {"num_heads": 2}),
    "many heads": ("ViT", {"heads": 6}, {}, {"num_heads": 6}),
    "width of the heads": ("ViT", {"heads": 3, "dim_head": 16}, {"num_heads": 3}, {}),
    "width of the heads, said": ("ViT", {"heads": 3, "dim_head": 16}, {"head_dim": 16}, {}),
    "heads as wide as the model": ("ViT", {"heads": 4, "dim_head": 24}, {"num_heads": 4}, {}),
    "one head, not projected": ("ViT", {"heads": 1, "dim_head": 96}, {}, {}),
    "one head, projected": ("ViT", {"heads": 1, "dim_head": 64}, {}, {"num_heads": 1}),
    "not square": ("ViT", {"image_size": (32, 80)}, {"img_size": (32, 80)}, {"num_heads": 2}),
    "not square patches": (
        "ViT", {"image_size": (32, 80), "patch_size": (8, 20)}, {"patch_size": (8, 20)}, {"num_heads": 2}),
    "grey": ("ViT", {"channels": 1}, {}, {"num_heads": 2, "in_chans": 1, "patch_size": (16, 16)}),
    "five channels": ("ViT", {"channels": 5}, {"in_chans": 5}, {"num_heads": 2}),
    "odd mlp width": ("ViT", {"mlp_dim": 77}, {}, {"num_heads": 2}),
    "mean, not square": ("ViT", {"pool": "mean", "image_size": (32, 80)}, {"img_size": (32, 80)}, {}),
    "simple": ("SimpleViT", {}, {"img_size": 64}, {"num_heads": 2}),
    "simple, of its examples' size": ("SimpleViT", {"image_size": 256}, {}, {"img_size": (256, 256)}),
    "simple, not square": ("SimpleViT", {"image_size": (32, 80)}, {"img_size": (32, 80)}, {}),
    "simple, grey": ("SimpleViT", {"channels": 1}, {"img_size": 64}, {"in_chans": 1}),
    "simple, one head": ("SimpleViT", {"heads": 1, "dim_head": 96}, {"img_size": 64, "num_heads": 1}, {}),
    "simple, narrow heads": ("SimpleViT", {"heads": 4, "dim_head": 8}, {"img_size": 64, "num_heads": 4}, {}),
    "simple, with registers": ("registers", {"num_register_tokens": 3}, {"img_size": 64}, {"num_heads": 2}),
}  # fmt: skip
CLASSES = {"ViT": vit_pytorch.ViT, "SimpleViT": vit_pytorch.SimpleViT, "registers": registers.SimpleViT}


def perturb(model: torch.nn.Module) -> torch.nn.Module:
    """Random weights that do not hide anything: no zeros, no ones."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.3 if tensor.ndim < 2 else 0.05)
    return model.eval()


def theirs(kind: str) -> torch.nn.Module:
    name, args, _, _ = ARCHITECTURES[kind]
    torch.manual_seed(0)
    return perturb(CLASSES[name](**{**SMALL, **args}))


def pictures_for(config) -> torch.Tensor:
    return torch.randn(2, config.in_chans, *config.img_size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: torch.nn.Module, peer: torch.nn.Module) -> None:
    pictures = pictures_for(ours.config)
    wanted = peer(pictures)
    assert 0.05 < wanted.std() < 20
    torch.testing.assert_close(ours(pictures), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@torch.no_grad()
def test_a_checkpoint_of_vit_pytorch_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    _, args, known, assumed = ARCHITECTURES[kind]
    peer = theirs(kind)
    torch.save(peer.state_dict(), tmp_path / "vit.pt")
    checkpoint = read_checkpoint(tmp_path / "vit.pt", **known)
    assert checkpoint.family == "vit-pytorch"
    assert assumed.items() <= checkpoint.assumed.items()
    assert not checkpoint.assumed.keys() & known.keys()
    ours = checkpoint.build()
    assert ours.config.head_dim in (None, args.get("dim_head", 64))
    assert_same(ours, peer)


@pytest.mark.parametrize("pool", ["cls", "mean"])
@torch.no_grad()
def test_tokens_and_positions_with_an_axis_for_the_batch_are_the_same(pool: str, tmp_path: Path) -> None:
    peer = perturb(vit_pytorch.ViT(**SMALL, pool=pool))
    state = peer.state_dict()
    for name in ("cls_token", "pos_embedding"):
        assert state[name].ndim == 2
        state[name] = state[name][None]
    torch.save({"state_dict": state}, tmp_path / "vit.pt")
    checkpoint = read_checkpoint(tmp_path / "vit.pt")
    assert checkpoint.assumed.get("pool") == ("token" if pool == "cls" else None)
    assert_same(checkpoint.build(), peer)


def as_of_old(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names of releases in which a norm was wrapped around each part, and the last norm stood in the head."""
    rules = (
        (r"\.0\.(to_qkv|to_out)\.", r".0.fn.\1."),
        (r"\.1\.net\.0\.", ".1.norm."),
        (r"\.1\.net\.1\.", ".1.fn.net.0."),
        (r"\.1\.net\.[34]\.", ".1.fn.net.3."),
        (r"^(mlp|linear)_head\.", r"\1_head.1."),
        (r"^transformer\.norm\.", ("linear" if "linear_head.weight" in state else "mlp") + "_head.0."),
    )
    renamed = {}
    for name, tensor in state.items():
        for pattern, to in rules:
            name = re.sub(pattern, to, name)
        renamed[name] = tensor[None] if name in ("cls_token", "pos_embedding") else tensor
    return renamed


class PoolThenNorm(torch.nn.Module):
    """The older `SimpleViT`: the mean of the tokens first, then the norm."""

    def __init__(self, peer: torch.nn.Module) -> None:
        super().__init__()
        self.peer, self.norm = peer, peer.transformer.norm
        peer.transformer.norm = torch.nn.Identity()
        peer.to_latent = self.norm

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.peer(pictures)


@pytest.mark.parametrize("kind", ["class token", "one head, not projected", "simple"])
@torch.no_grad()
def test_older_releases_are_understood(kind: str, tmp_path: Path) -> None:
    peer = theirs(kind)
    peer.to_patch_embedding = torch.nn.Sequential(*(peer.to_patch_embedding[i] for i in (0, 2)))
    torch.save(as_of_old(peer.state_dict()), tmp_path / "vit.pt")
    known = {"img_size": 64} if kind == "simple" else {}
    ours = read_checkpoint(tmp_path / "vit.pt", **known).build()
    assert ours.config.patch_norm == "none"
    assert ours.config.final_norm == "pooled"
    assert_same(ours, PoolThenNorm(peer))


@torch.no_grad()
def test_a_model_without_a_head_gives_the_class_token(tmp_path: Path) -> None:
    peer = perturb(vit_pytorch.ViT(**{**SMALL, "num_classes": 0}))
    torch.save(peer.state_dict(), tmp_path / "vit.pt")
    ours = read_checkpoint(tmp_path / "vit.pt").build()
    pictures = pictures_for(ours.config)
    torch.testing.assert_close(ours(pictures), peer(pictures)[:, 0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_fixed_positions_of_simple_vit_follow_the_picture(tmp_path: Path) -> None:
    peer = theirs("simple")
    torch.save(peer.state_dict(), tmp_path / "vit.pt")
    larger = vit_pytorch.SimpleViT(**{**SMALL, "image_size": (96, 128)}).eval()
    larger.load_state_dict(peer.state_dict())
    assert_same(vitrail.load(tmp_path / "vit.pt", img_size=(96, 128)).model, larger)


@pytest.mark.parametrize(
    ("kind", "known", "message"),
    [
        ("width of the heads", {}, "48 wide together: give num_heads"),
        ("class token", {"num_heads": 5}, "128 wide together: give num_heads"),
        ("not square", {}, "10 positions make no square picture: give its img_size"),
        ("not square", {"img_size": 64}, r"pos_embed is \(1, 11, 96\) here and \(1, 17, 96\) in the model"),
        ("five channels", {}, "1280 values are not square pictures of 3 channels or 1: give patch_size"),
        ("class token", {"patch_size": 10}, r"\(10, 10\) pixels do not fit"),
        ("class token", {"patch_size": 16, "in_chans": 1}, r"\(16, 16\) pixels do not fit"),
        ("class token", {"pool": "mean"}, "its mean is over that token too"),
    ],
)
def test_what_the_file_does_not_say_is_asked_for_in_one_line(kind, known, message, tmp_path: Path) -> None:
    torch.save(theirs(kind).state_dict(), tmp_path / "vit.pt")
    with pytest.raises(WeightsError, match=message) as error:
        read_checkpoint(tmp_path / "vit.pt", **known).build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"to_patch_embedding.2.weight": None}, "nothing for patch_embed.proj.weight"),
        ({"transformer.layers.0.1.net.1.weight": None}, "nothing for blocks.0.mlp.fc1.weight"),
        ({"transformer.layers.2.0.to_out.0.weight": None}, r"1 missing \(blocks\.2\.attn\.proj\.weight\)"),
        ({"transformer.layers.1.1.net.4.bias": None}, r"1 missing \(blocks\.1\.mlp\.fc2\.bias\)"),
        ({"transformer.norm.bias": None}, r"1 missing \(norm\.bias\)"),
        ({"pos_embedding": None}, "nothing for pos_embed"),
        ({"to_patch_embedding.1.weight": torch.zeros(99)}, "norm_pixels.weight is"),
        ({"to_patch_embedding.1.weight": torch.zeros(96, 768)}, r"embedding\.1\.weight.*embedding\.2\.weight"),
        ({"head.weight": torch.zeros(7, 96)}, r"does not have \(head\.weight\)"),
        ({"transformer.layers.0.1.net.3.weight": torch.zeros(96, 200)}, r"net\.4\.weight.*net\.3\.weight"),
        ({"cls_token": torch.zeros(96)}, "cls_token has 1 axes"),
    ],
)
def test_a_checkpoint_that_is_mixed_or_not_whole_is_refused_in_one_line(changes, message, tmp_path: Path) -> None:
    state = {**theirs("class token").state_dict(), **changes}
    torch.save({name: tensor for name, tensor in state.items() if tensor is not None}, tmp_path / "vit.pt")
    with pytest.raises(WeightsError, match=message) as error:
        read_checkpoint(tmp_path / "vit.pt").build()
    assert "\n" not in str(error.value)


def test_a_sister_architecture_with_like_names_is_refused(tmp_path: Path) -> None:
    torch.save(deepvit.DeepViT(**SMALL).state_dict(), tmp_path / "deep.pt")
    with pytest.raises(WeightsError, match="another architecture"):
        read_checkpoint(tmp_path / "deep.pt")
