"""What cannot be trained ends with one line that says what to do, and leaves no folder behind."""

import shutil

import pytest

from tests.training.running import TINY, flags, make_pictures
from vitrail.cli import main


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs the command, which must fail with one line, and gives that line."""

    def run(*arguments, settings=TINY, recipe="small"):
        given = ["train", *map(str, arguments), f"--recipe={recipe}", f"--out={tmp_path / 'run'}", "--device=cpu"]
        assert main([*given, *flags(settings)]) == 1
        said = capsys.readouterr().err
        (line,) = [line for line in said.splitlines() if line.startswith("vitrail: ")]
        assert said.splitlines()[-1] == line
        assert "unexpected" not in line
        assert not (tmp_path / "run").exists()
        return line

    return run


def test_an_empty_folder(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refused(tmp_path / "empty")


def test_a_folder_that_is_not_there(refused, tmp_path):
    assert "nowhere" in refused(tmp_path / "nowhere")


def test_one_class(refused, tmp_path):
    line = refused(make_pictures(tmp_path / "one", classes=1))
    assert "only one class" in line
    assert "two classes or more" in line


def test_one_class_of_few_pictures(refused, tmp_path):
    assert "only one class" in refused(make_pictures(tmp_path / "one", classes=1, each=3))


def test_one_picture_per_class_says_what_to_do_and_then_trains_without_validation(refused, tmp_path, capsys):
    data = make_pictures(tmp_path / "few", classes=4, each=1)
    line = refused(data)
    assert "too few to set some aside" in line
    assert "0" in line
    arguments = ["train", str(data), "--recipe=small", f"--out={tmp_path / 'run'}", "--device=cpu", *flags(TINY)]
    assert main([*arguments, "--data.val-fraction=0"]) == 0
    assert not (tmp_path / "run" / "best").exists()
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_a_batch_larger_than_the_set_says_which_one_works(refused, pictures, tmp_path):
    line = refused(pictures, settings=TINY | {"batch_size": 5000})
    size = int(line.split("--batch-size ")[1].split()[0])
    assert "larger than the" in line
    settings = TINY | {"batch_size": size, "steps": 1}
    given = ["train", str(pictures), "--recipe=small", f"--out={tmp_path / 'run'}", "--device=cpu"]
    assert main([*given, *flags(settings)]) == 0


def test_a_missing_label_column(refused, pictures, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("path,kind\n" + "".join(f"{path},{path.parent.name}\n" for path in pictures.rglob("*.png")))
    assert "label" in refused(table, "--label-column=label")


def test_pictures_without_a_label(refused, pictures, tmp_path):
    table = tmp_path / "table.csv"
    lines = [f"{path},{path.parent.name}" for path in sorted(pictures.rglob("*.png"))]
    lines[3] = lines[3].split(",")[0] + ","
    table.write_text("path,label\n" + "\n".join(lines) + "\n")
    assert "label" in refused(table)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"architecture.depht": 3}, "depth"),
        ({"architecture.embed_dim": 33}, "33"),
        ({"model": "vit_gigantic"}, "vit_gigantic"),
        ({"img_size": 9}, "9"),
        ({"precision": "fp16"}, "fp16 needs a GPU"),
        ({"batch_size": 5, "augmentation.mixup": 0.5}, "half a pair"),
        ({"accumulate": 3}, "accumulate must divide"),
        ({"loss.smoothing": 2}, "smoothing"),
    ],
    ids=str,
)
def test_settings_that_fit_nothing(refused, pictures, settings, words):
    assert words in refused(pictures, settings=TINY | settings)


@pytest.mark.parametrize("size", [0, 9])
def test_a_stage_whose_pictures_the_model_cannot_read(refused, pictures, tmp_path, size):
    recipe = tmp_path / "stages.toml"
    recipe.write_text(f"[[stages]]\nuntil = 0.5\nimg_size = {size}\n")
    assert f"stages: img_size=({size}, {size}) " in refused(pictures, recipe=recipe)


def test_a_model_that_is_not_there(refused, pictures, tmp_path):
    given = {name: value for name, value in TINY.items() if not name.startswith("architecture")}
    assert "there is no" in refused(pictures, f"--from={tmp_path / 'nothing'}", settings=given, recipe="finetune")


def test_a_folder_that_is_already_there_is_not_touched(pictures, tmp_path, capsys):
    run = tmp_path / "run"
    given = ["train", str(pictures), "--recipe=small", f"--out={run}", "--device=cpu", *flags(TINY)]
    assert main(given) == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main([*given, "--optimiser.lr=1"]) == 1
    assert f"go on with --resume {run}, or choose another --out" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    shutil.rmtree(run)
    run.mkdir()
    (run / "mine.txt").write_text("mine")
    assert main(given) == 1
    assert "choose another --out" in capsys.readouterr().err
    assert [path.name for path in run.iterdir()] == ["mine.txt"]


def test_unreadable_pictures_are_passed_over_and_named(pictures, tmp_path, capsys):
    data = shutil.copytree(pictures, tmp_path / "pictures")
    for number in (1, 2):
        (data / "kind 0" / f"{number:03}.png").write_bytes(b"no picture")
    for engine in ("workers", "resident"):
        settings = TINY | {"steps": 30, "data.engine": engine}
        given = ["train", str(data), "--recipe=small", "--device=cpu", *flags(settings)]
        assert main([*given, f"--out={tmp_path / engine}"]) == 0
        listed = (tmp_path / engine / "bad_images.csv").read_text()
        assert "001.png" in listed
        assert "002.png" in listed
        assert main([*given, f"--out={tmp_path / engine}-strict", "--data.strict"]) == 1
        assert ".png" in capsys.readouterr().err.splitlines()[-1]


def test_a_teacher_that_does_not_fit(refused, pictures, tmp_path):
    """It is looked at before the folder of the run is made, not at the first step."""
    assert "there is no" in refused(pictures, settings=TINY | {"distillation.teacher": tmp_path / "nowhere"})
    run, other = tmp_path / "teacher", make_pictures(tmp_path / "other")
    for number in (0, 1):
        (other / f"kind {number}").rename(other / f"kind {number + 7}")
    given = ["train", str(other), "--recipe=small", f"--out={run}", "--device=cpu", *flags(TINY)]
    assert main(given) == 0
    line = refused(pictures, settings=TINY | {"distillation.teacher": run})
    assert "the teacher does not know 2 of 2 classes, first 'kind 0'" in line


def test_a_teacher_of_pictures_with_several_labels(refused, pictures, tmp_path):
    table = tmp_path / "table.csv"
    lines = [f"{path},{path.parent.name}|any" for path in sorted(pictures.rglob("*.png"))]
    table.write_text("path,label\n" + "\n".join(lines) + "\n")
    assert "several labels" in refused(table, "--separator=|", settings=TINY | {"distillation.teacher": tmp_path})
