"""Which layers int8 hurts: each is quantised alone, and the logits tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

BUDGET = 0.01  # of the logits' variance: what all quantised layers together may change
PROBED = 8  # pictures


@torch.no_grad()
def layer_errors(
    model: nn.Module, values: Tensor, progress: Callable[[int, int], None] | None = None
) -> dict[str, float]:
    """For each linear layer, the part of the logits' variance that changes when it alone is in int8: weights per
    channel, and its input by the range that it has on `values`."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    ranges = _ranges(model, layers, values)
    probed = values[:: max(1, len(values) // PROBED)][:PROBED]
    wanted = model(probed)
    size = (wanted - wanted.mean(dim=1, keepdim=True)).square().mean().clamp(min=1e-20)
    errors = {}
    for number, (name, layer) in enumerate(layers.items()):
        with _in_int8(layer, *ranges[name]):
            errors[name] = float((model(probed) - wanted).square().mean() / size)
        if progress is not None:
            progress(number + 1, len(layers))
    return errors


def sensitive_layers(errors: Mapping[str, float], budget: float = BUDGET) -> list[str]:
    """The layers that stay in float, the worst first, so that the others together keep the budget."""
    rest = sum(errors.values())
    kept = []
    for name in sorted(errors, key=lambda name: -errors[name]):
        if rest <= budget:
            break
        kept.append(name)
        rest -= errors[name]
    return kept


def nodes_of(graph: ExportedProgram, layers: list[str]) -> list[str]:
    """The names that these layers' products have in a graph."""
    wanted = {part for layer in layers for part in _parts(layer)}
    found = []
    for node in graph.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        if node.op == "call_function" and stack and "linear" in str(node.target):
            path = [entry[0] for entry in stack.values()][-1]
            if any(path == layer or path.endswith(f".{layer}") for layer in wanted):
                found.append(node.name)
    return found


def _parts(layer: str) -> list[str]:
    """The layer; a graph may have it in three."""
    stem = layer.removesuffix("qkv")
    return [layer] if stem == layer else [layer, f"{stem}q", f"{stem}k", f"{stem}v"]


def _ranges(model: nn.Module, layers: Mapping[str, nn.Linear], values: Tensor) -> dict[str, tuple[float, float]]:
    found = dict.fromkeys(layers, (0.0, 0.0))

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def see(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            low, high = found[name]
            found[name] = min(low, float(given[0].min())), max(high, float(given[0].max()))

        return see

    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        for start in range(0, len(values), PROBED):
            model(values[start : start + PROBED])
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _in_int8(layer: nn.Linear, low: float, high: float) -> Iterator[None]:
    """As long as it lasts, the layer computes as if in int8."""
    step = max(high - low, 1e-12) / 255
    zero = round(-low / step)

    def coarse(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.fake_quantize_per_tensor_affine(given[0], step, zero, 0, 255), *given[1:])

    weight = layer.weight.data
    steps = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
    handle = layer.register_forward_pre_hook(coarse)
    layer.weight.data = torch.fake_quantize_per_channel_affine(
        weight, steps, torch.zeros(len(steps), dtype=torch.int32), 0, -127, 127
    )
    try:
        yield
    finally:
        layer.weight.data = weight
        handle.remove()
