"""Everything that is known of one GPU, in titled blocks; what is unknown says why in its place. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import zip_longest
from operator import attrgetter
from types import MappingProxyType

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
from mltop.tui.render.fleet.heat import ratio
from mltop.tui.render.gpus.table import (
    decimal_rate,
    growth,
    links_up,
    memory_text,
    nvlink_cell,
    pcie_link,
    pcie_text,
    spins,
    tells_link,
)
from mltop.tui.render.gpus.throttle import ALARMING, BADGES

COLUMN_WIDTH = 40
LABEL_WIDTH = 16
FIRST_COLUMN, FIRST_LABEL = 29, 15  # of what is looked at first


@dataclass(frozen=True)
class Fact:
    """One line of a block. ``why``: the reason of what is unknown, which stands in its place."""

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


J_PER_KWH = 3.6e6
LITTLE_HEADROOM_C = 5.0
RESET = "yes: needs a reset"

FactOf = Callable[..., Fact]


def _facts_of(gpu: GpuSample, gaps: GpuGaps) -> FactOf:
    def fact(label: str, text: str, field: str, style: str = "") -> Fact:
        return Fact(label, text, style, gaps.why(field) if _is_unknown(attrgetter(field)(gpu)) else "")

    return fact


def blocks_of(gpu: GpuSample, gaps: GpuGaps, first: GpuSample | None = None) -> list[Block]:
    """All blocks of a GPU. ``first``: the same GPU when it was first looked at: counters say how they grew since."""
    before = first or gpu
    fact = _facts_of(gpu, gaps)
    return [
        Block("activity", _activity(gpu, fact)),
        Block("clocks", _clocks(gpu, fact)),
        Block("power", _power(gpu, fact)),
        Block("heat", _heat(gpu, fact)),
        Block("throttled by", _throttle(gpu, before, gaps)),
        Block("memory", _memory(gpu, before, fact)),
        Block("spare rows", _remap(gpu, before, fact)),
        Block("PCIe", _pcie(gpu, before, fact)),
        Block("NVLink and fabric", _fabric(gpu, fact)),
        Block("MIG", _mig(gpu, fact)),
        Block("board", _board(gpu, fact)),
    ]


NO_SHARES: Mapping[str, float] = MappingProxyType({})
_ALWAYS = ("hw_thermal", "sw_power_cap", "power_brake")  # what is told also where it never held


def first_blocks(gpu: GpuSample, gaps: GpuGaps, shares: Mapping[str, float] = NO_SHARES) -> list[Block]:
    """What is looked at first, in four columns."""
    fact = _facts_of(gpu, gaps)
    power = fact("power", _of_most(gpu.power_w, gpu.power_limit_w, watts), "power_w")
    return [
        Block("ACTIVITY", [one for one in _activity(gpu, fact) if one.label in _FIRST_OF_ACTIVITY]),
        Block("HEAT AND POWER", [*_heat(gpu, fact, "slows at"), power]),
        Block("THROTTLED BY, OF 10 MIN", _held_by(gpu, gaps, shares)),
        Block("MEMORY AND LINKS", _memory_and_links(gpu, fact)),
        Block("INSTANCES", _mig(gpu, fact) if gpu.mig_instances else ()),
    ]


_FIRST_OF_ACTIVITY = ("SM active", "SM occupancy", "tensor cores", "DRAM", "read by", "waiting?")


def _held_by(gpu: GpuSample, gaps: GpuGaps, shares: Mapping[str, float]) -> list[Fact]:
    """What holds the clock down now, and how much of the time it did."""
    held = gpu.throttle_reasons
    share = ratio(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)
    low = share is not None and share < 1.0 and any(reason in ALARMING for reason in held or ())
    clock = _of_most(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, mhz)
    known_causes = any(reason in shares or reason in (held or ()) for reason in ("hw_thermal", "power_brake"))
    facts = []
    for reason, badge in BADGES.items():
        now, of_time = reason in (held or ()), shares.get(reason)
        if held is None or not (now or of_time or reason in _ALWAYS) or (reason == "gpu_idle" and not now):
            continue
        if reason == "hw_slowdown" and known_causes:
            continue
        words = f"{'now' if now else 'no'}, {percent(of_time)}" if of_time else "now" if now else "never"
        facts.append(Fact(badge.text, words, badge.style if now and badge.style != "dim" else ""))
    if held is None:
        facts.append(Fact("now", UNKNOWN, why=gaps.why("throttle_reasons")))
    facts.append(Fact("SM clock", clock, "warn" if low else ""))
    return facts


def _memory_and_links(gpu: GpuSample, fact: FactOf) -> list[Fact]:
    ecc, remap, link = gpu.ecc, gpu.remap, pcie_link(gpu.pcie)
    rows = None if remap.uncorrected is None else remap.uncorrected + (remap.corrected or 0)
    return [
        fact("used", memory_text(gpu), "memory_used_bytes"),
        fact("corrected", number(ecc.corrected_volatile), "ecc.corrected_volatile"),
        fact(
            "uncorrectable",
            number(ecc.uncorrected_volatile),
            "ecc.uncorrected_volatile",
            "crit" if ecc.uncorrected_volatile else "",
        ),
        fact("remapped rows", number(rows), "remap.uncorrected"),
        fact("PCIe", link.text, "pcie.gen", link.style),
        fact("NVLink", links_up(gpu.nvlink), "nvlink", nvlink_cell(gpu.nvlink).style),
    ]


def _activity(gpu: GpuSample, fact: FactOf) -> list[Fact]:
    facts = [
        fact("SM active", percent(gpu.sm_active), "sm_active"),
        fact("SM occupancy", percent(gpu.sm_occupancy), "sm_occupancy"),
        fact("tensor cores", percent(gpu.tensor_active), "tensor_active"),
        fact("DRAM", percent(gpu.dram_active), "dram_active"),
        fact("FP64 pipe", percent(gpu.fp64_active), "fp64_active"),
        fact("FP32 pipe", percent(gpu.fp32_active), "fp32_active"),
        fact("FP16 pipe", percent(gpu.fp16_active), "fp16_active"),
        fact("read by", (gpu.activity_source or UNKNOWN).upper(), "activity_source"),
        fact("GPU-Util", f"{percent(gpu.busy)} coarse" if gpu.busy is not None else UNKNOWN, "busy"),
    ]
    if spins(gpu):
        facts.append(Fact("waiting?", f"busy, SM {percent(gpu.sm_active)}", "accent"))
    return facts


def _clocks(gpu: GpuSample, fact: FactOf) -> list[Fact]:
    share = ratio(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)
    sm = _of_most(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, mhz)
    state = UNKNOWN if gpu.performance_state is None else f"P{gpu.performance_state}"
    memory = _of_most(gpu.memory_clock_mhz, gpu.memory_clock_max_mhz, mhz)
    return [
        fact("SM", f"{sm}, {percent(share)}" if share is not None else sm, "sm_clock_mhz"),
        fact("memory", memory, "memory_clock_mhz"),
        fact("state", state, "performance_state"),
    ]


def _power(gpu: GpuSample, fact: FactOf) -> list[Fact]:
    limit, default = gpu.power_limit_w, gpu.power_limit_default_w
    lowered = limit is not None and default is not None and limit < default
    energy = UNKNOWN if gpu.energy_j is None else f"{digits(gpu.energy_j / J_PER_KWH)} kWh since start"
    return [
        fact("draw", _of_most(gpu.power_w, limit, watts), "power_w"),
        fact("default limit", watts(default), "power_limit_default_w", "warn" if lowered else ""),
        fact("energy", energy, "energy_j"),
    ]


def _heat(gpu: GpuSample, fact: FactOf, slows: str = "slows down at") -> list[Fact]:
    left = gpu.temperature_margin_c
    little = left is not None and known(left) and left <= LITTLE_HEADROOM_C
    memory = _of_most(gpu.memory_temperature_c, gpu.memory_temperature_max_c, celsius)
    return [
        fact("GPU", celsius(gpu.temperature_c), "temperature_c"),
        fact(slows, celsius(gpu.temperature_slowdown_c), "temperature_slowdown_c"),
        fact("headroom", celsius(left), "temperature_margin_c", "warn" if little else ""),
        fact("HBM", memory, "memory_temperature_c"),
    ]


def _throttle(gpu: GpuSample, before: GpuSample, gaps: GpuGaps) -> list[Fact]:
    """Reasons that hold, or ever held; "nothing" when that is known."""
    held = gpu.throttle_reasons
    facts = []
    for reason, badge in BADGES.items():
        now, total = reason in (held or ()), gpu.throttle_ns.get(reason)
        if reason == "gpu_idle" and not now:
            continue
        if not now and not total:
            continue
        share = gpu.throttle_share.get(reason)
        parts = ["now" if now else "not now"]
        parts[0] += f" {percent(share)}" if share else ""
        if total:
            grown = total - before.throttle_ns.get(reason, total)
            parts.append(f"{seconds(total / 1e9)} in all" + (f" (+{seconds(grown / 1e9)})" if grown > 0 else ""))
        facts.append(Fact(badge.text, ", ".join(parts), badge.style if now else ""))
    if held is None:
        facts.insert(0, Fact("now", UNKNOWN, why=gaps.why("throttle_reasons")))
    elif not facts:
        facts.append(Fact("now", "nothing, nor earlier" if gpu.throttle_ns else "nothing"))
    if held is not None and not gpu.throttle_ns:
        facts.append(Fact("total time", UNKNOWN, why=gaps.why("throttle_ns")))
    return facts


def _memory(gpu: GpuSample, before: GpuSample, fact: FactOf) -> list[Fact]:
    ecc, old = gpu.ecc, before.ecc
    sram = _counter(ecc.sram_uncorrected_aggregate, old.sram_uncorrected_aggregate)
    if ecc.sram_threshold_exceeded:
        sram += ", past the RMA limit"
    volatile, off = _counter(ecc.uncorrected_volatile, old.uncorrected_volatile), ecc.enabled is False
    return [
        fact("used", memory_text(gpu), "memory_used_bytes"),
        fact("ECC", _switch(ecc.enabled, ecc.enabled_pending, "OFF"), "ecc.enabled", "warn" if off else ""),
        fact("uncorrectable", volatile, "ecc.uncorrected_volatile", "crit" if ecc.uncorrected_volatile else ""),
        fact("   ever", _counter(ecc.uncorrected_aggregate, old.uncorrected_aggregate), "ecc.uncorrected_aggregate"),
        fact("corrected", _counter(ecc.corrected_volatile, old.corrected_volatile), "ecc.corrected_volatile"),
        fact("   ever", _counter(ecc.corrected_aggregate, old.corrected_aggregate), "ecc.corrected_aggregate"),
        fact("SRAM ever", sram, "ecc.sram_uncorrected_aggregate", "crit" if ecc.sram_threshold_exceeded else ""),
    ]


def _remap(gpu: GpuSample, before: GpuSample, fact: FactOf) -> list[Fact]:
    remap, old = gpu.remap, before.remap
    failed, banks = _yes_no(remap.failed, "YES: replace the board"), remap.banks
    spares = [(name, getattr(banks, name)) for name in ("max", "high", "partial", "low", "none")]
    text = ", ".join(f"{number(value)} {name}" for name, value in spares if value) or UNKNOWN
    action = (gpu.recovery_action or UNKNOWN).replace("_", " ")
    facts = [
        fact("for corrected", _counter(remap.corrected, old.corrected), "remap.corrected"),
        fact("for uncorr.", _counter(remap.uncorrected, old.uncorrected), "remap.uncorrected"),
        fact("pending", _yes_no(remap.pending, RESET), "remap.pending", "warn" if remap.pending else ""),
        fact("failed", failed, "remap.failed", "crit" if remap.failed else ""),
        fact("repair waits", _yes_no(remap.repair_pending, RESET), "remap.repair_pending"),
        fact("banks' spares", text, "remap.banks", "warn" if banks.low or banks.none else ""),
        fact("recovery action", action, "recovery_action", "" if action in (UNKNOWN, "none") else "crit"),
    ]
    if gpu.retired_pages:
        facts.append(fact("retired pages", count(gpu.retired_pages), "retired_pages"))
    return facts


def _pcie(gpu: GpuSample, before: GpuSample, fact: FactOf) -> list[Fact]:
    pcie, old = gpu.pcie, before.pcie
    link, most = pcie_link(pcie), ""
    if tells_link(pcie) and pcie.gen_max is not None and pcie.width_max is not None:
        most = f" of {pcie_text(pcie.gen_max, pcie.width_max)}"
    facts = [
        fact("link", link.text + most, "pcie.gen", link.style),
        fact("in", decimal_rate(pcie.rx_bytes_per_s), "pcie.rx_bytes_per_s"),
        fact("out", decimal_rate(pcie.tx_bytes_per_s), "pcie.tx_bytes_per_s"),
        fact("replays", _counter(pcie.replay_count, old.replay_count), "pcie.replay_count"),
    ]
    for name, value in pcie.errors.items():
        grown = value - old.errors.get(name, value)
        if value:
            facts.append(Fact(name.replace("_", " "), f"{count(value)}{growth(grown)}", "warn" if grown > 0 else ""))
    return facts


def _fabric(gpu: GpuSample, fact: FactOf) -> list[Fact]:
    links = nvlink_cell(gpu.nvlink)
    fabric = gpu.fabric
    bad = fabric.health not in (None, "ok") or bool(fabric.problems)
    facts = [
        fact("links up", links_up(gpu.nvlink), "nvlink", links.style),
        fact("in", decimal_rate(gpu.nvlink.rx_bytes_per_s), "nvlink.rx_bytes_per_s"),
        fact("out", decimal_rate(gpu.nvlink.tx_bytes_per_s), "nvlink.tx_bytes_per_s"),
        fact("fabric", (fabric.state or UNKNOWN).replace("_", " "), "fabric"),
    ]
    if fabric.health is not None:
        words = ", ".join([fabric.health, *(problem.replace("_", " ") for problem in fabric.problems)])
        facts.append(Fact("health", words, "crit" if bad else ""))
    if fabric.clique_id is not None:
        facts.append(Fact("clique", number(fabric.clique_id)))
    return facts


def _mig(gpu: GpuSample, fact: FactOf) -> list[Fact]:
    facts = [fact("mode", _switch(gpu.mig_enabled, gpu.mig_pending), "mig_enabled")]
    for instance in gpu.mig_instances:
        activity = f"SM {percent(instance.sm_active)} TC {percent(instance.tensor_active)}"
        memory = memory_text(instance)
        facts.append(Fact(f"{instance.index} {instance.name or UNKNOWN}", f"{memory}  {activity}"))
    return facts


def _board(gpu: GpuSample, fact: FactOf) -> list[Fact]:
    return [
        fact("model", gpu.name or UNKNOWN, "name"),
        fact("UUID", gpu.uuid or UNKNOWN, "uuid"),
        fact("serial", gpu.serial or UNKNOWN, "serial"),
        fact("PCI", gpu.pci_bus_id or UNKNOWN, "pci_bus_id"),
        fact("driver", gpu.driver or UNKNOWN, "driver"),
        fact("CUDA up to", gpu.cuda or UNKNOWN, "cuda"),
        fact("VBIOS", gpu.vbios or UNKNOWN, "vbios"),
        fact("GSP firmware", gpu.gsp_firmware or UNKNOWN, "gsp_firmware"),
        fact("persistence", _switch(gpu.persistence), "persistence"),
        fact("compute mode", (gpu.compute_mode or UNKNOWN).replace("_", " "), "compute_mode"),
        fact("last seen", clock_time(gpu.last_seen_at), "last_seen_at"),
    ]


def _switch(now: bool | None, pending: bool | None = None, off: str = "off") -> str:
    """ "on", "off", "off, on after a reset"."""
    mode = {True: "on", False: off, None: UNKNOWN}[now]
    return mode if pending in (None, now) else f"{mode}, {'on' if pending else 'off'} after a reset"


def _counter(value: int | None, before: int | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{count(value)}{growth(value - before if before is not None and value > before else 0)}"


def _of_most(part: float | None, whole: float | None, text: Callable[[float | None], str]) -> str:
    return of(text(part), text(whole)) if known(whole) else text(part)


def _is_unknown(value: object) -> bool:
    """Of a group of values: all of them."""
    if is_dataclass(value):
        return all(map(_is_unknown, vars(value).values()))
    return value in (None, "") or value == [] or (isinstance(value, float) and not known(value))


def _yes_no(value: bool | None, yes: str) -> str:
    return UNKNOWN if value is None else yes if value else "no"
