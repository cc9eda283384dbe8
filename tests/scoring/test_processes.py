"""Several processes give the report of one, to the last digit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import vitrail
from tests.scoring.processes import evaluated_by


def test_three_processes_all_have_the_report_of_one(
    small: Path, photos: Path, tmp_path: Path, one_thread: None
) -> None:
    alone = vitrail.evaluate(small, photos, device="cpu", workers=0, batch_size=5).to_json()
    assert alone["pictures"] == 35
    for report in evaluated_by(3, small, photos, tmp_path, batch_size=5):
        assert report == alone


def test_torchrun_prints_the_report_once(small: Path, photos: Path, tmp_path: Path, one_thread: None) -> None:
    alone = vitrail.evaluate(small, photos, device="cpu", workers=0, batch_size=5).to_json()
    launch = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    flags = ["--device", "cpu", "--workers", "0", "--batch-size", "5", "--json", "--out", str(tmp_path / "report")]
    command = [sys.executable, "-m", *launch, "-m", "vitrail", "evaluate", str(small), str(photos), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == alone
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == alone


def test_the_trouble_of_one_process_is_that_of_all(small: Path, photos: Path, tmp_path: Path) -> None:
    for report in evaluated_by(2, small, photos, tmp_path, strict=True):
        assert "bad.png" in report["error"]
