"""What a GPU did during a phase of load: watts, clock, heat and throttling, by differences of NVML's counters.

    meter = PhaseMeter(device)
    with meter.phase("burst"):
        ...
    result.phases, result.gaps = meter.phases, meter.gaps

NVML is called by threads of their own, one at a time, so that a call that hangs costs the measurement a second and no
more.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, TypeVar

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

T = TypeVar("T")


class _Counters(NamedTuple):
    """The counters at one end of a phase."""

    at_s: float
    energy_mj: int | None
    throttle_ns: dict[str, int]


class _Trace:
    """A phase that has begun. ``problems``: what this GPU or driver does not say, by field of Phase.

    Its edges are not sampled: a GPU that rests for a moment is back at its highest clock.
    """

    def __init__(self, gpu: Gpu, name: str) -> None:
        self.phase = Phase(name, 0.0)
        self.clocks_mhz: list[float] = []
        self.problems: dict[str, str] = {}
        self._gpu = gpu
        self._temperatures_c: list[float] = []
        for what in ("power_limit_w", "power_limit_default_w", "sm_clock_max_mhz"):
            setattr(self.phase, what, self._value(what))
        self._began = self._counters()

    def sample(self) -> None:
        for what, values in (("sm_clock_mhz", self.clocks_mhz), ("temperature_c", self._temperatures_c)):
            value = self._value(what)
            if value is not None:
                values.append(value)

    def end(self) -> None:
        """Fills ``phase``."""
        ended, began, phase = self._counters(), self._began, self.phase
        seconds = phase.seconds = ended.at_s - began.at_s
        too_short = f"too short, {seconds * 1e3:.0f} ms"
        if seconds < _LEAST_FOR_WATTS_S:
            self.problems.setdefault("power_w", too_short)
        elif began.energy_mj is not None and ended.energy_mj is not None:
            phase.power_w = self._sifted((ended.energy_mj - began.energy_mj) / 1e3 / seconds, "power_w")
        phase.throttle_share = self._throttle_share(ended)
        if self.clocks_mhz:
            phase.sm_clock_mhz = statistics.fmean(self.clocks_mhz)
        else:
            self.problems.setdefault("sm_clock_mhz", too_short)
        phase.temperature_c = max(self._temperatures_c, default=None)
        if phase.temperature_c is None:
            self.problems.setdefault("temperature_c", too_short)

    def _throttle_share(self, ended: _Counters) -> dict[str, float]:
        """Shares by reason, 0..1. A counter that gains more than time has passed, or loses, is none of nanoseconds."""
        shares, before, seconds = {}, self._began.throttle_ns, ended.at_s - self._began.at_s
        for reason in (reason for reason in ended.throttle_ns if reason in before):
            gain_s = (ended.throttle_ns[reason] - before[reason]) / 1e9
            if 0 <= gain_s <= GAIN_FACTOR * seconds + GAIN_SLACK_S:
                shares[reason] = min(1.0, gain_s / seconds)
            else:
                why = f"the driver counted {gain_s:.1f} s in {seconds:.1f} s, which is not a time"
                self.problems.setdefault(f"throttle_share.{reason}", why)
        return shares

    def _counters(self) -> _Counters:
        at_s, energy_mj = time.monotonic(), self._read(self._gpu.energy_mj, "power_w")
        return _Counters(at_s, energy_mj, self._read(self._gpu.throttle_ns, "throttle_share") or {})

    def _value(self, what: str) -> float | None:
        value = self._read(lambda: self._gpu.value(what), what)
        return None if value is None else self._sifted(value, what)

    def _read(self, read: Callable[[], Any], what: str) -> Any:
        try:
            return read()
        except NvmlError as error:
            self.problems.setdefault(what, str(error))
            return None

    def _sifted(self, value: float, what: str) -> float | None:
        """None, and a problem, for what cannot be."""
        limits = GPU[what]
        if limits.holds(value):
            return value
        why = f"the driver answered {limits.shown(value)}, which cannot be: {limits.between} are plausible"
        self.problems.setdefault(what, why)
        return None


class PhaseMeter:
    """``phases``: those that are over, in order. ``gaps``: {"phases" or "phases.power_w", …: why unknown}.

    ``driver``: its version, "" while unknown. ``clocks_mhz``: the clock's trace in phases that are over.
    """

    def __init__(self, device: ProbeDevice) -> None:
        self.phases: list[Phase] = []
        self.gaps: dict[str, str] = {}
        self.driver = ""
        self.clocks_mhz: dict[str, list[float]] = {}
        self._nvml: Nvml | None = None
        self._starts_until_s = time.monotonic() + _START_S
        self._gpu = _in_thread(lambda: self._open(device))
        self._trace: Future[_Trace] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures what is done within; a phase that raises is kept, too."""
        begun, ends = threading.Event(), threading.Event()
        wait([self._gpu], max(0.0, self._starts_until_s - time.monotonic()))
        traced: Future[_Trace] | None = None
        is_idle = self._trace is None or self._trace.done()  # nobody waits again for a call that hangs
        if self._gpu.done() and self._gpu.exception() is None and is_idle:
            traced = self._trace = _in_thread(lambda: _traced(self._gpu.result(), name, begun, ends))
            begun.wait(_ANSWER_S)
        started_s = time.monotonic()
        try:
            yield
        finally:
            phase = Phase(name, time.monotonic() - started_s)
            ends.set()
            has_ended = traced is not None and (begun.is_set() or traced.done()) and wait([traced], _ANSWER_S).done
            error = traced.exception() if traced is not None and has_ended else None
            if error is not None:  # costs what is measured beside the probe, not the probe
                self.gaps.setdefault("phases", f"{type(error).__name__}: {error}")
            elif traced is not None and has_ended:
                trace = traced.result()
                phase = trace.phase
                self.clocks_mhz[name] = trace.clocks_mhz
                for what, why in trace.problems.items():
                    self.gaps.setdefault(f"phases.{what}", f"{why} (in {name})")
            elif "phases" not in self.gaps:
                error = self._gpu.exception() if self._gpu.done() else None
                call = self._nvml.calling if self._nvml is not None else "nvmlInit_v2"
                silence = f"NVML does not answer, stuck in {call}" if call else "NVML does not answer"
                self.gaps["phases"] = silence if error is None else str(error)
            self.phases.append(phase)

    def _open(self, device: ProbeDevice) -> Gpu:
        if device.kind == "cpu":
            raise NvmlError("power, clock and heat are read of GPUs only")
        self._nvml = Nvml()
        self.driver = self._nvml.driver
        return self._nvml.gpu(device.uuid)


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Done by a thread that nobody has to wait for; what it raises is the future's."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, name="phases", daemon=True).start()
    return future


def _traced(gpu: Gpu, name: str, begun: threading.Event, ends: threading.Event) -> _Trace:
    trace, wait_s = _Trace(gpu, name), _FIRST_SAMPLE_S
    begun.set()
    while not ends.wait(wait_s):
        wait_s = SAMPLE_S
        trace.sample()
    trace.end()
    return trace


def still_heating(clocks_mhz: Sequence[float]) -> bool | None:
    """Whether the last third of a clock trace is more than 2 % below the first; None for a short trace."""
    if len(clocks_mhz) < _LEAST_FOR_HEATING:
        return None
    third = len(clocks_mhz) // 3
    return statistics.fmean(clocks_mhz[-third:]) < 0.98 * statistics.fmean(clocks_mhz[:third])
