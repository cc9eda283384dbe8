"""A model with its preprocessing and its class names: what is saved, shared, exported and served."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitrail.assets import bundled
from vitrail.errors import ConfigError, UnknownSizeError, VitrailError, WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.devices import choose_device
from vitrail.model.fields import pair
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.model.zoo import find
from vitrail.pictures import Preprocessing
from vitrail.weights import Checkpoint, hub, read_checkpoint, timm, to_timm
from vitrail.weights.customs import IMAGENET
from vitrail.weights.files import find_weights, read_json, read_state
from vitrail.whole import written_whole

FORMAT = 1  # of the model folder; raised when an older vitrail could no longer read it


@dataclass(frozen=True)
class Prediction:
    """What a classifier says of one picture."""

    label: str
    score: float  # probability, from 0 to 1
    index: int  # of the class
    top: tuple[tuple[str, float], ...]  # the best classes with their scores, best first


class Classifier:
    """`.model`, `.preprocessing`, `.classes`; `.predict` and `.save`."""

    def __init__(
        self,
        model: ViT | ResNet,
        preprocessing: Preprocessing | None = None,
        classes: Sequence[str] | None = None,
        *,
        assumed: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.preprocessing = preprocessing or default_preprocessing(model.config)
        self.assumed = assumed or {}  # what the checkpoint did not say
        count = model.config.num_classes
        self.classes = [str(name) for name in classes] if classes is not None else [str(i) for i in range(count)]
        if len(self.classes) != count:
            raise ConfigError(f"the model has {count} classes, but {len(self.classes)} names were given")
        if self.preprocessing.size != model.config.img_size and not getattr(model.config, "dynamic_img_size", False):
            raise ConfigError(f"preprocessing makes {self.preprocessing.size}, the model reads {model.config.img_size}")
        if len(self.preprocessing.mean) != model.config.in_chans:
            raise ConfigError(
                f"preprocessing makes {len(self.preprocessing.mean)} channels, the model reads {model.config.in_chans}"
            )

    def __repr__(self) -> str:
        return f"Classifier({len(self.classes)} classes, {self.preprocessing.describe()})"

    def to(self, device: str | torch.device) -> Classifier:
        """Moves the model, and returns this classifier."""
        self.model.to(device)
        return self

    def predict(self, pictures: Any, *, top: int = 1, batch_size: int = 32) -> list[Prediction]:
        """One `Prediction` for each picture, in order.

        A picture is a path, bytes, an open file, a PIL picture, an array (height, width, channels) or a tensor
        (channels, height, width); `pictures` is one of them, or any iterable of them.
        """
        self._check_top(top)
        return self._predictions(self.logits(pictures, batch_size=batch_size), top)

    def predict_pixels(self, pixels: NDArray[np.uint8], *, top: int = 1) -> list[Prediction]:
        """Like `predict`, in one batch, for what `preprocessing.pixels` made: (pictures, height, width, channels)."""
        self._check_top(top)
        return self._predictions(self._run([torch.from_numpy(self.preprocessing.normalise(pixels))]), top)

    def logits(self, pictures: Any, *, batch_size: int = 32) -> Tensor:
        """Logits of each picture, in float32 on the CPU: (pictures, classes)."""
        return self._run(self._batches(pictures, batch_size))

    def _check_top(self, top: int) -> None:
        if not self.classes:
            raise VitrailError("this model has no head, so it cannot predict: train one, or load with num_classes=…")
        if top < 1:
            raise VitrailError(f"top={top} must be at least 1")

    def _predictions(self, logits: Tensor, top: int) -> list[Prediction]:
        found = []
        for row in logits:
            scores, indices = row.softmax(dim=-1).topk(min(top, len(self.classes)))
            best = tuple((self.classes[i], s) for i, s in zip(indices.tolist(), scores.tolist(), strict=True))
            found.append(Prediction(best[0][0], best[0][1], int(indices[0]), best))
        return found

    def _run(self, batches: Iterable[Tensor]) -> Tensor:
        weight = next(self.model.parameters())
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                rows = [self.model(batch.to(weight.device, weight.dtype)).float().cpu() for batch in batches]
        finally:
            self.model.train(was_training)
        return torch.cat(rows) if rows else torch.empty(0, len(self.classes))

    def _batches(self, pictures: Any, batch_size: int) -> Iterator[Tensor]:
        iterator = iter(_each(pictures))
        while chunk := list(islice(iterator, batch_size)):
            yield torch.from_numpy(np.stack([self.preprocessing(picture) for picture in chunk]))

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str],
        *,
        img_size: int | tuple[int, int] | None = None,
        num_classes: int | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        **known: Any,
    ) -> Classifier:
        """Loads a model folder, a run (its best model), a checkpoint file of any known family, `hf:owner/name`, or the
        model that comes with the package, `cifar10_small`.

        img_size: another picture size; positions are resized as the checkpoint's authors do it.
        num_classes: another number of classes; the head is replaced.
        preprocessing: fields of `Preprocessing` to change, such as `{"fit": "squash", "mean": (0.5, 0.5, 0.5)}`.
        known: fields of the configuration that the file cannot say (`num_heads`, `norm_eps`, `act`, …).
        """
        path = hub.fetch(str(source)) if str(source).startswith("hf:") else Path(source)
        if not path.exists():
            path = bundled(str(source)) or path
        if not path.exists():
            raise WeightsError(_not_there(str(source)))
        if (path / "run.json").is_file():
            path = _model_of_run(path)
        try:
            checkpoint = _read_folder(path, known) if _is_ours(path) else read_checkpoint(path, **known)
        except UnknownSizeError:
            if img_size is None:
                raise
            checkpoint = read_checkpoint(path, img_size=pair("img_size", img_size), **known)
        model = checkpoint.build()
        pixels, assumed = checkpoint.preprocessing, dict(checkpoint.assumed)
        if pixels is None:
            pixels = default_preprocessing(model.config, _zoo_name(path))
            assumed["preprocessing"] = ""
        pixels = Preprocessing.from_json({**pixels.to_json(), **(preprocessing or {})})
        classes = checkpoint.classes
        if classes is None and checkpoint.config.num_classes == 1000:
            classes, assumed["classes"] = _imagenet_names(), "ImageNet-1k's"
        if img_size is not None:
            size = pair("img_size", img_size)
            if isinstance(model, ViT):
                model.set_image_size(size, resampling=checkpoint.resampling)
            else:
                model.set_image_size(size)
            pixels = replace(pixels, size=size)
        elif pixels.size != model.config.img_size:
            pixels = replace(pixels, size=model.config.img_size)
        if num_classes is not None and num_classes != model.config.num_classes:
            model.reset_head(num_classes)
            classes = None
            assumed.pop("classes", None)
        if "preprocessing" in assumed:
            assumed["preprocessing"] = pixels.describe()
        return cls(model.eval(), pixels, classes, assumed=assumed)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes the model folder: `config.json`, `model.safetensors`, `README.md`. It is there whole, or not at all.

        timm and transformers load the same folder. Where timm has no such architecture, a warning says why, and
        the folder is vitrail's alone.
        """
        folder = Path(folder)
        if folder.exists() and not overwrite:
            raise VitrailError(f"{folder} is already there: choose another name, or save with overwrite=True")
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        config = self.model.config
        try:
            form = to_timm.write(config, state)
            state, config = form.state, form.config
            plain = to_timm.hub_config(form, self.preprocessing, self.classes)
        except WeightsError as reason:
            warnings.warn(f"{folder} loads in vitrail alone: {reason}", UserWarning, stacklevel=2)
            plain = {"num_classes": config.num_classes, "label_names": self.classes}
        plain["vitrail"] = {
            "format": FORMAT,
            "kind": "resnet" if isinstance(config, ResNetConfig) else "vit",
            "config": config.to_json(),
            "preprocessing": self.preprocessing.to_json(),
            "classes": self.classes,
        }
        try:
            with written_whole(folder, overwrite=overwrite) as new:
                new.mkdir()
                save_file(state, new / "model.safetensors", metadata={"format": "pt"})
                (new / "config.json").write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
                (new / "README.md").write_text(_card(self, folder.name, "architecture" in plain), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            needed = sum(tensor.nbytes for tensor in state.values())
            words = " ".join(str(error).split())
            raise VitrailError(f"{folder} is not written, which needs {needed:,} bytes: {words}") from error
        return folder


def load(source: str | os.PathLike[str], **options: Any) -> Classifier:
    """Loads a model folder, a checkpoint file of any known family, or `hf:owner/name`: see `Classifier.load`."""
    return Classifier.load(source, **options)


def placed(
    model: Classifier | str | os.PathLike[str],
    img_size: int | tuple[int, int] | None = None,
    device: str | torch.device | None = None,
) -> Classifier:
    """The model, loaded if it is not yet, where it is to compute; a given one stays where it is unless told."""
    if isinstance(model, Classifier):
        if img_size is not None:
            raise VitrailError("img_size is for a model that is loaded here: load this one with img_size=…")
        return model if device is None else model.to(device)
    place = choose_device(device) if device is None or isinstance(device, str) else device
    return load(model, **({} if img_size is None else {"img_size": img_size})).to(place)


def default_preprocessing(config: ViTConfig | ResNetConfig, name: str | None = None) -> Preprocessing:
    """What the authors of an architecture do to pixels: to [-1, 1] (Google), or by ImageNet's statistics."""
    large = min(config.img_size) >= 384
    row = find(name) if name else None
    statistics: dict[str, Any] = dict(IMAGENET) if row is not None and row.imagenet_pixels else {}
    if config.in_chans != 3:
        statistics = {"mean": (0.5,) * config.in_chans, "std": (0.5,) * config.in_chans}
    return Preprocessing(size=config.img_size, crop_pct=1.0 if large else 0.9, **statistics)


def _imagenet_names() -> list[str]:
    """What a checkpoint with 1,000 classes and no names was, by all custom, trained on."""
    from torchvision.models import ViT_B_16_Weights

    return list(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])


