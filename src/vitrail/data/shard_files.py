"""The files of a set of shards, wherever they are: found, measured, and read by ranges."""

from __future__ import annotations

import glob
import itertools
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.tars import compressed
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")
_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_SQUEEZED = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
_MOST_OPEN = 64
_PAUSES = (0.5, 2.0)  # seconds before a request that failed is made again


class ShardFile(NamedTuple):
    """One archive. The stamp changes when the file is written again; stamps are compared within one kind of storage."""

    address: str
    size: int
    stamp: str


class Range(NamedTuple):
    """Some bytes of one file."""

    address: str
    start: int
    end: int


def is_remote(address: str) -> bool:
    return bool(_PROTOCOL.match(address))


def plain_address(address: str | os.PathLike[str]) -> str:
    """The address without what means nothing: `file://`, `~`, a slash at the end."""
    text = os.fsdecode(address)
    text = text.removeprefix("file://")
    return text.rstrip("/") or text if is_remote(text) else os.path.normpath(os.path.expanduser(text))


def expand_braces(pattern: str) -> Iterator[str]:
    """`a-{00..12}.tar` and `{train,val}-*.tar` as shells write them out."""
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    first, last, listed = match.groups()
    if listed is not None:
        words = listed.split(",")
    else:
        low, high = int(first), int(last)
        width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        words = [f"{n:0{width}}" for n in (range(low, high + 1) if low <= high else range(low, high - 1, -1))]
    for word in words:
        for rest in expand_braces(pattern[match.end() :]):
            yield pattern[: match.start()] + word + rest


def find_shards(address: str | os.PathLike[str]) -> tuple[ShardFile, ...]:
    """The archives of a folder, a glob, a brace pattern or one address, sorted by name."""
    text = plain_address(address)
    shown = printable(text)
    patterns = [text] if not is_remote(text) and os.path.exists(text) else list(expand_braces(text))
    found: dict[str, ShardFile] = {}
    listing = _list_remote if is_remote(text) else _list_local
    with ThreadPoolExecutor(16 if is_remote(text) else 1) as pool:  # each remote pattern may be a request
        for file in itertools.chain.from_iterable(pool.map(listing, patterns)):
            found[file.address] = file
    if not found:
        raise DataError(f"{shown}: there is no .tar there; name a folder of shards, a pattern or one archive")
    for name in found:
        kind = next((kind for end, kind in _SQUEEZED.items() if name.lower().endswith(end)), None)
        if kind:
            raise compressed(printable(name), kind)
    return tuple(found[name] for name in sorted(found, key=os.fsencode))


def common_folder(files: Sequence[ShardFile]) -> str:
    """The deepest folder that holds all of them."""
    parts = [file.address.split("/")[:-1] for file in files]
    same = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))
    return "/".join(level[0] for level in same)


def _list_local(pattern: str) -> list[ShardFile]:
    if os.path.isdir(pattern):
        with os.scandir(pattern) as entries:
            names = [entry.path for entry in entries if _is_archive(entry.name)]
        plain = [name for name in names if name.lower().endswith(".tar")]
        names = plain or names  # where there are only compressed ones, they are named in the refusal
    elif os.path.exists(pattern):
        names = [pattern]
    elif any(sign in pattern for sign in "*?["):
        names = [name for name in glob.glob(pattern) if os.path.isfile(name)]
    else:
        raise DataError(f"{printable(pattern)}: there is no such shard or folder; check the path")
    return [local_shard(name) for name in names]


def local_shard(path: str) -> ShardFile:
    facts = os.stat(path)
    return ShardFile(os.path.abspath(path), facts.st_size, f"mtime {facts.st_mtime_ns}")


def _is_archive(name: str) -> bool:
    lower = name.lower()
    squeezed = lower.endswith(".tgz") or any(lower.endswith(f".tar{end}") for end in _SQUEEZED)
    return (lower.endswith(".tar") or squeezed) and not name.startswith(".")


def _list_remote(pattern: str) -> list[ShardFile]:
    web = pattern.startswith(("http://", "https://"))  # a question mark there begins a query
    with _told(pattern):
        fs, path = open_storage(pattern)
        if any(sign in pattern for sign in ("*[" if web else "*?[")):
            names = [str(name) for name in fs.glob(path)]
        elif _is_archive(pattern.split("?")[0] if web else pattern):
            names = [path]
        else:
            inside = [str(name) for name in fs.ls(path, detail=False)]
            inside = [name for name in inside if _is_archive(name.rsplit("/", 1)[-1])]
            names = [name for name in inside if name.lower().endswith(".tar")] or inside
        files = []
        for name in names:
            facts = fs.info(name)
            if facts.get("size") is None:
                raise DataError(f"{printable(name)}: its server does not say how long it is; use another server")
            files.append(ShardFile(str(fs.unstrip_protocol(name)), int(facts["size"]), stamp(facts)))
        return files


