"""Why libnvidia-ml.so.1 cannot be loaded: pynvml says "not found" whatever the loader said.

The GNU loader passes over a library of another machine as if it were not there (elf/dl-load.c, open_verify),
so the directories that it searches are looked through here.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator

NAME = "libnvidia-ml.so.1"
# ld.so(8), Debian's multiarch paths, NVIDIA's container toolkit, WSL.
_DIRECTORIES = (
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    f"/usr/lib/{platform.machine()}-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
# e_machine (elf.h)
_MACHINES = {3: "i386", 21: "ppc64", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}


class LoadedLibrary:
    """Where this process has the library from, and which file that was."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _identity(path)

    @classmethod
    def find(cls) -> LoadedLibrary | None:
        """None where it is not loaded."""
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")[2]
                if os.path.basename(path).startswith(NAME.removesuffix("1")):
                    return cls(os.path.join("/", os.path.dirname(path), NAME))  # the loader's name leads to the file
        return None

    def is_replaced(self) -> bool:
        """Whether another file has taken its place, as an upgrade of the driver does."""
        now = _identity(self._path)
        return now is not None and now != self._file


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def explain_missing() -> None:
    """Raise OSError with what is wrong with the library; return when there really is none."""
    try:
        ctypes.CDLL(NAME)
    except OSError as error:
        if "No such file" not in str(error):
            raise OSError(str(error).removeprefix(f"{NAME}: ")) from None
    for path in _candidates():
        raise OSError(f"{path}: {_problem(path)}")


def _candidates() -> Iterator[str]:
    searched = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    for directory in (*filter(None, searched), *_DIRECTORIES):
        path = os.path.join(directory, NAME)
        if os.path.lexists(path):
            yield path


def _problem(path: str) -> str:
    if not os.path.exists(path):
        return "is a link to a file that does not exist"
    try:
        with open(path, "rb") as file:
            header = file.read(20)
    except OSError as error:
        return str(error.strerror)
    if len(header) == 20 and header.startswith(b"\x7fELF"):
        (machine,) = struct.unpack_from("<H" if header[5] == 1 else ">H", header, 18)
        name = _MACHINES.get(machine, f"ELF machine {machine}")
        if name != platform.machine():
            return f"is built for {name}, this Python for {platform.machine()}"
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error).removeprefix(f"{path}: ")
    return f"is there, but {sys.executable} does not search that directory (ldconfig, LD_LIBRARY_PATH)"
