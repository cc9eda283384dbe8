"""Reading pictures: every format and orientation, and every way a file can be broken."""

import contextlib
import io
import os
import pickle
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.pictures.making import (
    FILES,
    NOISE,
    UPRIGHT,
    attempt,
    chunk,
    encode,
    exif,
    pixels,
    png,
    png_bomb,
    refusal,
    with_segment,
)
from vitrail.errors import PictureError
from vitrail.pictures import as_picture, decode

LOSSLESS = ["png", "webp", "bmp", "tiff", "tiff lzw", "ppm"]


# ---- sources


@pytest.mark.parametrize("kind", LOSSLESS)
def test_every_kind_of_source_gives_the_same_pixels(kind: str, tmp_path: Path) -> None:
    data = FILES[kind]
    path = tmp_path / "picture"
    path.write_bytes(data)
    with open(path, "rb") as stream:
        stream.seek(5)  # a stream is read from its start
        sources = [path, str(path), data, bytearray(data), memoryview(data), io.BytesIO(data), stream]
        for source in sources:
            np.testing.assert_array_equal(pixels(decode(source)), np.asarray(NOISE))
        assert not stream.closed


def test_a_stream_that_cannot_seek_is_read() -> None:
    read, write = os.pipe()
    with open(read, "rb") as stream, open(write, "wb") as sink:
        sink.write(FILES["png"])
        sink.close()
        np.testing.assert_array_equal(pixels(decode(stream)), np.asarray(NOISE))


def test_a_text_stream_is_refused_in_one_line() -> None:
    with pytest.raises(PictureError):
        decode(io.StringIO("not bytes"))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", FILES)
def test_every_format_opens(kind: str) -> None:
    size = (37, 53) if kind == "jpeg with exif" else (53, 37)
    assert decode(FILES[kind]).size == size


@pytest.mark.parametrize("kind", FILES)
def test_no_file_stays_open(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    before = len(os.listdir("/proc/self/fd"))
    for data in (FILES[kind], FILES[kind][:150], FILES[kind][: len(FILES[kind]) // 2], b"text"):
        path.write_bytes(data)
        for policy in ("error", "fill"):
            with contextlib.suppress(PictureError):
                decode(path, truncated=policy)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_result_is_a_plain_picture_that_travels_between_processes() -> None:
    picture = decode(FILES["jpeg with exif"])
    assert type(picture) is Image.Image
    assert picture.info == {}
    assert not picture.getexif()
    np.testing.assert_array_equal(pixels(pickle.loads(pickle.dumps(picture))), pixels(picture))


@pytest.mark.parametrize("size", [(1, 1), (3000, 1), (1, 3000)])
def test_the_narrowest_pictures_are_pictures(size: tuple[int, int]) -> None:
    assert decode(encode(Image.new("RGB", size, (1, 2, 3)), "PNG")).size == size


# ---- orientation

ARROW = Image.fromarray(np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10)  # no two turns of it are equal


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_the_eight_orientations_are_turned_upright(kind: str, orientation: int) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(ARROW, kind, exif=exif(orientation), **options)
    np.testing.assert_array_equal(pixels(decode(data)), UPRIGHT[orientation](np.asarray(ARROW)))
    with Image.open(io.BytesIO(data)) as lazy:
        np.testing.assert_array_equal(pixels(as_picture(lazy)), UPRIGHT[orientation](np.asarray(ARROW)))


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_a_jpeg_is_turned_too_and_only_once(orientation: int) -> None:
    blocks = ARROW.resize((48, 32), Image.Resampling.NEAREST)
    turned = decode(encode(blocks, "JPEG", quality=100, subsampling=0, exif=exif(orientation)))
    expected = UPRIGHT[orientation](np.asarray(blocks)).astype(int)
    assert np.abs(pixels(turned).astype(int) - expected).max() < 12
    np.testing.assert_array_equal(pixels(as_picture(turned)), pixels(turned))


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"Exif\0\0", b"Exif\0\0II*\0\x08\0\0\0", b"Exif\0\0MM\0*\0\0\0\x08"])
)
def test_a_broken_exif_block_does_not_lose_the_picture(junk: bytes, start: bytes) -> None:
    plain = FILES["jpeg"]
    block = start + junk
    jpeg = with_segment(plain, 0xE1, block)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (jpeg, encode(NOISE, "PNG", exif=block), encode(NOISE, "WEBP", exif=block)):
            assert sorted(decode(data).size) == [37, 53]


