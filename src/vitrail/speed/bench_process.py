"""A contender's process, seen from outside: a request, an answer, and never one left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any

from vitrail.speed.peers import Way

PATIENCE = 1200.0  # seconds for one answer: large models compile for minutes


class ContenderError(Exception):
    """What went wrong in a contender's process, in one line."""


class Contender:
    """A process that is started when it is first asked, and anew after it failed."""

    def __init__(self, name: str, way: Way) -> None:
        self.name, self.way = name, way
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._read = b""

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def ask(self, what: str, **details: Any) -> dict[str, Any]:
        """Its answer; a ContenderError if it has none."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write((json.dumps({"do": what, **details}) + "\n").encode())
            process.stdin.flush()
        except OSError as error:
            words = self._last_words()
            self.end()
            raise ContenderError(words) from error
        found: dict[str, Any] = json.loads(self._line(process))
        if "error" in found:
            raise ContenderError(found["error"])
        return found

    def end(self) -> None:
        """Of the process, however it is."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
            self._read = b""
            # processes that wait must not spin: it is another one's turn
            surroundings = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
            command = [sys.executable, "-m", "vitrail.speed.bench_worker"]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, env=surroundings)
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        end = time.monotonic() + PATIENCE
        place = process.stdout.fileno()
        while b"\n" not in self._read:
            ready, _, _ = select.select([place], [], [], max(0.0, end - time.monotonic()))
            part = os.read(place, 1 << 16) if ready else b""
            if not part:
                words = self._last_words() if ready else f"no answer within {PATIENCE:.0f} seconds"
                process.kill()
                self.end()
                raise ContenderError(words)
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """Of a process that ended by itself."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended: {lines[-1][:200] if lines else 'without a word'}"
