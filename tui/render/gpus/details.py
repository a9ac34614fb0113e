"""Everything that is known of one GPU, in titled blocks; what is unknown says why in its place. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import zip_longest
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from mltop.probes.model import GpuGaps, GpuSample
from mltop.probes.model.units import (
    UNKNOWN,
    celsius,
    clock_time,
    count,
    digits,
    known,
    mhz,
    number,
    of,
    percent,
    seconds,
    watts,
)
from mltop.tui.render.cells import Cell, clip, line_width
from mltop.tui.render.gpus.table import (
    decimal_rate,
    growth,
    is_below,
    links_up,
    memory_text,
    nvlink_cell,
    pcie_link,
    pcie_text,
    spins,
    tells_link,
)
from mltop.tui.render.gpus.throttle import ALARMING, BADGES

COLUMN_WIDTH, LABEL_WIDTH = 40, 16
FIRST_COLUMN, FIRST_LABEL = 29, 15  # of what is looked at first
J_PER_KWH = 3.6e6
LITTLE_HEADROOM_C = 5.0
_at = cache(attrgetter)
NO_SHARES: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Fact:
    """One line of a block. ``why``: the reason of what is unknown, which is shown in its place."""

    label: str
    text: str
    style: str = ""
    why: str = ""


@dataclass(frozen=True)
class Block:
    title: str
    facts: Sequence[Fact]


def block_lines(
    blocks: Sequence[Block], width: int, column_width: int = COLUMN_WIDTH, label: int = LABEL_WIDTH
) -> list[list[Cell]]:
    """The lines of all blocks that have facts; each goes below the shortest column so far, a blank line between two."""
    number_of_columns = max(1, (width + 1) // column_width)
    each = width // number_of_columns
    columns: list[list[list[Cell]]] = [[] for _ in range(number_of_columns)]
    for block in blocks:
        if block.facts:
            column = min(columns, key=len)
            column += [[]] if column else []
            column += [[Cell(clip(block.title, each - 1), "head" if block.title.isupper() else "title")]]
            column += [_fact_line(fact, each - 1, label) for fact in block.facts]
    return side_by_side(columns, each)


def side_by_side(panels: Sequence[Sequence[Sequence[Cell]]], width: int) -> list[list[Cell]]:
    """Panels of lines beside each other, each ``width`` cells wide; the last one is not filled up."""
    rows: Iterable[Sequence[Sequence[Cell]]] = zip_longest(*panels, fillvalue=())
    return [
        [*(cell for part in left for cell in (*part, Cell(" " * (width - line_width(part))))), *last]
        for *left, last in rows
    ]


def _fact_line(fact: Fact, width: int, label_width: int) -> list[Cell]:
    label = clip(fact.label, label_width - 1) + " "
    room = max(1, width - label_width - 1)
    if not fact.why:
        return [Cell(f" {label}", "dim"), Cell(clip(fact.text, room).rstrip(), fact.style)]
    text = clip(fact.text, room).rstrip()
    return [
        Cell(f" {label}", "dim"),
        Cell(text, fact.style or "dim"),
        Cell(clip(f" {fact.why}", room - len(text)), "dim"),
    ]


@dataclass(frozen=True)
class Known:
    """A value at ``path`` of a GpuSample, which ``show`` makes text of; a ``count`` says how it grew.

    ``most``: the path of what it is a part of. ``text``: in place of ``show``, where it takes more than this value.
    ``warn`` and ``crit``: what has to hold for this style, a path or a function.
    """

    label: str
    path: str
    show: Callable[[Any], str] = lambda value: UNKNOWN if value in (None, "") else str(value)
    most: str = ""
    text: Callable[[GpuSample], str] | None = None
    warn: Holds = None
    crit: Holds = None

    def of(self, gpu: GpuSample, before: GpuSample, gaps: GpuGaps) -> Fact:
        value, old = _at(self.path)(gpu), _at(self.path)(before)
        text = self.show(value) if self.text is None else self.text(gpu)
        if self.show is count and value is not None and old is not None:
            text += growth(max(0, value - old))
        if self.most and known(most := _at(self.most)(gpu)):
            text = of(text, self.show(most))
        style = "crit" if _holds(self.crit, gpu) else "warn" if _holds(self.warn, gpu) else ""
        return Fact(self.label, text, style, gaps.why(self.path) if _is_unknown(value) else "")


Holds = str | Callable[[GpuSample], object] | None


def _holds(what: Holds, gpu: GpuSample) -> bool:
    return bool(what is not None and (_at(what) if isinstance(what, str) else what)(gpu))


def _switch(now: str, pending: str, off: str = "off") -> Callable[[GpuSample], str]:
    """Of two paths: "on", "off", "off, on after a reset"."""

    def text(gpu: GpuSample) -> str:
        is_on, then = _at(now)(gpu), _at(pending)(gpu)
        mode = _either("on", off)(is_on)
        return mode if then in (None, is_on) else f"{mode}, {'on' if then else 'off'} after a reset"

    return text


def _either(yes: str, no: str = "no") -> Callable[[object], str]:
    return lambda value: UNKNOWN if value is None else yes if value else no


def _words(value: str | None) -> str:
    return (value or UNKNOWN).replace("_", " ")


def _little_headroom(gpu: GpuSample) -> bool:
    left = gpu.temperature_margin_c
    return left is not None and known(left) and left <= LITTLE_HEADROOM_C


def _sram(gpu: GpuSample) -> str:
    past = ", past the RMA limit" if gpu.ecc.sram_threshold_exceeded else ""
    return count(gpu.ecc.sram_uncorrected_aggregate) + past


def _spares(gpu: GpuSample) -> str:
    banks = [(name, getattr(gpu.remap.banks, name)) for name in ("max", "high", "partial", "low", "none")]
    return ", ".join(f"{number(value)} {name}" for name, value in banks if value) or UNKNOWN


def _could_be(gpu: GpuSample) -> str:
    pcie = gpu.pcie
    both = tells_link(pcie) and pcie.gen_max is not None and pcie.width_max is not None
    return pcie_text(pcie.gen_max, pcie.width_max) if both else UNKNOWN


_RESET = _either("yes: needs a reset")
# Each value is in one block; what is looked at first has a title in capitals.
_BLOCKS: Mapping[str, Sequence[Known]] = {
    "ACTIVITY": (
        Known("SM active", "sm_active", percent),
        Known("SM occupancy", "sm_occupancy", percent),
        Known("tensor cores", "tensor_active", percent),
        Known("DRAM", "dram_active", percent),
        Known("source", "activity_source", lambda source: (source or UNKNOWN).upper()),
    ),
    "HEAT AND POWER": (
        Known("GPU", "temperature_c", celsius),
        Known("slows at", "temperature_slowdown_c", celsius),
        Known("headroom", "temperature_margin_c", celsius, warn=_little_headroom),
        Known("HBM", "memory_temperature_c", celsius, "memory_temperature_max_c"),
        Known("power", "power_w", watts, "power_limit_w"),
    ),
    "THROTTLED BY, OF 10 MIN": (),
    "MEMORY AND LINKS": (
        Known("used", "memory_used_bytes", text=memory_text),
        Known("corrected", "ecc.corrected_volatile", count),
        Known("uncorrectable", "ecc.uncorrected_volatile", count, crit="ecc.uncorrected_volatile"),
        Known("PCIe", "pcie.gen", text=lambda of: pcie_link(of.pcie).text, warn=lambda of: pcie_link(of.pcie).style),
        Known("NVLink", "nvlink", links_up, crit=lambda gpu: nvlink_cell(gpu.nvlink).style),
    ),
    "INSTANCES": (),
    "pipes and clocks": (
        Known("FP64 pipe", "fp64_active", percent),
        Known("FP32 pipe", "fp32_active", percent),
        Known("FP16 pipe", "fp16_active", percent),
        Known("GPU-Util", "busy", lambda busy: f"{percent(busy)} coarse" if busy is not None else UNKNOWN),
        Known("memory clock", "memory_clock_mhz", mhz, "memory_clock_max_mhz"),
        Known("state", "performance_state", lambda state: UNKNOWN if state is None else f"P{state}"),
    ),
    "power": (
        Known(
            "default limit",
            "power_limit_default_w",
            watts,
            warn=lambda of: is_below(of.power_limit_w, of.power_limit_default_w),
        ),
        Known("energy", "energy_j", lambda j: UNKNOWN if j is None else f"{digits(j / J_PER_KWH)} kWh since start"),
    ),
    "throttled, in all": (),
    "memory errors": (
        Known(
            "ECC",
            "ecc.enabled",
            text=_switch("ecc.enabled", "ecc.enabled_pending", "OFF"),
            warn=lambda of: of.ecc.enabled is False,
        ),
        Known("uncorr., ever", "ecc.uncorrected_aggregate", count),
        Known("corrected, ever", "ecc.corrected_aggregate", count),
        Known("SRAM, ever", "ecc.sram_uncorrected_aggregate", text=_sram, crit="ecc.sram_threshold_exceeded"),
    ),
    "spare rows": (
        Known("for corrected", "remap.corrected", count),
        Known("for uncorr.", "remap.uncorrected", count),
        Known("pending", "remap.pending", _RESET, warn="remap.pending"),
        Known("failed", "remap.failed", _either("YES: replace the board"), crit="remap.failed"),
        Known("repair waits", "remap.repair_pending", _RESET),
        Known("banks' spares", "remap.banks", text=_spares, warn=lambda of: of.remap.banks.low or of.remap.banks.none),
        Known(
            "recovery action",
            "recovery_action",
            _words,
            crit=lambda of: of.recovery_action not in (None, "", "none"),
        ),
    ),
    "PCIe": (
        Known("could be", "pcie.gen_max", text=_could_be),
        Known("in", "pcie.rx_bytes_per_s", decimal_rate),
        Known("out", "pcie.tx_bytes_per_s", decimal_rate),
        Known("replays", "pcie.replay_count", count),
    ),
    "NVLink and fabric": (
        Known("in", "nvlink.rx_bytes_per_s", decimal_rate),
        Known("out", "nvlink.tx_bytes_per_s", decimal_rate),
        Known("fabric", "fabric", lambda fabric: _words(fabric.state)),
    ),
    "board": (
        Known("model", "name"),
        Known("UUID", "uuid"),
        Known("serial", "serial"),
        Known("PCI", "pci_bus_id"),
        Known("driver", "driver"),
        Known("CUDA up to", "cuda"),
        Known("VBIOS", "vbios"),
        Known("GSP firmware", "gsp_firmware"),
        Known("persistence", "persistence", _either("on", "off")),
        Known("compute mode", "compute_mode", _words),
        Known("MIG", "mig_enabled", text=_switch("mig_enabled", "mig_pending")),
        Known("last seen", "last_seen_at", clock_time),
    ),
}


def blocks_of(
    gpu: GpuSample, gaps: GpuGaps, first: GpuSample | None = None, shares: Mapping[str, float] = NO_SHARES
) -> list[Block]:
    """All blocks of a GPU. ``first``: the same GPU when it was first looked at: counters say how they grew since;
    ``shares``: of the last ten minutes in which each reason held the clock down.
    """
    before = first or gpu
    more = {
        "ACTIVITY": [Fact("waiting?", f"busy, SM {percent(gpu.sm_active)}", "accent")] if spins(gpu) else [],
        "THROTTLED BY, OF 10 MIN": _held_by(gpu, gaps, shares),
        "INSTANCES": _instances(gpu),
        "throttled, in all": _held_in_all(gpu, before, gaps),
        "spare rows": [Fact("retired pages", count(gpu.retired_pages))] if gpu.retired_pages else [],
        "PCIe": _pcie_errors(gpu, before),
        "NVLink and fabric": _fabric(gpu),
    }
    return [
        Block(title, [*(one.of(gpu, before, gaps) for one in facts), *more.get(title, ())])
        for title, facts in _BLOCKS.items()
    ]


_ALWAYS = ("hw_thermal", "sw_power_cap", "power_brake")  # what is shown also where it never held


def _held_by(gpu: GpuSample, gaps: GpuGaps, shares: Mapping[str, float]) -> list[Fact]:
    """What holds the clock down now, and how much of the time it did."""
    held = gpu.throttle_reasons
    low = is_below(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) and any(reason in ALARMING for reason in held or ())
    clock = Known("SM clock", "sm_clock_mhz", mhz, "sm_clock_max_mhz", warn=lambda _: low)
    if held is None:
        return [Fact("now", UNKNOWN, why=gaps.why("throttle_reasons")), clock.of(gpu, gpu, gaps)]
    known_causes = any(reason in shares or reason in held for reason in ("hw_thermal", "power_brake"))
    facts = []
    for reason, badge in BADGES.items():
        now, of_time = reason in held, shares.get(reason)
        is_shown = now or (reason != "gpu_idle" and (of_time or reason in _ALWAYS))
        if is_shown and not (reason == "hw_slowdown" and known_causes):
            words = f"{'now' if now else 'no'}, {percent(of_time)}" if of_time else "now" if now else "never"
            facts.append(Fact(badge.text, words, badge.style if now and badge.style != "dim" else ""))
    return [*facts, clock.of(gpu, gpu, gaps)]


def _held_in_all(gpu: GpuSample, before: GpuSample, gaps: GpuGaps) -> list[Fact]:
    """For how long each reason that ever did has held the clock down since the driver was loaded."""
    if not gpu.throttle_ns:
        return [Fact("time", UNKNOWN, why=gaps.why("throttle_ns"))]
    facts = []
    for reason, badge in BADGES.items():
        total = gpu.throttle_ns.get(reason)
        if total and reason != "gpu_idle":
            grown = total - before.throttle_ns.get(reason, total)
            facts.append(Fact(badge.text, seconds(total / 1e9) + (f" (+{seconds(grown / 1e9)})" if grown > 0 else "")))
    return facts or [Fact("nothing", "never")]


def _pcie_errors(gpu: GpuSample, before: GpuSample) -> list[Fact]:
    facts = []
    for name, value in gpu.pcie.errors.items():
        grown = value - before.pcie.errors.get(name, value)
        if value:
            facts.append(Fact(_words(name), f"{count(value)}{growth(max(0, grown))}", "warn" if grown > 0 else ""))
    return facts


def _fabric(gpu: GpuSample) -> list[Fact]:
    fabric, facts = gpu.fabric, []
    if fabric.health is not None:
        words = ", ".join([fabric.health, *map(_words, fabric.problems)])
        facts.append(Fact("health", words, "crit" if fabric.health != "ok" or fabric.problems else ""))
    if fabric.clique_id is not None:
        facts.append(Fact("clique", number(fabric.clique_id)))
    return facts


def _instances(gpu: GpuSample) -> list[Fact]:
    return [
        Fact(
            f"{one.index} {one.name or UNKNOWN}",
            f"{memory_text(one)}  SM {percent(one.sm_active)} TC {percent(one.tensor_active)}",
        )
        for one in gpu.mig_instances
    ]


def _is_unknown(value: object) -> bool:
    """Of a group of values: all of them."""
    if is_dataclass(value):
        return all(map(_is_unknown, vars(value).values()))
    return value in (None, "") or value == [] or (isinstance(value, float) and not known(value))
