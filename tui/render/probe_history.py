"""Earlier results of one device: a sparkline and figures per kind of result, then the newest ones. Pure functions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mltop.probes.model.probe import PastResult
from mltop.tui.render.cells import Cell
from mltop.tui.render.glyphs import sparkline
from mltop.tui.render.probe_units import bandwidth, flops, heights, middle, size_text
from mltop.tui.render.units import UNKNOWN
from mltop.tui.render.wrap import flow

GLYPHS_MOST = 24
RATE_AT_LEAST = 1e6  # TFLOP/s are below, bytes/s above


def history_lines(who: str, past: Sequence[PastResult], probe: str, width: int, newest: int = 3) -> list[list[Cell]]:
    """``past``: of the device or group, the oldest first; only of ``probe``, a key's first word. Nothing of none."""
    of_probe = [one for one in past if one.key.split(" ")[0] == probe]
    by_key: dict[str, list[PastResult]] = {}
    for one in of_probe:
        by_key.setdefault(one.key, []).append(one)
    if not by_key:
        return []
    lines: list[list[Cell]] = [[Cell("Earlier", "title"), Cell(f"  {who}", "dim")]]
    name_width = max(len(key_text(key)) for key in by_key)
    for key, results in by_key.items():
        lines.append(_key_line(key_text(key).ljust(name_width), results, width))
    lines += [_result_line(one, of_probe, width) for one in reversed(of_probe[-newest:])]
    return lines


def _key_line(key: str, results: Sequence[PastResult], width: int) -> list[Cell]:
    values = [one.value for one in results]
    newest = heights(values[-GLYPHS_MOST:])
    span = _day(results[0].at) if len(results) == 1 else f"{_day(results[0].at)} to {_day(results[-1].at)}"
    parts = [
        (0, [Cell(f"  {key}")]),
        (1, [Cell(sparkline(newest, len(newest)), "accent")]),
        (0, [Cell(f"median {value_text(middle(values))}")]),
        (3, [Cell(f"{value_text(min(values))} to {value_text(max(values))}", "dim")]),
        (2, [Cell(f"{len(values)} from {span}", "dim")]),
    ]
    return flow(parts, width)


def _result_line(one: PastResult, all_of_it: Sequence[PastResult], width: int) -> list[Cell]:
    """One earlier result and with which versions."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(one.versions.items()))
    name = f"{key_text(one.key)}  " if len({other.key for other in all_of_it}) > 1 else ""
    parts = [
        (0, [Cell(f"  {_minute(one.at)}", "dim")]),
        (0, [Cell(f"{name}{value_text(one.value)}")]),
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


def _day(at: float) -> str:
    return _time("%Y-%m-%d", at)


def _minute(at: float) -> str:
    return _time("%Y-%m-%d %H:%M", at)


def _time(form: str, at: float) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):  # a year that the platform cannot express
        return UNKNOWN
