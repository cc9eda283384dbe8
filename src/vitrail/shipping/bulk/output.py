"""Where rows go: parts that are numbered where `--out` has a star, or one file that is joined from parts at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.data.shard_files import is_remote
from vitrail.errors import VitrailError
from vitrail.pictures.sources import printable
from vitrail.shipping.bulk.ledger import JOB, Ledger, refuse_other
from vitrail.shipping.bulk.parts import check_format, join, put

ROWS_PER_PART = 4096  # a part is what is lost at most when a job is killed, and what waits in memory


@dataclass(frozen=True)
class Share:
    """Which parts are this process's: every so-manieth."""

    number: int = 1  # from 1 on
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        share = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= share.number <= share.of:
            raise VitrailError(f"--shard {printable(text)} is no share: the first of eight is 1/8, the last is 8/8")
        return share

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True)
class Division:
    """All inputs in parts. The parts are the same for any number of shares, and so are their names."""

    count: int
    rows: int  # in each part but the last
    share: Share

    @classmethod
    def of(cls, count: int, rows: int | None, share: Share) -> Division:
        return cls(count, rows or min(ROWS_PER_PART, max(1, -(-count // share.of))), share)

    @property
    def parts(self) -> int:
        return -(-self.count // self.rows)

    @property
    def mine(self) -> range:
        return range(self.share.number - 1, self.parts, self.share.of)

    def inputs(self, part: int) -> range:
        return range(part * self.rows, min((part + 1) * self.rows, self.count))


@dataclass(frozen=True)
class Output:
    """The files of a job. Without a star in the name, parts are kept in a hidden folder until all are there."""

    shown: str
    folder: Path  # of the parts
    before: str
    suffix: str
    single: Path | None

    @classmethod
    def parse(cls, out: str | os.PathLike[str]) -> Output:
        text = os.path.expanduser(os.fspath(out))
        if is_remote(text):
            raise VitrailError(f"--out {printable(text)}: rows are written to a folder here, not to an address")
        path = Path(text)
        before, star, suffix = path.name.partition("*")
        check_format(Path(path.name.replace("*", "0")).suffix.lower())
        if "*" in suffix or "*" in str(path.parent):
            raise VitrailError(f"--out {printable(text)}: one star, in the name of the file, stands for its number")
        if star:
            return cls(text, path.parent, before, suffix, None)
        return cls(text, path.parent / f".{path.name}.parts", "part-", path.suffix, path)

    @property
    def pattern(self) -> str:
        return f"{self.before}*{self.suffix}"

    @property
    def format(self) -> str:
        return Path("0" + self.suffix).suffix.lower()

    def part(self, number: int, of: int) -> Path:
        return self.folder / f"{self.before}{number:0{max(5, len(str(of - 1)))}}{self.suffix}"

    def ledger(self, share: Share) -> Path:
        whose = "" if share.of == 1 else f".{share.number}-of-{share.of}"
        return self.folder / f".{self._stem}{whose}.ledger"

    @property
    def _stem(self) -> str:
        return f"{self.before.rstrip('-_.')}{self.suffix}".lstrip(".")

    def refuse(self, share: Share, overwrite: bool) -> None:
        """Before the long work: what is there already is not written over."""
        if self.single is None:
            return
        if share.of > 1:
            raise VitrailError(f"--shard needs a star in --out, such as part-*{self.suffix}: each share has its files")
        if os.path.lexists(self.single) and not overwrite and not self.ledger(share).exists():
            raise VitrailError(
                f"{printable(self.single)} is already there: choose another --out, or say --overwrite "
                "(a pattern such as 'part-*.parquet' is put between quotes)"
            )

    def refuse_parts(self, ledger: Ledger, division: Division) -> None:
        """A job that begins finds none of its parts; and those of other shares are of the same job."""
        if ledger.job is not None or not self.folder.is_dir():
            return
        there = set(os.listdir(self.folder))
        for number in division.mine:
            if (name := self.part(number, division.parts).name) in there:
                raise VitrailError(
                    f"{printable(self.folder / name)} is already there, and is none of this job's: choose another --out"
                )

    def refuse_neighbours(self, job: dict[str, Any], share: Share) -> None:
        """Shares of one output are of one job."""
        for folder in self._ledgers():
            if folder != self.ledger(share) and (folder / JOB).exists():
                began = json.loads((folder / JOB).read_text(encoding="utf-8"))
                known = {key: began.get(key) for key in job}
                same = Share.parse(began["shard"]).of == share.of
                refuse_other(self.shown, {**known, "shard": job["shard"]} if same else known, job)

    def _ledgers(self) -> Iterator[Path]:
        name = re.compile(rf"\.{re.escape(self._stem)}(\.\d+-of-\d+)?\.ledger")
        return (path for path in sorted(self.folder.iterdir()) if name.fullmatch(path.name))

    def remove(self, share: Share) -> None:
        """Removes what an earlier job of this share has written, and all of a job with another number of shares."""
        for folder in list(self._ledgers()) if self.folder.is_dir() else []:
            if folder != self.ledger(share) and folder.name.endswith(f"-of-{share.of}.ledger"):
                continue
            ledger = Ledger(folder, self.shown)
            try:
                if ledger.job is not None:
                    whose = Share.parse(ledger.job["shard"])
                    division = Division(ledger.job["inputs"]["count"], ledger.job["rows_per_part"], whose)
                    for number in division.mine:
                        self.part(number, division.parts).unlink(missing_ok=True)
            finally:
                ledger.close()
            shutil.rmtree(folder, ignore_errors=True)

    def finish(self, ledger: Ledger, division: Division) -> str | None:
        """Joins all parts where one file was asked for, and gives its SHA-256."""
        if self.single is None:
            return None
        parts = [self.part(number, division.parts) for number in division.mine]
        _, digest = put(self.single, ledger.folder / f"joined{self.suffix}", lambda path: join(parts, path))
        ledger.close()
        gone = self.folder.with_name(self.folder.name + ".gone")  # half removed, it must not look like a job
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(self.folder, gone)
        shutil.rmtree(gone, ignore_errors=True)
        return digest
