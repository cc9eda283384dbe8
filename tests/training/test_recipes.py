"""Recipes: named ones, files, flags; what is wrong in them is said."""

import dataclasses
import math
import re
import runpy
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from tests.training.running import RICH, assert_same_training, make_pictures
from vitrail.cli import main
from vitrail.data.augmentation.plan import Augmentation
from vitrail.errors import ConfigError
from vitrail.model.zoo import configure, create
from vitrail.pictures import preprocessing
from vitrail.training import recipe as recipe_words
from vitrail.training.recipe import METHODS, Data, Distillation, Group, Loss, Optimiser, Pixels, Recipe, Schedule, Stage
from vitrail.training.recipe_files import NAMED, make_recipe, named_recipes, read_recipe, to_toml


@pytest.mark.parametrize("name", named_recipes())
def test_a_named_recipe_describes_a_model_and_says_its_command(name):
    recipe = read_recipe(name)
    changes = dict(recipe.architecture) | ({"img_size": recipe.img_size} if recipe.img_size else {})
    configure(recipe.model, num_classes=10, **changes)
    head = re.match(r"(#.*\n)+", (NAMED / f"{name}.toml").read_text())
    assert head is not None
    assert ("vitrail pretrain" if recipe.method else "vitrail train") in head[0]
    assert read_recipe(NAMED / f"{name}.toml") == recipe


def test_the_papers_recipes_are_there():
    wanted = {"small", "finetune", "finetune-paper", "pretrain-i21k", "pretrain-i1k", "baseline-s16"}
    assert wanted | {"deit", "deit3", "cifar10-classic"} <= set(named_recipes())


share = st.floats(0, 0.99)
positive = st.floats(1e-12, 1e12)
settings = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(st.characters(codec="utf-8")))
whole = st.integers(1, 10**12)


recipes = st.builds(
    Recipe,
    architecture=st.dictionaries(st.sampled_from(["depth", "pool", "rope", "drop_path"]), settings),
    img_size=st.none() | whole,
    epochs=positive,
    steps=st.none() | whole,
    batch_size=whole,
    seed=st.integers(),
    precision=st.sampled_from(["auto", "fp32", "bf16", "fp16"]),
    compile=st.booleans(),
    ema=share,
    data=st.builds(
        Data,
        val_fraction=share,
        subset=st.floats(0.01, 1),
        workers=st.none() | st.integers(0, 9),
        balanced=st.booleans(),
    ),
    pixels=st.builds(Pixels, crop_pct=st.none() | positive, mean=st.none() | st.tuples(share, share, share)),
    augmentation=st.builds(Augmentation, hflip=share, mixup=positive, padding=whole),
    optimiser=st.builds(
        Optimiser,
        lr=positive,
        betas=st.tuples(share, share),
        groups=st.lists(
            st.builds(Group, match=st.text(st.characters(codec="utf-8")), lr=share, weight_decay=st.none() | share)
        ).map(tuple),
    ),
    schedule=st.builds(Schedule, warmup_epochs=share, kind=st.sampled_from(["cosine", "wsd"])),
    loss=st.builds(Loss, smoothing=share),
    distillation=st.builds(Distillation, teacher=st.text(st.characters(codec="utf-8"))),
    stages=st.lists(
        st.builds(
            Stage,
            until=st.floats(0.01, 1),
            img_size=whole,
            patch_drop=st.none() | st.floats(0, 0.99),
            augmentation=st.none() | st.builds(Augmentation, crop=st.just("pad"), mixup=share, padding=whole),
        )
    ).map(tuple),
)


