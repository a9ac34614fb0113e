"""What happened as lines whose text is whole, and all that is known of one. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from mltop.probes.model import Incident, KernelEvent
from mltop.probes.model.units import clock_time, seconds
from mltop.probes.model.vocabulary import Act
from mltop.tui.app.navigation import Location, gpu_location, incident_location
from mltop.tui.render.advice import advice
from mltop.tui.render.cells import Cell, clip, wrap
from mltop.tui.render.findings import Happening, explained
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import SEVERITY
from mltop.tui.screens.incidents.page import Line, labelled

TIME_WIDTH, KIND_WIDTH, MOST_NAME = 8, 9, 20
LEAST_TEXT = 24  # cells: below, the text stands under the time
MOST_DRAWN = 500  # the newest
_SOURCES = {"kmsg": "the kernel log", "journal": "the journal", "kern_log": "kern.log", "nvml": "NVML"}


def names_width(events: Sequence[Happening]) -> int:
    """Of the column of nodes."""
    return min(MOST_NAME, max([4, *(len(event.node) for event in events)]))


def event_head(nodes: int, width: int) -> list[Cell]:
    """The titles. ``nodes``: cells of the column of nodes, 0: there is none."""
    text = f"{'TIME':<{TIME_WIDTH}}  {'KIND':<{KIND_WIDTH}}  " + (f"{'NODE':<{nodes}}  " if nodes else "") + "WHAT"
    return [Cell(text if len(text) <= width else "", "head")]


@lru_cache(maxsize=4096)  # a line stays as it is
def event_cells(event: Happening, nodes: int, width: int) -> tuple[tuple[Cell, ...], ...]:
    """One event, at its whole length."""
    node = clip(event.node, nodes) + "  " if nodes else ""
    head = [Cell(f"{clock_time(event.at):<{TIME_WIDTH}}  ", "dim"), Cell(f"{event.kind:<{KIND_WIDTH}}  ", event.style)]
    head.append(Cell(node))
    start = TIME_WIDTH + KIND_WIDTH + 4 + len(node)
    # Findings are whole sentences; of others it is said whom they are about.
    about = f"{event.subject}: " if event.subject and event.finding is None else ""
    what = [Cell(about, "dim"), Cell(event.text, "dim" if event.style == "dim" else "")]
    if width - start < LEAST_TEXT:
        return tuple(map(tuple, wrap([*head, *what], width, 2)))
    wrapped = wrap(what, width - start)
    return tuple((*([Cell(" " * start)] if row else head), *line) for row, line in enumerate(wrapped))


def page_of(
    event: Happening, incidents: Sequence[Incident], now: float, width: int, acts: Mapping[Act, str]
) -> list[Line]:
    """All of one event. ``acts``: what mltop itself would do, in words."""
    finding = event.finding
    what = finding.message if finding is not None else event.text
    lines = labelled("what", [Cell(what, "title")], width)
    word, style = SEVERITY.get(event.severity, (event.severity, ""))
    rule = f"  rule {finding.id}" if finding is not None else ""
    kind = [Cell(event.kind, event.style), Cell(f"  {word}" if word != event.kind else "", style), Cell(rule, "dim")]
    lines += labelled("kind", kind, width)
    if event.subject:
        lines += labelled("about", [Cell(event.subject)], width)
    if event.node:
        gpu = finding.gpu if finding is not None else None
        place = gpu_location(event.node, gpu) if gpu is not None else Location("node", event.node)
        lines += labelled("node", [Cell(event.node)], width, key="node", opens=place)
    lines += labelled("since" if finding is not None else "at", [Cell(_when(event, now))], width)
    lines += _source(event, width)
    action = advice(finding.act, finding.action, acts) if finding is not None else ""
    to_do = labelled("do", [Cell(f"{GLYPHS.arrow} {action}", "key")], width, 2) if action else []
    blocks = [_part_of(event, incidents, width), to_do, _evidence(event, width)]
    for block in blocks:
        lines += [Line(()), *block] if block else []
    return lines


def _when(event: Happening, now: float) -> str:
    finding = event.finding
    if finding is None or finding.since is None:
        return f"{clock_time(event.at)}, {seconds(max(0.0, now - event.at))} ago"
    if finding.until is None:
        return f"{clock_time(finding.since)} ({seconds(max(0.0, now - finding.since))})"
    lasted = seconds(max(0.0, finding.until - finding.since))
    return f"{clock_time(finding.since)} to {clock_time(finding.until)} (it lasted {lasted})"


def _source(event: Happening, width: int) -> list[Line]:
    if not isinstance(event.event, KernelEvent):
        told_by = event.event.told_by if event.event is not None else ""
        return labelled("source", [Cell(told_by)], width) if told_by else []
    told = event.event
    lines = labelled("source", [Cell(_SOURCES.get(told.source, told.source))], width)
    process = ", ".join(filter(None, (told.process, f"pid {told.pid}" if told.pid is not None else "")))
    return lines + (labelled("process", [Cell(process)], width) if process else [])


def _part_of(event: Happening, incidents: Sequence[Incident], width: int) -> list[Line]:
    lines: list[Line] = []
    for incident in incidents:
        if _belongs(event, incident):
            opens = incident_location(incident.id)
            label = "part of" if not lines else ""
            lines += labelled(label, [Cell(incident.headline)], width, 2, key=f"part/{incident.id}", opens=opens)
    return lines


def _belongs(event: Happening, incident: Incident) -> bool:
    if event.finding is not None:
        known = [*incident.findings, *(one for finding in incident.findings for one in finding.explains)]
        return event.finding.identity in {finding.identity for finding in known}
    return any((told.at, told.where, told.text) == (event.at, event.node, event.text) for told in incident.evidence)


def _evidence(event: Happening, width: int) -> list[Line]:
    if event.finding is None:
        return []
    lines: list[Line] = []
    for label, texts in (("evidence", event.finding.evidence), ("explains", explained(event.finding))):
        for number, text in enumerate(texts):
            lines += labelled("" if number else label, [Cell(text)], width, 2)
    return lines
