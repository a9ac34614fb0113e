"""What a GPU did during a phase of load: watts, clock, heat and throttling, by differences of NVML's counters.

    meter = PhaseMeter(device)
    with meter.phase("burst"):
        ...
    result.phases, result.gaps = meter.phases, meter.gaps

All NVML calls are made by one thread of the meter, so that one that hangs costs the measurement a second and no more.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable

from mltop.probes.active.nvml import Gpu, Nvml, NvmlError
from mltop.probes.model.nvml_fields import GAIN_FACTOR, GAIN_SLACK_S
from mltop.probes.model.plausible import GPU
from mltop.probes.model.probe import Phase, ProbeDevice

SAMPLE_S = 0.1
_FIRST_SAMPLE_S = 0.05
_ANSWER_S = 1.0
_START_S = 3.0  # nvmlInit without persistence mode
_LEAST_FOR_WATTS_S = 0.25  # the energy counter is renewed every 20 to 100 ms
_LEAST_FOR_HEATING = 6  # samples of a trace
# By field of Phase.
_RANGES = {
    name: GPU[name]
    for name in (
        *("power_w", "power_limit_w", "power_limit_default_w"),
        *("temperature_c", "sm_clock_mhz", "sm_clock_max_mhz"),
    )
}


@dataclass
class _Edge:
    """The counters at one end of a phase."""

    at_s: float
    energy_mj: int | None = None
    throttle_ns: dict[str, int] = field(default_factory=dict)


@dataclass
class _Running:
    """A phase that has begun; ``problems`` by field of Phase."""

    phase: Phase
    began: _Edge
    next_s: float
    clocks_mhz: list[float] = field(default_factory=list)
    temperatures_c: list[float] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


class PhaseMeter:
    """``phases``: those that are over, in order. ``gaps``: {"phases" or "phases.power_w", …: why unknown}.

    ``driver``: its version, "" while unknown.
    """

    def __init__(self, device: ProbeDevice) -> None:
        self.phases: list[Phase] = []
        self.gaps: dict[str, str] = {}
        self.driver = ""
        self._uuid = device.uuid
        self._clocks_mhz: dict[str, list[float]] = {}
        self._nvml: Nvml | None = None
        # The name of the phase that begins, "" for the end of the one that runs, and who waits for the answer.
        self._requests: queue.SimpleQueue[tuple[str, Future[_Running | None]] | None] = queue.SimpleQueue()
        self._problem = ""
        self._starts_until_s = time.monotonic() + _START_S
        self._ready = threading.Event()
        self._answer: Future[_Running | None] | None = None
        self._thread: threading.Thread | None = None
        if device.kind == "cpu":
            self._problem = "power, clock and heat are read of GPUs only"
            self._ready.set()
            return
        self._thread = threading.Thread(target=self._serve, name="phases", daemon=True)
        self._thread.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Also a phase that raises is kept."""
        self._ready.wait(max(0.0, self._starts_until_s - time.monotonic()))
        is_begun = self._ask(name) is not None
        started_s = time.monotonic()
        try:
            yield
        finally:
            phase = Phase(name, time.monotonic() - started_s)
            ended = self._ask("") if is_begun else None
            over = ended.result() if ended is not None else None
            if over is not None:
                phase = over.phase
                self._clocks_mhz[name] = over.clocks_mhz
                for what, why in over.problems.items():
                    self.gaps.setdefault(f"phases.{what}", f"{why} (in {name})")
            elif "phases" not in self.gaps:
                self.gaps["phases"] = self._why_nothing()
            self.phases.append(phase)

    def still_heating(self, name: str) -> bool | None:
        """Of a phase that is over; None where its clock is not known."""
        return still_heating(self._clocks_mhz.get(name, ()))

    def close(self) -> None:
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(_ANSWER_S)

    def _ask(self, name: str) -> Future[_Running | None] | None:
        """None when there is no answer: then nobody waits again before the thread is back."""
        if self._problem or not self._ready.is_set() or (self._answer is not None and not self._answer.done()):
            return None
        self._answer = Future()
        self._requests.put((name, self._answer))
        wait([self._answer], _ANSWER_S)
        return self._answer if self._answer.done() else None

    def _why_nothing(self) -> str:
        if self._problem:
            return self._problem
        call = self._nvml.calling if self._nvml is not None else "nvmlInit_v2"
        return f"NVML does not answer, stuck in {call}" if call else "NVML does not answer"

    def _serve(self) -> None:
        """The thread."""
        try:
            self._nvml = Nvml()
            self.driver = self._nvml.driver
            gpu = self._nvml.gpu(self._uuid)
        except (OSError, NvmlError) as error:
            self._problem = str(error)
            return
        finally:
            self._ready.set()
        running: _Running | None = None
        while True:
            try:
                wait_s = None if running is None else max(0.0, running.next_s - time.monotonic())
                request = self._requests.get(timeout=wait_s)
            except queue.Empty:
                if running is not None:
                    self._sample(gpu, running)
                continue
            if request is None:
                return
            name, answer = request
            if name:
                running = _begin(gpu, name)
                answer.set_result(None)
            else:
                if running is not None:
                    _end(gpu, running)
                answer.set_result(running)
                running = None

    def _sample(self, gpu: Gpu, running: _Running) -> None:
        """Edges of a phase are not sampled: a GPU that rests for a moment is back at its highest clock."""
        running.next_s = time.monotonic() + SAMPLE_S
        _append(running.clocks_mhz, gpu.sm_clock_mhz, running, "sm_clock_mhz")
        _append(running.temperatures_c, gpu.temperature_c, running, "temperature_c")


