"""A norm beside the residual stream, with what a branch adds before it: results and gradients against the parts; where
there is no GPU, in Triton's interpreter."""

import itertools

import pytest
import torch
from torch import nn

from tests.model.interpreting import interpreted

CASES = [(2, 37, 48), (1, 1, 16), (3, 70, 24), (5, 33, 100)]  # batch, tokens, width
# whether there are a branch, a bias of it, and a factor of both
BRANCHES = [(False, False, False), (True, False, False), (True, True, False), (True, False, True), (True, True, True)]


def apart(case, dtype, device, rms, branches, stream=None):
    """The largest differences of results and gradients, each over the largest number there is. `stream`: its numbers,
    if they are others than the branch's."""
    from vitrail.model.kernels.fused_norm import FusedNorm

    torch.manual_seed(0)
    width = case[-1]
    x = (2 * torch.randn(case, device=device) + 3).to(stream or dtype).requires_grad_()
    branch = torch.randn(case, device=device).to(dtype).requires_grad_()
    weight, norm_bias, bias = (torch.rand(width, device=device).requires_grad_() for _ in range(3))
    factor = torch.tensor([0.0, 1.25, 1.5, 2.0, 4.0], device=device)[-case[0] :].view(-1, 1, 1).to(dtype)
    given = [one if there else None for one, there in zip((branch, bias, factor), branches, strict=True)]
    learn = [one for one in (x, *given[:2], weight, None if rms else norm_bias) if one is not None]
    wide = x.double()
    if given[0] is not None:
        wide = wide + (branch.double() + (bias.double() if branches[1] else 0)) * (
            factor.double() if branches[2] else 1
        )
    if rms:
        normed = nn.functional.rms_norm(wide, (width,), weight.double(), 1e-6)
    else:
        normed = nn.functional.layer_norm(wide, (width,), weight.double(), norm_bias.double(), 1e-6)
    results = []
    ours = FusedNorm.apply(x, *given, weight, None if rms else norm_bias, 1e-6, dtype)
    assert [one.dtype for one in ours] == [x.dtype, dtype]
    for sum_, found in (ours, (wide, normed)):
        torch.manual_seed(1)
        upstream = [torch.randn(case, device=device).to(kind) for kind in (x.dtype, dtype)]
        upstream = [u.to(one.dtype) for u, one in zip(upstream, (sum_, found), strict=True)]
        gradients = torch.autograd.grad([sum_, found], learn, upstream)
        results.append([sum_, found, *gradients])
    return [float((a.double() - b.double()).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_its_steps_are_those_of_the_definition():
    """In float32, to 2e-6; programs that go through many rows too."""
    script = (
        "from tests.model.test_fused_norm import BRANCHES, CASES, apart\n"
        "import itertools, torch, vitrail.model.kernels.fused_norm as kernels\n"
        "for kernels.PROGRAMS in (528, 3):\n"
        "    for case, rms, branches in itertools.product(CASES, (False, True), BRANCHES):\n"
        "        print(*apart(case, torch.float32, 'cpu', rms, branches))\n"
    )
    found = interpreted(script)
    ways = list(itertools.product((4, 5), BRANCHES))  # results and gradients without a branch, of RMS norm and others
    assert len(found) == 2 * len(CASES) * sum(count + branch + bias for count, (branch, bias, _) in ways)
    assert all(one < 2e-6 for one in found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_a_stream_in_float32_takes_branches_in_half_precision():
    """The stream and its gradient are exact; what is in bfloat16 has its eight bits."""
    script = (
        "from tests.model.test_fused_norm import BRANCHES, CASES, apart\n"
        "import torch\n"
        "for branches in BRANCHES[1:]:\n"
        "    print(*apart(CASES[0], torch.bfloat16, 'cpu', False, branches, torch.float32))\n"
    )
    found = interpreted(script)
    assert len(found) == 4 * 6 + 2
    assert all(one < 1e-2 for one in found)


def check_operators(device):
    """Raises where an operator is not what it tells a compiler."""
    from vitrail.model.kernels.fused_norm import norm_backward, sum_and_norm
    from vitrail.model.kernels.sums import added_up

    x, branch, to_normed, beyond = (torch.randn(2, 5, 48, device=device) for _ in range(4))
    weight, bias = (torch.rand(48, device=device) for _ in range(2))
    factor = torch.rand(2, device=device)
    half, checks = torch.bfloat16, ("test_schema", "test_faketensor")
    for given in ((bias, factor, weight, bias), (None, None, weight, None)):
        torch.library.opcheck(sum_and_norm, (x, branch, *given, 1e-6, half), test_utils=checks)
    for one, rest in ((factor, (False, half, True)), (None, (True, None, False))):
        given = x, one, weight, to_normed, beyond, 1e-6, *rest
        torch.library.opcheck(norm_backward, given, test_utils=checks)
    torch.library.opcheck(added_up, (torch.randn(2, 7, 48, device=device),), test_utils=checks)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_the_operators_are_what_a_compiler_takes_them_for_in_the_interpreter():
    said = interpreted("from tests.model.test_fused_norm import check_operators\ncheck_operators('cpu')\nprint(1)\n")
    assert said == [1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_the_operators_are_what_a_compiler_takes_them_for():
    check_operators("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("case", [*CASES, (4, 197, 768), (2, 64, 1280)])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("branches", BRANCHES)
@pytest.mark.parametrize("stream", [None, torch.float32])
def test_the_kernel_computes_the_definition(case, rms, branches, stream):
    assert all(one < 0.02 for one in apart(case, torch.bfloat16, "cuda", rms, branches, stream))
