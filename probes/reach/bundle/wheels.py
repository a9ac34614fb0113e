"""Compiled parts by machine type: psutil and py-spy as installed here, and wheels that were laid beside.

Wheels for nodes of another machine type lie in ``wheel_folder()``; ``how_to_get`` is the command that puts them there.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

from mltop.probes.system.files import BadFile, home_folder, open_own

_OTHER_SYSTEMS = ("_psaix.py", "_psbsd.py", "_psosx.py", "_pssunos.py", "_pswindows.py")
_MACHINE = re.compile(r"[A-Za-z0-9_]{1,32}")
_ELF_MACHINES = {3: "i686", 21: "ppc64le", 62: "x86_64", 183: "aarch64", 243: "riscv64"}  # e_machine in elf(5)


def here() -> str:
    """This computer's machine type, "" when it does not run Linux."""
    return platform.machine() if sys.platform == "linux" else ""


def wheel_folder() -> Path | None:
    """Where wheels are laid; None where there is no home directory."""
    data = home_folder("data")
    return data and data / "wheels"


def how_to_get(machine: str) -> str:
    """A command for the operator's computer, "" where none can be given. ``machine`` is what a node calls itself."""
    folder = wheel_folder()
    if folder is None or _MACHINE.fullmatch(machine) is None:
        return ""
    return (
        f"python3 -m pip download --platform manylinux2014_{machine} --only-binary=:all: --no-deps psutil py-spy "
        f"-d {shlex.quote(str(folder))}"
    )


def machines_with_psutil() -> list[str]:
    """The machine types that psutil is at hand for: this computer's own, and those of the wheels."""
    machines = {here()} if any(map(_is_needed, _installed_files("psutil"))) else set()
    for wheel in _wheels("psutil"):
        machines |= set(map(_machine_of, _tags(wheel)))
    return sorted(machines - {""})


def psutil_files(machine: str) -> dict[str, bytes]:
    """psutil's files by their import path, {} when there are none for this machine."""
    if machine == here():
        installed = {name: path for name, path in _installed_files("psutil").items() if _is_needed(name)}
        if installed:
            return {name: path.read_bytes() for name, path in installed.items()}
    for wheel in _fitting("psutil", machine):
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist() if _is_needed(name)}
    return {}


def py_spy(machine: str) -> bytes | None:
    """py-spy's program for this machine, None when there is none here."""
    if machine == here():
        for path in _installed_py_spy():
            program = path.read_bytes()
            if elf_machine(program) == machine:
                return program
    for wheel in _fitting("py_spy", machine):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".data/scripts/py-spy"):
                    return archive.read(name)
    return None


def elf_machine(program: bytes) -> str:
    """The machine type that a program is built for, "" for what is none (a script)."""
    if program[:4] != b"\x7fELF" or len(program) < 20:
        return ""
    order = "little" if program[5] == 1 else "big"
    return _ELF_MACHINES.get(int.from_bytes(program[18:20], order), "")  # type: ignore[arg-type]


def _is_needed(name: str) -> bool:
    if not name.startswith("psutil/") or name.startswith("psutil/tests/"):
        return False
    return name.endswith((".py", ".so")) and not name.endswith(_OTHER_SYSTEMS)


def _installed_files(distribution: str) -> dict[str, Path]:
    import importlib.metadata

    try:
        files = importlib.metadata.distribution(distribution).files or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {file.as_posix(): Path(str(file.locate())) for file in files}


def _installed_py_spy() -> list[Path]:
    named = [os.environ.get("MLTOP_PY_SPY"), str(Path(sys.executable).parent / "py-spy"), shutil.which("py-spy")]
    paths = [Path(path) for path in named if path]
    paths[1:1] = [path for name, path in _installed_files("py-spy").items() if name.endswith("/py-spy")]
    return [path for path in paths if path.is_file() and os.access(path, os.R_OK)]


def _wheels(name: str) -> list[Path]:
    """The wheels that serve every Python, newest first, as far as their names tell."""
    folder = wheel_folder()
    if folder is None or not _may_be_sent(folder):
        return []
    newest_first = sorted(folder.glob(f"{name}-*.whl"), reverse=True)
    return [wheel for wheel in newest_first if wheel.stem.split("-")[-2] in ("abi3", "none")]


def _may_be_sent(folder: Path) -> bool:
    """Root sends no program to the nodes that another user has put into the HOME that root happens to have."""
    if os.geteuid() != 0:
        return True
    try:
        own_folder = open_own(folder)
    except (BadFile, OSError):
        return False
    if own_folder is not None:
        own_folder.close()
    return own_folder is not None


def _fitting(name: str, machine: str) -> list[Path]:
    return [wheel for wheel in _wheels(name) if machine in map(_machine_of, _tags(wheel))]


def _tags(wheel: Path) -> list[str]:
    """Platform tags: name-version-python-abi-PLATFORM.whl, several with dots between (PEP 427, PEP 600)."""
    return wheel.stem.rsplit("-", 1)[-1].split(".")


def _machine_of(tag: str) -> str:
    """manylinux_2_17_aarch64, manylinux2014_aarch64 → aarch64; "" for other systems and other C libraries."""
    if not tag.startswith("manylinux"):
        return ""
    parts = tag.split("_")
    return "_".join(parts[3:] if parts[0] == "manylinux" else parts[1:])
