"""Steps of the masked autoencoder beside transformers' ViTMAE, with the same weights and the same noise.

    python benchmarks/pretrain_speed.py --device cuda --compiled --out benchmarks/pretrain_speed.json
    python benchmarks/pretrain_speed.py --small            # a check on a CPU: it runs, and the losses are equal

A step is: noise, forward, the loss of normalised pixels, backward, fused AdamW. On CUDA in bfloat16 autocast. Losses of
both are compared first, in float32. Rounds alternate; figures are medians, the ratio is over paired rounds with
quartiles, memory is the peak of a step beyond what the models and their states take.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import vitrail
from vitrail.pretraining.mae import MaskedAutoencoder, Reconstruction
from vitrail.pretraining.mae_weights import load_autoencoder
from vitrail.pretraining.masking import Places, order_by
from vitrail.training.methods import Mae

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 256, "image_size": 32,
    "patch_size": 8, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 128,
}  # fmt: skip


def make_models(small: bool, device: torch.device) -> tuple[MaskedAutoencoder, Any]:
    """B/16 at 224 by default, as both have it; ours takes its weights from theirs."""
    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(norm_pix_loss=True, layer_norm_eps=1e-6, **(SMALL if small else {}))
    theirs = transformers.ViTMAEForPreTraining(config)
    with torch.no_grad():
        theirs.vit.embeddings.initialize_weights()
        theirs.decoder.initialize_weights(theirs.vit.embeddings.patch_embeddings.num_patches)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours, _ = load_autoencoder(folder, Mae())
    ours.pos_embed.requires_grad_(False)  # as theirs, which are sines and cosines
    return ours.to(device).train(), theirs.to(device).train()


class Ours:
    """As the loop does it: noise by place, the hidden patches alone drawn and compared."""

    def __init__(self, model: MaskedAutoencoder, compiled: bool, device: torch.device) -> None:
        self.plain, self.objective = model, Reconstruction(model, Places(0, device))
        self.model: Any = torch.compile(model) if compiled else model

    def loss(self, pictures: Tensor, noise: Tensor) -> Tensor:
        return self.objective(self.model, pictures, order_by(noise))[0]


class Theirs:
    def __init__(self, model: nn.Module, compiled: bool) -> None:
        self.plain = model
        self.model: Any = torch.compile(model) if compiled else model

    def loss(self, pictures: Tensor, noise: Tensor) -> Tensor:
        loss: Tensor = self.model(pictures, noise=noise).loss
        return loss


def make_step(side: Ours | Theirs, pictures: Tensor, device: torch.device) -> Callable[[], None]:
    learning = [one for one in side.plain.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(learning, 1e-4, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    patches = (pictures.shape[-1] // side.plain.config.patch_size[0]) ** 2 if isinstance(side, Ours) else None
    patches = patches or side.plain.vit.embeddings.patch_embeddings.num_patches  # type: ignore[union-attr]

    def step() -> None:
        noise = torch.rand(len(pictures), patches, device=device)
        autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
        with autocast:
            loss = side.loss(pictures, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def seconds(step: Callable[[], None], steps: int, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begin) / steps


def peak(step: Callable[[], None], device: torch.device) -> float | None:
    """GiB that a step takes for a while."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)


def check_losses(ours: MaskedAutoencoder, theirs: Any, pictures: Tensor) -> float:
    """The difference of the two, with one noise, in float32."""
    patches = theirs.vit.embeddings.patch_embeddings.num_patches
    noise = torch.rand(len(pictures), patches, device=pictures.device)
    with torch.no_grad():
        mine = Ours(ours, False, pictures.device).loss(pictures, noise)
        other = theirs(pictures, noise=noise).loss
    apart = abs(float(mine) - float(other))
    assert apart < 1e-4, f"the losses are {apart} apart"
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    size = asked.batch_size or (4 if asked.small else 256)
    ours, theirs = make_models(asked.small, device)
    side = theirs.config.image_size
    pictures = torch.randn(size, 3, side, side, device=device)
    apart = check_losses(ours, theirs, pictures[: min(size, 8)])
    steps = {
        "vitrail": make_step(Ours(ours, asked.compiled, device), pictures, device),
        "transformers": make_step(Theirs(theirs, asked.compiled), pictures, device),
    }
    for step in steps.values():  # compilers compile, optimisers make their states
        for _ in range(3):
            step()
    memory = {name: peak(step, device) for name, step in steps.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(asked.rounds):
        for name in sorted(steps, reverse=bool(number % 2)):
            taken[name].append(seconds(steps[name], asked.steps, device))
    ratios = [b / a for a, b in zip(taken["vitrail"], taken["transformers"], strict=True)]
    result = {
        "what": "ViTMAE small" if asked.small else "ViTMAE B/16, 224",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "date": date.today().isoformat(),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "vitrail": vitrail.__version__,
        },
        "batch_size": size,
        "compiled": asked.compiled,
        "precision": "bf16 autocast" if device.type == "cuda" else "fp32",
        "losses_apart": apart,
        "steps_per_s": {name: round(1 / statistics.median(all_), 3) for name, all_ in taken.items()},
        "pictures_per_s": {name: round(size / statistics.median(all_), 1) for name, all_ in taken.items()},
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]] if len(ratios) > 1 else None,
        "memory_gib": memory,
    }
    print(json.dumps(result, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
