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
# ld.so(8), Debian's multiarch paths, NVIDIA's container toolkit, WSL, NixOS, NVIDIA's driver container, GKE.
_DIRECTORIES = (
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    f"/usr/lib/{platform.machine()}-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    f"/run/nvidia/driver/usr/lib/{platform.machine()}-linux-gnu",
    "/home/kubernetes/bin/nvidia/lib64",
)
# e_machine (elf.h)
_MACHINES = {3: "i386", 21: "ppc64", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}


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
