"""Where this node's kernel log can be read, and when the node was started."""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass

from mltop.probes import as_root, paths
from mltop.probes.model import Gap

KMSG_DEVICE = os.makedev(1, 11)  # Documentation/admin-guide/devices.txt
UNKNOWN_HISTORY = "Xid history before start unknown"
_JOIN_ADM = "sudo usermod -aG adm $USER   # and log in again"
_ON_HOST = "run mltop on the host, or start the container with --device /dev/kmsg --cap-add SYSLOG"


@dataclass(frozen=True)
class Places:
    """``journalctl``: the program, "" for none. ``boot_at``: unix s of the boot, None: ask this machine."""

    kmsg: str
    journalctl: str
    kern_log: str
    boot_at: float | None = None


def default_places() -> Places:
    """A copied tree has a log of its own: this machine's journal says nothing about it."""
    return Places(
        kmsg=paths.SYSROOT + "/dev/kmsg",
        journalctl="" if paths.SYSROOT else _journalctl(),
        kern_log=paths.SYSROOT + "/var/log/kern.log",
        boot_at=tree_boot_at() if paths.SYSROOT else None,
    )


def _journalctl() -> str:
    """Its name, which starting it looks for; "" for one that others could change where we are root."""
    import shutil

    return "journalctl" if shutil.which("journalctl") is None or as_root.find_program("journalctl") else ""


def tree_boot_at() -> float | None:
    """``btime`` of /proc/stat, whole seconds; None where there is no such file."""
    try:
        with open(paths.proc("stat"), encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("btime "):
                    return float(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return None


def boot_time(places: Places, now: float) -> float:
    """Unix s at which the kernel's own clock was 0: it counts as CLOCK_MONOTONIC does, without time in suspend."""
    return now - time.monotonic() if places.boot_at is None else places.boot_at


def open_log(path: str) -> tuple[int | None, str]:
    """A file descriptor that never blocks, or None and why not.

    Containers often have something else under this name (a terminal, /dev/null), which must not be opened.
    """
    try:
        status = os.stat(path)
        mode = status.st_mode
        if stat.S_ISCHR(mode) and status.st_rdev != KMSG_DEVICE:
            return None, "is not the kernel's log (a container?)"
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            return None, "is no file"
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), ""
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def is_device(fd: int) -> bool:
    return stat.S_ISCHR(os.fstat(fd).st_mode)


def unreadable(tried: list[str], kmsg_is_there: bool) -> Gap:
    """``tried``: "/dev/kmsg: operation not permitted" and so on, in the order of trying."""
    why = f"kernel log unreadable ({'; '.join(tried)}): {UNKNOWN_HISTORY}"
    return Gap("kernel_log", why, _JOIN_ADM if kmsg_is_there else _ON_HOST)


def is_there(path: str) -> bool:
    """Whether the kernel's log exists here, readable or not."""
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return not stat.S_ISCHR(status.st_mode) or status.st_rdev == KMSG_DEVICE
