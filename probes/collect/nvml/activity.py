"""What the GPU's units really do, from GPM counters: never more than four calls per GPU and poll.

Three polls in four take a sample (one call) and compute SM, tensor and DRAM activity (three). The fourth computes four
of the others from the sample of the poll before: occupancy and FP pipes in one such poll, PCIe and NVLink in the next.
At one poll per second the first three are averages over one second (two after such a poll) and at most one second old;
the others are averages over eight seconds, renewed every eight.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from mltop.probes.collect.nvml import codes, gpm, gpm_words
from mltop.probes.collect.nvml.calls import Calls, NvmlError
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device, Problem, Reading
from mltop.probes.collect.nvml.gpm_track import SHORTEST_S, Group, Plan, Track
from mltop.probes.collect.nvml.modes import Modes

MAIN = Group((gpm.SM, gpm.TENSOR, gpm.DRAM))
PIPES = Group((gpm.OCCUPANCY, gpm.FP64, gpm.FP32, gpm.FP16), takes_sample=False)
TRAFFIC = Group((gpm.PCIE_RX, gpm.PCIE_TX, gpm.NVLINK_RX, gpm.NVLINK_TX), takes_sample=False)
PLAN = Plan((MAIN, PIPES, MAIN, TRAFFIC), (MAIN, MAIN, MAIN, PIPES, MAIN, MAIN, MAIN, TRAFFIC))
FIELDS = tuple(metric.name for metric in PLAN.metrics() if not metric.is_rate)
ALL_FIELDS = gpm_words.fields(*FIELDS)
# A GPU in MIG mode is sampled less often: its instances take their share of the calls.
MIG_PACE_S = 3.9


class _Gpu:
    """What is kept for one GPU."""

    def __init__(self, device: Device, track: Track) -> None:
        self.device = device
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

        Also ``activity_rates``: {"pcie": [rx, tx], "nvlink": [rx, tx]} in bytes/s as seen from the GPU. A pair is
        left out where GPM has neither, without a problem: counters of other functions say the same.
        Raises NvmlError when the GPU or the library is gone.
        """
        reading = Reading()
        reading.attempt((ALL_FIELDS,), partial(self._read, device, reading))
        return reading

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
        kept = self._gpus.get(device.index)
        if kept is None or kept.device is not device:  # another GPU at this index, or this one came back
            self.forget(device)
            kept = self._gpus[device.index] = _Gpu(device, Track(self._gpm, device, PLAN))
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
        return take_values(kept.track, reading)

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


def take_values(track: Track, reading: Reading) -> dict[str, Any]:
    """The values of a track by field; problems of single fields go into ``reading``."""
    for name in FIELDS:
        if name in track.problems:
            reading.problems[name] = track.problems[name]
    pending = [metric.name for metric in track.pending() if not metric.is_rate]
    if pending:
        reading.problems[gpm_words.fields(*pending)] = gpm_words.STARTING
    values: dict[str, Any] = {name: track.values[name] for name in FIELDS if name in track.values}
    if values:
        values["activity_source"] = "gpm"
    rates = {}
    for link in ("pcie", "nvlink"):
        pair = [track.values.get(f"{link}_rx"), track.values.get(f"{link}_tx")]
        if pair != [None, None]:
            rates[link] = pair
    if rates:
        values["activity_rates"] = rates
    return values
