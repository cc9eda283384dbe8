"""A candidate: GELU and its derivative where the MLP's products are written, instead of in passes of their own.

    python benchmarks/candidates/gelu_in_products.py                       # one GPU: errors, microseconds
    python benchmarks/candidates/gelu_in_products.py vit_l16:128 vit_h14:64  # whole steps of models at these batches

By epilogues of cuBLASLt that torch does not offer (GELU's tanh form; through ctypes): forward the hidden layer and its
GELU are written, back the gradient before GELU, with or without its sums over rows. Timed as 4 in a row played from a
CUDA graph, each beside the product and the kernel that there are; of what cuBLASLt proposes, the first four. In whole
steps GELU is kept for the way back, which takes a quarter more memory, and sums for the bias are a pass of their own;
steps are forward, cross-entropy, backward and AdamW, compiled, in `fast`, in turns with the MLP that there is.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernels.fused_mlp import gelu_backward
from vitrail.model.kernels.gelu import gelu

KINDS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
COMPUTE_32F = 68
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD = 3, 4, 7, 8, 11, 12
BIAS, GELU_AUX_BIAS, DGELU, DGELU_BGRAD = 4, 164, 192, 208
WORKSPACE = 32 * 2**20


class Found(ctypes.Structure):
    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Lt:
    """One product, planned: `call` starts it."""

    lib: Any = None
    handle: Any = None

    def __init__(
        self, a: Tensor, b: Tensor, out: Tensor, trans_a: bool, epilogue: int, bias: Tensor, aux: Tensor | None
    ) -> None:
        """Column-major: out = op(a) @ b; row-major tensors are their own transposes."""
        if Lt.lib is None:
            Lt.lib = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
            Lt.handle = ctypes.c_void_p()
            self._check(Lt.lib.cublasLtCreate(ctypes.byref(Lt.handle)))
        self.tensors = a, b, out, bias, aux
        self.desc = ctypes.c_void_p()
        self._check(Lt.lib.cublasLtMatmulDescCreate(ctypes.byref(self.desc), COMPUTE_32F, 0))
        self._set(TRANSA, ctypes.c_int32(int(trans_a)))
        self._set(EPILOGUE, ctypes.c_int32(epilogue))
        self.epilogue = epilogue
        self._point(bias, aux)
        self.layouts = [self._layout(one) for one in (a, b, out)]
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")
        preference = ctypes.c_void_p()
        self._check(Lt.lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        size = ctypes.c_size_t(WORKSPACE)
        self._check(Lt.lib.cublasLtMatmulPreferenceSetAttribute(preference, 1, ctypes.byref(size), ctypes.c_size_t(8)))
        found, count = (Found * 8)(), ctypes.c_int()
        la, lb, ld = self.layouts
        self._check(
            Lt.lib.cublasLtMatmulAlgoGetHeuristic(
                Lt.handle, self.desc, la, lb, ld, ld, preference, 8, found, ctypes.byref(count)
            )
        )
        self.found = [found[k] for k in range(count.value) if found[k].state == 0]

    def _point(self, bias: Tensor, aux: Tensor | None) -> None:
        if self.epilogue != DGELU:
            self._set(BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
        if aux is not None:
            self._set(AUX_POINTER, ctypes.c_void_p(aux.data_ptr()))
            self._set(AUX_LD, ctypes.c_int64(aux.shape[1]))

    def again(self, a: Tensor, b: Tensor, out: Tensor, bias: Tensor, aux: Tensor) -> None:
        """With other tensors of the same shapes."""
        self.tensors = a, b, out, bias, aux
        self._point(bias, aux)
        self.call()

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLASLt: status {status}")

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._check(Lt.lib.cublasLtMatmulDescSetAttribute(self.desc, attribute, ctypes.byref(value), size))

    def _layout(self, tensor: Tensor) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        rows, columns = tensor.shape
        self._check(
            Lt.lib.cublasLtMatrixLayoutCreate(
                ctypes.byref(layout),
                KINDS[tensor.dtype],
                ctypes.c_uint64(columns),
                ctypes.c_uint64(rows),
                ctypes.c_int64(columns),
            )
        )
        return layout

    def call(self, which: int = 0) -> None:
        a, b, out, *_ = self.tensors
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        la, lb, ld = self.layouts
        self._check(
            Lt.lib.cublasLtMatmul(
                Lt.handle, self.desc, ctypes.byref(one), ctypes.c_void_p(a.data_ptr()), la,
                ctypes.c_void_p(b.data_ptr()), lb, ctypes.byref(zero), ctypes.c_void_p(out.data_ptr()), ld,
                ctypes.c_void_p(out.data_ptr()), ld, ctypes.byref(self.found[which].algo),
                ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )
        )  # fmt: skip


def microseconds(call: Callable[[], Any], times: int = 4) -> float:
    """Of one of some in a row, played from a CUDA graph: the median of 50."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    found = []
    for _ in range(60):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        found.append(1000 * first.elapsed_time(last) / times)
    return round(statistics.median(found[10:]), 2)


