"""Steps of the masked autoencoder beside transformers' ViTMAE, with the same weights and the same noise.

    python benchmarks/pretrain_speed.py --device cuda --compiled --residual --recorded \
        --out benchmarks/pretrain_speed.json
    python benchmarks/pretrain_speed.py --small --residual     # a check on a CPU: it runs, and the losses are equal

A step is: noise, forward, the loss of normalised pixels, backward, fused AdamW. On CUDA in bfloat16 autocast. Each side
has a process of its own: they build, compile and warm up at the same time, and then take turns. Losses of all are
compared first, in float32. Figures are medians, the ratio is over paired rounds with quartiles, memory is the peak of a
step beyond what the model and its states take. `residuals` are the numbers in which blocks of the encoder and of the
decoder hand tokens on: where they are narrower on one side, a part of its speed is that. A recorded side replays its
step as one CUDA graph, as `record = true` does in a recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail.pretraining.mae import Reconstruction
from vitrail.pretraining.mae_weights import load_autoencoder
from vitrail.pretraining.masking import Places, order_by
from vitrail.training.methods import Mae
from vitrail.training.precision import Precision

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 256, "image_size": 32,
    "patch_size": 8, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 128,
}  # fmt: skip
OURS, RESIDUAL, RECORDED, THEIRS = "vitrail", ", bf16 residuals", ", recorded", "transformers"
COMPARED = 8  # pictures whose losses must be equal
WARM = 3  # steps in which compilers compile and optimisers make their states

Loss = Callable[[Any, Tensor, Tensor], Tensor]  # of the model, compiled or not, with pictures and noise


@dataclass(frozen=True)
class Order:
    """What a side is told when it starts."""

    name: str
    folder: str
    device: str
    batch_size: int
    compiled: bool
    start: float  # by the clock on the wall, which all processes share


def say(order: Order, what: str) -> None:
    print(f"[{time.time() - order.start:6.1f} s] {order.name}: {what}", file=sys.stderr, flush=True)


def save_models(folder: str, small: bool) -> None:
    """B/16 at 224 by default, as both have it."""
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(norm_pix_loss=True, layer_norm_eps=1e-6, **(SMALL if small else {}))
    model = transformers.ViTMAEForPreTraining(config)
    with torch.no_grad():
        model.vit.embeddings.initialize_weights()
        model.decoder.initialize_weights(model.vit.embeddings.patch_embeddings.num_patches)
    model.save_pretrained(folder)


def load_ours(folder: str, device: torch.device) -> tuple[nn.Module, Loss]:
    """As the loop does it: the hidden patches alone are drawn and compared, and the loss is not compiled."""
    model, _ = load_autoencoder(folder, Mae())
    assert model.pos_embed is not None
    model.pos_embed.requires_grad_(False)  # as MAE has them: sines and cosines
    objective = Reconstruction(model.to(device).train(), Places(0, device))
    return model, lambda run, pictures, noise: objective(run, pictures, order_by(noise))[0]


def load_theirs(folder: str, device: torch.device) -> tuple[nn.Module, Loss]:
    import transformers

    model = transformers.ViTMAEForPreTraining.from_pretrained(folder).to(device).train()
    for fixed in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        fixed.requires_grad_(False)  # it forgets when it loads that these do not learn
    return model, lambda run, pictures, noise: run(pictures, noise=noise).loss


def make_step(
    order: Order, model: nn.Module, loss: Loss, precision: Precision, pictures: Tensor, patches: int
) -> Callable[[], Tensor]:
    learning = [one for one in model.parameters() if one.requires_grad]
    more = {"fused": True, "capturable": RECORDED in order.name}
    optimiser = torch.optim.AdamW(learning, 1e-4, betas=(0.9, 0.95), weight_decay=0.05, **more)
    run = torch.compile(model, dynamic=False) if order.compiled else model

    def step() -> Tensor:
        noise = torch.rand(len(pictures), patches, device=pictures.device)
        with precision.autocast():
            found = loss(run, pictures, noise)
        found.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return found.detach()

    return step


def record(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same step, replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()

    def replay() -> Tensor:
        graph.replay()
        return found

    return replay


def residuals(model: Any, loss: Callable[[], Tensor]) -> list[str]:
    """What the second block gets from the first, in the encoder and in the decoder."""
    encoder, decoder = (
        (model.blocks, model.decoder_blocks)
        if hasattr(model, "blocks")
        else (model.vit.layers, model.decoder.decoder_layers)
    )
    found: list[str] = []
    watches = [
        blocks[1].register_forward_pre_hook(lambda _, inputs: found.append(str(inputs[0].dtype)))
        for blocks in (encoder, decoder)
    ]
    with torch.no_grad():
        loss()
    for watch in watches:
        watch.remove()
    return found


def seconds(step: Callable[[], Tensor], steps: int, device: torch.device) -> float:
    """Of a step, after one that fetches again what others used meanwhile."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    step()
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - begin) / steps


