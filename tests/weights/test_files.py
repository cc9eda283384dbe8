"""Checkpoints that are broken, hostile or not what they seem: one line that says what and what to do."""

import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import WeightsError
from vitrail.weights.files import read_state


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=1, num_classes=3)
    return model.state_dict()


def refused(path: Path, words: str) -> None:
    with pytest.raises(WeightsError, match=words) as caught:
        vitrail.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "checkpoint" in str(caught.value)


@pytest.mark.parametrize("missing", [1, 100, 5_000, -4, -200])
def test_a_truncated_safetensors_file_says_how_much_is_missing(state, tmp_path: Path, missing: int) -> None:
    whole = tmp_path / "whole.safetensors"
    save_file(state, whole)
    content = whole.read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(content[: len(content) - missing] if missing > 0 else content[: 8 - missing])
    lost = missing if missing > 0 else struct.unpack("<Q", content[:8])[0] + missing
    refused(path, f"truncated: {lost:,} bytes are missing at its end; fetch it again")


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_pytorch_file_is_refused(state, tmp_path: Path, cut: float) -> None:
    path = tmp_path / "cut.pth"
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    refused(path, "truncated or damaged|no readable PyTorch file")


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return os.system, (f"touch {self.witness}",)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["model.pth", "model.safetensors", "model.bin"])
def test_nothing_of_a_hostile_checkpoint_runs(state, tmp_path: Path, zipped: bool, name: str) -> None:
    witness, path = tmp_path / "ran", tmp_path / name
    torch.save({**state, "extra": Hostile(witness)}, path, _use_new_zipfile_serialization=zipped)
    refused(path, "is refused: it holds objects other than tensors")
    assert not witness.exists()
    pickle.loads(pickle.dumps(Hostile(witness)))  # the trap itself works
    assert witness.exists()


def test_a_plain_pickle_is_refused_and_does_not_run(tmp_path: Path) -> None:
    witness, path = tmp_path / "ran", tmp_path / "model.pth"
    path.write_bytes(pickle.dumps(Hostile(witness)))
    refused(path, "refused|no readable")
    assert not witness.exists()


def test_an_unknown_format_shows_how_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"GGUF\0\0\0\0 something else")
    refused(path, "neither safetensors nor a PyTorch file.*GGUF")


def test_an_empty_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pth").touch()
    refused(tmp_path / "empty.pth", "is empty: fetch it again")
    refused(tmp_path / "absent.pth", "give a model folder or a checkpoint file")
    with pytest.raises(WeightsError, match="vit_b16 is the name of an architecture, which has no weights"):
        vitrail.load("ViT-B/16")


