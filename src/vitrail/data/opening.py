"""Whatever DATA is, a source is made from it."""

from __future__ import annotations

import os

from vitrail.data.arrays import from_npz
from vitrail.data.folder import from_folder
from vitrail.data.hub import from_hub
from vitrail.data.named import KNOWN, from_named
from vitrail.data.source import Source
from vitrail.data.table import from_table
from vitrail.data.table_files import TABLES
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")  # compressed ones are refused by name


def open_source(
    data: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    path_column: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
    group_by: str | None = None,
    everything: bool = False,
) -> Source:
    """The source that DATA means: a folder, a table, tar shards, arrays, a set on the Hub or one known by its name.
    What exists as a file or folder goes before a name.

    `data_dir` and `download` are for sets by name, the columns and the separator for tables, `group_by` for all: it is
    a pattern on the names, and pictures with an equal match stay on one side of a split. `everything` takes
    the pictures of a folder that are in no class folder too, without a label.
    """
    text = os.path.expanduser(os.fspath(data))
    there = os.path.exists(text)
    folder = os.path.isdir(text)
    if holds_shards(text) if folder else _names_shards(text):
        from vitrail.data.shards import from_shards

        return from_shards(text, group_by=group_by)
    if folder:
        return from_folder(text, group_by=group_by, everything=everything)
    if text.lower().endswith(TABLES):
        return from_table(
            text, path_column=path_column, label_column=label_column, separator=separator, group_by=group_by
        )
    if text.lower().endswith(".npz") and there:
        return from_npz(text, group_by=group_by)
    if text.startswith("hf:") and not there:
        return from_hub(text, data_dir=data_dir, image_column=path_column, label_column=label_column, group_by=group_by)
    if text in KNOWN and not there:
        return from_named(text, data_dir=data_dir, download=download, group_by=group_by)
    raise DataError(
        f"{printable(text)} is {'no data' if there else 'not there'}: give a folder of class folders, "
        f"a table ({' '.join(TABLES)}), .tar shards, arrays in a .npz file, hf:owner/name, or one of {', '.join(KNOWN)}"
    )


def _names_shards(text: str) -> bool:
    """An address elsewhere, an archive, or a pattern of archives."""
    return "://" in text or is_archive(text)


def is_archive(name: str) -> bool:
    return name.lower().endswith(_ARCHIVES)


def holds_shards(folder: str) -> bool:
    """Archives and no folders: where there are both, as in ImageNet unpacked, the pictures are in the folders."""
    archives = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    return False
                archives = archives or is_archive(entry.name)
    except OSError:  # whoever reads the folder will say why it cannot
        return False
    return archives
