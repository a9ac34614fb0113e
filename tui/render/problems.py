"""What is wrong, a line each: who, what, what to do; and at its end HUNG, CRIT or WARN with its age.

Incidents come first, in their order; what several nodes share is one line. What has to give way when lines are few is
text, never a critical line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mltop.probes.model import Culprit, Finding, Gap, Incident
from mltop.probes.model.ranks import Ranges, ranks_text
from mltop.probes.model.units import clock_time, rough_time, seconds
from mltop.probes.model.vocabulary import Act
from mltop.tui.render.advice import KEYCAPS, advice, keys_on
from mltop.tui.render.cells import Cell, clip, cut, line_width, wrap
from mltop.tui.render.findings import Problem, kind_cell, problems_of
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import SEVERITY

WIDE = 110
_STARTS = (10, 12)  # the column of the text, below WIDE and from there on
_WHO_MOST = 18
ENDS = ("dead", "left")  # of what its process is gone
_MARKS = {"hang": GLYPHS.alarm, "crash": GLYPHS.alarm}


@dataclass(frozen=True)
class Told:
    """One thing that is wrong. ``key``: of its incident, or of the finding ("node/…"); ``mark`` and ``word`` have the
    style of its severity; ``what`` and then ``more`` is the text. ``nodes``: that it is about.
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

    @property
    def critical(self) -> bool:
        return self.word.style == "crit"

    def age_s(self, now: float) -> float | None:
        return None if self.since is None else max(0.0, (now if self.until is None else self.until) - self.since)


def tells_of(told: Told, subject: Incident | Finding) -> bool:
    """Whether it is about this one, perhaps among others that are alike."""
    if told.incident is not None and isinstance(subject, Incident):
        return told.incident.id == subject.id
    of = [subject] if isinstance(subject, Finding) else subject.causes[:1]
    return any(one.identity == finding.identity for one in of for finding in told.findings)


@dataclass(frozen=True)
class Scope:
    """Of what the lines are told: ``names`` stand for nodes' names; on ``one`` node it need not be named.
    ``acts``: what mltop itself would do, in words.
    """

    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    one: bool = False
    acts: Mapping[Act, str] = field(default_factory=keys_on)

    def name(self, node: str) -> str:
        return self.names.get(node, node)


def told_of(
    incidents: Sequence[Incident], findings: Sequence[Finding], scope: Scope, nodes: Sequence[str] = ()
) -> list[Told]:
    """All that is wrong and more than worth knowing. ``findings``: also those that are in no incident yet. ``nodes``:
    those of which is told, none: all.
    """
    firing = [incident for incident in incidents if incident.until is None and incident.severity != "info"]
    of_jobs = [incident for incident in firing if incident.job or not incident.causes]
    joined = {finding.identity for incident in firing for finding in incident.findings}
    joined |= {one.identity for incident in firing for finding in incident.findings for one in finding.explains}
    causes: dict[tuple[object, ...], Incident] = {}
    for incident in firing:
        if not incident.job and incident.causes:
            causes[incident.causes[0].identity] = incident
    alone = [one for one in findings if one.severity != "info" and one.until is None and one.identity not in joined]
    shown = set(nodes)
    told = [_of_incident(incident, scope) for incident in of_jobs]
    told = [one for one in told if not shown or not one.nodes or shown.intersection(one.nodes)]
    of_nodes = [one for incident in firing if incident.causes and not incident.job for one in _of_each_node(incident)]
    of_nodes += alone
    named = nodes or list(dict.fromkeys(finding.node for finding in of_nodes))
    for problem in problems_of(named, of_nodes, scope.names):
        told.append(_of_problem(problem, causes.get(problem.first.identity), scope))
    return told


def _of_each_node(incident: Incident) -> list[Finding]:
    """Its cause, and what says the same of other nodes: of twenty that are lost for one reason each counts."""
    cause = incident.causes[0]
    by_node = {cause.node: cause}
    for one in incident.effects:
        if one.id == cause.id and one.until is None:
            by_node.setdefault(one.node, one)
    return list(by_node.values())


