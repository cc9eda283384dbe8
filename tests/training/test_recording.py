"""A recorded step is the step itself: the same bits, whatever differs from batch to batch."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import vitrail
from tests.training.running import TINY, make_pictures, rows_of, state_of
from vitrail.data.batch import Batch
from vitrail.training import loop
from vitrail.training.recording import REHEARSALS, RecordedSteps

RICH = {
    "augmentation.mixup": 0.5,
    "augmentation.cutmix": 0.5,
    "augmentation.erase": 0.5,
    "architecture.drop_path": 0.3,
    "ema": 0.9,
    "schedule.kind": "cosine",
    "steps": 12,
    "batch_size": 8,
}


# numbers from the host, shapes that it must know, numbers that it reads (whole ones, `one_hot` checks on a CPU alone)
NOT_RECORDED = {"lift_fresh", "nonzero", "masked_select", "_local_scalar_dense"}


class Watch(TorchDispatchMode):
    """Keeps the names of all that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name != "_local_scalar_dense" or args[0].is_floating_point():
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


class Tape:
    """What a GPU does with a recording: the same work again on the tensors of the first time."""

    made = 0

    def __init__(self, work: Any) -> None:
        self.work = work
        Tape.made += 1

    def replay(self) -> None:
        with Watch() as watch:
            self.work()
        assert not watch.seen & NOT_RECORDED


@pytest.fixture
def pictures(tmp_path):
    return make_pictures(tmp_path / "pictures")


@pytest.fixture
def tape(monkeypatch):
    monkeypatch.setattr(loop, "why_not", lambda recipe, world: None if recipe.record else "not asked for")
    monkeypatch.setattr(loop, "RecordedSteps", lambda step: RecordedSteps(step, record=Tape))
    Tape.made = 0


def same_bits(one, other):
    (ours, _), (theirs, _) = state_of(one), state_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    losses = [[row["loss"] for row in rows_of(run) if row["kind"] == "train"] for run in (one, other)]
    assert losses[0] == losses[1]


@pytest.mark.usefixtures("tape")
@pytest.mark.parametrize("optimiser", ["adamw", "muon", "sgd", "lion"])
def test_a_recorded_training_is_the_training_bit_for_bit(pictures, tmp_path, optimiser):
    settings = TINY | RICH | {"optimiser.name": optimiser, "data.engine": "resident"}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
    assert Tape.made == 1
    same_bits(tmp_path / "recorded", tmp_path / "plain")


@pytest.mark.usefixtures("tape")
def test_each_size_of_picture_has_a_recording_of_its_own(pictures, tmp_path):
    stages = [{"until": 0.5, "img_size": 16}]
    settings = TINY | RICH | {"stages": stages, "steps": 16, "architecture.rope": False, "architecture.init": "paper"}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
    assert Tape.made == 2
    same_bits(tmp_path / "recorded", tmp_path / "plain")


@pytest.mark.usefixtures("tape")
def test_steps_that_leave_patches_out_have_a_recording_of_their_own(pictures, tmp_path):
    settings = TINY | RICH | {"stages": [{"until": 0.5, "patch_drop": 0.5}], "steps": 16}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
    assert Tape.made == 2
    same_bits(tmp_path / "recorded", tmp_path / "plain")


@pytest.mark.usefixtures("tape")
def test_steps_that_no_longer_mix_pictures_have_a_recording_of_their_own(pictures, tmp_path):
    mixing = {"crop": "pad", "mixup": 0.5, "cutmix": 0.5, "erase": 0.5}
    light = {"augmentation.mixup": 0, "augmentation.cutmix": 0}
    settings = TINY | RICH | light | {"stages": [{"until": 0.5, "augmentation": mixing}], "steps": 16}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
    assert Tape.made == 2
    same_bits(tmp_path / "recorded", tmp_path / "plain")


@pytest.mark.usefixtures("tape")
def test_what_a_teacher_says_is_recorded_too(pictures, tmp_path):
    vitrail.train(pictures, recipe="small", out=tmp_path / "teacher", changes=TINY | RICH, device="cpu")
    settings = TINY | RICH | {"distillation.teacher": str(tmp_path / "teacher"), "seed": 1}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
    assert Tape.made == 1
    same_bits(tmp_path / "recorded", tmp_path / "plain")


