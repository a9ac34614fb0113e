"""Where the system's files are. ``MLTOP_SYSROOT`` is put before /proc, /sys and /dev/kmsg (tests, copied trees)."""

from __future__ import annotations

import os

SYSROOT = os.environ.get("MLTOP_SYSROOT", "").rstrip("/")


def proc(*parts: object) -> str:
    """Path below /proc, e.g. ``proc(42, "stat")``."""
    return "/".join((SYSROOT + "/proc", *map(str, parts)))


def sys(*parts: object) -> str:
    """Path below /sys."""
    return "/".join((SYSROOT + "/sys", *map(str, parts)))
