"""Folders and patterns: the same files as Python's own pathlib and glob find, in one order, one folder at a time."""

import glob
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vitrail.errors import DataError
from vitrail.shipping.bulk.walking import match, walk

NAMES = st.sampled_from(["a", "b.jpg", "a.jpg", "a-b", "B", "[x].jpg", "*.jpg", "é", "new\nline", "sub dir", ".hidden"])
TREES = st.sets(st.lists(NAMES, min_size=1, max_size=4).map(tuple), max_size=12)
STEPS = st.sampled_from(["*", "**", "a", "*.jpg", "a*", "[[]x].jpg", "[*].jpg", "?", "sub dir", "B", ".*", "[ab].jpg"])


def plant(root: Path, tree: set[tuple[str, ...]]) -> None:
    for path in sorted(tree, key=len, reverse=True):
        place = root.joinpath(*path)
        if any(parent.is_file() for parent in place.parents) or place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"")


@given(TREES)
@settings(max_examples=40, deadline=None)
def test_a_walk_finds_the_files_that_pathlib_finds_in_its_order(tmp_path_factory, tree) -> None:
    root = tmp_path_factory.mktemp("tree")
    plant(root, tree)
    expected = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
    assert list(walk(str(root))) == expected


@example({("a",), ("B", "a")}, ["**", "*", "**"])
@given(TREES, st.lists(STEPS, min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_a_pattern_finds_the_files_that_glob_finds_each_once(tmp_path_factory, tree, steps) -> None:
    root = tmp_path_factory.mktemp("tree")
    plant(root, tree)
    pattern = os.path.join(glob.escape(str(root)), *steps)
    found = [path for path in match(pattern) if os.path.isfile(path)]
    assert sorted(found) == sorted({path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)})
    assert found == list(match(pattern)) or "**" not in steps  # from ** on, files alone


def test_a_pattern_without_a_folder_looks_here(tmp_path: Path, monkeypatch) -> None:
    plant(tmp_path, {("a.jpg",), ("sub", "b.jpg")})
    monkeypatch.chdir(tmp_path)
    assert list(match("*.jpg")) == ["a.jpg"]
    assert list(match("**/*.jpg")) == ["a.jpg", "sub/b.jpg"]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    plant(tmp_path, {("real", "a.jpg"), ("real", "deep", "b.jpg")})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "real" / "nowhere.jpg").symlink_to(tmp_path / "absent")
    assert list(walk(str(tmp_path))) == ["link/a.jpg", "link/deep/b.jpg", "real/a.jpg", "real/deep/b.jpg"]


def test_a_pipe_is_not_listed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert list(walk(str(tmp_path))) == []


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def closed(folder):
        if str(folder).rstrip("/").endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataError, match=r"closed/?: this folder cannot be read \(Permission denied\)"):
        list(walk(str(tmp_path)))
