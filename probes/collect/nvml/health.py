"""What tells of a GPU's health, in one batch: ECC, memory repair, PCIe errors, the verdict, the power limit."""

from __future__ import annotations

from functools import partial

from mltop.probes.collect.nvml import ecc, modes, pcie, remap
from mltop.probes.collect.nvml.device import Device, Reading
from mltop.probes.collect.nvml.fields import FieldRequest

FIELDS = (*ecc.FIELDS, *remap.FIELDS, *pcie.FIELDS, modes.POWER_LIMIT)


class Health:
    """The batch of one GPU."""

    def __init__(self) -> None:
        self.request = FieldRequest((field, 0) for field in FIELDS)


def read_health(device: Device) -> Reading:
    """Raises NvmlError when the GPU or the library is gone."""
    reading = Reading()
    batch = device.state(Health).request.read(device)
    ecc.read_ecc(device, batch, reading)
    remap.read_remap(device, batch, reading)
    remap.read_retired(device, batch, reading)
    reading.attempt(("recovery_action",), partial(remap.read_recovery, batch))
    pcie.read_errors(device, batch, reading)
    reading.attempt(("power_limit_w",), partial(modes.read_power_limit, device, batch))
    return reading
