"""The kernel for few tokens computes attention as it is defined; where there is no GPU, in Triton's interpreter."""

import pytest
import torch
from torch import nn

import vitrail
from tests.model.interpreting import interpreted
from vitrail.model.positions import rotate

CASES = [  # batch, tokens, heads, width, norms, rotations
    (2, 36, 2, 32, True, True),
    (3, 64, 2, 64, True, True),
    (2, 17, 1, 32, False, False),
    (1, 50, 1, 64, True, False),
    (2, 1, 1, 32, False, True),
    # more tokens: norms and rotations are passes before and after the kernels for some hundred
    (2, 65, 2, 32, True, True),
    (2, 121, 1, 64, True, True),
    (3, 144, 2, 64, True, False),
    (1, 70, 1, 32, False, True),
    (2, 80, 2, 64, True, True),
    (2, 81, 1, 64, True, True),
    (1, 144, 2, 32, True, True),
    (2, 80, 1, 32, True, False),
    (1, 197, 1, 64, False, True),
]


def as_defined(x, weight, bias, q_weight, k_weight, turn, heads, scale, eps):
    """By its definition, in the numbers of x; in half precision, attention itself is torch's."""
    qkv = nn.functional.linear(x, weight.to(x), None if bias is None else bias.to(x))
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    if q_weight is not None:
        q, k = (nn.functional.rms_norm(x, x.shape[-1:], w.to(x), eps) for x, w in ((q, q_weight), (k, k_weight)))
    if turn is not None:
        q, k = rotate(q, turn.to(x)), rotate(k, turn.to(x))
    if x.dtype == torch.bfloat16:
        return nn.functional.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(2)
    return ((q @ k.mT * scale).softmax(-1) @ v).transpose(1, 2).flatten(2)


def by_kernels(*given):
    from vitrail.model.kernels.packed_attention import PackedAttention

    return PackedAttention.apply(*given)


def apart(case, dtype, device, way=by_kernels):
    """The largest differences of the result and of every gradient from those of float64, each over the largest number
    there is."""
    torch.manual_seed(0)
    batch, tokens, heads, width, norms, rotations = case
    x = torch.randn(batch, tokens, 48, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(3 * heads * width, 48, device=device) / 7).to(dtype).requires_grad_()
    bias = None if tokens in (50, 121) else torch.randn(3 * heads * width, device=device).to(dtype).requires_grad_()
    scales = [torch.rand(width, device=device).requires_grad_() if norms else None for _ in range(2)]
    angle = torch.randn(batch if tokens in (36, 65) else 1, 1, tokens, width // 2, device=device)
    turn = torch.stack([angle.cos(), angle.sin()]) if rotations else None
    learn = [one for one in (x, weight, bias, *scales) if one is not None]
    rest = weight, bias, *scales, turn, heads, width**-0.5, 1e-6
    results = []
    for found in (way(x, *rest), as_defined(x.double(), *rest)):
        torch.manual_seed(1)
        upstream = torch.randn(found.shape, device=device)
        results.append([found, *torch.autograd.grad(found, learn, upstream.to(found.dtype))])
    return [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_its_steps_are_those_of_the_definition():
    """In float32, to 2e-6."""
    script = (
        "from tests.model.test_short_attention import CASES, apart\n"
        "import torch\n"
        "print(*(one for case in CASES for one in apart(case, torch.float32, 'cpu')))\n"
    )
    found = interpreted(script)
    assert len(found) >= 2 * len(CASES)
    assert all(one < 2e-6 for one in found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_computes_the_definition(case):
    """To 2%, or about as well as torch's fused attention: both take what a query's gradient has in common with its
    result from the rounded result, which where keys are alike is most of what a norm's weight gets."""
    found, fused = (apart(case, torch.bfloat16, "cuda", way) for way in (by_kernels, as_defined))
    assert all(one < max(0.02, 1.5 * other) for one, other in zip(found, fused, strict=True)), (found, fused)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_the_operators_for_more_tokens_are_what_a_compiler_takes_them_for():
    from vitrail.model.kernels.turned_attention import turned_attention, turned_attention_backward

    qkv, scales = torch.randn(2, 100, 3 * 2 * 64, device="cuda").bfloat16(), torch.rand(2, 64, device="cuda")
    turn = torch.randn(2, 1, 1, 100, 32, device="cuda")
    for before in ((*scales, turn), (*scales, None), (None, None, turn)):
        torch.library.opcheck(turned_attention, (qkv, *before, 2, 0.125, 1e-6))
        out, lse, made = turned_attention(qkv, *before, 2, 0.125, 1e-6)
        torch.library.opcheck(turned_attention_backward, (out, qkv, made, out, lse, *before, 2, 0.125, 1e-6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("tokens", [64, 144])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_has_the_gradients_it_has_without_the_kernel(compiled, tokens, monkeypatch):
    """In bfloat16: as far from those of float32 as without it, or nearer, to a tenth."""
    side = 4 * round(tokens**0.5)
    monkeypatch.setattr("vitrail.model.kernel_sizes.LEAST_WORK", 0)
    options = {"img_size": side, "patch_size": 4, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 10}
    options |= {"norm": "rms", "qk_norm": True, "rope": True, "class_token": False, "pool": "mean"}
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", **options).cuda().train()
    pictures, labels = torch.randn(8, 3, side, side, device="cuda"), torch.arange(8, device="cuda")

    def gradients(forward, low):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            loss = nn.functional.cross_entropy(forward(pictures).float(), labels)
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    exact = gradients(model, False)
    with_it = gradients(torch.compile(model) if compiled else model, True)
    monkeypatch.setattr("vitrail.model.devices.HAS_TRITON", False)
    without = gradients(model, True)
    far, usual = ((found - exact).norm() / exact.norm() for found in (with_it, without))
    assert 0 < far < 1.1 * usual + 1e-3
