"""Google's equations in Flax, with exactly Google's trees of names, against what is read from their `.npz`."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

import vitrail
from vitrail.weights import google, read_checkpoint, to_google

jax = pytest.importorskip("jax", reason="flax is not installed: uv run --all-extras pytest")
flax = pytest.importorskip("flax", reason="flax is not installed: uv run --all-extras pytest")
ndimage = pytest.importorskip("scipy.ndimage")
jnp, nn = jax.numpy, flax.linen
Arrays = dict[str, np.ndarray]
WIDTH, HEADS, CLASSES = 48, 3, 7


class MlpBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.gelu(nn.Dense(100)(x))  # made first, so it is Dense_0
        return nn.Dense(x.shape[-1])(hidden)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(y, y)
        return x + MlpBlock()(nn.LayerNorm()(x))


class Encoder(nn.Module):
    positions: bool  # vision_transformer adds them here, after the class token has joined

    @nn.compact
    def __call__(self, x):
        if self.positions:
            x = PositionTable(name="posembed_input")(x)
        for i in range(3):
            x = Block(name=f"encoderblock_{i}")(x)
        return nn.LayerNorm(name="encoder_norm")(x)


class PositionTable(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + self.param("pos_embedding", nn.initializers.normal(0.02), (1, *x.shape[1:]))


class StdConv(nn.Module):
    features: int
    size: int = 1
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
        strides = (self.stride, self.stride)
        return jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


class Unit(nn.Module):
    features: int
    stride: int

    @nn.compact
    def __call__(self, x):
        y = nn.relu(nn.GroupNorm(name="gn1")(StdConv(self.features, name="conv1")(x)))
        y = nn.relu(nn.GroupNorm(name="gn2")(StdConv(self.features, 3, self.stride, name="conv2")(y)))
        y = nn.GroupNorm(name="gn3")(StdConv(self.features * 4, name="conv3")(y))
        if x.shape != y.shape:
            x = nn.GroupNorm(name="gn_proj")(StdConv(self.features * 4, 1, self.stride, name="conv_proj")(x))
        return nn.relu(x + y)


class Stage(nn.Module):
    units: int
    features: int
    stride: int

    @nn.compact
    def __call__(self, x):
        for i in range(self.units):
            x = Unit(self.features, self.stride if i == 0 else 1, name=f"unit{i + 1}")(x)
        return x


class MAPHead(nn.Module):
    @nn.compact
    def __call__(self, x):
        probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, x.shape[-1]))
        x = nn.MultiHeadDotProductAttention(num_heads=HEADS)(jnp.tile(probe, (len(x), 1, 1)), x)
        return (x + MlpBlock()(nn.LayerNorm()(x)))[:, 0]


def sincos(h: int, w: int, width: int):
    """big_vision's table of sines and cosines of column and row."""
    y, x = np.mgrid[:h, :w].reshape(2, -1, 1) / 10_000 ** (np.arange(width // 4) / (width // 4 - 1))
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)[None].astype(np.float32)


class Model(nn.Module):
    """vision_transformer's, with positions in the encoder, and big_vision's, with positions before the class token."""

    table: str = "encoder"  # "encoder", "learn" or "sincos2d"
    pool: str = "token"
    patch: tuple[int, int] = (8, 8)
    pre_logits: int = 0
    classes: int = CLASSES
    layers: tuple[int, ...] | None = None

    @nn.compact
    def __call__(self, x):
        if self.layers is not None:
            x = nn.relu(nn.GroupNorm(name="gn_root")(StdConv(32, 7, 2, name="conv_root")(x)))
            x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
            for i, units in enumerate(self.layers):
                x = Stage(units, 32 * 2**i, 1 if i == 0 else 2, name=f"block{i + 1}")(x)
        x = nn.Conv(WIDTH, self.patch, self.patch, padding="VALID", name="embedding")(x)
        n, h, w, c = x.shape
        x = x.reshape(n, h * w, c)
        if self.table == "learn":
            x = x + self.param("pos_embedding", nn.initializers.normal(0.02), (1, h * w, c))
        elif self.table == "sincos2d":
            x = x + sincos(h, w, c)
        if self.pool == "token":
            cls = self.param("cls", nn.initializers.zeros, (1, 1, c))
            x = jnp.concatenate([jnp.tile(cls, (n, 1, 1)), x], axis=1)
        x = Encoder(self.table == "encoder", name="Transformer")(x)
        x = MAPHead()(x) if self.pool == "map" else x.mean(1) if self.pool == "gap" else x[:, 0]
        if self.pre_logits:
            x = nn.tanh(nn.Dense(self.pre_logits, name="pre_logits")(x))
        return nn.Dense(self.classes, name="head")(x) if self.classes else x


MODELS = {
    "plain": Model(), "pre_logits": Model(pre_logits=40), "gap": Model(pool="gap"), "not square": Model(),
    "patches not square": Model(patch=(8, 16)), "patches of 16": Model(patch=(16, 16)),
    "no head": Model(classes=0), "big_vision token": Model(table="learn"),
    "big_vision gap": Model(table="learn", pool="gap", pre_logits=WIDTH),
    "big_vision map": Model(table="learn", pool="map"),
    "big_vision sincos": Model(table="sincos2d", pool="gap", pre_logits=WIDTH),
    "big_vision sincos token": Model(table="sincos2d"), "hybrid": Model(layers=(2, 1, 2), patch=(1, 1)),
    "stem alone": Model(layers=(), patch=(2, 2)),
}  # fmt: skip
HOLDS = [name for name in MODELS if not re.search("map|sincos", name)]  # what Google's first tree holds as is


@functools.cache
def theirs(kind: str, size: tuple[int, int] = (48, 48)) -> tuple[Arrays, np.ndarray, np.ndarray]:
    """A model's arrays, without a zero or one that hides a mistake; pictures; and its logits of them."""
    draw = np.random.default_rng(0)
    light = 1.0 if MODELS[kind].layers is None else 0.01  # so dim that the epsilon of the first group norm counts
    pictures = (light * draw.normal(size=(2, *size, 3))).astype(np.float32)
    tree = jax.eval_shape(MODELS[kind].init, jax.random.key(0), pictures)["params"]  # names and shapes are Flax's
    arrays = {}
    for name, leaf in flax.traverse_util.flatten_dict(tree, sep="/").items():
        fan_in = leaf.shape[0] if name.endswith("query/kernel") else leaf.size // leaf.shape[-1]
        spread = fan_in**-0.5 if name.endswith("kernel") else 0.2
        spread /= 100 if re.match("conv_root|block", name) else 1  # standardised anyway: only the epsilon counts
        arrays[name] = (name.endswith("scale") + spread * draw.normal(size=leaf.shape)).astype(np.float32)
    return MappingProxyType(arrays), pictures, logits_of(MODELS[kind], arrays, pictures)


def logits_of(model: Model, arrays: Arrays, pictures: np.ndarray) -> np.ndarray:
    params = flax.traverse_util.unflatten_dict({tuple(name.split("/")): a for name, a in arrays.items()})
    with jax.default_matmul_precision("highest"):
        return np.array(model.apply({"params": params}, pictures))


def ours(path: Path, pictures: np.ndarray, **known) -> torch.Tensor:
    with torch.inference_mode():
        return read_checkpoint(path, **known).build()(torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous())


def same(found: torch.Tensor, wanted: np.ndarray) -> None:
    assert 0.2 < wanted.std() < 20
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


def stacked(arrays: Arrays) -> Arrays:
    """The form in which big_vision keeps blocks that were scanned over."""
    found = {name: a for name, a in arrays.items() if "/encoderblock_" not in name}
    for name in (name for name in arrays if "/encoderblock_0/" in name):
        parts = [arrays[name.replace("_0/", f"_{i}/", 1)] for i in range(3)]
        found[name.replace("encoderblock_0/", "encoderblock/")] = np.stack(parts)
    return found


def renumbered(arrays: Arrays) -> Arrays:
    """With the numbers that the parts of a block have in the published files."""
    attention = "MultiHeadDotProductAttention_"
    older, found = {attention + "0": attention + "1", "LayerNorm_1": "LayerNorm_2", "MlpBlock_0": "MlpBlock_3"}, {}
    for name, array in arrays.items():
        parts = [older.get(part, part) if "encoderblock" in name else part for part in name.split("/")]
        found["/".join(parts)] = array
    return found


def pre_linen(arrays: Arrays) -> Arrays:
    """As in the published files, whose group norms have four axes."""
    return {name: a[None, None, None] if re.search(r"\bgn\w+/", name) else a for name, a in renumbered(arrays).items()}


def unreleased(arrays: Arrays) -> Arrays:
    """Before its release big_vision kept the table in the encoder and the pooling at the top."""
    found = {name.removeprefix("MAPHead_0/"): array for name, array in arrays.items()}
    return {"Transformer/pos_embedding" if name == "pos_embedding" else name: a for name, a in found.items()}


def prefixed(prefix: str, beside: str) -> Callable[[Arrays], Arrays]:
    """With what stands around the picture model in some files."""
    return lambda arrays: {**{prefix + name: a for name, a in arrays.items()}, beside: np.ones((2, 2), np.float32)}


FORMS: dict[str, Callable[[Arrays], Arrays]] = {
    "linen": dict,
    "pre-linen": pre_linen,
    "stacked": stacked,
    "unreleased": unreleased,
    "opt/target/": prefixed("opt/target/", "opt/state/step"),
    "params/": prefixed("params/", "opt/0/mu"),
    "params/img/": prefixed("params/img/", "params/txt/head/kernel"),
    "img/": prefixed("img/", "t"),
    "params/ stacked": lambda arrays: prefixed("params/", "opt/0/mu")(stacked(arrays)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_the_equations_in_flax(kind: str, tmp_path: Path) -> None:
    size = (32, 72) if kind == "not square" else (48, 48)
    arrays, pictures, logits = theirs(kind, size)
    np.savez(tmp_path / "model.npz", **arrays)
    known = {"img_size": size} if kind == "not square" or "sincos" in kind else {}
    same(ours(tmp_path / "model.npz", pictures, **known), logits)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["plain", "hybrid", "big_vision map"])
def test_every_spelling_of_the_tree_is_the_same_model(kind: str, form: str) -> None:
    arrays, _, _ = theirs(kind)
    plain = google.read({name: torch.from_numpy(a) for name, a in arrays.items()})
    tree = {name: torch.from_numpy(a) for name, a in FORMS[form](arrays).items()}
    assert google.recognise(tree)
    found = google.read(tree)
    assert found.config == plain.config
    assert found.state.keys() == plain.state.keys()
    assert all(torch.equal(found.state[name], tensor) for name, tensor in plain.state.items())
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.state.values()}) == len(found.state)


