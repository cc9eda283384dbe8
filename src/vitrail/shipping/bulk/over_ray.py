"""The model over inputs, on Ray: tasks decode picture by picture, actors compute, and the process that began it writes.

Parts, ledger and rows are those of a run without Ray. Each node needs vitrail and must reach the pictures.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.pictures.sources import printable
from vitrail.shipping.bulk.answers import Answers, Wanted
from vitrail.shipping.bulk.decoding import RowDecoder, batches_of
from vitrail.shipping.bulk.listing import Listing, to_text
from vitrail.shipping.engines import choose

_PATIENCE = 10.0  # seconds in which a cluster must answer


@dataclass(frozen=True)
class RayRunner:
    classifier: Classifier
    engine: str
    wanted: Wanted
    batch_size: int
    address: str | None  # of a cluster; None: RAY_ADDRESS, a Ray that runs here, or else a new one

    def __call__(self, listing: Listing, parts: Sequence[range]) -> Iterator[Answers]:
        """Answers for the inputs of these parts in their order, a batch at a time."""
        with _connected(self.address) as ray:
            yield from map(_answers, self._pipeline(ray, listing, parts).iter_batches(batch_size=None))

    def _pipeline(self, ray: Any, listing: Listing, parts: Sequence[range]) -> Any:
        import pyarrow

        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = context.print_on_execution_start = False
        # a block is a batch, so that a batch is made of the same pictures as without Ray
        blocks = [
            pyarrow.table({"item": [to_text(item) for item in listing.items(batch.start, batch.stop)]})
            for batch in batches_of(parts, self.batch_size)
        ]
        model = ray.put((deepcopy(self.classifier).to("cpu"), self.engine, self.wanted, self.batch_size))
        return (
            ray.data.from_arrow(blocks)
            .map(RowDecoder(self.classifier.preprocessing), num_cpus=1)
            .map_batches(_Computing, fn_constructor_args=(model,), batch_size=None, **_actors(ray, len(blocks)))
        )


class _Computing:
    """Runs in actors, each with a model of its own."""

    def __init__(self, model: Any) -> None:
        import ray

        classifier, engine, self.wanted, self.batch_size = ray.get(model)
        self.engine = choose(classifier.to("cuda" if torch.cuda.is_available() else "cpu"), engine)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        answers = self.wanted(self.engine, np.ascontiguousarray(batch["pixels"]), self.batch_size)
        found = {"classes": answers.classes, "scores": answers.scores, "error": batch["error"]}
        return found if answers.vectors is None else {**found, "vectors": answers.vectors}


def _actors(ray: Any, blocks: int) -> dict[str, Any]:
    """One for each GPU, or where there is none one for each node, with half of its processors; tasks have the rest."""
    total = ray.cluster_resources()
    if gpus := int(total.get("GPU", 0)):
        return {"concurrency": min(gpus, blocks), "num_gpus": 1}
    nodes = [node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]]
    half = int(min(nodes)) // 2
    # what asks for as much as decoding does would be joined with it, and one process would do both in turn
    return {"concurrency": min(len(nodes), blocks), "num_cpus": half if half != 1 else 0.9}


def _answers(block: dict[str, Any]) -> Answers:
    errors = {k: str(error) for k, error in enumerate(block["error"].tolist()) if error}
    return Answers(np.asarray(block["classes"]), np.asarray(block["scores"]), block.get("vectors"), errors)


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Ray, connected; whoever had connected already stays so."""
    # nothing is told to its makers, and nodes use the vitrail that they have
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise VitrailError("--ray needs Ray: pip install 'vitrail[ray,hub]'") from error
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    ours = not ray.is_initialized()
    try:
        if ours:
            _knock(address or os.environ.get("RAY_ADDRESS", ""))
            options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **options)
        yield ray
    except (ConnectionError, TimeoutError, socket.gaierror) as error:
        where = printable(address or os.environ.get("RAY_ADDRESS", ""))
        raise VitrailError(f"there is no Ray cluster at {where}: check the address, or leave it out") from error
    except ray.exceptions.RayError as error:
        words = printable(str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__)
        raise VitrailError(f"Ray failed ({words}): what is done is kept, run the same command again") from error
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str) -> None:
    """Whether anybody is there: Ray itself would try for twenty minutes."""
    host, found, port = address.rpartition("://")[2].rpartition(":")
    if found and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