def peak(step: Callable[[], Tensor], device: torch.device) -> float | None:
    """GiB that a step takes for a while."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)


def take_part(order: Order, line: Connection) -> None:
    """The process of one side. When it is told that the weights are there, it tells its loss in float32, then that it
    is ready, and then takes rounds of as many steps as it is told."""
    say(order, "libraries loaded")
    line.recv()
    device = torch.device(order.device)
    config = json.loads((Path(order.folder) / "config.json").read_text(encoding="utf-8"))
    edge, patches = config["image_size"], (config["image_size"] // config["patch_size"]) ** 2
    same = torch.Generator().manual_seed(0)
    pictures = torch.randn(order.batch_size, 3, edge, edge, generator=same).to(device)
    noise = torch.rand(COMPARED, patches, generator=same).to(device)
    model, loss = (load_theirs if order.name == THEIRS else load_ours)(order.folder, device)
    say(order, "built")
    # of float32 alone: a convolution would be in TF32, and theirs has one where ours has a product
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        plain = float(loss(model, pictures[:COMPARED], noise[: order.batch_size]))
    line.send({"loss": plain, "learning": sum(one.numel() for one in model.parameters() if one.requires_grad)})
    say(order, "its loss told")
    usual = "bf16" if device.type == "cuda" else "fp32"
    precision = Precision("bf16_residual" if RESIDUAL in order.name else usual, device)
    if RESIDUAL in order.name:
        precision.prepare(model)
    with precision.autocast():
        handed_on = residuals(model, lambda: loss(model, pictures[:COMPARED], noise[: order.batch_size]))
    step = make_step(order, model, loss, precision, pictures, patches)
    say(order, "compiler loaded" if order.compiled else "ready to step")
    torch.manual_seed(1)  # the same noise for all
    begin = time.perf_counter()
    reached = float(step())
    first = time.perf_counter() - begin
    say(order, f"first step done in {first:.1f} s" + (", most of it compiling" if order.compiled else ""))
    for _ in range(WARM - 1):
        reached = float(step())
    taken = peak(step, device)
    if RECORDED in order.name:
        step = record(step)
    line.send(
        {
            "precision": precision.name,
            "residuals": handed_on,
            "first_step_s": round(first, 1),
            "loss": reached,
            "peak": taken,
        }
    )
    while True:
        line.send(seconds(step, line.recv(), device))


class Side:
    """A process, seen from outside. It never outlives the `with`."""

    def __init__(self, order: Order) -> None:
        context = get_context("spawn")
        self.order = order
        self._line, other = context.Pipe()
        self._process = context.Process(target=take_part, args=(order, other))
        self._process.start()
        other.close()  # so that its end is seen here

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()  # it has nothing to put away
        self._process.join()
        self._line.close()

    def tell(self, what: str | int) -> None:
        self._line.send(what)

    def answer(self) -> Any:
        try:
            return self._line.recv()
        except EOFError:
            raise SystemExit(f"{self.order.name}: its process ended; it said why above") from None

    def round(self, steps: int) -> float:
        self.tell(steps)
        return float(self.answer())


def measure(sides: list[Side], rounds: int, steps: int) -> dict[str, Any]:
    """Everything that the sides say, and their turns."""
    first = {side.order.name: side.answer() for side in sides}
    losses = [said["loss"] for said in first.values()]
    apart = max(losses) - min(losses)
    assert apart < 1e-4, f"the losses are {apart} apart: {first}"
    assert len({said["learning"] for said in first.values()}) == 1, f"not as many weights learn in all: {first}"
    ready = {side.order.name: side.answer() for side in sides}
    taken: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(rounds):
        for side in sides[:: -1 if number % 2 else 1]:
            taken[side.order.name].append(side.round(steps))
            say(side.order, f"round {number + 1} of {rounds}, {1000 * taken[side.order.name][-1]:.2f} ms a step")
    size = sides[0].order.batch_size
    ratios = {
        name: [b / a for a, b in zip(taken[name], taken[THEIRS], strict=True)] for name in taken if name != THEIRS
    }
    return {
        "precision": {name: said["precision"] for name, said in ready.items()},
        "residuals": {name: said["residuals"] for name, said in ready.items()},
        "losses_apart": apart,
        f"loss_after_{WARM}_steps": {name: round(said["loss"], 5) for name, said in ready.items()},
        "first_step_s": {name: said["first_step_s"] for name, said in ready.items()},
        "steps_per_s": {name: round(1 / statistics.median(all_), 3) for name, all_ in taken.items()},
        "pictures_per_s": {name: round(size / statistics.median(all_), 1) for name, all_ in taken.items()},
        "ratio": {name: round(statistics.median(all_), 3) for name, all_ in ratios.items()},
        "quartiles": {name: quartiles(all_) for name, all_ in ratios.items()},
        "memory_gib": {name: said["peak"] for name, said in ready.items()},
    }


def quartiles(numbers: list[float]) -> list[float]:
    return [round(q, 3) for q in statistics.quantiles(numbers, n=4)[::2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--residual", action="store_true", help="another side: ours with residuals in bfloat16")
    parser.add_argument("--recorded", action="store_true", help="other sides: ours as one CUDA graph a step")
    parser.add_argument("--rounds", type=int, default=7, help="2 or more")
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of those whose turn it is not
    size = asked.batch_size or (4 if asked.small else 256)
    ours = [OURS, *([OURS + RESIDUAL] if asked.residual else [])]
    names = [*ours, *([name + RECORDED for name in ours] if asked.recorded else []), THEIRS]
    start = time.time()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        orders = [Order(name, folder, asked.device, size, asked.compiled, start) for name in names]
        sides = [stack.enter_context(Side(order)) for order in orders]  # they load libraries meanwhile
        save_models(folder, asked.small)
        for side in sides:
            side.tell("the weights are there")
        figures = measure(sides, asked.rounds, asked.steps)
    device = torch.device(asked.device)
    result = {
        "what": "ViTMAE small" if asked.small else "ViTMAE B/16, 224",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "date": date.today().isoformat(),
        "versions": {**{name: version(name) for name in ("torch", "transformers")}, "vitrail": vitrail.__version__},
        "batch_size": size,
        "compiled": asked.compiled,
        **figures,
    }
    print(json.dumps(result, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
