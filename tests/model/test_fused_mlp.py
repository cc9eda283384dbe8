"""The fused MLP computes what its parts do, there and back; where there is no GPU, in Triton's interpreter."""

import pytest
import torch
from torch import nn

import vitrail
from tests.model.interpreting import interpreted
from vitrail.model.layers import Mlp

CASES = [(2, 37, 48, 192), (1, 1, 16, 32), (3, 70, 24, 300), (4, 33, 32, 256)]  # batch, tokens, width, hidden


def apart(case, dtype, device):
    """The largest differences of the result and of every gradient, each over the largest number there is."""
    from vitrail.model.kernels.fused_mlp import FusedMlp

    torch.manual_seed(0)
    batch, tokens, width, hidden = case
    mlp = Mlp(width, hidden, "gelu", 0.0).to(device, dtype)
    x = (2 * torch.randn(batch, tokens, width, device=device)).to(dtype).requires_grad_()
    learn = [x, mlp.fc1.weight, mlp.fc1.bias, mlp.fc2.weight, mlp.fc2.bias]
    inner = nn.functional.linear(x.double(), *(one.double() for one in learn[1:3]))
    results = []
    for found in (
        FusedMlp.apply(*learn),
        nn.functional.linear(nn.functional.gelu(inner), *(one.double() for one in learn[3:])),
    ):
        torch.manual_seed(1)
        upstream = torch.randn(found.shape, device=device).to(found.dtype)
        results.append([found, *torch.autograd.grad(found, learn, upstream)])
    return [float((a.double() - b.double()).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True)]


def model_apart(dtype, device, backend, **more):
    """Between a model with the kernels and the same without: loss and gradients in these numbers."""
    from vitrail.model import attention, devices, kernel_sizes, layers

    kernel_sizes.LEAST_WORK = 0
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10, **more}
    model = vitrail.create("vit_ti16", **options, rope=True, qk_norm=True, norm="rms").to(device, dtype).train()
    pictures, labels = torch.randn(4, 3, 32, 32, device=device).to(dtype), torch.arange(4, device=device)
    results = []
    for kind in (dtype, None):
        for module in (attention, devices, layers):
            module.half_on_gpu = lambda x, kind=kind: kind
        torch.compiler.reset()
        model.zero_grad()
        torch.manual_seed(1)  # drop-path's
        run = torch.compile(model, backend=backend) if backend else model
        loss = nn.functional.cross_entropy(run(pictures).float(), labels)
        loss.backward()
        results.append(torch.cat([loss.detach()[None], *(p.grad.flatten() for p in model.parameters())]))
    assert not torch.equal(*results)  # or the same was done twice
    return float((results[0] - results[1]).norm() / results[1].norm())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
def test_its_steps_are_those_of_the_definition():
    """In float32, to 2e-6; and a model of such blocks, as it is and as a compiler sees it, to 1e-5."""
    script = (
        "from tests.model.test_fused_mlp import CASES, apart, model_apart\n"
        "import torch\n"
        "print(*(one for case in CASES for one in apart(case, torch.float32, 'cpu')))\n"
        "for backend in (None, 'aot_eager'):\n"
        "    for more in ({}, {'drop_path': 0.3}, {'layer_scale': 0.1}, {'dropout': 0.2, 'depth': 1}):\n"
        "        print(model_apart(torch.float32, 'cpu', backend, **more))\n"
    )
    found = interpreted(script)
    parts, models = found[:-8], found[-8:]
    assert len(parts) == 6 * len(CASES)
    assert all(part < 2e-6 for part in parts)
    assert all(model < 1e-5 for model in models)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # where a thread of autograd begins with a product
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_computes_the_definition(case):
    assert all(one < 0.02 for one in apart(case, torch.bfloat16, "cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"act": "quick_gelu"}, {"mlp": "swiglu"}])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_has_the_gradients_it_has_without_the_kernels(options, compiled, monkeypatch):
    """In bfloat16: as far from those of float32 as without them, or nearer, to a tenth."""
    monkeypatch.setattr("vitrail.model.kernel_sizes.LEAST_WORK", 0)
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", img_size=64, embed_dim=128, depth=2, num_heads=2, num_classes=10, **options)
    model = model.cuda().train()
    pictures, labels = torch.randn(8, 3, 64, 64, device="cuda"), torch.arange(8, device="cuda")

    def gradients(forward, low):
        model.zero_grad()
        torch.manual_seed(1)  # dropout's
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            loss = nn.functional.cross_entropy(forward(pictures).float(), labels)
        loss.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    if options.get("dropout") and compiled:
        pytest.skip("a compiler draws other noise")
    exact = gradients(model, False)
    with_them = gradients(torch.compile(model) if compiled else model, True)
    monkeypatch.setattr("vitrail.model.devices.HAS_TRITON", False)
    without = gradients(model, True)
    far, usual = ((found - exact).norm() / exact.norm() for found in (with_them, without))
    assert 0 < far < 1.1 * usual + 1e-3


@pytest.mark.parametrize(
    ("width", "batch", "large"), [(768, 256, True), (384, 512, True), (768, 64, False), (192, 512, False)]
)
def test_kernels_are_for_layers_that_take_longer_than_to_start_them(width, batch, large, monkeypatch):
    from vitrail.model import devices

    monkeypatch.setattr(devices, "half_on_gpu", lambda x: x.dtype)
    tokens = torch.empty(batch, 197, width, dtype=torch.bfloat16, device="meta")
    assert (devices.kernel_type(tokens) is torch.bfloat16) == large