@pytest.mark.parametrize("kind", HOLDS)
def test_what_was_read_is_written_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    arrays, pictures, logits = theirs(kind)
    np.savez(tmp_path / "model.npz", **arrays)
    found = read_checkpoint(tmp_path / "model.npz")
    written = to_google.write(found.config, found.build().state_dict())
    if "big_vision" in kind:  # the first tree keeps the same table in another place
        arrays = dict(arrays)
        table = arrays.pop("pos_embedding")
        nothing = np.zeros((1, int("token" in kind), WIDTH), np.float32)
        arrays["Transformer/posembed_input/pos_embedding"] = np.concatenate([nothing, table], axis=1)
    arrays = renumbered(arrays)
    assert written.keys() == arrays.keys()
    for name, array in arrays.items():
        assert written[name].dtype == np.float32
        np.testing.assert_array_equal(written[name], array, err_msg=name)
    to_google.save(tmp_path / "again.npz", written)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["again.npz", "model.npz"]
    same(ours(tmp_path / "again.npz", pictures), logits)


@pytest.mark.parametrize(("size", "to"), [(112, (192, 192)), (224, (384, 384)), (224, (160, 320))])
def test_positions_are_resized_as_google_does_it(size: int, to: tuple[int, int], tmp_path: Path) -> None:
    arrays, _, _ = theirs("patches of 16", (size, size))
    np.savez(tmp_path / "model.npz", **arrays)
    model = vitrail.load(tmp_path / "model.npz", img_size=to).model
    table, side = arrays["Transformer/posembed_input/pos_embedding"], size // 16
    grid = ndimage.zoom(table[0, 1:].reshape(side, side, WIDTH), (to[0] / size, to[1] / size, 1), order=1)
    wanted = np.concatenate([table[:, :1], grid.reshape(1, -1, WIDTH)], axis=1)
    np.testing.assert_allclose(model.pos_embed.detach().numpy(), wanted, atol=1e-6)
    resized = {**arrays, "Transformer/posembed_input/pos_embedding": wanted}
    pictures = np.random.default_rng(1).normal(size=(2, *to, 3)).astype(np.float32)
    with torch.inference_mode():
        found = model(torch.from_numpy(pictures).permute(0, 3, 1, 2))
    same(found, logits_of(MODELS["patches of 16"], resized, pictures))


def test_timm_reads_what_is_written_as_the_same_tensors(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")
    arrays, _, _ = theirs("plain")
    np.savez(tmp_path / "model.npz", **pre_linen(arrays))
    peer = timm.create_model("vit_base_patch16_224", img_size=48, patch_size=8, embed_dim=WIDTH, depth=3,
                             num_heads=HEADS, mlp_ratio=100 / WIDTH, num_classes=CLASSES)  # fmt: skip
    checkpoint = read_checkpoint(tmp_path / "model.npz")
    to_google.save(tmp_path / "again.npz", to_google.write(checkpoint.config, checkpoint.state))
    peer.load_pretrained(tmp_path / "again.npz")
    found = checkpoint.state
    assert found.keys() == peer.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in peer.state_dict().items())
