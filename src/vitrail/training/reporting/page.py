"""`report.html`: everything about a run on one page, in one file."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from vitrail.data.notes import counted
from vitrail.pages.document import document, panel, picture_address, section, tile
from vitrail.pages.markup import Markup, joined, tag
from vitrail.pictures.sources import printable
from vitrail.scoring.scores import Scores
from vitrail.training.live import duration
from vitrail.training.reporting.confusion import MOST_CLASSES
from vitrail.training.reporting.curves import History
from vitrail.training.reporting.worst import MOST, ShownMistake

_MOST_LINES = 200
_MOST_PAIRS = 12
_SMALL_MATRIX = 10  # classes; the table of mistakes stands beside it
_SIDE = 128
_AUGMENTED_SIDE = 1100
_SPECIAL = ("notes", "bad")  # facts that have places of their own


@dataclass(frozen=True)
class Story:
    """What the page tells."""

    folder: Path
    history: History
    scores: Scores | None
    classes: Sequence[str]
    recipe_toml: str
    facts: Mapping[str, Any]
    mistakes: Sequence[ShownMistake]
    drawings: Mapping[str, Markup] = field(default_factory=dict)

    @property
    def method(self) -> str | None:
        """By which it learned without labels, if it did."""
        return self.facts.get("method")


def make_page(story: Story) -> str:
    parts = (
        _curves, _seen, _classes, _confused, _calibration, _worst, _augmented, _next, _unreadable, _facts, _recipe,
    )  # fmt: skip
    footer = tag("footer", "Made by ", tag("code", f"vitrail {'pretrain' if story.method else 'train'}"), ".")
    body = [_head(story), *(part(story) for part in parts), footer]
    return document(f"run {printable(story.folder.name)}", body, scripts=("sort.js",))


def _head(story: Story) -> Markup:
    notes = [tag("p", printable(note)) for note in story.facts.get("notes", ())]
    if story.scores is not None and story.scores.unanswered:
        lost = counted(story.scores.unanswered, "picture got no answer", "pictures got no answer")
        notes.append(tag("p", f"{lost}, since the model's outputs were no numbers: counted as wrong"))
    return joined(
        tag("h1", printable(story.folder.name)),
        tag("p", _about(story), class_="soft"),
        tag("div", _tiles(story), class_="tiles"),
        tag("div", notes, class_="notes") if notes else None,
    )


def _about(story: Story) -> str:
    if story.method:
        return f"learned without labels: {story.method}"
    classes = counted(len(story.classes), "class", "classes")
    if story.scores is None:
        return f"{classes} · no validation pictures, so nothing says how good the model is"
    return f"{classes} · judged on {counted(story.scores.pictures, 'validation picture')}"


def _tiles(story: Story) -> list[Markup]:
    scores, history = story.scores, story.history
    tiles = []
    if scores is not None and scores.top1 is not None:
        tiles.append(tile(_percent(scores.top1), "right answers (top‑1)"))
        if len(story.classes) > 5 and scores.top5 is not None:
            tiles.append(tile(_percent(scores.top5), "label among the first five (top‑5)"))
        tiles.append(tile(_percent(scores.macro_f1), "mean F1 of the classes", section="classes"))
        tiles.append(tile(_percent(scores.ece), "calibration error (ECE)", section="calibration"))
    elif scores is not None:
        tiles.append(tile(_percent(scores.mean_average_precision), "mean average precision (mAP)", section="classes"))
        tiles.append(tile(_percent(scores.micro_f1), "F1 of all answers"))
        tiles.append(tile(_percent(scores.macro_f1), "mean F1 of the classes", section="classes"))
    if story.method and history.evaluations:
        judged = history.best or history.evaluations[-1]
        named = (("loss", "{:.3f}", "validation loss"), ("knn", "{:.1%}", "neighbours of the same label"))
        tiles += [tile(form.format(judged[key]), words) for key, form, words in named if judged.get(key) is not None]
    elif scores is None and history.train and history.train[-1].get("loss") is not None:
        tiles.append(tile(f"{history.train[-1]['loss']:.3f}", "training loss at the end"))
    if history.best is not None:
        tiles.append(tile(f"{round(history.best['epoch'], 2):g}", "best epoch", section="curves"))
    seconds = max((row.get("time") or 0.0 for row in (*history.train, *history.evaluations)), default=0.0)
    return [*tiles, tile(duration(seconds), "of training", style="long")] if seconds else tiles


def _curves(story: Story) -> Markup | None:
    if "curves" not in story.drawings:
        return None
    return section("curves", "Curves", None, panel(None, tag("div", story.drawings["curves"], class_="plot")))


def _classes(story: Story) -> Markup | None:
    scores = story.scores
    if scores is None:
        return None
    columns = class_columns(scores)
    key = "average precision" if scores.multi_label else "F1"
    rows = sorted(scores.per_class, key=lambda one: (math.isnan(columns[key](one)), columns[key](one)))
    head = joined(tag("th", "class"), [tag("th", name, class_="number") for name in columns])
    lines = [tag("tr", tag("td", printable(one.name)), [_cell(of(one)) for of in columns.values()]) for one in rows]
    table = tag("table", tag("thead", tag("tr", head)), tag("tbody", lines), class_="sortable")
    lead = "The weakest first; a click on a heading sorts. The same is in per_class.csv."
    return section("classes", "Classes", lead, tag("div", table, class_="panel scroll"))


def class_columns(scores: Scores) -> dict[str, Any]:
    """What is said of each class, and how it is found."""
    columns = {
        "pictures": lambda one: one.support,
        "answers": lambda one: one.answers,
        "precision": lambda one: one.precision,
        "recall": lambda one: one.recall,
        "F1": lambda one: one.f1,
    }
    return {**columns, "average precision": lambda one: one.average_precision} if scores.multi_label else columns


def _cell(value: float) -> Markup:
    if isinstance(value, int):
        return tag("td", f"{value:,}", class_="number")
    if math.isnan(value):
        return tag("td", "–", class_="number")
    return tag("td", _percent(value), class_="number part", style=f"--part:{100 * value:.0f}%")


def _confused(story: Story) -> Markup | None:
    if "confusion" not in story.drawings or story.scores is None:
        return None
    pairs = story.scores.confused(_MOST_PAIRS)
    chart = panel(None, story.drawings["confusion"])
    if len(story.classes) > MOST_CLASSES or not pairs:  # the chart is that of the pairs
        return section("confusion", "What is taken for what", None, chart)
    by_name = {one.name: one for one in story.scores.per_class}
    rows = [
        tag(
            "tr",
            tag("td", printable(pair.label), " → ", printable(pair.answer)),
            tag("td", f"{pair.pictures:,} of {by_name[pair.label].support:,}", class_="number"),
        )
        for pair in pairs
    ]
    table = tag("table", tag("tr", tag("th", "label → answer"), tag("th", "pictures", class_="number")), rows)
    panels = chart, panel("Most frequent mistakes", table)
    beside = len(story.classes) <= _SMALL_MATRIX
    return section("confusion", "What is taken for what", None, tag("div", panels, class_="two") if beside else panels)


def _calibration(story: Story) -> Markup | None:
    if "calibration" not in story.drawings:
        return None
    lead = (
        "Of the answers to which the model gives 80%, 80% should be right. Where the orange line is above "
        "its bar, the model is too sure; where it is inside, not sure enough."
    )
    chart = tag("div", story.drawings["calibration"], class_="middle")
    return section("calibration", "How far its probabilities can be trusted", lead, panel(None, chart))


def _worst(story: Story) -> Markup | None:
    if not story.mistakes:
        return None
    lead = "Wrong answers of which the model was surest: hard pictures, or wrong labels. Label → answer."
    figures = [_mistake(one) for one in story.mistakes[:MOST]]
    return section("worst", "Most confident mistakes", lead, tag("div", figures, class_="sheet"))


def _mistake(mistake: ShownMistake) -> Markup:
    picture = tag("img", src=picture_address(mistake.picture, _SIDE), alt="", loading="lazy")
    change = tag("b", mistake.label), " → ", tag("b", printable(mistake.answer), class_="to")
    caption = [tag("span", change, class_="change"), tag("span", _percent(mistake.probability), class_="score")]
    if mistake.name:
        caption.append(tag("span", printable(mistake.name), class_="file"))
    return tag("figure", tag("div", picture, class_="frame"), tag("figcaption", caption))


def _augmented(story: Story) -> Markup | None:
    sheet = _picture(story.folder / "augmented.png")
    lead = "Pictures of training as the model sees them, cut, turned, coloured and mixed as the recipe says."
    return section("augmented", "What the model is shown", lead, sheet) if sheet else None


def _seen(story: Story) -> Markup | None:
    """Of learning without labels."""
    if drawn := _picture(story.folder / "reconstruction.png"):
        lead = "Pictures it has not learned from, what it was shown of them, and what it drew into the rest."
        return section("reconstruction", "What it makes of the rest", lead, drawn)
    if drawn := _picture(story.folder / "features.png"):
        lead = "Pictures it has not learned from, and their patches: those that are alike to it have like colours."
        return section("features", "What it takes for alike", lead, drawn)
    return None


def _picture(path: Path) -> Markup | None:
    if not path.is_file():
        return None
    with Image.open(path) as picture:
        address = picture_address(picture, _AUGMENTED_SIDE, 75)
    return panel(None, tag("img", src=address, alt="", loading="lazy", class_="wide"))


def _next(story: Story) -> Markup:
    best = "best" if (story.folder / "best").is_dir() or story.scores is not None else "last"
    model = shlex.quote(printable(story.folder / best))
    address = repr(printable(story.folder / best))
    shell = [f"vitrail predict {model} new.jpg", f"vitrail evaluate {model} DATA"]
    python = ["import vitrail", f"vitrail.load({address}).predict('new.jpg')[0]"]
    if story.method:
        shell = [f"vitrail train DATA --from {model}", f"vitrail probe {model} DATA"]
        python = ["import vitrail", f"vitrail.train('photos/', start={address})"]
    panels = [panel("In a shell", _lines(shell)), panel("In Python", _lines(python))]
    return section("next", "How to use the model", None, tag("div", panels, class_="two"))


def _unreadable(story: Story) -> Markup | None:
    bad = story.facts.get("bad") or {}
    if not bad:
        return None
    shown = list(bad.items())[:_MOST_LINES]
    rows = [tag("tr", tag("td", printable(name)), tag("td", printable(why))) for name, why in shown]
    left = len(bad) - len(shown)
    more = tag("p", f"{left:,} more are in bad_images.csv.", class_="soft") if left else None
    table = tag("table", tag("tr", tag("th", "file"), tag("th", "why")), rows)
    lead = f"{counted(len(bad), 'picture')} could not be read and had no part in the training."
    return section("unreadable", "Unreadable pictures", lead, tag("div", table, class_="panel scroll"), more)


def _facts(story: Story) -> Markup | None:
    plain = {key: value for key, value in story.facts.items() if key not in _SPECIAL}
    groups = {key: value for key, value in plain.items() if isinstance(value, Mapping)}
    rest = {key: value for key, value in plain.items() if key not in groups}
    panels = [panel(None, _fact_table(rest))] if rest else []
    beside = [panel(_title(key), _fact_table(value)) for key, value in groups.items() if value]
    panels += [tag("div", beside, class_="two")] if beside else []
    return section("facts", "Facts", None, *panels) if panels else None


def _fact_table(facts: Mapping[str, Any]) -> Markup:
    rows = [tag("tr", tag("td", _words(key)), tag("td", _value(value))) for key, value in facts.items()]
    return tag("table", rows, class_="facts")


def _title(key: str) -> str:
    return _words(key)[:1].upper() + _words(key)[1:]


def _words(key: str) -> str:
    return printable(key).replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {_value(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return "–" if value is None else printable(value)


def _recipe(story: Story) -> Markup:
    lead = "recipe.toml: what this run was made with. It can be fed back in with --recipe."
    return section("recipe", "Recipe", lead, panel(None, _lines(story.recipe_toml.rstrip().splitlines())))


def _lines(lines: Sequence[str]) -> Markup:
    return tag("pre", [part for line in lines for part in (line, Markup("\n"))])


def _percent(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.1%}"
