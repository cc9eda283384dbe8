"""Runs an evaluation in several processes, as torchrun would start them, and gives back what each reported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import json, sys
import torch
import torch.distributed as dist
import vitrail
from vitrail.errors import VitrailError

rank, world, meeting, model, data, options = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(world))
try:
    report = vitrail.evaluate(model, data, device="cpu", workers=0, **json.loads(options)).to_json()
except VitrailError as error:
    report = {"error": str(error)}
print(json.dumps(report))
dist.destroy_process_group()
"""


def evaluated_by(world: int, model: Path, data: Path, room: Path, **options: Any) -> list[dict[str, Any]]:
    meeting = room / f"meeting-{world}"
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                SCRIPT,
                str(rank),
                str(world),
                str(meeting),
                str(model),
                str(data),
                json.dumps(options),
            ],
            stdout=subprocess.PIPE,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            text=True,
        )
        for rank in range(world)
    ]
    outs = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * world
    return [json.loads(out.splitlines()[-1]) for out in outs]
