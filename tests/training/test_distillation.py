"""Learning from a teacher beside the labels."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from vitrail.classifier import Classifier
from vitrail.errors import ConfigError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing
from vitrail.training import recipe
from vitrail.training.losses import make_loss
from vitrail.training.objective import Distillation
from vitrail.training.train import train

TINY: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
NAMES = ["a", "b", "c"]
LOSS = make_loss(recipe.Loss(), 3, None, False)


def classifier(classes: list[str], seed: int, *, size: int = 16, mean: float = 0.5, **options: Any) -> Classifier:
    torch.manual_seed(seed)
    model = ViT(ViTConfig(**{**TINY, "img_size": size, "zero_head": False, **options})).eval()
    pixels = Preprocessing(size=(size, size), crop_pct=1.0, mean=(mean,) * 3, std=(0.25,) * 3)
    return Classifier(model, pixels, classes)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0])


def test_the_teacher_sees_its_own_pixels_and_its_classes_are_matched_by_name() -> None:
    student, teacher = classifier(NAMES, 0), classifier(["c", "a", "b"], 1, mean=0.3)
    objective = Distillation(LOSS, recipe.Distillation("x", "soft", 0.5, 2.0), teacher, student)
    inputs, _ = batch()
    levels = inputs * 0.25 + 0.5
    wanted = teacher.model((levels - 0.3) / 0.25)[:, [1, 2, 0]]
    torch.testing.assert_close(objective._taught(inputs), wanted)


def test_one_head_learns_from_both_in_the_given_proportion() -> None:
    student, teacher = classifier(NAMES, 0), classifier(NAMES, 1)
    objective = Distillation(LOSS, recipe.Distillation("x", "hard", 0.25), teacher, student)
    inputs, labels = batch()
    loss, _ = objective(student.model, inputs, labels)
    logits, answers = student.model(inputs), teacher.model(inputs).argmax(1)
    wanted = 0.75 * F.cross_entropy(logits, labels) + 0.25 * F.cross_entropy(logits, answers)
    torch.testing.assert_close(loss, wanted)


def test_of_two_heads_one_learns_from_labels_and_one_from_the_teacher() -> None:
    student, teacher = classifier(NAMES, 0, distilled=True), classifier(NAMES, 1)
    model = student.model
    assert isinstance(model, ViT)
    inputs, labels = batch()
    first, second = model(inputs, heads=True)
    torch.testing.assert_close((first + second) / 2, model(inputs))
    only_teacher = Distillation(LOSS, recipe.Distillation("x", "hard", 1.0), teacher, student)
    loss, _ = only_teacher(model, inputs, labels)
    loss.backward()
    assert model.head_dist is not None
    assert model.head_dist.weight.grad.abs().sum() > 0
    assert model.head.weight.grad.abs().sum() == 0
    torch.testing.assert_close(loss, F.cross_entropy(second, teacher.model(inputs).argmax(1)))


def test_a_teacher_of_another_size_is_shown_resized_pictures() -> None:
    student, teacher = classifier(NAMES, 0), classifier(NAMES, 1, size=32)
    objective = Distillation(LOSS, recipe.Distillation("x"), teacher, student)
    assert objective._taught(batch()[0]).shape == (4, 3)


def test_a_teacher_that_does_not_know_a_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not know 1 of 3 classes, first 'b'"):
        Distillation(LOSS, recipe.Distillation("x"), classifier(["a", "c", "d"], 1), classifier(NAMES, 0))


def test_a_training_learns_what_its_teacher_says(tmp_path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = [str(number) for number in range(10)]
    small = {**TINY, "num_classes": 10, "img_size": 8, "patch_size": 4}
    pixels = Preprocessing(size=(8, 8), crop_pct=1.0)
    Classifier(ViT(ViTConfig(**{**small, "zero_head": False})), pixels, digits).save(tmp_path / "teacher")
    changes = {"distillation.teacher": str(tmp_path / "teacher"), "architecture.distilled": True}
    changes |= {
        f"architecture.{name}": value for name, value in small.items() if name not in ("num_classes", "img_size")
    }
    changes |= {
        "architecture.class_token": True,
        "architecture.pool": "token",
        "architecture.rope": False,
        "architecture.init": "paper",
    }
    changes |= {"schedule.warmup_epochs": 0.0}
    run = train(None, out=tmp_path / "run", changes=changes, steps=4, ema=0.0, device="cpu", img_size=8)
    assert run.best.model.config.distilled
