"""A GEMM that meets the power limit: reasons, counters, share of time, clocks and power, against nvidia-smi's.

What must follow from the load itself: where the power stands at the limit, that is the reason.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.model import Gap, GpuSample
from tests.hardware.asked import Asked
from tests.hardware.checks import Check, NotTriedError, Told, among, between, not_tried, within
from tests.hardware.context import Context
from tests.hardware.loads import Load, why_not
from tests.hardware.ours import Mltop, gap_of
from tests.hardware.rows.row import number
from tests.hardware.rows.throttling import COUNTERS, reasons, throttle_counter
from tests.hardware.sources import Query

LOAD_S, OTHERS_LOAD_S = 60.0, 20.0  # of the first GPU, of each other one: they share the time of all slices
LEAST_LOAD_S = 4.0
SETTLE_S = 2.0  # from the first GEMM until clocks and averages stand
PACE_S = 1.0  # between two polls at least, as of the agent
AT_LIMIT, BELOW_LIMIT = 0.95, 0.85  # of the power limit
SHARE_SLACK = 0.05
FIELDS = ["pci.bus_id", "clocks.sm", "power.draw.average", "power.draw", "enforced.power.limit"]
# What is saved: of a sample, and of nvidia-smi -q.
COMPARED = ("throttle_reasons", "sm_clock_mhz", "power_w", "power_limit_w", "throttle_ns", "throttle_share")
SECTIONS = ("clocks_event_reasons", "clocks_throttle_reasons", "clocks_event_reasons_counters")
CHECKS: tuple[str, ...] = (
    "throttle_reasons",
    "sm_clock_mhz",
    "power_w",
    *(f"throttle_ns.{name} (gain)" for name in COUNTERS),
    *(f"throttle_share.{name}" for name in COUNTERS),
    "sw_power_cap at the limit",
)


@dataclass
class Look:
    """nvidia-smi, mltop, nvidia-smi; ``at_s`` is CLOCK_MONOTONIC."""

    before: Asked
    gpu: GpuSample
    gaps: list[Gap]
    after: Asked
    at_s: float  # when mltop's poll had come back


@dataclass
class Loaded:
    """One GPU under load."""

    index: int
    looks: list[Look] = field(default_factory=list)
    rate: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Of every look what is compared."""
        looks = [
            {
                "before": one.before.to_json(one.before.xml.only(one.before.bus_id(self.index), *SECTIONS)),
                "after": one.after.to_json(one.after.xml.only(one.after.bus_id(self.index), *SECTIONS)),
                "gpu": {name: getattr(one.gpu, name) for name in COMPARED},
                "gaps": [asdict(gap) for gap in one.gaps],
                "at_s": one.at_s,
            }
            for one in self.looks
        ]
        return {"index": self.index, "rate": self.rate, "looks": looks}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Loaded:
        looks = [
            Look(
                Asked.of(one["before"]),
                GpuSample(data["index"], **one["gpu"]),
                [Gap(**gap) for gap in one["gaps"]],
                Asked.of(one["after"]),
                one["at_s"],
            )
            for one in data["looks"]
        ]
        return cls(data["index"], looks, data["rate"])

    def gap(self, path: str) -> Gap | None:
        return gap_of(self.looks[-1].gaps, self.index, path)


Take = Callable[[Context, int, str, float], Loaded]


def run(context: Context) -> Iterator[Check]:
    yield from of_gpus(context, loaded_if_free)


def of_gpus(context: Context, take: Take) -> Iterator[Check]:
    """One GPU after the other, since they may share a power supply; as many as the time allows."""
    gpus = [gpu for gpu in context.machine.gpus if gpu["uuid"]]
    most_s = LOAD_S
    for place, gpu in enumerate(gpus):
        seconds = min(most_s, 0.7 * context.left_s() / (len(gpus) - place) - SETTLE_S)
        if seconds < LEAST_LOAD_S:
            yield from (not_tried(name, "no time was left for this GPU", gpu=gpu["index"]) for name in CHECKS)
            continue
        try:
            found = take(context, gpu["index"], gpu["uuid"], seconds)
        except NotTriedError as reason:
            why = str(reason)
            yield from (not_tried(name, why, gpu=gpu["index"]) for name in CHECKS)
        else:
            most_s = OTHERS_LOAD_S
            yield from checks_of(found)


