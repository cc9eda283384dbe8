"""Who is measured: our model, and the peers' own code with the same weights in it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail.errors import WeightsError
from vitrail.model.config import ViTConfig
from vitrail.model.halves import Halves, are_used
from vitrail.model.vit import ViT
from vitrail.model.zoo import Config, create
from vitrail.speed.peers import OURS, PEERS
from vitrail.training.optimisers import make_optimiser
from vitrail.training.recipe import Optimiser
from vitrail.weights import lucidrains, to_timm, to_torchvision, to_transformers
from vitrail.weights.files import State

SEED = 7


class LogitsOnly(nn.Module):
    """transformers' model gives an object; what is compared is its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pictures: Tensor) -> Tensor:
        return self.model(pixel_values=pictures).logits


def build(name: str, config: Config, state: State) -> tuple[nn.Module, nn.Module | None]:
    """A contender with these weights; and, where its architecture has no place for them, our model with its weights.

    A WeightsError says what it cannot hold.
    """
    torch.manual_seed(SEED)
    if name == "vit-pytorch":
        return _vit_pytorch(config, state)
    makers: dict[str, Callable[[Config, State], nn.Module]] = {
        OURS: _vitrail,
        "timm": _timm,
        "torchvision": _torchvision,
        "transformers": _transformers,
    }
    return makers[name](config, state), None


def _vitrail(config: Config, state: State) -> nn.Module:
    model = create(config)
    model.load_state_dict(state)
    return model


def _timm(config: Config, state: State) -> nn.Module:
    import timm

    form = to_timm.write(config, state)
    model: nn.Module = timm.create_model(form.architecture, num_classes=config.num_classes, **form.model_args)
    model.load_state_dict(form.state)
    return model


def _torchvision(config: Config, state: State) -> nn.Module:
    from torchvision.models import VisionTransformer

    tensors = to_torchvision.write(config, state)
    assert isinstance(config, ViTConfig)
    model: nn.Module = VisionTransformer(
        image_size=config.img_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.embed_dim,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
    )
    model.load_state_dict(tensors)
    return model


def _transformers(config: Config, state: State) -> nn.Module:
    import transformers

    hub, tensors = to_transformers.write(config, state)
    (architecture,) = hub.pop("architectures")
    settings = transformers.AutoConfig.for_model(**hub)
    # its own reader: it knows the names that files have, which are not those in memory
    model: Any = getattr(transformers, architecture).from_pretrained(None, config=settings, state_dict=tensors)
    return LogitsOnly(model)


def _vit_pytorch(config: Config, state: State) -> tuple[nn.Module, nn.Module]:
    """Its patches have norms and its queries no bias: the nearest model that it has, with weights of its own."""
    import vit_pytorch  # type: ignore[import-untyped]

    try:
        to_torchvision.write(config, state)
    except WeightsError as error:
        raise WeightsError(str(error).replace("torchvision's VisionTransformer", "vit-pytorch's ViT")) from error
    assert isinstance(config, ViTConfig)
    model: nn.Module = vit_pytorch.ViT(
        image_size=config.img_size[0],
        patch_size=config.patch_size[0],
        num_classes=config.num_classes,
        dim=config.embed_dim,
        depth=config.depth,
        heads=config.num_heads,
        mlp_dim=config.mlp_dim,
        dim_head=config.key_dim,
    )
    known: dict[str, Any] = {
        "img_size": config.img_size,
        "num_heads": config.num_heads,
        "patch_size": config.patch_size,
    }
    return model, lucidrains.read(dict(model.state_dict()), **known).build()


def versions() -> dict[str, str]:
    """Of those that are installed, and of torch."""
    found = {"vitrail": vitrail.__version__}
    for package in ("torch", *PEERS):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def adamw_for(model: nn.Module, contender: str, precision: str, *, capturable: bool = False) -> torch.optim.Optimizer:
    """torch's, fused; for ours as training has it."""
    device = next(model.parameters()).device
    if contender == OURS and isinstance(model, ViT) and are_used(device, precision):
        settings = Optimiser(name="adamw", lr=1e-4, weight_decay=0.05)
        group = {"params": list(model.parameters()), "weight_decay": settings.weight_decay}
        return make_optimiser([group], settings, Halves([model.blocks]))
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True, capturable=capturable)