def apart(found: Tensor, right: Tensor) -> float:
    return round(float((found.double() - right).norm() / right.norm()), 5)


def check(rows: int = 384, width: int = 64, wide: int = 256) -> dict[str, float]:
    """Errors against float64."""
    kw: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x, gradient = torch.randn(rows, width, **kw), torch.randn(rows, width, **kw)
    weight1, bias = torch.randn(wide, width, **kw) * width**-0.5, torch.randn(wide, **kw)
    weight2 = torch.randn(width, wide, **kw) * wide**-0.5
    hidden, active, before = (torch.full((rows, wide), torch.nan, **kw) for _ in range(3))
    to_bias = torch.full((wide,), torch.nan, **kw)
    Lt(weight1, x, active, True, GELU_AUX_BIAS, bias, hidden).call()
    Lt(weight2, gradient, before, False, DGELU_BGRAD, to_bias, hidden).call()
    inner = (x.double() @ weight1.double().T + bias.double()).requires_grad_()
    right = F.gelu(inner)
    (slope,) = torch.autograd.grad(right.sum(), inner)
    wanted = gradient.double() @ weight2.double() * slope
    return {
        "hidden": apart(hidden, inner.detach()),
        "active": apart(active, right.detach()),
        "before": apart(before, wanted),
        "sums": apart(to_bias, wanted.sum(0)),
    }


def measure(name: str, rows: int, width: int) -> None:
    wide = 4 * width
    kw: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x, gradient = torch.randn(rows, width, **kw), torch.randn(rows, width, **kw)
    weight1, bias = torch.randn(wide, width, **kw) * width**-0.5, torch.randn(wide, **kw)
    weight2 = torch.randn(width, wide, **kw) * wide**-0.5
    hidden = torch.addmm(bias, x, weight1.T)
    row: dict[str, Any] = {"name": name}
    row["there"] = {
        "product": microseconds(lambda: torch.addmm(bias, x, weight1.T)),
        "gelu": microseconds(lambda: gelu(hidden)),
    }
    row["back"] = {
        "product": microseconds(lambda: gradient @ weight2),
        "gelu": microseconds(lambda: gelu_backward(hidden, hidden)),
    }
    out = torch.empty_like(hidden)
    for key, plan in (
        ("there by Lt", Lt(weight1, x, out, True, GELU_AUX_BIAS, bias, hidden)),
        ("product by Lt", Lt(weight1, x, out, True, BIAS, bias, None)),
        ("back by Lt, with sums", Lt(weight2, gradient, out, False, DGELU_BGRAD, bias.clone(), hidden)),
        ("back by Lt", Lt(weight2, gradient, out, False, DGELU, bias, hidden)),
    ):
        row[key] = [microseconds(partial(plan.call, which)) for which in range(min(4, len(plan.found)))]
    print(json.dumps(row), flush=True)


