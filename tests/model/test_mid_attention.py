"""Kernels for some hundred tokens compute attention as it is defined; where there is no GPU, Triton interprets them."""

import pytest
import torch

import vitrail
from tests.model.interpreting import interpreted
from tests.model.test_fp8 import rounded
from vitrail.model.attention import Attention

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
CASES = [  # batch, tokens, heads, width
    (1, 65, 2, 64),
    (1, 84, 1, 64),
    (2, 100, 1, 64),
    (1, 128, 1, 64),
    (1, 196, 1, 64),
    (2, 197, 1, 64),
    (1, 198, 1, 32),
    (1, 256, 1, 64),
    (1, 577, 1, 32),
    (2, 65, 2, 80),
    (1, 257, 1, 80),
    # 16 and 17 tokens left for the last program, which holds 16 on the way back if no more are left
    (1, 80, 2, 32),
    (2, 80, 1, 64),
    (1, 80, 2, 80),
    (1, 81, 2, 32),
    (2, 81, 1, 64),
    (2, 81, 1, 80),
    (1, 144, 2, 64),
]


def as_defined(qkv, heads, scale):
    """By its definition."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    products = q @ k.mT * scale
    return (products.softmax(-1) @ v).transpose(1, 2).flatten(2), products.logsumexp(-1)


def by_kernels(qkv, upstream, heads, scale):
    """Results, logarithms of sums, gradients, what they add up to, and the largest."""
    from vitrail.model.kernels.mid_attention import mid_attention, mid_attention_backward

    out, lse = mid_attention(qkv, heads, scale)
    packed, sums, largest = mid_attention_backward(upstream, qkv, out, lse, heads, scale)
    assert packed.shape == qkv.shape
    assert sums.dtype == torch.float32
    return out, lse, packed, sums.sum(0), largest.amax()


def by_definition(qkv, upstream, heads, scale):
    """The same in the numbers that are given."""
    qkv = qkv.detach().requires_grad_()
    out, lse = as_defined(qkv, heads, scale)
    (packed,) = torch.autograd.grad(out, qkv, upstream)
    return out.detach(), lse.detach(), packed, packed.sum((0, 1)), packed.abs().amax()


def apart(case, dtype, device, shift=0.0, way=by_kernels):
    """The largest difference of results, gradients and their sums from those of float64, each over the largest number
    there is; or nan."""
    torch.manual_seed(0)
    batch, tokens, heads, width = case
    qkv = torch.randn(batch, tokens, 3 * heads * width, device=device)
    qkv[..., 0], qkv[..., heads * width] = shift, -shift  # to every product of the first head the same is added
    qkv = qkv.to(dtype)
    upstream = torch.randn(batch, tokens, heads * width, device=device).to(dtype)
    found = way(qkv, upstream, heads, width**-0.5)
    exact = by_definition(qkv.double(), upstream.double(), heads, width**-0.5)
    pairs = [(one, right) for a, b in zip(found, exact, strict=True) for one, right in _thirds(a, b, qkv.shape)]
    return float(torch.stack([(a.double() - b).abs().max() / b.abs().max() for a, b in pairs]).max())


def _thirds(found, exact, packed):
    """Gradients of queries, keys and values each on their own."""
    if found.shape != packed:
        return [(found, exact)]
    return zip(found.chunk(3, -1), exact.chunk(3, -1), strict=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested")
def test_their_steps_are_those_of_the_definition():
    """In float32, also where all products are far below 0."""
    script = (
        "from tests.model.test_mid_attention import CASES, apart, by_definition\n"
        "import torch\n"
        "print(*(apart(case, torch.float32, 'cpu') for case in CASES))\n"
        "far = (1, 70, 2, 64), torch.float32, 'cpu', 50\n"
        "print(apart(*far), apart(*far, by_definition))\n"
    )
    *usual, shifted, plain = interpreted(script)
    assert all(one < 3e-6 for one in usual)
    assert shifted < 3 * plain  # products of some -300 are rounded to 2e-5: the definition in float32 is as far off


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_compute_the_definition(case, dtype):
    assert apart(case, dtype, "cuda") < 0.02


def beside(dtype, device, tokens, heads):
    """What a picture gets alone and beside one whose numbers are none: results, logarithms, gradients."""
    from vitrail.model.kernels.mid_attention import mid_attention, mid_attention_backward

    torch.manual_seed(0)
    qkv = torch.randn(2, tokens, 3 * heads * 64, device=device).to(dtype)
    upstream = torch.randn(2, tokens, heads * 64, device=device).to(dtype)
    for _ in range(2):
        out, lse = mid_attention(qkv, heads, 0.125)
        packed, *_ = mid_attention_backward(upstream, qkv, out, lse, heads, 0.125)
        yield out[0], lse[0], packed[0]
        qkv[1] = upstream[1] = float("nan")


def are_alike(*given):
    return all(torch.equal(one, other) for one, other in zip(*beside(*given), strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested")
def test_their_steps_do_not_see_what_comes_after_the_last_token():
    script = (
        "from tests.model.test_mid_attention import are_alike, torch\n"
        "print(int(are_alike(torch.float32, 'cpu', 70, 2)))\n"
    )
    assert interpreted(script) == [1]


@on_gpu
def test_tokens_that_come_after_the_last_are_neither_read_nor_written():
    """The next picture's are not numbers: none of that is seen."""
    assert are_alike(torch.bfloat16, "cuda", 197, 3)


