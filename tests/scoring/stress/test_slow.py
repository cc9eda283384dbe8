"""Long forms: a process that is killed, and the real DeiT-Tiny."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitrail
from vitrail.cli import main


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_by_the_same_command(folders, coloured: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    words = ["stress", str(folders[0]), "--data", str(coloured), "--device", "cpu", "--workers", "0", "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "vitrail", *words], stderr=subprocess.DEVNULL)
    trials = out / "trials.jsonl"
    while not trials.exists() or trials.read_bytes().count(b"\n") < 20:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "stress.json").exists()
    kept = trials.read_text().splitlines()
    assert main(words) == 0
    assert trials.read_text().splitlines()[: len(kept) - 1] == kept[:-1]
    fresh = vitrail.stress({str(folders[0]): folders[0]}, coloured, device="cpu", workers=0)
    said = json.loads((out / "stress.json").read_text())
    assert said == json.loads(json.dumps(fresh.to_json()))


@pytest.mark.slow
def test_deit_tiny_needs_what_is_salient_and_not_what_is_not(deit_tiny, imagenet_sample) -> None:
    how = {"only": "occlusion,salient,patch", "pictures": 100, "seeds": 1, "steps": 5, "workers": 0}
    (one,) = vitrail.stress(deit_tiny, imagenet_sample, **how).models
    half = {name: one.curve("salient", name).at(0.5).mean for name in ("most", "least")}
    assert half["most"] + 0.2 < one.curve("occlusion", "blanked").at(0.5).mean < half["least"] + 0.05
    assert one.curve("patch").at(0.25).mean < 0.5 * one.clean.accuracy
    losses = [one.clean.loss, *(point.loss for point in one.curve("patch").points)]
    assert losses == sorted(losses)
