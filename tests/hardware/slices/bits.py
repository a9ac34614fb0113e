"""mltop's bit checker for five minutes: the same GEMM again and again, every eighth output compared with the first.

It is the sustained stage of the matmul probe, asked of the agent for as long as there is time; how long that was is
told. nvidia-smi says beside it whether the GPU worked all the while.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.hardware.checks import Check, NotTriedError, Told, compare, not_tried, ratio, within
from tests.hardware.context import Context
from tests.hardware.loads import free_gpu
from tests.hardware.probing import Answer, Event, matmul_options, probe
from tests.hardware.watching import Watch, Watched

LOAD_S = 300.0
START_S = 25.0  # of a probe's process: torch from a slow disk
LEAST_S = 5.0
TWICE_S = 150.0  # with less time there is no second process
SHORT_S = {"warm": 0.5, "scan": 0.5, "burst": 0.5, "sustained": 0.5}
MORE_S = 60.0  # until the stage counts as hung
EVERY = 8  # GEMMs for one comparison (README)
# All GEMMs take their time at the sustained rate, but for the comparisons between them, about 1 %; the first and last
# groups and the events' way to us are a second or so.
CHECKED_LOW, CHECKED_HIGH = 0.85, 1.05
EVENTS_S = 5.0  # how much later than in the probe its events may come to us
LEAST_BUSY = 95.0
PAUSE_S = 1.0
CHECKS: tuple[str, ...] = (
    "corrupt_iterations",
    "checked_iterations",
    "seconds",
    "busy (nvidia-smi)",
    "checksum (again)",
    "upload_intact",
)


@dataclass
class Measured:
    """``short``: another process before, for the same checksum, where there is time. ``asked_s``: of the sustained
    stage.
    """

    index: int
    uuid: str
    asked_s: float
    short: Answer | None
    long: Answer
    watch: Watched

    @property
    def result(self) -> dict[str, Any]:
        return self.long.result(self.uuid) or {}

    @property
    def lasted_s(self) -> float | None:
        """By our clock."""
        begun, over = self.long.began("sustained"), self.long.began("check")
        return None if begun is None or over is None else over - begun


def run(context: Context) -> Iterator[Check]:
    twice = context.left_s() > TWICE_S
    seconds = min(LOAD_S, context.left_s() - (2 if twice else 1) * START_S)
    if seconds < LEAST_S:
        raise NotTriedError("there is no time for it: --minutes 1, or more")
    yield from checks_of(measured(context, seconds, twice))


def measured(context: Context, seconds: float, twice: bool = True) -> Measured:
    gpu = free_gpu(context)
    options = {**matmul_options("bf16"), "seconds": SHORT_S}
    short = None
    if twice:
        short = probe(context, "matmul", [gpu["uuid"]], options)
        short.check_begun()
        free_gpu(context, gpu["uuid"])
    watch = Watch(gpu["index"], ["utilization.gpu", "power.draw", "temperature.gpu", "clocks.sm"], PAUSE_S)

    def on_event(event: Event) -> None:
        if event.event == "stage" and event.stage == "sustained":
            watch.start()
        elif event.event == "stage" and event.stage == "check":
            watch.stop()

    options["seconds"] = {**SHORT_S, "sustained": seconds}
    with watch.running():
        deadlines_s = {"sustained": seconds + MORE_S}
        long = probe(context, "matmul", [gpu["uuid"]], options, deadlines_s, on_event)
    long.check_begun()
    found = Measured(gpu["index"], gpu["uuid"], seconds, short, long, watch)
    context.record_json("bits.json", asdict(found))
    return found


def checks_of(found: Measured) -> Iterator[Check]:
    result, details = found.result, {"gpu": found.index}
    corrupt, checked = result.get("corrupt_iterations"), result.get("checked_iterations")
    lasted_s = found.lasted_s
    about = f"{checked} outputs compared, {result.get('checked_pflop', 0):.3g} PFLOP, in {lasted_s or 0:.0f} s"
    if corrupt:
        about += ": either this GPU computes wrong (see its ECC errors and the kernel's log) or the checker does"
    if not checked:
        corrupt, about = None, f"nothing was compared: mltop: {found.long.why_nothing}"
    yield within("corrupt_iterations", corrupt, 0, 0, about, source="expected", **details)
    yield _checked(found, checked)
    phase = found.long.phase(found.uuid, "sustained").get("seconds")
    name, slack = "seconds", EVENTS_S + 0.02 * found.asked_s
    check = compare(name, phase, Told(lasted_s) if lasted_s else _none(found), slack, "s", **details)
    if phase is not None and phase < 0.9 * found.asked_s:
        why = f"it was asked for {found.asked_s:.0f} s"
        check = Check(name, "differs", phase, found.asked_s, why, "s", details)
    yield check
    busy = found.watch.told("utilization.gpu", over=statistics.median)
    why = f"utilization.gpu, the median of {len(found.watch.rows)} answers while it checked"
    if busy.value is None:
        yield not_tried("busy (nvidia-smi)", busy.why, **details)
    else:
        yield within("busy (nvidia-smi)", busy.value, LEAST_BUSY, 100, why, "%", source="expected", **details)
    source, again = "another process before it", _checksum_before(found)
    yield compare("checksum (again)", result.get("checksum") or None, again, source=source, **details)
    yield compare("upload_intact", result.get("upload_intact"), Told(True), source="expected", **details)


def _checked(found: Measured, checked: int | None) -> Check:
    """As many comparisons as the rate makes GEMMs in the time that we have seen pass."""
    result, lasted_s = found.result, found.lasted_s
    rate, shape = result.get("sustained_tflops"), result.get("sustained_shape")
    theirs = _none(found)
    if rate and shape and lasted_s:
        gemms = rate * 1e12 * lasted_s / (2 * shape[0] * shape[1] * shape[2])
        theirs = Told(gemms / EVERY + (result.get("iterations", 0) - 1) // EVERY)
    why = f"of one in {EVERY} GEMMs at the sustained rate, for {lasted_s or 0:.0f} s by our clock, and of the burst's"
    low, high, none = CHECKED_LOW, CHECKED_HIGH, found.long.why_nothing
    return ratio("checked_iterations", checked, theirs, low, high, why, "outputs", none, gpu=found.index)


def _checksum_before(found: Measured) -> Told:
    if found.short is None:
        return Told(why="there was no time for a second process")
    checksum = (found.short.result(found.uuid) or {}).get("checksum")
    return Told(checksum) if checksum else Told(why=f"mltop: {found.short.why_nothing}")


def _none(found: Measured) -> Told:
    return Told(why=f"mltop: {found.long.why_nothing}")