def test_tensors_of_something_else_are_named(tmp_path: Path) -> None:
    save_file({"lstm.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    refused(tmp_path / "other.safetensors", "lstm.weight.*no Vision Transformer that is known here")
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    refused(tmp_path / "tensor.pth", "holds a Tensor, not a state dict")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    refused(tmp_path / "none.pth", "holds no tensors")


def test_wrong_shapes_show_both_sides_and_the_likely_cause(state, tmp_path: Path) -> None:
    broken = {**state, "blocks.1.attn.qkv.weight": torch.zeros(10, 64)}
    save_file(broken, tmp_path / "broken.safetensors")
    refused(
        tmp_path / "broken.safetensors",
        r"1 of another shape \(blocks.1.attn.qkv.weight is \(10, 64\) here and \(192, 64\) in the model\); likely",
    )


def test_missing_and_unexpected_tensors_are_counted_and_named(state, tmp_path: Path) -> None:
    broken = dict(state)
    del broken["blocks.1.mlp.fc2.bias"]
    broken["decoder.weight"] = torch.zeros(2)
    save_file(broken, tmp_path / "broken.safetensors")
    refused(
        tmp_path / "broken.safetensors",
        r"1 missing \(blocks.1.mlp.fc2.bias\); 1 unexpected \(decoder.weight\); likely cause",
    )


def test_two_families_in_one_file_are_told_apart(state, tmp_path: Path) -> None:
    """Half of the blocks under timm's names, half under transformers'."""
    mixed = {name.replace("blocks.1.norm1", "vit.encoder.layer.1.layernorm_before"): t for name, t in state.items()}
    save_file(mixed, tmp_path / "mixed.safetensors")
    refused(
        tmp_path / "mixed.safetensors",
        r"2 missing \(blocks.1.norm1.bias, .*2 unexpected \(vit.encoder.layer.1.*two checkpoints are mixed",
    )


def test_positions_that_make_no_square_ask_for_the_size(tmp_path: Path) -> None:
    model = vitrail.create(
        "vit_ti16", img_size=(32, 96), embed_dim=64, depth=1, num_heads=1, num_classes=3, zero_head=False
    )
    save_file(model.state_dict(), tmp_path / "wide.safetensors")
    refused(tmp_path / "wide.safetensors", "give its img_size")
    again = vitrail.load(tmp_path / "wide.safetensors", img_size=(32, 96), num_heads=1).model
    pictures = torch.randn(1, 3, 32, 96)
    torch.testing.assert_close(again(pictures), model.eval()(pictures))


@pytest.mark.parametrize("wrap", ["state_dict", "model", "state_dict_ema", "module.", "_orig_mod."])
def test_wrappers_and_prefixes_of_training_scripts_are_taken_off(state, tmp_path: Path, wrap: str) -> None:
    content = {wrap + k: v for k, v in state.items()} if wrap.endswith(".") else {wrap: state, "epoch": 3}
    if wrap == "state_dict_ema":
        content["state_dict"] = {k: torch.zeros_like(v) for k, v in state.items()}
    torch.save(content, tmp_path / "wrapped.pth")
    found = read_state(tmp_path / "wrapped.pth")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_a_sharded_checkpoint_is_put_together_and_cannot_reach_outside(state, tmp_path: Path) -> None:
    names = sorted(state)
    half = len(names) // 2
    save_file({n: state[n] for n in names[:half]}, tmp_path / "model-1.safetensors")
    save_file({n: state[n] for n in names[half:]}, tmp_path / "model-2.safetensors")
    index = {n: f"model-{1 + (i >= half)}.safetensors" for i, n in enumerate(names)}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{"weight_map": ' + str(index).replace("'", '"') + "}")
    assert read_state(path).keys() == state.keys()
    path.write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    with pytest.raises(WeightsError, match="outside of its folder"):
        read_state(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_tensors_are_read_as_safetensors_own_loader_reads_them(dtype: torch.dtype, tmp_path: Path) -> None:
    content = {f"t{i}": torch.randint(0, 2, shape).to(dtype) for i, shape in enumerate([(), (0,), (3,), (2, 5, 7)])}
    save_file({**content, "other": torch.randn(11)}, tmp_path / "x.safetensors")
    found, wanted = read_state(tmp_path / "x.safetensors"), load_file(tmp_path / "x.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[n], wanted[n]) and found[n].dtype == wanted[n].dtype for n in wanted)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values())


@pytest.mark.parametrize("padding", range(0, 256, 8))
def test_a_header_of_any_length_is_not_taken_for_a_pickle(padding: int, tmp_path: Path) -> None:
    """The first byte of a safetensors file is the low byte of a length; 0x80 would start a pickle, PK a zip."""
    save_file({"t": torch.arange(3)}, tmp_path / "x.safetensors", metadata={"note": "x" * padding})
    assert torch.equal(read_state(tmp_path / "x.safetensors")["t"], torch.arange(3))


def test_a_folder_without_weights_or_with_broken_json_is_named(tmp_path: Path) -> None:
    refused(tmp_path, "holds no weights: expected one of model.safetensors")
    (tmp_path / "config.json").write_text("{ not json")
    refused(tmp_path, "cannot be read as JSON")