def test_the_first_steps_are_rehearsals_and_all_read_their_own_batch():
    seen = []
    recorded = RecordedSteps(lambda batch, pixels: seen.append(batch.labels.clone()), record=Tape)
    wanted = [torch.tensor([number, number + 1]) for number in range(REHEARSALS + 4)]
    for labels in wanted:
        recorded(Batch(labels, torch.zeros(2, 3, 4, 4, dtype=torch.uint8), labels), None)
    assert all(torch.equal(one, other) for one, other in zip(seen, wanted, strict=True))


def short(work: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


def short_and_broken(work: Any) -> Any:
    """Where what is left of the recording cannot be ended either."""
    try:
        short(work)
    finally:
        raise torch.AcceleratorError("operation failed due to a previous error during capture")


@pytest.mark.parametrize("fails", [short, short_and_broken])
def test_where_memory_is_short_for_a_recording_training_goes_on_without(pictures, tmp_path, monkeypatch, fails):
    """With the bits of a training that was never to be recorded."""
    monkeypatch.setattr(loop, "why_not", lambda recipe, world: None if recipe.record else "not asked for")
    monkeypatch.setattr(loop, "RecordedSteps", lambda step: RecordedSteps(step, record=fails))
    for name, record in (("recorded", True), ("plain", False)):
        changes = TINY | RICH | {"data.engine": "resident", "record": record}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
    same_bits(tmp_path / "recorded", tmp_path / "plain")
    events = [row["text"] for row in rows_of(tmp_path / "recorded") if row["kind"] == "event"]
    assert sum("memory is short" in text for text in events) == 1


def test_an_error_of_the_step_itself_is_not_taken_for_want_of_memory():
    def fails(work: Any) -> Any:
        raise torch.AcceleratorError("an illegal instruction was encountered")

    recorded = RecordedSteps(lambda batch, pixels: None, record=fails)
    labels = torch.tensor([0, 1])
    batch = Batch(labels, torch.zeros(2, 3, 4, 4, dtype=torch.uint8), labels)
    for _ in range(REHEARSALS):
        recorded(batch, None)
    with pytest.raises(torch.AcceleratorError, match="illegal"):
        recorded(batch, None)


def test_a_recording_that_cannot_be_made_here_is_said(pictures, tmp_path, capfd):
    changes = TINY | {"record": True, "steps": 2}
    vitrail.train(pictures, recipe="small", out=tmp_path / "run", changes=changes, device="cpu", quiet=False)
    assert "steps are not recorded: it takes one process on a GPU" in "".join(capfd.readouterr())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("optimiser", ["adamw", "muon", "sgd", "lion"])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_a_recorded_training_is_the_training_bit_for_bit(pictures, tmp_path, monkeypatch, optimiser, compiled):
    """With kernels for small layers in both, which otherwise recorded steps alone have."""
    monkeypatch.setattr("vitrail.model.kernel_sizes.LEAST_WORK", 0)
    settings = TINY | RICH | {"optimiser.name": optimiser, "data.engine": "resident", "compile": compiled}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record, "deterministic": True}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cuda")
    same_bits(tmp_path / "recorded", tmp_path / "plain")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_what_a_teacher_says_can_be_recorded(pictures, tmp_path, monkeypatch, compiled):
    monkeypatch.setattr("vitrail.model.kernel_sizes.LEAST_WORK", 0)
    settings = TINY | RICH | {"data.engine": "resident", "deterministic": True}
    vitrail.train(pictures, recipe="small", out=tmp_path / "teacher", changes=settings, device="cuda")
    settings |= {"distillation.teacher": str(tmp_path / "teacher"), "distillation.kind": "soft", "compile": compiled}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record, "seed": 1}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cuda")
    same_bits(tmp_path / "recorded", tmp_path / "plain")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_eight_bits_can_be_recorded(pictures, tmp_path, monkeypatch, compiled):
    monkeypatch.setattr("vitrail.model.fp8_training.FEWEST", 1)
    monkeypatch.setattr("vitrail.model.kernel_sizes.LEAST_WORK", 0)
    settings = TINY | RICH | {"precision": "fp8", "data.engine": "resident", "compile": compiled}
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings | {"record": record, "deterministic": True}
        vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cuda")
    same_bits(tmp_path / "recorded", tmp_path / "plain")
