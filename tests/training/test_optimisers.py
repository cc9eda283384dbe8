"""Optimisers beside torch's, closed forms and straightforward code; steps left out; states that go on bit for bit."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.errors import WeightsError
from vitrail.model import ViT, ViTConfig
from vitrail.model.devices import cpu_gains_by_bf16
from vitrail.training import sam
from vitrail.training.groups import parameter_groups
from vitrail.training.muon import newton_schulz, orthogonalise
from vitrail.training.optimisers import load_named_state, make_optimiser, named_state, step
from vitrail.training.recipe import Optimiser

NAMES = ["adamw", "adam", "sgd", "lion", "muon"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
YES, NO = torch.tensor(True), torch.tensor(False)
TINY: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices as small as these are not worth a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recipe(name: Any, **changes: Any) -> Optimiser:
    return Optimiser(
        **{"name": name, "lr": 0.01, "weight_decay": 0.1, "layer_decay": 0.8, "betas": (0.9, 0.98)} | changes
    )


def make(name: str, device: str = "cpu", **changes: Any) -> tuple[ViT, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**TINY, zero_head=False)).to(device)
    optimiser = recipe(name, **changes)
    return model, make_optimiser(parameter_groups(model, optimiser), optimiser)


def set_gradients(model: nn.Module, seed: int, factor: float = 1.0) -> None:
    g = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = (factor * torch.randn(parameter.shape, generator=g)).to(parameter)


def take(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for number in steps:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * group["lr_scale"] / (1 + number)
        set_gradients(model, number)
        step(optimizer, YES.to(next(model.parameters()).device))


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {**model.state_dict(), **named_state(optimizer, model)}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("done", [0, 3])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.0])
def test_a_step_left_out_changes_nothing(name: str, done: int, bad: float, device: str) -> None:
    model, optimizer = make(name, device)
    take(model, optimizer, range(done))
    before = everything(model, optimizer)
    set_gradients(model, 99, bad)
    step(optimizer, NO.to(device))
    assert_equal(everything(model, optimizer), before)
    take(model, optimizer, range(done, 5))
    other, never_left_out = make(name, device)
    take(other, never_left_out, range(5))
    assert_equal(everything(model, optimizer), everything(other, never_left_out))


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_a_step_taken_with_a_flag_is_the_step_without(name: str) -> None:
    (model, flagged), (other, plain) = make(name), make(name)
    for number in range(3):
        set_gradients(model, number)
        set_gradients(other, number)
        step(flagged, YES)
        plain.step()
    for ours, theirs in zip(everything(model, flagged).values(), everything(other, plain).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_goes_on_with_the_same_bits(name: str, device: str) -> None:
    model, optimizer = make(name, device)
    take(model, optimizer, range(3))
    saved = everything(model, optimizer)
    assert all(isinstance(tensor, Tensor) for tensor in saved.values())
    take(model, optimizer, range(3, 8))

    torch.manual_seed(1)
    again, resumed = make(name, device)
    take(again, resumed, range(1))  # something else, which must go
    again.load_state_dict({key: saved[key] for key in again.state_dict()})
    load_named_state(resumed, again, {key: saved[key] for key in saved if key not in again.state_dict()})
    take(again, resumed, range(3, 8))
    assert_equal(everything(again, resumed), everything(model, optimizer))


def test_a_state_has_its_names_before_the_first_step() -> None:
    for name, keys in [
        ("adamw", {"step", "exp_avg", "exp_avg_sq"}),
        ("adam", {"step", "exp_avg", "exp_avg_sq"}),
        ("sgd", {"momentum_buffer"}),
        ("lion", {"exp_avg"}),
    ]:
        model, optimizer = make(name)
        wanted = {f"{key}.{parameter}" for key in keys for parameter, _ in model.named_parameters()}
        assert named_state(optimizer, model).keys() == wanted
        take(model, optimizer, range(1))
        assert named_state(optimizer, model).keys() == wanted
    model, optimizer = make("muon")
    state = named_state(optimizer, model)
    assert "momentum_buffer.blocks.1.mlp.fc1.weight" in state
    assert "exp_avg_sq.head.weight" in state
    assert "exp_avg.blocks.1.mlp.fc1.weight" not in state


def test_the_state_of_another_training_is_refused() -> None:
    (model, adam), (other_model, lion) = make("adamw"), make("lion")
    with pytest.raises(WeightsError, match=r"another training.*exp_avg_sq\.blocks.*\(saved is nothing, wanted"):
        load_named_state(adam, model, named_state(lion, other_model))
    wider = ViT(ViTConfig(**TINY | {"num_classes": 6}))
    optimiser = recipe("adamw")
    other = named_state(make_optimiser(parameter_groups(wider, optimiser), optimiser), wider)
    with pytest.raises(WeightsError, match=r"exp_avg\.head\.bias \(saved is \(6,\), wanted \(5,\)\)"):
        load_named_state(adam, model, other)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_the_usual_ones_are_torchs(name: str) -> None:
    model, optimizer = make(name)
    peer = copy.deepcopy(model)
    groups = parameter_groups(peer, recipe(name))
    plain: dict[str, Any] = {"foreach": False, "fused": False, "lr": 0.01}
    theirs: torch.optim.Optimizer = {
        "adamw": lambda: torch.optim.AdamW(groups, betas=(0.9, 0.98), **plain),
        "adam": lambda: torch.optim.Adam(groups, betas=(0.9, 0.98), **plain),
        "sgd": lambda: torch.optim.SGD(groups, momentum=0.9, **plain),
    }[name]()
    take(model, optimizer, range(6))
    for number in range(6):
        for group in theirs.param_groups:
            group["lr"] = group["base_lr"] * group["lr_scale"] / (1 + number)
        set_gradients(peer, number)
        theirs.step()
    for ours, other in zip(model.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)


def test_adam_has_the_decay_in_the_gradient_and_adamw_beside_it() -> None:
    for name, wanted in [("adam", 2 - 0.01), ("adamw", 2 - 0.01 * (1 + 0.1 * 2))]:
        weight = nn.Parameter(torch.full((1, 1), 2.0))
        group = {"params": [weight], "names": ["w"], "weight_decay": 0.1, "lr_scale": 1.0, "base_lr": 0.01, "lr": 0.01}
        optimizer = make_optimiser([group], recipe(name))
        weight.grad = torch.full((1, 1), 3.0)
        step(optimizer, YES)
        assert weight.item() == pytest.approx(wanted, abs=1e-6)  # Adam's first step is lr, whatever the gradient


def test_sgd_without_momentum_follows_the_gradient() -> None:
    model, optimizer = make("sgd", momentum=0.0, weight_decay=0.0, layer_decay=1.0)
    before = model.head.weight.detach().clone()
    set_gradients(model, 0)
    wanted = before - 0.01 * model.head.weight.grad
    step(optimizer, YES)
    torch.testing.assert_close(model.head.weight.detach(), wanted)


def test_lion_is_the_papers_algorithm() -> None:
    model, optimizer = make("lion")
    weights = {name: p.detach().double() for name, p in model.named_parameters()}
    momenta = {name: torch.zeros_like(w) for name, w in weights.items()}
    groups = {name: group for group in optimizer.param_groups for name in group["names"]}
    for number in range(5):
        set_gradients(model, number)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            g, m, group = parameter.grad.double(), momenta[name], groups[name]
            update = torch.sign(0.9 * m + 0.1 * g)
            weights[name] = weights[name] - group["lr"] * (update + group["weight_decay"] * weights[name])
            momenta[name] = 0.98 * m + 0.02 * g
        step(optimizer, YES)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.double(), weights[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(64, 64), (32, 128), (128, 32), (128, 192), (256, 128)])
def test_newton_schulz_comes_near_the_orthogonal_matrix(shape: tuple[int, int], device: str) -> None:
    matrices = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device) for seed in range(3)]
    in_half = device == "cuda" or cpu_gains_by_bf16(min(shape))
    for matrix, got in zip(matrices, orthogonalise(matrices), strict=True):
        u, sizes, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
        inner = u.mT @ got.double() @ vt.mT  # the singular values, if the directions were kept
        values = inner.diagonal()
        assert (inner - torch.diag(values)).abs().max() < (0.05 if in_half else 1e-4)
        wanted = sizes / sizes.norm()
        large = wanted > 0.01
        for _ in range(5):
            wanted = 3.4445 * wanted - 4.7750 * wanted**3 + 2.0315 * wanted**5
        torch.testing.assert_close(values, wanted, rtol=0, atol=0.05 if in_half else 1e-4)
        assert values[large].min() > 0.65
        assert values[large].max() < 1.25


def test_many_matrices_at_once_are_what_each_is_alone() -> None:
    shapes = [(8, 8), (8, 24), (24, 8), (8, 8), (5, 9), (24, 8)]
    matrices = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    for matrix, together in zip(matrices, orthogonalise(matrices), strict=True):
        tall = matrix.shape[0] > matrix.shape[1]
        alone = newton_schulz((matrix.mT if tall else matrix)[None])[0]
        torch.testing.assert_close(together, alone.mT if tall else alone, rtol=1e-5, atol=1e-5)
    assert torch.equal(orthogonalise([torch.zeros(4, 4)])[0], torch.zeros(4, 4))


def one_by_one(weight: Tensor, gradients: list[Tensor], lr: float, decay: float, momentum: float) -> Tensor:
    """Muon for one matrix, in doubles, as its author's page has it."""
    buffer, weight = torch.zeros_like(weight), weight.double()
    for gradient in gradients:
        buffer = momentum * buffer + gradient
        x = gradient + momentum * buffer
        x = (x / x.norm()).double()
        for _ in range(5):
            s = x @ x.T
            x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
        weight = weight * (1 - lr * decay) - lr * max(1, x.shape[0] / x.shape[1]) ** 0.5 * x
    return weight


