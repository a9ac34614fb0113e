"""The PCIe link: what it is, what it could be, its errors. Its traffic is among GPM's counters (activity)."""

from __future__ import annotations

from functools import partial
from typing import Any

from mltop.probes.collect.nvml.device import Device, Reading, unsupported
from mltop.probes.collect.nvml.fields import FieldValues, counters, first_available

REPLAY = 94
ERRORS = {  # nvml.h NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER and NVML_FI_DEV_PCIE_COUNT_*
    169: "l0_to_recovery",
    173: "correctable_errors",
    174: "naks_received",
    175: "receiver_error",
    176: "bad_tlp",
    177: "naks_sent",
    178: "bad_dllp",
    179: "non_fatal_error",
    180: "fatal_error",
    181: "unsupported_req",
    182: "lcrc_error",
    183: "lane_error",
}
FIELDS = (REPLAY, *ERRORS)
# Fields 197 and 198 count bytes to 2^32 (nvml.h: "Value can be wrapped"): of a rate above 4.3 GB/s one would see only
# what remains beyond the wraps. nvmlDeviceGetPcieThroughput blocks for 20 ms.
TRAFFIC_NEEDS_GPM = unsupported(
    "NVML's PCIe byte counters have 32 bits and wrap within a second at full speed; needs GPM (Hopper)"
)


def read_errors(device: Device, batch: FieldValues, reading: Reading) -> None:
    """``pcie.replay_count`` and ``pcie.errors``."""
    reading.attempt(("pcie.replay_count",), partial(read_replay, device, batch))
    reading.values["pcie.errors"] = counters(batch, "pcie.errors", ERRORS, reading)


def read_replay(device: Device, batch: FieldValues) -> dict[str, Any]:
    count = first_available(
        partial(batch.count, REPLAY, "PCIE_REPLAY_COUNTER"),
        partial(device.uint, "nvmlDeviceGetPcieReplayCounter"),
    )
    return {"pcie.replay_count": count}


def read_link(device: Device) -> Reading:
    """``pcie.gen`` and ``pcie.width`` as they are now: an idle link trains down to save power."""
    reading = Reading()
    reading.attempt(("pcie.gen",), partial(_uint, device, "pcie.gen", "nvmlDeviceGetCurrPcieLinkGeneration"))
    reading.attempt(("pcie.width",), partial(_uint, device, "pcie.width", "nvmlDeviceGetCurrPcieLinkWidth"))
    return reading


def read_maxima(device: Device, reading: Reading) -> None:
    """What GPU and slot could do together."""
    for name, call in (
        ("pcie.gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        ("pcie.width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    ):
        reading.attempt((name,), partial(_uint, device, name, call))


def _uint(device: Device, name: str, call: str) -> dict[str, Any]:
    return {name: device.uint(call)}
