"""`check.html`: what was found, to look at. One file, no script, a bounded number of small pictures."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.checking.charts import class_chart, legend, size_chart
from vitrail.checking.mislabelled import LabelDoubt
from vitrail.checking.report import PERCENTILES, CheckReport, Finding, Group, shown
from vitrail.checking.summary import leak_words
from vitrail.checking.tables import BAD, DUPLICATES, LABELS
from vitrail.checking.thumbnails import thumbnails
from vitrail.data.notes import counted
from vitrail.pages.document import document, panel, section, tile
from vitrail.pages.markup import Markup, joined, tag

MOST_LINES = 200
MOST_PICTURES = 48
MOST_GROUPS = 30
MOST_IN_GROUP = 4
MOST_LABELS = 120


def make_page(report: CheckReport) -> str:
    return document(f"check of {shown(report.source.name)}", _head(report), _Sections(report).all(), _footer())


def _head(report: CheckReport) -> Markup:
    words = counted(len(report.source), "picture")
    if report.source.classes:
        words += f" of {counted(len(report.source.classes), 'class', 'classes')}"
    splits = [f"{name} {count:,}" for name, count in report.split_sizes.items() if name != "no split"]
    words += f" · {', '.join(splits)}" if splits else ""
    tiles = [
        _tile(len(report.unreadable), "unreadable", "unreadable"),
        _tile(len(report.suspicious), "suspicious", "suspicious"),
        _tile(sum(report.leaked.values()), "in two splits", "leaks"),
        _tile(len(report.contradictions), "groups with two labels", "contradictions"),
        _tile(len(report.duplicates), "groups of duplicates", "duplicates"),
    ]
    if report.labels is not None:
        tiles.append(_tile(len(report.labels.doubts), "labels likely wrong", "labels"))
    notes = tag("div", [tag("p", note) for note in report.source.notes], class_="notes")
    title = tag("h1", shown(report.source.name))
    return joined(
        title, tag("p", words, class_="soft"), tag("div", tiles, class_="tiles"), notes if report.source.notes else None
    )


def _tile(count: int, words: str, key: str) -> Markup:
    return tile(f"{count:,}", words, style="found", section=key) if count else tile("0", words, style="none")


def _footer() -> Markup:
    return tag("footer", "Made by ", tag("code", "vitrail check"), ". Nothing was changed in the data.")


class _Sections:
    """The parts of the page below its head. A group is shown once, under the gravest thing that is wrong with it."""

    def __init__(self, report: CheckReport) -> None:
        self.report = report
        self.suspicious = report.suspicious[:MOST_PICTURES]
        shown_first = {int(group.rows[0]) for group in (*report.leaks, *report.contradictions)}
        leaking = {int(group.rows[0]) for group in report.leaks}
        self.leaks = report.leaks
        self.contradictions = [group for group in report.contradictions if int(group.rows[0]) not in leaking]
        self.others = [group for group in report.duplicates if int(group.rows[0]) not in shown_first]
        self.doubts = report.labels.doubts[:MOST_LABELS] if report.labels else []
        self.small = thumbnails(report.source, self._rows())

    def _rows(self) -> list[int]:
        rows = [finding.row for finding in self.suspicious] + [doubt.row for doubt in self.doubts]
        for groups in (self.leaks, self.contradictions, self.others):
            rows += [int(row) for group in groups[:MOST_GROUPS] for row in group.rows[:MOST_IN_GROUP]]
        return rows

    def all(self) -> Markup:
        return joined(
            self._unreadable(),
            self._suspicious(),
            self._groups("leaks", "In two splits", self.leaks, self._leak_words()),
            self._groups(
                "contradictions",
                "One picture, two labels",
                self.contradictions,
                "The same picture bears different labels: one of them is wrong, or the classes overlap.",
                also=len(self.report.contradictions) - len(self.contradictions),
            ),
            self._groups(
                "duplicates",
                "Other duplicates",
                self.others,
                "The same picture more than once, in one split and under one label. It counts that many times.",
                also=len(self.report.duplicates) - len(self.others),
            ),
            self._labels(),
            self._statistics(),
        )

    def _leak_words(self) -> str:
        return f"What is measured on these pictures was learnt by heart: {leak_words(self.report.leaked)}."

    def _unreadable(self) -> Markup | None:
        found = self.report.unreadable
        if not found:
            return None
        lines = [
            tag("tr", tag("td", shown(self.report.name_of(finding.row))), tag("td", finding.reason))
            for finding in found[:MOST_LINES]
        ]
        table = tag("table", tag("tr", tag("th", "file"), tag("th", "why")), lines)
        lead = "Training leaves these files out."
        return section("unreadable", "Unreadable", lead, tag("div", table, class_="panel"), _more(found, lines, BAD))

    def _suspicious(self) -> Markup | None:
        found = self.report.suspicious
        if not found:
            return None
        parts = [f"{words} ({count:,})" for words, count in self.report.doubts.items() if count]
        sheet = tag("div", [self._suspect(finding) for finding in self.suspicious], class_="sheet")
        lead = f"They can be read, but look at them: {', '.join(parts)}."
        return section("suspicious", "Suspicious", lead, sheet, _more(found, self.suspicious, BAD))

    def _suspect(self, finding: Finding) -> Markup:
        words = tag("span", finding.reason, class_="where")
        return tag("figure", self._picture(finding.row), tag("figcaption", words, self._file(finding.row)))

    def _groups(self, key: str, title: str, groups: Sequence[Group], lead: str, also: int = 0) -> Markup | None:
        if not groups and not also:
            return None
        lead += f" {counted(also, 'group is', 'groups are')} shown above." if also else ""
        boxes = tag("div", [self._group(group) for group in groups[:MOST_GROUPS]], class_="groups")
        return section(key, title, lead, boxes, _more(groups, groups[:MOST_GROUPS], DUPLICATES))

    def _group(self, group: Group) -> Markup:
        rows = [int(row) for row in group.rows]
        chips = [tag("span", "same bytes" if group.exact else "same to the eye", class_="chip")]
        if len({self.report.split_of(row) for row in rows} - {""}) > 1:
            chips.append(tag("span", "two splits", class_="chip bad"))
        if len({self.report.label_of(row) for row in rows} - {""}) > 1:
            chips.append(tag("span", "two labels", class_="chip bad"))
        members = []
        for row in rows[:MOST_IN_GROUP]:
            place = " · ".join(filter(None, (self.report.split_of(row), self.report.label_of(row))))
            caption = tag("figcaption", tag("span", place, class_="where tag") if place else None, self._file(row))
            members.append(tag("figure", self._picture(row), caption))
        left = len(rows) - len(members)
        more = tag("p", f"and {left:,} more", class_="more") if left else None
        return tag("div", tag("header", chips), tag("div", members, class_="row"), more, class_="group")

    def _labels(self) -> Markup | None:
        labels = self.report.labels
        if labels is None or not labels.doubts:
            return None
        lead = (
            "A linear probe on the model's features, which had not seen these pictures, is confident of another class. "
            f"It agrees with {labels.agreement:.1%} of {labels.judged:,} labels. The most doubtful come first."
        )
        sheet = tag("div", [self._doubt(doubt) for doubt in self.doubts], class_="sheet")
        return section("labels", "Labels that are likely wrong", lead, sheet, _more(labels.doubts, self.doubts, LABELS))

    def _doubt(self, doubt: LabelDoubt) -> Markup:
        classes = self.report.source.classes
        change = tag("b", classes[doubt.given]), " → ", tag("b", classes[doubt.suggested], class_="to")
        score = f"{doubt.self_confidence:.1%} → {doubt.probability:.1%}"
        caption = tag("span", change, class_="change"), tag("span", score, class_="score"), self._file(doubt.row)
        return tag("figure", self._picture(doubt.row), tag("figcaption", caption))

    def _statistics(self) -> Markup:
        report = self.report
        panels = []
        if report.source.classes:
            words = "Pictures in each class"
            words += f" (largest to smallest: {report.imbalance:.1f} to 1)" if report.imbalance else ""
            keys = legend(report.class_counts) if len(report.class_counts) > 1 else None
            panels.append(panel(words, class_chart(report.source.classes, report.class_counts), keys))
        if report.percentiles:
            panels.append(panel("Length of the shorter side, in pixels", size_chart(report.sides[0])))
            panels.append(panel("Percentiles", self._percentiles()))
        kinds = [panel("Formats", _counts(report.formats)), panel("Kinds", _counts(report.traits))]
        return section("statistics", "Classes, sizes, formats", None, *panels, tag("div", kinds, class_="two"))

    def _percentiles(self) -> Markup:
        head = tag("tr", tag("th", ""), [tag("th", f"{at}%", class_="number") for at in PERCENTILES])
        rows = [
            tag("tr", tag("td", name), [tag("td", f"{value:,.10g}", class_="number") for value in values])
            for name, values in self.report.percentiles.items()
        ]
        return tag("table", head, rows)

    def _picture(self, row: int) -> Markup:
        address = self.small.get(row)
        if address is None:
            return tag("div", "cannot be shown", class_="frame none")
        return tag("div", tag("img", src=address, alt="", loading="lazy"), class_="frame")

    def _file(self, row: int) -> Markup:
        return tag("span", shown(self.report.name_of(row)), class_="file")


def _counts(counts: dict[str, int]) -> Markup:
    rows = [tag("tr", tag("td", name), tag("td", f"{count:,}", class_="number")) for name, count in counts.items()]
    return tag("table", rows)


def _more(everything: Sequence[object], visible: Sequence[object], table: str) -> Markup | None:
    left = len(everything) - len(visible)
    return tag("p", f"{left:,} more are in {table}.", class_="soft") if left > 0 else None