def stamp(facts: dict[str, Any]) -> str:
    """What a storage says of a file that changes when it is written again."""
    for key in ("ETag", "etag", "md5Hash", "LastModified", "Last-Modified", "mtime", "created"):
        if facts.get(key):
            return f"{key} {facts[key]}"
    return ""


def open_storage(address: str) -> tuple[Any, str]:
    """fsspec's file system for an address, and the path in it. A new process gets a new one: fsspec sees to that."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise DataError(f"{printable(address)}: {printable(error)} (pip install 'vitrail[hub]' has it)") from error
    except ValueError as error:
        raise DataError(f"{printable(address)}: {printable(error)}; check the address") from error
    return fs, str(path)


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Whatever the storage raises becomes one line that names the address."""
    name = printable(address)
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{name}: there is no such shard or folder; check the address") from error
    except PermissionError as error:
        raise DataError(f"{name}: reading it is not permitted; check permissions and credentials") from error
    except Exception as error:
        cause = printable(str(error) or type(error).__name__)
        raise DataError(f"{name}: cannot be read ({cause}); check the address and the connection") from error


class LocalFiles:
    """Reads ranges of local files. A bounded number of them is kept open; threads may share it, and so may processes
    that were forked: nothing here has a position, and a child opens its own."""

    gap = 2**18  # bytes between two pictures that it is quicker to read than to skip
    longest = 2**25

    def __init__(self) -> None:
        self._renew()

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalFiles, ()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Handle] = OrderedDict()

    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        return [self._read_one(one) for one in ranges]

    def _read_one(self, one: Range) -> bytes:
        with _told(one.address):
            handle = self._handle(one.address)
            parts = []
            at = one.start
            while at < one.end and (part := os.pread(handle.number, one.end - at, at)):
                parts.append(part)
                at += len(part)
            if at < one.end:
                raise shortened(one, at)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def _handle(self, address: str) -> _Handle:
        if self._process != os.getpid():  # another thread may have held the lock when this process was forked
            self._renew()
        with self._lock:
            handle = self._open.get(address)
            if handle is None:
                handle = self._open[address] = _Handle(os.open(address, os.O_RDONLY | os.O_CLOEXEC))
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)  # closed when the last thread that reads from it is done
            else:
                self._open.move_to_end(address)
            return handle


class _Handle:
    """An open file that closes when nobody holds it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class RemoteFiles:
    """Reads ranges of remote files through fsspec, several at once. A request that fails is made again twice."""

    gap = 2**20
    longest = 2**24

    def read(self, ranges: Sequence[Range]) -> list[bytes]:
        fs, _ = open_storage(ranges[0].address)
        found: list[Any] = [b""] * len(ranges)
        missing = [
            i for i, one in enumerate(ranges) if one.end > one.start
        ]  # an empty range is an error to some servers
        for pause in (*_PAUSES, None) if missing else ():
            paths = [open_storage(ranges[i].address)[1] for i in missing]
            starts, ends = [ranges[i].start for i in missing], [ranges[i].end for i in missing]
            for i, answer in zip(missing, fs.cat_ranges(paths, starts, ends, on_error="return"), strict=True):
                found[i] = answer
            failed = [i for i in missing if isinstance(found[i], Exception)]
            missing = [i for i in failed if not isinstance(found[i], FileNotFoundError | PermissionError)]
            if len(missing) < len(failed) or not missing or pause is None:
                break
            time.sleep(pause)
        for one, answer in zip(ranges, found, strict=True):
            self._check(one, answer)
        return found

    def _check(self, one: Range, answer: Any) -> None:
        with _told(one.address):
            if isinstance(answer, Exception):
                raise answer
            if len(answer) < one.end - one.start:
                raise shortened(one, one.start + len(answer))
            if len(answer) > one.end - one.start:
                raise DataError(
                    f"{printable(one.address)}: its server sends the whole file when a part is asked for; "
                    "use a server with ranged reads, or copy the shards here"
                )


def shortened(one: Range, at: int) -> DataError:
    return DataError(
        f"{printable(one.address)}: ends at byte {at:,} before a picture does: it was changed or cut off since it was "
        "indexed; fetch it again, or index it again with vitrail check --index"
    )


def storage_of(address: str) -> LocalFiles | RemoteFiles:
    return RemoteFiles() if is_remote(address) else LocalFiles()


def cache_folder() -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail"