def _zoo_name(path: Path) -> str | None:
    """Of a checkpoint that is named like an architecture: the file, or the folder that it lies in."""
    for named in (find_weights(path), path) if path.is_dir() else (path,):
        with suppress(VitrailError):
            return find(named.name.split(".")[0]).name
    return None


def _not_there(source: str) -> str:
    try:
        name = find(source).name
    except VitrailError:
        return f"there is no {source}: give a model folder or a checkpoint file"
    return f"{name} is the name of an architecture, which has no weights: give a model folder or a checkpoint file"


def _model_of_run(run: Path) -> Path:
    for name in ("best", "last"):
        if (run / name).is_dir():
            return run / name
    raise WeightsError(f"{run} has no model yet: go on with vitrail train --resume {run}")


def _is_ours(path: Path) -> bool:
    return path.is_dir() and (path / "config.json").is_file() and "vitrail" in read_json(path / "config.json")


def _read_folder(folder: Path, known: dict[str, Any]) -> Checkpoint:
    plain = read_json(folder / "config.json")["vitrail"]
    if plain.get("format") != FORMAT:
        raise WeightsError(f"{folder} has format {plain.get('format')}, this vitrail reads {FORMAT}: upgrade vitrail")
    kind: type[ViTConfig] | type[ResNetConfig] = ResNetConfig if plain.get("kind") == "resnet" else ViTConfig
    try:
        config = kind.from_json({**plain["config"], **known})
        preprocessing = Preprocessing.from_json(plain["preprocessing"])
        classes = [str(name) for name in plain["classes"]]
    except KeyError as error:
        raise WeightsError(f"{folder / 'config.json'} lacks {error} under 'vitrail'") from error
    state = read_state(find_weights(folder))
    if kind is ViTConfig:
        state = timm.rename(state)
    return Checkpoint("vitrail", config, state, preprocessing, classes)


