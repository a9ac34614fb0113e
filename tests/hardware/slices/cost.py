"""What mltop costs here: calls of NVML and their times, the agent's CPU and memory, and what it takes from a GEMM.

cost_checks.py says what may be.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from tests.cpu import children_of, family_cpu_s, pss_mib
from tests.hardware import cost_checks as judged
from tests.hardware.checks import Check, NotTriedError
from tests.hardware.children import Agent, script
from tests.hardware.context import Context
from tests.hardware.cost_checks import Calls, Cost, Usage, When, Window
from tests.hardware.loads import Load, free_gpu

CHECKS = judged.CHECKS
GPUS_S = 60.0  # nvmlInit without persistence mode
END_S = 15.0  # to be left for the agent's end and the verdicts
USUAL_LEFT_S = 400.0  # from there on nothing is shortened
SHORT_LEFT_S = 45.0


@dataclass(frozen=True)
class Plan:
    """``settle_s``: from the agent's first sample of GPUs until it only repeats itself. ``windows`` of ``window_s``
    each; the load tells its rate every ``report_s``.
    """

    settle_s: float = 8.0
    agent_s: float = 30.0
    polls: int = 65  # the rarest tier has its turn every 60 s
    pace_s: float = 0.5
    windows: int = 28
    window_s: float = 5.0
    window_settle_s: float = 2.0
    report_s: float = 0.5
    gemm_first: bool = False

    @classmethod
    def of(cls, left_s: float) -> Plan:
        """For less time fewer windows; for much less, what shows only that it can be measured."""
        if left_s >= USUAL_LEFT_S:
            return cls()
        if left_s >= USUAL_LEFT_S / 2:
            return cls(agent_s=15.0, pace_s=0.2, windows=8)
        if left_s >= SHORT_LEFT_S:  # what a GEMM loses is told by long windows alone
            return cls(1.0, 2.0, 12, 0.12, 8, 1.5, 0.5, 0.2, gemm_first=True)
        return cls(0.2, 0.5, 12, 0.12, 8, 0.4, 0.0, 0.1)


def run(context: Context) -> Iterator[Check]:
    """With a load on one GPU, as what the agent costs is hardly a matter of which."""
    chosen = free_gpu(context)
    found, plan = Cost(), Plan.of(context.left_s())
    try:
        yield from measured(context, found, chosen["uuid"], plan)
    finally:
        context.record_json("cost.json", asdict(found))


def measured(context: Context, found: Cost, uuid: str, plan: Plan) -> Iterator[Check]:
    """Fills ``found``, and yields what is known."""
    if not plan.gemm_first:
        yield from of_state(context, found, "idle", plan)
    why = context.machine.gaps.get("torch", "")
    try:
        if why:
            raise NotTriedError(why)
        with Load(context, "bf16", uuid, plan.report_s) as load:
            if not plan.gemm_first:
                yield from of_state(context, found, "load", plan)
            found.windows = windows(context, plan, load)
            found.windows_why = ""
            yield judged.effect(found)
            if plan.gemm_first:
                yield from of_state(context, found, "load", plan)
    except NotTriedError as reason:
        if "load" not in found.calls:
            found.calls["load"], found.usage["load"] = Calls(str(reason)), Usage(str(reason))
            yield from (*judged.of_calls(found, "load"), *judged.of_usage(found, "load"))
        if not found.windows:
            found.windows_why = str(reason)
            yield judged.effect(found)
    if plan.gemm_first:
        yield from of_state(context, found, "idle", plan)
    yield from judged.of_tiers(found)


def of_state(context: Context, found: Cost, when: When, plan: Plan) -> Iterator[Check]:
    found.calls[when] = calls(context, plan)
    yield from judged.of_calls(found, when)
    found.usage[when] = usage(context, plan)
    yield from judged.of_usage(found, when)


def calls(context: Context, plan: Plan) -> Calls:
    """Every call of mltop's own reader, timed in a process of its own."""
    limit_s = GPUS_S + 3 * (1 + plan.polls) * plan.pace_s
    try:
        with script(context, "nvml_timer_child.py", str(plan.polls), f"{plan.pace_s:g}") as child:
            if not child.wait(lambda: bool(child.told), limit_s):
                return Calls(f"mltop's NVML reader did not come to its end: {child.why()}")
            told = dict(child.told[-1][1])
    except NotTriedError as reason:
        return Calls(str(reason))
    told.pop("event")
    return Calls("", **told)


