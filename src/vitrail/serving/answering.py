"""From a request to its answer: pictures are decoded in threads, computed in batches, and told as JSON."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.requests import ClientDisconnect, Request

from vitrail.errors import PictureError
from vitrail.model.vit import ViT
from vitrail.pictures.sources import printable
from vitrail.serving.batching import Item
from vitrail.serving.computing import FromValues, Loaded, Plain, Result, Seen
from vitrail.serving.hosting import Generation, Hosted
from vitrail.serving.looking import Look, most_layers
from vitrail.serving.options import Options, class_index
from vitrail.serving.refusals import RefusalError, bad
from vitrail.serving.settings import Settings

Read = TypeVar("Read")
_SHORT = 512 * 1024  # bytes

Work = Callable[[], tuple[Hashable, Any]]  # in a decoder's thread: what to compute, and of what


@dataclass(frozen=True)
class Picture:
    """A picture as the model sees it."""

    pixels: NDArray[np.uint8]
    size: tuple[int, int]  # width and height of the file
    seconds: float  # to decode it


@dataclass(frozen=True)
class Answer:
    """What became of one piece of work."""

    result: Result
    waited: float  # seconds in the queue
    computed: float  # seconds of its batch


class Answering:
    """The way of all requests through the decoders and the models."""

    def __init__(self, settings: Settings, decoders: ThreadPoolExecutor) -> None:
        self.settings, self.decoders = settings, decoders

    async def read(self, data: bytes, encoding: str, reader: Callable[[], Read]) -> Read:
        """What a body holds. A short one is read at once: handing it to a thread takes longer."""
        if len(data) <= _SHORT and not encoding:
            return reader()
        return await asyncio.get_running_loop().run_in_executor(self.decoders, reader)

    async def compute(
        self, request: Request, hosted: Hosted, generation: Generation, works: Sequence[Work], timeout: float | None
    ) -> list[Answer | PictureError]:
        """The answer to each piece of work, in order; a picture that cannot be read has its error there."""
        hosted.admit(len(works))
        hosted.inside += len(works)
        came = time.monotonic()
        deadline = came + min(timeout or self.settings.deadline, self.settings.deadline)
        expected = _Expected(generation, len(works), came)
        waiting = [self._one(expected, work, deadline) for work in works]
        watcher = asyncio.create_task(_until_gone(request.receive, asyncio.current_task()))
        try:
            async with asyncio.timeout_at(deadline - time.monotonic() + asyncio.get_running_loop().time()):
                if len(waiting) == 1:
                    return [await waiting[0]]
                return await _together(waiting)
        except TimeoutError:
            raise RefusalError(504, "there was no answer in the time allowed", reason="deadline") from None
        except asyncio.CancelledError:
            if watcher.done() and not watcher.cancelled():
                raise ClientDisconnect from None
            raise
        finally:
            hosted.inside -= len(works)
            expected.take_back()
            watcher.cancel()

    async def _one(self, expected: _Expected, work: Work, deadline: float) -> Answer | PictureError:
        try:
            task, content = await asyncio.get_running_loop().run_in_executor(self.decoders, work)
        except PictureError as error:
            expected.forget()
            return error
        item = expected.submit(task, content, deadline)
        try:
            result = await item.future
        finally:
            item.content = None
        if not result.finite:
            status = 400 if isinstance(task, FromValues) else 503
            raise RefusalError(status, "what the model computes of this is not finite", reason="nonfinite")
        return Answer(result, item.started - item.arrived, item.done - item.started)


class _Expected:
    """How many pieces of a request are still to come; what never came is taken back."""

    def __init__(self, generation: Generation, count: int, came: float) -> None:
        self._batcher, self._left, self._came = generation.batcher, count, came
        self._batcher.expect(count)

    def submit(self, task: Hashable, content: Any, deadline: float) -> Item:
        item = self._batcher.submit(task, content, deadline, self._came)
        self._left -= 1
        return item

    def forget(self) -> None:
        self._left -= 1
        self._batcher.expect(-1)

    def take_back(self) -> None:
        if self._left:
            self._batcher.expect(-self._left)
            self._left = 0


async def _together(waiting: Sequence[Awaitable[Any]]) -> list[Any]:
    """All of them; when one fails, the others are given up."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _until_gone(receive: Callable[[], Awaitable[Any]], task: asyncio.Task[Any] | None) -> None:
    """Ends the task when its client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if task is not None:
        task.cancel()


def decode(data: bytes, name: str, loaded: Loaded, max_pixels: int) -> Picture:
    """In a decoder's thread: the pixels that the model takes."""
    began = time.perf_counter()
    try:
        pixels, size = loaded.preprocessing.measured_pixels(data, max_pixels=max_pixels, name=name)
    except PictureError as error:
        raise PictureError(printable(error)) from None
    return Picture(pixels, size, time.perf_counter() - began)


