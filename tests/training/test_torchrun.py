"""`torchrun … -m vitrail train`: to the end, over a lost process, on two machines, with an error in one process."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from vitrail.training.checkpoints import find_latest, load_checkpoint
from vitrail.training.log import read_log
from vitrail.training.manifest import list_checkpoints
from vitrail.training.run import Run

pytestmark = pytest.mark.slow

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TRAIN = ["-m", "vitrail", "train", "--device", "cpu", "--checkpoint-minutes", "0.001", "--ema", "0.9"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@contextmanager
def started(command: list[str], folder: Path, name: str = "agent") -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the test, its output beside."""
    with (folder / f"{name}.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=output, stderr=output)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # torchrun ends its own
                process.wait(60)


def run_two(folder: Path, *flags: str) -> str:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "3", *TRAIN, *flags]
    with started(command, folder) as agent:
        assert agent.wait(170) == 0, (folder / "agent.txt").read_text()
    return (folder / "agent.txt").read_text()


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_log(run) if row["kind"] in ("train", "eval")]


def assert_same_end(one: Path, other: Path) -> None:
    """Bit for bit: losses, weights, average, optimiser."""
    assert losses(one) == losses(other)
    found = [find_latest(run / "checkpoints") for run in (one, other)]
    states = [load_checkpoint(checkpoint)[0] for checkpoint in found if checkpoint is not None]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("flag", [[], ["--shard"]], ids=["copies", "shards"])
def test_a_lost_process_is_started_again_and_nothing_differs(tmp_path: Path, flag: list[str]) -> None:
    flags = ["--epochs", "3", *flag]
    words = run_two(tmp_path, *flags, "--out", "straight")
    assert words.count("the report is") == 1
    assert Run.open(tmp_path / "straight").scores["accuracy"] > 0.3
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "3", *TRAIN, *flags]
    run = tmp_path / "runs" / "digits-1"
    with started(command, tmp_path) as agent:
        deadline = time.monotonic() + 100
        while not [found for found in list_checkpoints(run / "checkpoints") if found.step >= 20]:
            assert agent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        workers = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(workers[-1]), signal.SIGKILL)
        assert agent.wait(170) == 0, (tmp_path / "agent.txt").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits-1"]  # it went on, and began no other
    assert "exitcode: -9" in (tmp_path / "agent.txt").read_text()
    assert_same_end(tmp_path / "straight", run)


def test_an_error_in_one_process_ends_all_of_them_soon(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text(
        "import os, sys\n"
        "from vitrail.training import loop\n"
        "one = loop.Trainer._one\n"
        "def fail(trainer, *batch):\n"
        "    if trainer.world.rank == 1 and trainer.progress.step == 3:\n"
        "        raise loop.VitrailError('the second cannot')\n"
        "    one(trainer, *batch)\n"
        "loop.Trainer._one = fail\n"
        "from vitrail.cli import main\n"
        "sys.exit(main(['train', '--device', 'cpu', '--epochs', '2', '--out', 'run']))\n"
    )
    began = time.monotonic()
    with started([*TORCHRUN, "--standalone", "--nproc-per-node", "2", "fail.py"], tmp_path) as agent:
        assert agent.wait(100) == 1
    assert time.monotonic() - began < 90
    words = (tmp_path / "agent.txt").read_text()
    assert words.count("vitrail: the second cannot\n") == 1
    assert "Traceback (most recent call last):\n  File" not in words.split("torch/distributed/elastic")[0]


@pytest.fixture
def two_machines() -> Iterator[list[str]]:
    """Two network namespaces with a cable between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    names = [f"vitrail-{os.getpid()}-{number}" for number in (1, 2)]
    ends = [f"v{os.getpid() % 100_000}-{number}" for number in (1, 2)]
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        commands = [["ip", "netns", "add", names[1]]]
        commands += [["ip", "link", "add", ends[0], "netns", names[0], "type", "veth", "peer", ends[1]]]
        commands += [["ip", "link", "set", ends[1], "netns", names[1]]]
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            commands += [["ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end]]
            commands += [["ip", "-n", name, "link", "set", link, "up"] for link in (end, "lo")]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"{' '.join(command)} does not work here: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_two_machines_train_as_one_does(tmp_path: Path, two_machines: list[str]) -> None:
    alone = [sys.executable, *TRAIN, "--epochs", "2", "--out", "alone"]
    with started(alone, tmp_path, "alone") as process:
        assert process.wait(100) == 0
    nodes = []
    for number, name in enumerate(two_machines):
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "together"]
        options += ["--rdzv-endpoint", "10.77.0.1:29511", "--local-addr", f"10.77.0.{number + 1}"]
        options += ["--rdzv-conf", f"is_host={'false' if number else 'true'}"]
        nodes.append(["ip", "netns", "exec", name, *TORCHRUN, *options, *TRAIN, "--epochs", "2", "--out", "run"])
    with started(nodes[0], tmp_path, "first") as first, started(nodes[1], tmp_path, "second") as second:
        assert [first.wait(170), second.wait(170)] == [0, 0], (tmp_path / "first.txt").read_text()
    assert Run.open(tmp_path / "run").facts["processes"] == 2
    torch.testing.assert_close(losses(tmp_path / "run"), losses(tmp_path / "alone"), rtol=1e-4, atol=1e-5)
