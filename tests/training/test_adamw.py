"""AdamW with halves of weights takes the steps of torch's, and a training with them is the training without them; where
there is no GPU, in Triton's interpreter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitrail
from tests.model.interpreting import interpreted
from tests.training.running import TINY, assert_same_training, make_pictures, rows_of, state_of
from tests.training.test_recording import Tape, same_bits
from vitrail.model import halves as halves_module
from vitrail.model.halves import Halves
from vitrail.training import assembly, loop
from vitrail.training.loop import Trainer
from vitrail.training.optimisers import make_optimiser, step
from vitrail.training.recipe import Optimiser
from vitrail.training.recording import RecordedSteps
from vitrail.training.stopping import StoppedError
from vitrail.training.train import resume

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
ELSEWHERE = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself is tested")
SIZES = [(7, 5), (33, 70), (64, 128), (129, 50)]
SETTINGS = TINY | {"optimiser.name": "adamw", "ema": 0.9, "optimiser.clip": 0.05, "architecture.drop_path": 0.2}


def maps(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(*size) for size in SIZES)).to(device)


def apart(
    device: str, kind: torch.dtype, factor: float | None = 0.25, betas: tuple[float, float] = (0.9, 0.999)
) -> Any:
    """Differences of weights with halves, and of their state, from those of torch's AdamW after 20 steps, of which the
    first and the eighth are left out; over the largest numbers. Then what the halves are off the weights."""
    halves_module.FEWEST = 1
    ours, theirs = maps(device), maps(device).double()
    halves = Halves([ours], kind)
    settings = Optimiser(name="adamw", lr=1e-2, betas=betas)
    groups = [
        [{"params": list(part.parameters()), "weight_decay": decay, "base_lr": lr, "lr_scale": 1.0, "lr": lr}
         for part, decay, lr in ((model[:2], 0.1, 0.02), (model[2:], 0.0, 0.01))]
        for model in (ours, theirs)
    ]  # fmt: skip
    made = make_optimiser(groups[0], settings, halves)
    # straightforward, in float64: what is left out, it is not asked for
    peer = torch.optim.AdamW(groups[1], betas=betas, foreach=False)
    of = dict(halves.pairs())
    for number in range(20):
        rate = 1 / (1 + number)
        halves.factor = None if factor is None else torch.tensor(factor, device=device)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            gradient = torch.randn(one.shape).to(device, kind)
            if one in of:
                of[one].grad = gradient
                other.grad = gradient.double() * (1 if factor is None else factor)
            else:
                one.grad, other.grad = gradient.float(), gradient.double()
        ok = number not in (0, 7)
        if not ok:
            next(iter(of.values())).grad[0] = torch.nan
        step(made, torch.tensor(ok, device=device), torch.tensor(rate, device=device))
        for group in peer.param_groups:
            group["lr"] = group["base_lr"] * rate
        if ok:
            peer.step()
        made.zero_grad()
    found = []
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        pairs = [(one, other), *((made.state[one][key], peer.state[other][key]) for key in ("exp_avg", "exp_avg_sq"))]
        differences = [float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max()) for a, b in pairs]
        if one in of:
            found += differences
        else:  # torch's own, which on a GPU has 1 - beta2 in float32
            assert max(differences) < 2e-5
        assert int(made.state[one]["step"]) == int(peer.state[other]["step"]) == 18
    off = [float(((half - weight).abs() / weight.abs().clamp(min=1e-9)).max().detach()) for weight, half in of.items()]
    assert len(of) == len(SIZES)
    return found, off


@ELSEWHERE
def test_its_steps_are_those_of_torch():
    """In float32, to 2e-6, with or without a factor; halves in float32 are the weights. In bfloat16 they have its eight
    bits, which the interpreter cuts off where a GPU rounds."""
    script = (
        "from tests.training.test_adamw import apart\n"
        "import torch\n"
        "for factor, betas in ((0.25, (0.9, 0.999)), (None, (0.9, 0.98)), (1.0, (0.0, 0.95))):\n"
        "    found, off = apart('cpu', torch.float32, factor, betas)\n"
        "    print(max(found), *off)\n"
        "found, off = apart('cpu', torch.bfloat16)\n"
        "print(max(found), *off)\n"
    )
    found = interpreted(script)
    rows = [found[at : at + 5] for at in range(0, 20, 5)]
    assert len(found) == 20
    for row in rows[:3]:
        assert row[0] < 2e-6
        assert row[1:] == [0, 0, 0, 0]
    assert rows[3][0] < 2e-6
    assert all(0 < one <= 2**-7 for one in rows[3][1:])


@ON_GPU
@pytest.mark.parametrize("factor", [None, 0.25])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95)])
def test_on_a_gpu_its_steps_are_those_of_torch(factor, betas, monkeypatch):
    monkeypatch.setattr(halves_module, "FEWEST", halves_module.FEWEST)  # what `apart` sets is set back
    found, off = apart("cuda", torch.bfloat16, factor, betas)
    assert max(found) < 2e-6
    assert all(0 < one <= 2**-8 for one in off)


def test_a_gradient_of_the_weight_itself_is_refused(monkeypatch):
    """It would be lost."""
    monkeypatch.setattr(halves_module, "FEWEST", 1)
    model = maps("cpu")
    group = {"params": list(model.parameters()), "weight_decay": 0.0}
    made = make_optimiser([group], Optimiser(name="adamw"), Halves([model]))
    model[0].weight.sum().backward()
    with pytest.raises(RuntimeError, match="gradient of its own"):
        made.step()


def test_what_a_rule_freezes_has_no_half(tmp_path, monkeypatch):
    """It is frozen before halves are made."""
    learning: list[set[str]] = []

    def halves_for(recipe: Any, model: Any, *_: Any) -> Halves:
        learning.append({name for name, one in model.named_parameters() if one.requires_grad})
        return Halves()

    monkeypatch.setattr(assembly, "halves_for", halves_for)
    frozen = {"optimiser.groups": [{"match": "blocks.0.*", "frozen": True}], "steps": 1}
    vitrail.train(make_pictures(tmp_path / "pictures"), recipe="small", out=tmp_path / "run", device="cpu",
                  changes=SETTINGS | frozen)  # fmt: skip
    assert learning
    assert all(name.startswith("blocks.1") for name in learning[0] if name.startswith("blocks."))


def with_halves_on_a_cpu() -> list[Halves]:
    """From now on trainings here have halves, as exact as the weights; they are listed as they are made."""
    made: list[Halves] = []

    def halves_for(recipe: Any, model: Any, *_: Any) -> Halves:
        made.append(Halves([model.blocks], torch.float32))
        return made[-1]

    halves_module.FEWEST = 1
    assembly.halves_for = halves_for
    return made


def check_trainings(folder: Path) -> None:
    """Prints how far apart weights, averages and states are after a training with halves and one without; stopped and
    gone on with, or recorded, the former has the same bits."""
    data = make_pictures(folder / "pictures")
    options: dict[str, Any] = {"recipe": "small", "device": "cpu"}
    vitrail.train(data, out=folder / "plain", changes=SETTINGS, **options)
    made = with_halves_on_a_cpu()
    vitrail.train(data, out=folder / "halves", changes=SETTINGS, **options)
    assert len(made) == 1
    assert not made[0]  # released at the end
    (ours, _), (theirs, _) = state_of(folder / "halves"), state_of(folder / "plain")
    assert ours.keys() == theirs.keys()
    for name in ours:
        print(float((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp(min=1e-9)))
    original = Trainer.train_step

    def train_step(trainer: Any, *rest: Any) -> None:
        original(trainer, *rest)
        trainer.stop.signal = 15 if trainer.progress.step == 5 else trainer.stop.signal

    Trainer.train_step = train_step  # type: ignore[method-assign]
    try:
        vitrail.train(data, out=folder / "stopped", changes=SETTINGS, **options)
    except StoppedError:
        resume(folder / "stopped", device="cpu")
    assert len(made) == 3
    assert_same_training(folder / "halves", folder / "stopped")
    Trainer.train_step = original  # type: ignore[method-assign]
    loop.why_not = lambda recipe, world: None
    loop.RecordedSteps = lambda step: RecordedSteps(step, record=Tape)  # type: ignore[assignment,misc]
    vitrail.train(data, out=folder / "recorded", changes=SETTINGS, **options)
    assert Tape.made == 1
    same_bits(folder / "halves", folder / "recorded")


def check_short_memory(folder: Path) -> None:
    """Where memory becomes short, gradients of parts are added up in float32, by the weights themselves."""
    data = make_pictures(folder / "pictures")
    options: dict[str, Any] = {"recipe": "small", "device": "cpu"}
    made = with_halves_on_a_cpu()
    original, calls = Trainer._gradients, [0]

    def gradients(trainer: Trainer, *rest: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            assert made[0]
            raise torch.OutOfMemoryError("out of memory")
        return original(trainer, *rest)

    Trainer._gradients = gradients  # type: ignore[method-assign]
    vitrail.train(data, out=folder / "short", changes=SETTINGS | {"architecture.drop_path": 0.0}, **options)
    assert not made[0]
    Trainer._gradients = original  # type: ignore[method-assign]
    vitrail.train(data, out=folder / "whole", changes=SETTINGS | {"architecture.drop_path": 0.0}, **options)
    rows = [[row["loss"] for row in rows_of(folder / name) if row["kind"] == "train"] for name in ("short", "whole")]
    for one, other in zip(*rows, strict=True):
        print(abs(one - other))


@ELSEWHERE
def test_a_training_with_halves_is_the_training_and_goes_on_as_it_was(tmp_path):
    """With clipping, an average and noise. In float32, to 1e-5."""
    script = f"import pathlib, tests.training.test_adamw as t\nt.check_trainings(pathlib.Path({str(tmp_path)!r}))\n"
    found = interpreted(script)
    assert len(found) > 100
    assert all(one < 1e-5 for one in found)


@ELSEWHERE
def test_where_memory_becomes_short_a_training_goes_on_without_halves(tmp_path):
    script = f"import pathlib, tests.training.test_adamw as t\nt.check_short_memory(pathlib.Path({str(tmp_path)!r}))\n"
    found = interpreted(script)
    assert len(found) > 1
    assert all(one < 1e-5 for one in found)


@ON_GPU
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_a_training_with_halves_is_the_training(tmp_path, monkeypatch, compiled):
    """To what bfloat16 leaves over twelve steps; recorded, it has the bits of steps that are not."""
    monkeypatch.setattr(halves_module, "FEWEST", 1)
    monkeypatch.setattr("vitrail.model.kernel_sizes.LEAST_WORK", 0)
    data = make_pictures(tmp_path / "pictures")
    settings = SETTINGS | {"precision": "fast", "data.engine": "resident", "deterministic": True, "compile": compiled}
    for name, record in (("halves", False), ("recorded", True), ("plain", False)):
        if name == "plain":
            monkeypatch.setattr(assembly, "halves_for", lambda *_: Halves())
        changes = settings | {"record": record}
        vitrail.train(data, recipe="small", out=tmp_path / name, changes=changes, device="cuda")
    (ours, _), (theirs, _), (recorded, _) = (state_of(tmp_path / name) for name in ("halves", "plain", "recorded"))
    assert all(torch.equal(ours[name], recorded[name]) for name in ours)
    for name in ours:
        # what is added to every key of a query changes nothing: its gradient is rounding alone
        if name.startswith("model.") and not name.endswith("k_norm.bias"):
            bound = 1e-2 if ours[name].ndim > 1 else 2e-2
            assert float((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp(min=1e-9)) < bound, name
    losses = [
        [row["loss"] for row in rows_of(tmp_path / name) if row["kind"] == "train"] for name in ("halves", "plain")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
