"""The average of the weights over the steps (EMA), which is evaluated and saved beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError
from vitrail.training.skipping import local


class Ema:
    """An exponential moving average of all parameters and buffers, in float32; whole numbers are copied."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._take: Callable[..., None] = _take
        self._model, self._slots = model, _slots(model)
        tensors = {name: getattr(module, key).detach() for name, (module, key) in self._slots.items()}
        self._shadow = {
            name: (tensor.float() if tensor.is_floating_point() else tensor).clone() for name, tensor in tensors.items()
        }
        self._averaged = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
        self._copied = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]

    def fuse(self, fused: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
        """From now on a compiler makes one pass of the three over the weights."""
        self._take = fused(_take)

    def decay_at(self, step: int) -> float:
        """Young averages forget faster, so that the first weights do not linger."""
        return min(self.decay, (1 + step) / (10 + step))

    def weight_at(self, step: int) -> float:
        """The part that the weights after step number `step` have in the average."""
        return 1 - self.decay_at(step)

    @torch.no_grad()
    def update(self, model: nn.Module, ok: Tensor, weight: float | Tensor) -> None:
        """After a step: takes this part of the new weights. Nothing changes where `ok` is false."""
        self._take(*self._pairs(model, self._averaged), ok, weight)
        for shadow, tensor in zip(*self._pairs(model, self._copied), strict=True):
            shadow.copy_(torch.where(ok, tensor, shadow))

    def state(self) -> dict[str, Tensor]:
        """The average, by the names of the model; the tensors are its own."""
        return dict(self._shadow)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Puts a saved average in place of the present one."""
        wrong = [name for name in self._shadow.keys() | state.keys() if not self._fits(name, state)]
        if wrong:
            raise WeightsError(
                f"the saved average is of another model: {len(wrong)} tensors differ, first {min(wrong)}"
            )
        for name, shadow in self._shadow.items():
            shadow.copy_(state[name])

    def _fits(self, name: str, state: Mapping[str, Tensor]) -> bool:
        return name in self._shadow and name in state and self._shadow[name].shape == state[name].shape

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model has the average; afterwards it has its own weights again, bit for bit."""
        shadows, tensors = self._pairs(model, self._averaged + self._copied)
        with torch.no_grad():
            own = [tensor.clone() for tensor in tensors]
            torch._foreach_copy_(tensors, shadows)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(tensors, own)

    def _pairs(self, model: nn.Module, names: list[str]) -> tuple[list[Tensor], list[Tensor]]:
        """The average and the model's tensors, in one order; of shards, what lies here."""
        if model is not self._model:
            self._model, self._slots = model, _slots(model)
        slots = [self._slots[name] for name in names]
        tensors: list[Tensor] = [getattr(module, key) for module, key in slots]
        return local([self._shadow[name] for name in names]), local(tensors)


def _take(means: list[Tensor], tensors: list[Tensor], ok: Tensor, weight: float | Tensor) -> None:
    moves = torch._foreach_sub(tensors, means)
    torch._foreach_mul_(moves, torch.where(ok, weight, 0.0))
    torch._foreach_add_(means, moves)


def _slots(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Where each tensor is held. To ask the model for its names at every step takes longer than to average them."""
    names = [name for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    return {name: (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names}
