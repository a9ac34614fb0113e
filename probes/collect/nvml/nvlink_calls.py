"""NVLink by calls for single links: where a link leads to, and what old drivers have no fields for."""

from __future__ import annotations

from ctypes import byref, c_int, c_uint
from typing import Any

import pynvml

from mltop.probes.collect.nvml.device import Device, Problem, Reading, as_flag
from mltop.probes.collect.nvml.fields import FieldRequest
from mltop.probes.collect.nvml.nvlink import Links, generation

GPU, IBM_NPU, SWITCH = 0, 1, 2  # nvml.h NVML_NVLINK_DEVICE_TYPE_*
ERRORS = {0: "replay", 1: "recovery", 2: "crc"}  # nvml.h NVML_NVLINK_ERROR_DL_*
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
    for counter, name in ERRORS.items():
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
