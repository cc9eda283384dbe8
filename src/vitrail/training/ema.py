"""The average of the weights over the steps (EMA), which is evaluated and saved beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError
from vitrail.training.skipping import local


class Ema:
    """An exponential moving average of all parameters and buffers, in float32; whole numbers are copied."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._shadow = {
            name: (tensor.detach().float() if tensor.is_floating_point() else tensor.detach()).clone()
            for name, tensor in _tensors(model).items()
        }

    def decay_at(self, step: int) -> float:
        """Young averages forget faster, so that the first weights do not linger."""
        return min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: nn.Module, ok: Tensor, step: int) -> None:
        """After step number `step`: a part 1 - decay of the new weights. Nothing changes where `ok` is false."""
        shadows, tensors = self._pairs(model)
        averaged = [place for place, shadow in enumerate(shadows) if shadow.is_floating_point()]
        means = [shadows[place] for place in averaged]
        moves = list(torch._foreach_sub([tensors[place] for place in averaged], means))
        torch._foreach_mul_(moves, torch.where(ok, 1 - self.decay_at(step), 0.0))
        torch._foreach_add_(means, moves)
        for shadow, tensor in zip(shadows, tensors, strict=True):
            if not shadow.is_floating_point():
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
        shadows, tensors = self._pairs(model)
        with torch.no_grad():
            own = [tensor.clone() for tensor in tensors]
            torch._foreach_copy_(tensors, shadows)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(tensors, own)

    def _pairs(self, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """The average and the model's tensors, in one order; of shards, what lies here."""
        return local(list(self._shadow.values())), local([tensor.detach() for tensor in _tensors(model).values()])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
