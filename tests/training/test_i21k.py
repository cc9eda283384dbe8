"""The paper's supervised pre-training at the shape of ImageNet-21k: 21,843 classes, several to a picture, and the
sigmoid loss."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import vitrail
from vitrail.cli import main
from vitrail.training.log import read_log


def make_table(folder: Path, classes: int, pictures: int) -> Path:
    """Each class is that of three pictures, and each picture of several classes."""
    numbers = np.random.default_rng(0)
    labels: list[list[str]] = [[] for _ in range(pictures)]
    for kind in range(classes):
        for picture in {kind % pictures, (7 * kind + 1) % pictures, (13 * kind + 5) % pictures}:
            labels[picture].append(f"n{kind:08}")
    for number in range(pictures):
        pixels = numbers.integers(0, 256, (20, 24, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    rows = [f"{number}.png,{'|'.join(some)}" for number, some in enumerate(labels)]
    (folder / "table.csv").write_text("\n".join(["path,labels", *rows]))
    return folder / "table.csv"


SMALL = [
    "--img-size=16", "--architecture.patch-size=8", "--architecture.embed-dim=32", "--architecture.depth=2",
    "--architecture.num-heads=2", "--architecture.pre-logits=32", "--batch-size=16", "--accumulate=2", "--steps=8",
    "--schedule.warmup-steps=2", "--data.workers=0", "--device=cpu",
]  # fmt: skip


def test_the_recipe_runs_to_its_end(tmp_path: Path) -> None:
    classes, pictures = 21_843, 300
    table, run = make_table(tmp_path, classes, pictures), tmp_path / "run"
    arguments = ["train", str(table), "--recipe=pretrain-i21k", f"--out={run}", "--separator=|", *SMALL]
    assert main(arguments) == 0
    best = vitrail.load(run)
    config = best.model.config
    assert isinstance(config, vitrail.ViTConfig)
    assert (config.pre_logits, config.num_classes, len(best.classes)) == (32, classes, classes)
    assert "map" in vitrail.Run.open(run).scores
    # one hidden layer with tanh before the head, whose bias began at -10
    model, seen = best.model.eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        token = model.forward_features(seen)[:, 0]
        hidden = torch.tanh(F.linear(token, model.pre_logits.fc.weight, model.pre_logits.fc.bias))
        wanted = F.linear(hidden, model.head.weight, model.head.bias)
        torch.testing.assert_close(model(seen), wanted, atol=1e-5, rtol=1e-5)
        assert abs(float(model.head.bias.mean()) + 10) < 0.1
    # at first all logits are -10: the loss, added up over the classes, is 10 for each label that a picture has
    first = next(row for row in read_log(run) if row["kind"] == "train")
    assert first["loss"] == pytest.approx(10 * 3 * classes / pictures, rel=0.1)
    # and fine-tuning leaves the hidden layer where it is, with a fresh head
    again = vitrail.train(
        table, recipe="finetune", start=str(run), out=tmp_path / "again", device="cpu",
        data_options={"separator": "|"},
        changes={"steps": 1, "batch_size": 8, "data.workers": 0, "schedule.warmup_epochs": 0},
    )  # fmt: skip
    assert again.best.model.config.pre_logits == 32