# In a process of its own, which does nothing but load NVML and ask each GPU: how much larger it is afterwards, in MiB.
NVML_ALONE = """
import ctypes
def pss_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:"))
count, handle, events, room = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(256)
before = pss_kib()
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
nvml.nvmlEventSetCreate(ctypes.byref(events))
for index in range(count.value):
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
        nvml.nvmlDeviceRegisterEvents(handle, ctypes.c_ulonglong(8), events)  # Xids
        nvml.nvmlDeviceGetUtilizationRates(handle, room)
        nvml.nvmlDeviceGetMemoryInfo(handle, room)
print((pss_kib() - before) / 1024)
"""


def nvml_mib() -> float | None:
    done = subprocess.run(
        [sys.executable, "-c", NVML_ALONE], capture_output=True, text=True, timeout=GPUS_S, check=False
    )
    return float(done.stdout) if done.returncode == 0 else None


def usage(context: Context, plan: Plan) -> Usage:
    """The agent at one sample a second, with all its processes."""
    alone_mib = nvml_mib()
    try:
        with Agent(context) as agent:
            agent.wait_for_gpus(GPUS_S)
            time.sleep(plan.settle_s)
            found = used_by(agent.pid, plan.agent_s)
            agent.check_alive()
            found.nvml_mib = alone_mib
            return found
    except (NotTriedError, OSError) as reason:
        return Usage(str(reason))


def used_by(pid: int, seconds: float) -> Usage:
    """OSError when it has ended."""
    began_s, before_s = time.monotonic(), family_cpu_s(pid)
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    found = Usage("", took_s, (family_cpu_s(pid) - before_s) / took_s)
    parts = []
    try:
        parts.append(pss_mib(pid))
    except OSError as error:
        found.pss_why = f"the kernel does not tell what memory it shares: {error}"
        return found
    for child in children_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            parts.append(pss_mib(child))
    found.pss_mib = sum(parts)
    return found


def windows(context: Context, plan: Plan, load: Load) -> list[Window]:
    """Without, with, with, without, without, …: a rate that drifts counts for both alike, and there are pairs that
    differ in nothing. NotTriedError when the load or the agent has ended.
    """
    spans: list[tuple[bool, float, float]] = []
    agent: Agent | None = None
    try:
        for number in range(plan.windows):
            if context.left_s() < 2 * plan.window_s + plan.window_settle_s + END_S:
                break
            is_with = number % 4 in (1, 2)
            if is_with and agent is None:
                agent = Agent(context)
                agent.__enter__()
                agent.wait_for_gpus(GPUS_S)
                time.sleep(plan.window_settle_s)
            elif agent is not None and not is_with:
                agent.close()
                agent = None
                time.sleep(plan.window_settle_s / 2)
            began_s = time.monotonic()
            time.sleep(plan.window_s)
            spans.append((is_with, began_s, time.monotonic()))
            load.check_alive()
            if agent is not None:
                agent.check_alive()
    finally:
        if agent is not None:
            agent.close()
    time.sleep(2 * plan.report_s)  # what the load says of the last one
    rates = [(is_with, rate_of(load, began_s, ended_s)) for is_with, began_s, ended_s in spans]
    return [Window(is_with, rate) for is_with, rate in rates if rate is not None]


def rate_of(load: Load, began_s: float, ended_s: float) -> float | None:
    """Of all that the load has told that lies within these times."""
    told = [
        (rate, until_s - since_s)
        for rate, (since_s, until_s) in zip(list(load.rates), list(load.spans), strict=False)
        if since_s >= began_s and until_s <= ended_s
    ]
    return sum(rate * seconds for rate, seconds in told) / sum(seconds for _, seconds in told) if told else None
