"""The model over inputs, on this machine: while it computes one batch, other processes decode the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from vitrail.data.workers import in_order
from vitrail.shipping.bulk.answers import Answers, Wanted
from vitrail.shipping.bulk.decoding import Decoder, batches_of
from vitrail.shipping.bulk.listing import Listing
from vitrail.shipping.engines import Engine


@dataclass(frozen=True)
class HereRunner:
    """Decodes in `workers` processes and computes in this one; with no workers, all in this one."""

    engine: Engine
    wanted: Wanted
    batch_size: int
    workers: int

    def __call__(self, listing: Listing, parts: Sequence[range]) -> Iterator[Answers]:
        """Answers for the inputs of these parts in their order, a batch at a time."""
        decoder = Decoder(listing, self.engine.preprocessing)
        work = batches_of(parts, self.batch_size)
        with closing(in_order(decoder, work, self.workers)) as decoded:
            for batch in batches_of(parts, self.batch_size):
                pixels, done = [], 0
                errors: dict[int, str] = {}
                while done < len(batch):  # a batch comes in pieces where a picture took its process down
                    rows, piece = next(decoded)
                    pixels.append(piece.pixels)
                    errors |= {done + k: error for k, error in piece.errors.items()}
                    done += len(rows)
                stack = pixels[0] if len(pixels) == 1 else np.concatenate(pixels)
                yield replace(self.wanted(self.engine, stack, self.batch_size), errors=errors)
