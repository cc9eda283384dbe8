"""Self-distillation: the loss beside its formula in plain loops, teacher and centre beside their closed forms."""

import math

import pytest
import torch

from vitrail.data.batch import Batch
from vitrail.errors import ConfigError
from vitrail.model import ViTConfig
from vitrail.pictures import Preprocessing
from vitrail.pretraining.dino import Distilling, SelfDistillation, distillation_loss, momentum_at, temperature_at
from vitrail.training.methods import Dino
from vitrail.training.parallel import World

ALONE = World(0, 1, torch.device("cpu"))
SETTINGS = Dino(
    local_crops=3, local_size=8, out_dim=24, hidden_dim=20, bottleneck_dim=12, warmup_temperature_epochs=2.0
)
CONFIG = ViTConfig(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=0)
PIXELS = Preprocessing(size=(16, 16))
GOOD, BAD = torch.tensor(True), torch.tensor(False)


def by_the_formula(student: torch.Tensor, teacher: torch.Tensor, centre: torch.Tensor, ts: float, tt: float) -> float:
    """Algorithm 1 of the paper, in Python's own numbers."""

    def softmax(numbers: list[float]) -> list[float]:
        top = max(numbers)
        powers = [math.exp(x - top) for x in numbers]
        return [p / sum(powers) for p in powers]

    total, terms = 0.0, 0
    for v in range(teacher.shape[1]):
        for w in range(student.shape[1]):
            if w == v:
                continue
            for n in range(len(student)):
                wanted = softmax([(t - c) / tt for t, c in zip(teacher[n, v].tolist(), centre.tolist(), strict=True)])
                found = softmax([s / ts for s in student[n, w].tolist()])
                total += -sum(p * math.log(q) for p, q in zip(wanted, found, strict=True)) / len(student)
            terms += 1
    return total / terms


@pytest.mark.parametrize("crops", [2, 5])
def test_the_loss_is_the_formulas(crops: int) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(3, crops, 7).double(), torch.randn(3, 2, 7).double()
    centre = torch.randn(7).double()
    found = distillation_loss(student, teacher, centre, 0.1, 0.04)
    assert float(found) == pytest.approx(by_the_formula(student, teacher, centre, 0.1, 0.04), rel=1e-12)


def test_schedules_are_those_of_the_paper() -> None:
    settings = Dino(warmup_temperature_epochs=3.0)
    found = [temperature_at(settings, step, 10) for step in (0, 15, 30, 500)]
    assert found == pytest.approx([0.04, 0.055, 0.07, 0.07])
    found = [momentum_at(settings, step, 100) for step in (0, 50, 100)]
    assert found == pytest.approx([0.996, 0.998, 1.0])
    assert temperature_at(Dino(warmup_temperature_epochs=0.0), 0, 10) == 0.07


def batch() -> Batch:
    made = torch.Generator().manual_seed(1)

    def pixels(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=made)

    crops = (pixels(4, 1, 3, 16, 16), pixels(4, 3, 3, 8, 8))
    return Batch(torch.arange(4), pixels(4, 3, 16, 16), torch.zeros(4, dtype=torch.int64), crops=crops)


def make() -> tuple[SelfDistillation, Distilling]:
    torch.manual_seed(0)
    model = SelfDistillation(CONFIG, SETTINGS)
    return model, Distilling(model, SETTINGS, 100, 10, ALONE)


def test_the_teacher_follows_the_student_in_closed_form() -> None:
    """A student that stands still at s: after k steps of momentum m the teacher is s + m^k (t - s)."""
    model, task = make()
    with torch.no_grad():
        for one in model.blocks[0].mlp.fc1.parameters():
            one.add_(torch.randn_like(one))
    start = {name: one.clone() for name, one in model.teacher.state_dict().items()}
    distance = 1.0
    for step in range(5):
        task.begin(step)
        task.prepare(batch(), PIXELS)
        task.counted = 1
        task.finish(GOOD, ALONE)
        distance *= momentum_at(SETTINGS, step, 100)
    for name, one in model.teacher.state_dict().items():
        own = model.state_dict()[name]
        torch.testing.assert_close(one, own + distance * (start[name] - own))
    assert not torch.equal(start["blocks.0.mlp.fc1.weight"], model.teacher.blocks[0].mlp.fc1.weight)


