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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from mltop.probes.reach import UsageProblem
from mltop.probes.system import files
from mltop.probes.system.files import BadFile, Folder, blocks, ensure_own, kind_of, named, open_own, state_folder
from mltop.probes.system.writable import user_name

LOCK_S = 10.0  # most that is waited for another mltop which writes
_RETRY_S = 0.02
# A colon behind every entry of 50,000, and some within: entries are counted before they are made.
_MOST_COLONS = 200_000

Content = TypeVar("Content")


class BadState(Exception):
    """State that cannot be used; the message is one line with its path."""


class NotOurs(BadState):
    """The place for it is not one of this user: commands that can do without go on."""


class NoHome(NotOurs):
    """There never was any state, and there will be none."""


@contextlib.contextmanager
def usage_problems(what: str) -> Iterator[None]:
    """A command that needs the list ``what`` cannot go on where it is bad: raises UsageProblem for BadState."""
    try:
        yield
    except BadState as problem:
        raise UsageProblem(what, str(problem)) from None


def state_file(name: str) -> Path:
    """The path of a file in the state folder. Raises NoHome."""
    folder = state_folder()
    if folder is None:
        raise NoHome("there is no home directory to remember anything in (set MLTOP_STATE_DIR)")
    return folder / name


@contextlib.contextmanager
def reading(path: Path) -> Iterator[int | None]:
    """The descriptor of a file of ours, None where there is none. Raises BadState, also for what goes wrong inside."""
    with bad_state(path), contextlib.ExitStack() as opened:
        folder = open_own(path.parent)
        fd = open_file(opened.enter_context(folder), path.name, os.O_RDONLY) if folder is not None else None
        yield opened.enter_context(closing(fd)) if fd is not None else None


def write_state(path: Path, text: str) -> None:
    """The file appears whole or not at all, 0600. Raises BadState."""
    with bad_state(path, "cannot be written: "), ensure_own(path.parent) as folder:
        folder.write(path.name, text.encode())


@dataclass(frozen=True)
class JsonFile(Generic[Content]):
    """One object, in a file of the state folder (``path``: another one). ``empty``: what holds where there is no file.
    ``what``: "a lemon list". All of it raises BadState.
    """

    name: str
    what: str
    empty: Content
    most_bytes: int

    def read(self, path: Path | None = None) -> Content:
        import msgspec

        path = path or state_file(self.name)
        with reading(path) as fd:
            data = b"".join(blocks(fd, self.most_bytes, path)) if fd is not None else None
        if data is None:
            return self.empty
        try:
            if data.count(b'":') > _MOST_COLONS:
                raise ValueError("more entries than are ever written")
            return msgspec.json.decode(data, type=type(self.empty))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise BadState(f"{path}: is not {self.what} (move it away to begin a new one)") from None

    def change(self, change: Callable[[Content], Content], path: Path | None = None) -> None:
        """Read, change and write it while no other mltop does; also raises whatever ``change`` raises."""
        import msgspec

        path = path or state_file(self.name)
        with bad_state(path, "cannot be written: "), ensure_own(path.parent) as folder:
            lock = open_lock(folder, path.name)
        with closing(lock):
            locked(lock)  # where the file server has locks
            content = msgspec.json.encode(change(self.read(path)))
            write_state(path, msgspec.json.format(content, indent=1).decode() + "\n")


@contextlib.contextmanager
def bad_state(path: Path, what: str = "") -> Iterator[None]:
    """What goes wrong with files in here is a BadState."""
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
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with named(path):
            fd = os.open(name, flags, 0o600, dir_fd=folder.fd)
    except FileNotFoundError:
        return None
    except OSError:
        kind = folder.kind(name)
        if kind:
            raise BadState(f"{path}: is {kind}, not a regular file") from None
        raise
    try:
        status = os.fstat(fd)
        if kind := kind_of(status.st_mode):
            raise BadState(f"{path}: is {kind}, not a regular file")
        if status.st_uid != os.geteuid():
            raise NotOurs(f"{path} belongs to {user_name(status.st_uid)}, not to {user_name(os.geteuid())}")
        if status.st_nlink > 1:
            raise BadState(f"{path}: has {status.st_nlink} names (hard links): one of them may be somebody else's")
        if flags & os.O_CREAT and stat.S_IMODE(status.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_file(folder: Folder, name: str, flags: int = 0) -> int:
    """As ``open_file``, for reading and writing, made where there is none."""
    fd = open_file(folder, name, os.O_RDWR | os.O_CREAT | flags)
    assert fd is not None
    return fd


def open_lock(folder: Folder, name: str) -> int:
    """The lock is a file of its own, as the file itself is replaced when it is written anew."""
    return create_file(folder, f".{name}.lock")


def locked(lock: int) -> bool:
    """Take the lock; False where others have it for ``LOCK_S``, or on a file server without locks."""
    deadline = time.monotonic() + LOCK_S
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
