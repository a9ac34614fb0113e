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

from mltop.probes.files import BadFile, Folder, write_all
from mltop.probes.own_folder import ensure_own, state_folder

_NAME = "compiled-key"
_BYTES = 32


@cache
def compiled_key() -> str:
    """In hex; "" where it cannot be kept: nodes then compile what they use at every start, for 0.2 s."""
    path = state_folder()
    if path is None:
        return ""
    with contextlib.suppress(OSError, BadFile), ensure_own(path) as folder:
        return _kept(folder) or _made(folder)
    return ""


def _made(folder: Folder) -> str:
    """Several at once make one: the first link stands."""
    beside, fd = folder.new_file()
    try:
        try:
            write_all(fd, secrets.token_hex(_BYTES).encode())
        finally:
            os.close(fd)
        with contextlib.suppress(FileExistsError):
            os.link(beside, _NAME, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    finally:
        os.unlink(beside, dir_fd=folder.fd)
    return _kept(folder)


def _kept(folder: Folder) -> str:
    """ "" for none, and for a file that others may know or have put there."""
    try:
        fd = folder.open_file(_NAME)
    except FileNotFoundError:
        return ""
    with open(fd, encoding="ascii", errors="replace") as file:
        status = os.fstat(fd)
        is_ours = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        text = file.read(2 * _BYTES + 1) if is_ours else ""
    return text if len(text) == 2 * _BYTES and all(letter in "0123456789abcdef" for letter in text) else ""
