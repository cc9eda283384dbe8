"""Study files: what they ask for, and what is refused."""

import shutil
from pathlib import Path

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.model.walk import flops, parameters
from vitrail.model.zoo import create
from vitrail.studies.plan import read_plan
from vitrail.training.feeding import total_steps
from vitrail.training.start import configured

STUDIES = Path(__file__).parents[2] / "benchmarks" / "cifar10" / "studies"


def read(folder: Path, text: str):
    file = folder / "study.toml"
    file.write_text(text)
    return read_plan(file)


def test_rows_are_every_combination_and_each_run_has_its_whole_recipe(tmp_path: Path) -> None:
    plan = read(
        tmp_path,
        """
        recipe = "small"
        seeds = [3, 4]
        [settings]
        epochs = 2
        [vary]
        data.subset = [0.5, 1.0]
        [rows.one]
        [rows.two]
        recipe = "digits"
        series = "other"
        optimiser.lr = 0.5
        [rows.two.vary]
        architecture.depth = [1, 2]
        """,
    )
    assert [row.name for row in plan.rows] == [
        "one, subset 0.5",
        "one, subset 1.0",
        "two, subset 0.5, depth 1",
        "two, subset 0.5, depth 2",
        "two, subset 1.0, depth 1",
        "two, subset 1.0, depth 2",
    ]
    row = plan.rows[3]
    assert (row.series, dict(row.settings)) == ("other", {"data.subset": 0.5, "architecture.depth": 2})
    (choice,) = row.choices
    assert choice.folder == "two-subset-0.5-depth-2"
    for seed in (3, 4):
        recipe = choice.recipes[seed]
        found = (recipe.seed, recipe.epochs, recipe.data.subset, recipe.optimiser.lr, recipe.architecture["depth"])
        assert found == (seed, 2.0, 0.5, 0.5, 2)
    assert plan.rows[0].choices[0].recipes[3].model == "vit_ti16"
    assert len(list(plan.runs())) == 12


def test_what_is_chosen_makes_no_rows_of_its_own(tmp_path: Path) -> None:
    plan = read(
        tmp_path, 'recipe = "small"\nchoose = "optimiser.lr"\n[vary]\noptimiser.lr = [0.1, 0.2]\nepochs = [1, 2]'
    )
    assert [row.name for row in plan.rows] == ["epochs 1", "epochs 2"]
    assert [choice.value for choice in plan.rows[0].choices] == [0.1, 0.2]
    assert [choice.folder for choice in plan.rows[1].choices] == ["epochs-2-lr-0.1", "epochs-2-lr-0.2"]


