"""All that is known of one thing that is wrong, as lines: what, who, since when, what to do, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.judge.values import grouped
from mltop.probes.model import Culprit, Evidence, Finding, Incident, JobKey, StackDigest
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.units import clock_time, counted
from mltop.probes.model.vocabulary import Act
from mltop.tui.app.navigation import Location, gpu_location, incident_location
from mltop.tui.render.advice import KEYCAPS, advice, keys_on
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.findings import age_text, explained, source_words
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.problems import Told
from mltop.tui.render.stacks.frames import chain_cells
from mltop.tui.render.stacks.verdict import how_cell

LABEL, NARROW_LABEL = 12, 9  # cells of the labels, and where the screen is narrow
NARROW = 60
MOST_CULPRITS, MOST_EFFECTS, MOST_APART, MOST_EVIDENCE = 8, 12, 8, 40
AT_WIDTH = 8


@dataclass(frozen=True)
class Line:
    """``opens``: where Enter goes from it."""

    cells: Sequence[Cell]
    key: str | None = None
    opens: Location | None = None


@dataclass(frozen=True)
class Known:
    """What is known beside the incident itself. ``users``: of processes, by node and pid; ``stacks``: of its job in the
    newest dump; ``apart``: other things that are wrong; ``here``: the nodes that are watched; ``now``: unix s.
    ``acts``: what mltop itself would do, in words; ``ras``: what was asked of NCCL, and when.
    """

    now: float
    here: frozenset[str] = frozenset()
    users: dict[tuple[str, int], str] = field(default_factory=dict)
    stacks: Sequence[StackDigest] = ()
    apart: Sequence[Told] = ()
    acts: Mapping[Act, str] = field(default_factory=keys_on)
    ras: Sequence[Cell] = ()

    @property
    def several(self) -> bool:
        return len(self.here) > 1


def incident_of(told: Told) -> Incident:
    """What findings say that are in no incident, as one."""
    if told.incident is not None:
        return told.incident
    first = told.findings[0]
    culprits = [Culprit(None, one.node, None, one.message, "", True, one.gpu) for one in told.findings]
    evidence = [Evidence("health", one.message, one.since, one.node) for one in told.findings]
    evidence += [Evidence("health", text, None, one.node) for one in told.findings for text in one.evidence]
    return Incident(
        told.key,
        "node",
        first.severity,
        "".join(cell.text for cell in told.what),
        since=told.since,
        until=told.until,
        culprits=culprits,
        causes=[*told.findings],
        evidence=evidence,
        confidence="high",
        act=first.act,
        action=first.action,
    )


def labelled(
    label: str,
    cells: Iterable[Cell],
    width: int,
    indent: int = 0,
    *,
    key: str | None = None,
    opens: Location | None = None,
) -> list[Line]:
    """Wrapped, with the label before the first line."""
    of = label_width(width)
    blank, start = Cell(" " * of), Cell(f"{label:<{of}}", "dim")
    wrapped = wrap(cells, max(1, width - of), indent)
    return [Line([blank if number else start, *line], key, opens) for number, line in enumerate(wrapped)]


def label_width(width: int) -> int:
    return LABEL if width >= NARROW else NARROW_LABEL


class Page:
    """Lines of one incident at a width, each labelled section after the other."""

    def __init__(self, incident: Incident, known: Known, width: int) -> None:
        self.incident, self.known, self.width = incident, known, width
        self.label = label_width(width)
        self.room = max(1, width - self.label)

    def lines(self) -> list[Line]:
        """Blocks with a blank line between them."""
        what = self._labelled("what", [Cell(self.incident.headline, "title")])
        blocks = (
            [*what, *self._who(), *self._since(), *self._suffers()],
            self._actions(),
            [*self._evidence(), *(self._labelled("ras", self.known.ras, 2) if self.known.ras else [])],
            self._stack(),
            [*self._explains(), *self._apart()],
        )
        lines: list[Line] = []
        for block in blocks:
            lines += [Line(())] if lines and block else []
            lines += block
        return lines

    def _labelled(self, label: str, cells: Iterable[Cell], indent: int = 0, **about: Any) -> list[Line]:
        return labelled(label, cells, self.width, indent, **about)

    def _who(self) -> list[Line]:
        shown = self.incident.culprits[:MOST_CULPRITS]
        lines: list[Line] = []
        for number, culprit in enumerate(shown):
            label = "who" if not number else ""
            lines += self._labelled(label, self._culprit(culprit), 2, key=f"who/{number}", opens=self._place(culprit))
        left = len(self.incident.culprits) - len(shown)
        return lines + (self._labelled("", [Cell(f"and {left} more", "dim")]) if left else [])

    def _culprit(self, culprit: Culprit) -> list[Cell]:
        names = [f"rank {culprit.rank}"] if culprit.rank is not None else []
        place = [culprit.node] if culprit.node else []
        place += [f"GPU {culprit.gpu}"] if culprit.gpu is not None else []
        names += [" ".join(place)] if place else []
        names += [f"pid {culprit.child_pid or culprit.pid}"] if culprit.pid is not None else []
        user = self.known.users.get((culprit.node, culprit.pid or 0), "")
        names += [f"user {user}"] if user else []
        first = culprit is self.incident.culprits[0]  # the headline says what that one does
        return [Cell(", ".join(names)), Cell("" if first or not culprit.reason else f": {culprit.reason}", "dim")]

    def _place(self, culprit: Culprit) -> Location | None:
        if culprit.node not in self.known.here:
            return None
        if culprit.pid is not None:
            number = "?" if culprit.rank is None else str(culprit.rank)
            return Location("rank", culprit.node, pid=culprit.pid, label=f"rank {number}")
        return gpu_location(culprit.node, culprit.gpu) if culprit.gpu is not None else Location("node", culprit.node)

    def _since(self) -> list[Line]:
        incident = self.incident
        if incident.since is None:
            return []
        until = f" to {clock_time(incident.until)}" if incident.until is not None else ""
        lasted = f"it lasted {age_text(incident, self.known.now)}" if until else age_text(incident, self.known.now)
        return self._labelled("since", [Cell(f"{clock_time(incident.since)}{until} ({lasted})")])

    def _suffers(self) -> list[Line]:
        suffers, job = self.incident.suffers, self.incident.job
        parts = [counted(suffers.ranks.count, "rank")] if suffers.ranks.count else []
        parts += [counted(suffers.gpus, "GPU")] if suffers.gpus else []
        if not parts:
            return []
        lost = f"; {suffers.gpu_hours:.1f} GPU-hours lost" if suffers.gpu_hours >= _LEAST_LOST else ""
        so_far = " so far" if lost and self.incident.until is None else ""
        whose = f"job {job}: " if job else ""
        opens = self._of_job() if job and suffers.ranks else None
        cells = [Cell(f"{whose}{' on '.join(parts)}{lost}{so_far}")]
        return self._labelled("suffers", cells, 2, key="suffers" if opens is not None else None, opens=opens)

    def _of_job(self) -> Location:
        incident, ranks = self.incident, self.incident.suffers.ranks
        return Location("ranks", job=JobKey(incident.job, incident.uid), ranks=ranks, label=ranks_text(ranks))

    def _actions(self) -> list[Line]:
        incident = self.incident
        acts = self.known.acts
        texts = [advice(incident.act, incident.action, acts)]
        texts += [advice(cause.act, cause.action, acts) for cause in incident.causes]
        texts = [text for text in dict.fromkeys(texts) if text]
        lines: list[Line] = []
        for text in texts:
            lines += self._labelled("" if lines else "do", [Cell(f"{GLYPHS.arrow} {text}", "key")], 2)
        if surer_by := advice(incident.next_act, incident.next, acts):
            surer = [Cell(f"{GLYPHS.arrow} to be surer: ", "key"), Cell(surer_by)]
            lines += self._labelled("" if lines else "do", surer, 2)
        return lines

    # Evidence.

    def _evidence(self) -> list[Line]:
        told = sorted(self.incident.evidence, key=lambda one: (one.at is None, one.at or 0.0))
        told = list({(one.source, one.text, one.where): one for one in told}.values())
        if not told:
            return []
        wide = self.room >= _WITH_SOURCE
        of = max(len("FROM"), *(len(source_words(one)) for one in told[:MOST_EVIDENCE])) + 2 if wide else 0
        if self.room - AT_WIDTH - 2 - of < _LEAST_TEXT:
            of = 0
        titles = f"{'AT':<{AT_WIDTH + 2}}{'FROM' if wide else '':<{of}}WHAT"
        lines = self._labelled("evidence", [Cell(titles if self.room >= len(titles) else "", "head")])
        for number, one in enumerate(told[:MOST_EVIDENCE]):
            lines += self._piece(one, of, f"evidence/{number}")
        left = len(told) - MOST_EVIDENCE
        return lines + (self._labelled("", [Cell(f"and {left} more", "dim")]) if left > 0 else [])

    def _piece(self, one: Evidence, of: int, key: str) -> list[Line]:
        """``of``: cells of the column that says from where, 0: it stands in the text."""
        at, start = clock_time(one.at) if one.at is not None else "", AT_WIDTH + 2 + of
        where = f"{one.where}: " if one.where and self.known.several else ""
        source = "" if of else f"{source_words(one)}: "
        head = [Cell(f"{at:<{AT_WIDTH + 2}}", "dim"), Cell(f"{source_words(one) if of else '':<{of}}")]
        opens, blank = self._opens(one), Cell(" " * self.label)
        if self.room - start < _LEAST_TEXT:
            cells = [Cell(f"{at} ".lstrip(), "dim"), Cell(f"{source}{where}{one.text}")]
            return self._labelled("", cells, 2, key=key, opens=opens)
        text = wrap([Cell(f"{source}{where}{one.text}")], self.room - start)
        return [
            Line([blank, *([Cell(" " * start)] if row else head), *line], key, opens) for row, line in enumerate(text)
        ]

    def _opens(self, evidence: Evidence) -> Location | None:
        """What it is of: a rank's stack, a GPU, what a kernel said, a node."""
        culprit = next((one for one in self.incident.culprits if one.pid is not None), None)
        if evidence.source == "stacks":
            single = len(self.incident.culprits) == 1 and culprit is not None
            return self._place(culprit) if single and culprit is not None else Location("stacks")
        for finding in self.incident.findings:
            if (finding.message, finding.node) == (evidence.text, evidence.where):
                return self._of_finding(finding)
        if evidence.where in self.known.here:
            return Location("events" if evidence.source == "kernel" else "node", evidence.where)
        if evidence.source == "samples" and self.incident.suffers.ranks:
            return self._of_job()
        return self._place(culprit) if culprit is not None else None

    def _of_finding(self, finding: Finding) -> Location | None:
        if finding.node not in self.known.here:
            return None
        return gpu_location(finding.node, finding.gpu) if finding.gpu is not None else Location("node", finding.node)

    # Stack.

    def _stack(self) -> list[Line]:
        """That of the first culprit of whom there is one."""
        culprits = {(one.node, one.child_pid or one.pid): one for one in self.incident.culprits if one.pid is not None}
        for digest in self.known.stacks:
            culprit = culprits.get((digest.node, digest.pid))
            if culprit is not None and digest.frames:
                cells = chain_cells(digest.frames, how_cell(culprit))
                return self._labelled("stack", cells, 2, key="stack", opens=self._place(culprit))
        if self.incident.kind == "hang" and self.incident.until is None and not self.known.stacks:
            return self._labelled("stack", [Cell(f"none of this job yet: {KEYCAPS['dump']} dumps all", "dim")])
        return []

    # What belongs to it, and what does not.

    def _explains(self) -> list[Line]:
        """Findings that it explains, those that one rule has of one node as one."""
        said = {(one.text, one.where) for one in self.incident.evidence}
        effects = [one for one in self.incident.effects if (one.message, one.node) not in said]
        groups = [*grouped(effects, lambda one: (one.id, one.node)).values()]
        lines: list[Line] = []
        for number, group in enumerate(groups[:MOST_EFFECTS]):
            first = group[0]
            more = f"; and {len(group) - 1} more" if len(group) > 1 else ""
            opens = self._of_finding(first)
            key = f"explains/{number}"
            where = f"{first.node}: " if first.node and self.known.several else ""
            cells = [Cell(where, "dim"), Cell(f"{first.message}{more}")]
            lines += self._labelled("explains" if not lines else "", cells, 2, key=key, opens=opens)
        if (left := len(groups) - MOST_EFFECTS) > 0:
            lines += self._labelled("", [Cell(f"and {counted(left, 'more line')}", "dim")])
        for cause in self.incident.causes:
            for text in explained(cause):
                lines += self._labelled("" if lines else "explains", [Cell(text, "dim")], 2)
        return lines

    def _apart(self) -> list[Line]:
        """Other things that are wrong, of which it is not known that they have to do with it."""
        lines: list[Line] = []
        for one in self.known.apart[:MOST_APART]:
            cells = [Cell(f"{one.who} ", "dim"), *one.what]
            if one.since is not None and self.incident.since is not None:
                before = "earlier" if one.since < self.incident.since else "later"
                cells.append(Cell(f", since {clock_time(one.since)}, {before}", "dim"))
            opens = incident_location(one.key)
            lines += self._labelled("" if lines else "unrelated", cells, 2, key=f"apart/{one.key}", opens=opens)
        left = len(self.known.apart) - MOST_APART
        return lines + (
            self._labelled("", [Cell(f"and {left} more: {KEYCAPS['incidents']} lists all", "dim")]) if left > 0 else []
        )


_LEAST_LOST = 0.05  # GPU-hours
_LEAST_TEXT = 16  # cells
_WITH_SOURCE = 60  # cells: from here on the source of evidence has a column
