"""The same model on a GPU: equal logits, compiled and in bfloat16, with attention read on the side."""

import pytest
import torch

import vitrail

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

FORMS = {
    "plain": {},
    "rope and registers": {"rope": True, "registers": 4, "prefix_positions": "class"},
    "relative bias": {"relative_bias": True, "positions": "none"},
    "mean": {"pool": "mean", "class_token": False},
    "swiglu, rms, qk-norm": {"mlp": "swiglu", "norm": "rms", "qk_norm": True, "layer_scale": 0.5},
}


def make(**fields) -> torch.nn.Module:
    torch.manual_seed(0)
    changes = {"embed_dim": 192, "depth": 3, "num_heads": 3, "num_classes": 10, "zero_head": False, "img_size": 96}
    return vitrail.create("vit_b16", **{**changes, **fields}).eval()


def pictures(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 96, 96, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_logits_on_the_gpu_are_those_of_the_cpu(form: str) -> None:
    model = make(**FORMS[form])
    wanted = model(pictures())
    torch.testing.assert_close(model.cuda()(pictures().cuda()).cpu(), wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_reading_attention_changes_no_bit_of_the_logits(form: str, dtype: torch.dtype) -> None:
    model, x = make(**FORMS[form]).cuda(), pictures().cuda()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        plain = model(x)
        seen = model.forward_intermediates(x, attention="all")
    assert torch.equal(plain, seen.logits)
    torch.testing.assert_close(seen.attention[1].sum(-1), torch.ones_like(seen.attention[1][..., 0]))


@pytest.mark.parametrize("form", ["plain", "rope and registers", "relative bias"])
def test_it_compiles_into_one_graph_and_trains(form: str) -> None:
    model, x = make(**FORMS[form]).cuda(), pictures().cuda()
    with torch.no_grad():
        wanted = model(x)
    compiled = torch.compile(model, fullgraph=True)
    out = compiled(x)
    torch.testing.assert_close(out, wanted, atol=1e-3, rtol=1e-3)
    out.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_pure_bfloat16_is_near_float32() -> None:
    model, x = make().cuda(), pictures(16).cuda()
    wanted = model(x)
    rough = model.bfloat16()(x.bfloat16()).float()
    assert (rough - wanted).abs().max() < 0.1
    assert (rough.argmax(1) == wanted.argmax(1)).float().mean() > 0.8


def test_gradients_on_the_gpu_are_those_of_the_cpu() -> None:
    model = make()
    model(pictures()).square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.cuda()(pictures().cuda()).square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad.cpu(), wanted[name], atol=2e-3, rtol=2e-3)
