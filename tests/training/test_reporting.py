"""What a run leaves to look at, for every kind of run: read back from the files, and from the figures before they are
drawn."""

import csv
import io
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_fscore_support

from tests.pages.reading import EVIL, Reading
from vitrail.pages.document import colours
from vitrail.pages.plots import as_svg, drawing, new_figure
from vitrail.scoring.metrics import Tally
from vitrail.scoring.scores import Scores
from vitrail.training.reporting import ShownMistake, write_reports
from vitrail.training.reporting.calibration import calibration
from vitrail.training.reporting.confusion import confusion
from vitrail.training.reporting.curves import History, curves

MOST_BYTES = 1_500_000
FACTS = {
    "notes": ["val has no pictures of 'orchid'"],
    "bad": {f"train/{EVIL}.jpg": "the file is truncated"},
    "seed": 0,
    "data": {"train": 2936, "val": 734},
    "machine": {"device": "a GPU", EVIL: EVIL},
}
RECIPE = 'model = "vit_ti16"\nepochs = 3.0\n\n[optimiser]\nlr = 0.001\n'


def log_of(epochs: int, per_epoch: int = 10, judge: str | None = "accuracy") -> list[dict]:
    rows = []
    for step in range(1, epochs * per_epoch + 1):
        about = {"step": step, "epoch": step / per_epoch, "time": step * 2.0}
        figures = {"loss": 2 / step, "accuracy": 1 - 1 / step, "lr": 1e-3 / step, "pictures_per_s": 100.0}
        rows.append({"kind": "train", **about, **figures})
        if step % per_epoch == 0 and judge:
            best = 1 - abs(step - 2 * per_epoch) / 100  # the second epoch
            rows.append({"kind": "eval", **about, "loss": 1 / step, judge: best})
    return rows


def answered(names: list[str], pictures: int, seed: int = 0) -> tuple[Scores, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(names), (pictures,), generator=generator)
    logits = torch.randn(pictures, len(names), generator=generator, dtype=torch.double)
    logits[torch.arange(pictures), labels] += 2.5
    tally = Tally(len(names))
    tally.add(logits, labels, None, torch.arange(pictures))
    return tally.result(names), logits, labels


def shown(scores: Scores, most: int = 60) -> list[ShownMistake]:
    pixels = np.random.default_rng(0).integers(0, 256, (most, 40, 60, 3), np.uint8)
    pictures = [Image.fromarray(one).resize((192, 128)) for one in pixels]
    return [
        ShownMistake(picture, one.labels, one.answer, one.probability, f"val/{EVIL}.jpg")
        for picture, one in zip(pictures, scores.mistakes, strict=False)
    ]


def page_of(folder: Path) -> tuple[str, Reading]:
    text = (folder / "report.html").read_text(encoding="utf-8")
    read = Reading(text)
    assert not read.open
    return text, read


