"""The key of compiled modules in nodes' caches: made once by every user of mltop, and kept with their state.

A node's cache holds the agent's modules in compiled form (``agent/bootstrap/compiled.py``), which no hash that is known
here can vouch for: each version of Python makes another. What carries this key's hash was made by an agent of ours.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from functools import cache
from pathlib import Path

from platformdirs import user_state_path

_NAME = "compiled-key"
_BYTES = 32


@cache
def compiled_key() -> str:
    """In hex; "" where it cannot be kept: nodes then compile what they use at every start, for 0.2 s."""
    folder = Path(os.environ.get("MLTOP_STATE_DIR") or user_state_path("mltop"))
    with contextlib.suppress(OSError):
        return _kept(folder / _NAME) or _made(folder)
    return ""


def _made(folder: Path) -> str:
    """Several at once make one: the first link stands."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    beside = folder / f".{_NAME}.{secrets.token_hex(8)}"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(beside, folder / _NAME)
    finally:
        beside.unlink()
    return _kept(folder / _NAME)


def _kept(path: Path) -> str:
    """ "" for none, and for a file that others may know or have put there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with open(fd, encoding="ascii", errors="replace") as file:
        status = os.fstat(fd)
        is_ours = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        text = file.read(2 * _BYTES + 1) if is_ours and stat.S_ISREG(status.st_mode) else ""
    return text if len(text) == 2 * _BYTES and all(letter in "0123456789abcdef" for letter in text) else ""