def told_of_gap(what: str, gap: Gap, *, alone: bool = False) -> Told:
    """That a whole part cannot be read, and what would help; only that where it is ``alone`` and stands on line 1."""
    if alone and gap.fix:
        return Told(f"?{what}", Cell("?", "warn"), what, (Cell(f"{GLYPHS.arrow} {gap.fix}", "key"),), Cell(""))
    return Told(f"?{what}", Cell("?", "warn"), what, (Cell(gap.why),), Cell(""), action=gap.fix)


def ended_of(incidents: Sequence[Incident], scope: Scope) -> list[Told]:
    """What is over, the newest first: from when to when in place of the word."""
    ended = sorted((one for one in incidents if one.until is not None), key=lambda one: -(one.until or 0.0))
    return [
        replace(
            _of_incident(one, scope),
            mark=Cell(" "),
            what=(Cell(one.headline, "dim"),),
            more=(),
            word=Cell(f"{clock_time(one.since)} to {clock_time(one.until)}", "dim"),
            action="",
        )
        for one in ended
    ]


def _of_problem(problem: Problem, incident: Incident | None, scope: Scope) -> Told:
    first = problem.first
    single = incident is not None and len(problem.nodes) == 1
    word, style = SEVERITY[incident.severity if incident is not None and single else first.severity]
    who = problem.subject if scope.one else problem.where
    message = problem.message
    since = problem.since
    if incident is not None and len(problem.nodes) == 1:
        since = incident.since if incident.since is not None else since
    return Told(
        incident.id if incident is not None and len(problem.nodes) == 1 else problem.key,
        Cell(GLYPHS.finding, style),
        who,
        (Cell(without_subject(message, first.subject) if scope.one else message),),
        Cell(word, style),
        action=advice(first.act, first.action, scope.acts),
        since=since,
        nodes=problem.nodes,
        findings=tuple(problem.findings),
        incident=incident if len(problem.nodes) == 1 else None,
    )


def without_subject(message: str, subject: str) -> str:
    """ "runs hot" of "GPU 1 runs hot": who it is about stands before it."""
    rest = message.removeprefix(f"{subject} ")
    return rest or message


def _of_incident(incident: Incident, scope: Scope) -> Told:
    word, named = kind_cell(incident), _named(incident)
    culprit = incident.culprits[0] if incident.culprits else None
    mark = Cell(_MARKS.get(incident.kind, GLYPHS.finding), word.style)
    return Told(
        incident.id,
        mark,
        _who(incident, culprit, scope),
        (Cell(incident.headline),) if named is None else culprit_cells(named, scope),
        word,
        more=_others(incident),
        action=advice(incident.act, incident.action, scope.acts),
        since=incident.since,
        until=incident.until,
        nodes=tuple(dict.fromkeys(one.node for one in incident.culprits if one.node)),
        incident=incident,
    )


def _who(incident: Incident, culprit: Culprit | None, scope: Scope) -> str:
    numbers = [one.rank for one in incident.culprits if one.rank is not None]
    if numbers:
        return f"rank{'s' * (len(numbers) > 1)} {Ranges.of(numbers)}"
    if culprit is not None and culprit.node and not scope.one:
        return scope.name(culprit.node)
    return incident.job or "job"


def culprit_cells(culprit: Culprit, scope: Scope) -> tuple[Cell, ...]:
    """ "sim030 GPU 5, pid 214883, stuck in ShardDataset.__getitem__ (data.py:53)": who it is stands before it."""
    place = [scope.name(culprit.node)] if culprit.node and not scope.one else []
    place += [f"GPU {culprit.gpu}"] if culprit.gpu is not None else []
    pid = [f"pid {culprit.child_pid or culprit.pid}"] if culprit.pid is not None else []
    who = ", ".join(filter(None, (" ".join(place), *pid)))
    start = Cell(f"{who}, " if who else "")
    if culprit.how in ENDS:
        ended = Cell("died" if culprit.how == "dead" else "left", "crit")
        return (start, ended, Cell(f": {culprit.reason}" if culprit.reason else ""))
    if culprit.how == "stands" and culprit.where and not culprit.in_reason:
        return (start, Cell("stuck", "crit"), Cell(" in "), Cell(culprit.where, "title"))
    where = f": {culprit.where}" if culprit.where and not culprit.in_reason else ""
    return (start, Cell(culprit.reason + where))


