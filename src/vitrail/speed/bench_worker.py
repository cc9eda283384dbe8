"""The process of one contender: it is told what to prepare, and takes its turns when it is told.

    python -m vitrail.speed.bench_worker

Requests and answers are lines of JSON on standard input and output. What libraries print goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.fp8 import quantise
from vitrail.model.kernel_sizes import small_layers_too
from vitrail.model.vit import ViT
from vitrail.speed.contenders import adamw_for, build
from vitrail.speed.peers import OURS, PEERS
from vitrail.speed.rates import matrix_rate, synchronise
from vitrail.training.precision import Precision

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}  # all others compute in bfloat16
RESIDUAL = {"fast": "bf16_residual", "fp8": "fp8"}  # how our training calls what is ours alone
COMPARED = 4  # pictures, of which larger batches are made
FIRST_STEPS = 3  # of training, after which losses are compared
WARM = 2  # further runs before the clock


class Worker:
    """Holds what is being measured."""

    def __init__(self) -> None:
        self.step: Callable[[], Any] | None = None
        self.device = torch.device("cpu")
        self.base = _status("RssAnon") or 0  # what the libraries take

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request.pop("do")
        handlers: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self.prepare,
            "turn": self.turn,
            "forget": self.forget,
            "product": self.product,
        }
        return handlers[what](**request)

    def prepare(
        self, folder: str, contender: str, way: str, mode: str, batch: int, precision: str, device: str
    ) -> dict[str, Any]:
        """Builds, compiles, warms up; says what came out and how much memory a step took."""
        self.forget()
        self._move(device)
        content = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        kind = ResNetConfig if content["kind"] == "resnet" else ViTConfig
        config = kind.from_json(content["config"])
        self._load(contender, mode)
        model, twin = build(contender, config, load_file(Path(folder) / "model.safetensors"))
        model = model.to(self.device)
        pictures = _pictures(config, batch).to(self.device)
        labels = torch.arange(batch, device=self.device) % config.num_classes
        _reset_peak(self.device)
        found: dict[str, Any] = {}
        if mode == "infer":
            dtype = DTYPES.get(precision, torch.bfloat16)
            in_eight_bits = precision == "fp8" and contender == OURS
            model = _in_eight_bits(model, pictures[:COMPARED]) if in_eight_bits else model.to(dtype)
            self.step = _inference(model, pictures.to(dtype), way)
            logits = self.step()[:COMPARED].float().cpu()
            found["logits"] = logits.tolist() if twin is None else None
            if twin is not None:
                with torch.inference_mode():
                    wanted = twin.eval()(_pictures(config, min(batch, COMPARED)))
                found["difference"] = float((logits - wanted).abs().max() / wanted.std())
        else:
            if precision in RESIDUAL and contender == OURS:
                Precision(RESIDUAL[precision], self.device).prepare(model)
            optimiser = adamw_for(model, contender, RESIDUAL.get(precision, precision), capturable=way == "graphs")
            step = _training(model, optimiser, pictures, labels, precision, way)
            self.step = step
            for _ in range(FIRST_STEPS):
                loss = step()
            found["loss"] = float(loss)
        for _ in range(WARM):
            self.step()
        synchronise(self.device)
        found["memory"] = _peak(self.device, self.base)
        self._release()
        return found

    def _load(self, contender: str, mode: str) -> None:
        """All that is loaded on the way to a first step, so that it is not taken for the model's memory."""
        before = _status("RssAnon") or 0
        library = importlib.import_module(PEERS.get(contender, "vitrail"))
        if contender == "transformers":  # loads its models when they are asked for
            _ = library.ViTForImageClassification, library.AutoConfig
        if mode == "train":
            importlib.import_module("torch._dynamo")  # optimisers load it
        self.base += max(0, (_status("RssAnon") or 0) - before)

    def turn(self, seconds: float) -> dict[str, Any]:
        """Runs for about so long; the seconds of one run."""
        assert self.step is not None
        self.step()  # memory is fetched anew after others had their turn
        synchronise(self.device)
        runs, start = 0, time.perf_counter()
        chunk = 1
        while True:
            for _ in range(chunk):
                self.step()
            synchronise(self.device)
            runs += chunk
            spent = time.perf_counter() - start
            if spent >= seconds:
                break
            chunk = max(1, min(100, int(runs * (seconds - spent) / spent)))
        self._release()
        return {"seconds": spent / runs, "runs": runs}

    def product(self, precision: str, device: str, seconds: float) -> dict[str, Any]:
        """FLOP/s of a large matrix product."""
        self._move(device)
        rate = matrix_rate(self.device, precision, seconds)
        self._release()
        return {"flops": rate}

    def forget(self) -> dict[str, Any]:
        self.step = None
        if "torch._dynamo" in sys.modules:  # to load it takes seconds, and there is nothing to forget
            torch.compiler.reset()
        self._release()
        return {}

    def _move(self, device: str) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device.index or 0)  # of this process, which has no other work
            torch.set_float32_matmul_precision("high")  # TF32, for all

    def _release(self) -> None:
        """What others need while it is their turn."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.step is None and sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):  # glibc alone has it
                ctypes.CDLL(None).malloc_trim(0)


def _pictures(config: ViTConfig | ResNetConfig, batch: int) -> Tensor:
    """The same for all: a few random pictures, again and again."""
    shape = (COMPARED, config.in_chans, *config.img_size)
    some = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return some[torch.arange(batch) % COMPARED]


def _compiled(model: nn.Module, way: str) -> Any:
    if way == "eager":
        return model
    return torch.compile(model, dynamic=False, mode={"graphs": "reduce-overhead", "tuned": "max-autotune"}.get(way))


def _in_eight_bits(model: nn.Module, pictures: Tensor) -> nn.Module:
    if not isinstance(model, ViT):
        raise ConfigError("fp8 is for Vision Transformers")
    return quantise(model, pictures)


def _inference(model: nn.Module, pictures: Tensor, way: str) -> Callable[[], Tensor]:
    """As one serves a model: weights and pictures are in the numbers that are measured."""
    run = _compiled(model.eval(), way)

    def forward() -> Tensor:
        with torch.inference_mode():
            return run(pictures)

    return forward


def _training(
    model: nn.Module, optimiser: torch.optim.Optimizer, pictures: Tensor, labels: Tensor, precision: str, way: str
) -> Callable[[], Tensor]:
    """Forward, cross-entropy, backward, AdamW; weights in float32, autocast around."""
    whole = way == "graphs"
    run = _compiled(model.train(), "compiled" if whole else way)
    scaler = torch.amp.GradScaler(pictures.device.type) if precision == "fp16" else None
    amp: Any = contextlib.nullcontext()
    if precision != "fp32":
        amp = torch.autocast(pictures.device.type, DTYPES.get(precision, torch.bfloat16))

    def step() -> Tensor:
        with amp:
            loss = F.cross_entropy(run(pictures).float(), labels)
        if scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        else:
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimiser)
            scaler.update()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    return _recorded(small_layers_too()(step)) if whole else step


def _recorded(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Some steps as they are, and then one recording of a step, played again and again."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    state: dict[str, Any] = {"steps": 0}

    def play() -> Tensor:
        if state["steps"] == FIRST_STEPS:
            with torch.cuda.graph(graph):
                state["loss"] = step()
        state["steps"] += 1
        if state["steps"] > FIRST_STEPS:
            graph.replay()
            return cast(Tensor, state["loss"])
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = step()
        torch.cuda.current_stream().wait_stream(side)
        return loss

    return play


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # Linux alone has it
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak(device: torch.device, base: int) -> int | None:
    """Bytes: of a GPU's allocator; of a process, what it had beyond its libraries and without the pages of files, which
    come and go."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    high, files = _status("VmHWM"), _status("RssFile")
    return None if high is None or files is None else max(0, high - files - base)


def _status(key: str) -> int | None:
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    worker = Worker()
    for line in sys.stdin:
        try:
            found = worker.answer(json.loads(line))
        except Exception as error:  # whatever a peer raises: it is said, and the next case may work
            worker.forget()
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
