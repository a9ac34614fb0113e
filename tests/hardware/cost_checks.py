"""What mltop may cost, and whether it does: how the slice `cost` judges."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.bench import goals
from tests.hardware.checks import Check, not_tried, within

When = Literal["idle", "load"]
WHEN: dict[When, str] = {"idle": "the GPU idle", "load": "under a bf16 GEMM"}
# Of mltop's reader (probes/collect/nvml/reader.py): what is read with every sample, and what less often.
EVERY_SECOND = ("devices", "fast", "activity", "events")
SLOWER = (
    "static",  # once
    *("other_processes", "processes", "health", "nvlink", "margin", "pcie"),
    *("fabric", "mig_mode", "mig", "modes", "sram", "repair"),
)
# What takes so long mltop leaves out (nvmlDeviceGetPcieThroughput: MangoHud#2104), as the driver's others wait for it.
CALL_MS, SLOWER_CALL_MS = 20.0, 100.0
GPM_ONCE = 12  # calls per GPU with which the second poll computes every metric
POLL_MS = 250.0  # for so long the agent waits for NVML with each sample (probes/agent/sampler.py)
LEAST_PAIRS = 4
EFFECT = "effect on a GEMM"
CHECKS: tuple[str, ...] = (
    *(f"NVML calls per GPU and second ({when})" for when in WHEN),
    *(f"NVML time of a poll ({when})" for when in WHEN),
    *(f"NVML time of {tier}" for tier in (*EVERY_SECOND, *SLOWER)),
    *(f"agent CPU ({when})" for when in WHEN),
    *(f"agent memory ({when})" for when in WHEN),
    EFFECT,
)


@dataclass
class Calls:
    """As nvml_timer_child.py tells it. ``why``: nothing was told."""

    why: str = "it was not measured"
    gpus: int = 0
    polls: int = 0
    per_gpu: list[int] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    polls_s: list[float] = field(default_factory=list)
    slower: list[str] = field(default_factory=list)  # tiers


@dataclass
class Usage:
    """Of the agent with all its processes over ``seconds``. ``why``: what is None was not measured."""

    why: str = "it was not measured"
    seconds: float = 0.0
    cpu_share: float | None = None  # of one core
    pss_mib: float | None = None
    pss_why: str = ""
    nvml_mib: float | None = None  # of it the driver's library: what it takes in a process that does nothing else


@dataclass
class Window:
    """Some seconds of a GEMM that goes on all the time."""

    with_agent: bool
    rate: float  # FLOP a second


@dataclass
class Cost:
    calls: dict[str, Calls] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    windows_why: str = "it was not measured"

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Cost:
        """From its record (dataclasses.asdict, as JSON)."""
        return cls(
            {when: Calls(**one) for when, one in saved["calls"].items()},
            {when: Usage(**one) for when, one in saved["usage"].items()},
            [Window(**one) for one in saved["windows"]],
            saved["windows_why"],
        )


def checks_of(found: Cost) -> Iterator[Check]:
    for when in WHEN:
        yield from of_calls(found, when)
        yield from of_usage(found, when)
    yield from of_tiers(found)
    yield effect(found)


def of_calls(found: Cost, when: When) -> Iterator[Check]:
    calls = found.calls.get(when) or Calls()
    names = (f"NVML calls per GPU and second ({when})", f"NVML time of a poll ({when})")
    if calls.why or not calls.polls or not calls.per_gpu:
        yield from (not_tried(name, calls.why or "no GPU was read") for name in names)
        return
    most = max(calls.per_gpu) / calls.polls
    allowed = goals.NVML_CALLS + GPM_ONCE / calls.polls
    yield within(names[0], most, 0, allowed, f"{WHEN[when]}, over {calls.polls} polls")
    told = f"{WHEN[when]}: median {milliseconds(calls.polls_s, 50):.3g} ms, p99 of {calls.polls} polls"
    yield within(names[1], milliseconds(calls.polls_s, 99), 0, POLL_MS, told, "ms", gpus=calls.gpus)


def of_tiers(found: Cost) -> Iterator[Check]:
    """p99 of one call, of whichever state of the GPU it is worse in."""
    for tier in (*EVERY_SECOND, *SLOWER):
        name = f"NVML time of {tier}"
        by_when = {when: calls.seconds[tier] for when, calls in found.calls.items() if calls.seconds.get(tier)}
        if not by_when:
            whys = [calls.why for calls in found.calls.values() if calls.why]
            yield not_tried(name, whys[0] if whys else "it makes no call here")
            continue
        told = "; ".join(
            f"{when}: {len(seconds)} calls, median {milliseconds(seconds, 50):.3g} ms, p99"
            f" {milliseconds(seconds, 99):.3g} ms"
            for when, seconds in by_when.items()
        )
        worst = max(milliseconds(seconds, 99) for seconds in by_when.values())
        yield within(name, worst, 0, CALL_MS if tier in EVERY_SECOND else SLOWER_CALL_MS, told, "ms")


def of_usage(found: Cost, when: When) -> Iterator[Check]:
    usage = found.usage.get(when) or Usage()
    told = f"{WHEN[when]}, over {usage.seconds:.0f} s"
    if usage.cpu_share is None:
        yield not_tried(f"agent CPU ({when})", usage.why)
    else:
        percent = 100 * usage.cpu_share
        yield within(f"agent CPU ({when})", percent, 0, goals.AGENT_CPU_PERCENT, told, "% of a core")
    if usage.pss_mib is None:
        yield not_tried(f"agent memory ({when})", usage.pss_why or usage.why)
    elif usage.nvml_mib is None:
        why = f"{usage.pss_mib:.1f} MiB in all: how much of it NVML takes by itself was not measured"
        yield not_tried(f"agent memory ({when})", why)
    else:
        told += f", PSS: {usage.pss_mib:.1f} MiB less {usage.nvml_mib:.1f} MiB that NVML takes in any process"
        ours = usage.pss_mib - usage.nvml_mib
        yield within(f"agent memory ({when})", ours, 0, goals.AGENT_PSS_MIB, told, "MiB")


def effect(found: Cost) -> Check:
    """By windows side by side, of which one has the agent; beside it, how far those are apart that are alike."""
    pairs = list(zip(found.windows, found.windows[1:], strict=False))
    unlike = [_ratio(one, other) for one, other in pairs if one.with_agent != other.with_agent]
    alike = [other.rate / one.rate for one, other in pairs if one.with_agent == other.with_agent]
    if len(unlike) < LEAST_PAIRS or len(alike) < LEAST_PAIRS - 1:
        why = found.windows_why or f"there was time for {len(found.windows)} windows only: give it more --minutes"
        return not_tried(EFFECT, why)
    middle = statistics.median(unlike)
    percent = 100 * (1 - middle)
    noise = 100 * max(_spread(alike, 1.0), _spread(unlike, middle))
    margin = 2 * 1.25 * noise / len(unlike) ** 0.5  # twice the standard error of a median
    told = (
        f"{percent:.3f} % ± {margin:.3f} % by {len(unlike)} pairs of windows with and without the agent;"
        f" pairs that are alike are {noise:.3f} % apart"
    )
    if percent - margin <= goals.GEMM_PERCENT < percent + margin:
        return not_tried(EFFECT, f"the GEMM's own rate varies too much to tell: {told}")
    return within(EFFECT, percent, None, goals.GEMM_PERCENT, told, "%")


def _ratio(one: Window, other: Window) -> float:
    """Of the rates with and without the agent."""
    with_agent, without = (one, other) if one.with_agent else (other, one)
    return with_agent.rate / without.rate


def _spread(values: list[float], middle: float) -> float:
    """A standard deviation that single outliers do not decide."""
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


def milliseconds(seconds: list[float], percentile: int) -> float:
    """The nearest rank; of few values the largest."""
    ranked = sorted(seconds)
    return 1000 * ranked[min(len(ranked) - 1, len(ranked) * percentile // 100)]
