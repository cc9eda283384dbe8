"""Kernels for some hundred tokens compute attention as it is defined; where there is no GPU, Triton interprets them."""

import pytest
import torch

from tests.model.interpreting import interpreted

CASES = [  # batch, tokens, heads, width
    (1, 65, 2, 64),
    (2, 100, 1, 64),
    (1, 128, 1, 64),
    (1, 196, 1, 64),
    (2, 197, 1, 64),
    (1, 198, 1, 32),
    (1, 256, 1, 64),
    (1, 577, 1, 32),
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_compute_the_definition(case, dtype):
    assert apart(case, dtype, "cuda") < 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_tokens_that_come_after_the_last_are_neither_read_nor_written():
    """The next picture's are not numbers: none of that is seen."""
    from vitrail.model.kernels.mid_attention import mid_attention, mid_attention_backward

    torch.manual_seed(0)
    qkv = torch.randn(2, 197, 3 * 3 * 64, device="cuda", dtype=torch.bfloat16)
    upstream = torch.randn(2, 197, 3 * 64, device="cuda", dtype=torch.bfloat16)
    out, lse = mid_attention(qkv, 3, 0.125)
    alone = mid_attention_backward(upstream, qkv, out, lse, 3, 0.125)[0][0]
    for one in (qkv, upstream):
        one[1] = float("nan")
    out_beside, lse_beside = mid_attention(qkv, 3, 0.125)
    beside = mid_attention_backward(upstream, qkv, out_beside, lse_beside, 3, 0.125)[0]
    assert torch.equal(out_beside[0], out[0])
    assert torch.equal(lse_beside[0], lse[0])
    assert torch.equal(beside[0], alone)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_the_operators_are_what_a_compiler_takes_them_for():
    from vitrail.model.kernels.mid_attention import mid_attention, mid_attention_backward

    qkv = torch.randn(2, 197, 3 * 3 * 64, device="cuda", dtype=torch.bfloat16)
    torch.library.opcheck(mid_attention, (qkv, 3, 0.125))
    out, lse = mid_attention(qkv, 3, 0.125)
    torch.library.opcheck(mid_attention_backward, (out, qkv, out, lse, 3, 0.125))
