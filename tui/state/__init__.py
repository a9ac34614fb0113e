"""What mltop remembers for the user between runs, and its folder (``system.files.state_folder``).

It is a directory of ours that nobody else can write to, and its files are ours: whoever runs mltop as root with another
user's HOME (``sudo -E``) neither reads what that user put there nor writes there. Everything is reached through the
folder's descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from mltop.probes.system import files
from mltop.probes.system.files import BadFile, Folder, blocks, ensure_own, kind_of, named, open_own, state_folder
from mltop.probes.system.writable import user_name

LOCK_S = 10.0  # most that is waited for another mltop which writes
_RETRY_S = 0.02


class BadState(Exception):
    """State that cannot be used; the message is one line with its path."""


class NotOurs(BadState):
    """The place for it is not one of this user: commands that can do without go on."""


class NoHome(NotOurs):
    """There never was any state, and there will be none."""


def state_file(name: str) -> Path:
    """Raises NoHome."""
    folder = state_folder()
    if folder is None:
        raise NoHome("there is no home directory to remember anything in (set MLTOP_STATE_DIR)")
    return folder / name


def read_state(path: Path, most_bytes: int) -> bytes | None:
    """None where there is none. Raises BadState."""
    with told(path):
        folder = open_own(path.parent)
        if folder is None:
            return None
        with folder:
            fd = open_file(folder, path.name, os.O_RDONLY)
            if fd is None:
                return None
            with closing(fd):
                return b"".join(blocks(fd, most_bytes, path))


def write_state(path: Path, text: str) -> None:
    """Appears whole or not at all, 0600. Raises BadState."""
    with told(path, "cannot be written: "), ensure_own(path.parent) as folder:
        folder.write(path.name, text.encode())


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """For who reads the file and writes it anew: nobody else does meanwhile (where the file server has locks)."""
    with told(path, "cannot be written: "):
        folder = ensure_own(path.parent)
        with folder:
            lock = open_lock(folder, path.name)
    with closing(lock):
        locked(lock, time.monotonic() + LOCK_S)
        yield


@contextlib.contextmanager
def told(path: Path, what: str = "") -> Iterator[None]:
    """What goes wrong in here is a BadState."""
    try:
        yield
    except files.NotOurs as problem:
        raise NotOurs(f"{problem} (sudo -H, or MLTOP_STATE_DIR)") from None
    except BadFile as problem:
        raise BadState(str(problem)) from None
    except OSError as error:
        raise BadState(f"{path}: {what}{error.strerror}") from None


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


# The files.


def open_file(folder: Folder, name: str, flags: int) -> int | None:
    """A regular file of ours with no second name; None where there is none. Raises BadState and OSError.

    With O_CREAT it is made, 0600.
    """
    path = folder.path / name
    try:
        with named(path):
            fd = os.open(
                name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600, dir_fd=folder.fd
            )
    except FileNotFoundError:
        return None
    except OSError:
        kind = folder.kind(name)
        if kind:
            raise BadState(f"{path}: is {kind}, not a regular file") from None
        raise
    try:
        found = os.fstat(fd)
        if kind_of(found.st_mode):
            raise BadState(f"{path}: is {kind_of(found.st_mode)}, not a regular file")
        if found.st_uid != os.geteuid():
            raise NotOurs(f"{path} belongs to {user_name(found.st_uid)}, not to {user_name(os.geteuid())}")
        if found.st_nlink > 1:
            raise BadState(f"{path}: has {found.st_nlink} names (hard links): one of them may be somebody else's")
        if flags & os.O_CREAT and stat.S_IMODE(found.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_lock(folder: Folder, name: str) -> int:
    """On a file of its own, as the file itself is replaced when it is written anew."""
    fd = open_file(folder, f".{name}.lock", os.O_RDWR | os.O_CREAT)
    assert fd is not None
    return fd


def locked(lock: int, deadline: float) -> bool:
    """Whether nobody else has it until ``deadline`` (monotonic s); False, too, on a file server without locks."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_RETRY_S)
        except OSError:
            return False
        else:
            return True
