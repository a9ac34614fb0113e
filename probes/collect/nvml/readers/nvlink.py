"""NVLink: state, speed and errors of every link in one batch per GPU; traffic of all links together.

Counters of errors differ by generation: fields 161 to 163 up to Hopper, 206 to 221 from Blackwell on (nvml.h). All are
asked once; what a GPU refuses is left out (nvidia-resiliency-ext#302: the documents disagree about GB200).

NVLink by calls for single links: where a link leads to, and what old drivers have no fields for.

NVLink fabric: whether Fabric Manager has registered the GPU, and what is wrong with it (Hopper and newer).
"""

from __future__ import annotations

from ctypes import byref, c_int, c_uint
from functools import partial
from typing import Any

import pynvml

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import (
    Device,
    Problem,
    Reading,
    as_flag,
    first_supported,
    implausible,
    structure,
    unsupported,
)
from mltop.probes.collect.nvml.fields import ALL_LINKS, CALL, REFUSED, FieldRequest, FieldValues, Meter, fallback_needed

LINK_COUNT = 91
SPEED, STATE, VERSION = 164, 165, 166  # MB/s, nvml.h NVML_NVLINK_STATE_*, NVML_NVLINK_VERSION_*
MAX_LINKS = 72
# NVML_NVLINK_STATE_*. A link that sleeps wakes up by itself; one whose traffic is disabled does not.
STATES = {0: "inactive", 1: "active", 2: "sleep", 3: "active, traffic disabled"}
ACTIVE_STATES = (1, 2)
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


class Links:
    """What is kept about one GPU. ``count``: None until it is known. ``counts_traffic``: it has counters of bytes."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.counts_traffic = False
        self.request: FieldRequest | None = None
        self.needs_calls = False  # the driver is older than the fields of single links
        self.last: tuple[FieldValues, Reading] | None = None


def request_for(count: int) -> FieldRequest:
    """State, version, speed and all error counters of every link."""
    fields = (STATE, VERSION, SPEED, *ERRORS)
    return FieldRequest((field, link) for link in range(count) for field in fields)


def read_links(device: Device) -> Reading:
    """``nvlink.links``: a list of dicts with NvlinkLink's names, without ``remote``.

    Of 8 GPUs that is 2,000 numbers, and they hardly ever change: then the reading is the same object as before.
    Raises NvmlError when the GPU or the library is gone.
    """
    state = device.state(Links)
    if not state.count:
        return Reading()
    if state.request is None:
        state.request = request_for(state.count)
    values = state.request.read(device)
    if state.last is None or state.last[0] is not values:
        state.last = (values, describe_links(values, state))
    return state.last[1]


def describe_links(values: FieldValues, state: Links) -> Reading:
    reading = Reading()
    if not state.count:
        return reading
    if all(values.is_refused(STATE, link) for link in range(state.count)):
        state.needs_calls = True  # nvlink_calls reads them
        return reading
    state.needs_calls = False
    reading.values["nvlink.links"] = [one_link(values, link, reading) for link in range(state.count)]
    if not any(link["errors"] for link in reading.values["nvlink.links"]):
        reading.problems["nvlink.errors"] = error_problem(values, state.count)
    return reading


def error_problem(values: FieldValues, count: int) -> Any:
    """Why no link has any error counter."""
    codes_found = [values.code(field, link) for link in range(count) for field in ERRORS]
    told = [code for code in codes_found if code not in REFUSED]
    return (CALL, told[0] if told else codes_found[0])


def one_link(values: FieldValues, link: int, reading: Reading) -> dict[str, Any]:
    """A counter that cannot be read is not in ``errors``."""
    found: dict[str, Any] = {"index": link}
    readers = (
        ("active", partial(read_active, values, link)),
        ("version", partial(read_version, values, link)),
        ("speed_bytes_per_s", partial(read_speed, values, link)),
    )
    for name, reader in readers:
        part = Reading()
        part.attempt((name,), reader)
        found.update(part.values)
        for problem in part.problems.values():
            reading.problems[f"nvlink.{name}"] = problem  # of many links alike, one is told
    found["errors"] = {}
    for field, name in ERRORS.items():
        if values.code(field, link) == 0:
            try:
                found["errors"][name] = values.count(field, name, link)
            except GarbageError as garbage:
                reading.problems[f"nvlink.errors.{name}"] = implausible(str(garbage))
    return found


def read_active(values: FieldValues, link: int) -> dict[str, Any]:
    state = values.count(STATE, "NVLINK_GET_STATE", link)
    if state not in STATES:
        raise GarbageError(f"the driver answered state {state} of link {link}, which is none that NVLink has")
    return {"active": state in ACTIVE_STATES}


def read_version(values: FieldValues, link: int) -> dict[str, Any]:
    return {"version": generation(values.count(VERSION, "NVLINK_GET_VERSION", link))}


def generation(number: int) -> int:
    """From NVML's enumeration to the number that NVIDIA calls the generation by. Raises GarbageError."""
    if number not in GENERATIONS:
        raise GarbageError(f"NVLink version {number} is not one that mltop knows")
    return GENERATIONS[number]