def _named(incident: Incident) -> Culprit | None:
    """The process that is told of; None where nobody is named, or what was named is gone with its job: then the
    headline says who it was and who waited.
    """
    culprit = incident.culprits[0] if incident.culprits else None
    if culprit is None or (culprit.rank is None and culprit.pid is None):
        return None
    return None if incident.kind in ("crash", "stopped") and culprit.how not in ENDS else culprit


def _others(incident: Incident) -> tuple[Cell, ...]:
    """Who went down with those that are named, who waits and since when, and what was lost."""
    accused = Ranges.of(one.rank for one in incident.culprits if one.rank is not None)
    since = f" since {clock_time(incident.since)}" if incident.since is not None else ""
    suffers = incident.suffers
    parts: list[list[Cell]] = []
    if (named := _named(incident)) is not None:
        cause = incident.causes[0].message if incident.causes else ""
        if cause and cause != named.reason:  # what they do does not say what is wrong with their node
            parts.append([Cell(f"cause: {cause}")])
        down = suffers.ended.without(accused)
        if down and named.how in ENDS:
            parts.append([Cell(f"{ranks_text(down)} went down with {'it' if accused.count < 2 else 'them'}")])
        elif down and not named.in_reason:
            parts.append([Cell(f"{ranks_text(down)} {'has' if down.count == 1 else 'have'} ended")])
        if waiting := suffers.waiting.without(accused):
            waits = "waits" if waiting.count == 1 else "wait"
            where = f"{waits} in {suffers.waits_in}" if suffers.waits_in else waits
            parts.append([Cell(f"{ranks_text(waiting)} "), Cell(where, "waits"), Cell(since)])
    if suffers.gpu_hours >= _LEAST_LOST:
        parts.append([Cell(f"{suffers.gpu_hours:.1f} GPU-hours lost")])
    return tuple(cell for part in parts for cell in ((Cell("; "), *part) if part is not parts[0] else part))


_LEAST_LOST = 0.05  # GPU-hours


# Lines.


@dataclass(frozen=True)
class ToldLines:
    """Lines, each with the key of what it belongs to; None: of none."""

    lines: list[list[Cell]]
    keys: list[str | None]


def lines_of(told: Sequence[Told], now: float, width: int, room: int) -> ToldLines:
    """At most ``room`` lines: whole texts while they fit, the gravest first; else a line each; never fewer than all
    critical ones, unless there are more of them than lines.
    """
    if not told or room <= 0:
        return ToldLines([], [])
    start, right = _layout(told, now, width)
    shown, rest = list(told[:room]), list(told[room:])
    if rest:
        critical = sum(one.critical for one in told)
        shown = sorted(told, key=lambda one: not one.critical)[: room if room in (1, critical) else room - 1]
        kept = {one.key for one in shown}
        shown = [one for one in told if one.key in kept]
        rest = [one for one in told if one.key not in kept]
    counted = bool(rest) and len(shown) < room
    spare = room - len(shown) - counted
    lines: list[list[Cell]] = []
    keys: list[str | None] = []
    for one in shown:
        whole = _whole(one, now, width, start, right)
        if len(whole) - 1 <= spare:
            spare -= len(whole) - 1
        else:
            whole = [_brief(one, now, width, start, right)]
        lines += whole
        keys += [one.key] * len(whole)
    if counted:
        lines.append([Cell("  "), Cell(_more(rest, width - 2), "dim")])
        keys.append(None)
    return ToldLines(lines, keys)


