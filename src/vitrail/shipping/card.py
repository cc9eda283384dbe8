"""The model card: what a model is, what it was trained on and how, what it reached, and how it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from vitrail.classifier import Classifier
from vitrail.model.config import ResNetConfig
from vitrail.training.run import Run

SHOWN = 40  # names of classes; the others are in config.json
PERCENT = ("top1", "top5", "knn", "accuracy", "mean_class_accuracy")


def write_card(classifier: Classifier, repo: str, run: Run | None, elsewhere: bool, license: str | None) -> str:
    """The text of README.md. `elsewhere`: timm and transformers load the folder too."""
    parts = [
        _head(run, repo, elsewhere, license),
        f"# {repo.split('/')[-1]}",
        _what(classifier),
        _use(classifier),
        _training(run),
        _results(run),
        _loading(repo, elsewhere),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(run: Run | None, repo: str, elsewhere: bool, license: str | None) -> str:
    lines = ["---", f"library_name: {'timm' if elsewhere else 'vitrail'}", "pipeline_tag: image-classification"]
    lines += [f"license: {license}"] if license else []
    lines += ["tags:", "- image-classification", "- vitrail"] + ["- timm", "- transformers"] * elsewhere
    top1 = run.scores.get("top1") if run is not None else None
    if run is not None and isinstance(top1, float):
        data = json.dumps(_data_name(run))
        lines += ["model-index:", f"- name: {json.dumps(repo.split('/')[-1])}", "  results:"]
        lines += ["  - task:", "      type: image-classification", "    dataset:", f"      name: {data}"]
        lines += [f"      type: {data}", "    metrics:", "    - type: accuracy", f"      value: {round(top1, 5)}"]
    return "\n".join([*lines, "---"])


def _what(classifier: Classifier) -> str:
    config = classifier.model.config
    kind = "ResNet" if isinstance(config, ResNetConfig) else "Vision Transformer"
    count = sum(parameter.numel() for parameter in classifier.model.parameters())
    names = ", ".join(classifier.classes[:SHOWN])
    more = f", and {len(classifier.classes) - SHOWN:,} more" if len(classifier.classes) > SHOWN else ""
    shape = ""
    if not isinstance(config, ResNetConfig):
        size, patch = "x".join(map(str, config.img_size)), "x".join(map(str, config.patch_size))
        shape = (
            f" It has {config.depth} blocks of width {config.embed_dim}, for pictures of {size} in patches of {patch}."
        )
    return (
        f"A {kind} with {count:,} parameters that tells {len(classifier.classes):,} classes apart.{shape}\n\n"
        f"Pictures: {classifier.preprocessing.describe()}.\n\nClasses: {names}{more}."
    )


def _use(classifier: Classifier) -> str:
    return (
        "## Intended use\n\n"
        f"It says which one of its {len(classifier.classes):,} classes a photograph shows, for pictures like those it "
        "was trained on. It answers with one of them for every picture, also for one that shows none of them, and its "
        "scores are no guarantee: measure it on your own pictures (`vitrail evaluate`) before anything depends on it. "
        "It was not made to recognise people or to decide about them."
    )


def _training(run: Run | None) -> str:
    if run is None:
        return ""
    facts = run.facts
    rows = [("data", _data_name(run)), ("recipe", facts.get("recipe")), ("started from", _base(facts.get("start")))]
    rows += [("steps", facts.get("steps")), ("seconds", facts.get("seconds")), ("device", facts.get("device"))]
    rows += [(name, release) for name, release in facts.get("versions", {}).items()]
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows if value is not None]
    recipe = (run.folder / "recipe.toml").read_text(encoding="utf-8").strip()
    whole = ["", "<details><summary>The whole recipe</summary>", "", "```toml", recipe, "```", "", "</details>"]
    return "\n".join(["## Training", "", "| | |", "|---|---|", *lines, *whole])


def _results(run: Run | None) -> str:
    scores = {} if run is None else run.scores
    lines = []
    for name, value in scores.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        shown = f"{value:.2%}" if name in PERCENT else f"{value:.4g}"
        lines.append(f"| {name} | {shown} |")
    if not lines:
        return ""
    return "\n".join(["## Results", "", "On the validation part of the data:", "", "| | |", "|---|---|", *lines])


def _loading(repo: str, elsewhere: bool) -> str:
    lines = ["## Loading", "", "```python", "import vitrail", ""]
    lines += [f'vitrail.load("hf:{repo}").predict("picture.jpg", top=5)', "```"]
    if elsewhere:
        lines += ["", "```python", "import timm", ""]
        lines += [f'model = timm.create_model("hf-hub:{repo}", pretrained=True).eval()', "```"]
        lines += ["", "```python", "import transformers", ""]
        lines += [f'classify = transformers.pipeline("image-classification", model="{repo}")', "```"]
    return "\n".join(lines)


def _data_name(run: Run) -> str:
    """Its last part: where it lay on somebody's disk is nobody's business."""
    return _base(run.facts.get("data")) or "handwritten digits"


def _base(path: object) -> str | None:
    if not isinstance(path, str):
        return None
    return path if path.startswith("hf:") else Path(path).name


def _cell(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
