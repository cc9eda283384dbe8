"""Damaged pictures by the thousand, in processes that are watched; the long form is benchmarks/fuzz_decode.py."""

import os
import random
import time
from pathlib import Path

import pytest

from benchmarks import fuzz_decode
from benchmarks.mutations import MUTATIONS, Mutation, mutate
from vitrail.errors import PictureError
from vitrail.pictures import decode


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return fuzz_decode.corpus()


def test_damaged_pictures_are_read_or_refused_and_nothing_else(tmp_path: Path, files: list[bytes]) -> None:
    result = fuzz_decode.fuzz(files, 1500, seed=1, workers=2, limit=5, failures=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert (result["other_exceptions"], result["crashes"], result["over_5_s"]) == (0, 0, 0)
    assert result["pictures"] + result["refused"] == 1500
    assert result["pictures"] > 150  # the damage is not so great that nothing is tested
    memory = result["memory_by_tenth_mb"]
    assert memory[-1] < memory[0] + 60


def test_a_number_stands_for_its_damage(files: list[bytes]) -> None:
    for number in range(50):
        assert fuzz_decode.damaged(files, 0, number) == fuzz_decode.damaged(files, 0, number)
    assert len({fuzz_decode.damaged(files, 0, number) for number in range(50)}) > 45
    assert fuzz_decode.damaged(files, 0, 7) != fuzz_decode.damaged(files, 1, 7)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_kind_of_damage_does_some(mutation: Mutation, files: list[bytes]) -> None:
    rng = random.Random(0)
    plain = files[0]
    changed = 0
    for _ in range(20):
        data = bytearray(plain)
        mutation(data, rng, [plain, b"another"])
        changed += data != plain
    assert changed >= 10
    assert mutate(b"", rng, [plain]) == b""


def test_the_watchdog_counts_crashes_hangs_and_strange_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def troubled(data: bytes, number: int) -> bool:
        if number == 3:
            os._exit(11)
        if number == 8:
            time.sleep(60)
        if number == 12:
            raise ZeroDivisionError
        return True

    monkeypatch.setattr(fuzz_decode, "read", troubled)
    result = fuzz_decode.fuzz([b"GIF89a" * 10], 20, seed=0, workers=2, limit=0.5, failures=tmp_path)
    assert (result["crashes"], result["over_0.5_s"], result["other_exceptions"]) == (1, 1, 1)
    assert result["pictures"] == 17
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-12", "0-3", "0-8"]
    assert (tmp_path / "0-3").read_bytes() == fuzz_decode.damaged([b"GIF89a" * 10], 0, 3)


# ---- what the long form found


def refusal(data: bytes) -> str:
    with pytest.raises(PictureError) as caught:
        decode(data, truncated="fill")
    return str(caught.value)


def test_a_header_that_promises_more_than_the_file_can_hold_is_refused_at_once() -> None:
    jpeg = fuzz_decode.FILES["jpeg"]
    size = jpeg.index(b"\xff\xc0") + 5
    begun = time.monotonic()
    assert "10000 x 10000 pixels in" in refusal(jpeg[:size] + b"\x27\x10\x27\x10" + jpeg[size + 4 :])
    bmp = fuzz_decode.FILES["bmp"]
    assert "12289 x 12289 pixels in" in refusal(bmp[:18] + b"\x01\x30\0\0" * 2 + bmp[26:])
    assert "is longer than 1048576" in refusal(bmp[:18] + b"\1\0\0\0\0\0\0\2" + bmp[26:])
    assert time.monotonic() - begun < 1
