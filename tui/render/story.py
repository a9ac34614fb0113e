"""What is wrong, as stories: one for each incident or finding, put into words here alone.

Line 1, the lines of what is wrong, pages of incidents and reports print them. Incidents come first, in their order;
what several nodes share is one story. What has to give way when lines are few is text, never a critical line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from mltop.probes.judge.incidents.words import brief_words, culprits_words, wait_words
from mltop.probes.judge.values import grouped
from mltop.probes.model import Culprit, Evidence, Finding, Gap, Incident
from mltop.probes.model.ranks import Ranges, ranks_text
from mltop.probes.model.units import UNKNOWN, clock_time, counted, rough_time, seconds
from mltop.probes.model.vocabulary import Act, gravity
from mltop.tui.render.advice import KEYCAPS, advice, keys_on
from mltop.tui.render.cells import Cell, clip, cut, line_width, wrap
from mltop.tui.render.findings import folded_names, severity_cell
from mltop.tui.render.glyphs import GLYPHS

ENDS = ("dead", "left")  # the process is gone
FOLD_FROM = 6  # nodes with one and the same problem
LEAST_LOST = 0.05  # GPU-hours
STOPS_WORK = ("hang", "crash")
# What became of the job, in a word; an incident that affects no job has its severity.
KINDS = {
    "hang": ("HUNG", "crit"),
    "crash": ("DIED", "crit"),
    "stopped": ("ENDED", "dim"),
    "straggler": ("SLOW", "warn"),
    "starved": ("STARVED", "warn"),
    "slow": ("SLOW", "warn"),
}


class Line(NamedTuple):
    """``key``: what it is about, for the cursor; ``opens``: where Enter goes from it."""

    cells: Sequence[Cell]
    key: str | None = None
    opens: Any = None


def spaced(blocks: Iterable[Sequence[Line]]) -> list[Line]:
    """With a blank line between those that have lines."""
    return [line for block in blocks if block for line in (Line(()), *block)][1:]


def beside(head: Sequence[Cell], text: Iterable[Cell], width: int) -> list[list[Cell]]:
    """The ``text`` wrapped behind ``head``, its further lines below its first word."""
    start = line_width(head)
    lines = wrap(text, width - start)
    return [[*head, *lines[0]], *([Cell(" " * start), *line] for line in lines[1:])]


@dataclass(frozen=True)
class Story:
    """``key``: of its incident, or of the finding ("node/…"); ``mark`` and ``word`` have the style of its severity;
    ``what`` and then ``more`` is the text of a row. ``headline``: a sentence that needs no other; ``shorter``: the same
    in fewer words, the longest first; ``brief``: who, in a word. ``incident``: of findings alone one that is made of
    them. ``findings``: those that are in no incident of a job.
    """

    key: str
    mark: Cell
    who: str
    what: tuple[Cell, ...]
    word: Cell
    more: tuple[Cell, ...] = ()
    action: str = ""
    since: float | None = None
    until: float | None = None
    nodes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    incident: Incident | None = None
    headline: str = ""
    shorter: tuple[str, ...] = ()
    brief: str = ""

    @property
    def critical(self) -> bool:
        return self.word.style == "crit"

    def age_s(self, now: float) -> float | None:
        """How long it has lasted, or did."""
        return None if self.since is None else max(0.0, (now if self.until is None else self.until) - self.since)

    def is_about(self, subject: Incident | Finding) -> bool:
        """Whether it is about this one, perhaps among others that are alike."""
        if isinstance(subject, Incident) and self.incident is not None and self.incident.id == subject.id:
            return True
        causes = [subject] if isinstance(subject, Finding) else subject.causes[:1]
        return any(one.identity == finding.identity for one in causes for finding in self.findings)


@dataclass(frozen=True)
class Scope:
    """Where a story is printed. ``names``: shown for nodes' names; on ``one`` node it need not be named;
    ``several_jobs``: nor is the job, where there is one. ``acts``: what mltop itself would do, in words.
    """

    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    one: bool = False
    acts: Mapping[Act, str] = field(default_factory=keys_on)
    several_jobs: bool = False

    def name(self, node: str) -> str:
        return self.names.get(node, node)


def stories_of(
    incidents: Sequence[Incident], findings: Sequence[Finding], scope: Scope, nodes: Sequence[str] = ()
) -> list[Story]:
    """All that is wrong and more than worth knowing. ``findings``: also those that are in no incident yet. ``nodes``:
    only what is about these; none: all.
    """
    firing = [incident for incident in incidents if incident.until is None and incident.severity != "info"]
    joined = {finding.identity for incident in firing for finding in incident.findings}
    joined |= {one.identity for incident in firing for finding in incident.findings for one in finding.explains}
    alone = [one for one in findings if one.severity != "info" and one.until is None and one.identity not in joined]
    of_nodes = [incident for incident in firing if incident.causes and not incident.job]
    loose = [*(finding for incident in of_nodes for finding in _of_each_node(incident)), *alone]
    causes = {incident.causes[0].identity: incident for incident in of_nodes}
    shown = set(nodes)
    stories = [story_of(incident, scope) for incident in firing if incident.job or not incident.causes]
    stories = [one for one in stories if not shown or not one.nodes or shown.intersection(one.nodes)]
    for group in fold_alike([finding for finding in loose if not shown or finding.node in shown]):
        stories.append(story_of_findings(group, scope, causes.get(group[0].identity)))
    return stories


def _of_each_node(incident: Incident) -> list[Finding]:
    """Its cause, and the same finding of other nodes: of twenty that are lost for one reason each counts."""
    cause = incident.causes[0]
    by_node = {cause.node: cause}
    for one in incident.effects:
        if one.id == cause.id and one.until is None:
            by_node.setdefault(one.node, one)
    return list(by_node.values())


def fold_alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Worst first: findings of at least FOLD_FROM nodes that say the same together, the others alone."""
    from mltop.probes.judge.health.folding import alike  # with all rules, which are not loaded before the first paint

    findings = sorted(findings, key=lambda finding: gravity(finding.severity))
    groups = [*grouped(findings, alike).values()]
    shared = [group for group in groups if len({finding.node for finding in group}) >= FOLD_FROM]
    first = {id(group[0]): group for group in shared}
    folded = {id(finding) for group in shared for finding in group}
    return [first.get(id(one), [one]) for one in findings if id(one) in first or id(one) not in folded]


