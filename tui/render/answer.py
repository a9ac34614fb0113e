"""Line 1 of every screen: is something wrong, since when, who, and which key opens it; at any width.

Never "fine" while something cannot be told: then it says what, and why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.judge.incidents.words import brief_words, culprits_words
from mltop.probes.judge.states import is_working
from mltop.probes.model import Finding, Gap, Incident, JobMotion, Sample
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time, counted, rough_time, seconds
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, clip, line_width
from mltop.tui.render.findings import KINDS, age_text, kind_cell
from mltop.tui.render.fleet.nodes import connecting_since
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import PERHAPS_STALLED, SEVERITY, gravity

MIN_HEADLINE = 16  # cells
_STOPS_WORK = ("hang", "crash")


@dataclass(frozen=True)
class Situation:
    """What line 1 is made of. ``not_judged``: nodes that the rules have not seen yet; ``calm_since``: when the last
    finding ended, None: there was none.
    """

    view: FleetView
    incidents: Sequence[Incident] = ()
    findings: Sequence[Finding] = ()
    motions: Sequence[JobMotion] = ()
    not_judged: int = 0
    calm_since: float | None = None


@dataclass(frozen=True)
class Answer:
    """``chip``: the state and its age, in ``style`` ("chip-crit", "chip-warn", "ok", ""); ``brief``: who, in a word;
    ``headline``: who and what, ``briefer`` the same in fewer words, the longest first; ``aside``: at the right edge
    where no key stands. ``opens``: there is more to be seen, of ``about`` (several may be counted); ``key`` and what it
    does where another key than the pane's leads on.
    """

    mark: str
    word: str
    age: str
    style: str
    headline: str = ""
    brief: str = ""
    aside: str = ""
    opens: bool = False
    briefer: tuple[str, ...] = ()
    about: Incident | Finding | None = None
    key: tuple[str, str] | None = None

    @property
    def over(self) -> str:
        """What lies over the whole line."""
        return {"chip-crit": "line-crit", "chip-warn": "line-warn"}.get(self.style, "")

    @property
    def title(self) -> str:
        """For the terminal's title."""
        return " ".join(filter(None, (self.mark, self.word, self.age, self.headline)))

    def line(self, width: int, key: str = "", does: str = "") -> list[Cell]:
        """At most ``width`` cells. ``key`` and what it ``does``: how to see more."""
        state = " ".join(filter(None, (self.mark, self.word, self.age)))
        is_chip = self.style.startswith("chip")
        room = width - len(state) - 2 - is_chip
        if room < MIN_HEADLINE:
            return [Cell(self._briefly(width), self.style)]
        start = [Cell(f"{state} " if is_chip else state, self.style), Cell("  " if self.headline else "")]
        right = self._right(room, key, does)
        room -= line_width(right) + 2 if right else 0
        ways = (self.headline, *self.briefer)  # the longest that fits whole, else as much of the shortest as does
        headline = next((way for way in ways if _cells(way) <= room), "") or clip(ways[-1], room).rstrip()
        line = [*start, Cell(headline, "title" if is_chip else "")]
        return [*line, Cell(" " * (width - line_width(line) - line_width(right))), *right] if right else line

    def _briefly(self, width: int) -> str:
        """ "■ HUNG r229 6m", or as much of it as fits."""
        age = _FIRST_UNIT.match(self.age)
        ways = ((self.word, self.brief, age and age[0]), (self.word, age and age[0]), (self.word,), ())
        texts = [" ".join(filter(None, (self.mark, *way))) for way in ways]
        return next((text for text in texts if text and line_width([Cell(text)]) <= width), clip(texts[-2], width))

    def _right(self, room: int, key: str, does: str) -> list[Cell]:
        if not self.opens:
            aside = [Cell(self.aside, "dim")]
            return aside if self.aside and _cells(self.headline) + 4 + _cells(self.aside) <= room else []
        if not key:
            return []
        way = [Cell(key, "keys"), Cell(f" {does}" if does else "")]
        least = min(map(_cells, (self.headline, *self.briefer)))
        is_node = self.about.kind == "node" if isinstance(self.about, Incident) else self.about is not None
        if len(key) == 1 or is_node:  # a node's headline ends with figures, which the line below has as well
            least = min(least, _LEAST_BESIDE_KEY)
        if room - line_width(way) - 2 >= least:
            return way
        return way[:1] if room > _ROOM_FOR_KEY and len(key) > 1 else []  # a letter alone says nothing


_LEAST_BESIDE_KEY = 36  # cells of a headline that is longer: beside them stands what a letter does
_ROOM_FOR_KEY = 40
_FIRST_UNIT = re.compile(r"[\d.]+[a-z]+")  # of an age


def _cells(text: str) -> int:
    return line_width([Cell(text)])


def answer_of(situation: Situation | None) -> Answer:
    """None: nothing has come yet."""
    if situation is None:
        return Answer("", "starting", "", "", "waiting for the first sample")
    nodes = situation.view.nodes
    if len(nodes) == 1 and nodes[0].state.state in ("lost", "refused"):
        return _one_away(nodes[0], situation.view.taken_at)  # all else is of before
    firing = [one for one in situation.incidents if one.until is None and one.severity != "info"]
    if fallen := _largest_fallen(situation.motions, firing):
        return _of_motion(fallen, len(firing), situation.view.taken_at)
    if firing and firing[0].kind in KINDS:
        return _of_incident(firing, situation)
    joined = {finding.identity for incident in firing for finding in incident.findings}
    others = [
        one for one in situation.findings if one.severity != "info" and one.until is None and one.identity not in joined
    ]
    if firing or others:
        return _of_findings(firing, others, situation.view.taken_at)
    return _unknown(situation) or _fine(situation)


def _of_incident(firing: Sequence[Incident], situation: Situation) -> Answer:
    first, now = firing[0], situation.view.taken_at
    word = kind_cell(first)
    mark = GLYPHS.alarm if first.kind in _STOPS_WORK else GLYPHS.finding
    more = f" (+{counted(len(firing) - 1, 'incident')})" if len(firing) > 1 else ""
    chip = "chip-crit" if word.style == "crit" else "chip-warn"
    with_nodes, with_job = len(situation.view.nodes) > 1, len(situation.motions) > 1
    ways = [first.headline, *_briefer(first, with_nodes=with_nodes, with_job=with_job)]
    headline, *briefer = [told for way in ways for told in dict.fromkeys((way + more, way))]
    age = age_text(first, now)
    return Answer(mark, word.text, age, chip, headline, _brief(first), opens=True, briefer=tuple(briefer), about=first)


def _briefer(incident: Incident, *, with_nodes: bool, with_job: bool) -> list[str]:
    """Ways to say who stops the work of how many, the longest first; what the line below says as well goes first: since
    when, where in the code, the job, the node, the collective. None where nobody is named, or it is over.
    """
    culprits, suffers = incident.culprits, incident.suffers
    named = Ranges.of(one.rank for one in culprits if one.rank is not None)
    waiting = suffers.waiting.without(named)
    short = brief_words(culprits, with_nodes, placed=False)
    if not short or not waiting:
        return []
    where = f" in {suffers.waits_in}" if suffers.waits_in else ""
    since = f" since {clock_time(incident.since)}" if incident.since is not None else ""
    verb = "waits" if waiting.count == 1 else "wait"
    ranks, wait = f", {counted(waiting.count, 'rank')} {verb}", f", {waiting.count} {verb}"
    if incident.causes:
        node = incident.causes[0].node
        cause = (f"{node}: " if with_nodes and node else "") + incident.causes[0].message
        return [f"{cause}; {short}{ranks}{where}", f"{cause}; {short}{wait}"]
    full, placed = culprits_words(culprits, with_nodes), brief_words(culprits, with_nodes, placed=True)
    job = f"{incident.job}: " if with_job and incident.job else ""
    ways = [job + who + ranks + where + at for who in (full, placed) for at in (since, "")]
    named_by = (placed,) if with_nodes else (placed, short)  # which node it is counts more than the collective
    ways += [who + waits + where for who in named_by for waits in (ranks, wait) if where]
    ways += [who + waits for who in (placed, short) for waits in (ranks, wait)]
    return list(dict.fromkeys(ways))


def _brief(incident: Incident) -> str:
    """ "r229", "r4-7", "n17"."""
    numbers = [culprit.rank for culprit in incident.culprits if culprit.rank is not None]
    if numbers:
        return f"r{Ranges.of(numbers)}"
    return incident.culprits[0].node if incident.culprits else ""


def _largest_fallen(motions: Sequence[JobMotion], firing: Sequence[Incident]) -> JobMotion | None:
    """The largest job without progress of which no incident says that it stopped; None where an incident stopped as
    many ranks.
    """
    stopped = [one for one in firing if one.kind in _STOPS_WORK]
    known = {(one.job, one.uid) for one in stopped}
    most = max((max(one.suffers.gpus, one.suffers.ranks.count) for one in stopped), default=0)
    fallen = [one for one in motions if one.phase in ("quiet", "stalled") and (one.job, one.uid) not in known]
    first = max(fallen, key=lambda one: (one.ranks_seen, one.phase == "stalled", one.still_s), default=None)
    return first if first is not None and first.ranks_seen > most else None


def _of_motion(fallen: JobMotion, incidents: int, now: float) -> Answer:
    """No incident tells of it yet: whether it is one shows in a moment. ``incidents``: how many there are of others."""
    still_s = max(0.0, now - fallen.since) if fallen.since is not None else fallen.still_s
    job = f"job {fallen.job}: " if fallen.job else ""
    ranks = counted(fallen.ranks_seen, "rank")
    stalled = fallen.phase == "stalled"
    headline = f"{job}{ranks} stuck, culprit not known yet" if stalled else f"{job}{ranks}: no progress"
    mark, word, style = GLYPHS.finding, PERHAPS_STALLED, "chip-warn"
    if stalled:
        mark, word, style = GLYPHS.alarm, "STALLED", "chip-crit"
    more = f" (+{counted(incidents, 'incident')})" if incidents else ""
    key = KEYCAPS["dump"], "dumps stacks"
    age = seconds(float(int(still_s)))
    return Answer(mark, word, age, style, headline + more, opens=True, briefer=(headline,), key=key)


def _of_findings(firing: Sequence[Incident], others: Sequence[Finding], now: float) -> Answer:
    counts: Counter[str] = Counter([*(one.severity for one in firing), *(one.severity for one in others)])
    words = [f"{counts[name]} {SEVERITY[name][0]}" for name in ("critical", "warning") if counts[name]]
    told: list[Incident | Finding] = [*firing[:1], *others]
    first = min(told, key=lambda one: gravity(one.severity))
    if isinstance(first, Incident):
        headline = first.headline
    else:
        headline = f"{first.node}: {first.message}" if first.node else first.message
    age = rough_time(now - first.since) if sum(counts.values()) == 1 and first.since is not None else ""
    style = "chip-crit" if counts["critical"] else "chip-warn"
    return Answer(GLYPHS.finding, " ".join(words), age, style, headline, opens=True, about=first)


def _unknown(situation: Situation) -> Answer | None:
    """What keeps it from being fine that is no finding."""
    nodes = situation.view.nodes
    states: Counter[str] = Counter(node.state.state for node in nodes)
    away = len(nodes) - states["live"]
    if len(nodes) == 1 and away:
        return _one_away(nodes[0], situation.view.taken_at)
    waiting = states["connecting"]
    if waiting:
        headline = f"{len(nodes) - waiting} of {counted(len(nodes), 'node')} have answered"
        return Answer("", "connecting", _connecting_age(nodes, situation.view.taken_at), "", headline)
    if away:
        return Answer(GLYPHS.finding, f"{away} AWAY", "", "chip-warn", f"{away} of {len(nodes)} nodes do not answer")
    if situation.not_judged:
        judged = len(nodes) - situation.not_judged
        return Answer("", "starting", "", "", f"checking: {judged} of {counted(len(nodes), 'node')}")
    if len(nodes) == 1:
        return _unreadable(nodes)
    headline = f"on any of {len(nodes)} nodes: {KEYCAPS['node']} shows why of one"
    all_blind = nodes and _without_gpus(nodes) == len(nodes)
    return Answer("?", "no GPU seen", "", "warn", headline) if all_blind else None


def _without_gpus(nodes: Sequence[NodeView]) -> int:
    return sum(node.newest is not None and not node.gpus for node in nodes)


def _connecting_age(nodes: Sequence[NodeView], now: float) -> str:
    since = connecting_since(nodes)
    return seconds(float(int(max(0.0, now - since)))) if since is not None else ""


def _one_away(node: NodeView, now: float) -> Answer:
    state = node.state
    if state.state == "connecting":
        why = f": {state.reason}" if state.reason else ""
        return Answer("", "connecting", _connecting_age([node], now), "", f"to {node.node}{why}")
    style = "chip-warn" if state.state == "stale" else "chip-crit"
    why = f": {state.reason}" if state.reason else ""
    age = seconds(state.age_s) if state.age_s is not None else ""
    return Answer(GLYPHS.lost, state.state.upper(), age, style, f"{node.node} does not answer{why}", node.node)


def _unreadable(nodes: Sequence[NodeView]) -> Answer | None:
    """A single node whose GPUs cannot be read."""
    sample = nodes[0].sample
    if sample is None or sample.gpus:
        return None
    gap = no_gpus(sample)
    if gap is None:
        return None
    return Answer("?", "no GPU seen", "", "warn", gap.why)


def no_gpus(sample: Sample) -> Gap | None:
    """Why no GPU is seen at all."""
    return next((gap for gap in sample.gaps if gap.source == "nvml" and not gap.fields), None)


def _fine(situation: Situation) -> Answer:
    known = [is_working(gpu) for node in situation.view.nodes for gpu in node.gpus]
    works, unknown = known.count(True), known.count(None)
    gpus = f"{works} of {counted(len(known), 'GPU')} work" if len(known) > unknown else ""
    if unknown:
        gpus = "; ".join(filter(None, (gpus, f"of {counted(unknown, 'GPU')} it is not known whether they work")))
    blind = _without_gpus(situation.view.nodes)  # a fleet is fine with a login node, but it is said
    without = f"no GPU seen on {counted(blind, 'node')}" if 0 < blind < len(situation.view.nodes) else ""
    text = "; ".join(filter(None, (gpus, _jobs(situation.motions), without)))
    calm = situation.calm_since
    aside = f"no finding in {rough_time(situation.view.taken_at - calm)}" if calm is not None else ""
    return Answer(GLYPHS.fine, "fine", "", "ok", text, aside=aside)


def _jobs(motions: Sequence[JobMotion]) -> str:
    if len(motions) != 1:
        run = sum(motion.phase == "moving" for motion in motions)
        of = "" if run == len(motions) else f"{run} of "
        return f"{of}{len(motions)} jobs run" if motions else ""
    motion = motions[0]
    name = f"job {motion.job}" if motion.job else "one job"
    if motion.phase == "starting":
        return f"{name} starts"
    since = f" has run since {clock_time(motion.since)}" if motion.since is not None else " runs"
    return f"{name}{since}" if motion.phase == "moving" else name