@given(recipes)
def test_what_is_written_is_read_again(recipe):
    assert make_recipe(tomllib.loads(to_toml(recipe))) == recipe


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch = 3", "nothing reads 'epoch': did you mean epochs?"),
        ("[optimiser]\nlearning = 3", "nothing reads 'optimiser.learning'"),
        ("[optimizer]\nlr = 3", "did you mean optimiser?"),
        ("epochs = 'many'", "epochs = 'many': it must be a number"),
        ("batch_size = 2.5", "it must be a whole number"),
        ("batch_size = true", "it must be a whole number"),
        ("compile = 1", "it must be true or false"),
        ("precision = 'fp4'", "choose from auto, fast, fp32, bf16, bf16_residual, fp16"),
        ("data = 3", "it must be a table"),
        ("architecture = 3", "architecture must be a table"),
        ("stages = 3", "it must be a list"),
        ("[[stages]]\nuntil = 0.5", "a stage must have img_size, patch_drop or augmentation"),
        ("[[stages]]\nuntil = 0.5\naugmentation.mixing = 1", "nothing reads 'stages.augmentation.mixing'"),
        ("[[stages]]\nuntil = 0.5\naugmentation.mixup = -1.0", "augmentation: mixup=-1.0 must not be negative"),
        ("[[stages]]\nuntil = 0.5\naugmentation.repeats = 2", "augmentation.repeats must be the recipe's"),
        ("[[stages]]\nuntil = 0.5\naugmentation.crop = 'none'", "augmentation.crop must be none for all"),
        ("[[stages]]\nuntil = 0.5\npatch_drop = 1.0", "stages: patch_drop must be from 0 to below 1"),
        ("[[stages]]\nuntil = 0.5\npatch_drop = 0.5\n[mae]", "patch_drop must be 0 where there are no labels"),
        ("[architecture]\npatch_drop = 0.5\n[masked]", "patch_drop must be 0 where there are no labels"),
        ("[optimiser]\nbetas = [0.9]", "it must have 2 values"),
        ("epochs = 0", "epochs must be above 0"),
        ("epochs = nan", "epochs"),
        ("[optimiser]\nlr = nan", "lr"),
        ("batch_size = 6\naccumulate = 4", "accumulate must divide batch_size"),
        ("batch_size = 'most'", "it must be a whole number or auto"),
        ("[[stages]]\nimg_size = 16", "stages.until is missing"),
        ("[[optimiser.groups]]\nfrozen = true", "optimiser.groups.match is missing"),
        ("[stages]\nuntil = 0.5", "write [[stages]] above each"),
        ("epochs = ", "is no TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(tmp_path, text, words):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_recipe(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value) or "must" in str(error.value)


def test_epochs_that_are_asked_for_stand_in_place_of_the_recipe_s_steps():
    assert read_recipe("masked").steps is not None
    made = read_recipe("masked", {"epochs": 3.0})
    assert (made.epochs, made.steps) == (3.0, None)
    assert read_recipe("masked", {"steps": 7}).steps == 7
    with pytest.raises(ConfigError, match="give one of them"):
        read_recipe("masked", {"steps": 7, "epochs": 3.0})


def test_a_name_that_is_nearly_right():
    with pytest.raises(ConfigError, match="did you mean finetune"):
        read_recipe("finetun")


def test_changes_reach_into_tables_and_wrong_ones_are_refused():
    recipe = read_recipe("finetune", {"optimiser.lr": 1, "architecture.drop_path": 0.5, "epochs": 2})
    assert (recipe.optimiser.lr, recipe.architecture["drop_path"], recipe.epochs) == (1.0, 0.5, 2.0)
    for key in ("optimiser.rate", "nothing", "epochs.more"):
        with pytest.raises(ConfigError):
            read_recipe("finetune", {key: 1})


def test_infinity_is_written_and_read():
    recipe = Recipe(architecture={"a": math.inf, "b": -math.inf})
    assert make_recipe(tomllib.loads(to_toml(recipe))) == recipe


def test_every_setting_is_a_flag_but_lists_of_tables(capsys):
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out

    def check(kind, prefix):
        for item in dataclasses.fields(kind):
            value = getattr(kind(), item.name)
            if dataclasses.is_dataclass(value):
                check(type(value), f"{prefix}{item.name}.")
            elif item.name not in ("groups", "stages", "auto_batch", *METHODS):  # --batch-size auto
                assert f"--{prefix}{item.name}".replace("_", "-") in shown

    check(Recipe, "")


def test_the_page_of_all_settings_is_what_the_code_says():
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "make_recipe_page.py"))["page"]()
    assert (docs / "recipes.md").read_text(encoding="utf-8") == made, "run docs/make_recipe_page.py"


@pytest.mark.parametrize(
    ("flag", "words"),
    [("--bach-size=3", "--batch-size"), ("--optimizer.lr=1", "--optimiser.lr"), ("--precision=fp4", "bf16")],
)
def test_a_wrong_flag_is_wrong_usage_with_a_suggestion(capsys, flag, words):
    assert main(["train", flag]) == 2
    assert words in capsys.readouterr().err


def test_whole_numbers_are_not_rounded(capsys):
    assert main(["train", "--batch-size", "1.5"]) == 2
    assert "--batch-size" in capsys.readouterr().err


def test_a_runs_recipe_gives_the_same_run(tmp_path):
    pictures = make_pictures(tmp_path / "pictures")
    one = vitrail.train(pictures, recipe="small", out=tmp_path / "one", changes=RICH, device="cpu")
    two = vitrail.train(pictures, recipe=one.folder / "recipe.toml", out=tmp_path / "two", device="cpu")
    assert one.recipe == two.recipe
    assert_same_training(Path(one.folder), Path(two.folder))
    assert read_recipe(one.folder) == one.recipe


def test_the_words_for_pixels_are_those_of_the_preprocessing() -> None:
    assert recipe_words.Fit == preprocessing.Fit
    assert recipe_words.Interpolation == preprocessing.Interpolation


def test_a_table_inside_the_architecture_survives_the_file_and_makes_a_hybrid(tmp_path: Path) -> None:
    backbone = {"small_stem": True, "width": 16, "groups": 8, "layers": (1, 1), "preact": False}
    recipe = read_recipe(
        "small", {"architecture.backbone": {**backbone, "layers": [1, 1]}, "architecture.patch_size": 2}
    )
    assert recipe.architecture["backbone"] == backbone
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    again = read_recipe(tmp_path / "recipe.toml", {"architecture.backbone.width": 32})
    assert again.architecture["backbone"] == backbone | {"width": 32}
    model = create(recipe.model, img_size=32, **recipe.architecture)
    assert model.config.grid == (8, 8)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)