def story_of_findings(findings: Sequence[Finding], scope: Scope, incident: Incident | None = None) -> Story:
    """One finding, or several of many nodes that say the same. ``incident``: that a single one is the cause of."""
    first = findings[0]
    nodes = tuple(dict.fromkeys(finding.node for finding in findings))
    names = tuple(map(scope.name, nodes))
    if len(nodes) > 1:
        incident = None
    message = first.message or first.id
    if len(findings) > 1:
        same = all(finding.message == first.message for finding in findings)
        message = f"{len(nodes)} nodes: {message}" + ("" if same else f" (this on {names[0]})")
    elif first.folded:
        message += f" (+{counted(len(first.folded), 'finding')})"
    since = min((finding.since for finding in findings if finding.since is not None), default=None)
    word = severity_cell((incident or first).severity)
    story = Story(
        f"{first.node}/{first.id}/{first.subject if len(findings) == 1 else 'many'}",
        Cell(GLYPHS.finding, word.style),
        (first.subject if scope.one else folded_names(names)) or UNKNOWN,
        (Cell(_without_subject(message, first.subject) if scope.one else message),),
        word,
        action=advice(first.act, first.action, scope.acts),
        since=since,
        nodes=nodes,
        findings=tuple(findings),
        headline=f"{names[0]}: {message}" if names[0] and len(nodes) == 1 and not scope.one else message,
    )
    if incident is None:
        return replace(story, incident=_incident_of(story))
    since = since if incident.since is None else incident.since
    return replace(story, key=incident.id, since=since, incident=incident, headline=incident.headline)


def _incident_of(story: Story) -> Incident:
    """Findings that are in no incident, as one."""
    first = story.findings[0]
    evidence = [Evidence("health", one.message, one.since, one.node) for one in story.findings]
    evidence += [Evidence("health", text, None, one.node) for one in story.findings for text in one.evidence]
    return Incident(
        story.key,
        "node",
        first.severity,
        story.headline,
        since=story.since,
        culprits=[Culprit(None, one.node, None, one.message, "", True, one.gpu) for one in story.findings],
        causes=[*story.findings],
        evidence=evidence,
        confidence="high",
        act=first.act,
        action=first.action,
    )


def _without_subject(message: str, subject: str) -> str:
    """ "runs hot" of "GPU 1 runs hot": who it is about is shown before it."""
    return message.removeprefix(f"{subject} ") or message