def loaded_if_free(context: Context, index: int, uuid: str, seconds: float) -> Loaded:
    """NotTriedError where it is not, or where it cannot be loaded."""
    with Mltop() as mltop:
        mltop.poll()
        why = why_not({"index": index, "uuid": uuid}, of_gpu(mltop, index))
    if why:
        raise NotTriedError(why)
    return loaded(context, index, uuid, seconds)


def loaded(context: Context, index: int, uuid: str, seconds: float) -> Loaded:
    found = Loaded(index)
    query = Query(list(FIELDS))
    with Mltop() as mltop, Load(context, "bf16", uuid) as load:
        time.sleep(SETTLE_S)
        mltop.poll()
        end_s = time.monotonic() + seconds
        while len(found.looks) < 2 or time.monotonic() < end_s:
            load.check_alive()
            found.looks.append(look(mltop, query, index))
            time.sleep(max(0.0, found.looks[-1].at_s + PACE_S - time.monotonic()))
        found.rate = statistics.median(load.rates) if load.rates else None
    context.record_json(f"throttling-{index}.json", found.to_json())
    return found


def look(mltop: Mltop, query: Query, index: int) -> Look:
    before = Asked.smi_alone(query, index)
    mltop.poll()
    at_s = time.monotonic()
    return Look(before, of_gpu(mltop, index), list(mltop.gaps), Asked.smi_alone(query, index), at_s)


def of_gpu(mltop: Mltop, index: int) -> GpuSample:
    """Of mltop's last poll."""
    found = next((gpu for gpu in mltop.gpus if gpu.index == index), None)
    if found is None:
        raise NotTriedError("mltop does not list this GPU")
    return found


def checks_of(found: Loaded) -> Iterator[Check]:
    yield best([_reasons(found, one) for one in found.looks])
    yield best([_value(found, one, "sm_clock_mhz", ("clocks.sm",), "MHz", 60) for one in found.looks])
    yield best([_value(found, one, "power_w", ("power.draw.average", "power.draw"), "W", 20) for one in found.looks])
    for name in COUNTERS:
        yield gain(found, name)
        yield share(found, name)
    yield at_limit(found)


def best(checks: list[Check]) -> Check:
    """Most of the looks must agree: under a steady load little happens between two answers."""
    tried = [check for check in checks if check.outcome != "not tried"]
    if not tried:
        return checks[-1]
    agreed = [check for check in tried if check.outcome == "agrees"]
    differed = [check for check in tried if check.outcome == "differs"]
    chosen = agreed[-1] if len(agreed) > len(differed) else differed[-1]
    chosen.details["looks"] = f"{len(agreed)} of {len(tried)} agree"
    return chosen


def _reasons(found: Loaded, one: Look) -> Check:
    ours = None if one.gpu.throttle_reasons is None else sorted(one.gpu.throttle_reasons)
    before, after = reasons(one.before, found.index), reasons(one.after, found.index)
    name = "throttle_reasons"
    return among(
        name, ours, before, after, found.gap(name), gpu=found.index, source="nvidia-smi -q clocks_event_reasons"
    )


def _value(found: Loaded, one: Look, path: str, fields: tuple[str, ...], unit: str, slack: float) -> Check:
    before, after = _told(found, one.before, fields), _told(found, one.after, fields)
    source = f"nvidia-smi {fields[0]}"
    ours = getattr(one.gpu, path)
    return between(path, ours, before, after, slack, unit, found.gap(path), gpu=found.index, source=source)


