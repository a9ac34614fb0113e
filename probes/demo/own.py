"""What the demo's agent reads of this machine: the demo's own processes, the host and its ports.

Other people's jobs run beside a demo, also on GPUs: whoever shows the demo around, be it as root, must neither see nor
stop them, and what is known of real GPUs must not get among the made-up ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Callable

from mltop.probes.agent.sampler import Collectors
from mltop.probes.collect.dcgm import DcgmSource
from mltop.probes.collect.host import HostSource
from mltop.probes.collect.kernel_log import KernelLogSource
from mltop.probes.collect.pci import PciSource
from mltop.probes.collect.ranks import RankSource
from mltop.probes.model import Gap, GpuSample, HostSample, KernelEvent, PciDevice, RankSample

OF_GPUS = "nvidia"  # services and modules


def only_own(pids: Callable[[], list[int]]) -> Collectors:
    """``pids``: the ranks' processes, as they are when it is called."""
    return Collectors(NoDcgm(), HostWithoutOthers(), RankSource(only=pids), pci=NoPci(), kernel_log=NoKernelLog())


class HostWithoutOthers(HostSource):
    """Without the names of others' processes, and without the services of GPUs that the simulated ones do not need."""

    def read(self, now: float, ranks: Sequence[RankSample] = ()) -> tuple[HostSample, list[Gap]]:
        host, gaps = super().read(now, ranks)
        own = {pid for rank in ranks for pid in (rank.pid, *rank.children)}
        return replace(
            host,
            blocked=[process for process in host.blocked if process.pid in own],
            services={name: state for name, state in host.services.items() if not name.startswith(OF_GPUS)},
            modules={name: loaded for name, loaded in host.modules.items() if not name.startswith(OF_GPUS)},
            nvidia_driver=None,
        ), gaps


class NoDcgm(DcgmSource):
    """An exporter on this machine speaks of its real GPUs."""

    def fill(self, gpus: list[GpuSample], now: float) -> list[Gap]:  # noqa: ARG002
        return []


class NoPci(PciSource):
    def read(self, now: float) -> tuple[list[PciDevice], list[Gap]]:  # noqa: ARG002
        return [], []


class NoKernelLog(KernelLogSource):
    """Its Xids are of real GPUs, and it names the processes of others."""

    def read(self, now: float) -> tuple[list[KernelEvent], list[Gap]]:  # noqa: ARG002
        return [], []
