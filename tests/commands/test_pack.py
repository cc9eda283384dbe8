"""`vitrail pack` as a user types it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import main
from vitrail.data.shards import from_shards


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("train/rose/1.jpg", "train/tulip/2.jpg", "val/rose/3.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "train" / "rose" / "bad.jpg").write_text("not a picture")
    return tmp_path / "photos"


def test_it_says_what_it_wrote(photos: Path, tmp_path: Path, capsys) -> None:
    assert main(["pack", str(photos), str(tmp_path / "packed"), "--resize", "32", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "3 pictures (train 2, val 1) of 2 classes in 2 shards" in out
    assert "3 resized (shorter side" in out
    assert "unreadable and left out: 1" in out
    assert len(from_shards(tmp_path / "packed")) == 3


def test_json_is_one_object_and_nothing_else(photos: Path, tmp_path: Path, capsys) -> None:
    assert main(["pack", str(photos), str(tmp_path / "packed"), "--seed", "4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["pictures"] == 3
    assert said["bad"] == 1
    assert said["seed"] == 4
    assert said["splits"] == {"train": 2, "val": 1}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--strict"], 1, "bad.jpg"),
        (["--resize", "0"], 1, "shorter side"),
        (["--resize", "small"], 2, "resize"),
    ],
)
def test_what_goes_wrong_is_one_line(photos: Path, tmp_path: Path, capsys, arguments, code, says) -> None:
    assert main(["pack", str(photos), str(tmp_path / "packed"), *arguments]) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "packed").exists()


def test_help_has_an_example(capsys) -> None:
    assert main(["pack", "--help"]) == 0
    assert "Example: vitrail pack photos/" in capsys.readouterr().out


def test_on_a_terminal_there_is_a_bar(photos: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = [sys.executable, "-m", "vitrail", "pack", str(photos), str(tmp_path / "packed")]
    environment = {**os.environ, "TERM": "xterm-256color"}
    running = subprocess.Popen(arguments, stderr=theirs, stdout=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 10_000):
            shown += part
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    assert running.wait(timeout=60) == 0
    assert "pictures" in shown.decode()