def _told(found: Loaded, asked_then: Asked, fields: tuple[str, ...]) -> Told:
    told = [asked_then.query.told(asked_then.rows, str(found.index), name) for name in fields]
    chosen = next((one for one in told if one.value is not None), told[-1])
    return chosen if chosen.value is None else Told(number(chosen.value))


def gain(found: Loaded, name: str) -> Check:
    """From the first to the last look: at least what nvidia-smi saw within, at most what it saw from outside."""
    first, last = found.looks[0], found.looks[-1]
    counts = [one.gpu.throttle_ns.get(name) for one in (first, last)]
    ours = None if counts[0] is None or counts[1] is None else (counts[1] - counts[0]) / 1e9
    path = f"throttle_ns.{name}"
    return between(
        f"{path} (gain)",
        ours,
        _gained(found, name, first.after, last.before),
        _gained(found, name, first.before, last.after),
        0.25,  # the driver renews its counters a few times a second
        "s",
        found.gap(path),
        gpu=found.index,
        source="nvidia-smi -q clocks_event_reasons_counters",
    )


def _gained(found: Loaded, name: str, since: Asked, until: Asked) -> Told:
    counts = [throttle_counter(name)(one, found.index) for one in (since, until)]
    missing = next((one for one in counts if one.value is None), None)
    return missing or Told((counts[1].value - counts[0].value) / 1e9)


def share(found: Loaded, name: str) -> Check:
    """mltop's shares, each of the time since the look before, against what nvidia-smi's counter gained in all."""
    first, last = found.looks[0], found.looks[-1]
    path = f"throttle_share.{name}"
    parts = [
        (one.gpu.throttle_share.get(name), one.at_s - before.at_s)
        for before, one in zip(found.looks, found.looks[1:], strict=False)
    ]
    known = [(part, seconds) for part, seconds in parts if part is not None]
    ours = None
    if known and len(known) == len(parts):
        ours = sum(part * seconds for part, seconds in known) / sum(seconds for _, seconds in known)
    seconds = last.at_s - first.at_s
    low, high = (
        gained if gained.value is None else Told(gained.value / seconds)
        for gained in (
            _gained(found, name, first.after, last.before),
            _gained(found, name, first.before, last.after),
        )
    )
    source = f"nvidia-smi -q clocks_event_reasons_counters over {seconds:.1f} s"
    return between(path, ours, low, high, SHARE_SLACK, "", found.gap(path), gpu=found.index, source=source)


def at_limit(found: Loaded) -> Check:
    """Where the power stands at its limit, that is what holds the clock for much of the time; and nowhere else, unless
    nvidia-smi says so, too: a module or a rail may have a limit of its own.
    """
    name = "sw_power_cap at the limit"
    watts = [one.gpu.power_w for one in found.looks if one.gpu.power_w is not None]
    limit = found.looks[-1].gpu.power_limit_w
    shares = share(found, "sw_power_cap")
    if not watts or limit is None:
        return not_tried(name, "mltop knows neither the power nor its limit", gpu=found.index)
    if shares.ours is None:
        return not_tried(name, f"mltop knows no share of time: {shares.why}", gpu=found.index)
    part = statistics.median(watts) / limit
    why = f"the GEMM took {part:.0%} of the power limit"
    if part >= AT_LIMIT:
        return within(name, shares.ours, 0.05, 1.0, why, gpu=found.index)
    if part <= BELOW_LIMIT:
        below = within(name, shares.ours, 0.0, 0.2, why, gpu=found.index)
        told = _told(found, found.looks[-1].after, ("enforced.power.limit",)).value
        if below.outcome == "differs" and shares.outcome == "agrees" and told is not None and abs(told - limit) < 1:
            other = f"{why}, and nvidia-smi counts the same share of time: another limit, as of a module, holds it"
            return not_tried(name, other, gpu=found.index)
        return below
    return not_tried(name, f"{why}: too little to meet it, too much to be far from it", gpu=found.index)
