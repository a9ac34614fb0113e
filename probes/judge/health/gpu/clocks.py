"""Clocks and power limits of busy GPUs, against those of their peers: same model, same job, same load."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from mltop.probes.judge.health.names import clock_and_heat, gpu_name
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import SYMPTOM, THROTTLE, Hit, Moment, Rule, once_per_moment
from mltop.probes.model import GpuSample, Sample

BUSY = 0.9
SLOWER = 0.85  # of the median of its peers
PEERS_AT_LEAST = 4  # it is one of them
# GPUs that wait in a collective are "busy" too, at full clock and little power. One that draws so much more than its
# peers does other work, and its lower clock is the price of it.
SAME_POWER = 1.3
LOWER_LIMIT = 0.95

CLOCK, POWER, LIMIT = "gpu.sm_clock_mhz.busy", "gpu.power_w.busy", "gpu.power_limit_w"


def low_busy(moment: Moment) -> Iterator[Hit]:
    for gpu in moment.now.gpus:
        usual = peer_clock(moment, gpu, SLOWER)
        if usual is None or gpu.sm_clock_mhz is None:
            continue
        slower = 1 - gpu.sm_clock_mhz / usual
        text = f"GPU {gpu.index} runs {slower:.0%} slower than its peers{clock_and_heat(gpu)}"
        reasons = ", ".join(gpu.throttle_reasons or ()) or "none"
        evidence = (f"median of its peers: {usual / 1000:.2f} GHz", f"reasons that the driver gives: {reasons}")
        yield Hit(gpu_name(gpu.index), text, evidence)


def peer_clock(moment: Moment, gpu: GpuSample, share: float) -> float | None:
    """The median SM clock (MHz) of the peers of a busy GPU whose own is below ``share`` of it; else None."""
    clock = gpu.sm_clock_mhz
    if gpu.busy is None or gpu.busy < BUSY or clock is None or gpu.state != "ok":
        return None
    top = gpu.sm_clock_max_mhz
    if top is not None and clock >= share * top:
        return None  # no peer is faster than the maximum
    group = _group(gpu.name, _jobs_of(moment).get(gpu.index) or moment.now.node)
    usual = moment.peers.median(CLOCK, group, PEERS_AT_LEAST)
    if usual is None or clock >= share * usual.value:
        return None
    power = moment.peers.median(POWER, group, PEERS_AT_LEAST)
    if power is not None and gpu.power_w is not None and gpu.power_w > SAME_POWER * power.value:
        return None
    return float(usual.value)


def limit_low(moment: Moment) -> Iterator[Hit]:
    usual, of_name = None, ""
    for gpu in moment.now.gpus:
        limit, default = gpu.power_limit_w, gpu.power_limit_default_w
        if limit is None:
            continue
        if gpu.name != of_name:
            of_name = gpu.name or ""
            found = moment.peers.median(LIMIT, of_name, PEERS_AT_LEAST)
            usual = None if found is None else found.value
        below_default = default is not None and limit <= LOWER_LIMIT * default
        below_peers = usual is not None and limit <= LOWER_LIMIT * usual
        if below_default or below_peers:
            yield _limit_low(moment, gpu, limit, usual, below_peers)


def _limit_low(moment: Moment, gpu: GpuSample, limit: float, usual: float | None, below_peers: bool) -> Hit:
    """What a whole fleet has is a decision that somebody made."""
    name = gpu_name(gpu.index)
    default = gpu.power_limit_default_w
    if below_peers:
        text = f"{name} capped at {limit:.0f} W, peers {usual:.0f} W"
    else:
        text = f"{name} capped at {limit:.0f} W, default {default:.0f} W"
    of_all = not below_peers and usual is not None and moment.peers.nodes >= 3
    evidence = ("as most GPUs of its model",) if of_all else ()
    back = default if default is not None else usual
    action = f"sudo nvidia-smi -i {gpu.index} -pl {back:.0f}" if back is not None else ""
    return Hit(name, text, evidence, severity="info" if of_all else "", action=action)


def facts(sample: Sample) -> Iterator[Fact]:
    """Of GPUs that are at work: clock and power, by model and job; of all: the power limit, by model."""
    jobs: dict[int, str] | None = None
    for gpu in sample.gpus:
        if gpu.state != "ok":
            continue
        if gpu.power_limit_w is not None:
            yield LIMIT, gpu.name or "", gpu.power_limit_w
        if gpu.busy is None or gpu.busy < BUSY or gpu.sm_clock_mhz is None:
            continue
        jobs = _jobs(sample) if jobs is None else jobs
        group = _group(gpu.name, jobs.get(gpu.index) or sample.node)
        yield CLOCK, group, gpu.sm_clock_mhz
        if gpu.power_w is not None:
            yield POWER, group, gpu.power_w


@once_per_moment
def _jobs_of(moment: Moment) -> dict[int, str]:
    return _jobs(moment.now)


def _jobs(sample: Sample) -> dict[int, str]:
    """The job of each GPU that a rank is known to use, and whose it is. Where none is known, the node's own GPUs are
    the peers.
    """
    return {index: f"{rank.job} of {rank.uid}" for rank in sample.ranks if rank.job for index in rank.gpus}


@lru_cache(maxsize=4096)
def _group(name: str | None, job: str) -> str:
    return f"{name or ''} in {job}"


FACTS = facts

RULES = (
    Rule(
        "gpu.power.limit_low",
        "warning",
        0.0,
        "sudo nvidia-smi -pl",
        limit_low,
        meaning="the GPU may draw less power than its default, or than its peers",
        threshold="≥ 5 %* below either; info where most GPUs of 3 or more nodes have it",
        source="nvmlDeviceGetEnforcedPowerLimit; compared with GPUs of the same model",
        needs=("gpu.*.power_limit_w",),
        clear_s=30.0,
        precedence=THROTTLE,
        explains=("gpu.throttle.power_cap", "gpu.clock.low_busy"),
        whole_node=("The power limit of all {count} GPUs is lowered", "nvidia-smi -q -d POWER; sudo nvidia-smi -pl"),
    ),
    Rule(
        "gpu.clock.low_busy",
        "warning",
        60.0,
        "look at its temperature, power limit and throttle reasons; if none of them tells: dcgmi diag -r 3",
        low_busy,
        meaning="the GPU works at a lower clock than its peers, and nothing says why",
        threshold="busy ≥ 90 %, SM clock < 0.85 × the median of ≥ 4 peers, at ≤ 1.3 × their power*, for 60 s*",
        source="nvmlDeviceGetClockInfo; compared with GPUs of the same model in the same job",
        needs=("gpu.*.sm_clock_mhz", "gpu.*.busy"),
        eager=False,
        precedence=SYMPTOM,
        whole_node=(
            "All {count} GPUs slower than those of the other nodes in their job",
            "look at the node's power and cooling",
        ),
    ),
)
