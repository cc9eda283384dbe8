"""Kernels without a GPU: Triton interprets them."""

import json
import os
import subprocess
import sys
from functools import cache


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


SERVER = """
import contextlib, io, json, os, sys, traceback
import torch, triton
import tests.model.test_mid_attention, vitrail.model.kernels.packed_attention

for line in sys.stdin:
    reading, writing = os.pipe()
    if os.fork() == 0:
        said, fault = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(said):
                exec(json.loads(line), {})
        except BaseException:
            fault = traceback.format_exc()
        with open(writing, "w") as answer:
            json.dump([said.getvalue(), fault], answer)
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        print(answer.read() or '["", "it died"]', flush=True)
    os.wait()
"""


@cache
def _server() -> subprocess.Popen[str]:
    """A process in which Triton interprets, as it reads that setting once, and which forks for each script: what takes
    long is to import torch."""
    settings = os.environ | {"TRITON_INTERPRET": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SERVER], env=settings, stdin=pipe, stdout=pipe, text=True)


def interpreted(script: str) -> list[float]:
    """The numbers that a script prints, where Triton interprets kernels."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(script) + "\n")
    server.stdin.flush()
    said, fault = json.loads(server.stdout.readline())
    assert not fault, fault
    return [float(word) for word in said.split()]
