"""The small parts against their formulas: activations, gates, norms."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitrail.model import ViTConfig
from vitrail.model.layers import LayerScale, Mlp, ShortGELU, SwiGLU, make_activation, make_norm


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FORMULAS: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: max(x, 0.0),
}


def test_the_short_way_to_gelu_and_its_derivative_is_exact_to_half_a_millionth() -> None:
    short = torch.linspace(-9, 9, 18_001, requires_grad=True)
    exact = short.detach().double().requires_grad_()
    found, wanted = ShortGELU.apply(short), torch.nn.functional.gelu(exact)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=6e-7)
    slopes = [torch.autograd.grad(y.sum(), x)[0].double() for y, x in ((found, short), (wanted, exact))]
    torch.testing.assert_close(*slopes, rtol=0, atol=6e-7)


@pytest.mark.parametrize("name", FORMULAS)
def test_an_activation_is_its_formula(name: str) -> None:
    points = torch.linspace(-4, 4, 81)
    wanted = torch.tensor([FORMULAS[name](float(x)) for x in points])
    torch.testing.assert_close(make_activation(name)(points), wanted, atol=1e-6, rtol=1e-5)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_an_mlp_is_two_matrices_with_an_activation_between() -> None:
    mlp, x = Mlp(6, 10, "relu", 0.0), noise(3, 6)
    wanted = (x @ mlp.fc1.weight.T + mlp.fc1.bias).clamp(min=0) @ mlp.fc2.weight.T + mlp.fc2.bias
    torch.testing.assert_close(mlp(x), wanted)


@torch.no_grad()
def test_swiglu_gates_the_second_half_by_the_silu_of_the_first() -> None:
    mlp, x = SwiGLU(6, 8, 0.0), noise(3, 6)
    hidden = x @ mlp.fc1.weight.T + mlp.fc1.bias
    first, second = hidden[:, :4], hidden[:, 4:]
    wanted = (first / (1 + torch.exp(-first)) * second) @ mlp.fc2.weight.T + mlp.fc2.bias
    torch.testing.assert_close(mlp(x), wanted)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@torch.no_grad()
def test_a_norm_is_its_formula_with_the_epsilon_of_the_configuration(kind: str) -> None:
    norm, x = make_norm(ViTConfig(norm=kind, norm_eps=0.1), 8), noise(3, 8) + 1
    norm.weight.copy_(noise(8))
    centred = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    wanted = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 0.1) * norm.weight
    torch.testing.assert_close(norm(x), wanted)


def test_layer_scale_multiplies_each_channel() -> None:
    scale, x = LayerScale(4, 0.1), noise(2, 3, 4)
    torch.testing.assert_close(scale(x), 0.1 * x)
    assert [name for name, _ in scale.named_parameters()] == ["gamma"]
