"""Odd and broken files, more than two hundred: the right pixels, or one line that names the file."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.pictures.making import NOISE
from tests.pictures.zoo import make_zoo, specimens, tolerance
from vitrail.errors import PictureError
from vitrail.pictures import Preprocessing, as_picture, decode, decode_at

GOOD = {specimen.name: specimen for specimen in specimens() if specimen.expected is not None}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray | None]]:
    folder = tmp_path_factory.mktemp("zoo")
    return folder, make_zoo(folder)


def test_the_zoo_is_large() -> None:
    names = [specimen.name for specimen in specimens()]
    assert len(names) == len(set(names)) > 200
    assert sum(specimen.expected is None for specimen in specimens()) > 60


def read(reader: Callable[[Path], Any], path: Path) -> np.ndarray | str:
    """The pixels, or the line that refuses them."""
    try:
        return np.asarray(reader(path))
    except PictureError as error:
        return str(error)


@pytest.mark.parametrize("reader", [decode, as_picture, lambda path: decode_at(path, lambda *_: 1.0)[0]])
def test_every_file_gives_its_pixels_or_one_line_with_its_name(
    zoo: tuple[Path, dict[str, np.ndarray | None]], reader: Callable[[Path], Image.Image]
) -> None:
    folder, expected = zoo
    for name, wanted in expected.items():
        found = read(reader, folder / name)
        if wanted is None:
            assert isinstance(found, str), f"{name} was not refused"
            assert len(found.splitlines()) == 1
            assert found.isprintable()
            assert name in found
        else:
            assert isinstance(found, np.ndarray), found
            assert found.shape == wanted.shape, name
            assert np.abs(found - wanted.astype(float)).max() <= tolerance(name), name


def test_a_path_bytes_and_an_open_file_give_equal_pixels_of_every_file(
    zoo: tuple[Path, dict[str, np.ndarray | None]],
) -> None:
    folder, _ = zoo
    preprocessing = Preprocessing(12)
    for name in GOOD:
        wanted = preprocessing.pixels(folder / name)
        with open(folder / name, "rb") as file:
            for source in (GOOD[name].data, file, str(folder / name)):
                np.testing.assert_array_equal(preprocessing.pixels(source), wanted)


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("name", ["wide.png", "high.tiff", "wide.jpg", "one pixel.png", "4-2-0 of 1 x 1.jpg"])
def test_the_longest_and_the_least_pictures_go_through_every_fit(name: str, fit: str) -> None:
    pixels = Preprocessing(32, fit).pixels(GOOD[name].data)  # type: ignore[arg-type]
    assert pixels.shape == (32, 32, 3)
    if name == "one pixel.png":
        assert (pixels[16, 16] == [7, 8, 9]).all()
    if name == "wide.jpg":
        assert np.abs(pixels[15:17, 16].astype(int) - [100, 150, 200]).max(-1).min() <= 8


def test_the_whole_zoo_is_read_in_little_memory(zoo: tuple[Path, dict[str, np.ndarray | None]]) -> None:
    """No good file of the zoo holds more than 65,536 pixels: 200 MB above what the interpreter takes is enough for all
    of it, and too little for any of the bombs."""
    program = (
        "import os, resource, sys\n"
        "from vitrail.errors import PictureError\n"
        "from vitrail.pictures import decode\n"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + 200_000_000,) * 2)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in sorted(os.listdir(sys.argv[1])):\n"
        "    try: decode(os.path.join(sys.argv[1], name))\n"
        "    except PictureError as error: assert 'memory' not in str(error), error\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", program, zoo[0]], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 60_000  # KiB


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; the zoo itself tests it otherwise")
def test_what_one_may_not_read_is_refused_by_name(zoo: tuple[Path, dict[str, np.ndarray | None]]) -> None:
    program = (
        "import os, sys\n"
        "from vitrail.errors import PictureError\n"
        "from vitrail.pictures import decode\n"
        "file = os.open(sys.argv[1], os.O_PATH)\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: decode(f'/proc/self/fd/{file}')\n"
        "except PictureError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, zoo[0] / "secret.png"], capture_output=True, text=True)
    assert "reading it is not permitted" in ran.stdout, ran.stderr


def test_a_wrong_checksum_of_a_comment_is_forgiven_and_transparency_kept() -> None:
    """The remarks of a PNG may be dropped; what concerns its pixels may not."""
    name = "palette with a transparent index.png"
    plain = GOOD[name].data
    comment = b"\0\0\0\6tEXta\0text\0\0\0\0"
    for where in (33, len(plain) - 12):
        damaged = plain[:where] + comment + plain[where:]
        np.testing.assert_array_equal(np.asarray(decode(damaged)), GOOD[name].expected)


def test_the_expectations_are_not_all_alike() -> None:
    assert not np.array_equal(GOOD["orientation 6.png"].expected, GOOD["orientation 8.png"].expected)
    assert Image.fromarray(GOOD["orientation 1.png"].expected).size != NOISE.size
