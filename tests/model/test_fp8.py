"""Eight-bit linear maps against their definition in float64; a trained model keeps its answers."""

import pytest
import torch
from torch import nn

import vitrail
from vitrail.errors import ConfigError
from vitrail.model.fp8 import Fp8Hidden, Fp8Linear, quantise


def rounded(x):
    """To the nearest number of e4m3, by its definition: 3 bits of mantissa, exponents from -6, at most 448."""
    x = x.double().clamp(-448, 448)
    step = 2.0 ** (torch.floor(torch.log2(x.abs().clamp(min=2.0**-6))) - 3)
    return torch.round(x / step) * step  # ties to even


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_map_is_that_of_rounded_weights_and_tokens(bias):
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=bias)
    x = torch.randn(3, 7, 64)
    x[0, 0, 0] = 100.0  # beyond what was seen: it becomes the largest number
    small = Fp8Linear(linear, largest=3.0)
    found = small(x)
    assert found.dtype == torch.bfloat16
    tokens = rounded(x / (6.0 / 448)) * (6.0 / 448)
    scale = linear.weight.detach().double().abs().max() / 448
    wanted = tokens @ (rounded(linear.weight.detach() / scale) * scale).T
    wanted = wanted if linear.bias is None else wanted + linear.bias.detach().bfloat16()
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=2e-2)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_result_of_eight_bits_is_the_other_rounded(bias, device):
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=bias).to(device)
    x = torch.randn(3, 7, 64, device=device)
    x[0, 0] = 100.0 * linear.weight.detach()[0].sign()  # beyond what was seen, on the way in and out
    small = Fp8Hidden(linear, largest=3.0, largest_result=0.5)
    found = small(x)
    assert found.dtype == torch.float8_e4m3fn
    step = 1.0 / 448
    wanted = rounded(Fp8Linear(linear, largest=3.0)(x).double() / step)
    assert wanted[0, 0, 0] == 448
    # a sum that is rounded to bfloat16 first, and a bias that is, can come to lie on the other side of a middle
    torch.testing.assert_close(found.double(), wanted, rtol=2**-3, atol=1)
    assert (found.double() == wanted).double().mean() > 0.9


def test_a_copy_is_made_and_the_model_stays_as_it_is():
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", img_size=32, num_classes=100, depth=2, zero_head=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pictures = torch.randn(16, 3, 32, 32)
    small = quantise(model, pictures)
    assert sum(isinstance(part, Fp8Linear) for part in small.modules()) == 8
    assert not small.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with torch.inference_mode():
        wanted, found = model.eval()(pictures), small(pictures.bfloat16()).float()
    assert 1e-4 < (found - wanted).norm() / wanted.norm() < 0.1
    assert torch.isfinite(small(100 * pictures.bfloat16())).all()


def attention():
    """One block's in eight bits, with tokens for it."""
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", img_size=160, num_classes=5, depth=1)
    small = quantise(model, torch.randn(2, 3, 160, 160))
    return small.blocks[0].attn, torch.randn(2, 101, 192).bfloat16()


def test_attention_hands_eight_bits_to_its_projection(monkeypatch):
    """As if on a GPU, with the definition in the kernel's place; what is watched or read in part goes another way."""
    from vitrail.model.kernels import mid_attention

    layer, x = attention()
    wanted = layer(x)
    asked = []

    def by_definition(qkv, heads, scale, out_scale):
        asked.append(qkv.shape)
        q, k, v = qkv.float().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.mT * scale).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return (mixed / out_scale).to(torch.float8_e4m3fn)

    monkeypatch.setattr(mid_attention, "mid_attention_in_eight_bits", by_definition)
    monkeypatch.setattr("vitrail.model.fp8.half_on_gpu", lambda x: x.dtype)
    monkeypatch.setattr("vitrail.model.fp8.is_hopper", lambda: True)
    found = layer(x)
    assert asked == [(2, 101, 3 * 192)]
    assert (found - wanted).float().norm() / wanted.float().norm() < 0.02
    assert torch.equal(layer(x, watch=lambda seen: None), wanted)
    assert torch.equal(layer(x, read=1), wanted[:, :1])
    layer(torch.cat([x] * 7, 1))  # more tokens than the kernel takes
    assert len(asked) == 1


@on_gpu
def test_a_gpu_computes_an_mlp_as_well_as_a_cpu_does():
    """It rounds sums to eight bits at once, a CPU to bfloat16 before: what they are apart is no error of either."""
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", img_size=160, num_classes=5, depth=1)
    layer, x = quantise(model, torch.randn(2, 3, 160, 160)).blocks[0].mlp, torch.randn(2, 101, 192).bfloat16()
    exact = model.blocks[0].mlp.eval().double()(x.double())
    usual, found = layer(x).double(), layer.cuda()(x.cuda()).cpu().double()
    assert (found - exact).norm() < 1.1 * (usual - exact).norm()


@on_gpu
def test_a_gpu_attends_as_a_cpu_does():
    layer, x = attention()
    wanted, found = layer(x), layer.cuda()(x.cuda()).cpu()
    assert (found - wanted).float().norm() / wanted.float().norm() < 0.02


def test_widths_that_do_not_fit_are_named():
    model = vitrail.create("vit_ti16", img_size=32, embed_dim=72, num_heads=3)
    with pytest.raises(ConfigError, match="embed_dim to be a multiple of 16"):
        quantise(model, torch.zeros(1, 3, 32, 32))


def test_a_trained_model_keeps_its_answers(deit_tiny, imagenet_sample):
    classifier = vitrail.load(deit_tiny)
    files = sorted(imagenet_sample.rglob("*.*"))[::25]
    pictures = torch.cat(list(classifier._batches(files, 64)))
    with torch.inference_mode():
        wanted = classifier.model(pictures).argmax(1)
        found = quantise(classifier.model, pictures[:16])(pictures.bfloat16()).argmax(1)
    assert (found == wanted).float().mean() >= 0.9