def test_muon_is_the_straightforward_algorithm() -> None:
    model, optimizer = make("muon", muon_lr=0.05, momentum=0.95)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients: dict[str, list[Tensor]] = {name: [] for name in before}
    for number in range(3):
        set_gradients(model, number)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradients[name].append(parameter.grad.double())
        step(optimizer, YES)
    for block in range(2):
        lr = 0.05 * 0.8 ** (2 - block)
        for key, parts in {"attn.qkv": 3, "attn.proj": 1, "mlp.fc1": 1, "mlp.fc2": 1}.items():
            name = f"blocks.{block}.{key}.weight"
            rows = before[name].shape[0] // parts
            for part in range(parts):
                at = slice(part * rows, (part + 1) * rows)
                wanted = one_by_one(before[name][at], [g[at] for g in gradients[name]], lr, 0.1, 0.95)
                torch.testing.assert_close(model.get_parameter(name)[at].double(), wanted, rtol=1e-3, atol=1e-4)


def test_what_is_no_matrix_is_stepped_by_adamw() -> None:
    (model, muon), (peer, adamw) = make("muon"), make("adamw")
    take(model, muon, range(4))
    take(peer, adamw, range(4))
    rest = [name for group in muon.param_groups if group["kind"] == "rest" for name in group["names"]]
    assert "head.weight" in rest
    assert "patch_embed.proj.weight" in rest
    for name in rest:
        assert torch.equal(model.get_parameter(name), peer.get_parameter(name)), name


