"""Samples of what decides whether a node is free for a probe: GPUs, ranks, processors. For an agent without a loop."""

from __future__ import annotations

import time

from mltop.probes.agent.sampler import GpuSource, gpus_of_pid, guarded, without_gpus
from mltop.probes.collect.host import HostSource
from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.collect.pci import PciSource
from mltop.probes.collect.ranks import RankSource
from mltop.probes.model import Gap, GpuSample, HostSample, PciDevice, RankSample, Sample

WAIT_S = 0.5


class BriefSampler:
    """Reads NVML in a child process of its own, which ``close`` ends."""

    def __init__(self, node: str, gpu_source: GpuSource | None = None) -> None:
        self._node = node
        self._gpus: GpuSource = gpu_source or NvmlSource()
        self._host, self._ranks, self._pci = HostSource(), RankSource(), PciSource()

    def sample(self, now: float) -> Sample:
        """At ``now`` (unix s)."""
        clock_s = time.monotonic()
        self._gpus.request(now)
        pci, _ = guarded("pci", lambda: self._pci.read(clock_s), list[PciDevice])
        gpus, gaps = guarded("gpus", lambda: self._read_gpus(now), list[GpuSample])
        ranks, _ = guarded("ranks", lambda: self._ranks.read(clock_s, gpus_of_pid(gpus)), list[RankSample])
        host, _ = guarded("host", lambda: self._host.read(clock_s, ranks), HostSample)
        return Sample(self._node, now, gpus=gpus, ranks=ranks, host=host, pci=pci, gaps=without_gpus(gaps, pci))

    def _read_gpus(self, now: float) -> tuple[list[GpuSample], list[Gap]]:
        return self._gpus.collect(now, WAIT_S)

    def close(self) -> None:
        self._gpus.close()
        self._host.close()
