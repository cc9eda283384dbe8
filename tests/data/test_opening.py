"""Whatever DATA is: the right kind of source is made, or one line says what DATA can be."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import vitrail.data
from vitrail.data import Source, open_source
from vitrail.data.arrays import Arrays
from vitrail.data.folder import Files
from vitrail.data.samples import Names
from vitrail.errors import DataError


def test_a_folder_is_a_folder_however_it_is_written(photos, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photos({"a": 2, "b": 1})
    monkeypatch.setenv("HOME", str(root.parent))
    for data in (root, str(root), f"{root}/", "~/photos"):
        assert list(open_source(data).samples.names) == ["a/000.jpg", "a/001.jpg", "b/000.jpg"]
    assert open_source(root, group_by="^.").samples.groups.tolist() == [0, 0, 1]


def test_a_table_is_a_table_in_any_case_of_its_suffix(photos) -> None:
    root = photos({"a": 2})
    (root / "T.CSV").write_text("where,what\na/000.jpg,x|y\na/001.jpg,y\n")
    source = open_source(root / "T.CSV", path_column="where", label_column="what", separator="|")
    assert source.classes == ("x", "y")
    assert source.samples.multi_label


def shard(path: Path, photos) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        tar.add(photos({"a": 1}) / "a" / "000.jpg", "a/000.jpg")


@pytest.mark.parametrize(
    "address",
    ["{root}", "{root}/train-000.tar", "{root}/train-*.tar", "{root}/train-{{000..000}}.tar", "file://{root}"],
)
def test_archives_are_shards(photos, tmp_path: Path, address: str) -> None:
    shard(tmp_path / "shards" / "train-000.tar", photos)
    assert len(open_source(address.format(root=tmp_path / "shards"))) == 1


def test_archives_beside_folders_are_not_read(photos) -> None:
    root = photos({"a": 2, "b": 1})
    (root / "all.tar").write_bytes(b"")
    source = open_source(root)
    assert isinstance(source.reader, Files)
    assert "1 file left out, not named like a picture: .tar 1" in source.notes


def test_a_name_is_a_set_unless_it_is_a_path(photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos({"a": 1, "b": 1}, "digits")
    monkeypatch.chdir("/")
    assert isinstance(open_source("digits").reader, Arrays)
    monkeypatch.chdir(tmp_path)
    assert len(open_source("digits")) == 2


def test_options_reach_the_kind_of_source_they_are_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = {}

    def answer(kind):
        return lambda data, **options: asked.update({kind: (data, options)})

    monkeypatch.setattr("vitrail.data.opening.from_hub", answer("hub"))
    monkeypatch.setattr("vitrail.data.opening.from_named", answer("named"))
    open_source("hf:owner/name", data_dir=tmp_path, path_column="p", label_column="l", group_by="g")
    open_source("cifar10", data_dir=tmp_path, download=True, group_by="g")
    assert asked == {
        "hub": ("hf:owner/name", {"data_dir": tmp_path, "image_column": "p", "label_column": "l", "group_by": "g"}),
        "named": ("cifar10", {"data_dir": tmp_path, "download": True, "group_by": "g"}),
    }


def test_what_is_no_data_is_one_line_that_lists_what_can_be(tmp_path: Path) -> None:
    (tmp_path / "one.jpg").write_bytes(b"")
    for data, said in ((tmp_path / "absent", "absent is not there"), (tmp_path / "one.jpg", "one.jpg is no data")):
        with pytest.raises(DataError, match=said) as caught:
            open_source(data)
        for kind in ("folder", ".csv", ".parquet", ".tar shards", "hf:owner/name", "cifar10", "digits"):
            assert kind in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sources_and_splits_need_neither_torch_nor_the_hub() -> None:
    code = (
        "import sys; from vitrail.data import *; import vitrail.data.opening;"
        "heavy = {'torch', 'torchvision', 'sklearn', 'datasets', 'pyarrow', 'fsspec'} & set(sys.modules); print(heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", vitrail.data.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(vitrail.data, name) is not None
    assert name in dir(vitrail.data)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        vitrail.data.nonsense  # noqa: B018
    assert (vitrail.data.Source, vitrail.data.Names) == (Source, Names)