def read_speed(values: FieldValues, link: int) -> dict[str, Any]:
    return {"speed_bytes_per_s": values.count(SPEED, "NVLINK_GET_SPEED", link) * 1e6}


def read_traffic(meter: Meter, batch: FieldValues, at_s: float, reading: Reading) -> bool:
    """``nvlink.rx_bytes_per_s`` and ``nvlink.tx_bytes_per_s`` of all links together, from counters.

    False where the GPU has no such counters.
    """
    is_counted = False
    for ways in TRAFFIC:
        received, sent, unit = ways
        is_counted = not (batch.is_refused(received, ALL_LINKS) or batch.is_refused(sent, ALL_LINKS))
        if is_counted:
            break
    for way, field in (("rx", received), ("tx", sent)):
        name = f"nvlink.{way}_bytes_per_s"
        reading.attempt((name,), partial(read_rate, meter, batch, name, field, at_s))
        if name in reading.values:
            reading.values[name] *= unit
    return is_counted


def read_rate(meter: Meter, batch: FieldValues, name: str, field: int, at_s: float) -> dict[str, Any]:
    """In the counter's unit."""
    return {name: meter.per_s(f"{name} {field}", batch.count(field, name, ALL_LINKS), at_s)}


def count_links(device: Device, batch: FieldValues) -> int:
    """How many links the GPU has, 0: none. Raises NvmlError when it cannot be told, GarbageError."""
    try:
        count = batch.count(LINK_COUNT, "NVLINK_LINK_COUNT")
    except NvmlError as failure:
        if failure.code not in REFUSED:
            raise
        count = count_by_asking(device)
    if count > MAX_LINKS:
        raise GarbageError(f"field {LINK_COUNT} NVLINK_LINK_COUNT answered {count}, which is not a count of links")
    return count


def count_by_asking(device: Device) -> int:
    """A link that does not exist is an invalid argument; a GPU without NVLink refuses the first."""
    for link in range(MAX_LINKS):
        code = device.code_now("nvmlDeviceGetNvLinkState", link, device.buffers.uint_ref)
        if code in codes.GONE or code in codes.LIBRARY_DOWN:
            raise NvmlError("nvmlDeviceGetNvLinkState", code)
        if code:
            return link
    return MAX_LINKS


GPU, IBM_NPU, SWITCH = 0, 1, 2  # nvml.h NVML_NVLINK_DEVICE_TYPE_*
ERRORS_BY_CALL = {0: "replay", 1: "recovery", 2: "crc"}  # nvml.h NVML_NVLINK_ERROR_DL_*
# Field ids of the speed by link, in MB/s: what drivers before 520 have.
STATE_CALL = "nvmlDeviceGetNvLinkState"
SPEEDS = (*range(84, 90), *range(132, 138))
LINKS_PER_TURN = 1  # of a link four calls; all twelve links of an A100 in a minute


class Kept:
    """What was read of the links of one GPU, whose turn is next, and why calls failed."""

    def __init__(self) -> None:
        self.links: list[dict[str, Any]] = []
        self.next_link = 0
        self.problems: dict[int, dict[str, Problem]] = {}  # by link, then by field
        self.speed_problems: dict[str, Problem] = {}
        self.speeds: FieldRequest | None = None


