"""Outcomes on the disk, a line each: a stress that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.scoring.stress.plan import Trial
from vitrail.scoring.stress.subject import Outcome

FORMAT = 1  # raised when the same trial would have another outcome


class Record:
    """Outcomes under what decides them: the weights, the pictures, the trial. Without a file, they are kept in memory
    alone. A line that was cut short by a crash is as good as absent."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._found: dict[str, Outcome] = {}
        if path is not None and path.exists():
            text = path.read_text(encoding="utf-8")
            for line in text.splitlines():
                self._read(line)
            if text and not text.endswith("\n"):
                self._append("\n")  # the next line must not be joined to what was cut short

    def get(self, mark: str, trial: Trial, facts: Mapping[str, Any]) -> Outcome | None:
        return self._found.get(_key(mark, trial, facts))

    def add(self, mark: str, trial: Trial, facts: Mapping[str, Any], outcome: Outcome) -> None:
        key = _key(mark, trial, facts)
        self._found[key] = outcome
        line = {"trial": json.loads(key), **vars(outcome)}
        self._append(json.dumps(line) + "\n")

    def _read(self, line: str) -> None:
        try:
            plain = json.loads(line)
            key = json.dumps(plain.pop("trial"), sort_keys=True)
            self._found[key] = Outcome(int(plain["right"]), int(plain["pictures"]), float(plain["loss"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return

    def _append(self, text: str) -> None:
        if self.path is None:
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _key(mark: str, trial: Trial, facts: Mapping[str, Any]) -> str:
    return json.dumps({"format": FORMAT, "of": mark, **trial._asdict(), **facts}, sort_keys=True)
