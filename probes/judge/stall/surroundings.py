"""What changed on the nodes of a job beside its pace: clocks, throttling, ports, disks, memory, other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from mltop.probes.judge.stall.job import Job
from mltop.probes.judge.values import median_of
from mltop.probes.model import LinkSample, Sample
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_words, counted, percent_words, rate_words

EVERY_S, APART_S, KEPT = 60.0, 600.0, 7
SLOWER_CLOCK = 0.95
STRAGGLING_CLOCK = 0.93  # of the job's median
PRESSURE, LOAD = 0.10, 0.25  # more than before: of the time, of the cores
MEMORY_LEFT = 0.05
SWAPPING_BYTES_PER_S = 1e6
LEAST_ERRORS = 10
MOST_NAMED, MOST_LINES = 2, 10
_ERRORS = ("err", "discard", "retrans", "downed", "out_of_sequence", "timeout")
_NO_THROTTLE = frozenset({"gpu_idle", "none"})


@dataclass(frozen=True)
class Port:
    rate_bits_per_s: float | None
    state: str | None
    errors: int


@dataclass(frozen=True)
class Surroundings:
    """Of one node at one time. ``clocks``, ``throttled``: by GPU."""

    at: float
    clocks: Mapping[int, int] = field(default_factory=dict)
    throttled: Mapping[int, frozenset[str]] = field(default_factory=dict)
    ports: Mapping[str, Port] = field(default_factory=dict)
    io_wait: float | None = None
    memory_left: float | None = None
    swapped_bytes_per_s: float | None = None
    load: float | None = None
    cores: int | None = None


class History:
    """The surroundings of every node: now, and every ten minutes of the last hour."""

    def __init__(self) -> None:
        self._now: dict[str, Surroundings] = {}
        self._past: dict[str, deque[Surroundings]] = {}

    def see(self, sample: Sample, at: float) -> None:
        now = self._now.get(sample.node)
        if now is not None and at - now.at < EVERY_S:
            return
        past = self._past.setdefault(sample.node, deque(maxlen=KEPT))
        if now is not None and (not past or now.at - past[-1].at >= APART_S):
            past.append(now)
        self._now[sample.node] = _read(sample, at, now)

    def forget(self, node: str) -> None:
        self._now.pop(node, None)
        self._past.pop(node, None)

    def beside(self, nodes: Iterable[str], since: float) -> list[str]:
        """What changed on these nodes since then, a line each."""
        pairs: list[tuple[str, Surroundings, Surroundings]] = []
        for node in nodes:
            now = self._now.get(node)
            before = next((past for past in reversed(self._past.get(node, ())) if past.at <= since), None)
            if now is not None and before is not None:
                pairs.append((node, before, now))
        return [*_clock_lines(pairs), *_node_lines(pairs)][:MOST_LINES]

    def stragglers(self, job: Job) -> Ranges:
        """Ranks whose GPU runs at a lower clock than those of the others, or is throttled alone."""
        clocks: dict[int, int] = {}
        for node, track in job.tracks():
            now = self._now.get(node)
            if now is not None and track.gpu is not None and track.rank is not None and track.rank >= 0:
                clock = now.clocks.get(track.gpu)
                if clock is not None:
                    clocks[track.rank] = clock
        usual = median_of(clocks.values()) or 0.0
        slow = [rank for rank, clock in clocks.items() if clock < STRAGGLING_CLOCK * usual]
        return Ranges.of(slow if len(slow) <= len(clocks) // 4 else [])


def _read(sample: Sample, at: float, before: Surroundings | None) -> Surroundings:
    """What is as it was before is kept once."""
    throttled: Mapping[int, frozenset[str]] = {
        gpu.index: frozenset(gpu.throttle_reasons or ()) - _NO_THROTTLE for gpu in sample.gpus
    }
    ports: Mapping[str, Port] = {
        link.device if link.port == 1 else f"{link.device}/{link.port}": _port(link) for link in sample.links
    }
    if before is not None:
        throttled = before.throttled if throttled == before.throttled else throttled
        ports = before.ports if ports == before.ports else ports
    host = sample.host
    total, available = host.memory_total_bytes, host.memory_available_bytes
    swapped = [rate for rate in (host.swap_in_bytes_per_s, host.swap_out_bytes_per_s) if rate is not None]
    return Surroundings(
        at,
        {gpu.index: gpu.sm_clock_mhz for gpu in sample.gpus if gpu.sm_clock_mhz is not None},
        throttled,
        ports,
        host.pressure.io_some,
        available / total if total and available is not None else None,
        sum(swapped) if swapped else None,
        host.load_1m,
        host.cpu_count,
    )


def _port(link: LinkSample) -> Port:
    errors = sum(count for name, count in link.counters.items() if any(part in name for part in _ERRORS))
    return Port(link.rate_bits_per_s, link.state, errors)


_Pairs = list[tuple[str, Surroundings, Surroundings]]


def _clock_lines(pairs: _Pairs) -> Iterable[str]:
    slowed: list[tuple[str, int, int, int]] = []
    throttled: list[tuple[str, int, str]] = []
    for node, before, now in pairs:
        for gpu, clock in now.clocks.items():
            usual = before.clocks.get(gpu)
            if usual is not None and clock < SLOWER_CLOCK * usual:
                slowed.append((node, gpu, usual, clock))
        for gpu, reasons in now.throttled.items():
            new = reasons - before.throttled.get(gpu, frozenset())
            if new:
                throttled.append((node, gpu, ", ".join(sorted(new))))
    if len(slowed) <= MOST_NAMED:
        for node, gpu, usual, clock in slowed:
            yield f"SM clock of GPU {gpu} of {node}: {clock_words(usual)} before, {clock_words(clock)} now"
    else:
        usual_mhz, clock_mhz = median(entry[2] for entry in slowed), median(entry[3] for entry in slowed)
        where = counted(len({entry[0] for entry in slowed}), "node")
        words = f"{clock_words(usual_mhz)} before, {clock_words(clock_mhz)} now"
        yield f"SM clocks of {counted(len(slowed), 'GPU')} on {where}: {words}"
    if len(throttled) <= MOST_NAMED:
        for node, gpu, why in throttled:
            yield f"GPU {gpu} of {node} is throttled: {why}"
    else:
        where = counted(len({entry[0] for entry in throttled}), "node")
        yield f"{counted(len(throttled), 'GPU')} on {where} are throttled: {throttled[0][2]}"


def _node_lines(pairs: _Pairs) -> Iterable[str]:
    for node, before, now in pairs:
        for name, port in now.ports.items():
            earlier = before.ports.get(name)
            if earlier is not None:
                yield from _port_lines(f"{name} of {node}", earlier, port)
        if now.io_wait is not None and now.io_wait >= (before.io_wait or 0.0) + PRESSURE:
            yield f"tasks of {node} wait for disks {percent_words(now.io_wait)} of the time"
        left = now.memory_left
        if (
            left is not None
            and left < MEMORY_LEFT
            and (before.memory_left is None or before.memory_left >= MEMORY_LEFT)
        ):
            yield f"{percent_words(left)} of the memory of {node} is left"
        swapped = now.swapped_bytes_per_s or 0.0
        if swapped >= SWAPPING_BYTES_PER_S > (before.swapped_bytes_per_s or 0.0):
            yield f"{node} swaps, {rate_words(swapped)}"
        more = (now.load or 0.0) - before.load if before.load is not None else 0.0
        if now.cores and more >= LOAD * now.cores:
            yield f"load of {node} on {now.cores} cores: {before.load:.0f} before, {now.load:.0f} now"


def _port_lines(name: str, before: Port, now: Port) -> Iterable[str]:
    if before.rate_bits_per_s and now.rate_bits_per_s and now.rate_bits_per_s < before.rate_bits_per_s:
        yield f"{name}: {before.rate_bits_per_s / 1e9:.0f} Gb/s before, {now.rate_bits_per_s / 1e9:.0f} Gb/s now"
    if before.state != now.state and now.state is not None:
        yield f"{name} is {now.state}"
    if now.errors - before.errors >= LEAST_ERRORS:
        yield f"{name}: {now.errors - before.errors} errors more"
