"""GPM as mltop's agent tells it under known loads, started one after the other; activity_checks.py says what must be.

Beside it: NVML asked directly by a program of ours, nvidia-smi's own reading, and the agent of an ordinary user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mltop.probes.model import Gap
from tests.hardware import activity_checks as judged
from tests.hardware.activity_checks import LOADS, LONG, METRICS, SLOW, SMI_METRICS, Activity, Nvml, Under, View
from tests.hardware.checks import Check, NotTriedError, not_tried
from tests.hardware.children import NOBODY, Agent, Speaker, rights_of, script, why_not_as
from tests.hardware.context import Context
from tests.hardware.loads import Load, LoadKind, free_gpus
from tests.hardware.ours import gap_of
from tests.hardware.sources import Query, SmiError, smi_gpm

CHECKS = judged.CHECKS
START_S = 8.0  # of torch, for each load
GPUS_S = 60.0  # nvmlInit without persistence mode
USUAL_S, SHORTEST_S = 0.5, 0.12  # between two of the agent's samples; GPM wants a tenth of a second
# Of the samples after a load's begin those that are averages of times before it: of what is renewed with (nearly) every
# sample, and of the rest, which has its turn with every eighth.
SKIP, SKIP_SLOW = 2, 16
LEAST, USUAL = 2, 5  # values of a load
SETTLE_S = 1.2  # GPU-Util is of up to a second
NEWS_S = 30.0
END_S = 10.0  # to be left for what comes after the last load
SMI_SECONDS = 6  # of which the first two tell nothing
NOT_GPM = "it has this from DCGM, whose values are too old for a load of some seconds"
CAP_SYS_ADMIN = 1 << 21
SAVED = ("busy", "power_w", "sm_clock_mhz", *METRICS, *(name for name in SLOW if name not in METRICS))
RATED: tuple[LoadKind, ...] = ("host", "copy", "bf16")


@dataclass(frozen=True)
class Plan:
    """``is_long``: some loads stay for long enough for all that mltop tells."""

    interval_s: float
    is_long: bool
    values: int = LEAST

    @classmethod
    def of(cls, left_s: float) -> Plan:
        each_s = 0.8 * left_s / len(LOADS) - START_S
        if each_s >= (SKIP_SLOW + USUAL) * USUAL_S + SETTLE_S:
            return cls(USUAL_S, True, USUAL)
        return cls(SHORTEST_S, each_s >= (SKIP_SLOW + LEAST) * SHORTEST_S)


def run(context: Context) -> Iterator[Check]:
    """One GPU: what GPM says is a matter of driver and model, and each has eight loads."""
    (chosen, *_), whys = free_gpus(context)
    found = Activity(chosen["index"], chosen["name"], as_whom=whom())
    try:
        yield from measured(context, found, chosen["uuid"], Plan.of(context.left_s()))
    finally:
        context.record_json(f"activity-{found.index}.json", asdict(found))
    for index in (gpu["index"] for gpu in context.machine.gpus if gpu["index"] != found.index):
        yield not_tried("other GPUs", whys.get(index) or "one GPU is enough for what a driver says", gpu=index)


def whom() -> str:
    """What GPM may depend on."""
    text = Path("/proc/self/status").read_text()
    rights = int(next((line.split()[1] for line in text.splitlines() if line.startswith("CapEff:")), "0"), 16)
    name = "root" if os.geteuid() == 0 else "an ordinary user"
    where = " in a container" if any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))) else ""
    return f"as {name} {'with' if rights & CAP_SYS_ADMIN else 'without'} CAP_SYS_ADMIN{where}"


def measured(context: Context, found: Activity, uuid: str, plan: Plan, other: int = NOBODY) -> Iterator[Check]:
    """Fills ``found``, and yields what is known."""
    with ExitStack() as stack:
        own = stack.enter_context(Watch(context, found.index, uuid, plan.interval_s))
        found.own = own.view()
        found.memory_bytes_per_s = own.memory_bytes_per_s()
        yield judged.of_view(found, "gpm", found.own)
        for kind in LOADS:
            watches = [own]
            if kind == "bf16":
                found.other.why = why_not_as(context, other)
                if not found.other.why:
                    watches += other_user(context, stack, found, uuid, plan.interval_s, other)
            told = under(context, found.index, uuid, kind, plan, watches)
            found.loads[kind] = told[0]
            found.other_under = told[1] if len(told) > 1 else found.other_under
            yield from judged.of_load(found, kind)
    yield from judged.of_all(found)


def other_user(
    context: Context, stack: ExitStack, found: Activity, uuid: str, interval_s: float, user: int
) -> list[Watch]:
    """The agent of another user, as far as it tells of GPUs; else ``found.other`` says why not."""
    try:
        watch = stack.enter_context(Watch(context, found.index, uuid, interval_s, user))
    except NotTriedError as reason:
        found.other.why = f"as uid {user}: {reason}"
        return []
    if rights_of(watch.agent.pid, user) != "none":
        found.other.why = f"the agent has kept rights of root's as uid {user}"
        return []
    found.other = watch.view()
    return [watch]


class Watch:
    """mltop's agent and NVML asked directly, both by one user. NotTriedError where the agent tells of no GPU."""

    def __init__(self, context: Context, index: int, uuid: str, interval_s: float, user: int | None = None) -> None:
        self.index = index
        self.agent = Agent(context, interval_s, user)
        try:
            self.nvml: Speaker = script(context, "gpm_child.py", uuid, f"{max(interval_s, 0.15):g}", user=user)
        except NotTriedError:
            self.agent.close()
            raise

    def __enter__(self) -> Watch:
        self.agent.__enter__()
        self.nvml.__enter__()
        try:
            self.agent.wait_for_gpus(GPUS_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.nvml.close()
        self.agent.close()

    def samples(self, since_at: float = 0.0) -> list[tuple[float, dict[str, Any], dict[str, Any]]]:
        """(CLOCK_MONOTONIC at arrival, the GPU, the whole sample), of polls after ``since_at`` (unix s), each once."""
        found, seen_at = [], since_at
        for arrived_s, sample in list(self.agent.told):
            for gpu in sample.get("gpus", ()):
                if gpu["index"] == self.index and (gpu.get("last_seen_at") or 0) > seen_at:
                    seen_at = gpu["last_seen_at"]
                    found.append((arrived_s, gpu, sample))
        return found

    def gap(self, sample: dict[str, Any], name: str) -> Gap | None:
        """Why it tells no such value of this GPU."""
        return gap_of([Gap(**gap) for gap in sample.get("gaps", ())], self.index, name)

    def view(self) -> View:
        """How GPM stands, once mltop and NVML have said so."""
        self.agent.wait(lambda: self._stands(), NEWS_S)
        self.nvml.wait(lambda: bool(self._said("metrics")) or not self._is_supported(), NEWS_S)
        if not self.samples():
            raise NotTriedError("mltop's agent tells of other GPUs, but not of this one")
        view, (_, gpu, sample) = View(), self.samples()[-1]
        view.source = gpu.get("activity_source")
        gap = self.gap(sample, "sm_active")
        view.gap = None if gap is None or view.source else asdict(gap)
        support, taken = self._said("support"), self._said("metrics")
        if support:
            sample_code = taken[-1]["code"] if taken else None
            view.nvml = Nvml(support[0]["code"], support[0]["supported"], sample_code, "")
        else:
            view.nvml.why = self.nvml.why()
        return view

    def memory_bytes_per_s(self) -> float | None:
        said = self._said("memory")
        found: float | None = said[0]["bytes_per_s"] if said else None
        return found

    def taken(self, since_s: float, until_s: float) -> list[dict[str, Any]]:
        """What NVML said of spans of time that lie between these."""
        return [
            one["metrics"]
            for one in self._said("metrics")
            if one["code"] == 0 and one["began_s"] >= since_s and one["ended_s"] <= until_s
        ]

    def wait_for(self, samples: int, since_s: float, since_at: float) -> None:
        """So many new samples, and something of NVML. NotTriedError when they do not come."""
        self.agent.check_alive()
        if not self.agent.wait(lambda: len(self.samples(since_at)) >= samples, NEWS_S):
            raise NotTriedError(f"mltop's agent told fewer than {samples} samples of this GPU within {NEWS_S:g} s")
        if self.has_gpm():
            self.nvml.wait(lambda: bool(self.taken(since_s, time.monotonic())), NEWS_S)

    def has_gpm(self) -> bool:
        said = self._said("metrics")
        return bool(said) and said[-1]["code"] == 0

    def _said(self, event: str) -> list[dict[str, Any]]:
        return [told for _, told in list(self.nvml.told) if told["event"] == event]

    def _is_supported(self) -> bool:
        support = self._said("support")
        return not support or support[0]["supported"] is not False

    def _stands(self) -> bool:
        """mltop tells activity, or why not for good."""
        newest = self.samples()[-1:]
        if not newest:
            return False
        gap = self.gap(newest[0][2], "sm_active")
        return newest[0][1].get("sm_active") is not None or (gap is not None and gap.kind != "starting")


def under(context: Context, index: int, uuid: str, kind: LoadKind, plan: Plan, watches: list[Watch]) -> list[Under]:
    """What each of these saw under one load."""
    why = context.machine.gaps.get("torch", "")
    try:
        if why:
            raise NotTriedError(why)
        if context.left_s() < START_S + (SKIP_SLOW + plan.values) * plan.interval_s + END_S:
            raise NotTriedError("no time was left for this load: torch takes long to start")
        with Load(context, kind, uuid) as load:
            return watched(index, kind, plan, watches, load)
    except NotTriedError as reason:
        return [Under(str(reason)) for _ in watches]


def watched(index: int, kind: LoadKind, plan: Plan, watches: list[Watch], load: Load) -> list[Under]:
    began_s, began_at = time.monotonic(), time.time()
    found = [Under(is_long=plan.is_long and kind in LONG, smi_why="") for _ in watches]
    if kind == "bf16" and watches[0].has_gpm():
        ask_smi_gpm(index, found[0])
    wanted = (SKIP_SLOW if found[0].is_long else SKIP) + plan.values
    if plan.is_long and ("busy" in (metric for load_kind, metric in judged.BANDS if load_kind == kind)):
        found[0].is_settled = True
        wait_until_s(watches[0].agent, began_s + (0 if kind == "idle" else SETTLE_S))
    watches[0].wait_for(wanted, began_s, began_at)
    for one, watch in zip(found[1:], watches[1:], strict=True):
        try:
            watch.wait_for(wanted, began_s, began_at)
        except NotTriedError as reason:
            one.why = str(reason)
    ask_smi(index, found[0])
    ended_s = time.monotonic()
    while kind in RATED and not load.gpu_rates and time.monotonic() < ended_s + NEWS_S:
        load.check_alive()
        time.sleep(0.02)
    load.check_alive()
    for one, watch in zip(found, watches, strict=True):
        take(one, watch, began_s, began_at, ended_s, SETTLE_S if found[0].is_settled and kind != "idle" else 0.0)
        one.gpu_rate = load.gpu_rates[-1] if load.gpu_rates else None
    return found


def wait_until_s(agent: Agent, until_s: float) -> None:
    """Also the newest sample is of after that."""
    agent.wait(lambda: bool(agent.told) and agent.told[-1][0] > until_s, until_s - time.monotonic() + NEWS_S)


def take(one: Under, watch: Watch, began_s: float, began_at: float, ended_s: float, settle_s: float) -> None:
    samples = watch.samples(began_at)
    one.samples = [
        {"after_s": round(arrived_s - began_s, 3), **{name: _value(gpu, name) for name in SAVED}}
        for arrived_s, gpu, _ in samples
    ]
    for name in SAVED:
        late = samples[SKIP_SLOW if name in SLOW else SKIP :]
        if name == "busy":
            late = [one for one in samples if one[0] >= began_s + settle_s][-LEAST:]
        values = [_value(gpu, name) for _, gpu, _ in late]
        if name in METRICS and any(gpu.get("activity_source") not in ("gpm", None) for _, gpu, _ in late):
            one.series[name], one.gaps[name] = [], asdict(Gap(name, NOT_GPM))
            continue
        one.series[name] = [value for value in values if value is not None]
        gap = watch.gap(samples[-1][2], name) if samples and not one.series[name] else None
        if gap is not None:
            one.gaps[name] = asdict(gap)
    for name, number in METRICS.items():
        told = [metrics[str(number)][1] for metrics in watch.taken(began_s, ended_s)]
        one.nvml[name] = [value / 100 for value in told if value is not None]


def _value(gpu: dict[str, Any], path: str) -> float | None:
    name, _, key = path.partition(".")
    found = gpu.get(name)
    return found.get(key) if key and found is not None else found


def ask_smi(index: int, one: Under) -> None:
    query = Query(["utilization.gpu"])
    try:
        told = query.told(query.ask(), str(index), "utilization.gpu")
    except SmiError as reason:
        one.smi_why = str(reason)
        return
    one.smi_why = told.why
    if told.value is not None:
        one.smi_busy = float(told.value) / 100


def ask_smi_gpm(index: int, one: Under) -> None:
    """Some seconds of nvidia-smi's own, under a load that does not change."""
    numbers = tuple(sorted(METRICS[name] for name in SMI_METRICS))
    try:
        told = smi_gpm(index, SMI_SECONDS, numbers)
    except SmiError as reason:
        one.smi_why = str(reason)
        return
    one.smi_gpm = {name: [value / 100 for value in told[METRICS[name]]] for name in SMI_METRICS}
