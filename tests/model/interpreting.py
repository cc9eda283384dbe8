"""Kernels without a GPU: Triton interprets them."""

import os
import subprocess
import sys


def interpreted(script: str) -> list[float]:
    """The numbers that a script prints. In a process of its own, since Triton reads its setting once."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]
