"""`vitrail models`: the zoo, and a walk through one model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vitrail.assets import BUNDLED
from vitrail.commands.printing import Json, print_json, print_table
from vitrail.errors import VitrailError


def models(name: str = "*", /, *, as_json: Json = False) -> int:
    """List the named models; with a name, walk through every shape of that one.

    Example: vitrail models "deit*"

    Example: vitrail models ViT-B/16

    Parameters
    ----------
    name
        a model in any of its spellings (vit_b16, ViT-B/16, vit_base_patch16_224), or a pattern (deit*)
    as_json
        print one JSON object
    """
    from vitrail.model import walk, zoo

    if any(sign in name for sign in "*?["):
        rows = zoo.models(name)
        if not rows:
            raise VitrailError(f"no model matches {name!r}: `vitrail models` lists them all")
        found = [_row(row) for row in rows]
        if as_json:
            print_json({"models": found})
            return 0
        cells = [["name", "paper", "picture", "tokens", "parameters", "GFLOP"]]
        for line in found:
            size = f"{line['img_size'][0]} x {line['img_size'][1]}"
            count = f"{line['parameters']:,}"
            cells.append([line["name"], line["title"], size, str(line["tokens"] or "-"), count, f"{line['gflop']:.1f}"])
        print_table(cells, right={3, 4, 5})
        print(f"\n{len(found)} models. GFLOP is 2 x multiply-accumulate, forward, one picture.")
        if any(line["bundled"] for line in found):
            print(f"{BUNDLED} comes with its weights: vitrail predict {BUNDLED} picture.jpg")
        return 0
    row = zoo.find(name)
    steps = walk.walk(row.config)
    if as_json:
        plain = [asdict(step) for step in steps]
        print_json({**_row(row), "config": row.config.to_json(), "walk": plain})
        return 0
    print(f"{row.name}: {row.title}" + (f", in timm {row.timm}" if row.timm else "") + "\n")
    cells = [["", "shape", "parameters", "MFLOP", ""]]
    for step in steps:
        shape = "(" + ", ".join(map(str, step.shape)) + ")"
        times = f"x {step.times}" if step.times > 1 else ""
        count = f"{step.parameters:,}" if step.parameters else ""
        cells.append([step.name, shape, count, f"{step.flops / 1e6:,.1f}" if step.flops else "", times])
    print_table(cells, right={2, 3})
    total, work = walk.parameters(row.config), walk.flops(row.config)
    print(f"\n{total:,} parameters, {work / 1e9:.2f} GFLOP (2 x multiply-accumulate) for one picture.")
    return 0


def _row(row: Any) -> dict[str, Any]:
    from vitrail.model import walk

    config = row.config
    return {
        "name": row.name,
        "title": row.title,
        "timm": row.timm,
        "img_size": list(config.img_size),
        "num_classes": config.num_classes,
        "tokens": walk.tokens(config),
        "parameters": walk.parameters(config),
        "gflop": round(walk.flops(config) / 1e9, 3),
        "bundled": row.name == BUNDLED,
    }
