"""Batches from pixels that live on the device: the same samples and the same augmentation as through workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augmentation.mixing import draw_mix
from vitrail.data.augmentation.on_batch import augmented
from vitrail.data.augmentation.on_picture import fill_colour
from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.augmentation.policy import Drawn
from vitrail.data.batch import Batch
from vitrail.data.cache import Decoded
from vitrail.data.fetching import erasing, labels_of
from vitrail.data.loading import check_pairs
from vitrail.data.samples import Integers
from vitrail.data.schedule import ALONE, Schedule, Share
from vitrail.data.source import Subset
from vitrail.data.views import View
from vitrail.model.devices import recording_stream
from vitrail.pictures import Preprocessing

AHEAD = 2**16  # samples whose draws are made at once
AT_ONCE = 2**23  # numbers of pictures that a GPU augments at once: a batch of small ones leaves most of it idle


class ResidentLoader:
    """Endless batches for training from `Decoded` pixels, like `TrainingLoader` and in place of it.

    Pictures that could not be read are replaced by the same rule: the next one of the subset that could; the first
    batch names them all. On a GPU the work of a batch is recorded once and replayed; `compiled` also fuses it, which
    takes a quarter of a minute.
    """

    def __init__(
        self,
        schedule: Schedule,
        decoded: Decoded,
        preprocessing: Preprocessing,
        plan: Augmentation,
        *,
        device: str | torch.device = "cpu",
        share: Share = ALONE,
        compiled: bool = False,
        views: tuple[View, ...] = (),
    ) -> None:
        check_pairs(plan, schedule, share)
        self.schedule, self.share, self.plan, self.preprocessing = schedule, share, plan, preprocessing
        self.device, self.compiled = torch.device(device), compiled
        self.pixels = torch.from_numpy(np.ascontiguousarray(decoded.pixels)).to(self.device).permute(0, 3, 1, 2)
        self.full = torch.from_numpy(np.array(decoded.full)).to(self.device)
        self.labels = all_labels(schedule.subset).to(self.device)
        self.readable, self.bad = _next_good(decoded.valid), list(decoded.bad)
        self.colour = torch.tensor(fill_colour(preprocessing), device=self.device)
        own = View(plan, preprocessing.size, 1, 0)
        self.views = (own, *views)
        self._replays: dict[View, Replay] = {}
        self.at_once = AT_ONCE if self.device.type == "cuda" else 0

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        each = self.schedule.batch_size // self.share.world * sum(view.count for view in self.views)
        step, ahead = start, max(1, AHEAD // each)
        while stop is None or step < stop:
            epoch, number = divmod(step, self.schedule.steps_per_epoch)
            count = min(ahead, self.schedule.steps_per_epoch - number)
            count = count if stop is None else min(count, stop - step)
            for batch in self._several(epoch, step, count):
                yield replace(batch, bad=self.bad) if batch.step == start else batch
            step += count

    def _several(self, epoch: int, first: int, count: int) -> Iterator[Batch]:
        """Batches of one epoch, whose draws are made together."""
        parts = [self.schedule.at(first + k, self.share) for k in range(count)]
        samples, repeat, place = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        samples = torch.from_numpy(self.readable)[samples]
        samples, repeat, place = (self._sent(column) for column in (samples, repeat, place))
        seed, size = self.schedule.seed, self.preprocessing.size
        drawn, *others = (view.draw(seed, epoch, samples, repeat) for view in self.views)
        mix = draw_mix(self.plan, seed, epoch, place, size) if self.plan.mixes else None
        labels, each = self.labels[samples], len(samples) // count
        pixels = self._in_groups(samples, drawn, each)
        for k in range(count):
            part = slice(k * each, (k + 1) * each)
            kinds = zip(self.views[1:], others, strict=True)
            crops = tuple(self._crops(view, samples[part], some, part) for view, some in kinds)
            yield Batch(
                samples[part],
                next(pixels),
                labels[part],
                first + k,
                crops=crops,
                erasing=erasing(self.plan, drawn[part]),
                mix=mix and mix.part(part.start, part.stop),
            )

    def _in_groups(self, samples: Tensor, drawn: Drawn, each: int) -> Iterator[Tensor]:
        """Augmented pixels of `each` samples after the other; those of several batches are made together. All groups
        have one size, for which a GPU has a recording: a last one begins with samples of the group before it."""
        numbers = self.pixels.shape[1] * math.prod(self.preprocessing.size)
        size = each * max(1, min(self.at_once // (each * numbers), self.schedule.steps_per_epoch))
        for first in range(0, len(samples), size):
            begin = max(0, min(first, len(samples) - size))
            rows: slice | Tensor = slice(begin, begin + size)
            if size > len(samples):
                rows = torch.arange(size, device=samples.device) % len(samples)
            made = self._pixels(self.views[0], samples[rows], drawn[rows])
            yield from torch.split(made[first - begin : len(samples) - begin], each)

    def _sent(self, column: Tensor) -> Tensor:
        """On the device, which works on what it was given before while this is on its way."""
        pinned = column.pin_memory() if self.device.type == "cuda" else column
        return pinned.to(self.device, non_blocking=True)

    def _crops(self, view: View, samples: Tensor, drawn: Drawn, part: slice) -> Tensor:
        """(samples, views of this kind, channels, height, width)."""
        rows = slice(part.start * view.count, part.stop * view.count)
        pixels = self._pixels(view, samples.repeat_interleave(view.count), drawn[rows])
        return pixels.view(len(samples), view.count, *pixels.shape[1:])

    def _pixels(self, view: View, samples: Tensor, drawn: Drawn) -> Tensor:
        """The augmented pixels of these samples."""
        tensors = (samples, drawn.crop, drawn.hflip, drawn.vflip, drawn.ops, drawn.values)
        if self.device.type != "cuda":
            return self._augment(view, *tensors)
        with _exact_products():
            return self._replayed(view, tensors)

    def _replayed(self, view: View, tensors: tuple[Tensor, ...]) -> Tensor:
        if view not in self._replays:
            self._replays[view] = self._recorded(partial(self._augment, view), tensors)
        return self._replays[view](*tensors)

    def _recorded(self, function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> Replay:
        if self.compiled:
            with suppress(torch._dynamo.exc.TorchDynamoException):  # where the compiler does not work, so does this
                return Replay(torch.compile(function, dynamic=False), tensors)
        return Replay(function, tensors)

    def _augment(self, view: View, samples: Tensor, *drawn: Tensor) -> Tensor:
        crop, hflip, vflip, ops, values = drawn
        some = Drawn(crop, hflip, vflip, ops, values, erase=samples, cutout=samples, noise=samples)  # these come later
        return augmented(self.pixels[samples], self.full[samples], view.plan, some, view.size, self.colour)


@contextmanager
def _exact_products() -> Iterator[None]:
    """No TensorFloat-32, whatever the model computes in: a setting of its speed must not change what it is shown."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Replay:
    """A function of tensors of fixed shapes, recorded as a CUDA graph: its hundreds of small kernels start at once."""

    def __init__(self, function: Callable[..., Tensor], example: tuple[Tensor, ...]) -> None:
        self.given = tuple(tensor.clone() for tensor in example)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries choose and set up their kernels, which cannot be recorded
                function(*self.given)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        stream = recording_stream(torch.cuda.current_device())
        # other threads may use the device meanwhile, to save a checkpoint
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.result = function(*self.given)

    def __call__(self, *tensors: Tensor) -> Tensor:
        for place, tensor in zip(self.given, tensors, strict=True):
            place.copy_(tensor)
        self.graph.replay()
        return self.result.clone()


