"""MIG instances of a GPU."""

from __future__ import annotations

from mltop.probes.collect.nvml.calls import Calls
from mltop.probes.collect.nvml.device import Device, Reading


class MigReader:
    """Lists the instances of GPUs in MIG mode."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def read(self, device: Device) -> Reading:
        """``mig_instances``: a list of dicts with the names of MigInstance's fields. Only of a GPU in MIG mode."""
        return Reading()