def test_a_table_inside_a_table_of_the_recipe_can_vary(tmp_path: Path) -> None:
    plan = read(
        tmp_path,
        'recipe = "small"\n[rows.hybrid]\narchitecture.backbone.small_stem = true\n'
        "[rows.hybrid.vary]\narchitecture.backbone.layers = [[1], [1, 1]]",
    )
    assert [row.choices[0].recipe.architecture["backbone"]["layers"] for row in plan.rows] == [(1,), (1, 1)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('recipe = "small"\nseed = [1]', "nothing reads 'seed': did you mean seeds"),
        ('recipe = "small"\nsettings.epoch = 3', ": settings.epoch: nothing reads 'epoch': did you mean epochs"),
        ('recipe = "small"\nrows.a.optimiser.rate = 3', ": rows.a.optimiser.rate: nothing reads 'optimiser.rate'"),
        ('recipe = "small"\nrows.a.epochs = "many"', ": rows.a.epochs: epochs = 'many': it must be a number"),
        ('recipe = "small"\nvary.epochs = [1, "two"]', ": vary.epochs: epochs = 'two': it must be a number"),
        ('recipe = "small"\nrows.a.vary.ema = [0, 2]', ": rows.a.vary.ema: ema must be from 0"),
        ('recipe = "small"\nrows.a.model = "vit_b"\nsettings.epochs = 1', ": rows.a.model: "),
        (
            'recipe = "small"\nsettings.architecture.num_heads = 5',
            ": settings.architecture.num_heads: embed_dim=256 is no multiple",
        ),
        ('recipe = "smal"', ": recipe: there is no recipe 'smal', .*: did you mean small"),
        ('rows.a.recipe = "smal"', ": rows.a.recipe: there is no recipe 'smal'"),
        ('recipe = "smal"\n[rows.a]', "toml: recipe: there is no recipe 'smal'"),
        ('recipe = "small"\nsettings.steps = 9\nvary.epochs = [1, 2]', ": vary.epochs: settings.steps says how long"),
        ('recipe = "small"\nsettings.epochs = 9\nvary.steps = [1, 2]', ": settings.epochs: vary.steps says how long"),
        ('recipe = "small"\nsettings.steps = 9\nrows.a.epochs = 3', ": rows.a.epochs: settings.steps says how long"),
        (
            'recipe = "small"\n[[settings.stages]]\nuntil = 0.5\nimg_size = 17',
            ": settings.stages: stages: img_size=.17, 17. is not filled",
        ),
        ("seeds = [1]", "recipe: it is missing"),
        ('recipe = "small"\nseeds = [1, 1]', "seeds: it must be a list of different whole numbers"),
        ('recipe = "small"\nseeds = []', "seeds: it must be"),
        ('recipe = "small"\nvary.epochs = 3', "vary.epochs: it must be a list"),
        ('recipe = "small"\nvary.seed = [3]', ": vary.seed: seeds are for all rows: give seeds = "),
        ('recipe = "small"\nrows.a.seed = 3', ": rows.a.seed: seeds are for all rows: give seeds = "),
        ('recipe = "small"\nvary.epochs = [3, 3]', "vary.epochs: '3' is there twice"),
        ('recipe = "small"\nrows.a = 3', "rows.a: it must be a table"),
        (
            'recipe = "small"\nrows."a b" = {}\nrows.a-b = {}',
            ": rows: 'a b' and 'a-b' would share the folder a-b: rename one",
        ),
        (
            'recipe = "small"\nvary.distillation.teacher = ["a/b", "a-b"]',
            ": vary: 'teacher a/b' and 'teacher a-b' would share the folder teacher-a-b",
        ),
        ('recipe = "small"\nchoose = "optimiser.lr"', "'optimiser.lr' does not vary"),
        ('recipe = "small"\nplot.z = 3', "nothing reads 'plot.z'"),
        ('recipe = "small"\nplot.x = "epochs"', "plot.x: 'epochs' is none of training_flops"),
        ('recipe = "small"\nvary.model = ["vit_ti16", "vit_s16"]\nplot.x = "model"', "plot.x: model is no number"),
        ('recipe = "small"\nvary.ema = [0.0, 0.9]\nplot = {x = "ema", log = true}', "plot.log: ema has values"),
        ("recipe = ", "is no TOML"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_file_and_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read(tmp_path, text)
    assert "study.toml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_that_are_wrong_together_are_told_with_their_row(tmp_path: Path) -> None:
    text = 'recipe = "small"\nsettings.architecture.embed_dim = 48\n[rows.a]\n[rows.b]\narchitecture.num_heads = 5'
    with pytest.raises(ConfigError, match=r"study.toml: row 'b': embed_dim=48 is no multiple of num_heads=5"):
        read(tmp_path, text)


def test_epochs_hold_in_place_of_the_steps_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("steps = 7\nbatch_size = 10")
    plan = read(tmp_path, 'recipe = "own.toml"\nvary.epochs = [1, 3]')
    assert [total_steps(row.choices[0].recipe, 100) for row in plan.rows] == [10, 30]


def test_what_is_wrong_in_the_recipe_is_told_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("epoch = 3")
    with pytest.raises(ConfigError, match=r"own.toml: nothing reads 'epoch'") as caught:
        read(tmp_path, 'recipe = "own.toml"\n[settings]\nbatch_size = 4\n[rows.a]\nema = 0.5')
    assert "study.toml" not in str(caught.value)


def test_a_setting_stands_where_it_has_its_value_from(tmp_path: Path) -> None:
    """What varies is put over what is set, and what a row has over what all have."""
    first, second = read(
        tmp_path,
        """
        recipe = "small"
        settings.ema = 0.1
        settings.batch_size = 8
        vary.batch_size = [4]
        [rows.first]
        ema = 0.2
        [rows.second]
        batch_size = 16
        vary.ema = [0.3]
        """,
    ).rows
    found = [(row.choices[0].recipe.ema, row.place("ema"), row.place("batch_size")) for row in (first, second)]
    assert found == [(0.2, "rows.first.ema", "vary.batch_size"), (0.3, "rows.second.vary.ema", "vary.batch_size")]
    assert second.choices[0].recipe.batch_size == 4
    assert first.place("precision") == "settings.precision"  # where it could be set


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_plan(tmp_path / "nothing.toml")


@pytest.mark.parametrize(("name", "runs"), [("data", 30), ("compute", 18), ("positions", 18), ("class_token", 16)])
def test_the_studies_on_cifar10_are_whole(name: str, runs: int) -> None:
    plan = read_plan(STUDIES / f"{name}.toml")
    assert len(list(plan.runs())) == runs
    text = (STUDIES / f"{name}.toml").read_text()
    pictures = 0
    for row, choice, seed in plan.runs():
        recipe = choice.recipes[seed]
        config = configured(recipe, [str(label) for label in range(10)])
        assert config.img_size == (32, 32)
        if seed == 0:
            with torch.device("meta"):
                model = create(config)
            assert sum(parameter.numel() for parameter in model.parameters()) == parameters(config), row.name
        pictures += recipe.batch_size * total_steps(recipe, round(45_000 * recipe.data.subset))
    assert f"{runs} runs, {pictures / 1e6:.1f}M pictures" in text  # as its head says


def test_models_that_are_compared_cost_about_the_same() -> None:
    """ViT, hybrid and ResNet, within a tenth."""
    sizes: dict[str, list[int]] = {"small": [], "medium": [], "large": []}
    for row in read_plan(STUDIES / "compute.toml").rows:
        sizes[row.name.partition(", ")[2]].append(flops(configured(row.choices[0].recipe, ["a", "b"] * 5)))
    for costs in sizes.values():
        assert len(costs) == 3
        assert max(costs) < 1.1 * min(costs)


def test_the_example_of_the_documentation_is_a_study(tmp_path: Path) -> None:
    page = (STUDIES.parents[2] / "docs" / "studies.md").read_text()
    shutil.copytree(STUDIES / "recipes", tmp_path / "recipes")
    plan = read(tmp_path, page.partition("```toml\n")[2].partition("```")[0])
    assert {row.series for row in plan.rows} == {"ViT", "ResNet"}
    assert len(plan.rows) == 15