def story_of_gap(what: str, gap: Gap, *, alone: bool = False) -> Story:
    """That a whole part cannot be read, and what would help; only that where it is ``alone``: line 1 says the rest."""
    text, action = (Cell(f"{GLYPHS.arrow} {gap.fix}", "key"), "") if alone and gap.fix else (Cell(gap.why), gap.fix)
    return Story(f"?{what}", Cell("?", "warn"), what, (text,), Cell(""), action=action)


def ended_stories(incidents: Sequence[Incident], scope: Scope) -> list[Story]:
    """What is over, the newest first: from when to when in place of the word."""
    ended = sorted((one for one in incidents if one.until is not None), key=lambda one: -(one.until or 0.0))
    return [
        replace(
            story_of(one, scope),
            mark=Cell(" "),
            what=(Cell(one.headline, "dim"),),
            more=(),
            word=Cell(f"{clock_time(one.since)} to {clock_time(one.until)}", "dim"),
            action="",
        )
        for one in ended
    ]


# One incident in words.


def kind_cell(incident: Incident) -> Cell:
    """In the style of its severity where that is graver than what usually becomes of such a job."""
    word, style = KINDS.get(incident.kind, ("", ""))
    return (
        Cell(word, "crit" if incident.severity == "critical" else style) if word else severity_cell(incident.severity)
    )


def story_of(incident: Incident, scope: Scope) -> Story:
    words = _Words(incident, scope)
    first, word = words.first, kind_cell(incident)
    ranks = words.accused
    who, brief = (f"rank{'s' * (ranks.count > 1)} {ranks}", f"r{ranks}") if ranks else (incident.job or "job", "")
    if not ranks and first is not None:
        who = scope.name(first.node) if first.node and not scope.one else who
        brief = first.node
    return Story(
        incident.id,
        Cell(GLYPHS.alarm if incident.kind in STOPS_WORK else GLYPHS.finding, word.style),
        who,
        (Cell(incident.headline),) if words.process is None else culprit_cells(words.process, scope),
        word,
        more=words.more(),
        action=advice(incident.act, incident.action, scope.acts),
        since=incident.since,
        until=incident.until,
        nodes=tuple(dict.fromkeys(one.node for one in incident.culprits if one.node)),
        incident=incident,
        headline=incident.headline,
        shorter=tuple(words.shorter()),
        brief=brief,
    )


def place_words(culprit: Culprit, scope: Scope) -> list[str]:
    """ "sim030 GPU 5", "pid 214883"."""
    place = [scope.name(culprit.node)] if culprit.node and not scope.one else []
    place += [f"GPU {culprit.gpu}"] if culprit.gpu is not None else []
    pid = [f"pid {culprit.child_pid or culprit.pid}"] if culprit.pid is not None else []
    return [*([" ".join(place)] if place else []), *pid]


def culprit_cells(culprit: Culprit, scope: Scope) -> tuple[Cell, ...]:
    """ "sim030 GPU 5, pid 214883, stuck in ShardDataset.__getitem__ (data.py:53)": its rank is shown before it."""
    start = Cell("".join(f"{words}, " for words in place_words(culprit, scope)))
    if culprit.how in ENDS:
        ended = Cell("died" if culprit.how == "dead" else "left", "crit")
        return (start, ended, Cell(f": {culprit.reason}" if culprit.reason else ""))
    where = culprit.where if not culprit.in_reason else ""
    if culprit.how == "stands" and where:
        return (start, Cell("stuck", "crit"), Cell(" in "), Cell(where, "title"))
    return (start, Cell(culprit.reason + (f": {where}" if where else "")))


def waiting_cells(ranks: Ranges, where: str, style: str = "waits") -> list[Cell]:
    """ "ranks 0-3 wait in all_reduce"."""
    verb = "waits" if ranks.count == 1 else "wait"
    return [Cell(f"{ranks_text(ranks)} "), Cell(f"{verb} in {where}" if where else verb, style)]


