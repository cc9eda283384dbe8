"""Writes recipes.md: every setting of a recipe, from the words that stand beside it.

python docs/make_recipe_page.py
"""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import named_recipes

PAGE = Path(__file__).parent / "recipes.md"
HEAD = """# Recipes: every setting

A recipe is a TOML file that holds all of a training. `vitrail train DATA --recipe NAME` takes one that comes with
vitrail, `--recipe my.toml` a file, `--recipe runs/photos-1` that of a run. Each setting below is a flag of
`vitrail train` too (those of `masked`, `mae` and `dino` of `vitrail pretrain`), which changes the recipe: `--epochs 5`,
`--optimiser.lr 1e-4`, `--architecture.depth 8`. What a recipe leaves out is as in the column
"default"; a key that nothing reads is an error.

With vitrail come {names}.

```toml
model = "vit_s16"
epochs = 90

[architecture]
drop_path = 0.1

[optimiser]
lr = 1e-3

[[optimiser.groups]]  # lists of tables have no flags
match = "patch_embed.*"
frozen = true

[[stages]]
until = 0.5
img_size = 160
```

This page is written from the code (`docs/make_recipe_page.py`). See also [how training works](training.md) and
[augmentation in pictures](data.md#augmentation).
"""


def page() -> str:
    names = ", ".join(f"`{name}`" for name in named_recipes())
    return HEAD.format(names=names) + "".join(_tables(Recipe, "", "Outside any table", "Of the training as a whole."))


def _tables(kind: Any, key: str, title: str, about: str) -> list[str]:
    """One for the settings of this table, and one for each table in it."""
    rows, inner = [], []
    for item in dataclasses.fields(kind):
        hint = typing.get_type_hints(kind, include_extras=True)[item.name]
        if get_origin(hint) is not typing.Annotated:
            continue  # set by another
        told, words = get_args(hint)
        path, several = f"{key}.{item.name}" if key else item.name, _list_of(told)
        table = several or next((one for one in _options(told) if dataclasses.is_dataclass(one)), None)
        if table is None or path == "stages.augmentation":  # which is as the recipe's
            rows.append(_row(item, told, words))
        else:
            inner += _tables(table, path, f"`[[{path}]]`" if several else f"`[{path}]`", table.__doc__)
    return [f"\n## {title}\n\n{' '.join(about.split())}\n\n| setting | default | |\n|---|---|---|\n", *rows, *inner]


def _row(item: Any, hint: Any, words: str) -> str:
    values = [value for one in _options(hint) for value in (get_args(one) if get_origin(one) is Literal else ())]
    choices = f" ({', '.join(f'`{value}`' for value in values)})" if values else ""
    return f"| `{item.name}` | {_default(item)} | {words}{choices} |\n"


def _default(item: Any) -> str:
    if item.default_factory is not dataclasses.MISSING or item.default is None or item.default == ():
        return ""
    if item.default is dataclasses.MISSING:
        return "must be given"
    if isinstance(item.default, tuple):
        return f"`[{', '.join(f'{value:.4g}' for value in item.default)}]`"
    text = str(item.default).lower() if isinstance(item.default, bool) else str(item.default)
    return f"`{text}`" if text else ""


def _options(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (typing.Union, types.UnionType) else [hint]


def _list_of(hint: Any) -> Any:
    """What a list of tables has in it."""
    inner = get_args(hint)
    return inner[0] if get_origin(hint) is tuple and dataclasses.is_dataclass(inner[0]) else None


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
