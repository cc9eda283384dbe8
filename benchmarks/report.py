"""Writes the tables of README.md from the committed measurements: python benchmarks/report.py"""

import json
from pathlib import Path

HERE = Path(__file__).parent
START, END = "<!-- model_speed -->", "<!-- end -->"


def table(path: Path) -> str:
    """One measurement as a table."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
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


if __name__ == "__main__":
    readme = HERE / "README.md"
    text = readme.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    tables = "\n\n".join(table(path) for path in sorted(HERE.glob("model_speed_*.jsonl")))
    readme.write_text(f"{before}{START}\n{tables}\n{END}{after}")
