"""What the GPU's units really do, from GPM counters: never more than four calls per GPU and poll.

Three polls in four take a sample (one call) and compute SM, tensor and DRAM activity (three). The fourth computes up to
four of the others from the sample of the poll before: occupancy and FP pipes in one such poll, PCIe in the next, and
NVLink with it where its own counters do not work. At one poll per second the first three are averages over one second
(two after such a poll) and at most one second old; the others are averages over eight seconds, renewed every eight.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from mltop.probes.collect.nvml import codes, gpm, gpm_words, pcie
from mltop.probes.collect.nvml.calls import Calls, NvmlError
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device, Problem, Reading
from mltop.probes.collect.nvml.gpm_track import SHORTEST_S, Group, Plan, Track
from mltop.probes.collect.nvml.modes import Modes
from mltop.probes.collect.nvml.nvlink import Links

MAIN = Group((gpm.SM, gpm.TENSOR, gpm.DRAM))
PIPES = Group((gpm.OCCUPANCY, gpm.FP64, gpm.FP32, gpm.FP16), takes_sample=False)
PCIE = Group((gpm.PCIE_RX, gpm.PCIE_TX), takes_sample=False)
ALL_TRAFFIC = Group((gpm.PCIE_RX, gpm.PCIE_TX, gpm.NVLINK_RX, gpm.NVLINK_TX), takes_sample=False)


def plan_with(traffic: Group) -> Plan:
    return Plan((MAIN, PIPES, MAIN, traffic), (MAIN, MAIN, MAIN, PIPES, MAIN, MAIN, MAIN, traffic))


PLAN, PLAN_WITHOUT_NVLINK = plan_with(ALL_TRAFFIC), plan_with(PCIE)
FIELDS = tuple(metric.name for metric in PLAN.metrics() if not metric.is_rate)
ALL_FIELDS = gpm_words.fields(*FIELDS)
# By the metric's name: bytes/s as seen from the GPU.
PCIE_RATES = {gpm.PCIE_RX.name: "pcie.rx_bytes_per_s", gpm.PCIE_TX.name: "pcie.tx_bytes_per_s"}
NVLINK_RATES = {gpm.NVLINK_RX.name: "nvlink.rx_bytes_per_s", gpm.NVLINK_TX.name: "nvlink.tx_bytes_per_s"}
# A GPU in MIG mode is sampled less often: its instances take their share of the calls.
MIG_PACE_S = 3.9


class _Gpu:
    """What is kept for one GPU."""

    def __init__(self, device: Device, plan: Plan, track: Track) -> None:
        self.device = device
        self.plan = plan
        self.track = track
        self.support_known_until_s = 0.0
        self.without_gpm: Problem | None = None


class ActivityReader:
    """Keeps the samples of every GPU that its metrics are made of. For one thread."""

    def __init__(self, calls: Calls) -> None:
        self._gpm = gpm.Gpm(calls)
        self._gpus: dict[int, _Gpu] = {}

    def read(self, device: Device) -> Reading:
        """``sm_active`` … and ``activity_source`` ("gpm"), as fractions 0..1, None with a problem where unknown.

        Also ``pcie.rx_bytes_per_s`` and ``tx``, and those of ``nvlink`` where its own counters, which are a second
        fresh, do not tell them. Raises NvmlError when the GPU or the library is
        gone.
        """
        reading = Reading()
        reading.attempt((ALL_FIELDS,), partial(self._read, device, reading))
        if ALL_FIELDS in reading.problems:
            problem = pcie_problem(reading.problems[ALL_FIELDS])
            reading.problems.update(dict.fromkeys(PCIE_RATES.values(), problem))
        return reading

    def catch_up(self, device: Device) -> None:
        """Take the second sample of a GPU at once, and compute all that it has no value of yet."""
        kept = self._gpus.get(device.index)
        if kept is not None and kept.device is device and kept.without_gpm is None:
            kept.track.catch_up(time.monotonic())

    def forget(self, device: Device) -> None:
        """Free what is kept for a GPU that is gone, without a call on it."""
        kept = self._gpus.pop(device.index, None)
        if kept is not None:
            kept.track.release()

    def shut_down(self) -> None:
        """Free all samples, before the library is shut down."""
        for kept in list(self._gpus.values()):
            self.forget(kept.device)

    def _read(self, device: Device, reading: Reading) -> dict[str, Any]:
        kept = self._kept(device)
        now_s = time.monotonic()
        if now_s >= kept.support_known_until_s:
            self._ask(kept)
            kept.support_known_until_s = now_s + ASK_AGAIN_S
        problem = kept.without_gpm
        if problem is None:
            kept.track.poll(now_s, MIG_PACE_S if device.state(Modes).mig_enabled else SHORTEST_S)
            problem = kept.track.problem
        if problem is not None:
            reading.problems[ALL_FIELDS] = problem
            return {}
        return take_values(kept.track, kept.plan, reading)

    def _kept(self, device: Device) -> _Gpu:
        links = device.state(Links)
        plan = PLAN_WITHOUT_NVLINK if links.counts_traffic or links.count == 0 else PLAN
        kept = self._gpus.get(device.index)
        # Another GPU at this index, this one came back, or NVLink's own counters have started or stopped working.
        if kept is None or kept.device is not device or kept.plan is not plan:
            self.forget(device)
            kept = self._gpus[device.index] = _Gpu(device, plan, Track(self._gpm, device, plan))
        return kept

    def _ask(self, kept: _Gpu) -> None:
        """What changes only with the driver."""
        kept.without_gpm = None
        try:
            if not self._gpm.is_supported(kept.device):
                kept.without_gpm = gpm_words.NEEDS_HOPPER
        except NvmlError as failure:
            if failure.code == codes.NO_PERMISSION:
                return  # sampling will say so, and is asked again sooner
            if failure.code != codes.NOT_SUPPORTED:
                raise
            kept.without_gpm = gpm_words.NEEDS_HOPPER


def take_values(track: Track, plan: Plan, reading: Reading) -> dict[str, Any]:
    """The values of a track by field; problems of single fields go into ``reading``."""
    values: dict[str, Any] = {}
    pending = []
    for name in FIELDS:
        if name in track.values:
            values[name] = track.values[name]
        elif name in track.problems:
            reading.problems[name] = track.problems[name]
        else:
            pending.append(name)
    if pending:
        reading.problems[gpm_words.fields(*pending)] = gpm_words.STARTING
    if values:
        values["activity_source"] = "gpm"
    rates = {**PCIE_RATES, **NVLINK_RATES} if plan is PLAN else PCIE_RATES
    for name, field in rates.items():
        if name in track.values:
            values[field] = track.values[name]
        else:
            problem = track.problems.get(name, gpm_words.STARTING)
            reading.problems[field] = pcie_problem(problem) if name in PCIE_RATES else problem
    return values


def left_out() -> Reading:
    """Where GPM got stuck: nothing of it is called for now."""
    reading = Reading()
    reading.problems.update(dict.fromkeys((ALL_FIELDS, *PCIE_RATES.values()), "GPM got stuck and is left out for now"))
    return reading


def pcie_problem(problem: Problem) -> Problem:
    """Why PCIe traffic is unknown where GPM does not tell it: nothing else does."""
    is_unsupported = not isinstance(problem, str) and (problem[0] == "unsupported" or problem[1] in codes.UNSUPPORTED)
    return pcie.TRAFFIC_NEEDS_GPM if is_unsupported else problem
