"""Kernels without a GPU: Triton interprets them."""

import os
import subprocess
import sys


def round_as_gpus_do() -> None:
    """The interpreter loses a carry on the way to eight bits (it makes 16 of 31.9, not 32) and knows no NaN there: from
    now on torch rounds for it."""
    import torch
    from triton.runtime import interpreter

    kinds = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    usual = interpreter._convert_float

    def convert(numbers, kind, wanted, mode):
        if str(wanted) in kinds and str(kind) == "fp32":
            return torch.from_numpy(numbers).to(kinds[str(wanted)]).view(torch.uint8).numpy()
        return usual(numbers, kind, wanted, mode)

    interpreter._convert_float = convert


def interpreted(script: str) -> list[float]:
    """The numbers that a script prints. In a process of its own, since Triton reads its setting once."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]
