"""Every field of a GpuSample that somebody else can tell, against them (rows.py). What moves is asked before and after.

What moves has several rounds and agrees when it does so in one of them: between two answers a GPU may do anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.model import Gap, GpuSample
from mltop.probes.system import paths
from tests.hardware import answers
from tests.hardware.asked import FIELDS, Asked
from tests.hardware.checks import Check, Told, among, between, compare, not_tried
from tests.hardware.context import Context
from tests.hardware.ours import Mltop, gap_of, value_at
from tests.hardware.rows import NOT_HERE, ROWS
from tests.hardware.rows.row import Row, number
from tests.hardware.sources import Query

ROUNDS = 3
ENERGY = "energy_j"
ENERGY_SLACK = 0.15  # of what the power makes: a few readings stand for all the time between them
ENERGY_S = 3.0  # at least: the driver counts energy about ten times a second
NOT_BY_NVML = (codes.T_LIMIT_ALONE.why, codes.GPU_OR_MEMORY.why)  # nvidia-smi has other ways to ask
HOSTS_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO of linux/proc_ns.h
HIDDEN = "nvidia-smi leaves out processes of which no name is known here: try it where the host's processes are seen"
POWER_FIELDS = ("power.draw.instant", "power.draw.average", "power.draw")
CHECKS: tuple[str, ...] = ("gpus", *dict.fromkeys(row.name for row in ROWS), ENERGY)


def run(context: Context) -> Iterator[Check]:
    query = Query(["uuid", "pci.bus_id", *POWER_FIELDS, *FIELDS])
    with Mltop() as mltop:
        rounds = [one_round(mltop, query, context) for _ in range(ROUNDS - 1)]
        gain_s = time.monotonic() - rounds[0].ended_s
        if gain_s < ENERGY_S:
            time.sleep(ENERGY_S - gain_s)
        rounds.append(one_round(mltop, query, context, raw=True))
    rounds[-1].after.with_rest(context)
    record(rounds[-1], context)
    yield from checks_of(rounds)


def checks_of(rounds: list[Round]) -> Iterator[Check]:
    told = len(rounds[-1].after.rows)
    yield compare("gpus", len(rounds[-1].gpus), Told(told), source="nvidia-smi", what="how many GPUs there are")
    for gpu in rounds[-1].gpus:
        for row in ROWS:
            yield of_row(row, gpu.index, rounds)
        yield energy(gpu.index, rounds)
    for path, why in NOT_HERE.items():
        yield not_tried(path, why)


def record(one: Round, context: Context) -> None:
    """What tests/replays.py compares again on a machine without a GPU, and the sample that mltop made of it."""
    context.record("nvidia-smi-q.xml", one.after.xml.text)
    context.record_json("sample.json", [asdict(gpu) for gpu in one.gpus])
    context.record_json("asked.json", {"before": one.before.to_json(), "after": one.after.to_json()})
    if not isinstance(one.answers, str):
        context.record_json("answers.json", one.answers)


class Round:
    """What was told before, by mltop, by NVML itself where it was asked (``answers``), and after."""

    def __init__(self, before: Asked, mltop: Mltop, began_s: float) -> None:
        self.before = before
        self.began_s, self.ended_s = began_s, time.monotonic()  # of mltop's poll
        self.gpus: list[GpuSample] = list(mltop.gpus)
        self.gaps: list[Gap] = list(mltop.gaps)
        self.answers: dict[str, Any] | str = "not asked"
        self.after = before

    def gpu(self, index: int) -> GpuSample:
        return next((gpu for gpu in self.gpus if gpu.index == index), GpuSample(index))

    def gap(self, index: int, path: str) -> Gap | None:
        return gap_of(self.gaps, index, path)


def one_round(mltop: Mltop, query: Query, context: Context, raw: bool = False) -> Round:
    before = Asked.now(query, context)
    began_s = time.monotonic()
    mltop.poll()
    found = Round(before, mltop, began_s)
    if raw:
        found.answers = answers.ask(context.pythons.mltop)
    found.after = Asked.now(query, context)
    return found


def of_row(row: Row, index: int, rounds: list[Round]) -> Check:
    """What does not move is compared once, with the last answers."""
    tried = [checked(row, index, one) for one in (rounds if row.kind != "same" else rounds[-1:])]
    agreed = [one for one in tried if one.outcome == "agrees"]
    best = (agreed or tried)[-1]
    if len(tried) > 1 and best.outcome != "not tried":
        best.details["rounds"] = f"{len(agreed)} of {len(tried)} agree"
    if best.outcome == "agrees" and row.unit == "ns" and not best.ours:
        return replace(best, why="0 on both sides proves little")
    return best


def checked(row: Row, index: int, one: Round) -> Check:
    ours, gap = row.of(one.gpu(index)), one.gap(index, row.path)
    before, after = row.read(one.before, index), row.read(one.after, index)
    if ours is None and gap is not None and gap.why in NOT_BY_NVML:
        return not_tried(row.name, f"mltop: {gap.why}", gpu=index, source=row.source)
    if row.kind == "same":
        return compare(row.name, ours, after, row.slack, row.unit, gap, gpu=index, source=row.source)
    if row.kind == "set":
        check = among(row.name, ours, before, after, gap, gpu=index, source=row.source)
        if check.outcome == "differs" and row.path == "processes" and are_hidden(ours, after.value):
            return replace(check, outcome="not tried", why=HIDDEN)
        return check
    return between(row.name, ours, before, after, row.slack, row.unit, gap, gpu=index, source=row.source)


def are_hidden(ours: list[int], theirs: list[int] | None) -> bool:
    """What nvidia-smi leaves out has a number of the host's, which is nobody's here (NVIDIA/nvidia-docker#1483)."""
    left_out = set(ours) - set(theirs or ())
    try:
        is_the_hosts = os.readlink(paths.proc("self/ns/pid")) == HOSTS_PIDS
    except OSError:
        return False
    return (
        not is_the_hosts and set(theirs or ()) < set(ours) and not any(map(os.path.exists, map(paths.proc, left_out)))
    )


def energy(index: int, rounds: list[Round]) -> Check:
    """What was used between the first and the last poll, against the least and the most power read meanwhile."""
    first, last = rounds[0], rounds[-1]
    counts = [value_at(one.gpu(index), ENERGY) for one in (first, last)]
    used = None if None in counts else counts[1] - counts[0]
    told = [_power(asked, str(index)) for one in rounds for asked in (one.before, one.after)]
    watts = [number(one.value) for one in told if one.value is not None]
    least_s, most_s = last.began_s - first.ended_s, last.ended_s - first.began_s
    low = Told(min(watts) * least_s * (1 - ENERGY_SLACK)) if watts else told[-1]
    high = Told(max(watts) * most_s * (1 + ENERGY_SLACK)) if watts else told[-1]
    source = f"nvidia-smi power.draw over {least_s:.1f} to {most_s:.1f} s, ±{ENERGY_SLACK:.0%}"
    return between(ENERGY, used, low, high, 0, "J", last.gap(index, ENERGY), gpu=index, source=source)


def _power(asked: Asked, index: str) -> Told:
    """At this moment where nvidia-smi tells it, else averaged over a second."""
    found = [asked.query.told(asked.rows, index, name) for name in POWER_FIELDS]
    return next((one for one in found if one.value is not None), found[-1])
