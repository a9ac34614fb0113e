"""Whether the clock is synchronised. Source: adjtimex(2) with modes=0, which needs no privilege and changes nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Callable

from mltop.probes.collect.host.part import Reading, unsupported
from mltop.probes.model import Gap, RankSample

_STA_UNSYNC = 0x40  # linux/timex.h
_ADJTIMEX_BYTES = 512  # struct timex is 208 bytes on 64-bit machines
_BOTH = "host.{clock_synchronized,clock_error_s}"
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),  # µs
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * _ADJTIMEX_BYTES),
    )


class Clock:
    """``clock_synchronized`` and ``clock_error_s``.

    ``in_container``: there "not synchronised" is no news: who keeps the clock may do so without telling the kernel
    that is asked here.
    """

    def __init__(self, root: str, in_container: Callable[[], bool]) -> None:
        self._root = root
        self._in_container = in_container

    def read(self, _now: float, _ranks: Sequence[RankSample]) -> Reading:
        if self._root:
            return Reading(gaps=[unsupported(_BOTH, "files of another machine tell nothing of its clock")])
        timex = _Timex()
        if _LIBC.adjtimex(ctypes.byref(timex)) < 0:
            why = f"adjtimex: {os.strerror(ctypes.get_errno())}"
            return Reading(gaps=[Gap(_BOTH, why)])
        return judged(timex.status, timex.esterror, self._in_container())


def judged(status: int, estimated_error_us: int, in_container: bool) -> Reading:
    """What adjtimex's answer means."""
    if not status & _STA_UNSYNC:
        return Reading({"clock_synchronized": True, "clock_error_s": estimated_error_us / 1e6})
    if in_container:
        why = "in a container the kernel's word that the clock is not synchronised may be wrong"
        return Reading(gaps=[Gap(_BOTH, why, "chronyc tracking   (on the host)")])
    # The error is then a constant of 16 s.
    gap = unsupported("host.clock_error_s", "the clock is not synchronised: nothing estimates its error")
    return Reading({"clock_synchronized": False}, [gap])
