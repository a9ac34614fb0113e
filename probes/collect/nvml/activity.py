"""What the GPU's units really do: GPM counters."""

from __future__ import annotations

from mltop.probes.collect.nvml.calls import Calls
from mltop.probes.collect.nvml.device import Device, Reading


class ActivityReader:
    """Keeps the two samples of every GPU that a metric is made of."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def read(self, device: Device) -> Reading:
        """``sm_active`` … and ``activity_source``; also ``activity_rates``: {"pcie": [rx, tx], "nvlink": [rx, tx]}."""
        return Reading()

    def forget(self, device: Device) -> None:
        """Free what is kept for a GPU that is gone."""

    def shut_down(self) -> None:
        """Free all samples, before the library is shut down."""