def names_of(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


@pytest.mark.parametrize("classes", [2, 50, 1000])
def test_a_run_with_any_number_of_classes_has_every_file_and_a_light_page(tmp_path: Path, classes: int) -> None:
    names = names_of(classes)
    scores, _, _ = answered(names, 1000)
    Image.effect_noise((1096, 640), 60).convert("RGB").save(tmp_path / "augmented.png")
    written = write_reports(tmp_path, log_of(3), scores, names, RECIPE, FACTS, shown(scores))
    files = {"curves.png", "confusion.png", "calibration.png", "per_class.csv", "worst.png", "report.html"}
    assert {path.name for path in written} == files
    assert all(path.is_file() for path in written)
    for name in files:
        if name.endswith(".png"):
            with Image.open(tmp_path / name) as picture:
                assert max(picture.size) <= 1700
                assert len(picture.convert("RGB").getcolors(1 << 24)) > 20
    assert (tmp_path / "report.html").stat().st_size < MOST_BYTES
    _, read = page_of(tmp_path)
    rows = [name for name, _ in read.tags].count("tr")
    assert rows >= classes
    assert sum(name == "img" for name, _ in read.tags) == min(48, len(scores.mistakes)) + 1
    words = " ".join(read.text)
    for heading in ("Curves", "Classes", "What is taken for what", "Most confident mistakes", "Recipe", "Facts"):
        assert heading in words
    assert f"{scores.top1:.1%}" in words
    assert f"vitrail predict {tmp_path}/best new.jpg" in words
    assert "lr = 0.001" in words


def test_names_are_text_and_the_page_is_complete_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / EVIL
    folder.mkdir()
    names = [EVIL, "$x^2$ \\frac{", "two\nlines\x1b[2J", "日本語 ünï", "--> ]]> %s"]
    scores, _, _ = answered(names, 400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_reports(folder, log_of(3), scores, names, f"# {EVIL}\n{RECIPE}", FACTS, shown(scores, 10))
    text, read = page_of(folder)
    assert [name for name, _ in read.tags].count("script") == 1
    assert not {name for name, _ in read.tags} & {"iframe", "object", "embed", "link", "form", "base"}
    assert all(a["src"].startswith("data:image/jpeg;base64,") for name, a in read.tags if name == "img")
    assert not any(key.startswith("on") for _, attributes in read.tags for key in attributes)
    assert all(a["href"].startswith("#") for _, a in read.tags if a.get("href"))
    assert "http" not in text
    assert sum(EVIL in part for part in read.text) >= 5
    assert sum("$x^2$" in part for part in read.text) >= 3  # in the table, and beside both axes
    identities = [a["id"] for _, a in read.tags if "id" in a]
    assert len(identities) == len(set(identities))
    linked = {a["href"][1:] for _, a in read.tags if a.get("href")}
    assert linked <= set(identities)


def test_the_table_of_classes_is_that_of_scikit_learn(tmp_path: Path) -> None:
    names = names_of(4)
    scores, logits, labels = answered(names, 300)
    write_reports(tmp_path, log_of(1), scores, names, RECIPE, {})
    with open(tmp_path / "per_class.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == names
    wanted = precision_recall_fscore_support(labels, logits.argmax(1))
    for column, values in zip(("precision", "recall", "f1", "support"), wanted, strict=True):
        assert [float(row[column]) for row in rows] == pytest.approx(list(values))


def test_several_labels_have_average_precision_and_no_confusion(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(200, 6, generator=generator) < 0.3).long()
    targets[:, 5] = 0
    logits = torch.randn(200, 6, generator=generator, dtype=torch.double) + 2 * targets - 1
    tally = Tally(6, multi_label=True)
    tally.add(logits, targets, None, torch.arange(200))
    names = names_of(6)
    scores = tally.result(names)
    written = write_reports(tmp_path, log_of(3, judge="map"), scores, names, RECIPE, FACTS, shown(scores))
    assert {path.name for path in written} == {"curves.png", "per_class.csv", "worst.png", "report.html"}
    with open(tmp_path / "per_class.csv", newline="") as file:
        found = [row["average_precision"] for row in csv.DictReader(file)]
    wanted = [average_precision_score(targets[:, k], logits[:, k]) for k in range(5)]
    assert [float(value) for value in found[:5]] == pytest.approx(wanted)
    assert found[5] == ""  # no picture has it
    words = " ".join(page_of(tmp_path)[1].text)
    assert "mean average precision (mAP)" in words
    assert "What is taken for what" not in words


def test_a_run_without_validation_says_so(tmp_path: Path) -> None:
    written = write_reports(tmp_path, log_of(2, judge=None), None, ["a", "b"], RECIPE, FACTS)
    assert {path.name for path in written} == {"curves.png", "report.html"}
    words = " ".join(page_of(tmp_path)[1].text)
    assert "no validation pictures" in words
    assert "/last new.jpg" in words


def test_a_run_that_wrote_nothing_down_has_a_page_too(tmp_path: Path) -> None:
    assert [path.name for path in write_reports(tmp_path, [], None, ["a"], RECIPE, {})] == ["report.html"]
    page_of(tmp_path)


def test_a_perfect_model_and_a_class_without_pictures_are_shown(tmp_path: Path) -> None:
    names = names_of(60)
    tally = Tally(60)
    labels = torch.arange(50)
    tally.add(torch.eye(60)[:50] * 99, labels, None, torch.arange(50))
    scores = tally.result(names)
    written = write_reports(tmp_path, log_of(1), scores, names, RECIPE, {})
    assert "confusion.png" not in {path.name for path in written}  # no pair is confused
    assert "100.0%" in " ".join(page_of(tmp_path)[1].text)
    assert "–" in page_of(tmp_path)[1].text


def lines_of(figure: Figure, title: str) -> dict[str, np.ndarray]:
    (axes,) = (axes for axes in figure.axes if axes.get_title("left") == title)
    return {str(line.get_label()): np.array(line.get_xydata()) for line in axes.get_lines()}


def test_curves_are_the_rows_of_the_log_and_the_best_epoch_is_marked() -> None:
    rows = log_of(4)
    with drawing():
        figure = curves(History.of(rows))
        assert figure is not None
        judged = [(row["epoch"], row["accuracy"]) for row in rows if row["kind"] == "eval"]
        trained = [(row["epoch"], row["lr"]) for row in rows if row["kind"] == "train"]
        assert lines_of(figure, "Accuracy")["validation"].tolist() == [list(pair) for pair in judged]
        assert lines_of(figure, "Learning rate")["training"].tolist() == [list(pair) for pair in trained]
        words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert words == ["best: 100.0%, epoch 2"]


def test_a_long_log_is_drawn_as_means_of_neighbours() -> None:
    rows = log_of(100, per_epoch=100, judge=None)
    with drawing():
        figure = curves(History.of(rows))
        assert figure is not None
        line = lines_of(figure, "Learning rate")["training"]
    values = np.array([row["lr"] for row in rows])
    assert line[:, 1] == pytest.approx(values.reshape(400, 25).mean(1))


def test_where_a_training_went_back_its_last_course_is_drawn() -> None:
    steps = [1, 2, 3, 4, 3, 4, 5]
    rows = [{"kind": "train", "step": step, "epoch": step, "loss": place} for place, step in enumerate(steps)]
    assert [row["loss"] for row in History.of(rows).train] == [0, 1, 4, 5, 6]


def test_a_burst_of_the_loss_does_not_flatten_the_rest() -> None:
    rows = log_of(10)
    rows[50]["loss"] = 1e6
    with drawing():
        figure = curves(History.of(rows))
        assert figure is not None
        assert figure.axes[0].get_ylim()[1] < 10


@pytest.mark.parametrize("speed", [0.31, 12_000.0])
@pytest.mark.parametrize("rate", [1.0, 1e-3, 7e-6])
@pytest.mark.parametrize(
    "losses",
    [[0.6931, 0.69305, 0.69302, 0.693], [0.6931] * 4, [0.6931], [2.3, 1.1, 0.4], [2e-7, 1e-7], [123456.7, 123456.8]],
)
def test_every_tick_says_where_it_stands(losses: list[float], rate: float, speed: float) -> None:
    rows = [
        {"kind": "train", "step": k, "epoch": k, "loss": loss, "lr": rate * (1 + 1e-4 * k), "pictures_per_s": speed}
        for k, loss in enumerate(losses)
    ]
    with drawing():
        figure = curves(History.of(rows))
        assert figure is not None
        figure.savefig(io.BytesIO())
        for axes in figure.axes:
            ticks, words = axes.get_yticks(), [text.get_text().replace(",", "") for text in axes.get_yticklabels()]
            assert len(set(words)) == len(words) > 1
            assert [float(word.replace("−", "-")) for word in words] == pytest.approx(list(ticks), rel=1e-12)


def test_one_step_is_a_dot() -> None:
    with drawing():
        figure = curves(History.of(log_of(1, per_epoch=1)))
        assert figure is not None
        assert all(axes.get_lines()[0].get_marker() == "o" for axes in figure.axes)


def test_the_matrix_holds_the_shares_of_each_row() -> None:
    names = names_of(4)
    scores, logits, labels = answered(names, 200)
    with drawing():
        figure = confusion(scores)
        assert figure is not None
        found = {tuple(map(int, text.get_position())): text.get_text() for text in figure.axes[0].texts}
    wanted = confusion_matrix(labels, logits.argmax(1), normalize="true")
    for (column, row), words in found.items():
        assert words == ("<1" if wanted[row, column] < 0.005 else f"{100 * wanted[row, column]:.0f}")
    assert len(found) == np.count_nonzero(wanted)


def test_many_classes_are_the_pairs_that_are_confused_most() -> None:
    scores, logits, labels = answered(names_of(60), 3000)
    with drawing():
        figure = confusion(scores)
        assert figure is not None
        widths = [bar.get_width() for bar in figure.axes[0].patches]
    matrix = confusion_matrix(labels, logits.argmax(1))
    np.fill_diagonal(matrix, 0)
    assert widths == sorted(matrix.ravel().tolist(), reverse=True)[:30]


def test_calibration_shows_the_share_that_is_right() -> None:
    scores, logits, labels = answered(names_of(4), 500)
    with drawing():
        figure = calibration(scores)
        assert figure is not None
        bars = [bar for bar in figure.axes[0].patches if bar.get_height() > 0]
    confidence, answer = logits.softmax(1).max(1)
    for bar in bars:
        middle = bar.get_x() + bar.get_width() / 2
        inside = (confidence > middle - 1 / 30) & (confidence <= middle + 1 / 30)
        assert bar.get_height() == pytest.approx(float((answer == labels)[inside].double().mean()))


def test_drawings_take_the_colours_of_the_page() -> None:
    with drawing():
        figure = new_figure(3, 2)
        figure.add_subplot().plot([0, 1], color=colours()["one"], label="x")
        text = as_svg(figure, "a chart")
    assert "var(--one)" in text
    assert not [value for value in colours().values() if value in text]


def test_plots_change_nothing_for_others_and_open_no_window() -> None:
    code = (
        "import sys, tempfile, pathlib, matplotlib\n"
        "matplotlib.rcParams['lines.linewidth'] = 7\n"
        "now = lambda: {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != 'backend'}\n"
        "before = now()\n"
        "from vitrail.training.reporting import write_reports\n"
        "row = {'kind': 'train', 'step': 1, 'epoch': 1, 'loss': 1.0}\n"
        "write_reports(pathlib.Path(tempfile.mkdtemp()), [row], None, ['a'], '', {})\n"
        "assert now() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
