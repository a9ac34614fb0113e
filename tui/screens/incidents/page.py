"""All that is known of one thing that is wrong, as lines: what, who, since when, what to do, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mltop.probes.judge.values import grouped
from mltop.probes.model import Culprit, Evidence, Finding, Incident, JobKey, StackDigest
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.units import clock_time, counted, seconds
from mltop.probes.model.vocabulary import Act
from mltop.tui.app.navigation import Location, gpu_location, incident_location
from mltop.tui.render.advice import KEYCAPS, advice, keys_on
from mltop.tui.render.cells import Cell, wrap
from mltop.tui.render.findings import explained, source_words
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.ranks import rank_number
from mltop.tui.render.stacks.frames import chain_cells
from mltop.tui.render.stacks.verdict import how_cell
from mltop.tui.render.story import LEAST_LOST, Line, Scope, Story, beside, place_words, spaced

LABEL, NARROW_LABEL = 12, 9  # cells of the labels, and where the screen is narrow
NARROW = 60
MOST_CULPRITS, MOST_EFFECTS, MOST_APART, MOST_EVIDENCE = 8, 12, 8, 40
AT_WIDTH = 8


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
    apart: Sequence[Story] = ()
    acts: Mapping[Act, str] = field(default_factory=keys_on)
    ras: Sequence[Cell] = ()

    @property
    def several(self) -> bool:
        return len(self.here) > 1


def section(
    label: str, entries: Sequence[Line], width: int, most: int | None = None, *, rest: str = "", indent: int = 2
) -> list[Line]:
    """The entries below each other, wrapped, with the label before the first; of more than ``most`` the number of the
    others, with ``rest`` behind it.
    """
    cells = label_width(width)
    lines: list[Line] = []
    for entry in entries[:most]:
        for line in wrap(entry.cells, max(1, width - cells), indent):
            lines.append(Line([Cell(f"{'' if lines else label:<{cells}}", "dim"), *line], entry.key, entry.opens))
    left = len(entries) - len(entries[:most])
    return [*lines, *(section("", [Line([Cell(f"and {left} more{rest}", "dim")])], width) if left else [])]


def label_width(width: int) -> int:
    return LABEL if width >= NARROW else NARROW_LABEL


class Page:
    """Lines of one incident at a width, each labelled section after the other."""

    def __init__(self, incident: Incident, known: Known, width: int) -> None:
        self.incident, self.known, self.width = incident, known, width
        self.room = max(1, width - label_width(width))

    def lines(self) -> list[Line]:
        """Blocks with a blank line between them."""
        incident, known = self.incident, self.known
        since = [Cell(when(incident, known.now))] if incident.since is not None else []
        whos = [Line(self._culprit(one), f"who/{at}", self._place(one)) for at, one in enumerate(incident.culprits)]
        listed = f": {KEYCAPS['incidents']} lists all"
        about = [
            *self._section("what", Line([Cell(incident.headline, "title")]), indent=0),
            *self._section("who", *whos, most=MOST_CULPRITS),
            *self._section("since", *([Line(since)] if since else [])),
            *self._suffers(),
        ]
        ras = self._section("ras", *([Line(known.ras)] if known.ras else []))
        apart = self._section("unrelated", *self._apart(), most=MOST_APART, rest=listed)
        actions = self._section("do", *self._actions())
        return spaced((about, actions, [*self._evidence(), *ras], self._stack(), [*self._explains(), *apart]))

    def _section(self, label: str, *entries: Line, most: int | None = None, **options: Any) -> list[Line]:
        return section(label, entries, self.width, most, **options)

    def _culprit(self, culprit: Culprit) -> list[Cell]:
        names = [f"rank {culprit.rank}"] if culprit.rank is not None else []
        names += place_words(culprit, Scope())
        user = self.known.users.get((culprit.node, culprit.pid or 0), "")
        names += [f"user {user}"] if user else []
        first = culprit is self.incident.culprits[0]  # the headline says what that one does
        return [Cell(", ".join(names)), Cell("" if first or not culprit.reason else f": {culprit.reason}", "dim")]

    def _place(self, culprit: Culprit) -> Location | None:
        if culprit.node in self.known.here and culprit.pid is not None:
            return Location("rank", culprit.node, pid=culprit.pid, label=f"rank {rank_number(culprit.rank)}")
        return self._on_node(culprit.node, culprit.gpu)

    def _on_node(self, node: str, gpu: int | None) -> Location | None:
        if node not in self.known.here:
            return None
        return gpu_location(node, gpu) if gpu is not None else Location("node", node)

    def _suffers(self) -> list[Line]:
        suffers, job = self.incident.suffers, self.incident.job
        parts = [counted(suffers.ranks.count, "rank")] if suffers.ranks.count else []
        parts += [counted(suffers.gpus, "GPU")] if suffers.gpus else []
        if not parts:
            return []
        lost = f"; {suffers.gpu_hours:.1f} GPU-hours lost" if suffers.gpu_hours >= LEAST_LOST else ""
        so_far = " so far" if lost and self.incident.until is None else ""
        name = f"job {job}: " if job else ""
        opens = self._of_job() if job and suffers.ranks else None
        line = Line([Cell(f"{name}{' on '.join(parts)}{lost}{so_far}")], "suffers" if opens else None, opens)
        return self._section("suffers", line)

    def _of_job(self) -> Location:
        incident, ranks = self.incident, self.incident.suffers.ranks
        return Location("ranks", job=JobKey(incident.job, incident.uid), ranks=ranks, label=ranks_text(ranks))

    def _actions(self) -> list[Line]:
        incident, acts = self.incident, self.known.acts
        texts = [advice(incident.act, incident.action, acts)]
        texts += [advice(cause.act, cause.action, acts) for cause in incident.causes]
        lines = [Line([Cell(f"{GLYPHS.arrow} {text}", "key")]) for text in dict.fromkeys(texts) if text]
        if surer_by := advice(incident.next_act, incident.next, acts):
            lines.append(Line([Cell(f"{GLYPHS.arrow} to be surer: ", "key"), Cell(surer_by)]))
        return lines

    # Evidence.

    def _evidence(self) -> list[Line]:
        pieces = sorted(self.incident.evidence, key=lambda one: (one.at is None, one.at or 0.0))
        pieces = list({(one.source, one.text, one.where): one for one in pieces}.values())
        if not pieces:
            return []
        sources = max(len("FROM"), *(len(source_words(one)) for one in pieces[:MOST_EVIDENCE])) + 2
        if self.room < _WITH_SOURCE or self.room - AT_WIDTH - 2 - sources < _LEAST_TEXT:
            sources = 0
        titles = f"{'AT':<{AT_WIDTH + 2}}{'FROM' if sources else '':<{sources}}WHAT"
        lines = self._section("evidence", Line([Cell(titles if self.room >= len(titles) else "", "head")]))
        for number, one in enumerate(pieces[:MOST_EVIDENCE]):
            lines += self._piece(one, sources, f"evidence/{number}")
        return lines + self._section("", *[Line(())] * (len(pieces) - MOST_EVIDENCE), most=0)

    def _piece(self, one: Evidence, sources: int, key: str) -> list[Line]:
        """``sources``: cells of the column that says from where, 0: it is in the text."""
        at, start = clock_time(one.at) if one.at is not None else "", AT_WIDTH + 2 + sources
        source = source_words(one)
        where = f"{one.where}: " if one.where and self.known.several else ""
        text, opens = Cell(f"{'' if sources else f'{source}: '}{where}{one.text}"), self._opens(one)
        if self.room - start < _LEAST_TEXT:
            return self._section("", Line([Cell(f"{at} ".lstrip(), "dim"), text], key, opens))
        head = [
            Cell(" " * (self.width - self.room)),
            Cell(f"{at:<{AT_WIDTH + 2}}", "dim"),
            Cell(f"{source if sources else '':<{sources}}"),
        ]
        return [Line(line, key, opens) for line in beside(head, [text], self.width)]

    def _opens(self, evidence: Evidence) -> Location | None:
        """What it is of: a rank's stack, a GPU, what a kernel said, a node."""
        culprit = next((one for one in self.incident.culprits if one.pid is not None), None)
        if evidence.source == "stacks":
            single = len(self.incident.culprits) == 1 and culprit is not None
            return self._place(culprit) if single and culprit is not None else Location("stacks")
        for finding in self.incident.findings:
            if (finding.message, finding.node) == (evidence.text, evidence.where):
                return self._on_node(finding.node, finding.gpu)
        if evidence.where in self.known.here:
            return Location("events" if evidence.source == "kernel" else "node", evidence.where)
        if evidence.source == "samples" and self.incident.suffers.ranks:
            return self._of_job()
        return self._place(culprit) if culprit is not None else None

    # Stack.

    def _stack(self) -> list[Line]:
        """That of the first culprit of whom there is one."""
        culprits = {(one.node, one.child_pid or one.pid): one for one in self.incident.culprits if one.pid is not None}
        for digest in self.known.stacks:
            culprit = culprits.get((digest.node, digest.pid))
            if culprit is not None and digest.frames:
                cells = chain_cells(digest.frames, how_cell(culprit))
                return self._section("stack", Line(cells, "stack", self._place(culprit)))
        if self.incident.kind == "hang" and self.incident.until is None and not self.known.stacks:
            return self._section("stack", Line([Cell(f"none of this job yet: {KEYCAPS['dump']} dumps all", "dim")]))
        return []

    # What belongs to it, and what does not.

    def _explains(self) -> list[Line]:
        """Findings that it explains, those that one rule has of one node as one."""
        said = {(one.text, one.where) for one in self.incident.evidence}
        effects = [one for one in self.incident.effects if (one.message, one.node) not in said]
        entries: list[Line] = []
        for number, group in enumerate(grouped(effects, lambda one: (one.id, one.node)).values()):
            first = group[0]
            more = f"; and {len(group) - 1} more" if len(group) > 1 else ""
            where = f"{first.node}: " if first.node and self.known.several else ""
            cells = [Cell(where, "dim"), Cell(f"{first.message}{more}")]
            entries.append(Line(cells, f"explains/{number}", self._on_node(first.node, first.gpu)))
        texts = [Line([Cell(text, "dim")]) for cause in self.incident.causes for text in explained(cause)]
        lines = self._section("explains", *entries, most=MOST_EFFECTS)
        return lines + self._section("" if lines else "explains", *texts)

    def _apart(self) -> list[Line]:
        """Other things that are wrong, of which it is not known that they have to do with it."""
        entries = []
        for one in self.known.apart:
            cells = [Cell(f"{one.who} ", "dim"), *one.what]
            if one.since is not None and self.incident.since is not None:
                before = "earlier" if one.since < self.incident.since else "later"
                cells.append(Cell(f", since {clock_time(one.since)}, {before}", "dim"))
            entries.append(Line(cells, f"apart/{one.key}", incident_location(one.key)))
        return entries


def when(one: Incident | Finding, now: float) -> str:
    """ "08:00:06 (6m30s)", "08:00:06 to 08:10:06 (it lasted 10m)"."""
    since, until = one.since or 0.0, one.until
    age = seconds(max(0.0, (now if until is None else until) - since))
    lasted = f" ({age})" if until is None else f" to {clock_time(until)} (it lasted {age})"
    return f"{clock_time(since)}{lasted}"


_LEAST_TEXT = 16  # cells
_WITH_SOURCE = 60  # cells: from here on the source of evidence has a column