def still_heating(clocks_mhz: Sequence[float]) -> bool | None:
    """Whether the last third of a clock trace is more than 2 % below the first; None for a short trace."""
    if len(clocks_mhz) < _LEAST_FOR_HEATING:
        return None
    third = len(clocks_mhz) // 3
    return statistics.fmean(clocks_mhz[-third:]) < 0.98 * statistics.fmean(clocks_mhz[:third])


def _begin(gpu: Gpu, name: str) -> _Running:
    phase = Phase(name, 0.0)
    running = _Running(phase, _Edge(0.0), 0.0)
    for what in ("power_limit_w", "power_limit_default_w", "sm_clock_max_mhz"):
        setattr(phase, what, _value(getattr(gpu, what), running, what))
    running.began = _edge(gpu, running)
    running.next_s = running.began.at_s + _FIRST_SAMPLE_S
    return running


def _end(gpu: Gpu, running: _Running) -> None:
    ended, began, phase = _edge(gpu, running), running.began, running.phase
    seconds = phase.seconds = ended.at_s - began.at_s
    if seconds < _LEAST_FOR_WATTS_S:
        running.problems.setdefault("power_w", f"too short, {seconds * 1e3:.0f} ms")
    elif began.energy_mj is not None and ended.energy_mj is not None:
        phase.power_w = _sifted((ended.energy_mj - began.energy_mj) / 1e3 / seconds, running, "power_w")
    phase.throttle_share = _throttle_share(began, ended, running)
    if running.clocks_mhz:
        phase.sm_clock_mhz = statistics.fmean(running.clocks_mhz)
    else:
        running.problems.setdefault("sm_clock_mhz", f"too short, {seconds * 1e3:.0f} ms")
    phase.temperature_c = max(running.temperatures_c, default=None)
    if phase.temperature_c is None:
        running.problems.setdefault("temperature_c", f"too short, {seconds * 1e3:.0f} ms")


def _throttle_share(began: _Edge, ended: _Edge, running: _Running) -> dict[str, float]:
    """By reason, 0..1. A counter that gains more than time has passed, or loses, is none of nanoseconds."""
    shares, seconds = {}, ended.at_s - began.at_s
    for reason, nanoseconds in ended.throttle_ns.items():
        gain_s = (nanoseconds - began.throttle_ns.get(reason, nanoseconds)) / 1e9
        if reason not in began.throttle_ns:
            continue
        if 0 <= gain_s <= GAIN_FACTOR * seconds + GAIN_SLACK_S:
            shares[reason] = min(1.0, gain_s / seconds)
        else:
            why = f"the driver counted {gain_s:.1f} s in {seconds:.1f} s, which is not a time"
            running.problems.setdefault(f"throttle_share.{reason}", why)
    return shares


def _edge(gpu: Gpu, running: _Running) -> _Edge:
    return _Edge(
        time.monotonic(),
        _read(gpu.energy_mj, running, "power_w"),
        _read(gpu.throttle_ns, running, "throttle_share") or {},
    )


def _append(values: list[float], read: Callable[[], float], running: _Running, what: str) -> None:
    value = _value(read, running, what)
    if value is not None:
        values.append(value)


def _read(read: Callable[[], Any], running: _Running, what: str) -> Any:
    """None, and the problem noted, for what this GPU or driver does not say."""
    try:
        return read()
    except NvmlError as error:
        running.problems.setdefault(what, str(error))
        return None


def _value(read: Callable[[], float], running: _Running, what: str) -> Any:
    """As ``_read``, also for what cannot be."""
    value = _read(read, running, what)
    return None if value is None else _sifted(value, running, what)


def _sifted(value: float, running: _Running, what: str) -> float | None:
    """None, and the problem noted, for what cannot be."""
    limits = _RANGES[what]
    if limits.holds(value):
        return value
    why = f"the driver answered {limits.shown(value)}, which cannot be: {limits.between} are plausible"
    running.problems.setdefault(what, why)
    return None