class _Words:
    """``accused``: ranks that are named; ``process``: the one that the row is about, None where nobody is named, or
    what was named is gone with its job: then the headline says who it was and who waited.
    """

    def __init__(self, incident: Incident, scope: Scope) -> None:
        self.incident, self.scope = incident, scope
        self.first = incident.culprits[0] if incident.culprits else None
        self.accused = Ranges.of(one.rank for one in incident.culprits if one.rank is not None)
        self.waiting = incident.suffers.waiting.without(self.accused)
        self.since = f" since {clock_time(incident.since)}" if incident.since is not None else ""
        known = self.first is not None and (self.first.rank is not None or self.first.pid is not None)
        gone = incident.kind in ("crash", "stopped") and self.first is not None and self.first.how not in ENDS
        self.process = self.first if known and not gone else None

    def more(self) -> tuple[Cell, ...]:
        """Who went down with those that are named, who waits and since when, and what was lost."""
        incident, suffers, parts = self.incident, self.incident.suffers, list[list[Cell]]()
        if self.process is not None:
            cause = incident.causes[0].message if incident.causes else ""
            if cause and cause != self.process.reason:  # what they do does not say what is wrong with their node
                parts.append([Cell(f"cause: {cause}")])
            down = suffers.ended.without(self.accused)
            if down and self.process.how in ENDS:
                parts.append([Cell(f"{ranks_text(down)} went down with {'it' if self.accused.count < 2 else 'them'}")])
            elif down and not self.process.in_reason:
                parts.append([Cell(f"{ranks_text(down)} {'has' if down.count == 1 else 'have'} ended")])
            if self.waiting:
                parts.append([*waiting_cells(self.waiting, suffers.waits_in), Cell(self.since)])
        if suffers.gpu_hours >= LEAST_LOST:
            parts.append([Cell(f"{suffers.gpu_hours:.1f} GPU-hours lost")])
        return tuple(cell for part in parts for cell in ((Cell("; "), *part) if part is not parts[0] else part))

    def shorter(self) -> list[str]:
        """Who stops the work of how many: first goes what the row says as well, since when, where in the code, the job,
        the node, the collective. None where nobody is named, or it is over.
        """
        incident, culprits, with_nodes = self.incident, self.incident.culprits, not self.scope.one
        short = brief_words(culprits, with_nodes, placed=False)
        if not short or not self.waiting:
            return []
        where = f" in {incident.suffers.waits_in}" if incident.suffers.waits_in else ""
        number = self.waiting.count
        amounts = f", {wait_words(number)}", f", {number} {'waits' if number == 1 else 'wait'}"
        if incident.causes:
            node = incident.causes[0].node
            cause = (f"{node}: " if with_nodes and node else "") + incident.causes[0].message
            return [f"{cause}; {short}{amounts[0]}{where}", f"{cause}; {short}{amounts[1]}"]
        full, placed = culprits_words(culprits, with_nodes), brief_words(culprits, with_nodes, placed=True)
        job = f"{incident.job}: " if self.scope.several_jobs and incident.job else ""
        ways = [job + who + amounts[0] + where + at for who in (full, placed) for at in (self.since, "")]
        named_by = (placed,) if with_nodes else (placed, short)  # which node it is counts more than the collective
        ways += [who + amount + where for who in named_by for amount in amounts if where]
        ways += [who + amount for who in (placed, short) for amount in amounts]
        return list(dict.fromkeys(ways))


# Lines.

WIDE = 110
_STARTS = (10, 12)  # the column of the text, below WIDE and from there on
_WHO_MOST = 18
_LEAST_TEXT = 8  # cells of a line
_LEAST_FOR_AGE, _ROOM_FOR_AGES, _AGE_WIDTH = 40, 72, 6


