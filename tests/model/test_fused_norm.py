"""A norm beside the residual stream: gradients against the parts; where there is no GPU, in Triton's interpreter."""

import pytest
import torch
from torch import nn

from tests.model.interpreting import interpreted

CASES = [(2, 37, 48), (1, 1, 16), (3, 70, 24), (5, 33, 100)]  # batch, tokens, width


def apart(case, dtype, device, rms):
    """The largest differences of results and gradients, each over the largest number there is."""
    from vitrail.model.kernels.fused_norm import FusedNorm

    torch.manual_seed(0)
    width = case[-1]
    x = (2 * torch.randn(case, device=device) + 3).to(dtype).requires_grad_()
    weight, bias = (torch.rand(width, device=device).requires_grad_() for _ in range(2))
    learn = [x, weight] if rms else [x, weight, bias]
    wide = x.double()
    if rms:
        normed = nn.functional.rms_norm(wide, (width,), weight.double(), 1e-6)
    else:
        normed = nn.functional.layer_norm(wide, (width,), weight.double(), bias.double(), 1e-6)
    results = []
    for stream, found in (FusedNorm.apply(x, weight, None if rms else bias, 1e-6, dtype), (wide, normed)):
        torch.manual_seed(1)
        upstream = [torch.randn(case, device=device).to(dtype) for _ in range(2)]
        gradients = torch.autograd.grad([stream, found], learn, [u.to(stream.dtype) for u in upstream])
        results.append([stream, found, *gradients])
    return [float((a.double() - b.double()).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_its_steps_are_those_of_the_definition():
    """In float32, to 2e-6; programs that go through many rows too."""
    script = (
        "from tests.model.test_fused_norm import CASES, apart\n"
        "import itertools, torch, vitrail.model.kernels.fused_norm as kernels\n"
        "for kernels.PROGRAMS in (528, 3):\n"
        "    for case, rms in itertools.product(CASES, (False, True)):\n"
        "        print(*apart(case, torch.float32, 'cpu', rms))\n"
    )
    found = interpreted(script)
    assert len(found) == 2 * len(CASES) * (5 + 4)
    assert all(one < 2e-6 for one in found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("case", [*CASES, (64, 197, 768), (8, 64, 1280)])
@pytest.mark.parametrize("rms", [False, True])
def test_the_kernel_computes_the_definition(case, rms):
    assert all(one < 0.02 for one in apart(case, torch.bfloat16, "cuda", rms))
