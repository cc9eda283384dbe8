"""All tests, in two processes at a time: `uv run --all-extras python -m tests`; options are handed to pytest.

Exports have a process to themselves: one that has run OpenVINO after a thousand other tests does not live long.
"""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

EXPORTS = "tests/shipping"
FIRST = [[f"--ignore={EXPORTS}", "--part=1/2"]]
SECOND = [[EXPORTS, "--part=1/1"], [f"--ignore={EXPORTS}", "--part=2/2"]]


def run(queue: list[list[str]], **where: Any) -> int:
    """The worst exit status of pytest with each of these options, one after the other."""
    command = [sys.executable, "-m", "pytest", *sys.argv[1:]]
    return max(abs(subprocess.run([*command, *options], **where).returncode) for options in queue)


def main() -> int:
    with tempfile.TemporaryFile("w+") as log, ThreadPoolExecutor(1) as pool:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        second = pool.submit(run, SECOND, **quiet)  # it is shown when it is done
        worst = max(run(FIRST), second.result())
        log.seek(0)
        print(log.read(), flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
