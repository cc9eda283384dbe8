"""Reads a set of shards once, from end to end, and makes its index: pictures, labels and splits in the WebDataset
layout."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.data.folder import SPLIT_FOLDERS
from vitrail.data.samples import SPLITS, UNSAID, Names, Samples
from vitrail.data.shard_files import Range, ShardFile, common_folder, is_remote, storage_of
from vitrail.data.shard_index import Index, Progress, read_classes
from vitrail.data.shard_labels import Label, Labels, folder_labels
from vitrail.data.tars import BLOCK, Member, Window, read_members
from vitrail.errors import DataError
from vitrail.pictures.sources import SUFFIXES, printable

PICTURES = frozenset(suffix[1:] for suffix in SUFFIXES)
SPLIT_WORDS = {word.decode(): SPLITS.index(split) for word, split in SPLIT_FOLDERS.items()}
OURS = "vitrail"  # the key in a sample's JSON that says that its name, split, group and weight are ours

_NOTES = ("cls", "json", "txt")
_LABEL_KEYS = ("label", "cls", "class", "labels")
_PREFIX = re.compile(r"(train|val|valid|validation|test)(?![A-Za-z])", re.IGNORECASE)
_REMOTE_SCANS = 8


@dataclass(slots=True)
class _Sample:
    """The members of one key."""

    picture: Member | None = None
    exact: bool = False  # the picture is `key.jpg`, not `key.seg.jpg`
    notes: dict[str, bytes] = field(default_factory=dict)


@dataclass
class _Columns:
    """What the scan has found so far, in arrays."""

    names: list[bytes] = field(default_factory=list)
    shard: array[int] = field(default_factory=lambda: array("i"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    split: array[int] = field(default_factory=lambda: array("b"))
    group: array[int] = field(default_factory=lambda: array("q"))
    weight: array[float] = field(default_factory=lambda: array("f"))
    grouped: bool = False
    weighted: bool = False
    ours: bool = False  # the shards say by themselves what has no label and no split
    notes: list[str] = field(default_factory=list)


def scan(files: Sequence[ShardFile], progress: Progress | None = None) -> Index:
    """The index of these shards."""
    folder = common_folder(files)
    classes, stamp = read_classes(folder)
    columns = _Columns()
    said = Labels()
    remote = is_remote(files[0].address)
    with ThreadPoolExecutor(_REMOTE_SCANS if remote else 1) as pool:
        for number, shard in enumerate(pool.map(_scan_one, files)):
            split = _split_of_shard(files[number].address.removeprefix(folder + "/"))
            _add(columns, said, number, split, shard, files[number])
            if progress:
                progress(number + 1, len(files))
    if not columns.names:
        raise DataError(f"{printable(folder)}: its shards hold no picture; their members are named <key>.jpg and so on")
    _tell_apart(columns, files)
    return _index(columns, said, classes, stamp, tuple(files))


@dataclass(slots=True)
class _Shard:
    samples: dict[bytes, _Sample] = field(default_factory=dict)
    end: int = 0  # of the last member


def _scan_one(file: ShardFile) -> _Shard:
    """The samples of one shard. Members of one key belong together even where others stand between them."""
    storage = storage_of(file.address)

    def fetch(start: int, end: int) -> bytes:
        return storage.read([Range(file.address, start, end)])[0]

    # A remote request costs about as much as a megabyte: where headers are closer than that, everything is fetched.
    lengths = {"short": 2**16, "long": 2**22, "dense": 2**20} if is_remote(file.address) else {}
    window = Window(fetch, file.size, **lengths)
    shard = _Shard()
    for member in read_members(window, file.address):
        shard.end = member.offset + member.size
        name = member.name.removeprefix(b"./")
        folder, slash, base = name.rpartition(b"/")
        stem, _, ending = base.partition(b".")
        kind = ending.lower().decode("ascii", "replace")
        last = kind.rpartition(".")[2]
        if not stem or not (last in PICTURES or kind in _NOTES):
            continue
        sample = shard.samples.setdefault(folder + slash + stem, _Sample())
        if kind in _NOTES:
            sample.notes[kind] = window.read(member.offset, member.size)
        else:
            _take_picture(sample, member._replace(name=name), exact=kind in PICTURES)
    return shard


def _take_picture(sample: _Sample, member: Member, *, exact: bool) -> None:
    """The first picture of a key counts, `key.jpg` before `key.seg.jpg`; of one name, the last, as tar extracts it."""
    held = sample.picture
    if held is None or held.name == member.name or (exact and not sample.exact):
        sample.picture, sample.exact = member, exact


def _split_of_shard(name: str) -> int:
    """From `train-0000.tar`, or from a folder: `val/0000.tar`."""
    for part in name.split("/"):
        match = _PREFIX.match(part)
        if match:
            return SPLIT_WORDS[match[1].lower()]
    return UNSAID


def _add(columns: _Columns, said: Labels, number: int, split: int, shard: _Shard, file: ShardFile) -> None:
    without = 0
    for sample in shard.samples.values():
        if sample.picture is None:
            without += 1
            continue
        facts = _facts(sample, file)
        said.add(
            _label(sample, facts, file), sample.notes.get("txt"), described=bool({"cls", "json"} & {*sample.notes})
        )
        name, offset, size = sample.picture
        columns.shard.append(number)
        columns.offset.append(offset)
        columns.size.append(size)
        if not facts.get(OURS):
            facts = {"name": os.fsdecode(name), "split": SPLITS[split] if split != UNSAID else None}
        else:
            columns.ours = True
        columns.names.append(os.fsencode(facts["name"]))
        columns.split.append(UNSAID if facts["split"] is None else SPLITS.index(facts["split"]))
        group, weight = facts.get("group"), facts.get("weight")
        columns.group.append(UNSAID if group is None else group)
        columns.weight.append(1.0 if weight is None else weight)
        columns.grouped |= group is not None
        columns.weighted |= weight is not None
    if without:
        columns.notes.append(f"{printable(file.address)}: {without} keys have a label and no picture")
    if shard.end + -shard.end % BLOCK >= file.size:
        columns.notes.append(f"{printable(file.address)}: has no end mark; it may have been cut off")


def _facts(sample: _Sample, file: ShardFile) -> dict[str, Any]:
    if "json" not in sample.notes:
        return {}
    try:
        facts = json.loads(sample.notes["json"])
    except ValueError as error:
        raise _unreadable(sample, file, f"its .json cannot be read ({printable(error)})") from None
    return facts if isinstance(facts, dict) else {}


def _label(sample: _Sample, facts: dict[str, Any], file: ShardFile) -> Label:
    """What `.cls` or `.json` says: a number, a name, a list of them, or nothing."""
    if "cls" in sample.notes:
        try:
            text = sample.notes["cls"].decode().strip()
        except UnicodeDecodeError:
            raise _unreadable(sample, file, "its .cls is not text") from None
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else text or None
    value = next((facts[key] for key in _LABEL_KEYS if key in facts), None)
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, dict | list) for one in values):
        raise _unreadable(sample, file, "its label is neither a number nor a name nor a list of them")
    plain = [_plain(one) for one in values if one is not None]
    try:
        os.fsencode("".join(map(str, plain)))
    except UnicodeEncodeError:
        raise _unreadable(sample, file, "its label is not text") from None
    return plain if isinstance(value, list) else plain[0] if plain else None


def _plain(value: Any) -> int | str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return int(value) if value.is_integer() else str(value)
    return value if isinstance(value, int) else str(value)


def _unreadable(sample: _Sample, file: ShardFile, what: str) -> DataError:
    name = printable(sample.picture.name.decode(errors="replace")) if sample.picture else "a key"
    return DataError(f"{printable(file.address)}: {name}: {what}; write the shard again")


def _tell_apart(columns: _Columns, files: Sequence[ShardFile]) -> None:
    """Where two shards use one key, names begin with the shard's."""
    if len(set(columns.names)) == len(columns.names):
        return
    folder = common_folder(files)
    stems = [os.fsencode(file.address.removeprefix(folder + "/")) for file in files]
    columns.names = [stems[number] + b"/" + name for name, number in zip(columns.names, columns.shard, strict=True)]


def _index(
    columns: _Columns, said: Labels, listed: tuple[str, ...] | None, stamp: str, files: tuple[ShardFile, ...]
) -> Index:
    splits = np.array(columns.split, np.int8)
    by_folder, folder_splits = folder_labels(columns.names, listed, SPLIT_WORDS)
    matched = said.matched(listed) if said.stated() or columns.ours else by_folder
    if np.all(splits == UNSAID) and not columns.ours:
        splits = folder_splits
    order = sorted(range(len(columns.names)), key=columns.names.__getitem__)
    rows = np.array(order)
    samples = Samples(
        names=Names.of(os.fsdecode(columns.names[row]) for row in order),
        classes=matched.classes,
        splits=splits[rows],
        groups=np.array(columns.group, np.int64)[rows] if columns.grouped else None,
        weights=np.array(columns.weight, np.float32)[rows] if columns.weighted else None,
        **matched.columns(rows),
    )
    shard = np.array(columns.shard, np.int32)[rows]
    offset = np.array(columns.offset, np.int64)[rows]
    size = np.array(columns.size, np.int64)[rows]
    return Index(samples, shard, offset, size, files, stamp, (*columns.notes, *matched.notes))
