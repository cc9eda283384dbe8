"""Files that end early: refused, or kept as far as they go."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageFile

from tests.pictures.making import FILES, NOISE, attempt, encode, exif, pixels, refusal
from vitrail.errors import PictureError
from vitrail.pictures import decode


@pytest.mark.parametrize("kind", FILES)
def test_a_file_cut_anywhere_is_a_picture_or_one_error(kind: str) -> None:
    data = FILES[kind]
    cuts = {*range(0, len(data), max(1, len(data) // 60)), *range(len(data) - 6, len(data))}
    for cut in sorted(cuts):
        for policy in ("error", "fill"):
            result = attempt(data[:cut], truncated=policy)
            if isinstance(result, str):
                assert any(word in result for word in ("truncated", "empty", "holds text")), (cut, result)
            else:
                assert sorted(result.size) == [37, 53]


@pytest.mark.parametrize("kind", ["png", "tiff", "ppm"])
def test_filling_keeps_the_upper_part_exactly(kind: str) -> None:
    half = FILES[kind][: len(FILES[kind]) // 2]
    assert "is truncated" in refusal(half)
    assert 'truncated="fill"' in refusal(half)
    kept = pixels(decode(half, truncated="fill"))
    np.testing.assert_array_equal(kept[:14], np.asarray(NOISE)[:14])
    assert (kept[-10:] == 0).all()


def test_filling_a_jpeg_gives_what_pillow_gives_with_its_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("jpeg", "progressive", "mpo"):
        half = FILES[kind][: len(FILES["jpeg"]) // 2]
        ours = pixels(decode(half, truncated="fill"))
        with monkeypatch.context() as patch:
            patch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
            theirs = np.asarray(Image.open(io.BytesIO(half)).convert("RGB"))
        np.testing.assert_array_equal(ours, theirs)


def test_a_cut_tiff_with_an_orientation_is_turned_as_well() -> None:
    data = encode(NOISE, "TIFF", exif=exif(6))
    with Image.open(io.BytesIO(data)) as picture:
        start = picture.tile[0].offset
    kept = pixels(decode(data[: start + 53 * 3 * 20], truncated="fill"))
    np.testing.assert_array_equal(np.rot90(kept)[:15], np.asarray(NOISE)[:15])


def test_nothing_is_made_up_where_nothing_could_be_decoded() -> None:
    start = FILES["png"].index(b"IDAT") + 6
    assert "is truncated" in refusal(FILES["png"][:start], truncated="fill")


def test_an_unknown_policy_is_an_error() -> None:
    with pytest.raises(ValueError, match='neither "error" nor "fill"'):
        decode(FILES["png"], truncated="ignore")  # type: ignore[arg-type]


def test_threads_with_both_policies_do_not_disturb_each_other() -> None:
    whole, half = FILES["jpeg"], FILES["jpeg"][: len(FILES["jpeg"]) // 2]
    expected = {data: pixels(decode(data, truncated="fill")).tobytes() for data in (whole, half)}
    start = threading.Barrier(8)

    def work(index: int) -> None:
        start.wait()
        for step in range(60):
            if (index + step) % 3 == 0:
                with pytest.raises(PictureError):
                    decode(half)
            else:
                data = half if (index + step) % 3 == 1 else whole
                assert pixels(decode(data, truncated="fill")).tobytes() == expected[data]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