def _next_good(valid: NDArray[np.bool_]) -> Integers:
    """For every sample the first readable one from it on, round the end."""
    good = np.flatnonzero(valid)
    at = np.searchsorted(good, np.arange(len(valid)))
    return good[at % len(good)]


def all_labels(subset: Subset) -> Tensor:
    return labels_of(subset, np.arange(len(subset)))


class ResidentEvaluation:
    """Every sample of a subset exactly once, over all processes, like `EvaluationLoader` and in place of it."""

    def __init__(
        self,
        subset: Subset,
        decoded: Decoded,
        *,
        batch_size: int,
        device: str | torch.device = "cpu",
        share: Share = ALONE,
    ) -> None:
        self.batch_size, self.bad = batch_size, list(decoded.bad)
        mine = np.array_split(np.arange(len(subset)), share.world)[share.rank]
        self.samples = torch.from_numpy(mine).to(device)
        self.pixels = torch.from_numpy(np.ascontiguousarray(decoded.pixels[mine])).to(device).permute(0, 3, 1, 2)
        self.valid = torch.from_numpy(np.array(decoded.valid[mine])).to(device)
        self.labels = labels_of(subset, mine).to(device)

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            part = slice(step * self.batch_size, (step + 1) * self.batch_size)
            bad = self.bad if step == 0 else []
            yield Batch(self.samples[part], self.pixels[part], self.labels[part], step, valid=self.valid[part], bad=bad)
