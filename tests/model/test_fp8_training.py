"""Linear maps that train in eight bits: against float64 products of the rounded numbers, there and back."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vitrail
from tests.model.interpreting import interpreted
from vitrail.model import fp8_training
from vitrail.model.fp8_training import EightBitLinear, scale_for, use_eight_bits
from vitrail.model.layers import Mlp

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}
BITS = {"e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}  # of mantissa; the lowest exponent; the largest number


@pytest.fixture(autouse=True)
def few_tokens_are_enough(monkeypatch):
    monkeypatch.setattr(fp8_training, "FEWEST", 1)


def rounded(x, kind="e4m3", largest=None):
    """Times a power of two that brings the largest number below the kind's, to the nearest number, and back."""
    bits, lowest, most = BITS[kind]
    x = x.detach().double()
    scale = 2.0 ** torch.floor(torch.log2(most / (x.abs().amax() if largest is None else largest)))
    step = 2.0 ** (torch.floor(torch.log2((x * scale).abs().clamp(min=2.0**lowest))) - bits)
    return torch.round(x * scale / step) * step / scale  # ties to even


def eight_bit(linear):
    linear.__class__ = EightBitLinear
    return linear


def far(found, wanted):
    """The largest difference over the largest number."""
    return float((found.detach().double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [(3, 7), (4, 8)])  # multiples of 16, or not
def test_a_linear_map_multiplies_rounded_numbers_there_and_back(bias, tokens):
    torch.manual_seed(0)
    linear = eight_bit(nn.Linear(64, 48, bias=bias))
    x = torch.randn(*tokens, 64, requires_grad=True)
    found = linear(x)
    gradient = 1e-5 * torch.randn(found.shape)
    found.backward(gradient)
    small, weight, back = rounded(x), rounded(linear.weight), rounded(gradient, "e5m2")
    assert far(found, small @ weight.T + (0 if linear.bias is None else linear.bias.detach().double())) < 1e-6
    assert far(x.grad, back @ weight) < 1e-6
    assert far(linear.weight.grad, back.flatten(0, 1).T @ small.flatten(0, 1)) < 1e-6
    if linear.bias is not None:
        assert far(linear.bias.grad, gradient.double().sum((0, 1))) < 1e-6


def test_rounding_errs_by_half_a_step():
    """Of three bits of mantissa, a sixteenth of the number at most; of two, an eighth; and where numbers are below the
    smallest normal one, by half of the smallest there is."""
    torch.manual_seed(0)
    x = torch.randn(4096) * 10.0 ** torch.randint(-6, 3, (4096,))
    for kind, name in ((fp8_training.TOKEN, "e4m3"), (fp8_training.GRADIENT, "e5m2")):
        bits, lowest, most = BITS[name]
        scale = scale_for(x.abs().amax(), kind)
        assert most / 2 < float(scale * x.abs().amax()) <= most
        away = (fp8_training.rounded(x, scale, kind).double() / scale - x).abs()
        assert (away <= torch.maximum(x.abs() * 2.0 ** -(bits + 1), 2.0 ** (lowest - bits - 1) / scale)).all()
        assert (away > 0.5 * x.abs() * 2.0 ** -(bits + 1)).any()


@pytest.mark.parametrize("given", [0.0, float("inf"), float("nan")])
def test_gradients_that_are_nothing_or_no_numbers_stay_so(given):
    linear = eight_bit(nn.Linear(16, 16))
    x = torch.ones(16, 16, requires_grad=True)
    linear(x).backward(torch.full((16, 16), given))
    for found in (x.grad, linear.weight.grad, linear.bias.grad):
        assert (found == 0).all() if given == 0 else not found.isfinite().any()


def mlp_and_tokens(device="cpu"):
    """An MLP behind a norm, with outliers that nothing announces."""
    torch.manual_seed(0)
    norm, mlp = nn.LayerNorm(48).to(device), Mlp(48, 192, "gelu", 0.0).to(device)
    x = torch.randn(2, 40, 48, device=device)
    x[0, 0, 0] = 1e4
    return norm, mlp, norm(x).detach()


def test_an_mlp_multiplies_rounded_numbers_there_and_back():
    norm, mlp, x = mlp_and_tokens()
    use_eight_bits(nn.ModuleList([nn.ModuleDict({"mlp": mlp})]))
    x.requires_grad_()
    reach = fp8_training.reach_after_norm(norm)
    found = mlp(x, reach)
    gradient = 1e-4 * torch.randn(found.shape)
    found.backward(gradient)
    weights = [rounded(fc.weight) for fc in (mlp.fc1, mlp.fc2)]
    tokens = rounded(x, largest=reach.double())
    hidden = F.linear(tokens, weights[0], mlp.fc1.bias.detach().double()).requires_grad_()
    largest = mlp.fc1.weight.detach().double().norm(dim=1).max() * reach.double() + mlp.fc1.bias.detach().abs().max()
    active = F.gelu(hidden, approximate="tanh")
    small = rounded(active, largest=largest)
    wanted = F.linear(small, weights[1], mlp.fc2.bias.detach().double())
    assert far(found, wanted) < 0.01  # some of GELU's numbers are between two
    back = rounded(gradient, "e5m2")
    (before,) = torch.autograd.grad(active, hidden, back @ weights[1])
    before = before.detach()  # rounded once more, to two bits: an eighth at most, of each number
    assert far(mlp.fc2.weight.grad, back.flatten(0, 1).T @ small.flatten(0, 1)) < 0.01
    assert far(mlp.fc2.bias.grad, gradient.double().sum((0, 1))) < 1e-6
    assert far(mlp.fc1.bias.grad, before.sum((0, 1))) < 1e-5
    for found, a, b in (
        (x.grad, before, weights[0].T),
        (mlp.fc1.weight.grad, before.flatten(0, 1).T, tokens.flatten(0, 1).T),
    ):
        bound = a.abs() @ b.abs().T / 8
        assert ((found.double() - a @ b.T).abs() <= bound + 1e-12).all()
        assert (found.double() - a @ b.T).norm() > 1e-3 * (a @ b.T).norm()  # it is rounded


@torch.no_grad()
def test_no_token_goes_beyond_what_is_foretold():
    """Norms of any weights and tokens, outliers among them; and what linear maps and attention make of them."""
    torch.manual_seed(0)
    for kind in (nn.LayerNorm, nn.RMSNorm):
        norm, linear = kind(64), eight_bit(nn.Linear(64, 96))
        for parameter in norm.parameters():
            parameter.normal_()
        x = torch.randn(512, 64) * torch.randn(512, 64).exp() ** 3
        x[0] = torch.eye(64)[3] * 1e6
        normed = norm(x)
        reach = fp8_training.reach_after_norm(norm)
        assert normed.norm(dim=1).max() <= reach <= 20 * normed.norm(dim=1).max()
        largest = fp8_training.reach_after(linear.weight, linear.bias, reach)
        assert F.linear(normed, linear.weight, linear.bias).abs().max() <= largest


def test_answers_names_and_weights_stay_as_they_are():
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", **SMALL, zero_head=False).eval()
    pictures = torch.randn(2, 3, 32, 32)
    wanted, names = model(pictures), list(model.state_dict())
    use_eight_bits(model.blocks)
    assert torch.equal(model(pictures), wanted)
    assert list(model.state_dict()) == names
    assert sum(isinstance(part, EightBitLinear) for part in model.modules()) == 8
    assert not torch.equal(model.train()(pictures), wanted)


def test_few_tokens_and_strange_widths_multiply_as_ever(monkeypatch):
    x = torch.randn(8, 64)
    for width in (40, 48):
        linear = eight_bit(nn.Linear(64, width))
        assert torch.equal(linear(x), F.linear(x, linear.weight, linear.bias)) == (width == 40)
    monkeypatch.setattr(fp8_training, "FEWEST", 9)
    assert torch.equal(linear(x), F.linear(x, linear.weight, linear.bias))


FORMS = [{}, {"mlp": "swiglu", "norm": "rms", "qk_norm": True, "rope": True}, {"dropout": 0.1, "layer_scale": 1e-5}]


@pytest.mark.parametrize("form", FORMS, ids=["plain", "swiglu", "dropout"])
def test_a_model_has_nearly_the_gradients_of_float32(form):
    """To a third of their length, as gradients are rounded to two bits, several times on their way; compiled too."""
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", **SMALL, **form, zero_head=False).train()
    pictures, labels = torch.randn(8, 3, 32, 32), torch.arange(8)

    def gradients(run):
        model.zero_grad()
        torch.manual_seed(1)
        F.cross_entropy(run(pictures), labels).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    wanted = gradients(model)
    use_eight_bits(model.blocks)
    found = gradients(model)
    assert 0.01 < (found - wanted).norm() / wanted.norm() < 1 / 3
    torch.compiler.reset()
    compiled = gradients(torch.compile(model, backend="aot_eager", fullgraph=True))
    assert (compiled - found).norm() / wanted.norm() < 1e-5


def kernels_apart(device):
    """Numbers that each kernel has otherwise than the plain way beside it, and how far its sums are."""
    from vitrail.model.kernels import eight_bits

    torch.manual_seed(0)
    scale, other = (torch.tensor(value, device=device) for value in (8.0, 4.0))
    for shape in ((1, 16), (37, 48), (130, 80), (300, 144)):
        x, hidden = (torch.randn(shape, device=device) for _ in range(2))
        for kind, kernel in (
            (fp8_training.TOKEN, eight_bits.tokens_both_ways),
            (fp8_training.GRADIENT, eight_bits.gradient_both_ways),
        ):
            along, across, *sums = kernel(x, scale)
            wanted = fp8_training.rounded(x, scale, kind)
            yield from (_unequal(along, wanted), _unequal(across, _turned(wanted)))
            yield _unequal(eight_bits.turn_eight_bits(along), across)
            yield from (float((one.sum(0) - x.sum(0)).abs().max()) > 1e-4 for one in sums)
        *found, sums = eight_bits.gelu_backward_in_eight_bits(hidden, x, scale, other)
        exact = hidden.double().requires_grad_()
        active = F.gelu(exact, approximate="tanh")
        (before,) = torch.autograd.grad(active, exact, x.double())
        small = fp8_training.rounded(before, other, fp8_training.GRADIENT)
        active = fp8_training.rounded(active.detach(), scale, fp8_training.TOKEN)
        wanted = small, _turned(small), _turned(active)
        yield from (_unequal(one, two) for one, two in zip(found, wanted, strict=True))
        yield float((sums.sum(0) - before.sum(0)).abs().max()) > 1e-4


def _turned(x):
    """Filled up with zeros to a multiple of 16."""
    wide = torch.zeros(x.shape[1], -(-x.shape[0] // 16) * 16, device=x.device)
    wide[:, : x.shape[0]] = x.float().T
    return wide.to(x.dtype)


def _unequal(found, wanted):
    """The part of numbers that are not equal."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    return float((found.float() != wanted.float()).float().mean())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested")
def test_kernels_do_what_the_plain_way_does():
    """But for numbers at the border between two, of which GELU's approximation makes either: one in a hundred."""
    script = (
        "from tests.model.interpreting import round_as_gpus_do\n"
        "from tests.model.test_fp8_training import kernels_apart\n"
        "round_as_gpus_do()\n"
        "print(*map(float, kernels_apart('cpu')))\n"
    )
    found = interpreted(script)
    assert len(found) == 4 * (3 + 4 + 4)
    assert all(one < 0.01 for one in found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_the_kernels_do_what_the_plain_way_does():
    assert all(one < 0.01 for one in kernels_apart("cuda"))


def check_operators():
    """torch's own checks of the operators: what they are said to give is what they give, and they change no input."""
    from vitrail.model.kernels import eight_bits

    scale = torch.tensor(2.0)
    x, small = torch.randn(20, 32), torch.randn(20, 32).to(fp8_training.TOKEN)
    for operator, given in (
        (eight_bits.tokens_both_ways, (x, scale)),
        (eight_bits.gradient_both_ways, (x, scale)),
        (eight_bits.turn_eight_bits, (small,)),
        (eight_bits.gelu_backward_in_eight_bits, (x, x, scale, scale)),
    ):
        # torch cannot compare inputs of eight bits, to see whether they were changed
        checks = ["test_faketensor", "test_aot_dispatch_static"] + ["test_schema"] * (given[0] is x)
        print(*(float(one != "SUCCESS") for one in torch.library.opcheck(operator, given, test_utils=checks).values()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted")
def test_operators_are_what_they_are_said_to_be():
    found = interpreted("from tests.model.test_fp8_training import check_operators; check_operators()")
    assert found == [0.0] * 11


def models_apart(size):
    """Between gradients of a model with the kernels and with none, in float32; between the latter and such as are not
    rounded to eight bits; and with the kernels, as it is and compiled, in bfloat16."""
    from vitrail.model import attention, devices, kernel_sizes, layers

    kernel_sizes.LEAST_WORK, fp8_training.FEWEST, attention.is_hopper = 0, 1, lambda: True
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", **SMALL | {"img_size": size}, pool="mean", zero_head=False).train()
    pictures, labels = torch.randn(2, 3, size, size), torch.arange(2)

    def gradients(kernels, kind, run=model):
        for module in (attention, devices, layers):
            module.half_on_gpu = lambda x: kind if kernels else None
        fp8_training._has_kernels = lambda x: kernels
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            loss = F.cross_entropy(run(pictures).float(), labels)
        loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    exact = gradients(False, torch.float32)
    use_eight_bits(model.blocks)
    with_them, without = (gradients(kernels, torch.float32) for kernels in (True, False))
    assert not torch.equal(with_them, without)  # or the same was done twice
    plain = gradients(True, torch.bfloat16)
    compiled = gradients(True, torch.bfloat16, torch.compile(model, backend="aot_eager", fullgraph=True))
    pairs = (with_them, without), (without, exact), (compiled, plain)
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested")
@pytest.mark.parametrize("size", [32, 72])  # one kernel for all of attention, and kernels for attention alone
def test_a_model_with_kernels_learns_as_one_without(size):
    """Sums are in another order, so a few numbers fall to the other side when they are rounded: that is less than a
    tenth of what rounding them does. A compiler changes nothing."""
    script = (
        "from tests.model.interpreting import round_as_gpus_do\n"
        "from tests.model.test_fp8_training import models_apart\n"
        "round_as_gpus_do()\n"
        f"print(*models_apart({size}))\n"
    )
    kernels, rounding, compiled = interpreted(script)
    assert kernels < rounding / 10
    assert compiled < 1e-6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("size", [32, 72])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_as_the_plain_way_does(size, compiled):
    """In bfloat16: gradients are about as far from float32's as those of numbers that are only rounded."""
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", **SMALL | {"img_size": size}, pool="mean", zero_head=False).cuda().train()
    pictures, labels = torch.randn(64, 3, size, size, device="cuda"), torch.arange(64, device="cuda") % 10

    def gradients(run, low):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            loss = F.cross_entropy(run(pictures).float(), labels)
        loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    exact = gradients(model, False)
    use_eight_bits(model.blocks)
    torch.compiler.reset()
    found = gradients(torch.compile(model, fullgraph=True) if compiled else model, True)
    model.cpu()
    pictures, labels = pictures.cpu(), labels.cpu()
    plain = gradients(model, False).cuda()
    far, usual = ((one - exact).norm() / exact.norm() for one in (found, plain))
    assert 0.01 < far < 1.5 * usual
