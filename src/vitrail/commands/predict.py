"""`vitrail predict`: what is on pictures."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import CycloptsError, Parameter

import vitrail
from vitrail.commands.printing import Json, print_assumed, print_json
from vitrail.commands.progress import shown_progress
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.classifier import Classifier
    from vitrail.shipping.bulk.items import Item

Flag = Annotated[bool, Parameter(negative="")]


def _no_flag(_: object, values: list[str]) -> None:
    """`-` is a source, so the parser lets through what begins with a dash."""
    for value in values:
        if value.startswith("-") and value != "-":
            raise CycloptsError(msg=f"Unknown option {value}; a file of that name is ./{value}.")


def predict(
    model: str,
    sources: Annotated[list[str], Parameter(negative="", allow_leading_hyphen=True, validator=_no_flag)],
    /,
    *,
    out: str | None = None,
    top: int = 1,
    features: Flag = False,
    img_size: int | None = None,
    batch_size: int = 32,
    engine: str = "auto",
    device: str | None = None,
    workers: int | None = None,
    shard: str | None = None,
    rows_per_part: int | None = None,
    ray: Annotated[bool | str, Parameter(negative="")] = False,
    path_column: str | None = None,
    label_column: str | None = None,
    overwrite: Flag = False,
    as_json: Json = False,
) -> int:
    """Say what is on pictures: files, folders with everything in them, patterns, lists, tables, tar shards, addresses.

    Example: vitrail predict my-model/ cat.jpg holiday/ --top 3

    Millions of pictures: vitrail predict my-model/ s3://bucket/photos --out 'rows/part-*.parquet'. Stopped at any
    moment, the same command goes on where it was.

    Parameters
    ----------
    model
        a model folder, a checkpoint file of any known family, or hf:owner/name
    sources
        pictures, folders of pictures, patterns ('a/**/*.jpg'), tables of paths, tar shards; - is a list on stdin
    out
        write rows to .parquet, .jsonl or .csv; a star makes many files: 'part-*.parquet'
    top
        how many of the best classes to show
    features
        write what the model's head reads, too
    img_size
        read the pictures at another size; the positions are resized
    batch_size
        pictures that go through the model at a time
    engine
        what computes: torch, onnx, openvino, int8, merged, a file that was exported; auto, the quickest for so many
        pictures that keeps the accuracy; or exact, the quickest that gives the model's own numbers
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    workers
        processes that read pictures for --out; by default, one for each processor
    shard
        2/8 does the second of eight shares, for schedulers
    rows_per_part
        pictures in each file of many; by default 4096
    ray
        compute on Ray: on this machine, or on the cluster at an address
    path_column
        of a table: the column with paths
    label_column
        of a table: the column with labels, which --out writes beside the predictions
    overwrite
        replace what an earlier command wrote to --out
    as_json
        print one JSON object
    """
    if top < 1 or batch_size < 1:
        raise VitrailError("--top and --batch-size must be at least 1")
    size: dict[str, Any] = {} if img_size is None else {"img_size": img_size}
    if out is None:
        given = {"--features": features, "--shard": shard, "--rows-per-part": rows_per_part, "--ray": ray}
        for flag, value in (
            given | {"--overwrite": overwrite, "--workers": workers, "--label-column": label_column}
        ).items():
            if value not in (None, False):
                raise VitrailError(f"{flag} is for rows that are written to files: say where with --out")
        return _show(model, sources, path_column, top, batch_size, engine, device, size, as_json)
    from vitrail.model.devices import choose_device

    chosen = choose_device(device)
    classifier = vitrail.load(model, **size).to(chosen)
    if not as_json:
        print_assumed(classifier)
    with shown_progress("pictures") as progress:
        report = vitrail.predict_many(
            classifier,
            sources,
            out,
            top=top,
            features=features,
            batch_size=batch_size,
            engine=engine,
            workers=workers,
            shard=shard or "1/1",
            rows_per_part=rows_per_part,
            ray=ray,
            path_column=path_column,
            label_column=label_column,
            overwrite=overwrite,
            progress=progress,
            say=None if as_json else lambda line: print(line, file=sys.stderr),
        )
    if as_json:
        print_json({"model": model, **report.to_json()})
    else:
        print(report.text())
    return 0


def _show(
    model: str,
    sources: list[str],
    path_column: str | None,
    top: int,
    batch_size: int,
    engine: str,
    device: str | None,
    size: dict[str, Any],
    as_json: bool,
) -> int:
    """A line for each picture."""
    from vitrail.model.devices import choose_device
    from vitrail.shipping.bulk.sources import Columns, items_of

    items = list(items_of(sources, Columns(path_column)))
    if not items:
        raise VitrailError(f"there are no pictures in {', '.join(sources)}")
    classifier = vitrail.load(model, **size)
    classifier.to(choose_device(device))
    if not as_json:
        print_assumed(classifier)
    found, skipped = _predicted(classifier, items, top, batch_size, engine, as_json)
    if as_json:
        print_json({"model": model, "predictions": found, "skipped": skipped})
    elif skipped:
        print(f"{len(found)} predicted, {len(skipped)} skipped", file=sys.stderr)
    if not found:
        raise VitrailError(f"none of {len(items)} files could be read as a picture")
    return 0


def _predicted(
    classifier: Classifier, items: list[Item], top: int, batch_size: int, engine: str, quiet: bool
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    import numpy as np

    from vitrail.shipping.bulk.answers import best_classes
    from vitrail.shipping.bulk.decoding import decode
    from vitrail.shipping.bulk.parts import text_of
    from vitrail.shipping.engines import choose

    found: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    with choose(classifier, engine, pictures=len(items)) as chosen:
        if chosen.name != "torch" and not quiet:
            print(f"engine {chosen.name}: {chosen.detail}", file=sys.stderr)
        for start in range(0, len(items), batch_size):
            some = items[start : start + batch_size]
            paths = [text_of(item.path) for item in some]
            pixels, errors = decode(some, classifier.preprocessing)
            for place, error in errors.items():
                skipped.append({"path": paths[place], "reason": error})
                print(f"skipped: {error}", file=sys.stderr)
            good = [k for k in range(len(some)) if k not in errors]
            if not good:
                continue
            classes, scores = best_classes(chosen.run(np.ascontiguousarray(pixels[good])), top)
            for k, row, values in zip(good, classes.tolist(), scores.tolist(), strict=True):
                best = [{"label": classifier.classes[c], "score": v} for c, v in zip(row, values, strict=True)]
                found.append({"path": paths[k], **best[0], "top": best})
                if not quiet:
                    shown = ", ".join(f"{one['label']} {one['score']:.1%}" for one in best)
                    print(f"{paths[k]}: {shown}", flush=True)
    return found, skipped
