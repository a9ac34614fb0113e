"""What /proc says of processes that may end at any moment, also between two reads: then nothing, never an error."""

from __future__ import annotations

import os
from pathlib import Path


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def state_of(pid: int) -> str:
    """One letter (R S D T t Z …), "" when it is gone."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def is_gone(pid: int) -> bool:
    """Ended, whether or not its parent has noticed."""
    return state_of(pid) in ("", "X", "Z")


def name_of(pid: int) -> str:
    """As the kernel keeps it (comm)."""
    return _read(pid, "comm").decode(errors="replace").strip()


def command_of(pid: int) -> str:
    """Its words with a space after each."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def own_children() -> list[int]:
    """Those that this process has, whichever thread started them."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    found: list[int] = []
    for task in tasks.iterdir():
        found += map(int, _read(os.getpid(), f"task/{task.name}/children").split())
    return found