def height_of(told: Sequence[Told], now: float, width: int) -> int:
    """Lines that all of it takes."""
    if not told:
        return 0
    start, right = _layout(told, now, width)
    return sum(len(_whole(one, now, width, start, right)) for one in told)


def _more(rest: Sequence[Told], width: int) -> str:
    critical = sum(one.critical for one in rest)
    words = [f"{critical} CRIT"] * bool(critical) + [f"{len(rest) - critical} WARN"] * (critical < len(rest))
    texts = [
        f"{' and '.join(words)} more: {KEYCAPS['incidents']} lists all",
        f"{' and '.join(words)} more",
        f"{len(rest)} more",
    ]
    return next((text for text in texts if len(text) <= width), "")


def _layout(told: Sequence[Told], now: float, width: int) -> tuple[int, int]:
    """The column of the text, and the cells of what stands at the right edge."""
    least = _STARTS[width >= WIDE]
    longest = max(min(len(one.who), _WHO_MOST) for one in told)
    return min(max(least, longest + 4), max(6, width // 3)), max(line_width(_right(one, now, width)) for one in told)


def _right(one: Told, now: float, width: int) -> list[Cell]:
    age_s = one.age_s(now)
    age = "" if age_s is None else rough_time(age_s) if width < _ROOM_FOR_AGES else seconds(age_s)
    cells = _AGE_WIDTH if width >= _ROOM_FOR_AGES else 3
    return [one.word, Cell(f" {age:>{cells}}" if width >= _LEAST_FOR_AGE else "")]


_LEAST_TEXT = 8  # cells of a line
_LEAST_FOR_AGE, _ROOM_FOR_AGES, _AGE_WIDTH = 40, 72, 6


def _head(one: Told, start: int) -> list[Cell]:
    return [one.mark, Cell(" "), Cell(clip(one.who, start - 4) + "  ", "title")]


def _beside(one: Told, width: int, start: int, right: int) -> int:
    """Cells for text on its first line; none on a narrow screen where who it is would be cut for it."""
    if width < _LEAST_FOR_AGE and len(one.who) > start - 4:
        return 0
    return width - start - right - 2


def _head_alone(one: Told, width: int) -> list[Cell]:
    """Where there is no text beside it."""
    return [one.mark, Cell(" "), Cell(clip(one.who, width - 3).rstrip(), "title")]


def _whole(one: Told, now: float, width: int, start: int, right: int) -> list[list[Cell]]:
    """The text hangs under its own first word; only the first line leaves room for the word at the right edge, and
    where that is little has none of the text.
    """
    room = max(1, width - start)
    beside = _beside(one, width, start, right)
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
    first, *others = lines
    hanging = ([Cell(" " * start), *line] for line in others)
    head = _head(one, start) if beside >= _LEAST_TEXT else _head_alone(one, width - right)
    return [_with_right(one, [*head, *first], now, width), *hanging]


def _brief(one: Told, now: float, width: int, start: int, right: int) -> list[Cell]:
    """One line: what, as much as fits, and what to do if that fits whole; on a very narrow screen who."""
    room = _beside(one, width, start, right)
    if room < _LEAST_TEXT:
        return _with_right(one, _head_alone(one, width - right), now, width)
    what = list(one.what)
    if line_width(what) > room and len(what) > 1:
        what = what[1:]  # where it is stuck counts more than its node, GPU and pid
    if line_width(what) > room:
        what = cut(what, room)
    elif one.action and line_width(what) + line_width([Cell(one.action)]) + 4 <= room:
        what += [Cell("  "), Cell(f"{GLYPHS.arrow} {one.action}", "key")]
    return _with_right(one, [*_head(one, start), *what], now, width)


def _with_right(one: Told, line: list[Cell], now: float, width: int) -> list[Cell]:
    right = _right(one, now, width)
    blank = max(1, width - line_width(line) - line_width(right))
    return [*line, Cell(" " * blank), *right]
