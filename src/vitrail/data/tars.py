"""What is in a tar archive and where, from its headers: ustar, GNU and pax. The data between them is not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from vitrail.errors import DataError
from vitrail.pictures.sources import printable

BLOCK = 512

Fetch = Callable[[int, int], bytes]  # the bytes from `start` to `end` of one file

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_UNPACK = {"gzip": "gunzip", "zstd": "unzstd", "bzip2": "bunzip2", "xz": "unxz"}
_FILES = b"0\x007"
_WITHOUT_DATA = b"123456"  # links, devices, folders, pipes: a size in their header means nothing
_LONGEST_NOTE = 2**24  # of a pax header or a long name; a larger one is damage


class Member(NamedTuple):
    """A regular file in an archive."""

    name: bytes
    offset: int  # of its data
    size: int


class Window:
    """Reads one file through a block that moves along.

    Blocks are long where the reads lie close together, so that a thousand small ones are one request, and short where
    they lie far apart, so that the data between them is not fetched.
    """

    def __init__(self, fetch: Fetch, size: int, *, short: int = 2**12, long: int = 2**20, dense: int = 2**15) -> None:
        self.fetch = fetch
        self.size = size
        self._lengths = short, long
        self._dense = dense  # up to this mean distance between reads, blocks are long
        self._start, self._block = 0, b""
        self._reads = 0

    def read(self, start: int, length: int) -> bytes:
        """These bytes, or fewer where the file ends."""
        within = start - self._start
        if within < 0 or within + length > len(self._block):
            self._move(start, length)
            within = 0
        self._reads += 1
        return self._block[within : within + length]

    def _move(self, start: int, length: int) -> None:
        short, long = self._lengths
        close = self._reads and start <= self._dense * self._reads
        end = min(start + max(length, long if close else short), self.size)
        self._start, self._block = start, self.fetch(start, end) if end > start else b""


def read_members(window: Window, name: str) -> Iterator[Member]:
    """The regular files of a tar archive in their order; links, folders and sparse files are passed over.

    `name` is what messages call the archive. The window may be read from between the members.
    """
    label = printable(name)
    _refuse_compressed(window.read(0, BLOCK), label)
    at = 0
    common: dict[bytes, bytes] = {}
    own: dict[bytes, bytes] = {}
    while at < window.size:
        header = window.read(at, BLOCK)
        if len(header) < BLOCK:
            raise _damaged(label, at, "it is truncated in a header")
        if header[0] == 0 and not any(header):
            return
        kind, size = _checked(header, label, at)
        data = at + BLOCK
        if kind in b"LKxgX":
            if size > _LONGEST_NOTE:
                raise _damaged(label, at, f"a header claims {size} bytes")
            note = window.read(data, size)
            if len(note) < size:
                raise _damaged(label, at, "it is truncated in a header")
            if kind == b"L":
                own[b"path"] = note.rstrip(b"\0")
            elif kind == b"g":
                common |= _records(note, label, at)
            elif kind != b"K":
                own |= _records(note, label, at)
            at = data + _padded(size)
            continue
        facts = common | own
        own = {}
        if b"size" in facts:
            size = _number(facts[b"size"], 10, label, at)
        path = facts.get(b"path") or _path(header)
        sparse = kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in facts)
        if kind == b"S":
            data = _after_sparse_map(window, header, data)
        if kind in _WITHOUT_DATA:
            size = 0
        if data + size > window.size:
            raise _damaged(label, at, f"{printable(path.decode(errors='replace'))} is truncated")
        if kind in _FILES and not sparse and not path.endswith(b"/"):
            yield Member(path, data, size)
        at = data + _padded(size)
    if at > window.size:
        raise _damaged(label, window.size, "it is truncated")


def _refuse_compressed(head: bytes, label: str) -> None:
    if not head:
        raise DataError(f"{label}: is empty (0 bytes); write it again")
    for magic, kind in _COMPRESSED.items():
        if head.startswith(magic):
            raise compressed(label, kind)


def compressed(label: str, kind: str) -> DataError:
    """A compressed archive must be read from its start to reach any picture."""
    return DataError(
        f"{label}: is compressed with {kind}, so no picture in it can be reached without reading all before it; "
        f"unpack it once with {_UNPACK[kind]} (pictures hardly compress), or write new shards with vitrail pack"
    )


def _checked(header: bytes, label: str, at: int) -> tuple[bytes, int]:
    """The type and the size in a header whose checksum is right."""
    stated = _number(header[148:156], 8, label, at)
    plain = sum(header) - sum(header[148:156]) + 8 * 32  # the sum is made with spaces in its own place
    if stated != plain:
        high = sum(byte > 127 for byte in header[:148] + header[156:])
        if stated != plain - 256 * high:  # some old programs add signed bytes
            raise _damaged(label, at, "there is no tar header" if at == 0 else "a header is damaged")
    return header[156:157], _number(header[124:136], 8, label, at)


def _number(field: bytes, base: int, label: str, at: int) -> int:
    if field[:1] == b"\x80":  # GNU's way to write what octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0", 1)[0].strip()
    if text and not text.isdigit():
        raise _damaged(label, at, "there is no tar header" if at == 0 else "a header is damaged")
    try:
        return int(text or b"0", base)
    except ValueError:
        raise _damaged(label, at, "a header is damaged") from None


def _path(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""  # GNU has times there
    return prefix + b"/" + name if prefix else name


def _records(note: bytes, label: str, at: int) -> dict[bytes, bytes]:
    """The records of a pax header: "<length> <key>=<value>\\n"."""
    found = {}
    rest = note.rstrip(b"\0")
    while rest:
        length, space, _ = rest.partition(b" ")
        end = int(length) if space and length.isdigit() and len(length) < 10 else 0
        key, equals, value = rest[len(length) + 1 : end - 1].partition(b"=")
        if not equals or end > len(rest) or rest[end - 1 : end] != b"\n":
            raise _damaged(label, at, "a pax header is damaged")
        found[key] = value
        rest = rest[end:]
    return found


def _after_sparse_map(window: Window, header: bytes, data: int) -> int:
    """Where the data of a sparse file begins: its map may go on in further blocks."""
    more = header[482]
    while more and data < window.size:
        more = window.read(data, BLOCK)[504:505] not in (b"", b"\0")
        data += BLOCK
    return data


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _damaged(label: str, at: int, what: str) -> DataError:
    return DataError(f"{label}: at byte {at:,} {what}; fetch or write the archive again")
