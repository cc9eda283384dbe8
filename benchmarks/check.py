"""How well `vitrail check` finds changed copies of pictures, and how quick it is.

    uv run --all-extras python benchmarks/check.py FOLDER [--files 10000] [--out benchmarks/check.json]

FOLDER holds different pictures, <class>/*.jpg. Each is changed in every way below and compared with its original
(found, of all), for several thresholds; and all originals with each other (pairs that are wrongly found). Then changed
copies are written as that many files, and `vitrail.check` is timed over them, one process for each processor.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import resource
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance

import vitrail
from vitrail.checking.duplicates import BOTH, NEAR
from vitrail.checking.looking import look
from vitrail.checking.near import close_pairs
from vitrail.checking.records import RECORD
from vitrail.pictures import decode

THRESHOLDS = ((6, 12), (8, 16), (10, 20), (12, 24), (14, 28))
DRAWS = random.Random(0)


def encoded(picture: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def resized(picture: Image.Image, factor: float) -> Image.Image:
    return picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.Resampling.BICUBIC)


def cropped(picture: Image.Image, part: float) -> Image.Image:
    """Without `part` of its width and of its height, taken off the two sides in unequal shares."""
    (left, right), (top, bottom) = (
        (share := DRAWS.uniform(0, part) * side, side - (part * side - share)) for side in picture.size
    )
    return picture.crop((round(left), round(top), round(right), round(bottom)))


def stamped(picture: Image.Image) -> Image.Image:
    """With a white field in a corner, a fiftieth of the picture."""
    copy, (width, height) = picture.copy(), picture.size
    ImageDraw.Draw(copy).rectangle((int(0.8 * width), int(0.9 * height), width, height), fill="white")
    return copy


CHANGES = {
    "JPEG, quality 30": lambda p: encoded(p, quality=30),
    "WebP, quality 40": lambda p: encoded(p, "WEBP", quality=40),
    "PNG": lambda p: encoded(p, "PNG"),
    "half the size": lambda p: encoded(resized(p, 0.5), quality=85),
    "a quarter": lambda p: encoded(resized(p, 0.25), quality=85),
    "twice the size": lambda p: encoded(resized(p, 2), quality=85),
    "squashed to 224 x 224": lambda p: encoded(p.resize((224, 224), Image.Resampling.BICUBIC), quality=85),
    "brightness x 0.8": lambda p: encoded(ImageEnhance.Brightness(p).enhance(0.8)),
    "brightness x 1.1": lambda p: encoded(ImageEnhance.Brightness(p).enhance(1.1)),
    "brightness x 1.3": lambda p: encoded(ImageEnhance.Brightness(p).enhance(1.3)),
    "contrast x 1.2": lambda p: encoded(ImageEnhance.Contrast(p).enhance(1.2)),
    "grey": lambda p: encoded(p.convert("L")),
    "cropped by 2%": lambda p: encoded(cropped(p, 0.02)),
    "cropped by 5%": lambda p: encoded(cropped(p, 0.05)),
    "cropped by 10%": lambda p: encoded(cropped(p, 0.10)),
    "a stamp in the corner": lambda p: encoded(stamped(p)),
    "mirrored": lambda p: encoded(p.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
}


def hashes(files: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    records = np.zeros(len(files), RECORD)
    for record, file in zip(records, files, strict=True):
        look(file, "picture", record)
    return records["phash"], records["dhash"]


def measure_finding(pictures: list[Image.Image], originals: list[bytes]) -> dict[str, object]:
    phash, dhash = hashes(originals)
    found = {}
    for name, change in CHANGES.items():
        other_p, other_d = hashes([change(picture) for picture in pictures])
        bits = np.bitwise_count(phash ^ other_p).astype(int)
        both = bits + np.bitwise_count(dhash ^ other_d)
        found[name] = [round(float(((bits <= near) & (both <= sum_)).mean()), 4) for near, sum_ in THRESHOLDS]
        print(f"{name:24s}", *(f"{value:7.1%}" for value in found[name]), flush=True)
    wrong = []
    for near, sum_ in THRESHOLDS:
        pairs = 0
        for i, j in close_pairs(phash, near):
            both = np.bitwise_count(phash[i] ^ phash[j]).astype(int) + np.bitwise_count(dhash[i] ^ dhash[j])
            pairs += int((both <= sum_).sum())
        wrong.append(pairs)
    print("pairs of different pictures", wrong)
    return {"thresholds": THRESHOLDS, "found": found, "wrong_pairs": wrong, "pairs": len(phash) * (len(phash) - 1) // 2}


def processor_seconds() -> float:
    """Of this process and those it started: hardly longer when others use the machine too."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measure_speed(pictures: list[Image.Image], files: int, folder: Path) -> dict[str, object]:
    """Every file is another crop of another quality, so that none is read from a cache of decoded pictures."""
    size = 0
    for k in range(files):
        content = encoded(cropped(pictures[k % len(pictures)], 0.05), quality=DRAWS.randint(60, 95))
        path = folder / f"class{k % 10}" / f"{k}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        size += len(content)
    start, before = time.perf_counter(), processor_seconds()
    report = vitrail.check(folder)
    seconds, busy = time.perf_counter() - start, processor_seconds() - before
    rate = files / seconds
    print(f"{files} files of {size / files / 1000:.1f} kB: {seconds:.1f} s, {rate:.0f}/s, {busy:.1f} s of processors")
    rng = np.random.default_rng(0)
    real = np.tile(report.records["phash"], 100_000 // files + 1)[:100_000].copy()
    for _ in range(14):  # as clumped as real hashes are, and all different
        real ^= np.uint64(1) << rng.integers(0, 64, len(real)).astype(np.uint64)
    start = time.perf_counter()
    for _ in close_pairs(np.unique(real), NEAR):
        pass
    search = time.perf_counter() - start
    print(f"pairs among 100,000 hashes: {search:.1f} s")
    return {
        "files": files,
        "kilobytes": size / files / 1000,
        "seconds": seconds,
        "per_second": rate,
        "processor_seconds": busy,
        "search_100k": search,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    paths = sorted(path for path in arguments.folder.rglob("*") if path.is_file())
    originals = [path.read_bytes() for path in paths]
    pictures = [decode(content) for content in originals]
    result: dict[str, object] = {
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors",
        "load_at_start": os.getloadavg()[0],
        "used": (NEAR, BOTH),
        "finding": measure_finding(pictures, originals),
    }
    with tempfile.TemporaryDirectory() as folder:
        result["speed"] = measure_speed(pictures, arguments.files, Path(folder))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