def read_remotes(device: Device, reading: Reading) -> None:
    """``nvlink.remotes``: by link "switch", a PCI bus id, or None. Two calls per link, asked once."""
    count = device.state(Links).count or 0
    found: list[str | None] = []
    for link in range(count):
        part = Reading()
        part.attempt(("remote",), lambda link=link: {"remote": remote_of(device, link)})  # type: ignore[misc]
        found.append(part.values.get("remote"))
        if part.problems:
            reading.problems["nvlink.remote"] = part.problems["remote"]
    if any(found):
        reading.values["nvlink.remotes"] = found


def remote_of(device: Device, link: int) -> str | None:
    """What is at the other end. Raises NvmlError; None where NVML does not know either."""
    kind = c_uint()
    device.call("nvmlDeviceGetNvLinkRemoteDeviceType", c_uint(link), byref(kind), part=f" {link}")
    if kind.value == SWITCH:
        return "switch"
    if kind.value not in (GPU, IBM_NPU):
        return None
    info = pynvml.nvmlPciInfo_t()
    device.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", c_uint(link), byref(info), part=f" {link}")
    bus_id = info.busId
    return bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)


def read_links_by_calls(device: Device) -> Reading:
    """As ``read_links`` for a driver without fields of single links: all links the first time, then in turn."""
    reading = Reading()
    state, kept = device.state(Links), device.state(Kept)
    if not state.needs_calls or not state.count:
        return reading
    if len(kept.links) != state.count:
        kept.links = [{"index": link, "errors": {}} for link in range(state.count)]
        for link in range(state.count):
            read_link_by_calls(device, link, kept)
        read_speeds(device, kept)
    else:
        for _ in range(LINKS_PER_TURN):
            read_link_by_calls(device, kept.next_link, kept)
            kept.next_link = (kept.next_link + 1) % state.count
    reading.values["nvlink.links"] = [{**link, "errors": dict(link["errors"])} for link in kept.links]
    for problems in (*kept.problems.values(), kept.speed_problems):  # of many links alike, one is told
        reading.problems.update(problems)
    return reading


def read_link_by_calls(device: Device, link: int, kept: Kept) -> None:
    """State, version and errors of one link."""
    known, problems = kept.links[link], kept.problems.setdefault(link, {})
    problems.clear()

    def ask(call: str) -> int:
        return device.uint(call, c_uint(link), part=f" {link}")

    part = Reading()
    part.attempt(("nvlink.active",), lambda: {"active": as_flag(f"{STATE_CALL} of link {link}", ask(STATE_CALL))})
    if known.get("version") is None:
        part.attempt(("nvlink.version",), lambda: {"version": generation(ask("nvmlDeviceGetNvLinkVersion"))})
    known.update({"active": None, "version": known.get("version"), **part.values})
    problems.update(part.problems)
    for counter, name in ERRORS_BY_CALL.items():
        count = ask_counter(device, link, counter, problems, f"nvlink.errors.{name}")
        if count is not None:
            known["errors"][name] = count


def ask_counter(device: Device, link: int, counter: int, problems: dict[str, Problem], field: str) -> int | None:
    call, part = "nvmlDeviceGetNvLinkErrorCounter", Reading()

    def count() -> dict[str, int]:
        device.call(call, c_uint(link), c_int(counter), device.buffers.ulonglong_ref, part=f" {link} {counter}")
        return {field: device.buffers.ulonglong.value}

    part.attempt((field,), count)
    problems.update(part.problems)
    return part.values.get(field)


def read_speeds(device: Device, kept: Kept) -> None:
    """The first twelve links have a field each; there were no more when such drivers were new."""
    fields = SPEEDS[: len(kept.links)]
    values = FieldRequest((field, 0) for field in fields).read(device)
    for link, field in zip(kept.links, fields):
        part = Reading()
        part.attempt(("speed",), lambda field=field: {"speed": values.count(field, "NVLINK_SPEED_MBPS") * 1e6})  # type: ignore[misc]
        link["speed_bytes_per_s"] = part.values.get("speed")
        if part.problems:
            kept.speed_problems["nvlink.speed_bytes_per_s"] = part.problems["speed"]


FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
COMPLETED = 3
SUMMARIES = {1: "ok", 2: "unhealthy", 3: "limited"}  # 0: not supported
# nvml.h NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*: two bits each, 0 not supported, 1 true, 2 false.
_PROBLEMS = {0: "degraded_bandwidth", 2: "route_recovery", 4: "route_unhealthy", 6: "access_timeout"}
_TRUE = 1
_MISCONFIGURED_SHIFT = 8  # four bits: 0 not supported, 1 none, above: which
_UNHEALTHY = {"route_unhealthy", "misconfigured"}
_CALL_V = "nvmlDeviceGetGpuFabricInfoV"
_CALL = "nvmlDeviceGetGpuFabricInfo"


def problems_of(mask: int) -> list[str]:
    """What a health mask says is wrong."""
    found = [name for shift, name in _PROBLEMS.items() if mask >> shift & 3 == _TRUE]
    return found + (["misconfigured"] if mask >> _MISCONFIGURED_SHIFT & 15 > 1 else [])


def health_of(mask: int) -> str | None:
    """From the mask alone, for drivers before 580. None: nothing in it is supported."""
    found = set(problems_of(mask))
    if found:
        return "unhealthy" if found & _UNHEALTHY else "limited"
    return "ok" if mask & 0xFFF else None


class FabricReader:
    """``fabric.*``."""

    def __init__(self) -> None:
        self._v3 = structure("c_nvmlGpuFabricInfo_v3_t")
        self._v2 = structure("c_nvmlGpuFabricInfo_v2_t")
        self._v1 = structure("c_nvmlGpuFabricInfo_t")

    def read(self, device: Device) -> Reading:
        """Raises NvmlError when the GPU or the library is gone."""
        reading = Reading()
        reading.attempt(("fabric",), partial(self._read, device, reading))
        return reading

    def _read(self, device: Device, reading: Reading) -> dict[str, Any]:
        info = first_supported(
            partial(self._versioned, device, self._v3, "nvmlGpuFabricInfo_v3"),
            partial(self._versioned, device, self._v2, "nvmlGpuFabricInfo_v2"),
            partial(self._unversioned, device),
            moves_on=fallback_needed,
        )
        return describe(info, reading)

    def _versioned(self, device: Device, info: Any, version: str) -> Any:
        """A driver that does not know a version says so; it may still know the one before."""
        if info is None:
            raise NvmlError(_CALL_V, codes.FUNCTION_NOT_FOUND)
        info.version = getattr(pynvml, version)
        device.call(_CALL_V, byref(info), part=version)
        return info

    def _unversioned(self, device: Device) -> Any:
        if self._v1 is None:
            raise NvmlError(_CALL, codes.FUNCTION_NOT_FOUND)
        device.call(_CALL, byref(self._v1))
        return self._v1


def describe(info: Any, reading: Reading) -> dict[str, Any]:
    """The values of one answer of any version. The rest means something only once registration has completed."""
    if info.state not in FABRIC_STATES:
        raise GarbageError(f"{_CALL_V} answered state {info.state}, which mltop does not know")
    found: dict[str, Any] = {"fabric.state": FABRIC_STATES[info.state]}
    if info.state != COMPLETED:
        return found
    if info.status:
        reading.problems["fabric.status"] = (
            f"registration in the NVLink fabric ended with NVML error {info.status} ({codes.text(info.status)})"
        )
        return found
    found["fabric.clique_id"] = info.cliqueId
    cluster = bytes(info.clusterUuid)
    found["fabric.cluster_uuid"] = uuid_text(cluster) if any(cluster) else None  # zero: part of none
    mask = getattr(info, "healthMask", 0)
    found["fabric.problems"] = problems_of(mask)
    found["fabric.health"] = SUMMARIES.get(getattr(info, "healthSummary", 0)) or health_of(mask)
    if found["fabric.health"] is None:
        reading.problems["fabric.health"] = unsupported("this driver does not tell the health of the NVLink fabric")
    return found


def uuid_text(data: bytes) -> str:
    """RFC 9562's form. The module uuid would be a hundredth of the child's memory."""
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
