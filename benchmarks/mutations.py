"""Ways to damage a file of a picture, each a function of a generator: the same number, the same damage."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

MAGIC_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
MARKERS = (
    *(b"IHDR", b"IDAT", b"PLTE", b"tRNS", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"iCCP", b"IEND"),  # PNG
    *(
        b"\xff\xc0",
        b"\xff\xc2",
        b"\xff\xc4",
        b"\xff\xda",
        b"\xff\xdb",
        b"\xff\xdd",
        b"\xff\xe1",
        b"\xff\xe2",
        b"\xff\xee",
    ),
    *(b"RIFF", b"VP8X", b"VP8L", b"VP8 ", b"ANIM", b"ANMF", b"ALPH", b"EXIF"),  # WebP
    *(b"jP  ", b"ihdr", b"jp2h", b"pclr", b"cmap", b"\xff\x51", b"\xff\x52", b"\xff\x5c", b"\xff\x90"),  # JPEG 2000
    *(b"ftyp", b"meta", b"iloc", b"ispe", b"av1C", b"mdat"),  # AVIF
    *(b"II*\0", b"MM\0*", b"BM", b"GIF8", b",", b"!\xf9", b"P6", b"P5"),
)

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The file, damaged in one to four ways; `others` are what it may be spliced with."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        if not damaged:
            break
        rng.choice(MUTATIONS)(damaged, rng, others)
    return bytes(damaged)


def _somewhere(data: bytearray, rng: random.Random) -> int:
    """A position, half of the time within the first 200 bytes: most of what can go wrong is said there."""
    end = len(data) if rng.random() < 0.5 else min(len(data), 200)
    return rng.randrange(end)


def flip_bits(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    for _ in range(rng.choice((1, 2, 8, 64))):
        data[_somewhere(data, rng)] ^= 1 << rng.randrange(8)


def replace_run(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    start, length = _somewhere(data, rng), rng.choice((1, 2, 4, 16, 256))
    end = min(len(data), start + length)
    data[start:end] = rng.choice((bytes(end - start), b"\xff" * (end - start), rng.randbytes(end - start)))


def cut_off(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    del data[_somewhere(data, rng) :]


def cut_out(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    start = _somewhere(data, rng)
    del data[start : start + rng.choice((1, 2, 4, 32, 1024))]


def insert(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    start = _somewhere(data, rng)
    data[start:start] = rng.choice((rng.randbytes(rng.choice((1, 4, 64, 512))), rng.choice(MARKERS)))


def repeat(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    start = _somewhere(data, rng)
    part = data[start : start + rng.choice((1, 8, 64, 512))]
    data[start:start] = part * rng.choice((1, 2, 100))


def splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """The start of this file, the end of another."""
    other = rng.choice(others)
    del data[_somewhere(data, rng) :]
    data += other[rng.randrange(len(other)) :]


def change_length(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """A number beside a marker: before it PNG and AVIF keep the length of what follows, after it the others do."""
    places = [place for marker in MARKERS if (place := data.find(marker)) >= 0]
    if places:
        place = rng.choice(places)
        _write(data, rng, place + rng.choice((-4, 2, 4, 5, 8)), rng.choice((2, 4)))


def change_field(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """A number in the header: sizes, depths, counts, offsets."""
    _write(data, rng, rng.randrange(min(len(data), 64)), rng.choice((1, 2, 4)))


def _write(data: bytearray, rng: random.Random, place: int, width: int) -> None:
    value = rng.choice((rng.choice(MAGIC_NUMBERS), rng.randrange(300), rng.randrange(1 << 32))) & ((1 << 8 * width) - 1)
    place = max(0, place)
    data[place : place + width] = value.to_bytes(width, rng.choice(("little", "big")))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    replace_run,
    cut_off,
    cut_out,
    insert,
    repeat,
    splice,
    change_length,
    change_field,
    change_field,
)
