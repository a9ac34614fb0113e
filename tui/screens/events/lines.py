"""What happened as lines whose text is whole, and all that is known of one. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from mltop.probes.model import Incident, KernelEvent
from mltop.probes.model.units import clock_time, seconds
from mltop.probes.model.vocabulary import Act
from mltop.tui.app.navigation import Location, gpu_location, incident_location
from mltop.tui.render.advice import advice
from mltop.tui.render.cells import Cell, clip, line_width, plain, wrap
from mltop.tui.render.findings import Happening, explained
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import SEVERITY
from mltop.tui.render.story import Line, beside, spaced
from mltop.tui.screens.incidents.page import section, when

TIME_WIDTH, KIND_WIDTH, MOST_NAME = 8, 9, 20
LEAST_TEXT = 24  # cells: below, the text stands under the time
MOST_DRAWN = 500  # the newest
_SOURCES = {"kmsg": "the kernel log", "journal": "the journal", "kern_log": "kern.log", "nvml": "NVML"}


def event_lines(events: Sequence[Happening], width: int, *, with_nodes: bool) -> tuple[list[Cell], list[Line]]:
    """The titles; and each event, at its whole length."""
    nodes = min(MOST_NAME, max([4, *(len(event.node) for event in events)])) if with_nodes else 0
    text = f"{'TIME':<{TIME_WIDTH}}  {'KIND':<{KIND_WIDTH}}  " + (f"{'NODE':<{nodes}}  " if nodes else "") + "WHAT"
    lines = [Line(cells, event.key) for event in events for cells in _event_cells(event, nodes, width)]
    return [Cell(text if len(text) <= width else "", "head")], lines


@lru_cache(maxsize=4096)  # a line stays as it is
def _event_cells(event: Happening, nodes: int, width: int) -> list[list[Cell]]:
    """``nodes``: cells of the column of nodes, 0: there is none."""
    head = [
        Cell(f"{clock_time(event.at):<{TIME_WIDTH}}  ", "dim"),
        Cell(f"{event.kind:<{KIND_WIDTH}}  ", event.style),
        Cell(clip(event.node, nodes) + "  " if nodes else ""),
    ]
    # Findings are whole sentences; of others it is said whom they are about.
    about = f"{event.subject}: " if event.subject and event.finding is None else ""
    what = [Cell(about, "dim"), Cell(event.text, "dim" if event.style == "dim" else "")]
    return beside(head, what, width) if width - line_width(head) >= LEAST_TEXT else wrap([*head, *what], width, 2)


def page_of(
    event: Happening, incidents: Sequence[Incident], now: float, width: int, acts: Mapping[Act, str]
) -> list[Line]:
    """All of one event. ``acts``: what mltop itself would do, in words."""
    finding = event.finding
    word, style = SEVERITY.get(event.severity, (event.severity, ""))
    rule = f"  rule {finding.id}" if finding is not None else ""
    place = None
    if event.node:
        gpu = finding.gpu if finding is not None else None
        place = gpu_location(event.node, gpu) if gpu is not None else Location("node", event.node)
    at = f"{clock_time(event.at)}, {seconds(max(0.0, now - event.at))} ago"
    has_since = finding is not None and finding.since is not None
    facts = {
        "what": Line([Cell(finding.message if finding is not None else event.text, "title")]),
        "kind": Line(
            [Cell(event.kind, event.style), Cell(f"  {word}" if word != event.kind else "", style), Cell(rule, "dim")]
        ),
        "about": Line([Cell(event.subject)]),
        "node": Line([Cell(event.node)], "node", place),
        "at" if finding is None else "since": Line([Cell(when(finding, now) if finding and has_since else at)]),
        **{label: Line([Cell(text)]) for label, text in _source(event).items()},
    }
    action = advice(finding.act, finding.action, acts) if finding is not None else ""
    part_of = [
        Line([Cell(incident.headline)], f"part/{incident.id}", incident_location(incident.id))
        for incident in incidents
        if _belongs(event, incident)
    ]
    evidence = [Line([Cell(text)]) for text in finding.evidence] if finding is not None else []
    explains = [Line([Cell(text)]) for text in explained(finding)] if finding is not None else []
    return spaced(
        (
            [
                line
                for label, fact in facts.items()
                if plain(fact.cells)
                for line in section(label, [fact], width, indent=0)
            ],
            section("part of", part_of, width),
            section("do", [Line([Cell(f"{GLYPHS.arrow} {action}", "key")])] if action else [], width),
            [*section("evidence", evidence, width), *section("explains", explains, width)],
        )
    )


def _source(event: Happening) -> dict[str, str]:
    """Who reported it, and of which process."""
    reported = event.event
    if isinstance(reported, KernelEvent):
        process = ", ".join(filter(None, (reported.process, f"pid {reported.pid}" if reported.pid is not None else "")))
        return {"source": _SOURCES.get(reported.source, reported.source), "process": process}
    return {"source": reported.told_by if reported is not None else ""}


def _belongs(event: Happening, incident: Incident) -> bool:
    if event.finding is not None:
        known = [*incident.findings, *(one for finding in incident.findings for one in finding.explains)]
        return event.finding.identity in {finding.identity for finding in known}
    return any((one.at, one.where, one.text) == (event.at, event.node, event.text) for one in incident.evidence)
