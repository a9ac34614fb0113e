"""What stands around the tables of a probe, on the screen and on the page. Pure functions.

Headline, verdict, what was not measured, settings, the command, earlier results of a device.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.investigate.advice import to_do
from mltop.probes.judge.nodes import kind_of_reason
from mltop.probes.judge.probes.collective import who_failed
from mltop.probes.judge.values import grouped
from mltop.probes.model.probe import PastResult
from mltop.probes.model.ranks import fold
from mltop.probes.model.units import UNKNOWN, bandwidth, clock_time, flops, size_text
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, flow, wrap
from mltop.tui.render.glyphs import GLYPHS, bar, sparkline
from mltop.tui.render.probes.kinds import KINDS, title_of, where_text
from mltop.tui.render.states import elapsed_text
from mltop.tui.render.units import heights, middle

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeProgress
    from mltop.probes.model.probe import ProbeFailure, ProbeReport, ProbeVerdict, Suspect

Line = list[Cell]
PHASE_STYLE = {"connecting": "accent", "running": "accent", "done": "ok", "cancelled": "warn", "failed": "crit"}
BAR_WIDTH = 12
BULLET = "-" if GLYPHS.ascii_only else "•"


def headline(
    progress: ProbeProgress, cancelling: bool, width: int, run: tuple[int, int] = (1, 1), everybody: Sequence[str] = ()
) -> list[Line]:
    """The lines above a probe: what runs where and how far it is, and what happens now.

    ``run``: which of how many of this session; ``everybody``: the nodes that are meant by all.
    """
    report, devices = progress.report, progress.devices
    ended = sum(device.result is not None or bool(device.problem) for device in devices)
    # How much is done: of all devices together, where they tell.
    shares = [1.0 if device.result is not None or device.problem else device.fraction for device in devices]
    reported = [share for share in shares if share is not None]
    share = sum(reported) / len(shares) if reported else None
    phase = Cell("cancelling", "warn") if cancelling else Cell(progress.phase, PHASE_STYLE.get(progress.phase, ""))
    names = _nodes_of(progress) or everybody
    live = not progress.finished
    parts = [
        (0, [Cell("SIMULATED", "warn")] if report is not None and report.simulated else []),
        (0, [Cell(title_of(progress.wanted), "title")]),
        (2, [Cell(f"on {where_text(progress.wanted, names)}")]),
        (0, [phase]),
        (1, [Cell(elapsed_text(progress))]),
        (4, [Cell(f"{ended}/{len(devices)}")] if devices and live else []),
        (6, [Cell(bar(share, BAR_WIDTH), "accent")] if share is not None and live else []),
        (5, [Cell(f"{KEYCAPS['back']} cancels", "dim")] if live and not cancelling else []),
        (3, [Cell(f"began {clock_time(report.started_at)}", "dim")] if report is not None and not live else []),
        (4, [Cell(f"run {run[0]} of {run[1]}  [ ]", "dim")] if run[1] > 1 else []),
    ]
    lines = [flow(parts, width)]
    if progress.text and (live or progress.phase != "done"):
        style = "crit" if progress.phase == "failed" else "" if live else "warn"
        lines += wrap([Cell(progress.text, style)], width)
    return lines


def _nodes_of(progress: ProbeProgress) -> tuple[str, ...]:
    """The nodes it turned out to be."""
    nodes = [device.node for device in progress.devices]
    for result in progress.report.results if progress.report is not None else ():
        nodes += getattr(result, "nodes", None) or [getattr(result, "node", "")]
    return tuple(dict.fromkeys(filter(None, nodes)))


def verdict_parts(
    verdict: ProbeVerdict, width: int, most: int | None = None, *, whole: bool = False
) -> list[list[Line]]:
    """The sentence, then each suspect with why and what to do, then what else is worth saying; each some lines.

    ``most``: so many suspects are named, None: all. ``whole``: what to do stays on one line, so that it can be copied.
    """
    if not verdict.text and not verdict.suspects:
        return []
    number = len(verdict.suspects)
    label = Cell(f"{number} {'SUSPECT' if number == 1 else 'SUSPECTS'}", "crit") if number else Cell("VERDICT", "bold")
    parts = [wrap([label, Cell("  "), Cell(verdict.text, "bold" if number else "")], width, indent=2)]
    for suspect in verdict.suspects[:most]:
        cells = [Cell(f"  {BULLET} ", "dim"), Cell(f"{suspect_name(suspect)}: ", "crit"), Cell(suspect.reason)]
        parts.append(wrap(cells, width, indent=4) + _to_do("do: ", suspect.action, width, whole))
    if most is not None and number > most:
        parts.append([[Cell(f"  and {number - most} more suspects (--verbose names them)", "warn")]])
    details = [wrap([Cell(f"  {BULLET} ", "dim"), Cell(text, "dim")], width, indent=4) for text in verdict.details]
    return parts + details


def split_verdict(
    verdict: ProbeVerdict, width: int, room: int, failures: Sequence[ProbeFailure] = ()
) -> tuple[list[Line], list[Line]]:
    """(what fits into ``room`` lines, the sentence at least in part; what is left, under a title of its own).

    Details about ``failures`` are left out: those stand together below.
    """
    reasons = {failure.why for failure in failures}
    details = [detail for detail in verdict.details if not any(why in detail for why in reasons)]
    above: list[Line] = []
    parts = verdict_parts(replace(verdict, details=details), width)
    while parts and len(above) + len(parts[0]) <= room:
        above += parts.pop(0)
    if parts and not above:
        first = parts[0]
        above, parts[0] = first[:room], first[room:]
    left = [line for part in parts for line in part]
    return above, [[Cell("The verdict, continued", "title")], *left] if left else []


def _to_do(label: str, text: str, width: int, whole: bool) -> list[Line]:
    cells = [Cell(f"    {label}", "dim"), Cell(text, "accent")]
    return [] if not text else [cells] if whole else wrap(cells, width, indent=8)


def suspect_name(suspect: Suspect) -> str:
    """ "node01 GPU 3 rank 11"."""
    parts = [suspect.node or "a node of unknown name"]
    parts += [f"GPU {suspect.gpu}"] if suspect.gpu is not None else []
    parts += [f"rank {suspect.rank}"] if suspect.rank is not None else []
    return " ".join(parts)


def failure_lines(
    failures: Sequence[ProbeFailure], width: int, most: int | None = None, *, each: bool = False, whole: bool = False
) -> list[Line]:
    """The lines of what was not measured, failures of one reason together: stage, why, what would help.

    ``most``: so many reasons are named, None: all. ``each``: no failures together. ``whole``: as in ``verdict_parts``.
    """
    groups = [[failure] for failure in failures] if each else _by_reason(failures)
    lines: list[Line] = [[Cell("Not measured", "title")]] if groups else []
    shown = groups[:most]
    for index, alike in enumerate(shown):
        first = alike[0]
        word = Cell("LEFT OUT ", "warn") if first.refused else Cell("FAILED ", "crit")
        stage = f"{first.stage}: " if first.stage and not first.refused else ""
        cells = [Cell("  "), word, Cell(f"{who_failed(alike)}: ", "bold"), Cell(stage + _why_of(alike))]
        lines += wrap(cells, width, indent=4)
        if index + 1 == len(shown) or shown[index + 1][0].fix != first.fix:
            lines += _to_do(*to_do(first.fix), width, whole)
    if len(shown) < len(groups):
        more = sum(map(len, groups[len(shown) :]))
        lines.append([Cell(f"  and {more} more (--verbose shows them)", "warn")])
    return lines


def _by_reason(failures: Iterable[ProbeFailure]) -> list[list[ProbeFailure]]:
    """What failed before what was left out, otherwise in the order they came; numbers make no other reason: torch and
    drivers, of whose errors nothing else is known, put addresses and sizes into them.
    """

    def reason(failure: ProbeFailure) -> tuple[bool, str, str, str]:
        others = kind_of_reason(failure.why, failure.node)
        alike = f"{failure.code} {failure.who}" if failure.code else others
        return failure.refused, failure.stage, alike, failure.fix

    return list(grouped(sorted(failures, key=lambda failure: failure.refused), reason).values())


def _why_of(alike: Sequence[ProbeFailure]) -> str:
    """ "in use by ada: train.py (pids 8120-8123)"; of several reasons that differ in more, the first as an example."""
    first = alike[0]
    pids = sorted({pid for failure in alike for pid in failure.pids})
    one_node = len({failure.node for failure in alike}) == 1
    if first.code == "in_use" and first.who and len(pids) > 1 and one_node:
        return f"in use by {first.who} (pids {fold(pids)})"
    return first.why if len({failure.why for failure in alike}) == 1 else f"e.g. {first.why}"


def command_lines(report: ProbeReport, width: int) -> list[Line]:
    """The torchrun line, broken so that the lines together are still one command of a shell."""
    if not report.command:
        return []
    broken = shell_lines(report.command, width)
    return [[Cell("The same without mltop", "title"), Cell("  y copies it", "dim")], *([Cell(line)] for line in broken)]


def shell_lines(command: str, width: int) -> list[str]:
    """The command in lines of at most ``width`` cells, all but the last ending in a backslash; words are never cut."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width - 2:
            lines[-1] += " \\"
            lines.append(word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines


def empty_lines(can_probe: str, width: int) -> list[Line]:
    """The keys and what they do, while no probe has run; ``can_probe``: why none can, "" where one can."""
    lines: list[Line] = [[Cell("no probe has run yet", "dim")], []]
    if can_probe:
        return [*lines, *wrap([Cell(can_probe, "warn")], width, indent=2)]
    with_key = True
    for kind, view in KINDS.items():
        if with_key and not view.key:
            lines += [[], [Cell("Both ask before anything starts. There you can also choose")]]
        with_key, key = bool(view.key), Cell(f"{view.key or ' '}  ", "accent")
        lines += wrap([key, Cell(f"{kind}  ", "bold"), Cell(view.does)], width, indent=3)
    return [*lines, [], *wrap([Cell(WHERE, "dim")], width)]


WHERE = (
    "From a node's pane they go to that node, from a GPU's to that GPU, elsewhere to the marked nodes, or all."
    " GPUs in use are left alone."
)


GLYPHS_MOST = 24
RATE_AT_LEAST = 1e6  # TFLOP/s are below, bytes/s above


def history_lines(who: str, past: Sequence[PastResult], probe: str, width: int, newest: int = 3) -> list[list[Cell]]:
    """Earlier results of ``probe`` (a key's first word), by key, and the ``newest`` of them with their versions.

    ``past``: of the device or group, the oldest first.
    """
    of_probe = [result for result in past if result.key.split(" ")[0] == probe]
    by_key = grouped(of_probe, lambda result: result.key)
    if not by_key:
        return []
    lines: list[list[Cell]] = [[Cell("Earlier", "title"), Cell(f"  {who}", "dim")]]
    name_width = max(len(key_text(key)) for key in by_key)
    for key, results in by_key.items():
        lines.append(_key_line(key_text(key).ljust(name_width), results, width))
    lines += [_result_line(result, len(by_key) > 1, width) for result in reversed(of_probe[-newest:])]
    return lines


def _key_line(key: str, results: Sequence[PastResult], width: int) -> list[Cell]:
    values = [result.value for result in results]
    newest = heights(values[-GLYPHS_MOST:])
    first, last = (_time("%Y-%m-%d", result.at) for result in (results[0], results[-1]))
    span = first if len(results) == 1 else f"{first} to {last}"
    parts = [
        (0, [Cell(f"  {key}")]),
        (1, [Cell(sparkline(newest, len(newest)), "accent")]),
        (0, [Cell(f"median {value_text(middle(values))}")]),
        (3, [Cell(f"{value_text(min(values))} to {value_text(max(values))}", "dim")]),
        (2, [Cell(f"{len(values)} from {span}", "dim")]),
    ]
    return flow(parts, width)


def _result_line(result: PastResult, named: bool, width: int) -> list[Cell]:
    """One earlier result and with which versions. ``named``: with its key, which tells it from others."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))
    name = f"{key_text(result.key)}  " if named else ""
    parts = [
        (0, [Cell(f"  {_time('%Y-%m-%d %H:%M', result.at)}", "dim")]),
        (0, [Cell(f"{name}{value_text(result.value)}")]),
        (1, [Cell(versions, "dim")] if versions else []),
    ]
    return flow(parts, width)


def key_text(key: str) -> str:
    """ "bf16 sustained 8192x8192x8192" of a matmul's key, "to_device 256M" of copies'."""
    words = key.split(" ")[1:]
    return " ".join(size_text(int(word)) if word.isdigit() and int(word) >= 1024 else word for word in words) or key


def value_text(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return bandwidth(value) if value >= RATE_AT_LEAST else flops(value)


def _time(form: str, at: float) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):  # a year that the platform cannot express
        return UNKNOWN
