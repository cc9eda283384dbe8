"""Draws the pictures of the README: uv run --all-extras python docs/make_images.py"""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.text import Text
from sklearn.datasets import load_sample_image

from vitrail.cli import main
from vitrail.data.augmentation import Augmentation, on_picture
from vitrail.data.augmentation.policy import draw
from vitrail.data.batch import Batch
from vitrail.data.fetching import erasing
from vitrail.data.sheet import contact_sheet
from vitrail.pictures import Preprocessing
from vitrail.scoring.stress.corruptions import CORRUPTIONS, corrupt

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
BLUE, GREY, INK = "#2563a8", "#c3c8cf", "#22262b"


def terminal(name: str, *commands: list[str]) -> None:
    """A picture of a terminal with what the commands print."""
    console = Console(record=True, width=100, file=io.StringIO())
    for command in commands:
        with redirect_stdout(io.StringIO()) as out:
            main(command)
        console.print(Text("$ vitrail " + " ".join(command), style="bold"))
        console.print(Text(out.getvalue().rstrip() + "\n"))
    svg = console.export_svg(title="vitrail", font_aspect_ratio=0.61)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # nothing is fetched from elsewhere
    svg = re.sub(r"<!-- .*? -->\s*", "", svg).replace("Fira Code,", "")
    (IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def speed() -> None:
    """Ratios beside timm, from the committed measurement."""
    content = json.loads((ROOT / "benchmarks" / "bench_h200" / "bench.json").read_text())
    panels: dict[str, dict[str, float]] = {}
    for one in sorted(content["measurements"], key=lambda one: (one["precision"] == "fp8", -one["gflop"])):
        if (one["mode"], one["precision"]) == ("train", "bf16"):
            continue  # `fast` stands for it
        ours, theirs = (
            max((row for row in one["rows"] if row["contender"] == name), key=lambda row: row["pictures_per_s"])
            for name in ("vitrail", "timm")
        )
        model, _, size = one["model"].removeprefix("vit_").partition(" at ")
        notes = [size, "fp8" if one["precision"] == "fp8" else ""]
        label = "\n".join([model.replace("1", "/1").capitalize(), *filter(None, notes)])
        if one["mode"] == "train":
            panels.setdefault("memory of training", {})[label] = ours["memory"] / theirs["memory"]
        kind = "training" if one["mode"] == "train" else "inference" if one["batch"] > 1 else "one picture at a time"
        panels.setdefault(kind, {})[label] = ours["pictures_per_s"] / theirs["pictures_per_s"]
    order = ("training", "inference", "one picture at a time", "memory of training")
    widths = [len(panels[title]) for title in order]
    figure, axes = plt.subplots(1, len(order), figsize=(12.5, 2.8), sharey=True, width_ratios=widths)
    for axis, title in zip(axes, order, strict=True):
        for i, ratio in enumerate(panels[title].values()):
            axis.bar(i - 0.2, 1, 0.38, color=GREY)
            axis.bar(i + 0.2, ratio, 0.38, color=BLUE)
            axis.text(i + 0.2, ratio + 0.02, f"{ratio:.2f}", ha="center", fontsize=8, color=INK)
        axis.set_xticks(range(len(panels[title])), panels[title], fontsize=9)
        axis.set_title(title, fontsize=10, color=INK)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(length=0)
        axis.set_ylim(0, 1.95)
        axis.set_yticks([])
    title = "pictures per second, and memory: vitrail (blue) beside timm (grey = 1)"
    figure.suptitle(title, fontsize=11, color=INK, y=1.02)
    versions = ", ".join(f"{name} {content['versions'][name]}" for name in ("torch", "timm"))
    foot = f"one {content['hardware']}, each compiled or recorded, timm in bfloat16, {versions}, {content['date']}"
    figure.text(0.5, -0.03, foot, ha="center", fontsize=8, color="#666b73")
    figure.tight_layout()
    figure.savefig(IMAGES / "speed.png", dpi=160, bbox_inches="tight")


def augmentation() -> None:
    """One photograph under each policy."""
    photograph = load_sample_image("flower.jpg")
    side = 200
    preprocessing = Preprocessing(size=(side, side), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    jitter = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3}
    plans = {
        "random resized crop, flip": Augmentation(),
        "RandAugment(2, 9)": Augmentation(policy="randaugment", op_prob=1.0),
        "TrivialAugment": Augmentation(policy="trivialaugment"),
        "AutoAugment (ImageNet)": Augmentation(policy="autoaugment-imagenet"),
        "3-Augment, jitter": Augmentation(policy="three-augment", **jitter),
        "AutoAugment (SVHN)": Augmentation(policy="autoaugment-svhn"),
        "erasing, noise": Augmentation(erase=1.0, erase_fill="noise"),
        "cutout": Augmentation(cutout=0.4),
    }
    pictures: list[Image.Image] = []
    for epoch in (4, 11):
        for plan in plans.values():
            drawn = draw(
                plan, 0, epoch, torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long), (side, side)
            )
            pixels = on_picture.augmented(photograph, plan, on_picture.rows(drawn)[0], preprocessing)
            batch = Batch(torch.zeros(1), pixels[None], torch.zeros(1), erasing=erasing(plan, drawn))
            values = batch.inputs(preprocessing)[0].permute(1, 2, 0).numpy()
            levels = (values * preprocessing.std + np.array(preprocessing.mean)) * 255
            pictures.append(Image.fromarray(levels.round().clip(0, 255).astype(np.uint8)))
    contact_sheet(pictures, [*plans, *plans], side=150).quantize(200).save(IMAGES / "augmentation.png", optimize=True)


def stress() -> None:
    """One photograph under each corruption, at severity 3."""
    pixels = torch.from_numpy(Preprocessing(size=(224, 224)).pixels(load_sample_image("flower.jpg")))
    pixels = pixels.permute(2, 0, 1)[None]
    changed = [corrupt(pixels, name, 3, torch.zeros(1, dtype=torch.long))[0] for name in CORRUPTIONS]
    pictures = [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in (pixels[0], *changed)]
    names = ["as it is", *(name.replace("_", " ") for name in CORRUPTIONS)]
    contact_sheet(pictures, names, side=112).save(IMAGES / "corruptions.jpg", quality=80, optimize=True)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    terminal("walk", ["models", "ViT-B/16"])
    speed()
    augmentation()
    stress()