def _each(pictures: Any) -> Iterable[Any]:
    """One picture, or many, as an iterable of what the preprocessing takes."""
    if isinstance(pictures, Tensor):
        array = pictures.detach().cpu()
        if array.ndim not in (2, 3, 4):
            raise VitrailError(f"a picture tensor is (channels, height, width), not {tuple(array.shape)}")
        if array.ndim == 4:
            return (_from_tensor(one) for one in array)
        return [_from_tensor(array)]
    if isinstance(pictures, np.ndarray):
        return list(pictures) if pictures.ndim == 4 else [pictures]
    if isinstance(pictures, (str, bytes, bytearray, memoryview, os.PathLike)) or hasattr(pictures, "read"):
        return [pictures]
    if hasattr(pictures, "convert") and hasattr(pictures, "size"):  # a PIL picture
        return [pictures]
    if not isinstance(pictures, Iterable):
        raise VitrailError(f"a {type(pictures).__name__} is no picture: give a path, bytes, a PIL picture or an array")
    return (_from_tensor(one) if isinstance(one, Tensor) else one for one in pictures)


def _from_tensor(picture: Tensor) -> np.ndarray:
    picture = picture.detach().cpu()
    if picture.ndim == 3:
        picture = picture.permute(1, 2, 0)
    if picture.dtype in (torch.bfloat16, torch.float16):
        picture = picture.float()
    return np.ascontiguousarray(picture.numpy())


def _card(classifier: Classifier, name: str, elsewhere: bool) -> str:
    """The model card: what it is, and how to load it."""
    config = classifier.model.config
    count = sum(parameter.numel() for parameter in classifier.model.parameters())
    kind = "ResNet" if isinstance(config, ResNetConfig) else "Vision Transformer"
    tags = ["image-classification", "vitrail"] + ["timm"] * elsewhere
    lines = ["---", "library_name: " + ("timm" if elsewhere else "vitrail"), "tags:"]
    lines += [f"- {tag}" for tag in tags]
    lines += ["---", f"# {name}", "", f"A {kind} with {count:,} parameters and {config.num_classes:,} classes.", ""]
    lines += [f"Pictures: {classifier.preprocessing.describe()}.", "", "```python", "import vitrail", ""]
    lines += [f'vitrail.load("{name}").predict("picture.jpg")', "```"]
    if elsewhere:
        lines += ["", "The same folder loads elsewhere:", "", "```python", "import timm, transformers", ""]
        lines += [f'timm.create_model("local-dir:{name}", pretrained=True)']
        lines += [f'transformers.AutoModelForImageClassification.from_pretrained("{name}")', "```"]
    return "\n".join(lines) + "\n"
