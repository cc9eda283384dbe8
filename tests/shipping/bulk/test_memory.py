"""Memory does not grow with the number of pictures."""

import faulthandler
import hashlib
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

import vitrail
from tests.shipping.bulk.measuring import measure

MOST = 1_500_000_000


def peak_of(classifier, folder: Path, times: int, out: Path) -> int:
    """Bytes that Python held at once, beyond what it held before."""
    tracemalloc.start()
    try:
        settings = {"batch_size": 50, "rows_per_part": 100, "workers": 0, "engine": "torch"}
        report = vitrail.predict_many(classifier, [folder] * times, out / "part-*.csv", **settings)
        assert report.rows == 300 * times
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_ten_times_the_pictures_take_no_more_memory(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(300)
    peak_of(classifier, folder, 1, tmp_path / "first")  # what is imported and kept once
    few = peak_of(classifier, folder, 1, tmp_path / "few")
    many = peak_of(classifier, folder, 10, tmp_path / "many")
    assert many - few < 100_000  # 37 bytes for each picture more; its row alone has 300


@pytest.mark.slow
def test_a_million_pictures_take_less_than_a_gigabyte_and_a_half(model: Path, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # it may take longer than a test that hangs is given
    rng = np.random.default_rng(0)
    for folder in range(1000):
        place = tmp_path / "photos" / f"{folder:03}"
        place.mkdir(parents=True)
        for number, pixels in enumerate(rng.integers(0, 256, (1000, 192), dtype=np.uint8)):
            with open(place / f"{number:03}.ppm", "wb") as file:
                file.write(b"P6 8 8 255\n" + pixels.tobytes())
    command = [sys.executable, "-m", "vitrail", "predict", model, tmp_path / "photos"]
    command += ["--out", tmp_path / "o" / "part-*.parquet", "--engine", "torch", "--batch-size", 256]
    measured = measure(list(map(str, command)), tmp_path, every=1.0)
    print(f"{measured.peak / 1e6:.0f} MB, {measured.seconds:.0f} s, {measured.out}")
    assert measured.code == 0
    assert measured.peak < MOST
    seen = np.zeros(1_000_000, np.int64)
    digest = hashlib.sha256()
    for name in sorted(os.listdir(tmp_path / "o")):
        if name.startswith("part-"):
            np.add.at(seen, parquet.read_table(tmp_path / "o" / name)["index"].to_numpy(), 1)
            digest.update(f"{hashlib.sha256((tmp_path / 'o' / name).read_bytes()).hexdigest()}  {name}\n".encode())
    assert (seen == 1).all()
    assert digest.hexdigest() in measured.out
