"""States of processes, nodes and probes in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mltop.probes.judge.nodes import by_reason, folded
from mltop.probes.model import JobMotion, NodeState, Rhythm
from mltop.probes.model.incident import Doing
from mltop.probes.model.units import UNKNOWN, digits, percent_words, rough_time, seconds
from mltop.probes.model.vocabulary import WorkState
from mltop.tui.render.cells import Cell, EitherCell
from mltop.tui.render.glyphs import GLYPHS

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeProgress

# proc_pid_stat(5), field 3.
_WORDS = {
    "R": "running",
    "S": "sleeping",
    "D": "disk wait",  # uninterruptible: disk, NFS or a driver
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
    "P": "parked",
}
STATE_STYLE = {"D": "warn", "T": "warn", "t": "warn", "Z": "crit", "X": "crit"}
NODE_STYLE = {"live": "dim", "connecting": "accent", "stale": "warn", "lost": "crit", "refused": "crit"}
_GRAVEST_FIRST = ("refused", "lost", "stale", "connecting")
# What a rank or a GPU does, in words, and the style of each.
DOING: dict[WorkState, tuple[str, str]] = {
    "works": ("works", ""),
    "waits": ("waits", "waits"),
    "stands": ("stuck", "crit"),
    "stalled": ("stalled", "waits"),
    "quiet": ("no progress", "warn"),
    "alone": ("computes alone", "warn"),
    "starved": ("starved", "warn"),
    "throttled": ("throttled", "warn"),
    "starting": ("starting", ""),
    "idle": ("idle", "dim"),
    "no_process": ("no process", "dim"),
    "ended": ("ended", "crit"),
    "lost": ("lost", "crit"),
    "error": ("error", "crit"),
    "unknown": (UNKNOWN, "dim"),
}
PERHAPS_STALLED = "STALLED?"
SEVERITY = {"critical": ("CRIT", "crit"), "warning": ("WARN", "warn"), "info": ("INFO", "")}


def gravest(states: Iterable[str]) -> str:
    """The gravest node state; "live" when all are, and of no nodes at all. A state of another name counts most."""
    order = {state: index for index, state in enumerate(_GRAVEST_FIRST)}
    return min((state for state in states if state != "live"), key=lambda state: order.get(state, -1), default="live")


def silent_cells(states: Iterable[NodeState]) -> list[Cell]:
    """Nodes that did not, or not fully, answer: a sentence for each reason."""
    cells = []
    for state, reason, nodes in by_reason(states):
        many = f"{len(nodes)} nodes: " if len(nodes) > 1 else ""
        text = f"{many}{folded(nodes)} {state}" + (f": {reason}" if reason else "")
        cells.append(Cell(text, NODE_STYLE.get(state, "warn") if state != "live" else "warn"))
    return cells


def state_word(state: str) -> str:
    """ "S sleeping" of "S"; an unknown letter stays alone."""
    if not state:
        return UNKNOWN
    return f"{state[:1]} {_WORDS.get(state[:1], '')}".rstrip()


def state_cell(state: str) -> Cell:
    """A process's state in words and its colour."""
    return Cell(state_word(state), STATE_STYLE.get(state[:1], ""))


_MARKS = {"crit": GLYPHS.finding, "warn": GLYPHS.finding, "stands": GLYPHS.alarm}


def mark_cell(mark: str) -> Cell:
    """``■`` of what stops work, ``▲`` of what has a finding; blank of what is well."""
    return Cell(_MARKS.get(mark, ""), "crit" if mark == "stands" else mark)


def doing_cell(doing: Doing, now: float, *, where: bool = False) -> Cell:
    """ "waits 6m28s", "waits 6m" where there is little room; with ``where`` "waits in all_reduce" instead."""
    word, style = DOING[doing.state]
    if where:
        return Cell(f"{word} in {doing.where}" if doing.where and doing.state == "waits" else word, style)
    if doing.since is None or doing.state not in _WITH_AGE:
        return Cell(word, style)
    age_s = max(0.0, now - doing.since)
    return EitherCell(f"{word} {seconds(age_s)}", style, f"{_BRIEF.get(doing.state, word)} {rough_time(age_s)}")


_BRIEF: dict[WorkState, str] = {"alone": "alone", "quiet": "stuck?"}
_WITH_AGE = frozenset({"waits", "stands", "stalled", "quiet", "alone", "starved"})


def elapsed_text(progress: ProbeProgress) -> str:
    """ "12.3 s of 125 s at most"."""
    most = f" of {progress.deadline_s:.0f} s at most" if progress.deadline_s and not progress.finished else ""
    return f"{progress.elapsed_s:.1f} s{most}"


# How a job gets on: "step 2.1 s ± 3 %", "stalled? 12s", "stalled 6m30s".

LEAST_SPREAD = 0.01


def motion_words(motion: JobMotion) -> str:
    """One phrase for a cell or a line: what stands first, else how fast it is."""
    if motion.phase in ("quiet", "stalled"):
        return f"stalled{'?' if motion.phase == 'quiet' else ''} {seconds(motion.still_s)}"
    words = rhythm_words(motion.rhythm) if motion.phase == "moving" and motion.rhythm is not None else motion.phase
    return words if motion.slowdown is None else f"{words}, {percent_words(motion.slowdown.share)} slower"


def rhythm_words(rhythm: Rhythm) -> str:
    """``step 2.1 s ± 3 %``; below one percent is as even as can be told."""
    step_s = rhythm.step_s
    step = f"{step_s:.1f} s" if step_s < 99.95 else f"{digits(step_s)} s"
    return f"step {step} ± {percent_words(max(LEAST_SPREAD, rhythm.spread))}"
