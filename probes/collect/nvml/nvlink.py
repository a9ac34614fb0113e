"""NVLink: state, speed and errors of every link in one batch per GPU; traffic of all links together.

Counters of errors differ by generation: fields 161 to 163 up to Hopper, 206 to 221 from Blackwell on (nvml.h). All are
asked once; what a GPU refuses is left out (nvidia-resiliency-ext#302: the documents disagree about GB200).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import GarbageError, NvmlError
from mltop.probes.collect.nvml.device import Device, Reading, implausible, unsupported
from mltop.probes.collect.nvml.fields import ALL_LINKS, CALL, REFUSED, FieldRequest, FieldValues
from mltop.probes.collect.nvml.rates import Meter

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
