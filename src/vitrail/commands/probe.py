"""`vitrail probe`: how good a model's features are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import vitrail
from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json, print_assumed, print_json
from vitrail.commands.progress import shown_stages
from vitrail.errors import VitrailError

Flag = Annotated[bool, Parameter(negative="")]
Words = Parameter(consume_multiple=True, negative_iterable="")


def probe(
    model: str,
    data: str | None = None,
    /,
    *,
    method: Annotated[list[Literal["ridge", "knn", "lbfgs", "sgd", "linear", "all"]] | None, Words] = None,
    shots: Annotated[list[str] | None, Words] = None,
    seeds: int = 3,
    l2: str = "1024",
    k: Annotated[list[int] | None, Words] = None,
    temperature: float = 0.07,
    features: Literal["pooled", "cls", "mean", "cls+mean"] = "pooled",
    blocks: int = 1,
    split: Literal["val", "test"] | None = None,
    examples: int | None = None,
    suite: str | None = None,
    img_size: int | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    workers: int | None = None,
    cache: bool = True,
    out: Path | None = None,
    overwrite: Flag = False,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
) -> int:
    """Judge a model's features by simple classifiers: few-shot ridge regression, nearest neighbours, linear probes.

    Example: vitrail probe my-model/ photos/

    Example: vitrail probe my-model/ photos/ --method ridge knn --shots 1 5 all --out probe/

    Example: vitrail probe my-model/ --suite vtab --download

    Parameters
    ----------
    model
        a model folder, a run, a checkpoint file of any known family, or hf:owner/name; it needs no head
    data
        a folder, a table, a named set, shards
    method
        ridge, knn, lbfgs, sgd; linear is the latter two; by default all
    shots
        pictures of each class to learn from, or all; by default 1 5 10 25 all
    seeds
        how many draws of the shots
    l2
        λ of the ridge, or sweep
    k
        neighbours to try; by default 1 5 10 20 50 100 200
    temperature
        of the neighbours' votes
    features
        what the model's own head reads; its class token; the mean of its patches; both
    blocks
        class tokens of so many last blocks
    split
        what is judged: by default val if the data says one, else test, else a fifth that is set aside
    examples
        learn from so many pictures only
    suite
        instead of DATA: a TOML file that names several sets, or vtab
    img_size
        read the pictures at another size; the positions are resized
    precision
        in which the model runs
    batch_size
        pictures that go through the model at a time
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    workers
        processes that read pictures; by default, one for each processor
    cache
        keep features, and use those that are kept
    out
        a folder to make, with probe.json, probe.csv and probe.png
    overwrite
        replace the folder of an earlier probe
    as_json
        print one JSON object
    """
    if (data is None) == (suite is None):
        raise VitrailError("give either DATA or --suite FILE")
    if batch_size < 1 or (workers is not None and workers < 0):
        raise VitrailError("--batch-size must be at least 1, and --workers at least 0")
    from vitrail.model.devices import choose_device
    from vitrail.scoring.probing.report import refuse
    from vitrail.scoring.probing.suite import read_suite

    if out is not None:
        refuse(out, overwrite)
    tasks = None if suite is None else read_suite(suite)
    numbers = None if shots is None else [_shots(word) for word in shots]
    regulariser = _l2(l2)
    place = choose_device(device)
    classifier = vitrail.load(model, **({} if img_size is None else {"img_size": img_size})).to(place)
    if not as_json:
        print_assumed(classifier)
    asked = {"method": method, "shots": numbers, "split": split, "examples": examples, "ks": k}
    how: dict[str, Any] = {
        **{key: value for key, value in asked.items() if value is not None},
        "seeds": seeds,
        "l2": regulariser,
        "temperature": temperature,
        "features": features,
        "blocks": blocks,
        "precision": precision,
        "batch_size": batch_size,
        "workers": workers,
        "cache": cache,
        **opening.given(),
    }
    with shown_stages() as progress:
        if tasks is not None:
            begun = None if as_json else _announce
            report: Any = vitrail.probe_suite(classifier, tasks, name=model, begun=begun, progress=progress, **how)
        else:
            assert data is not None
            report = vitrail.probe(classifier, data, name=model, progress=progress, **how)
    if out is not None:
        report.write(out, overwrite=overwrite)
    if as_json:
        print_json(report.to_json())
    else:
        print(report.text() + ("" if out is None else f"\n\nthe whole of it is in {out}"))
    failed = report.failed if tasks is not None else []
    if failed:
        print(f"vitrail: {len(failed)} of {len(report.results)} data sets could not be probed", file=sys.stderr)
    return int(bool(failed))


def _announce(name: str, number: int, count: int) -> None:
    print(f"{number} of {count}: {name}", file=sys.stderr, flush=True)


def _shots(word: str) -> int | Literal["all"]:
    if word == "all":
        return "all"
    if not word.isdecimal():
        raise VitrailError(f"--shots {word!r}: give numbers from 1 up, or all")
    return int(word)


def _l2(word: str) -> float | Literal["sweep"]:
    if word == "sweep":
        return "sweep"
    try:
        return float(word)
    except ValueError as error:
        raise VitrailError(f"--l2 {word!r}: give a number above 0, or sweep") from error
