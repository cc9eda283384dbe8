"""Damages pictures by the hundred thousand and reads them: no crash, no hang, nothing raised but `PictureError`, memory
flat.

    uv run --all-extras python benchmarks/fuzz_decode.py --count 100000 --seed 0
    uv run --all-extras python benchmarks/fuzz_decode.py --seed 0 --number 4711     # one of them again

The damage is a function of (seed, number) and of the pictures it starts from: the good files of tests/pictures, made by
the Pillow that is installed, and those of `--real FOLDER`. Each is read by `decode` and `decode_at`, every third with
`truncated="fill"`, in worker processes that a watchdog kills and replaces when a picture takes too long, in seconds of
the processor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import sys
import time
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path

import numpy as np
import PIL
from PIL import features

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' pictures

from benchmarks.mutations import mutate
from tests.pictures.making import FILES, encode
from tests.pictures.zoo_good import good
from vitrail.errors import PictureError
from vitrail.pictures import decode, decode_at
from vitrail.pictures.decode import Truncated

STARTED, NUMBER, OK, REFUSED, OTHER, SLOWEST, SLOWEST_NUMBER, PEAK, CPU = range(9)
MEMORY, READINGS = 9, 19  # of each tenth of the run: the sum of the memory after each picture, and how many
PATIENCE = 4  # how much longer a picture may take by the clock than by the processor, which others use as well
Board = MutableSequence[float]  # shared memory, one for each worker
FORK = multiprocessing.get_context("fork")


def corpus(real: Path | None = None) -> list[bytes]:
    """What is damaged: every kind of good file, and real photographs as they are and in every format."""
    files = [specimen.data for specimen in good() if len(specimen.data) < 200_000] + list(FILES.values())
    photographs = sorted(path for path in real.rglob("*") if path.is_file())[:12] if real else []
    for path in photographs:
        picture = decode(path)
        picture.thumbnail((160, 160))
        files += [path.read_bytes(), encode(picture, "PNG"), encode(picture, "GIF"), encode(picture, "TIFF")]
        files += [encode(picture, "JPEG", progressive=True), encode(picture, "WEBP"), encode(picture, "JPEG2000")]
        files += [encode(picture, "TIFF", compression="jpeg"), encode(picture, "AVIF")]
    return files


def damaged(files: Sequence[bytes], seed: int, number: int) -> bytes:
    rng = random.Random(f"{seed}/{number}")
    return mutate(rng.choice(files), rng, files)


def read(data: bytes, number: int) -> bool:
    """Whether both ways of reading give a picture; raises if they do what they must not."""
    policy: Truncated = "fill" if number % 3 == 0 else "error"
    sizes = []
    try:
        sizes.append(decode(data, truncated=policy).size)
    except PictureError as error:
        _check(str(error))
    try:
        picture, full = decode_at(data, lambda width, height: max(width, height) / 16, truncated=policy)
        sizes.append(full)
        assert picture.mode == "RGB"
    except PictureError as error:
        _check(str(error))
    assert len(set(sizes)) < 2, f"decode gives {sizes[0]}, decode_at {sizes[1]}"
    return len(sizes) == 2


def _check(line: str) -> None:
    assert line.isprintable(), f"more than one printable line: {line!r}"


def resident() -> int:
    """Bytes of memory this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def work(files: Sequence[bytes], seed: int, numbers: range, count: int, board: Board, failures: Path) -> None:
    """One worker. `board` is what it tells the watchdog."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff prints what it thinks of a file
    for number in numbers:
        data = damaged(files, seed, number)
        board[NUMBER], board[CPU], board[STARTED] = number, time.process_time(), time.monotonic()
        try:
            board[OK if read(data, number) else REFUSED] += 1
        except Exception as error:
            board[OTHER] += 1
            keep(failures, data, seed, number, f"{type(error).__name__}: {error}")
        taken = time.process_time() - board[CPU]
        if taken > board[SLOWEST]:
            board[SLOWEST], board[SLOWEST_NUMBER] = taken, number
        tenth = 10 * number // count
        board[MEMORY + tenth] += resident()
        board[READINGS + tenth] += 1
        board[PEAK] = max(board[PEAK], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    board[STARTED] = -1


def keep(folder: Path, data: bytes, seed: int, number: int, what: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}-{number}"
    path.write_bytes(data)
    print(f"{what}\n  --seed {seed} --number {number}; the file is {path}", file=sys.stderr, flush=True)


@dataclass
class Lane:
    """A worker, and those who replace it."""

    numbers: range
    board: Board
    process: ForkProcess | None = None
    crashes: int = 0
    hangs: int = 0


def fuzz(
    files: Sequence[bytes], count: int, seed: int, workers: int, limit: float, failures: Path
) -> dict[str, object]:
    """Reads `count` damaged pictures; what became of them."""
    lanes = [Lane(range(k, count, workers), FORK.Array("d", 29, lock=False)) for k in range(workers)]
    begun = time.monotonic()
    for lane in lanes:
        _start(lane, files, seed, count, failures)
    while running := [lane for lane in lanes if lane.process is not None]:
        time.sleep(0.05)
        for lane in running:
            _watch(lane, files, seed, count, limit, failures)

    def total(what: int) -> float:
        return sum(lane.board[what] for lane in lanes)

    slowest = max(lanes, key=lambda lane: lane.board[SLOWEST]).board
    memory = [total(MEMORY + k) / max(1, total(READINGS + k)) for k in range(10)]
    return {
        "count": count,
        "seed": seed,
        "pictures": int(total(OK)),
        "refused": int(total(REFUSED)),
        "other_exceptions": int(total(OTHER)),
        "crashes": sum(lane.crashes for lane in lanes),
        f"over_{limit:g}_s": sum(lane.hangs for lane in lanes),
        "slowest_s": round(slowest[SLOWEST], 3),
        "slowest_number": int(slowest[SLOWEST_NUMBER]),
        "peak_memory_mb": round(max(lane.board[PEAK] for lane in lanes) / 1e6, 1),
        "memory_by_tenth_mb": [round(mean / 1e6, 1) for mean in memory],
        "seconds": round(time.monotonic() - begun, 1),
        "workers": workers,
        "files": len(files),
    }


def _start(lane: Lane, files: Sequence[bytes], seed: int, count: int, failures: Path) -> None:
    lane.board[STARTED] = 0
    lane.process = FORK.Process(target=work, args=(files, seed, lane.numbers, count, lane.board, failures), daemon=True)
    lane.process.start()


def _processor_time(process: ForkProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _watch(lane: Lane, files: Sequence[bytes], seed: int, count: int, limit: float, failures: Path) -> None:
    """Replaces a worker that died, or that has spent too long on one picture; it goes on after the culprit."""
    assert lane.process is not None
    started, number = lane.board[STARTED], int(lane.board[NUMBER])
    if lane.process.is_alive():
        busy = _processor_time(lane.process) - lane.board[CPU]
        if started <= 0 or (busy < limit and time.monotonic() - started < PATIENCE * limit):
            return
        lane.process.kill()
        lane.process.join()
        lane.hangs += 1
        keep(failures, damaged(files, seed, number), seed, number, f"took more than {limit:g} s")
    elif started == -1:
        lane.process = None
        return
    else:
        lane.crashes += 1
        keep(failures, damaged(files, seed, number), seed, number, f"the process died ({lane.process.exitcode})")
    lane.numbers = lane.numbers[lane.numbers.index(number) + 1 :]
    _start(lane, files, seed, count, failures)


def versions() -> dict[str, object]:
    libraries = {name: features.version(name) for name in ("jpg", "jpg_2000", "webp", "avif", "libtiff", "zlib")}
    names = {"python": platform.python_version(), "pillow": PIL.__version__, "numpy": np.__version__}
    return {"date": time.strftime("%Y-%m-%d"), **names, "libraries": libraries, "machine": platform.machine()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds-limit", type=float, default=5)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--real", type=Path, help="a folder of photographs to damage as well")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="where culprits are written")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    parser.add_argument("--number", type=int, help="read this one alone, here")
    options = parser.parse_args()
    files = corpus(options.real)
    if options.number is not None:
        print("a picture" if read(damaged(files, options.seed, options.number), options.number) else "refused")
        return 0
    result = fuzz(files, options.count, options.seed, options.workers, options.seconds_limit, options.failures)
    result |= versions()
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    clean = not (result["other_exceptions"] or result["crashes"] or result[f"over_{options.seconds_limit:g}_s"])
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
