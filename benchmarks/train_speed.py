"""Training through the real loop, beside a step as timm's train.py takes it, and beside the bare step.

    python benchmarks/train_speed.py --models s16 b16 [--compiled] --out benchmarks/train_speed.json

bfloat16 autocast, AdamW, clipping at 1, an average of the weights; random pictures that are on the device already.
"loop" is that of `vitrail train` (schedule, figures, skipping of non-finite steps); "bare" the same operations in a row
without it; "timm" timm's model, optimiser, autocast, clipping and ModelEmaV3 as its script puts them together. Rounds
alternate; the figures are medians, ratios over paired rounds with quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3, dispatch_clip_grad
from torch import nn

import vitrail
from vitrail.data.batch import Batch
from vitrail.pictures import Preprocessing
from vitrail.training.checkpoints import Checkpoints
from vitrail.training.ema import Ema
from vitrail.training.groups import parameter_groups
from vitrail.training.loop import Trainer
from vitrail.training.losses import make_loss
from vitrail.training.objective import Classification
from vitrail.training.optimisers import make_optimiser, step
from vitrail.training.parallel import World
from vitrail.training.precision import Precision
from vitrail.training.recipe import Loss, Optimiser, Recipe
from vitrail.training.schedules import make_schedule
from vitrail.training.stopping import StopRequest

NAMES = {"s16": ("vit_s16", "vit_small_patch16_224", 512), "b16": ("vit_b16", "vit_base_patch16_224", 256)}
PRE = Preprocessing()


class OneBatch:
    """The same random batch for ever."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.samples = torch.arange(size, device=device)
        self.pixels = torch.randint(0, 256, (size, 3, 224, 224), dtype=torch.uint8, device=device)
        self.labels = torch.randint(0, 1000, (size,), device=device)

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        at = start
        while stop is None or at < stop:
            yield Batch(self.samples, self.pixels, self.labels, at)
            at += 1


def make_trainer(name: str, size: int, device: torch.device, compiled: bool, folder: Path) -> Trainer:
    recipe = Recipe(model=name, batch_size=size, ema=0.9999, optimiser=Optimiser(lr=1e-4), checkpoint_minutes=1e9)
    model = vitrail.create(name).to(device).train()
    optimiser = make_optimiser(parameter_groups(model, recipe.optimiser), recipe.optimiser)
    data = OneBatch(size, device)
    return Trainer(
        recipe=recipe,
        plain=model,
        model=torch.compile(model) if compiled else model,  # type: ignore[arg-type]
        optimiser=optimiser,
        objective=Classification(make_loss(Loss(smoothing=0.1), 1000, None, False), 1000, multi_label=False),
        schedule=make_schedule(recipe.schedule, 10**9, 1000),
        make_loader=lambda at: (data, PRE, 10**9),
        total_steps=10**9,
        steps_per_epoch=1000,
        world=World(0, 1, device),
        precision=Precision("bf16", device),
        checkpoints=Checkpoints(folder, 1),
        evaluate=lambda at: None,
        report=lambda row: None,
        stop=StopRequest(),
        ema=Ema(model, recipe.ema),
    )


def loop_of(trainer: Trainer) -> Callable[[int], None]:
    batches = trainer.make_loader(0)[0].batches()

    def run(steps: int) -> None:
        for _ in range(steps):
            trainer._one(next(batches), PRE)

    return run


def bare_of(trainer: Trainer) -> Callable[[int], None]:
    batch = next(trainer.make_loader(0)[0].batches())
    parameters = [p for group in trainer.optimiser.param_groups for p in group["params"]]
    loss_of = make_loss(Loss(smoothing=0.1), 1000, None, False)
    ema = trainer.ema
    assert ema is not None

    def run(steps: int) -> None:
        for at in range(steps):
            with torch.autocast(trainer.world.device.type, torch.bfloat16):
                loss = loss_of(trainer.model(batch.inputs(PRE)).float(), batch.labels)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            ok = torch.isfinite(norm)
            step(trainer.optimiser, ok)
            ema.update(trainer.plain, ok, at)
            trainer.optimiser.zero_grad(set_to_none=True)

    return run


def timm_of(name: str, size: int, device: torch.device, compiled: bool) -> Callable[[int], None]:
    plain = timm.create_model(name).to(device).train()
    optimiser = create_optimizer_v2(plain, opt="adamw", lr=1e-4, weight_decay=0.05)
    average = ModelEmaV3(plain, decay=0.9999)
    model: Any = torch.compile(plain) if compiled else plain
    data = OneBatch(size, device)
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) * 255 for v in (PRE.mean, PRE.std))
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

    def run(steps: int) -> None:
        for at in range(steps):
            inputs = data.pixels.float().sub_(mean).div_(std)
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(model(inputs), data.labels)
            loss.backward()
            dispatch_clip_grad(plain.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            average.update(plain, step=at)

    return run


def rate(run: Callable[[int], None], steps: int, size: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run(steps)
    torch.cuda.synchronize()
    return steps * size / (time.perf_counter() - start)


def measure(model: str, compiled: bool, rounds: int, seconds: float) -> dict[str, Any]:
    ours, theirs, size = NAMES[model]
    device = torch.device("cuda")
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(ours, size, device, compiled, Path(folder))
        ways = {"loop": loop_of(trainer), "bare": bare_of(trainer), "timm": timm_of(theirs, size, device, compiled)}
        for run in ways.values():
            run(5)
        steps = max(5, round(seconds * rate(ways["timm"], 5, size) / size))
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, run in ways.items():
                rates[name].append(rate(run, steps, size))
        trainer.checkpoints.close()
    row: dict[str, Any] = {"model": model, "compiled": compiled, "batch": size, "steps": steps}
    row |= {f"{name}_per_s": round(statistics.median(found)) for name, found in rates.items()}
    for other in ("timm", "bare"):
        ratios = [a / b for a, b in zip(rates["loop"], rates[other], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        row[f"ratio_{other}"] = round(statistics.median(ratios), 4)
        row[f"quartiles_{other}"] = [round(low, 4), round(high, 4)]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["s16", "b16"], choices=NAMES)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    head = {"date": date.today().isoformat(), "hardware": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows = []
    for model in args.models:
        rows.append(measure(model, args.compiled, args.rounds, args.seconds))
        print(json.dumps(rows[-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps({**head, "timm": timm.__version__, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