def test_the_centre_is_the_moving_mean_of_the_teachers_answers() -> None:
    model, task = make()
    model.centre.fill_(0.5)
    task.begin(0)
    large, small = task.prepare(batch(), PIXELS)
    for k in range(2):  # two parts of a batch
        task(model, large[2 * k : 2 * k + 2], small[2 * k : 2 * k + 2])
    answers = [model.teacher.answers(large[:, view]) for view in range(2)]
    task.finish(GOOD, ALONE)
    wanted = 0.9 * 0.5 + 0.1 * torch.cat(answers).mean(0)
    torch.testing.assert_close(model.centre, wanted, atol=1e-6, rtol=1e-5)


def test_a_step_that_is_left_out_moves_neither_teacher_nor_centre() -> None:
    model, task = make()
    with torch.no_grad():
        model.norm.weight.add_(1)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    task.begin(0)
    task(model, *task.prepare(batch(), PIXELS))
    task.sums += torch.nan
    task.finish(BAD, ALONE)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_the_last_layer_is_frozen_at_first_and_the_teacher_never_learns_by_itself() -> None:
    model, task = make()
    for step, learns in ((0, False), (9, False), (10, True)):
        model.zero_grad()
        task.begin(step)
        task(model, *task.prepare(batch(), PIXELS))[0].backward()
        assert bool(model.dino_head.last_layer.weight.grad.abs().sum() > 0) is learns
        assert model.dino_head.mlp[0].weight.grad.abs().sum() > 0
        assert model.patch_embed.proj.weight.grad.abs().sum() > 0
    assert all(one.grad is None and not one.requires_grad for one in model.teacher.parameters())


def test_prototypes_have_length_one_and_answers_are_cosines() -> None:
    model, _ = make()
    with torch.no_grad():
        model.dino_head.last_layer.weight.mul_(100)
        found = model.answers(torch.randn(5, 3, 16, 16))
    assert found.abs().max() <= 1 + 1e-5
    assert model.answers(torch.randn(2, 3, 8, 8)).shape == (2, 24)


def test_teacher_and_student_start_alike_and_only_the_student_has_noise() -> None:
    torch.manual_seed(0)
    model = SelfDistillation(CONFIG.replace(drop_path=0.5, dropout=0.1), SETTINGS).train()
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in model.teacher.state_dict().items())
    large, small = torch.randn(4, 2, 3, 16, 16), torch.randn(4, 3, 3, 8, 8)
    (one, calm), (two, still) = model(large, small), model(large, small)
    assert not torch.equal(one, two)
    assert torch.equal(calm, still)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="nearest size that fits is"):
        SelfDistillation(CONFIG, Dino(local_size=10))
    with pytest.raises(ConfigError, match="no relative_bias"):
        SelfDistillation(CONFIG.replace(relative_bias=True), SETTINGS)
    for wrong in ({"local_scale": (0.5, 0.1)}, {"blur": (1.0, 2.0, 0.0)}, {"momentum": 1.5}, {"out_dim": 0}):
        with pytest.raises(ConfigError, match="recipe: dino"):
            Dino(**wrong)  # type: ignore[arg-type]


def test_the_model_compiles_into_one_graph() -> None:
    model, _ = make()
    large, small = torch.randn(2, 2, 3, 16, 16), torch.randn(2, 3, 3, 8, 8)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for mine, other in zip(compiled(large, small), model(large, small), strict=True):
        torch.testing.assert_close(mine, other)
