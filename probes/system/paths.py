"""Where the system's files are. ``MLTOP_SYSROOT`` is put before /proc, /sys and /dev/kmsg (tests, copied trees)."""

from __future__ import annotations

import ctypes
import os

SYSROOT = os.environ.get("MLTOP_SYSROOT", "").rstrip("/")


def proc(*parts: object) -> str:
    """Path below /proc, e.g. ``proc(42, "stat")``."""
    return "/".join((SYSROOT + "/proc", *map(str, parts)))


def sys(*parts: object) -> str:
    """Path below /sys."""
    return "/".join((SYSROOT + "/sys", *map(str, parts)))


def trim_memory() -> None:
    """For long-lived processes that have loaded their modules: compiling those without bytecode took 8 MiB. glibc."""
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