def task_of(picture: Picture, options: Options, loaded: Loaded) -> tuple[Hashable, Any]:
    """What is to be computed of a picture."""
    pixels = picture.pixels
    if options.drop and options.dropping == "blank":
        pixels = blanked(pixels, options.drop, loaded)
    if options.attention:
        return _look(options, loaded), (pixels, class_index(options.class_, loaded.classes))
    if options.drop and options.dropping == "remove":
        return Seen(), (pixels, _seen(options.drop, loaded))
    return Plain(), pixels


def check(options: Options, loaded: Loaded) -> None:
    """Refuses what this model cannot do, before anything is decoded."""
    class_index(options.class_, loaded.classes)
    if options.attention:
        _look(options, loaded)
    if options.drop:
        rows, columns = _grid(loaded)
        if not all(0 <= pane < rows * columns for pane in options.drop):
            raise bad(f"there are panes 0 to {rows * columns - 1} ({rows} x {columns}), and drop names another")
        if options.dropping == "remove":
            if not isinstance(loaded.model, ViT):
                raise bad("panes can be removed from a Vision Transformer alone: use dropping=blank")
            if options.attention:
                raise bad("attention is shown of whole pictures: use dropping=blank")
            if len(set(options.drop)) == rows * columns:
                raise bad("one pane at least must stay")


def _look(options: Options, loaded: Loaded) -> Look:
    model = loaded.model
    if model is None:
        raise bad("this server has an exported file, without the model itself: attention cannot be shown")
    if not loaded.classes and "attribution" in options.parts:
        raise bad("this model has no classes: ask for parts=weights,rollout")
    if not isinstance(model, ViT):
        return Look(False, False, "attribution" in options.parts, ())
    depth = model.config.depth
    layers = tuple(range(depth)) if options.layers is None else tuple(sorted(set(options.layers)))
    if not all(0 <= layer < depth for layer in layers):
        raise bad(f"there are layers 0 to {depth - 1}, and layers names another")
    most = most_layers(model)
    if "weights" in options.parts and len(layers) > most:
        raise bad(f"the attention of {len(layers)} layers is too much for one answer: name at most {most} with layers=")
    return Look("weights" in options.parts, "rollout" in options.parts, "attribution" in options.parts, layers)


def _grid(loaded: Loaded) -> tuple[int, int]:
    if loaded.grid is None:
        raise bad("this server has an exported file, which does not say its panes: they cannot be dropped")
    return loaded.grid


def blanked(pixels: NDArray[np.uint8], panes: Sequence[int], loaded: Loaded) -> NDArray[np.uint8]:
    """The picture with panes in the colour that becomes zero."""
    rows, columns = _grid(loaded)
    height, width = pixels.shape[:2]
    colour = np.array([min(255, max(0, round(255 * mean))) for mean in loaded.preprocessing.mean], np.uint8)
    page = pixels.copy()
    for pane in panes:
        row, column = divmod(pane, columns)
        top, bottom = row * height // rows, (row + 1) * height // rows
        page[top:bottom, column * width // columns : (column + 1) * width // columns] = colour
    return page


def _seen(panes: Sequence[int], loaded: Loaded) -> NDArray[np.bool_]:
    rows, columns = _grid(loaded)
    seen = np.ones(rows * columns, bool)
    seen[list(panes)] = False
    return seen


def png_address(pixels: NDArray[np.uint8]) -> str:
    """What the model sees, as an address that holds it; without loss."""
    page = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0]).save(page, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(page.getvalue()).decode()