def _upward(qkv):
    """With values made positive: what all weights together can be off by is a part of their sum."""
    queries, keys, values = qkv.chunk(3, -1)
    return torch.cat([queries, keys, values.abs()], -1)


def in_eight_bits(case, dtype, device, out_scale):
    """The part of results that are e4m3's nearest to float64, and how far others are off by more than one of its steps
    and what weights can do that are rounded to the type. Powers of two are left out: Triton's interpreter makes half of
    what is to be rounded up to one."""
    from vitrail.model.kernels.mid_attention import mid_attention_in_eight_bits

    torch.manual_seed(0)
    batch, tokens, heads, width = case
    qkv = torch.randn(batch, tokens, 3 * heads * width, device=device).to(dtype)
    qkv[:, :, -1] = 3  # values of the last channel: too large for the smaller scale
    found = mid_attention_in_eight_bits(qkv, heads, width**-0.5, torch.tensor(out_scale, device=device))
    exact, most = (as_defined(one.double(), heads, width**-0.5)[0] / out_scale for one in (qkv, _upward(qkv)))
    wanted = rounded(exact)
    assert found.dtype == torch.float8_e4m3fn
    assert (wanted[..., -1] == 448).all() == (out_scale < 3 / 448)
    step = 2.0 ** (wanted.abs().clamp(min=2.0**-6).log2().floor() - 3) + most * torch.finfo(dtype).eps / 2
    counted = wanted.frexp().mantissa.abs() != 0.5
    apart, step = (found.double() - wanted).abs()[counted], step[counted]
    return float((apart == 0).double().mean()), float((apart - step).clamp(min=0).max() * out_scale)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_eight_bits_are_the_nearest_to_the_definition():
    script = (
        "from tests.model.test_mid_attention import in_eight_bits, torch\n"
        "for case in ((2, 65, 2, 64), (1, 197, 1, 32), (1, 37, 1, 64)):\n"
        "    for scale in (0.001, 0.01):\n"
        "        print(*in_eight_bits(case, torch.float32, 'cpu', scale))\n"
    )
    found = interpreted(script)
    assert len(found) == 12
    assert min(found[::2]) > 0.999
    assert max(found[1::2]) == 0


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("out_scale", [0.001, 0.01])
def test_the_kernel_writes_eight_bits(dtype, out_scale):
    """Its weights are rounded too: numbers near a border between two go to the other side."""
    same, beyond = in_eight_bits((2, 197, 3, 64), dtype, "cuda", out_scale)
    assert same > 0.9
    assert beyond == 0


@on_gpu
def test_the_operators_are_what_a_compiler_takes_them_for():
    from vitrail.model.kernels.mid_attention import (
        mid_attention,
        mid_attention_backward,
        mid_attention_in_eight_bits,
    )

    qkv = torch.randn(2, 197, 3 * 3 * 64, device="cuda", dtype=torch.bfloat16)
    torch.library.opcheck(mid_attention, (qkv, 3, 0.125))
    torch.library.opcheck(mid_attention_in_eight_bits, (qkv, 3, 0.125, torch.ones((), device="cuda")))
    out, lse = mid_attention(qkv, 3, 0.125)
    torch.library.opcheck(mid_attention_backward, (out, qkv, out, lse, 3, 0.125))


@pytest.mark.parametrize(
    ("is_there", "tokens", "options"),
    [
        (True, 257, {"embed_dim": 160, "num_heads": 2}),  # H/14's heads of 80
        (False, 257, {"embed_dim": 160, "num_heads": 2, "rope": True}),
        (False, 257, {"embed_dim": 192, "num_heads": 2}),
        (True, 144, {"embed_dim": 128, "num_heads": 2, "rope": True, "qk_norm": True, "norm": "rms"}),
        (False, 144, {"embed_dim": 128, "num_heads": 2, "qk_norm": True}),  # a norm that subtracts the mean
        (True, 64, {"embed_dim": 256, "num_heads": 2, "rope": True}),
        (False, 641, {"embed_dim": 128, "num_heads": 2}),
        (False, 144, {"embed_dim": 128, "num_heads": 2, "attn_dropout": 0.1}),
    ],
)
def test_for_which_attention_a_gpu_has_kernels(is_there, tokens, options, monkeypatch):
    monkeypatch.setattr("vitrail.model.attention.half_on_gpu", lambda x: torch.bfloat16)
    monkeypatch.setattr("vitrail.model.attention.kernel_type", lambda x: torch.bfloat16)
    monkeypatch.setattr("vitrail.model.attention.is_hopper", lambda: True)
    config = vitrail.ViTConfig(
        img_size=32, patch_size=4, depth=1, num_classes=10, class_token=False, pool="mean", **options
    )
    attention = Attention(config)
    turn = torch.zeros(2, 1, 1, tokens, config.key_dim // 2) if config.rope else None
    assert attention._has_kernel(torch.zeros(1, tokens, config.embed_dim), turn) is is_there
    assert not attention.eval()._has_kernel(torch.zeros(1, tokens, config.embed_dim), turn)
