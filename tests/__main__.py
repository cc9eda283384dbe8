"""All tests, in two processes: `uv run --all-extras python -m tests`; options are handed to pytest."""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run(part: str, **where: Any) -> int:
    """The exit status of pytest with every other file."""
    return abs(subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:], f"--part={part}"], **where).returncode)


def main() -> int:
    with tempfile.TemporaryFile("w+") as log, ThreadPoolExecutor(1) as pool:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        second = pool.submit(run, "2/2", **quiet)  # it is shown when it is done
        worst = max(run("1/2"), second.result())
        log.seek(0)
        print(log.read(), flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
