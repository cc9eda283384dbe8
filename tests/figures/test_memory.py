"""How much memory the maps take at the size of a real model."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch, vitrail
from vitrail import figures

model = vitrail.create("vit_b16", img_size=384, zero_head=False)
pixels = torch.randn(8, 3, 384, 384)
assert figures.attention_maps(model, pixels).shape == (8, 12, 12, 24, 24)
maps = figures.attribution(model, pixels)
figures.grad_cam(model, pixels[:1])
figures.attention_distance(model, pixels[:5])
figures.removal_curves(model, pixels[:1], maps[:1], steps=8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux alone")
def test_eight_pictures_of_384_pixels_through_vit_b16_take_less_than_two_gigabytes() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    peak = int(done.stdout) * 1024
    print(f"{peak / 1e9:.2f} GB")
    assert peak < 2e9
