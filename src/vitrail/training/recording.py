"""The whole step, recorded once and replayed: hundreds of short kernels start at once, which small models need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from vitrail.data.batch import Batch
from vitrail.model.devices import recording_stream
from vitrail.model.kernel_sizes import small_layers_too
from vitrail.pictures import Preprocessing
from vitrail.training.parallel import World
from vitrail.training.recipe import Recipe

REHEARSALS = 3  # steps that are taken as usual first: libraries choose their kernels, the compiler compiles

Step = Callable[[Batch, Preprocessing], None]


def why_not(recipe: Recipe, world: World) -> str | None:
    """What stands against recording, if anything does."""
    if not recipe.record:
        return "it was not asked for"
    if world.device.type != "cuda" or world.size > 1:
        return "it takes one process on a GPU"
    if recipe.accumulate > 1 or recipe.optimiser.sam > 0:
        return "parts of a batch (accumulate, sam) have noise of their own"
    return None


class NoRoomToRecordError(Exception):
    """Memory was short while a step was recorded, of which nothing was done: what lies unused in torch's pools cannot
    be given back meanwhile."""


class Tape(Protocol):
    """Plays again what was recorded, on the tensors it was recorded with."""

    def replay(self) -> None: ...


class RecordedSteps:
    """Calls `step`, which works on the device alone, as a recording: one for each shape of batch.

    All that differs between steps must lie in tensors: the batch, which is copied to where the recording reads it, and
    what the caller fills. The first steps are rehearsals and count like all others, so that the results are those
    of `step` itself.
    """

    def __init__(self, step: Step, *, record: Callable[[Callable[[], None]], Tape] | None = None) -> None:
        self.step = small_layers_too()(step)
        self._record = _on_cuda if record is None else record
        self._rehearsed: dict[tuple[object, ...], int] = {}
        self._recorded: dict[tuple[object, ...], tuple[list[Tensor], Tape]] = {}

    def __call__(self, batch: Batch, preprocessing: Preprocessing) -> None:
        tensors = batch.tensors()
        key = (preprocessing, *((tensor.shape, tensor.dtype) for tensor in tensors))
        done = self._rehearsed.get(key, 0)
        if done < REHEARSALS:
            self._rehearsed[key] = done + 1
            self._rehearse(batch, preprocessing)
            return
        if key not in self._recorded:
            still = batch.clone()
            try:
                self._recorded[key] = still.tensors(), self._record(lambda: self.step(still, preprocessing))
            except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
                if any(isinstance(one, torch.OutOfMemoryError) for one in (error, error.__context__)):
                    raise NoRoomToRecordError from error
                raise
        places, tape = self._recorded[key]
        torch._foreach_copy_(places, tensors)
        tape.replay()

    def forget(self) -> None:
        """From here on the step is another one."""
        self._rehearsed.clear()
        self._recorded.clear()

    def is_ready(self) -> bool:
        """Whether anything has been recorded yet."""
        return bool(self._recorded)

    def _rehearse(self, batch: Batch, preprocessing: Preprocessing) -> None:
        if batch.pixels.device.type != "cuda":
            self.step(batch, preprocessing)
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step(batch, preprocessing)
        torch.cuda.current_stream().wait_stream(side)


def _on_cuda(work: Callable[[], None]) -> Tape:
    graph = torch.cuda.CUDAGraph()
    stream = recording_stream(torch.cuda.current_device())
    # other threads may use the device meanwhile, to save a checkpoint
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph
