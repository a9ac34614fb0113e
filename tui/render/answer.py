"""Line 1 of every screen: is something wrong, since when, who, and which key opens it; at any width.

Never "fine" while something is not known: then it says what, and why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltop.probes.judge.states import is_working
from mltop.probes.model import Finding, Gap, Incident, JobMotion
from mltop.probes.model.units import clock_time, counted, rough_time, seconds
from mltop.probes.model.vocabulary import gravity
from mltop.probes.reach.view import NodeView
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, clip, line_width
from mltop.tui.render.empty import gpus_unseen
from mltop.tui.render.fleet.nodes import connecting_since
from mltop.tui.render.glyphs import GLYPHS
from mltop.tui.render.states import PERHAPS_STALLED, SEVERITY
from mltop.tui.render.story import KINDS, STOPS_WORK, Scope, story_of, story_of_findings

if TYPE_CHECKING:
    from mltop.tui.app.feed import Picture

MIN_HEADLINE = 16  # cells


@dataclass(frozen=True)
class Answer:
    """``chip``: the state and its age, in ``style`` ("chip-crit", "chip-warn", "ok", ""); ``brief``: who, in a word;
    ``headline``: who and what, ``briefer`` the same in fewer words, the longest first; ``aside``: at the right edge
    where no key is. ``opens``: there is more to be seen, of ``about`` (several may be counted); ``key`` and what it
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


def answer_of(picture: Picture | None) -> Answer:
    """None: nothing has come yet."""
    if picture is None:
        return Answer("", "starting", "", "", "waiting for the first sample")
    nodes = picture.view.nodes
    if len(nodes) == 1 and nodes[0].state.state in ("lost", "refused"):
        return _one_away(nodes[0], picture.view.taken_at)  # all else is of before
    firing = [one for one in picture.incidents if one.until is None and one.severity != "info"]
    if fallen := _largest_fallen(picture.motions, firing):
        return _of_motion(fallen, len(firing), picture.view.taken_at)
    if firing and firing[0].kind in KINDS:
        return _of_incident(firing, picture)
    joined = {finding.identity for incident in firing for finding in incident.findings}
    others = [
        one for one in picture.findings if one.severity != "info" and one.until is None and one.identity not in joined
    ]
    if firing or others:
        return _of_findings(firing, others, picture.view.taken_at)
    return _unknown(picture) or _fine(picture)


def _of_incident(firing: Sequence[Incident], picture: Picture) -> Answer:
    scope = Scope(one=len(picture.view.nodes) < 2, several_jobs=len(picture.motions) > 1)
    story = story_of(firing[0], scope)
    ways = [way + end for way in (story.headline, *story.shorter) for end in (_plus(len(firing) - 1), "")]
    headline, *briefer = dict.fromkeys(ways)
    chip = "chip-crit" if story.critical else "chip-warn"
    age = seconds(story.age_s(picture.view.taken_at)) if story.since is not None else ""
    mark, word = story.mark.text, story.word.text
    return Answer(mark, word, age, chip, headline, story.brief, opens=True, briefer=tuple(briefer), about=firing[0])


def _plus(incidents: int) -> str:
    return f" (+{counted(incidents, 'incident')})" if incidents else ""


def _largest_fallen(motions: Sequence[JobMotion], firing: Sequence[Incident]) -> JobMotion | None:
    """The largest job without progress of which no incident says that it stopped; None where an incident stopped as
    many ranks.
    """
    stopped = [one for one in firing if one.kind in STOPS_WORK]
    known = {(one.job, one.uid) for one in stopped}
    most = max((max(one.suffers.gpus, one.suffers.ranks.count) for one in stopped), default=0)
    fallen = [one for one in motions if one.phase in ("quiet", "stalled") and (one.job, one.uid) not in known]
    first = max(fallen, key=lambda one: (one.ranks_seen, one.phase == "stalled", one.still_s), default=None)
    return first if first is not None and first.ranks_seen > most else None


def _of_motion(fallen: JobMotion, incidents: int, now: float) -> Answer:
    """No incident tells of it yet: whether it is one shows in a moment. ``incidents``: how many there are of others."""
    job = f"job {fallen.job}: " if fallen.job else ""
    ranks = counted(fallen.ranks_seen, "rank")
    stalled = fallen.phase == "stalled"
    headline = f"{job}{ranks} stuck, culprit not known yet" if stalled else f"{job}{ranks}: no progress"
    mark, word, style = GLYPHS.finding, PERHAPS_STALLED, "chip-warn"
    if stalled:
        mark, word, style = GLYPHS.alarm, "STALLED", "chip-crit"
    key = KEYCAPS["dump"], "dumps stacks"
    age = _whole_seconds(now - fallen.still_s if fallen.since is None else fallen.since, now)
    return Answer(mark, word, age, style, headline + _plus(incidents), opens=True, briefer=(headline,), key=key)


