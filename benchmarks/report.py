"""Writes the tables of README.md and of the docs from the committed measurements: python benchmarks/report.py"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
END = "<!-- end -->"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def model_speed(path: Path) -> str:
    """One measurement as a table."""
    lines = read(path)
    head, rows = lines[0], lines[1:]
    names = {"ti16": "Ti/16", "s16": "S/16", "b16": "B/16", "l16": "L/16"}
    form = "bfloat16 autocast" if rows[0]["extra_memory_gib"] else "float32"
    versions = f"torch {head['torch']}, timm {head['timm']}, Python {head['python']}"
    out = [f"**{head['hardware']}**, {form}, {versions}, {head['date']}", ""]
    out += ["| model | | batch | vitrail, pictures/s | timm, pictures/s | ratio | extra memory, GiB (timm) |"]
    out += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        memory = row["extra_memory_gib"]
        low, high = row["quartiles"]
        mode, how = "training step" if row["mode"] == "train" else "forward", "compiled" if row["compiled"] else "eager"
        used = f"{memory['vitrail']} ({memory['timm']})" if memory else "–"
        speeds = f"{row['vitrail_per_s']:,.0f} | {row['timm_per_s']:,.0f}"
        ratio = f"**{row['ratio']:.2f}** [{low:.2f}, {high:.2f}]"
        out.append(f"| {names[row['model']]} | {mode}, {how} | {row['batch']} | {speeds} | {ratio} | {used} |")
    return "\n".join(out)


def cpu_speed(path: Path) -> str:
    """All ways, a row each; a column for each model and batch."""
    rows = read(path)
    columns = list(dict.fromkeys((row["model"], row["batch"]) for row in rows))
    ways: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for row in rows:
        ways.setdefault(row["path"].split(" (Open")[0].split(" (torch")[0], {})[row["model"], row["batch"]] = row
    out = [
        "| pictures/s | " + " | ".join(f"{model}, batch {batch}" for model, batch in columns) + " | top-1 | agrees |"
    ]
    out += ["|---" * (len(columns) + 3) + "|"]
    for way, found in ways.items():
        cells = []
        for column in columns:
            row = found[column]
            ratio = f" (**{row['of_best_peer']:.2f}×**)" if way.startswith("vitrail") else ""
            cells.append(f"{row['pictures_per_second']:,.0f}{ratio}")
        scored = next((row for row in found.values() if "top1" in row), {})
        score = f"{scored['top1']:.1f}% | {scored['agreement']:.1f}%" if scored else "– | –"
        out.append(f"| {way} | {' | '.join(cells)} | {score} |")
    head = rows[0]
    out += ["", f"{head['processor']}, {head['threads']} threads, {head['date']}; ×: beside the best of the others"]
    return "\n".join(out)


def put(page: Path, name: str, text: str) -> None:
    """The text between the marks of this name."""
    before, rest = page.read_text().split(f"<!-- {name} -->")
    _, after = rest.split(END, 1)
    page.write_text(f"{before}<!-- {name} -->\n{text}\n{END}{after}")


if __name__ == "__main__":
    put(
        HERE / "README.md",
        "model_speed",
        "\n\n".join(model_speed(path) for path in sorted(HERE.glob("model_speed_*.jsonl"))),
    )
    put(HERE.parent / "docs" / "export.md", "cpu_speed", cpu_speed(HERE / "cpu_speed.jsonl"))
