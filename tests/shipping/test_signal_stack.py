"""A process that has used OpenVINO can still be told that a child has ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino", reason="openvino is not installed: uv run --all-extras pytest")
pytest.importorskip("nncf", reason="nncf is not installed: uv run --all-extras pytest")

SCRIPT = """
import faulthandler, gc, signal, subprocess, sys
faulthandler.enable()  # with a stack of its own, as pytest and many servers do
signal.signal(signal.SIGCHLD, lambda *_: print("a child ended"))  # as torch's loaders do

import openvino
from tests.shipping.conftest import classifier_of
from vitrail.shipping.engines import choose
from vitrail.shipping.signal_stack import signal_stack_kept

engines = [choose(classifier_of("plain"), name) for name in ("openvino", "int8", "merged")]
for engine in engines:
    engine.close()
with signal_stack_kept():  # what ends the process without it
    cores = [openvino.Core() for _ in range(2)]
    for core in cores:
        core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    del core
    cores.pop(0)
    gc.collect()
    cores.clear()
gc.collect()
subprocess.run([sys.executable, "-c", ""])
print("alive")
"""


def test_engines_leave_the_stack_for_signals_as_it_was(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["a child ended", "alive"]