# ---- refusals


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    def saved(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    assert "text.jpg: holds text" in refusal(saved("text.jpg", b"<html>404 Not Found</html>\n" * 100))
    assert "empty.png: is empty" in refusal(saved("empty.png", b""))
    assert "no known picture format" in refusal(saved("noise.png", bytes(range(128, 256)) * 20))
    assert "no known picture format" in refusal(saved("page.eps", b"%!PS-Adobe-3.0 EPSF-3.0\xc6\xd3" + bytes(64)))
    cut = refusal(saved("head.png", FILES["png"][:20]))
    assert "head.png: is truncated" in cut
    assert "fill" not in cut
    assert "its header is truncated" in refusal(saved("head.gif", FILES["gif"][:12]))
    assert "this is a folder" in refusal(tmp_path)
    assert "no such file" in refusal(tmp_path / "missing.jpg")
    assert "picture of 0 bytes: is empty" in refusal(b"")
    assert "null" in refusal("a\0b")
    assert "too long" in refusal("x" * 100_000)
    assert len(refusal("x" * 100_000)) < 400
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe or a device" in refusal(tmp_path / "pipe")
    assert refusal(b"", name="upload 3").startswith("upload 3: ")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "secret.png"
    path.write_bytes(FILES["png"])
    monkeypatch.setattr("builtins.open", denied)  # root may read anything
    assert "secret.png: reading it is not permitted" in refusal(path)


def test_names_with_newlines_and_stray_bytes_are_shown_escaped(tmp_path: Path) -> None:
    assert "two\\nlines\\x1b[31m.jpg" in refusal(tmp_path / "two\nlines\x1b[31m.jpg")
    raw = os.fsencode(tmp_path) + b"/caf\xe9.jpg"
    with open(raw, "wb") as file:
        file.write(b"text")
    assert "caf\\udce9.jpg: holds text" in refusal(os.fsdecode(raw))
    with open(raw, "rb") as stream:
        assert "caf\\udce9.jpg: holds text" in refusal(stream)


def test_a_bomb_is_refused_from_its_header_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_bomb(13_500, 13_500))
    assert path.stat().st_size < 60_000
    webp = tmp_path / "bomb.webp"
    webp.write_bytes(encode(Image.new("RGB", (9000, 9000)), "WEBP", lossless=True, method=0, quality=0))
    program = (
        "import resource, sys; from vitrail.pictures import decode; from vitrail.errors import PictureError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for path, limit in ((sys.argv[1], 178_956_970), (sys.argv[1], 10**6), (sys.argv[2], 10**7)):\n"
        "    try: decode(path, max_pixels=limit)\n"
        "    except PictureError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "assert 'torch' not in sys.modules"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, path, webp], capture_output=True, text=True, check=True
    )
    first, second, third, growth = ran.stdout.splitlines()
    assert "178956970 pixels" in first
    assert "1000000 pixels" in second
    assert "9000 x 9000" in third
    assert int(growth) < 20_000
    assert not ran.stderr


def test_our_limit_is_the_rule_and_pillow_does_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Image.new("L", (400, 300)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(data).size == (400, 300)
        assert decode(data, max_pixels=120_000).size == (400, 300)
    assert "400 x 300 is more than 119999 pixels" in refusal(data, max_pixels=119_999)
    with pytest.raises(PictureError, match="more than 119999 pixels"):
        as_picture(Image.new("L", (400, 300)), max_pixels=119_999)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    assert "PIL.Image.MAX_IMAGE_PIXELS" in refusal(data)


def test_a_picture_without_pixels_is_refused() -> None:
    refusal(png(0, 5, 8, 2, chunk(b"IDAT", zlib.compress(b""))))
    with pytest.raises(PictureError, match="0 x 5 holds no pixels"):
        as_picture(Image.new("RGB", (0, 5)))


def test_the_filters_of_warnings_are_left_as_they_were() -> None:
    with warnings.catch_warnings():
        before = list(warnings.filters)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(decode, [FILES["png"]] * 64))
        assert list(warnings.filters) == before


# ---- anything at all


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(FILES)), st.sampled_from(["error", "fill"]), st.data())
def test_a_damaged_file_is_a_picture_or_one_error_and_never_a_warning(
    kind: str, policy: str, data: st.DataObject
) -> None:
    damaged = bytearray(FILES[kind])
    end = len(damaged) - 1
    where = st.integers(0, end) if data.draw(st.booleans()) else st.integers(0, min(200, end))
    for position, value in data.draw(st.lists(st.tuples(where, st.integers(0, 255)), min_size=1, max_size=12)):
        damaged[position] = value
    if data.draw(st.booleans()):
        cut, more = data.draw(where), data.draw(st.binary(max_size=20))
        damaged[cut:cut] = more
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = attempt(bytes(damaged), truncated=policy, max_pixels=10**7)
    assert result.isprintable() if isinstance(result, str) else result.mode == "RGB"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(sorted(FILES)))
def test_random_bytes_are_one_error(junk: bytes, kind: str) -> None:
    for data in (junk, FILES[kind][:16] + junk):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = attempt(data, max_pixels=10**6)
        assert result.isprintable() if isinstance(result, str) else result.mode == "RGB"
