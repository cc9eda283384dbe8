"""Whether our fast training is the same training: 500 losses of B/16 beside timm's, from the same weights and batches.

    python benchmarks/loss_curves.py CIFAR10.npz --out benchmarks/loss_curves.json      # one GPU
    python benchmarks/loss_curves.py CIFAR10.npz --small --device cpu                   # to see it run

CIFAR-10's pictures are enlarged to the model's size. Sides have a process each, compile at the same time and step one
after the other. What two runs of the same arithmetic are apart by rounding is seen in timm eager beside timm compiled;
ours should be no farther from timm's than that. Losses are compared as means over 25 steps; at the end every side
answers the same 2,000 other pictures.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from dataclasses import replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from vitrail.model.config import ViTConfig
from vitrail.model.zoo import configure, create
from vitrail.speed.contenders import adamw_for, build, versions
from vitrail.training.precision import Precision

SIDES = {  # contender, precision, compiled
    "vitrail fast, compiled": ("vitrail", "bf16_residual", True),
    "vitrail, compiled": ("vitrail", "bf16", True),
    "timm, compiled": ("timm", "bf16", True),
    "timm, eager": ("timm", "bf16", False),
}
MEAN = 25  # steps
TESTED = 2000


def config_of(small: bool) -> ViTConfig:
    found = configure("vit_ti16" if small else "vit_b16", num_classes=10, img_size=64 if small else 224)
    assert isinstance(found, ViTConfig)
    return replace(found, depth=2) if small else found


def side(name: str, asked: argparse.Namespace, folder: str, lock: Any) -> None:
    contender, numbers, compiled = SIDES[name]
    device = torch.device(asked.device)
    torch.set_float32_matmul_precision("high")
    config = config_of(asked.small)
    model, _ = build(contender, config, load_file(Path(folder) / "model.safetensors"))
    model = model.to(device).train()
    precision = Precision(numbers if device.type == "cuda" else "fp32", device)  # type: ignore[arg-type]
    if contender == "vitrail":
        precision.prepare(model)
    data = np.load(asked.data)
    pixels, labels = data["x_train"], torch.from_numpy(data["y_train"]).long().to(device)
    pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)
    optimiser = adamw_for(model, contender, numbers)
    run = torch.compile(model, dynamic=False) if compiled and device.type == "cuda" else model

    def batch(places: torch.Tensor) -> torch.Tensor:
        return F.interpolate(pixels[places].float() / 127.5 - 1, size=config.img_size, mode="bilinear")

    order = torch.randperm(len(labels) - TESTED, generator=torch.Generator().manual_seed(0)).to(device)
    order = order.repeat(-(-asked.steps * asked.batch_size // len(order)))

    def loss_of(places: torch.Tensor) -> torch.Tensor:
        with precision.autocast():
            found = run(batch(places))
        return F.cross_entropy(found.float(), labels[places])

    loss_of(order[: asked.batch_size]).backward()  # type: ignore[no-untyped-call]  # compiles; nothing is learned from it
    optimiser.zero_grad(set_to_none=True)
    losses = []
    with lock:
        for step in range(asked.steps):
            loss = loss_of(order[step * asked.batch_size : (step + 1) * asked.batch_size])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        model.eval()
        right = 0
        with torch.inference_mode(), precision.autocast():
            for places in torch.arange(len(labels) - TESTED, len(labels), device=device).split(100):
                right += int((model(batch(places)).argmax(1) == labels[places]).sum())
    found = {"losses": torch.stack(losses).tolist(), "accuracy": round(100 * right / TESTED, 2)}
    (Path(folder) / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    print(f"{name}: loss {np.mean(found['losses'][-MEAN:]):.4f}, accuracy {found['accuracy']}%", flush=True)


def apart(first: list[float], second: list[float]) -> dict[str, float]:
    means = [np.array(one).reshape(-1, MEAN).mean(1) for one in (first, second)]
    off = np.abs(means[0] - means[1])
    return {"mean": round(float(off.mean()), 5), "largest": round(float(off.max()), 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=500, help=f"a multiple of {MEAN}")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = create(replace(config_of(asked.small), zero_head=False))
        save_file(dict(model.state_dict()), Path(folder) / "model.safetensors")
        lock = context.Lock()
        processes = [context.Process(target=side, args=(name, asked, folder, lock)) for name in SIDES]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        found = {name: json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8")) for name in SIDES}
    theirs = found["timm, compiled"]["losses"]
    result = {
        "what": f"{'small' if asked.small else 'B/16 at 224'}, {asked.steps} steps, batch {asked.batch_size}",
        "device": torch.cuda.get_device_name() if asked.device != "cpu" else platform.machine(),
        "date": date.today().isoformat(),
        "versions": versions(),
        "apart_from_timm_compiled": {
            name: apart(one["losses"], theirs) for name, one in found.items() if name != "timm, compiled"
        },
        "last_loss": {name: round(float(np.mean(one["losses"][-MEAN:])), 4) for name, one in found.items()},
        "accuracy": {name: one["accuracy"] for name, one in found.items()},
        "means_over_25_steps": {
            name: [round(float(v), 4) for v in np.array(one["losses"]).reshape(-1, MEAN).mean(1)]
            for name, one in found.items()
        },
    }
    print(json.dumps({key: value for key, value in result.items() if key != "means_over_25_steps"}, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
