"""NVLink: state, speed and errors of every link in one batch per GPU, traffic of all links together; and the fabric.

Counters of errors differ by generation: fields 161 to 163 up to Hopper, 206 to 221 from Blackwell on (nvml.h). All are
asked once; what a GPU refuses is left out (nvidia-resiliency-ext#302: the documents disagree about GB200).
"""

from __future__ import annotations

from ctypes import byref, c_uint
from functools import partial
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError
from mltop.probes.collect.nvml.codes import Failure, Problem, unsupported
from mltop.probes.collect.nvml.device import Device, Reading, Structure, bus_id_of, first_supported
from mltop.probes.collect.nvml.fields import ALL_LINKS, CALL, REFUSED, FieldRequest, FieldValues, Meter
from mltop.probes.collect.nvml.readers.table import named

LINK_COUNT = 91
SPEED, STATE, VERSION = 164, 165, 166  # MB/s, nvml.h NVML_NVLINK_STATE_*, NVML_NVLINK_VERSION_*
MAX_LINKS = 72
INACTIVE, ACTIVE, SLEEPS, TRAFFIC_DISABLED = range(4)  # NVML_NVLINK_STATE_*
ERRORS = {
    161: "replay",
    162: "recovery",
    163: "crc",
    206: "malformed_packet_errors",
    207: "buffer_overrun_errors",
    208: "rcv_errors",
    209: "rcv_remote_errors",
    210: "rcv_general_errors",
    211: "local_link_integrity_errors",
    212: "xmit_discards",
    213: "recovery_ok",
    214: "recovery_failed",
    215: "recovery_events",
    219: "effective",
    221: "symbol",
}
GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # NVML_NVLINK_VERSION_1_0, 2_0, 2_2, 3_0 … 6_0
# Newest first: field ids of the bytes received and sent, and their unit. 138 and 139 are in KiB.
TRAFFIC = ((204, 202, 1), (139, 138, 1024))
TRAFFIC_FIELDS = tuple(field for received, sent, _ in TRAFFIC for field in (received, sent))
NO_NVLINK = unsupported("this GPU has no NVLink")
GPU, IBM_NPU, SWITCH = 0, 1, 2  # nvml.h NVML_NVLINK_DEVICE_TYPE_*
_REMOTE = Structure("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlPciInfo_t")


class Links:
    """What is kept about one GPU. ``count``: None until it is known. ``counts_traffic``: it has counters of bytes."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.counts_traffic = False
        self.request: FieldRequest | None = None
        self.last: tuple[FieldValues, Reading] | None = None


def read_links(device: Device) -> Reading:
    """``nvlink.links``: a list of dicts with NvlinkLink's names, without ``remote``.

    Of 8 GPUs that is 2,000 numbers, and they hardly ever change: then the reading is the same object as before.
    """
    state = device.state(Links)
    if not state.count:
        return Reading()
    if state.request is None:
        fields = (STATE, VERSION, SPEED, *ERRORS)
        state.request = FieldRequest((field, link) for link in range(state.count) for field in fields)
    values = state.request.read(device)
    if state.last is None or state.last[0] is not values:
        state.last = (values, describe_links(values, state))
    return state.last[1]


def describe_links(values: FieldValues, state: Links) -> Reading:
    reading = Reading()
    if not state.count:
        return reading
    links = reading.values["nvlink.links"] = [describe_link(values, link, reading) for link in range(state.count)]
    if not any(link["errors"] for link in links):
        all_codes = [values.code(field, link) for link in range(state.count) for field in ERRORS]
        failures = [code for code in all_codes if code not in REFUSED]
        reading.problems["nvlink.errors"] = Failure(CALL, (failures or all_codes)[0])
    return reading


def describe_link(values: FieldValues, link: int, reading: Reading) -> dict[str, Any]:
    """A counter that cannot be read is not in ``errors``."""
    state, errors = Reading(), Reading()
    state.take("active", partial(read_active, values, link))
    state.take("version", lambda: generation(values.count(VERSION, "NVLINK_GET_VERSION", link)))
    state.take("speed_bytes_per_s", lambda: values.count(SPEED, "NVLINK_GET_SPEED", link) * 1e6)
    for field, name in ERRORS.items():
        if values.code(field, link) == 0:
            errors.take(name, partial(values.count, field, name, link))
    for prefix, problems in (("nvlink", state.problems), ("nvlink.errors", errors.problems)):
        for name, problem in problems.items():
            reading.problems[f"{prefix}.{name}"] = problem  # of many links alike, one is told
    return {"index": link, **state.values, "errors": errors.values}


def read_active(values: FieldValues, link: int) -> bool:
    state = values.count(STATE, "NVLINK_GET_STATE", link)
    if state not in (INACTIVE, ACTIVE, SLEEPS, TRAFFIC_DISABLED):
        raise GarbageError(f"the driver answered state {state} of link {link}, which is none that NVLink has")
    return state in (ACTIVE, SLEEPS)  # one that sleeps wakes up by itself


def generation(number: int) -> int:
    """From NVML's enumeration to the number that NVIDIA calls the generation by. Raises GarbageError."""
    if number not in GENERATIONS:
        raise GarbageError(f"NVLink version {number} is not one that mltop knows")
    return GENERATIONS[number]


