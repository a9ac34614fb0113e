"""The printed page: lines of cells on a rich console. What machines say is never read as markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mltop.probes.investigate.advice import to_do
from mltop.probes.model import Finding, Incident, NodeState
from mltop.probes.model.units import clock_time, known
from mltop.probes.model.vocabulary import COMMANDS, Act
from mltop.tui.render.advice import advice
from mltop.tui.render.cells import (
    Cell,
    Column,
    Row,
    columns_line,
    header_line,
    layout,
    needs,
    printable,
    unknown_columns,
    with_widths,
    wrap,
)
from mltop.tui.render.findings import evidence_words, explained, severity_cell
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import silent_cells

if TYPE_CHECKING:
    from rich.console import Console

_RICH_STYLE = {
    "dim": "dim",
    "ok": "green",
    "warn": "yellow",
    "crit": "bold red",
    "accent": "cyan",
    "key": "cyan",
    "keys": "bold cyan",
    "waits": "magenta",
    "head": "dim",
    "title": "bold",
    "bold": "bold",
}

WIDEST = 10_000  # columns: in a file a line for each thing, as logs are searched
NAME = 12  # cells that a name may take from columns that matter less: a uid of ten digits fits


class Page:
    """A page on a rich console. ``acts``: what mltop itself would do next, in words."""

    def __init__(self, console: Console, acts: Mapping[Act, str] = COMMANDS) -> None:
        self._console, self.acts = console, acts
        self.width = min(console.width, WIDEST)  # COLUMNS may be any number

    def lines(self, lines: Iterable[Iterable[Cell]]) -> None:
        """Lines of cells, as they are: no markup, no highlighting, no wrapping, no blanks at the end."""
        from rich.text import Text

        for line in lines:
            text = Text(no_wrap=True, overflow="ignore", end="")
            for cell in line:
                text.append(printable(cell.text), _RICH_STYLE.get(cell.style, ""))
            text.rstrip()
            self._console.print(text, crop=False, highlight=False, soft_wrap=True)

    def markdown(self, text: str) -> None:
        """Our own Markdown, which begins with its title: drawn on a terminal, as it is written elsewhere."""
        if not self._console.is_terminal:
            self.lines([Cell(line)] for line in text.splitlines())
            return
        from rich.markdown import Markdown
        from rich.theme import Theme

        title, _, body = text.partition("\n")
        self.lines([[Cell(title.removeprefix("# "), "title")], []])
        with self._console.use_theme(Theme({"markdown.code": "cyan"})):  # rich's has a black background
            self._console.print(Markdown(body, code_theme="ansi_dark", hyperlinks=False))

    def line(self, *cells: Cell) -> None:
        self.lines([cells])

    def sentence(self, *cells: Cell, indent: int = 2) -> None:
        """One line, broken between words where it is too long."""
        self.lines(wrap(cells, self.width, indent))

    def paragraph(self, *cells: Cell) -> None:
        """A sentence, apart from what stands before it."""
        self.line()
        self.sentence(*cells)

    def title(self, title: str) -> None:
        self.lines([[], [Cell(title, "title")]])

    def table(
        self, columns: Sequence[Column], rows: Sequence[Row], title: str = "", without: Collection[str] = ()
    ) -> set[int]:
        """Returns the indexes of the columns for which there was no room. ``without``: keys of those not wanted.

        Columns are as wide as their cells, within limits: a printed row does not change, as those of the screen do.
        """
        needed = needs(columns, rows)
        columns = with_widths(columns, **{c.key: min(needed[c.key], max(c.width, NAME)) for c in columns})
        hidden = unknown_columns(columns, rows) | {at for at, column in enumerate(columns) if column.key in without}
        shown = layout(columns, self.width, hidden, needed)
        heading = [[], [Cell(title, "title")]] if title else [[]]
        body = [columns_line(columns, row, shown) for row in rows]
        self.lines([*heading, header_line(columns, shown), *body])
        return set(range(len(columns))) - hidden - {index for index, _ in shown}

    def whole_table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """As ``table``; the columns for which there was no room are named below it."""
        left_out = [columns[index].title for index in sorted(self.table(columns, rows)) if columns[index].title]
        if left_out:
            self.sentence(Cell(f"not shown at this width: {', '.join(left_out)} (--json has everything)", "dim"))

    def more(self, number: int, what: str, style: str = "warn") -> None:
        """The number of those that are not listed; nothing where all are."""
        if number > 0:
            self.line(Cell(f"and {number} more {what}", style))

    def action(self, act: Act, action: str) -> None:
        """The remedy in mltop's own words: on one line however long, so that it can be copied."""
        if do := advice(act, action, self.acts):
            self.line(Cell("    do: ", "dim"), Cell(do, "accent"))

    def fix(self, fix: str, example: bool = False) -> None:
        """The remedy that a node or a recording advises. ``example``: for one of several nodes."""
        label, text = to_do(fix, example)
        if text:
            self.line(Cell(f"    {label}", "dim"), Cell(text, "accent"))

    def story(
        self, one: Finding | Incident, text: Sequence[Cell], indent: int = 0, details: Iterable[str] = ()
    ) -> None:
        """What is wrong behind its severity, then ``details``, a line each."""
        start = severity_cell(one.severity)
        self.sentence(Cell(" " * indent), start, Cell(" "), *text, indent=indent + 5)
        for detail in details:
            self.sentence(Cell(" " * (indent + 4)), Cell(detail, "dim"), indent=indent + 4)

    def finding(self, finding: Finding, verbose: bool = False) -> None:
        """One finding: what is wrong, and what to do. ``verbose``: with its evidence, and what it explains."""
        span = "" if finding.until is None else f" ({clock_time(finding.since)} to {clock_time(finding.until)})"
        where = f"{finding.node}: " if finding.node else ""
        text = [Cell(where, "bold"), Cell(finding.message or finding.id), Cell(span, "dim")]
        self.story(finding, text, details=details_of(finding) if verbose else ())
        self.action(finding.act, finding.action)

    def incident(self, incident: Incident, verbose: bool = False) -> None:
        """One incident: its headline and what to do, then each finding that the headline does not tell in full.

        What is only a finding is shown as one. ``verbose``: with all evidence, and what would make it surer.
        """
        findings = incident.findings
        if incident.kind == "node" and len(findings) == 1:
            self.finding(findings[0], verbose)
            return
        until = "" if incident.until is None else f" (over since {clock_time(incident.until)})"
        self.story(incident, [Cell(incident.headline, "bold"), Cell(until, "dim")])
        self.action(incident.act, incident.action)
        for finding in findings:
            where = f"{finding.node}: " if finding.node else ""
            self.story(finding, [Cell(f"{where}{finding.message}")], 5, details_of(finding) if verbose else ())
        for evidence in incident.evidence if verbose else ():
            self.sentence(Cell(f"     {evidence_words(evidence)}", "dim"), indent=7)
        if verbose and (surer := advice(incident.next_act, incident.next, self.acts)):
            self.sentence(Cell("     to be surer: ", "dim"), Cell(surer, "accent"), indent=7)

    def not_well(self, states: Iterable[NodeState]) -> None:
        """Nodes that did not, or not fully, answer: one sentence for each reason."""
        for cell in silent_cells(states):
            self.sentence(cell)


def details_of(finding: Finding) -> list[str]:
    return [*finding.evidence, *(f"explains {text}" for text in explained(finding))]


_UNIT = re.compile(r"[^\d.]*$")


def span(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """ "655-682T" of 655.1 to 681.7; "" where nothing is known."""
    figures = [value for value in values if value is not None and known(value)]
    if not figures:
        return ""
    least, most = text(min(figures)), text(max(figures))
    if least == most:
        return least
    unit = _UNIT.search(most)
    return f"{least.removesuffix(unit.group() if unit else '')}{GLYPHS.dash}{most}"
