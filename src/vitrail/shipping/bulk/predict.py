"""`vitrail.predict_many`: what is on any number of pictures, written in parts, exactly once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch

from vitrail.classifier import Classifier, placed
from vitrail.data.workers import processors
from vitrail.errors import VitrailError
from vitrail.pictures.sources import printable
from vitrail.shipping.bulk.answers import Answers, Wanted
from vitrail.shipping.bulk.ledger import Done, Ledger
from vitrail.shipping.bulk.listing import Listing
from vitrail.shipping.bulk.output import Division, Output, Share
from vitrail.shipping.bulk.parts import Layout, put, sha256
from vitrail.shipping.bulk.running import HereRunner
from vitrail.shipping.bulk.sources import Columns, items_of
from vitrail.shipping.engines import NAMES, Engine, choose

MOST_WORKERS = 16  # unless told otherwise
VERSION = 1  # of the job: raised when the same job would write other rows

Progress = Callable[[int, int], None]  # (rows done, of how many)


@dataclass(frozen=True)
class BulkReport:
    """What was written."""

    out: str
    rows: int
    unreadable: int  # rows with an error
    files: int
    sha256: str  # of the one file, or of what `sha256sum` prints for the parts of this share
    engine: str
    continued: int  # rows that were there from earlier
    seconds: float  # in which the others were read, computed and written

    @property
    def rows_per_second(self) -> float:
        return (self.rows - self.continued) / self.seconds

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_second": round(self.rows_per_second, 1)}

    def text(self) -> str:
        bad = f", {self.unreadable:,} of them unreadable" if self.unreadable else ""
        before = f" ({self.continued:,} were there)" if self.continued else ""
        files = f"{self.files:,} files" if self.files != 1 else "1 file"
        speed = f", {self.rows_per_second:,.0f} rows/s with {self.engine}" if self.continued < self.rows else ""
        return f"{self.out}: {self.rows:,} rows{bad} in {files}{before}{speed}\nsha256 {self.sha256}"


class Runner(Protocol):
    """Computes answers for the inputs of parts, in their order, some at a time."""

    def __call__(self, listing: Listing, parts: Sequence[range], /) -> Iterator[Answers]: ...


def predict_many(
    model: Classifier | str | os.PathLike[str],
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    top: int = 1,
    features: bool = False,
    batch_size: int = 32,
    engine: str | os.PathLike[str] = "auto",
    device: str | torch.device | None = None,
    img_size: int | tuple[int, int] | None = None,
    workers: int | None = None,
    shard: str = "1/1",
    rows_per_part: int | None = None,
    ray: bool | str = False,
    path_column: str | None = None,
    label_column: str | None = None,
    listed: BinaryIO | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> BulkReport:
    """Writes one row for each input: its number, its path, the best classes or why it could not be read.

    Stopped at any moment, the same call goes on where it was and gives the same bytes; a call that differs in the
    model, in what it asks for or in the inputs is refused.

    sources: files, folders, patterns, `-` (a list on standard input, or in `listed`), tables, tar shards, any address
        that fsspec knows.
    out: .parquet, .jsonl or .csv; `part-*.parquet` is many files, one for `rows_per_part` inputs each.
    top: how many of the best classes. features: what the head reads, too.
    engine: see `vitrail.shipping.engines.choose`; with `ray`, `auto` is torch, on GPUs where nodes have them.
    shard: "2/8" does the second eighth, for schedulers; all eight together write what one would.
    ray: True for a Ray of this machine, or the address of a cluster.
    path_column, label_column: of tables.
    """
    if top < 1 or batch_size < 1 or (rows_per_part is not None and rows_per_part < 1) or (workers or 0) < 0:
        raise VitrailError("top, batch_size and rows_per_part must be at least 1, and workers at least 0")
    share, output, say = Share.parse(shard), Output.parse(out), say or (lambda _: None)
    output.refuse(share, overwrite)
    classifier = placed(model, img_size, device)
    if not classifier.classes and not features:
        raise VitrailError("this model has no head, so it cannot predict: train one, or ask for its --features")
    if overwrite:
        output.remove(share)
    ledger = Ledger(output.ledger(share), output.shown)
    try:
        columns = Columns(path_column, label_column)
        listing = _list(items_of([os.fspath(source) for source in sources], columns, listed), ledger)
        division = Division.of(listing.count, rows_per_part, share)
        wanted = Wanted(min(top, len(classifier.classes)), features)
        engine = "torch" if ray and engine == "auto" else os.fspath(engine)  # nodes may have GPUs, and this one none
        size = min(batch_size, division.rows)
        job = _job(classifier, wanted, size, listing, division, output)
        if not overwrite:
            output.refuse_neighbours(job, share)
        output.refuse_parts(ledger, division)
        ledger.refuse(job)  # before an engine is made, which may take minutes
        with choose(classifier, engine, pictures=listing.count, features=features) as chosen:
            ledger.begin({**job, "engine": _engine_mark(engine, chosen)})
            say(f"engine {chosen.name}: {chosen.detail}")
            runner: Runner = HereRunner(
                chosen, wanted, size, min(processors(), MOST_WORKERS) if workers is None else workers
            )
            if ray:
                from vitrail.shipping.bulk.over_ray import RayRunner

                runner = RayRunner(classifier, engine, wanted, size, None if ray is True else str(ray))
            before, began = sum(done.rows for done in ledger.done.values()), time.perf_counter()
            work = _Work(output, ledger, listing, division, wanted, classifier.classes, progress)
            work.run(runner)
            seconds = time.perf_counter() - began
        return _report(output, ledger, division, chosen, before, seconds)
    finally:
        ledger.close()


def _list(items: Iterator[Any], ledger: Ledger) -> Listing:
    try:
        listing = Listing.write(items, ledger.folder / "inputs.jsonl")
    except OSError as error:
        cause = printable(error.strerror or error)
        raise VitrailError(
            f"the list of inputs is not written to {ledger.folder} ({cause}): make room there"
        ) from error
    if not listing.count:
        raise VitrailError("there are no pictures: the list is empty")
    return listing


def _job(
    classifier: Classifier,
    wanted: Wanted,
    batch_size: int,
    listing: Listing,
    division: Division,
    output: Output,
) -> dict[str, Any]:
    """All that the rows follow from, but for the engine."""
    return {
        "version": VERSION,
        "out": output.pattern,
        "model": _fingerprint(classifier),
        "top": wanted.top,
        "features": wanted.features,
        "batch_size": batch_size,
        "rows_per_part": division.rows,
        "shard": str(division.share),
        "inputs": {"count": listing.count, "digest": listing.digest},
    }


def _engine_mark(engine: str, chosen: Engine) -> str:
    """The name of the engine that computes; of a file, its contents too."""
    if engine in NAMES:
        return chosen.name
    files = [Path(engine), Path(engine).with_suffix(".bin")]
    return " ".join([engine, *(sha256(file)[:16] for file in files if file.is_file())])


def _fingerprint(classifier: Classifier) -> str:
    """Changes with the weights, the configuration, the preprocessing and the classes."""
    plain = (classifier.model.config.to_json(), classifier.preprocessing.to_json(), classifier.classes)
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16)
    for name, tensor in classifier.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()


@dataclass(frozen=True)
class _Work:
    """Parts that are not done yet, one after the other."""

    output: Output
    ledger: Ledger
    listing: Listing
    division: Division
    wanted: Wanted
    classes: Sequence[str]
    progress: Progress | None

    def run(self, runner: Runner) -> None:
        left = [part for part in self.division.mine if part not in self.ledger.done]
        if not left:
            return
        done = sum(note.rows for note in self.ledger.done.values())
        total = done + sum(len(self.division.inputs(part)) for part in left)
        answers = runner(self.listing, [self.division.inputs(part) for part in left])
        with closing(answers):  # type: ignore[type-var]
            for part in left:
                pieces: list[Answers] = []
                end = done + len(self.division.inputs(part))
                while done < end:
                    pieces.append(next(answers))
                    done += len(pieces[-1])
                    if self.progress is not None:
                        self.progress(done, total)
                self._write(part, Answers.joined(pieces))

    def _write(self, part: int, answers: Answers) -> None:
        width = 0
        if self.wanted.features:
            width = 0 if answers.vectors is None else answers.vectors.shape[1]
            if not width:
                raise VitrailError("this engine gives no features: take --engine torch")
        inputs = self.division.inputs(part)
        layout = Layout(self.output.format, self.classes, self.wanted.top, self.listing.has_truth, width)
        path = self.output.part(part, self.division.parts)
        items = list(self.listing.items(inputs.start, inputs.stop))
        size, digest = put(
            path, self.ledger.folder / path.name, lambda new: layout.write(new, inputs.start, items, answers)
        )
        self.ledger.add(Done(part, path.name, len(inputs), len(answers.errors), size, digest))


def _report(
    output: Output, ledger: Ledger, division: Division, engine: Engine, before: int, seconds: float
) -> BulkReport:
    notes = [ledger.done[part] for part in division.mine]
    listed = "".join(f"{note.sha256}  {note.file}\n" for note in notes)
    (ledger.folder / "inputs.jsonl").unlink(missing_ok=True)
    single = output.finish(ledger, division)
    return BulkReport(
        out=output.shown,
        rows=sum(note.rows for note in notes),
        unreadable=sum(note.errors for note in notes),
        files=1 if single is not None else len(notes),
        sha256=single or hashlib.sha256(listed.encode()).hexdigest(),
        engine=engine.name,
        continued=before,
        seconds=seconds,
    )
