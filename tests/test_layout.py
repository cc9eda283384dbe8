"""The layout of the package: a module imports only from lower tiers and its own, and light things stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.model.devices import constant

SOURCE = Path(vitrail.__file__).parent
TIERS = {
    "errors": 0,
    "assets": 1,
    "whole": 1,
    "model": 1,
    "pictures": 1,
    "pages": 2,
    "weights": 2,
    "data": 2,
    "classifier": 3,
    "conversion": 4,
    "checking": 4,
    "figures": 4,
    "scoring": 5,
    "training": 6,
    "studies": 7,
    "pretraining": 7,
    "shipping": 7,
    "serving": 8,
    "speed": 8,
    "__init__": 9,
    "commands": 10,
    "cli": 11,
    "__main__": 12,
}
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Names of the project's parts that a module imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] if node.module != "vitrail" else [f"vitrail.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("vitrail.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_lower_tiers_and_its_own(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imports(path):
        assert other == part or TIERS[other] < TIERS[part], f"{part} must not import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


def loaded_by(code: str) -> set[str]:
    script = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_and_the_zoo_do_not_wait_for_torch() -> None:
    assert "torch" not in loaded_by("import vitrail.cli")
    assert "torch" not in loaded_by("import vitrail; vitrail.models()")


def test_pictures_need_pillow_and_numpy_alone() -> None:
    assert not {"torch", "torchvision", "cyclopts", "rich"} & loaded_by("import vitrail.pictures")


def test_the_core_imports_without_the_command_line() -> None:
    loaded = loaded_by("import vitrail; vitrail.Classifier, vitrail.ViT, vitrail.load")
    assert not {"cyclopts", "rich", "timm", "transformers"} & loaded
    assert "torch" in loaded


def test_a_model_that_is_loaded_does_not_wait_for_the_compiler() -> None:
    assert "torch._dynamo" not in loaded_by("import vitrail; vitrail.load('cifar10_small').model")


def test_what_is_marked_as_constant_is_marked_as_torch_does_it() -> None:
    ours, torchs = (mark(lambda: True) for mark in (constant, torch.compiler.assume_constant_result))
    assert vars(ours) == vars(torchs) != {}


@pytest.mark.parametrize("name", vitrail.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(vitrail, name) is not None
    assert name in dir(vitrail)
