"""Google's `.npz` files: what they do not say is said aloud; broken and hostile ones are refused in one line."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import WeightsError
from vitrail.model import ResNetConfig, ViTConfig
from vitrail.weights import read_checkpoint, to_google
from vitrail.weights.files import read_state

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 2, "num_classes": 3}
Arrays = dict[str, np.ndarray]


@pytest.fixture
def arrays() -> Arrays:
    torch.manual_seed(0)
    config = ViTConfig(**SMALL, act="gelu_tanh", zero_head=False)
    return to_google.write(config, vitrail.ViT(config).state_dict())


def refused(path: Path, words: str) -> None:
    with pytest.raises(WeightsError, match=words) as caught:
        vitrail.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "google checkpoint" in str(caught.value)


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return os.system, (f"touch {self.witness}",)


def test_what_the_file_does_not_say_is_told(arrays: Arrays, tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", **arrays)
    classifier = vitrail.load(tmp_path / "model.npz")
    assert classifier.assumed == {
        "img_size": (32, 32),
        "norm_eps": 1e-6,
        "act": "gelu_tanh",
        "preprocessing": "resize to 32 x 32 (bilinear), mean (0.5, 0.5, 0.5), std (0.5, 0.5, 0.5)",
    }
    assert classifier.model.config.num_heads == 2  # the shape of a query says it
    known = vitrail.load(tmp_path / "model.npz", act="gelu", norm_eps=1e-5)
    assert known.model.config.act == "gelu"
    assert known.assumed.keys() == {"img_size", "preprocessing"}


def test_a_file_without_positions_is_big_visions_sincos_unless_told(arrays: Arrays, tmp_path: Path) -> None:
    del arrays["Transformer/posembed_input/pos_embedding"]
    np.savez(tmp_path / "model.npz", **arrays)
    found = read_checkpoint(tmp_path / "model.npz", img_size=40)
    assert found.assumed["positions"] == "sincos_2d"
    assert "centre crop 40 x 40" in found.assumed["preprocessing"]
    assert found.build().pos_embed.shape == (1, 25, 64)
    assert read_checkpoint(tmp_path / "model.npz").config.img_size == (224, 224)
    assert read_checkpoint(tmp_path / "model.npz", positions="none").build().pos_embed is None


def test_a_head_of_zeros_is_said_to_mean_nothing(arrays: Arrays, tmp_path: Path) -> None:
    for name in ("head/kernel", "head/bias"):
        arrays[name] = np.zeros_like(arrays[name])
    np.savez(tmp_path / "model.npz", **arrays)
    assert "all zeros" in vitrail.load(tmp_path / "model.npz").assumed["head"]


def test_bfloat16_that_numpy_wrote_as_bytes_is_read(arrays: Arrays, tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    short = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    np.savez(tmp_path / "model.npz", **short)
    found = read_state(tmp_path / "model.npz")
    for name, array in short.items():
        assert found[name].dtype == torch.float32
        np.testing.assert_array_equal(found[name].numpy(), array.astype(np.float32))
    assert vitrail.load(tmp_path / "model.npz").model.config.depth == 4


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numbers_of_every_kind_and_order_are_read(dtype: type, save, tmp_path: Path) -> None:
    content = {"a/b": np.arange(6).reshape(2, 3).astype(dtype), "turned": np.ones((4, 5), dtype).T}
    content |= {"one": np.array(1, dtype), "none": np.zeros((0, 2), dtype)}
    save(tmp_path / "x.npz", **content)
    found = read_state(tmp_path / "x.npz")
    assert found.keys() == content.keys()
    for name, array in content.items():
        np.testing.assert_array_equal(
            found[name].numpy(), array.astype(np.float32) if array.dtype.kind == "f" else array
        )
        assert found[name].is_contiguous()
        assert found[name].data_ptr() % 64 == 0


def test_a_pickle_that_is_called_npz_does_not_run(arrays: Arrays, tmp_path: Path) -> None:
    for protocol in (0, 2, 5):
        witness, path = tmp_path / "ran", tmp_path / f"model{protocol}.npz"
        path.write_bytes(pickle.dumps({**arrays, "extra": Hostile(witness)}, protocol=protocol))
        refused(path, "is refused|is no checkpoint that is known here")
        path.write_bytes(pickle.dumps(arrays, protocol=protocol))
        refused(path, "is refused|is no readable|is no checkpoint that is known here")
        assert not witness.exists()


def test_pickled_objects_in_an_archive_do_not_run(arrays: Arrays, tmp_path: Path) -> None:
    witness, path = tmp_path / "ran", tmp_path / "model.npz"
    np.savez(path, **arrays, extra=np.array([Hostile(witness)], dtype=object))
    refused(path, "is refused: it holds pickled objects, which could run code")
    assert not witness.exists()
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra.npy", pickle.dumps(Hostile(witness)))
    refused(path, "is no readable .npz file .extra is not an array")
    assert not witness.exists()


@pytest.mark.parametrize("cut", [0.001, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_truncated_file_is_refused(arrays: Arrays, tmp_path: Path, cut: float, save) -> None:
    path = tmp_path / "model.npz"
    save(path, **arrays)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    refused(path, "truncated or damaged|no readable .npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_with_damaged_bytes_is_refused(arrays: Arrays, tmp_path: Path, save) -> None:
    path = tmp_path / "model.npz"
    save(path, **arrays)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    refused(path, "no readable .npz file .*; fetch it again")


def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    for shape in ("(1000000, 1000000, 1000000)", "(100000000000000000000,)", "(-1,)", "(3, 'a')", "1" * 20_000):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + min(len(header), 65535).to_bytes(2, "little") + header)
        refused(path, "no readable .npz file")


@pytest.mark.parametrize("lost", [(0, 1), (1, 2), (0, 2)])
def test_missing_blocks_are_named(arrays: Arrays, tmp_path: Path, lost: tuple[int, int]) -> None:
    there = {
        name: a
        for name, a in arrays.items()
        if not name.startswith(tuple(f"Transformer/encoderblock_{i}/" for i in lost))
    }
    np.savez(tmp_path / "model.npz", **there)
    refused(tmp_path / "model.npz", rf"lacks 2 of 4 blocks \({lost[0]}, {lost[1]}\): it is not whole")


ATTENTION = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/"
BROKEN = {
    "wrong width": ("Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel", (64, 99), r"shape \(blocks.1.mlp.fc1"),
    "no heads": (ATTENTION + "query/kernel", (64, 64), r"query/kernel of shape \(64, 64\), not \(width, heads, chan"),
    "flat bias": (ATTENTION + "key/bias", (64,), r"key/bias of shape \(64,\), not \(heads, channels\)"),
    "unequal key": (ATTENTION + "key/kernel", (64, 2, 16), "key and value of other shapes"),
    "no key": (ATTENTION + "key/kernel", None, "no key and value beside it"),
    "no norm": ("Transformer/encoder_norm/scale", None, r"1 missing \(norm.weight\)"),
    "no mlp": ("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", None, "no blocks.0.mlp.fc1.weight"),
    "no query": (ATTENTION + "query/kernel", None, "no blocks.0.attn.qkv.weight|not whole"),
    "flat patches": ("embedding/kernel", (192, 64), r"embedding/kernel of shape \(192, 64\), not \(height"),
    "flat positions": ("Transformer/posembed_input/pos_embedding", (17, 64), r"positions of shape \(17, 64\)"),
    "odd positions": ("Transformer/posembed_input/pos_embedding", (1, 15, 64), "15 positions.*give the img_size"),
    "extra": ("Transformer/extra/kernel", (2, 2), r"1 unexpected \(Transformer/extra"),
    "mixed names": ("Transformer/encoderblock_0/LayerNorm_1/scale", (64,), "twice, under older and newer names"),
    "damaged stack": ("Transformer/encoderblock/LayerNorm_2/scale", (), "it is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_tree_that_does_not_fit_says_where(arrays: Arrays, tmp_path: Path, kind: str) -> None:
    name, shape, words = BROKEN[kind]
    arrays.pop(name, None)
    if shape is not None:
        arrays[name] = np.ones(shape, np.float32)
    np.savez(tmp_path / "model.npz", **arrays)
    refused(tmp_path / "model.npz", words)


def test_arrays_of_something_else_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    refused(tmp_path / "other.npz", "weights.*no Vision Transformer that is known here")


REFUSED = {
    "registers": {"registers": 4}, "distillation": {"distilled": True}, "LayerScale": {"layer_scale": 1e-5},
    "rope": {"rope": True}, "relative bias": {"relative_bias": True}, "queries and keys": {"qk_norm": True},
    "SwiGLU": {"mlp": "swiglu"}, "RMSNorm": {"norm": "rms"}, "levels": {"levels": (1, 2)}, "stride": {"stride": 4},
    "norm_eps=1e-05": {"norm_eps": 1e-5}, "act='gelu'": {"act": "gelu"}, "pool='map'": {"pool": "map"},
    "class token beside the mean": {"pool": "mean"}, "positions='none'": {"positions": "none"},
    "positions='learned_2d'": {"positions": "learned_2d"}, "before the blocks": {"pre_norm": True},
    "final_norm='pooled'": {"final_norm": "pooled"}, "patches without a bias": {"patch_bias": False},
    "without a bias": {"qkv_bias": False}, "around the patch": {"patch_norm": "after"}, "head_dim": {"head_dim": 16},
    "attention scale": {"attn_scale": 0.1}, "convolutional stem": {"conv_stem": (8,), "patch_size": 4},
    "other choices": {"backbone": ResNetConfig(layers=(), width=32, preact=False, padding="same"), "patch_size": 2},
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_googles_tree_cannot_hold_is_said(words: str) -> None:
    config = ViTConfig(**{**SMALL, "act": "gelu_tanh", **REFUSED[words]})
    with pytest.raises(WeightsError, match=f"^Google's tree cannot hold .*{words}") as caught:
        to_google.write(config, vitrail.ViT(config).state_dict())
    assert "\n" not in str(caught.value)


def test_a_resnet_and_a_state_of_another_model_are_not_written() -> None:
    with pytest.raises(WeightsError, match="cannot hold a ResNet without a transformer"):
        to_google.write(ResNetConfig(), {})
    config = ViTConfig(**SMALL, act="gelu_tanh")
    state = vitrail.ViT(config).state_dict()
    del state["cls_token"]
    with pytest.raises(WeightsError, match=r"does not fit: 1 missing \(cls_token\)"):
        to_google.write(config, state)


@pytest.mark.parametrize("positions", ["sincos_1d", "sincos_2d"])
def test_fixed_positions_are_written_as_the_table_that_they_are(positions: str, tmp_path: Path) -> None:
    config = ViTConfig(**SMALL, act="gelu_tanh", positions=positions, zero_head=False)
    model = vitrail.ViT(config).eval()
    to_google.save(tmp_path / "model.npz", to_google.write(config, model.state_dict()))
    pictures = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(read_checkpoint(tmp_path / "model.npz").build()(pictures), model(pictures))


def test_a_file_is_written_whole_or_not_at_all(arrays: Arrays, tmp_path: Path) -> None:
    to_google.save(tmp_path / "model.npz", arrays)
    before = (tmp_path / "model.npz").read_bytes()
    with pytest.raises(vitrail.errors.VitrailError, match="already there"):
        to_google.save(tmp_path / "model.npz", {})
    with pytest.raises(ValueError, match="allow_pickle"):
        to_google.save(tmp_path / "other.npz", {**arrays, "x": np.array([object()])})
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
    assert (tmp_path / "model.npz").read_bytes() == before
