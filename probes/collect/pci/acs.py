"""Access Control Services of the bridges above a device: with them, traffic between peers goes through the CPU.

Source: PCI Express Base Specification, "ACS Extended Capability"; the extended configuration space starts at 0x100.
Only root may read it: the kernel gives everyone the first 64 bytes.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from contextlib import suppress

_EXTENDED_AT = 0x100
_ACS_CAPABILITY = 0x000D
_SOURCE_VALIDATION = 0x1
_MOST_CAPABILITIES = 64
_NO_EXTENDED_BYTES = 256  # the size of a configuration space without an extended part
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Unreadable(Exception):
    """The extended configuration space cannot be read."""


def upstream_ports(device_path: str) -> list[str]:
    """The bridges above a device, from its resolved path (…/pci0000:00/0000:00:01.0/0000:18:00.0)."""
    folder, bridges = os.path.dirname(device_path), []
    while _ADDRESS.fullmatch(os.path.basename(folder)):
        bridges.append(folder)
        folder = os.path.dirname(folder)
    return bridges


def acs_of(ports: Iterable[str], known: dict[str, bool | None]) -> bool | None:
    """Whether one of the bridges validates sources; None when none is known to and not all can be read. ``known``: of
    those that were read before, as several devices share one.
    """
    answers = []
    for port in ports:
        if port not in known:
            known[port] = None
            with suppress(Unreadable):
                known[port] = source_validation(f"{port}/config")
        answers.append(known[port])
    return True if True in answers else None if None in answers else False


def source_validation(path: str) -> bool:
    """Whether ACSCtl has SrcValid+ in a bridge's ``config``. Raises Unreadable."""
    try:
        with open(path, "rb", buffering=0) as config:
            return _walk(config.fileno())
    except OSError as error:
        raise Unreadable(str(error)) from error


def _walk(descriptor: int) -> bool:
    if os.fstat(descriptor).st_size == _NO_EXTENDED_BYTES:
        return False
    at = _EXTENDED_AT
    for _ in range(_MOST_CAPABILITIES):
        data = os.pread(descriptor, 8, at)
        if len(data) < 8:
            raise Unreadable("cut off")
        header, _capability, control = struct.unpack("<IHH", data)
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == _ACS_CAPABILITY:
            return bool(control & _SOURCE_VALIDATION)
        at = header >> 20
        if at < _EXTENDED_AT:
            return False
    return False
