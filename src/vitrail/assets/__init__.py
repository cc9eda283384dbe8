"""What comes with the package: a small trained model, and pictures to try it on."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
BUNDLED = "cifar10_small"


def bundled(name: str) -> Path | None:
    """The folder of a model that comes with the package."""
    return HERE / BUNDLED if name == BUNDLED else None


def pictures() -> list[Path]:
    """Drawn for this project: two or so of what `cifar10_small` knows, named by what they show."""
    return sorted((HERE / "pictures").glob("*.png"))