def read_traffic(meter: Meter, batch: FieldValues, at_s: float, reading: Reading) -> bool:
    """``nvlink.rx_bytes_per_s`` and ``nvlink.tx_bytes_per_s`` of all links together, from counters.

    False where the GPU has no such counters.
    """

    def per_s(name: str, field: int, unit: int) -> float:
        return meter.per_s(f"{name} {field}", batch.count(field, name, ALL_LINKS), at_s) * unit

    counted = [ways for ways in TRAFFIC if not any(batch.is_refused(field, ALL_LINKS) for field in (ways[0], ways[1]))]
    received, sent, unit = counted[0] if counted else TRAFFIC[-1]
    for way, field in (("rx", received), ("tx", sent)):
        name = f"nvlink.{way}_bytes_per_s"
        reading.take(name, partial(per_s, name, field, unit))
    return bool(counted)


def read_static(device: Device, batch: FieldValues, reading: Reading) -> None:
    """How many links there are, for the readers of this GPU, and what is at their other ends."""
    links, count = device.state(Links), Reading()
    count.take("nvlink", partial(count_links, batch))
    links.count = count.values.get("nvlink", links.count)
    reading.problems.update(count.problems)
    if links.count == 0:
        reading.problems["nvlink"] = NO_NVLINK
    read_remotes(device, reading)


def count_links(batch: FieldValues) -> int:
    """How many links the GPU has, 0: none. Raises NvmlError when it cannot be told, GarbageError."""
    count = batch.count(LINK_COUNT, "NVLINK_LINK_COUNT")
    if count > MAX_LINKS:
        raise GarbageError(f"field {LINK_COUNT} NVLINK_LINK_COUNT answered {count}, which is not a count of links")
    return count


def read_remotes(device: Device, reading: Reading) -> None:
    """``nvlink.remotes``: by link "switch", a PCI bus id, or None. Two calls per link, asked once."""
    links = range(device.state(Links).count or 0)
    by_link = Reading()
    for link in links:
        by_link.take(str(link), partial(remote_of, device, link))
    if by_link.problems:
        reading.problems["nvlink.remote"] = list(by_link.problems.values())[-1]
    remotes = [by_link.values.get(str(link)) for link in links]
    if any(remotes):
        reading.values["nvlink.remotes"] = remotes


def remote_of(device: Device, link: int) -> str | None:
    """What is at the other end. Raises NvmlError; None where NVML does not know either."""
    kind = c_uint()
    device.call("nvmlDeviceGetNvLinkRemoteDeviceType", c_uint(link), byref(kind))
    if kind.value == SWITCH:
        return "switch"
    if kind.value not in (GPU, IBM_NPU):
        return None
    return bus_id_of(_REMOTE.read(device, c_uint(link)))


# The NVLink fabric: whether Fabric Manager has registered the GPU, and what is wrong with it (Hopper and newer).
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
COMPLETED = 3
_FABRIC_STATE = named(FABRIC_STATES, "nvmlDeviceGetGpuFabricInfoV: its state")
SUMMARIES = {1: "ok", 2: "unhealthy", 3: "limited"}  # 0: not supported
# nvml.h NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*: two bits each, 0 not supported, 1 true, 2 false.
_PROBLEMS = {0: "degraded_bandwidth", 2: "route_recovery", 4: "route_unhealthy", 6: "access_timeout"}
_TRUE = 1
_MISCONFIGURED_SHIFT = 8  # four bits: 0 not supported, 1 none, above: which
_UNHEALTHY = {"route_unhealthy", "misconfigured"}
_CALL_V = "nvmlDeviceGetGpuFabricInfoV"
HEALTH_UNTOLD = unsupported("this driver does not report the health of the NVLink fabric")


def problems_of(mask: int) -> list[str]:
    """What a health mask says is wrong."""
    problems = [name for shift, name in _PROBLEMS.items() if mask >> shift & 3 == _TRUE]
    return problems + (["misconfigured"] if mask >> _MISCONFIGURED_SHIFT & 15 > 1 else [])


def health_of(mask: int) -> str | None:
    """From the mask alone, for drivers before 580. None: nothing in it is supported."""
    problems = set(problems_of(mask))
    if problems:
        return "unhealthy" if problems & _UNHEALTHY else "limited"
    return "ok" if mask & 0xFFF else None


# Newest first: a driver that does not know a version says so; it may still know the one before.
_FABRIC_INFO = (
    Structure(_CALL_V, "c_nvmlGpuFabricInfo_v3_t", "nvmlGpuFabricInfo_v3"),
    Structure(_CALL_V, "c_nvmlGpuFabricInfo_v2_t", "nvmlGpuFabricInfo_v2"),
    Structure("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)


def read_fabric(device: Device) -> Reading:
    """``fabric.*``."""
    reading = Reading()
    readers = [partial(version.read, device) for version in _FABRIC_INFO]
    reading.attempt(("fabric",), lambda: describe_fabric(first_supported(*readers), reading))
    return reading


def describe_fabric(info: Any, reading: Reading) -> dict[str, Any]:
    """The values of one answer of any version. The rest means something only once registration has completed."""
    values: dict[str, Any] = {"fabric.state": _FABRIC_STATE(info.state)}
    if info.state != COMPLETED:
        return values
    if info.status:
        reading.problems["fabric.status"] = Problem(
            f"registration in the NVLink fabric ended with NVML error {info.status} ({codes.text(info.status)})"
        )
        return values
    values["fabric.clique_id"] = info.cliqueId
    # RFC 9562's form; the module uuid would be a hundredth of the child's memory.
    digits = bytes(info.clusterUuid).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    values["fabric.cluster_uuid"] = "-".join(parts) if digits.strip("0") else None  # zero: part of none
    mask = getattr(info, "healthMask", 0)
    values["fabric.problems"] = problems_of(mask)
    values["fabric.health"] = SUMMARIES.get(getattr(info, "healthSummary", 0)) or health_of(mask)
    if values["fabric.health"] is None:
        reading.problems["fabric.health"] = HEALTH_UNTOLD
    return values
