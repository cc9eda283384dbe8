"""What was found, in a few lines for a terminal."""

from __future__ import annotations

from vitrail.checking.report import PERCENTILES, CheckReport
from vitrail.data.notes import counted, quoted
from vitrail.pictures.sources import printable

_WIDTH = 18


def summary(report: CheckReport) -> list[str]:
    """One line for each thing that was looked for, also where nothing was found."""
    splits = ", ".join(f"{name} {count:,}" for name, count in report.split_sizes.items() if name != "no split")
    head = f"{printable(report.source.name)}: {counted(len(report.source), 'picture')}"
    if report.source.classes:
        head += f", {counted(len(report.source.classes), 'class', 'classes')}"
    lines = [head + (f" ({splits})" if splits else ""), ""]
    rows = {
        "unreadable": f"{len(report.unreadable):,}",
        "suspicious": _with_parts(len(report.suspicious), report.doubts),
        "exact duplicates": _groups(report, exact=True),
        "near duplicates": _groups(report, exact=False),
        "in two splits": leak_words(report.leaked) or "0",
        "two labels": counted(len(report.contradictions), "group") if report.contradictions else "0",
    }
    if report.labels is not None:
        labels = report.labels
        rows["likely wrong"] = f"{counted(len(labels.doubts), 'label')} of {labels.judged:,}"
        rows["likely wrong"] += f" (the probe agrees with {labels.agreement:.1%})"
        if labels.unjudged:
            rows[""] = f"{labels.unjudged:,} not judged: their classes have too few pictures"
    rows |= _statistics(report)
    lines += [f"  {name.ljust(_WIDTH)}{text}" for name, text in rows.items()]
    notes = [*report.source.notes]
    notes += [f"{split} lacks {quoted(names)}" for split, names in report.missing_classes.items() if not notes]
    return lines + ([""] + [f"  note: {note}" for note in notes] if notes else [])


def leak_words(leaked: dict[str, int]) -> str:
    """In words: 3 of val are in train too."""
    return ", ".join(f"{count:,} of {words.replace(' in ', ' are in ')} too" for words, count in leaked.items())


def _with_parts(total: int, parts: dict[str, int]) -> str:
    words = ", ".join(f"{name}: {count:,}" for name, count in parts.items() if count)
    return f"{total:,}" + (f" ({words})" if words else "")


def _groups(report: CheckReport, exact: bool) -> str:
    groups = [group for group in report.duplicates if group.exact == exact]
    if not groups:
        return "0"
    return f"{sum(len(group.rows) for group in groups):,} pictures in {counted(len(groups), 'group')}"


def _statistics(report: CheckReport) -> dict[str, str]:
    rows = {}
    if report.imbalance is not None and len(report.source.classes) > 1:
        total = report.totals
        most, least = int(total.argmax()), int(total.argmin())
        names = [printable(report.source.classes[i]) for i in (most, least)]
        uneven = f"{names[0]} {total[most]:,} to {names[1]} {total[least]:,}, {report.imbalance:.1f} to 1"
        rows["classes"] = f"{total[most]:,} pictures each" if total[most] == total[least] else uneven
    if report.percentiles:
        short = dict(zip(PERCENTILES, report.percentiles["shorter side"], strict=True))
        rows["shorter side"] = f"{short[0]:,.0f} to {short[100]:,.0f} pixels, the middle one {short[50]:,.0f}"
    if report.formats:
        rows["formats"] = ", ".join(f"{name} {count:,}" for name, count in report.formats.items())
    traits = ", ".join(f"{name} {count:,}" for name, count in report.traits.items() if count)
    return rows | ({"of which": traits} if traits else {})
