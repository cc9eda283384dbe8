"""Bulk prediction over a Ray of this machine: the same bytes, and a bad picture costs its own row."""

import importlib.util
import sys
from pathlib import Path

import pytest

import vitrail
from tests.shipping.bulk.conftest import hashes, left_behind
from tests.shipping.bulk.test_predict import rows_in
from vitrail.errors import VitrailError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")

SETTINGS = {"batch_size": 8, "rows_per_part": 20, "top": 2, "features": True, "engine": "torch"}


def test_ray_goes_on_with_a_job_and_writes_the_same_bytes(classifier, pictures, tmp_path: Path) -> None:
    folder, out = pictures(70), tmp_path / "o"
    (folder / "000" / "03.ppm").write_bytes(b"P6 8 8 255\nshort")
    (folder / "001" / "10.ppm").write_text("not a picture")
    vitrail.predict_many(classifier, [folder], out / "part-*.jsonl", workers=0, **SETTINGS)
    before = hashes(out)
    for number in (0, 2, 3):
        (out / f"part-0000{number}.jsonl").unlink()
    report = vitrail.predict_many(classifier, [folder], out / "part-*.jsonl", ray="local", **SETTINGS)
    assert not sys.modules["ray"].is_initialized()
    assert (report.rows, report.continued, report.unreadable) == (70, 20, 2)
    assert hashes(out) == before
    assert [k for k, row in enumerate(rows_in(out)) if row["error"]] == [3, 60]
    assert left_behind(out) == []


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "no.such.host.invalid:6379"])
def test_a_cluster_that_is_not_there_is_said_in_one_line(address: str, classifier, pictures, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=f"there is no Ray cluster at {address}: check the address"):
        vitrail.predict_many(classifier, [pictures(3)], tmp_path / "o.csv", ray=address, workers=0)
