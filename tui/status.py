"""The line above the keys: a running dump, the filter, or the last notice. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.reach.view import FleetView
from mltop.tui.render.cells import Cell, line_width, printable
from mltop.tui.render.glyphs import GLYPHS, bar
from mltop.tui.render.wrap import flow

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
    room = width - line_width([Cell(notice.text), Cell(notice.more)])
    if notice.path and line_width([Cell(notice.path)]) > room:
        kept = printable(notice.path)[-max(MIN_PATH, room) + 1 :]
        parts[1] = notice.path if len(kept) == len(notice.path) else GLYPHS.ellipsis + kept
    return [Cell(part, notice.style) for part in parts if part]


def waiting_for(progress: StackProgress, view: FleetView) -> str:
    """ "waiting for node07 (stale) and 2 more": nodes that are not live and not yet given up; "": there are none."""
    given_up = {node.node for node in progress.not_answered}
    silent = [node.state for node in view.nodes if node.state.state != "live" and node.node not in given_up]
    if not silent or progress.phase == "judging":
        return ""
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return f"waiting for {silent[0].node} ({silent[0].state}){more}"


def dump_line(progress: StackProgress, width: int, waiting: str = "") -> list[Cell]:
    """E.g. ``stacks: dumping  2/4 ranks ━━━───  round 1/2  0.9 s  waiting for n3 (stale)  Esc cancels``."""
    expected = progress.ranks_expected
    count = f"{progress.ranks_done}/{'?' if expected is None else expected} ranks"
    share = progress.ranks_done / expected if expected else None
    parts = [
        (0, [Cell("stacks: ", "bold"), Cell(progress.phase, "accent")]),
        (0, [Cell(count)]),
        (5, [Cell(bar(share, BAR_WIDTH), "accent")] if share is not None else []),
        (3, [Cell(f"round {progress.round}/{progress.rounds}")] if progress.rounds else []),
        (1, [Cell(f"{progress.elapsed_s:.1f} s")]),
        (2, [Cell(waiting, "warn")] if waiting else []),
        (4, [Cell("Esc cancels", "dim")]),
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
