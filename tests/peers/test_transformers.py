"""transformers' own models, saved by its own saver, against ours; and our folders in its own loaders."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.weights import read_checkpoint, to_transformers
from vitrail.weights import transformers as family

transformers = pytest.importorskip("transformers", reason="transformers is not installed: uv run --all-extras pytest")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SMALL = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 96, "patch_size": 16}
WIDE = {"intermediate_size": 512}
ARCHITECTURES = {
    "plain": ("ViTForImageClassification", "ViTConfig", {**WIDE}),
    "224 pixels": ("ViTForImageClassification", "ViTConfig", {**WIDE, "image_size": 224}),
    "epsilon": ("ViTForImageClassification", "ViTConfig", {**WIDE, "layer_norm_eps": 1e-3}),
    "not square": ("ViTForImageClassification", "ViTConfig", {**WIDE, "image_size": [64, 128]}),
    "not square patches": ("ViTForImageClassification", "ViTConfig", {**WIDE, "patch_size": [8, 16]}),
    "odd mlp width": ("ViTForImageClassification", "ViTConfig", {"intermediate_size": 333}),
    "no qkv bias": ("ViTForImageClassification", "ViTConfig", {**WIDE, "qkv_bias": False}),
    "tanh gelu": ("ViTForImageClassification", "ViTConfig", {**WIDE, "hidden_act": "gelu_pytorch_tanh"}),
    "relu": ("ViTForImageClassification", "ViTConfig", {**WIDE, "hidden_act": "relu"}),
    "grey": ("ViTForImageClassification", "ViTConfig", {**WIDE, "num_channels": 1}),
    "head width": ("ViTForImageClassification", "ViTConfig", {**WIDE, "head_dim": 16}),
    "pooler": ("ViTModel", "ViTConfig", {**WIDE}),
    "narrow pooler": ("ViTModel", "ViTConfig", {**WIDE, "pooler_output_size": 48}),
    "deit": ("DeiTForImageClassification", "DeiTConfig", {**WIDE}),
    "distilled": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {**WIDE}),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", {}),
    "dinov2 features": ("Dinov2Model", "Dinov2Config", {}),
    "dinov2 swiglu": ("Dinov2ForImageClassification", "Dinov2Config", {"use_swiglu_ffn": True}),
    "registers": ("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", {}),
    "registers swiglu": (
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", {"use_swiglu_ffn": True}),
    "clip": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {**WIDE, "projection_dim": 24}),
}  # fmt: skip


def theirs(kind: str) -> torch.nn.Module:
    """A model of transformers' with random weights that do not hide anything: no zeros, no tiny scales."""
    name, config, args = ARCHITECTURES[kind]
    labels = {} if "Model" in name else {"num_labels": 7}
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**{**SMALL, **labels, **args})).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            centre = 1.0 if "norm" in key and "weight" in key else 0.0
            torch.nn.init.normal_(tensor, mean=centre, std=0.3 if tensor.ndim <= 1 or "embedding" in key else 0.1)
            if "mask_token" in key:
                tensor.zero_()  # of pretraining: no part of the classifier
    return model


def logits_of(output) -> torch.Tensor:
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    raise AssertionError("no logits")


def pictures_for(config) -> torch.Tensor:
    return torch.randn(2, config.in_chans, *config.img_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ARCHITECTURES)
@torch.no_grad()
def test_a_checkpoint_of_transformers_gives_the_same_logits_and_the_same_tensors_back(kind: str, tmp_path) -> None:
    peer = theirs(kind)
    peer.save_pretrained(tmp_path / "theirs")
    ours = read_checkpoint(tmp_path / "theirs").build()
    pictures = pictures_for(ours.config)
    wanted = logits_of(peer(pictures))
    assert 0.05 < wanted.std() < 20
    torch.testing.assert_close(ours(pictures), wanted, atol=1e-5, rtol=1e-5)

    config, state = to_transformers.write(ours.config, ours.state_dict())
    on_disk = load_file(tmp_path / "theirs" / "model.safetensors")
    assert state.keys() == on_disk.keys()
    assert all(torch.equal(state[name], on_disk[name]) for name in on_disk)
    (tmp_path / "back").mkdir()
    save_file(state, tmp_path / "back" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "back" / "config.json").write_text(json.dumps(config))
    again, report = type(peer).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert torch.equal(logits_of(again.eval()(pictures)), wanted)


@pytest.mark.parametrize("kind", ["plain", "distilled", "registers swiglu", "clip"])
@torch.no_grad()
def test_the_names_that_a_model_has_in_memory_are_understood_too(kind: str) -> None:
    peer = theirs(kind)
    ours = family.read(dict(peer.state_dict()), peer.config.to_dict()).build()
    pictures = pictures_for(ours.config)
    torch.testing.assert_close(ours(pictures), logits_of(peer(pictures)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "224 pixels", "registers", "dinov2"])
@pytest.mark.parametrize("size", [(144, 144), (64, 160), (384, 384), (160, 320)])
@torch.no_grad()
def test_another_image_size_is_transformers_own_resizing(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    peer = theirs(kind)
    peer.save_pretrained(tmp_path)
    ours = vitrail.load(tmp_path, img_size=size).model
    pictures = pictures_for(ours.config)
    options = {"interpolate_pos_encoding": True} if kind in ("plain", "224 pixels") else {}
    torch.testing.assert_close(ours(pictures), logits_of(peer(pictures, **options)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "registers", "rope", "rope and scale", "relative bias", "swiglu", "hybrid"])
@torch.no_grad()
def test_a_folder_saved_here_loads_in_transformers_with_the_same_logits_and_names(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="transformers reads such folders through timm, which is not installed")
    fields = {
        "registers": {"registers": 4, "prefix_positions": "class"},
        "rope": {"rope": True, "registers": 2, "prefix_positions": "none"},
        "rope and scale": {"rope": True, "layer_scale": 0.5},
        "relative bias": {"relative_bias": True, "positions": "none", "class_token": False, "pool": "mean"},
        "swiglu": {"mlp": "swiglu"},
    }
    changes = {"embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5, "zero_head": False}
    if kind == "hybrid":
        model = vitrail.create("r26_vit_s32", **changes)
    else:
        model = vitrail.create("vit_b16", img_size=(64, 96), **changes, **fields.get(kind, {}))
    names = ["rose", "tulip", "daisy", "dandelion", "sunflower"]
    vitrail.Classifier(model.eval(), classes=names).save(tmp_path / "ours")
    peer = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours").eval()
    pictures = pictures_for(model.config)
    torch.testing.assert_close(peer(pictures).logits, model(pictures), atol=1e-5, rtol=1e-5)
    assert [peer.config.id2label[i] for i in range(5)] == names


@torch.no_grad()
def test_class_names_and_preprocessing_come_along(tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SMALL, **WIDE, id2label={0: "cat", 1: "dog"}, label2id={"cat": 0, "dog": 1})
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 96, "width": 96}, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(tmp_path)
    classifier = vitrail.load(tmp_path)
    assert classifier.classes == ["cat", "dog"]
    assert classifier.preprocessing.mean == (0.1, 0.2, 0.3)
    assert classifier.preprocessing.fit == "squash"
    assert classifier.preprocessing.size == (96, 96)
