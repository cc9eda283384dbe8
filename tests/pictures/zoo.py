"""A folder with every odd and broken file we could think of, and what each must become."""

import os
from functools import cache
from pathlib import Path

import numpy as np

from tests.pictures.making import FILES, NOISE
from tests.pictures.specimen import Specimen
from tests.pictures.zoo_broken import broken
from tests.pictures.zoo_good import good


@cache
def specimens() -> tuple[Specimen, ...]:
    """Everything that is a file with contents."""
    return *good(), *broken()


def make_zoo(folder: Path) -> dict[str, np.ndarray | None]:
    """Writes the zoo: names within the folder, with the pixels to expect (to within `tolerance(name)` grey levels) or
    None for what must be refused."""
    expected = {}
    for specimen in specimens():
        (folder / specimen.name).write_bytes(specimen.data)
        expected[specimen.name] = specimen.expected
    return expected | _odd_names(folder) | _odd_paths(folder)


def tolerance(name: str) -> int:
    """How many grey levels a file of the zoo may differ from what is expected: none, but for lossy formats."""
    return next((specimen.tolerance for specimen in specimens() if specimen.name == name), 0)


def _odd_names(folder: Path) -> dict[str, np.ndarray | None]:
    names = [
        "two\nlines.png",
        " spaces .png",
        "-rf.png",
        "ümläut 図.png",
        "x" * 240 + ".png",
        os.fsdecode(b"caf\xe9.png"),
    ]
    for name in names:
        (folder / name).write_bytes(FILES["png"])
    return dict.fromkeys(names, np.asarray(NOISE))


def _odd_paths(folder: Path) -> dict[str, np.ndarray | None]:
    """What has the name of a picture and is something else. Root may read what nobody else may."""
    (folder / "secret.png").write_bytes(FILES["png"])
    (folder / "secret.png").chmod(0)
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "pipe.jpg")
    (folder / "link.png").symlink_to("no suffix")
    for name, target in (
        ("dangling.jpg", "nowhere.jpg"),
        ("loop.jpg", "other loop.jpg"),
        ("other loop.jpg", "loop.jpg"),
        ("itself.jpg", "itself.jpg"),
        ("endless.jpg", "/dev/zero"),
        ("nothing.jpg", "/dev/null"),
    ):
        (folder / name).symlink_to(target)
    refused = ("folder.jpg", "pipe.jpg", "dangling.jpg", "loop.jpg", "other loop.jpg", "itself.jpg", "endless.jpg")
    linked = next(specimen.expected for specimen in specimens() if specimen.name == "no suffix")
    secret = np.asarray(NOISE) if os.geteuid() == 0 else None
    return {"link.png": linked, "secret.png": secret, "nothing.jpg": None, **dict.fromkeys(refused)}
