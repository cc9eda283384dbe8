"""The average of weights: a closed form, leaving steps out, and a model that gets its own bits back."""

from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vitrail.errors import WeightsError
from vitrail.training.ema import Ema

YES, NO = torch.tensor(True), torch.tensor(False)


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))


@torch.no_grad()
def shake(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator))
    model[1].num_batches_tracked.add_(3)
    model[1].running_mean.add_(0.5)


def test_the_average_has_its_closed_form() -> None:
    model, seen = make_model(), []
    ema = Ema(model, 0.5)
    start = model[0].weight.detach().double()
    for step in range(6):
        shake(model, step)
        ema.update(model, YES, ema.weight_at(step))
        seen.append(model[0].weight.detach().double())
    decays = [min(0.5, (1 + step) / (10 + step)) for step in range(6)]
    assert decays == [ema.decay_at(step) for step in range(6)]
    wanted, rest = torch.zeros_like(start), 1.0
    for value, decay in zip(reversed(seen), reversed(decays), strict=True):
        wanted += rest * (1 - decay) * value
        rest *= decay
    torch.testing.assert_close(ema.state()["0.weight"].double(), wanted + rest * start, rtol=1e-6, atol=1e-6)


def test_the_average_is_torchs_once_it_is_old() -> None:
    model = make_model()
    ema, peer = Ema(model, 0.9), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    peer.update_parameters(model)  # the first only copies
    for step in range(200, 220):
        shake(model, step)
        ema.update(model, YES, ema.weight_at(step))
        peer.update_parameters(model)
    theirs = peer.module.state_dict()
    for name, tensor in ema.state().items():
        if tensor.is_floating_point():  # torch averages counters too
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-5)
    assert ema.state()["1.num_batches_tracked"] == model[1].num_batches_tracked == 60


def test_a_step_left_out_changes_nothing() -> None:
    model = make_model()
    ema = Ema(model, 0.9)
    shake(model, 0)
    ema.update(model, YES, ema.weight_at(0))
    before = {name: tensor.clone() for name, tensor in ema.state().items()}
    shake(model, 1)
    ema.update(model, NO, ema.weight_at(1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in ema.state().items())


def test_inside_the_model_is_the_average_and_afterwards_itself() -> None:
    model = make_model()
    ema = Ema(model, 0.9)
    shake(model, 0)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    storage = model[0].weight.data_ptr()
    with suppress(KeyboardInterrupt), ema.swapped(model):
        assert all(torch.equal(tensor, ema.state()[name]) for name, tensor in model.state_dict().items())
        assert not torch.equal(model[0].weight, own["0.weight"])
        raise KeyboardInterrupt
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
    assert model[0].weight.data_ptr() == storage
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_saved_average_goes_on_with_the_same_bits() -> None:
    def run(model: nn.Module, ema: Ema, steps: range) -> dict[str, Tensor]:
        for step in steps:
            shake(model, step)
            ema.update(model, YES, ema.weight_at(step))
        return {name: tensor.clone() for name, tensor in ema.state().items()}

    model = make_model()
    halfway = run(model, Ema(model, 0.99), range(5))
    again = make_model(1)
    again.load_state_dict(model.state_dict())
    resumed = Ema(again, 0.99)
    resumed.load(halfway)
    other = make_model()
    wanted = run(other, Ema(other, 0.99), range(10))
    got = run(again, resumed, range(5, 10))
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_half_precision_is_averaged_in_single() -> None:
    model = make_model().to(torch.bfloat16)
    ema = Ema(model, 0.999)
    assert {t.dtype for t in ema.state().values() if t.is_floating_point()} == {torch.float32}
    start = ema.state()["0.weight"].clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    for step in range(100_000, 100_100):
        ema.update(model, YES, ema.weight_at(step))
    moved = (ema.state()["0.weight"] - start) / (model[0].weight.float() - start)
    assert moved.mean().item() == pytest.approx(1 - 0.999**100, rel=1e-3)


def test_an_average_of_another_model_is_refused() -> None:
    ema = Ema(make_model(), 0.9)
    with pytest.raises(WeightsError, match="another model"):
        ema.load(Ema(nn.Linear(5, 7), 0.9).state())
