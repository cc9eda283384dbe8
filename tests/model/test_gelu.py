"""GELU in one pass, alone and as the end of a product; where there is no GPU, in Triton's interpreter."""

import copy

import pytest
import torch
from torch import nn

from tests.model.interpreting import interpreted
from tests.model.test_fp8 import rounded
from vitrail.model.layers import Mlp

SHAPES = [(1,), (3, 7, 5), (2, 2048), (37, 300)]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def numbers(shape, dtype, device):
    torch.manual_seed(0)
    return (3 * torch.randn(shape, device=device)).to(dtype)


def apart(shape, dtype, device):
    from vitrail.model.kernels.gelu import gelu

    x = numbers(shape, dtype, device)
    wanted = nn.functional.gelu(x.double())
    return float((gelu(x).double() - wanted).abs().max())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_its_steps_are_those_of_the_definition():
    """In float32, to what the polynomial leaves (1.5e-7 of the distribution, times numbers up to 12)."""
    script = (
        "from tests.model.test_gelu import SHAPES, apart\n"
        "import torch\n"
        "print(*(apart(shape, torch.float32, 'cpu') for shape in SHAPES))\n"
    )
    found = interpreted(script)
    assert len(found) == len(SHAPES)
    assert all(one < 2e-6 for one in found)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_rounds_the_definition(shape, dtype):
    from vitrail.model.kernels.gelu import gelu

    x = numbers(shape, dtype, "cuda")
    wanted = nn.functional.gelu(x.double())
    torch.testing.assert_close(gelu(x).double(), wanted, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-6)


def in_eight_bits(shape, dtype, device, scaled=False):
    """The part of results that are e4m3's nearest to the tanh form's, the largest distance of others in steps of e4m3,
    and how far off GELU itself they are beyond half a step. Powers of two are left out: Triton's interpreter makes half
    of what is to be rounded up to one; and it does not round what is smaller than e4m3's smallest normal number. What
    comes in eight bits meets a GPU's instruction for tanh, which may be off by 2^-11: where that is an eighth of a step
    or more, results are not compared with the tanh form's, and GELU may be that much further off."""
    from vitrail.model.kernels.gelu import gelu_in_eight_bits

    scale, hidden_scale = torch.tensor(0.02, device=device), torch.tensor(0.25, device=device)
    x = numbers(shape, torch.float32, device)
    x = (x / hidden_scale if scaled else x).to(dtype)
    found = gelu_in_eight_bits(x, scale, hidden_scale if scaled else None).double().cpu()
    x = x.double().cpu() * (0.25 if scaled else 1)
    wanted = rounded(nn.functional.gelu(x, approximate="tanh") / 0.02)
    counted = (wanted.frexp().mantissa.abs() != 0.5) & ((device != "cpu") | (wanted.abs() >= 2.0**-6))
    step = 2.0 ** (wanted.abs().clamp(min=2.0**-6).log2().floor() - 3)
    instruction = x.abs() * 2.0**-12 / 0.02 * (scaled and device != "cpu")
    apart = ((found - wanted).abs() / step)[counted & (instruction < step / 8)]
    right = (nn.functional.gelu(x) / 0.02).clamp(max=448)
    off = ((found - right).abs() - step / 2 - instruction)[counted] * 0.02
    return float((apart == 0).double().mean()), float(apart.max()), float(off.max())


def is_in_eight_bits(same, apart, off):
    return same > 0.98 and apart <= 1 and off < 6e-4


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_its_steps_in_eight_bits_are_those_of_the_tanh_form():
    script = (
        "from tests.model.test_gelu import SHAPES, in_eight_bits\n"
        "import torch\n"
        "for shape in SHAPES[1:]:\n"
        "    print(*in_eight_bits(shape, torch.float32, 'cpu'))\n"
        "    print(*in_eight_bits(shape, torch.float8_e4m3fn, 'cpu', scaled=True))\n"
    )
    found = interpreted(script)
    assert len(found) == 18
    assert all(is_in_eight_bits(*found[i : i + 3]) for i in range(0, 18, 3)), found


@on_gpu
@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize(("dtype", "scaled"), [(torch.bfloat16, False), (torch.float8_e4m3fn, True)])
def test_eight_bits_are_those_of_the_tanh_form(shape, dtype, scaled):
    found = in_eight_bits(shape, dtype, "cuda", scaled)
    assert is_in_eight_bits(*found), found


@on_gpu
def test_what_is_no_number_stays_so_in_eight_bits():
    from vitrail.model.kernels.gelu import gelu_in_eight_bits
    from vitrail.model.kernels.mid_attention import mid_attention_in_eight_bits

    nothing, scale = torch.full((1, 70, 192), float("nan"), device="cuda").bfloat16(), torch.ones((), device="cuda")
    assert gelu_in_eight_bits(nothing, scale).float().isnan().all()
    assert mid_attention_in_eight_bits(nothing, 1, 0.125, scale).float().isnan().all()


@on_gpu
def test_the_operators_are_what_a_compiler_takes_them_for():
    from vitrail.model.kernels.gelu import gelu, gelu_in_eight_bits
    from vitrail.model.layers import linear_gelu

    x = numbers((2, 5, 32), torch.bfloat16, "cuda")
    torch.library.opcheck(gelu, (x,))
    one = torch.ones((), device="cuda")
    torch.library.opcheck(gelu_in_eight_bits, (x, one))
    torch.library.opcheck(gelu_in_eight_bits, (x, one, one))
    torch.library.opcheck(linear_gelu, (x, x.new_ones(48, 32), x.new_ones(48)))


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_served_mlp_is_nearer_to_the_definition_than_its_parts_are(act, dtype, compiled):
    torch.manual_seed(0)
    mlp = Mlp(96, 384, act, 0.1).cuda().eval()
    x = torch.randn(4, 50, 96, device="cuda", dtype=dtype)
    half = copy.deepcopy(mlp).to(dtype)
    exact = copy.deepcopy(half).double()(x.double())
    parts = half(x)  # with gradients: by its parts
    with torch.inference_mode():
        whole = (torch.compile(half) if compiled else half)(x)
    assert not torch.equal(whole, parts)
    off, usual = ((found.double() - exact).norm() / exact.norm() for found in (whole, parts))
    assert off < 1.02 * usual


def test_an_exported_mlp_has_its_parts(monkeypatch):
    """As if on a GPU: alone it is one product, compiled one operator; other programs know neither."""
    monkeypatch.setattr("vitrail.model.layers.half_on_gpu", lambda x: x.dtype)
    mlp, x = Mlp(8, 16, "gelu", 0.0).bfloat16().eval(), torch.randn(2, 3, 8, dtype=torch.bfloat16)
    seen = []

    def watch(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    with torch.no_grad():
        exported = torch.export.export(mlp, (x,), strict=False)
        torch.compile(mlp, backend=watch)(x)
    assert not any("gelu" in str(node.target) and "aten.gelu" not in str(node.target) for node in exported.graph.nodes)
    assert any("linear_gelu" in target for target in seen)