def start_of_text(names: Iterable[str], width: int) -> int:
    """The column of the text beside these names."""
    return min(max(_STARTS[width >= WIDE], max(map(len, names)) + 4), max(6, width // 3))


def lines_of(stories: Sequence[Story], now: float, width: int, room: int) -> list[Line]:
    """At most ``room`` lines: whole texts while they fit, the gravest first; else a line each; never fewer than all
    critical ones, unless there are more of them than lines.
    """
    if not stories or room <= 0:
        return []
    rows = _Rows(stories, now, width)
    shown, rest = list(stories[:room]), list(stories[room:])
    if rest:
        critical = sum(one.critical for one in stories)
        shown = sorted(stories, key=lambda one: not one.critical)[: room if room in (1, critical) else room - 1]
        kept = {one.key for one in shown}
        shown = [one for one in stories if one.key in kept]
        rest = [one for one in stories if one.key not in kept]
    is_counted = bool(rest) and len(shown) < room
    spare = room - len(shown) - is_counted
    lines: list[Line] = []
    for one in shown:
        whole = rows.whole(one)
        if len(whole) - 1 <= spare:
            spare -= len(whole) - 1
        else:
            whole = [rows.in_one_line(one)]
        lines += [Line(line, one.key) for line in whole]
    return [*lines, *([Line([Cell("  "), Cell(_number_of(rest, width - 2), "dim")])] if is_counted else [])]


def height_of(stories: Sequence[Story], now: float, width: int) -> int:
    """Lines that all of it takes."""
    rows = _Rows(stories, now, width)
    return sum(len(rows.whole(one)) for one in stories)


def _number_of(rest: Sequence[Story], width: int) -> str:
    critical = sum(one.critical for one in rest)
    words = [f"{critical} CRIT"] * bool(critical) + [f"{len(rest) - critical} WARN"] * (critical < len(rest))
    number = f"{' and '.join(words)} more"
    texts = (f"{number}: {KEYCAPS['incidents']} lists all", number, f"{len(rest)} more")
    return next((text for text in texts if len(text) <= width), "")


class _Rows:
    """``start``: the column of the text; ``right``: the cells of the word and age at the right edge."""

    def __init__(self, stories: Sequence[Story], now: float, width: int) -> None:
        self.now, self.width = now, width
        self.start = start_of_text([one.who[:_WHO_MOST] for one in stories] or [""], width)
        self.right = max((line_width(self._word(one)) for one in stories), default=0)

    def whole(self, one: Story) -> list[list[Cell]]:
        """The text hangs under its own first word; only the first line leaves room for the word at the right edge, and
        where that is little has none of the text.
        """
        room, beside = max(1, self.width - self.start), self._beside(one)
        lines = wrap(one.what, beside) if beside >= _LEAST_TEXT else [[], *wrap(one.what, room)]
        if one.more and len(lines) > 1:
            lines[-1:] = wrap([*lines[-1], Cell("; "), *one.more], room)
        elif one.more:
            lines += wrap(one.more, room)
        if one.action:
            action = [Cell(f"{GLYPHS.arrow} {one.action}", "key")]
            limit = beside if len(lines) == 1 else room
            if line_width(lines[-1]) + 2 + line_width(action) <= limit:
                lines[-1] = [*lines[-1], Cell("  "), *action]
            else:
                lines += wrap(action, room, 2)
        hanging = ([Cell(" " * self.start), *line] for line in lines[1:])
        return [self._line(one, lines[0], beside), *hanging]

    def in_one_line(self, one: Story) -> list[Cell]:
        """What, as much as fits, and what to do if that fits whole; on a very narrow screen who."""
        room, what = self._beside(one), list(one.what)
        if line_width(what) > room and len(what) > 1:
            what = what[1:]  # where it is stuck counts more than its node, GPU and pid
        if line_width(what) > room:
            what = cut(what, room)
        elif one.action and line_width(what) + line_width([Cell(one.action)]) + 4 <= room:
            what += [Cell("  "), Cell(f"{GLYPHS.arrow} {one.action}", "key")]
        return self._line(one, what, room)

    def _beside(self, one: Story) -> int:
        """Cells for text on its first line; none on a narrow screen where who it is would be cut for it."""
        if self.width < _LEAST_FOR_AGE and len(one.who) > self.start - 4:
            return 0
        return self.width - self.start - self.right - 2

    def _line(self, one: Story, text: Sequence[Cell], beside: int) -> list[Cell]:
        """Mark and who, the text where there is room ``beside``, and the word at the right edge."""
        line = [one.mark, Cell(" "), Cell(clip(one.who, self.start - 4) + "  ", "title"), *text]
        if beside < _LEAST_TEXT:
            line = [one.mark, Cell(" "), Cell(clip(one.who, self.width - self.right - 3).rstrip(), "title")]
        word = self._word(one)
        return [*line, Cell(" " * max(1, self.width - line_width(line) - line_width(word))), *word]

    def _word(self, one: Story) -> list[Cell]:
        age_s, is_wide = one.age_s(self.now), self.width >= _ROOM_FOR_AGES
        age = "" if age_s is None else seconds(age_s) if is_wide else rough_time(age_s)
        return [one.word, Cell(f" {age:>{_AGE_WIDTH if is_wide else 3}}" if self.width >= _LEAST_FOR_AGE else "")]
