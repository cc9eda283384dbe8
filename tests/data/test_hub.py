"""Sets from the Hub: the library `datasets` reads a folder that stands in for one, and is the oracle too."""

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import jpeg
from vitrail.data.hub import from_hub
from vitrail.data.samples import UNSAID
from vitrail.errors import DataError, PictureError
from vitrail.pictures import as_picture

datasets = pytest.importorskip("datasets")

KINDS = datasets.ClassLabel(names=["dog", "cat", "bird"])  # in the set's order, not the alphabet's
COLUMNS = {"image": datasets.Image(), "label": KINDS}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A Hub of one set, a folder; `asked` is what was asked of it."""
    load = datasets.load_dataset
    folder = tmp_path / "set"
    folder.mkdir()

    class Hub:
        asked: dict[str, Any] = {}  # noqa: RUF012
        path = folder

        def put(self, split: str, rows: list[dict[str, Any]], features: dict[str, Any]) -> None:
            part = datasets.Dataset.from_list(rows, features=datasets.Features(features))
            part.to_parquet(folder / f"{split}-00000-of-00001.parquet")

    def from_folder(repo: str, config: str | None, *, revision: str | None, cache_dir: str | None) -> Any:
        Hub.asked = {"repo": repo, "config": config, "revision": revision, "cache_dir": cache_dir}
        return load(str(folder), cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", from_folder)
    return Hub()


def rows_of(*labels: Any) -> list[dict[str, Any]]:
    return [{"image": {"bytes": jpeg(i), "path": None}, "label": label} for i, label in enumerate(labels)]


def test_pictures_labels_and_splits_are_those_of_the_library(hub) -> None:
    hub.put("train", rows_of(2, 0, 1, 0, 2), COLUMNS)
    hub.put("validation", rows_of(1, None), COLUMNS)
    hub.put("test", rows_of(0, 2), COLUMNS)
    source = from_hub("hf:owner/name")
    assert source.classes == ("dog", "cat", "bird")
    whole = datasets.load_dataset("owner/name", None, revision=None, cache_dir=None)
    for split, ours in (("train", "train"), ("validation", "val"), ("test", "test")):
        side = source.said(ours)
        assert list(side.names()) == [f"{split}/{i:06d}" for i in range(len(whole[split]))]
        assert side.labels.tolist() == [UNSAID if label is None else label for label in whole[split]["label"]]
        for sample, row in enumerate(whole[split]):
            assert np.array_equal(as_picture(side.read(sample)), row["image"].convert("RGB"))
    assert "1 picture without a label" in source.notes


def test_pictures_are_handed_over_encoded_in_the_order_asked_for(hub) -> None:
    hub.put("train", rows_of(0, 1, 2), COLUMNS)
    hub.put("test", rows_of(0, 1), COLUMNS)
    reader = pickle.loads(pickle.dumps(from_hub("hf:owner/name").reader))
    # test comes first, by name
    assert reader.read_many([4, 0, 2, 0]) == [jpeg(2), jpeg(0), jpeg(0), jpeg(0)]
    assert reader.read_many([]) == []


def test_the_address_says_configuration_and_revision(hub, tmp_path: Path) -> None:
    hub.put("train", rows_of(0, 1), COLUMNS)
    from_hub("hf:owner/some.name/small@v1.0", data_dir=tmp_path)
    assert hub.asked == {
        "repo": "owner/some.name", "config": "small", "revision": "v1.0", "cache_dir": str(tmp_path),
    }  # fmt: skip
    from_hub("hf:owner/name")
    assert hub.asked == {"repo": "owner/name", "config": None, "revision": None, "cache_dir": None}


def test_a_folder_of_files_as_the_library_reads_it(hub) -> None:
    for number, name in enumerate(["cat/1.jpg", "cat/2.jpg", "dog/1.jpg"]):
        (hub.path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (hub.path / "train" / name).write_bytes(jpeg(number))
    source = from_hub("hf:owner/name")
    assert source.classes == ("cat", "dog")
    assert source.samples.labels.tolist() == [0, 0, 1]
    assert as_picture(source.all().read(2)).tobytes() == Image.open(io.BytesIO(jpeg(2))).tobytes()


def test_lists_of_classes_are_several_labels(hub) -> None:
    features = {"image": datasets.Image(), "labels": datasets.Sequence(KINDS)}
    rows = [{"image": row["image"], "labels": row["label"]} for row in rows_of([0, 2], [], [1])]
    hub.put("train", rows, features)
    source = from_hub("hf:owner/name")
    assert source.classes == ("dog", "cat", "bird")
    assert source.samples.targets(np.arange(3)).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_labels_may_be_texts_or_numbers(hub) -> None:
    hub.put("train", rows_of("b", "a", None), {"image": datasets.Image(), "label": datasets.Value("string")})
    source = from_hub("hf:owner/name")
    assert (source.classes, source.samples.labels.tolist()) == (("a", "b"), [1, 0, UNSAID])
    hub.put("train", rows_of(10, 9, 10), {"image": datasets.Image(), "label": datasets.Value("int64")})
    source = from_hub("hf:owner/name")
    assert (source.classes, source.samples.labels.tolist()) == (("9", "10"), [1, 0, 1])


def test_columns_are_found_by_what_they_hold_or_named(hub) -> None:
    rows = [{"img": row["image"], "mask": row["image"], "fine": 0, "coarse": 1} for row in rows_of(0, 1)]
    hub.put("train", rows, {"img": datasets.Image(), "mask": datasets.Image(), "fine": KINDS, "coarse": KINDS})
    with pytest.raises(DataError, match=r"2 columns of pictures among 'img', 'mask', .*--path-column"):
        from_hub("hf:owner/name")
    with pytest.raises(DataError, match="classes in 'fine', 'coarse': choose one with --label-column"):
        from_hub("hf:owner/name", image_column="img")
    assert from_hub("hf:owner/name", image_column="img", label_column="fine").samples.labels.tolist() == [0, 0]
    with pytest.raises(DataError, match="no column 'fine' of pictures: it has 'img', 'mask'"):
        from_hub("hf:owner/name", image_column="fine")
    with pytest.raises(DataError, match="no column 'kind': it has 'img', 'mask', 'fine', 'coarse'"):
        from_hub("hf:owner/name", image_column="img", label_column="kind")


def test_without_labels_there_are_none(hub) -> None:
    hub.put("train", [{"image": row["image"]} for row in rows_of(0, 1)], {"image": datasets.Image()})
    source = from_hub("hf:owner/name")
    assert (source.classes, source.samples.labels.tolist()) == ((), [UNSAID, UNSAID])
    assert "it has no column of labels" in source.notes


def test_a_hole_is_a_picture_that_cannot_be_decoded(hub) -> None:
    hub.put("train", [*rows_of(0), {"image": None, "label": 1}], COLUMNS)
    good, hole = from_hub("hf:owner/name").reader.read_many([0, 1])
    assert as_picture(good).size == (24, 16)
    with pytest.raises(PictureError):
        as_picture(hole)


def test_other_splits_are_left_out_and_told_and_a_single_one_is_everything(hub, monkeypatch) -> None:
    part = datasets.Dataset.from_list(rows_of(0, 1), features=datasets.Features(COLUMNS))

    def has(*splits: str) -> None:
        whole = datasets.DatasetDict(dict.fromkeys(splits, part))
        monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: whole)

    has("train", "extra")
    source = from_hub("hf:owner/name")
    assert len(source) == 2
    assert "'extra' left out: neither train, val nor test" in source.notes
    has("full")
    source = from_hub("hf:owner/name", group_by=r"\d$")
    assert (source.samples.splits == UNSAID).all()
    assert source.samples.groups.tolist() == [0, 1]
    has("one", "two")
    with pytest.raises(DataError, match="has the splits 'one', 'two', and none is train, val or test"):
        from_hub("hf:owner/name")
    has()
    with pytest.raises(DataError, match="holds no pictures"):
        from_hub("hf:owner/name")


@pytest.mark.parametrize("address", ["hf:name", "hf:owner/name@", "hf:a/b/c/d", "hf:../name", "hf:owner/na me"])
def test_what_is_no_address_is_one_line(address: str) -> None:
    with pytest.raises(DataError, match="is no set on the Hub: write hf:owner/name"):
        from_hub(address)


def test_what_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise ConnectionError("Couldn't reach\n'owner/name' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"hf:owner/name cannot be had \(Couldn't reach 'owner/name' on the Hub\)"):
        from_hub("hf:owner/name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the library datasets: pip install 'vitrail\[hub\]'"):
        from_hub("hf:owner/name")