def test_muon_is_torchs_within_half_precision() -> None:
    theirs_class = getattr(torch.optim, "Muon", None)
    if theirs_class is None:
        pytest.skip("this torch has no Muon")
    model, optimizer = make("muon", muon_lr=0.05, momentum=0.95, layer_decay=1.0)
    peer = copy.deepcopy(model)
    names = [f"blocks.{i}.{key}.weight" for i in range(2) for key in ("attn.proj", "mlp.fc1", "mlp.fc2")]
    theirs = theirs_class([peer.get_parameter(name) for name in names], lr=0.05, weight_decay=0.1, momentum=0.95)
    for number in range(3):
        set_gradients(model, number)
        set_gradients(peer, number)
        step(optimizer, YES)
        theirs.step()
    for name in names:
        difference = (model.get_parameter(name) - peer.get_parameter(name)).norm()
        assert difference < 0.01 * peer.get_parameter(name).norm(), name  # theirs multiplies in bfloat16


def test_a_state_dict_of_torch_keeps_muon_whole() -> None:
    (model, optimizer), (other, loaded) = make("muon"), make("muon")
    take(model, optimizer, range(2))
    other.load_state_dict(model.state_dict())
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take(model, optimizer, range(2, 4))
    take(other, loaded, range(2, 4))
    assert_equal(everything(model, optimizer), everything(other, loaded))


def test_parameters_without_gradients_stay() -> None:
    for name in NAMES:
        model, optimizer = make(name)
        before = model.get_parameter("blocks.0.mlp.fc1.weight").clone()
        set_gradients(model, 0)
        model.get_parameter("blocks.0.mlp.fc1.weight").grad = None
        step(optimizer, YES)
        assert torch.equal(model.get_parameter("blocks.0.mlp.fc1.weight"), before)
        assert not torch.equal(model.get_parameter("blocks.0.mlp.fc2.weight"), make(name)[0].blocks[0].mlp.fc2.weight)


def test_sam_steps_with_the_gradient_of_the_worst_place_nearby() -> None:
    a = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    parts = [nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([-2.0])), nn.Parameter(torch.ones(3))]

    def backward() -> None:
        x = torch.cat(parts[:2])
        (0.5 * x @ a @ x).backward()  # its gradient is A x

    x = torch.tensor([1.0, -2.0])
    backward()
    before = sam.ascend(parts, 0.1)
    g = a @ x
    torch.testing.assert_close(torch.cat(parts[:2]).detach(), x + 0.1 * g / g.norm())
    for part in parts:
        part.grad = None
    backward()
    sam.descend(parts, before)
    assert torch.equal(torch.cat([part.detach() for part in parts]), torch.tensor([1.0, -2.0, 1.0, 1.0, 1.0]))
    got = torch.cat([part.grad for part in parts[:2] if part.grad is not None])
    torch.testing.assert_close(got, a @ (x + 0.1 * g / g.norm()))


def test_sam_puts_a_model_back_bit_for_bit_even_from_nowhere() -> None:
    model, _ = make("sgd")
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    for factor in (1e-3, 1.0, 1e6, 0.0, math.nan):
        set_gradients(model, 0, factor)
        before = sam.ascend(list(model.parameters()), 0.05)
        if factor in (1e-3, 1.0, 1e6):
            moved = torch.cat([(p - own[name]).flatten() for name, p in model.named_parameters()])
            assert moved.norm().item() == pytest.approx(0.05, rel=1e-4)
        sam.descend(list(model.parameters()), before)
        assert_equal(dict(model.named_parameters()), own)
