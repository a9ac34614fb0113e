"""The line above the keys: a running dump or probe, the filter, or the last notice. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.reach.view import FleetView
from mltop.tui.filters import Filter
from mltop.tui.render.cells import Cell, clip, line_width
from mltop.tui.render.glyphs import bar
from mltop.tui.render.wrap import flow

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeProgress

BAR_WIDTH = 12
MIN_PATH = 24  # cells: the name of a capture's directory


@dataclass(frozen=True)
class Notice:
    """One sentence for the user: text, path, more; ``style`` as in Cell. It stays until the next one or Esc."""

    text: str
    style: str = ""
    path: str = ""
    more: str = ""


def notice_line(notice: Notice, width: int) -> list[Cell]:
    """Where it is too long, the path loses its beginning and keeps at least MIN_PATH cells; then the end is cut."""
    parts = [notice.text, notice.path, notice.more]
    room = max(MIN_PATH, width - line_width([Cell(notice.text), Cell(notice.more)]))
    if line_width([Cell(notice.path)]) > room:
        parts[1] = clip(notice.path, room, tail=True, marked=True)
    return [Cell(part, notice.style) for part in parts if part]


def waiting_for(progress: StackProgress, view: FleetView, asked: Sequence[str] = ()) -> str:
    """ "waiting for node07 (stale) and 2 more": nodes that are not live and not yet given up; "": there are none.

    ``asked``: the nodes that the dump is of, none given: all.
    """
    given_up = {node.node for node in progress.not_answered}
    nodes = [node.state for node in view.nodes if not asked or node.node in asked]
    silent = [state for state in nodes if state.state != "live" and state.node not in given_up]
    if not silent or progress.phase == "judging":
        return ""
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return f"waiting for {silent[0].node} ({silent[0].state}){more}"


def dump_line(progress: StackProgress, width: int, waiting: str = "", scope: str = "") -> list[Cell]:
    """E.g. ``stacks: dumping  2/4 ranks ━━━───  round 1/2  0.9 s  waiting for n3 (stale)  Esc cancels``.

    ``scope``: "of 3 marked nodes", where that is not all that is watched.
    """
    expected = progress.ranks_expected
    count = f"{progress.ranks_done}/{'?' if expected is None else expected} ranks"
    share = progress.ranks_done / expected if expected else None
    parts = [
        (0, [Cell(f"stacks{scope and ' '}{scope}: ", "bold"), Cell(progress.phase, "accent")]),
        (0, [Cell(count)]),
        (5, [Cell(bar(share, BAR_WIDTH), "accent")] if share is not None else []),
        (3, [Cell(f"round {progress.round}/{progress.rounds}")] if progress.rounds else []),
        (1, [Cell(f"{progress.elapsed_s:.1f} s")]),
        (2, [Cell(waiting, "warn")] if waiting else []),
        (4, [Cell("Esc cancels", "dim")]),
    ]
    return flow(parts, width)


def typing_line(draft: Filter, refused: bool, width: int) -> list[Cell]:
    """While a filter is typed: what it lacks, else the keys. ``refused``: Enter was pressed all the same."""
    if draft.problem:
        return flow([(0, [Cell(draft.problem, "warn" if refused else "dim")])], width)
    keys = [(0, "Enter keeps"), (1, "Esc clears"), (2, "Up recalls"), (3, "sm=? finds what is unknown")]
    return flow([(priority, [Cell(text, "dim")]) for priority, text in keys], width)


def filter_line(keep: Filter, width: int, kept: tuple[int, int] | None, lines_are: str = "") -> list[Cell]:
    """The filter in force and how many rows it keeps, or why it is not asked: ``lines_are`` have no fields."""
    text = [Cell("filter: ", "dim"), Cell(keep.text, "accent")]
    if lines_are and keep.fields:
        why = f"not asked: {lines_are} have no field {keep.fields[0].name!r}, only words"
        return flow([(1, text), (0, [Cell(why, "warn")]), (2, [Cell("Esc clears", "dim")])], width)
    count = [Cell(f"shows {kept[0]} of {kept[1]}", "dim")] if kept is not None and not lines_are else []
    return flow([(0, text), (2, count), (1, [Cell("Esc clears", "dim")])], width)


def connecting_line(view: FleetView, width: int) -> list[Cell] | None:
    """Which nodes of several have not answered yet; None when all have, or ended."""
    waiting = [node.node for node in view.nodes if node.state.state == "connecting"]
    if not waiting or len(view.nodes) < 2:
        return None
    answered = sum(node.glance is not None for node in view.nodes)
    first = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    parts = [
        (0, [Cell("connecting: ", "dim"), Cell(f"{answered} of {len(view.nodes)} nodes have answered", "accent")]),
        (1, [Cell(f"waiting for {first}", "dim")]),
    ]
    return flow(parts, width)


def end_of_dump(progress: StackProgress) -> Notice | None:
    """What to say when a dump is over; a finished one speaks for itself, unless machines did not answer."""
    if progress.phase == "failed":
        return Notice(f"stacks failed: {progress.error}", "crit")
    if progress.phase == "cancelled":
        return Notice("stacks: cancelled, t dumps again", "warn")
    silent = progress.not_answered
    if not silent:
        return None
    first = f"{silent[0].node}: {silent[0].reason or silent[0].state}"
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return Notice(f"stacks: no full answer from {first}{more}", "warn")


def probe_line(progress: ProbeProgress, cancelling: bool, width: int) -> list[Cell]:
    """A running probe, in any pane but its own: ``matmul: running  12 of 125 s  18/24 GPUs  7 shows it``."""
    ended = sum(device.result is not None or bool(device.problem) for device in progress.devices)
    count = f"{ended}/{len(progress.devices)} measured" if progress.devices else ""
    phase = Cell("cancelling", "warn") if cancelling else Cell(progress.phase, "accent")
    parts = [
        (0, [Cell(f"{progress.wanted.kind}: ", "bold"), phase]),
        (1, [Cell(elapsed_text(progress))]),
        (2, [Cell(count)] if count else []),
        (5, [Cell(progress.text, "dim")] if progress.text else []),
        (3, [Cell("7 shows it", "dim")]),
        (4, [] if cancelling else [Cell("Esc cancels", "dim")]),
    ]
    return flow(parts, width)


def elapsed_text(progress: ProbeProgress) -> str:
    """ "12.3 s of 125 s at most"."""
    most = f" of {progress.deadline_s:.0f} s at most" if progress.deadline_s and not progress.finished else ""
    return f"{progress.elapsed_s:.1f} s{most}"


def end_of_probe(progress: ProbeProgress) -> Notice:
    """What to say in another pane when a probe is over."""
    kind, report = progress.wanted.kind, progress.report
    if progress.phase == "failed":
        return Notice(f"{kind} failed: {progress.text or 'no reason given'}, 7 shows more", "crit")
    if progress.phase == "cancelled":
        return Notice(f"{kind}: cancelled, 7 shows what was measured", "warn")
    verdict = report.verdict if report is not None else None
    text = (verdict.text if verdict is not None else "") or "finished"
    return Notice(f"{kind}: {text}, 7 shows all", "crit" if verdict is not None and verdict.suspects else "accent")


def end_of_capture(result: CaptureResult) -> Notice:
    """Where the capture went, and what is missing from it."""
    path = str(result.directory)
    if result.error:
        return Notice(f"capture failed: {result.error}", "crit")
    if result.cancelled:
        return Notice("capture cancelled; what was known is in ", "warn", path)
    if not result.problems:
        return Notice("captured to ", "ok", path)
    others = f" and {len(result.problems) - 1} more" if len(result.problems) > 1 else ""
    return Notice("captured to ", "warn", path, f", missing: {result.problems[0]}{others}")