def _of_findings(firing: Sequence[Incident], others: Sequence[Finding], now: float) -> Answer:
    counts: Counter[str] = Counter([*(one.severity for one in firing), *(one.severity for one in others)])
    words = [f"{counts[name]} {SEVERITY[name][0]}" for name in ("critical", "warning") if counts[name]]
    wrong: list[Incident | Finding] = [*firing[:1], *others]
    first = min(wrong, key=lambda one: gravity(one.severity))
    story = story_of(first, Scope()) if isinstance(first, Incident) else story_of_findings([first], Scope())
    age_s = story.age_s(now) if sum(counts.values()) == 1 else None
    age = rough_time(age_s) if age_s is not None else ""
    style = "chip-crit" if counts["critical"] else "chip-warn"
    return Answer(GLYPHS.finding, " ".join(words), age, style, story.headline, opens=True, about=first)


def _unknown(picture: Picture) -> Answer | None:
    """What keeps it from being fine that is no finding."""
    nodes = picture.view.nodes
    states: Counter[str] = Counter(node.state.state for node in nodes)
    away = len(nodes) - states["live"]
    if len(nodes) == 1 and away:
        return _one_away(nodes[0], picture.view.taken_at)
    waiting = states["connecting"]
    if waiting:
        headline = f"{len(nodes) - waiting} of {counted(len(nodes), 'node')} have answered"
        return Answer("", "connecting", _whole_seconds(connecting_since(nodes), picture.view.taken_at), "", headline)
    if away:
        return Answer(GLYPHS.finding, f"{away} AWAY", "", "chip-warn", f"{away} of {len(nodes)} nodes do not answer")
    if picture.not_judged:
        judged = len(nodes) - len(picture.not_judged)
        return Answer("", "starting", "", "", f"checking: {judged} of {counted(len(nodes), 'node')}")
    if len(nodes) == 1:
        gap = no_gpus(nodes[0])
        return Answer("?", gpus_unseen([nodes[0].whole]), "", "warn", gap.why) if gap is not None else None
    headline = f"on any of {len(nodes)} nodes: {KEYCAPS['node']} shows why of one"
    all_blind = nodes and _without_gpus(nodes) == len(nodes)
    return Answer("?", gpus_unseen(node.whole for node in nodes), "", "warn", headline) if all_blind else None


def _without_gpus(nodes: Sequence[NodeView]) -> int:
    return sum(node.newest is not None and not node.gpus for node in nodes)


def _whole_seconds(since: float | None, now: float) -> str:
    return seconds(float(int(max(0.0, now - since)))) if since is not None else ""


def _one_away(node: NodeView, now: float) -> Answer:
    state = node.state
    why = f": {state.reason}" if state.reason else ""
    if state.state == "connecting":
        age = _whole_seconds(connecting_since([node]), now)
        return Answer("", "connecting", age, "", f"to {node.node}{why}")
    style = "chip-warn" if state.state == "stale" else "chip-crit"
    age = seconds(state.age_s) if state.age_s is not None else ""
    return Answer(GLYPHS.lost, state.state.upper(), age, style, f"{node.node} does not answer{why}", node.node)


def no_gpus(node: NodeView) -> Gap | None:
    """Why no GPU is seen at all; None where some are, or nothing is known yet."""
    sample = node.sample
    gaps = sample.gaps if sample is not None and not sample.gpus else ()
    return next((gap for gap in gaps if gap.source == "nvml" and not gap.fields), None)


def _fine(picture: Picture) -> Answer:
    known = [is_working(gpu) for node in picture.view.nodes for gpu in node.gpus]
    works, unknown = known.count(True), known.count(None)
    gpus = f"{works} of {counted(len(known), 'GPU')} work" if len(known) > unknown else ""
    if unknown:
        gpus = "; ".join(filter(None, (gpus, f"of {counted(unknown, 'GPU')} it is not known whether they work")))
    blind = _without_gpus(picture.view.nodes)  # a fleet is fine with a login node, but it is said
    unseen = gpus_unseen(node.whole for node in picture.view.nodes if not node.gpus)
    without = f"{unseen} on {counted(blind, 'node')}" if 0 < blind < len(picture.view.nodes) else ""
    text = "; ".join(filter(None, (gpus, _jobs(picture.motions), without)))
    calm = max((finding.until for finding in picture.ended if finding.until is not None), default=None)
    aside = f"no finding in {rough_time(picture.view.taken_at - calm)}" if calm is not None else ""
    return Answer(GLYPHS.fine, "fine", "", "ok", text, aside=aside)


def _jobs(motions: Sequence[JobMotion]) -> str:
    if len(motions) != 1:
        run = sum(motion.phase == "moving" for motion in motions)
        share = "" if run == len(motions) else f"{run} of "
        return f"{share}{len(motions)} jobs run" if motions else ""
    motion = motions[0]
    name = f"job {motion.job}" if motion.job else "one job"
    if motion.phase == "starting":
        return f"{name} starts"
    since = f" has run since {clock_time(motion.since)}" if motion.since is not None else " runs"
    return f"{name}{since}" if motion.phase == "moving" else name
