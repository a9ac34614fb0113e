"""Whose a process is, and whether the paths that it names mean the files that we see: asked before its Python is run.

``folder`` is a descriptor of /proc/PID, which stays that process's when its pid is used again. Everything here raises
FileNotFoundError or ProcessLookupError for one that is gone, and other OSErrors. Sources: proc(5), namespaces(7),
chroot(2).
"""

from __future__ import annotations

import os
import re

_MOST_BYTES = 1 << 20
_NAMESPACES = {"mnt": "mounts", "pid": "process numbers", "user": "users"}
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]*(?:-[0-9.]+)?(?:-dbg)?", re.ASCII)
_DELETED = " (deleted)"  # proc(5)


def read(folder: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    with open(file, "rb") as opened:
        return opened.read(_MOST_BYTES)


def ids(folder: int, kind: str) -> list[int]:
    """``kind`` "Uid" or "Gid": real, effective, saved and of the file system."""
    for line in read(folder, "status").splitlines():
        if line.startswith(kind.encode() + b":"):
            return [int(word) for word in line.split()[1:]]
    return []


def identity(folder: int) -> tuple[object, ...]:
    """What changes when the process becomes another program or another user's."""
    program = os.stat("exe", dir_fd=folder)
    return (*ids(folder, "Uid"), program.st_dev, program.st_ino)


def why_no_python_of_ours(folder: int) -> str:
    """Why its executable's path is no Python that can be run here as it runs there; "" when it is. The end of a
    sentence that begins with the process.
    """
    for name, what in _NAMESPACES.items():
        if not os.path.samestat(os.stat(f"ns/{name}", dir_fd=folder), os.stat(f"/proc/self/ns/{name}")):  # noqa: PTH116
            return f"runs in a container ({what} of its own), where paths mean other files"
    if not os.path.samestat(os.stat("root", dir_fd=folder), os.stat("/")):  # noqa: PTH116
        return "has another root directory, where paths mean other files"
    program = os.readlink("exe", dir_fd=folder)
    if not _PYTHON.fullmatch(program.removesuffix(_DELETED).rpartition("/")[2]):
        return f"runs {program}, which is no Python"
    if program.endswith(_DELETED):
        return "runs a Python that was replaced or removed since"
    return ""