@cache
def planned(rows: int, width: int, wide: int, epilogue: int) -> Lt:
    """The product of one shape; its tensors are exchanged at each call."""
    kw: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    tokens, hidden, bias = torch.empty(rows, width, **kw), torch.empty(rows, wide, **kw), torch.empty(wide, **kw)
    there = epilogue == GELU_AUX_BIAS
    weight = torch.empty((wide, width) if there else (width, wide), **kw)
    return Lt(weight, tokens, torch.empty_like(hidden), there, epilogue, bias, hidden)


@torch.library.custom_op("candidates::product_gelu", mutates_args=())
def product_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden layer, and its GELU."""
    hidden, active = (x.new_empty(len(x), len(weight)) for _ in range(2))
    planned(*x.shape, len(weight), GELU_AUX_BIAS).again(weight, x, active, bias, hidden)
    return hidden, active


@product_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x), len(weight)), x.new_empty(len(x), len(weight))


@torch.library.custom_op("candidates::product_gelu_back", mutates_args=())
def product_gelu_back(gradient: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
    """The gradient before GELU."""
    before = torch.empty_like(hidden)
    planned(*gradient.shape, hidden.shape[1], DGELU).again(weight, gradient, before, before, hidden)
    return before


@product_gelu_back.register_fake
def _(gradient: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
    return torch.empty_like(hidden)


class MlpInProducts(torch.autograd.Function):
    """As `FusedMlp`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        hidden, active = product_gelu(tokens, weight1, bias1)
        ctx.save_for_backward(tokens, hidden, active, weight1, weight2)
        return torch.addmm(bias2, active, weight2.T).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        tokens, hidden, active, weight1, weight2 = ctx.saved_tensors
        shape = gradient.shape
        gradient = gradient.flatten(0, -2).contiguous()
        before = product_gelu_back(gradient, weight2, hidden)
        to_x = (before @ weight1).view(*shape[:-1], -1)
        return to_x, before.T @ tokens, before.sum(0), gradient.T @ active, gradient.sum(0)


def steps(name: str, batch: int) -> None:
    """Milliseconds of a step, 5 rounds of 10 with each MLP in turn, and the losses, which should be alike."""
    import vitrail
    from vitrail.model.kernels import fused_mlp
    from vitrail.training.precision import Precision

    usual = fused_mlp.FusedMlp
    contenders = {}
    for way, mlp in (("there", usual), ("in products", MlpInProducts)):
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = vitrail.create(name, num_classes=1000).train()
            pictures, labels = torch.randn(batch, 3, *model.config.img_size), torch.arange(batch) % 1000
        Precision("bf16_residual", torch.device("cuda")).prepare(model)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        contenders[way] = (mlp, torch.compile(model, dynamic=False), optimiser, pictures, labels)
    times: dict[str, list[float]] = {way: [] for way in contenders}
    losses: dict[str, list[float]] = {way: [] for way in contenders}
    memory: dict[str, float] = {}
    for turn in range(6):
        for way, (mlp, compiled, optimiser, pictures, labels) in contenders.items():
            fused_mlp.FusedMlp = mlp  # type: ignore[misc]
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = F.cross_entropy(compiled(pictures).float(), labels)
                loss.backward()
                optimiser.step()
                optimiser.zero_grad()
            torch.cuda.synchronize()
            losses[way].append(round(float(loss), 4))
            memory[way] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)
            if turn:
                times[way].append(100 * (time.perf_counter() - start))
    fused_mlp.FusedMlp = usual  # type: ignore[misc]
    found = {way: statistics.quantiles(ms, n=4) for way, ms in times.items()}
    row: dict[str, Any] = {
        "model": name,
        "batch": batch,
        "ms": found,
        "losses": losses,
        "GiB above the weights": memory,
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    if sys.argv[1:]:
        for one in sys.argv[1:]:
            name, _, batch = one.partition(":")
            steps(name, int(batch))
        return
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    print(json.dumps({"apart": check()}), flush=True)
    measure("cifar10-94", 512 * 64, 256)
    measure("cifar10-96", 512 * 64, 384)
    measure("B/16", 256 * 197, 768)
    measure("L/16", 128 * 197, 1024)
    measure("H/14", 64 * 257, 1280)


if __name__ == "__main__":
    main()
