"""Where the members of a tar archive lie, against Python's tarfile and GNU tar."""

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.data.tars import BLOCK, Member, Window, read_members
from vitrail.errors import DataError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def members_of(content: bytes) -> list[Member]:
    return list(read_members(Window(lambda start, end: content[start:end], len(content)), "x.tar"))


def tarfile_says(content: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(content), errors="surrogateescape") as tar:
        return [Member(os.fsencode(m.name), m.offset_data, m.size) for m in tar if m.isreg() and not m.issparse()]


def archive(files: list[tuple[str, bytes]], form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


name_bytes = st.binary(min_size=1, max_size=300).filter(lambda b: b"\0" not in b and b[:1] != b"/" and b[-1:] != b"/")
names = st.one_of(
    name_bytes.map(os.fsdecode),
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=120),
    st.integers(90, 270).map(lambda n: "long/" * (n // 10) + "x" * (n % 10) + ".jpg"),
)


@pytest.mark.parametrize("form", ["gnu", "pax"])
@given(files=st.lists(st.tuples(names, st.binary(max_size=2000)), max_size=6))
def test_members_are_those_of_tarfile_for_any_names_and_sizes(form: str, files: list[tuple[str, bytes]]) -> None:
    content = archive(files, FORMATS[form])
    found = members_of(content)
    assert found == tarfile_says(content)
    assert [content[m.offset : m.offset + m.size] for m in found] == [data for _, data in files]
    assert [m.name for m in found] == [os.fsencode(name) for name, _ in files]


@given(
    files=st.lists(
        st.tuples(st.from_regex(r"([a-z]{1,40}/){0,5}[a-z]{1,40}\.jpg", fullmatch=True), st.binary(max_size=1100)),
        max_size=5,
    )
)
def test_ustar_names_are_joined_from_their_two_fields(files: list[tuple[str, bytes]]) -> None:
    content = archive(files, tarfile.USTAR_FORMAT)
    assert members_of(content) == tarfile_says(content)


@pytest.mark.parametrize("form", FORMATS)
def test_links_folders_and_devices_are_passed_over(form: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[form]) as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f"odd-{kind.decode()}")
            info.type, info.linkname = kind, "t" * 150 if form != "ustar" else "t"
            tar.addfile(info)
        info = tarfile.TarInfo("real.jpg")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    assert [m.name for m in members_of(buffer.getvalue())] == [b"real.jpg"]
    assert members_of(buffer.getvalue()) == tarfile_says(buffer.getvalue())


def test_sizes_beyond_eight_gibibytes_are_read_in_both_dialects() -> None:
    size = 9 * 2**30
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("huge.tif")
        info.size = size
        head = info.tobuf(form)
        content = head + bytes(1024)
        window = Window(lambda start, end, content=content: content[start:end], len(head) + size + 1024)
        assert next(read_members(window, "x.tar")) == Member(b"huge.tif", len(head), size)


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar command")
@pytest.mark.parametrize("form", ["ustar", "gnu", "posix", "v7", "oldgnu"])
def test_archives_of_gnu_tar_are_read(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "class a").mkdir(parents=True)
    deep = folder / ("d" * 60) / ("e" * 60)
    if form != "v7":
        deep.mkdir(parents=True)
        (deep / "long.jpg").write_bytes(b"deep")
    (folder / "class a" / "one.jpg").write_bytes(os.urandom(3000))
    (folder / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"latin")
    (folder / "empty.cls").write_bytes(b"")
    (folder / "link.jpg").symlink_to("empty.cls")
    with (folder / "sparse.bin").open("wb") as file:
        for at in range(0, 40 * 2**16, 2**16):  # many holes: the map does not fit into the header
            file.seek(at)
            file.write(b"data")
        file.truncate(2**22)
    (folder / "after.jpg").write_bytes(b"after the sparse file")
    path = tmp_path / "x.tar"
    sparse = ["--sparse"] if form in ("gnu", "posix", "oldgnu") else []
    subprocess.run(["tar", f"--format={form}", *sparse, "-cf", path, "-C", folder, "."], check=True)
    content = path.read_bytes()
    found = members_of(content)
    assert found == tarfile_says(content)
    expected = {p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}
    if sparse:
        expected.remove(folder / "sparse.bin")
    assert {folder / os.fsdecode(m.name) for m in found} == expected
    for member in found:
        data = content[member.offset : member.offset + member.size]
        assert data == (folder / os.fsdecode(member.name)).read_bytes()


FILES = [("a/one.jpg", b"1" * 700), ("a/" + "two" * 60 + ".jpg", b"2" * 1300), ("three.cls", b"3")]


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_an_archive_cut_anywhere_gives_whole_members_then_one_clear_error(form: str) -> None:
    content = archive(FILES, FORMATS[form])
    members = members_of(content)
    ends = {m.offset + -(-m.size // BLOCK) * BLOCK for m in members}
    for cut in set(range(1, max(ends), 37)) - ends:
        whole = content[:cut]
        with pytest.raises(DataError, match=r"^x\.tar: at byte [\d,]+ .*truncated") as caught:
            members_of(whole)
        assert "\n" not in str(caught.value)


@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_gives_members_or_one_line(at: int, value: int) -> None:
    content = bytearray(archive(FILES, tarfile.PAX_FORMAT))
    content[at % len(content)] = value
    said = ""
    found: list[Member] = []
    try:
        found = members_of(bytes(content))
    except DataError as error:
        said = str(error)
    assert not said or (said.startswith("x.tar: ") and "\n" not in said)
    assert all(m.offset + m.size <= len(content) for m in found)


@given(st.binary(max_size=3000))
def test_bytes_that_are_no_archive_are_refused_in_one_line(content: bytes) -> None:
    if not any(content[:BLOCK]) and content:
        return  # zeros are an archive without members
    with pytest.raises(DataError, match=r"^x\.tar: ") as caught:
        members_of(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("mode", "word"), [("w:gz", "gunzip"), ("w:bz2", "bunzip2"), ("w:xz", "unxz")])
def test_a_compressed_archive_is_refused_and_told_how_to_unpack(mode: str, word: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(DataError, match=f"compressed .* {word}.*vitrail pack"):
        members_of(buffer.getvalue())


class Counting:
    def __init__(self, content: bytes) -> None:
        self.content, self.calls, self.bytes = content, 0, 0

    def __call__(self, start: int, end: int) -> bytes:
        self.calls += 1
        self.bytes += end - start
        return self.content[start:end]


def test_small_members_are_read_many_at_a_time_and_large_ones_are_skipped() -> None:
    small = archive([(f"{i:05}.jpg", b"x" * 900) for i in range(5000)], tarfile.GNU_FORMAT)
    fetch = Counting(small)
    assert len(list(read_members(Window(fetch, len(small)), "x.tar"))) == 5000
    assert fetch.calls < 12  # 7.7 MB in blocks of 1 MiB
    large = archive([(f"{i}.tif", bytes(2**21)) for i in range(20)], tarfile.GNU_FORMAT)
    fetch = Counting(large)
    assert len(list(read_members(Window(fetch, len(large)), "x.tar"))) == 20
    assert fetch.bytes < 2**17
