"""The line above the keys: a running dump, the filter, or the last notice. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.tui.render.cells import Cell
from mltop.tui.render.glyphs import bar
from mltop.tui.render.wrap import flow

BAR_WIDTH = 12


@dataclass(frozen=True)
class Notice:
    """One sentence for the user; ``style`` as in Cell. It stays until the next one or Esc."""

    text: str
    style: str = ""


def dump_line(progress: StackProgress, width: int) -> list[Cell]:
    """E.g. ``stacks: dumping  2/4 ranks ━━━───  round 1/2  0.9 s  Esc cancels``."""
    expected = progress.ranks_expected
    count = f"{progress.ranks_done}/{'?' if expected is None else expected} ranks"
    share = progress.ranks_done / expected if expected else None
    parts = [
        (0, [Cell("stacks: ", "bold"), Cell(progress.phase, "accent")]),
        (0, [Cell(count)]),
        (2, [Cell(bar(share, BAR_WIDTH), "accent")] if share is not None else []),
        (3, [Cell(f"round {progress.round}/{progress.rounds}")] if progress.rounds else []),
        (4, [Cell(f"{progress.elapsed_s:.1f} s")]),
        (1, [Cell("Esc cancels", "dim")]),
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
    if result.error:
        return Notice(f"capture failed: {result.error}", "crit")
    if not result.problems:
        return Notice(f"captured to {result.directory}", "ok")
    more = f" and {len(result.problems) - 1} more" if len(result.problems) > 1 else ""
    return Notice(f"captured to {result.directory}, missing: {result.problems[0]}{more}", "warn")
