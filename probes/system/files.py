"""Files on the operator's machine, opened so that nothing hangs and nobody can put something else in between.

Read: regular files only, of bounded size; a pipe, a socket or a device is never opened for reading (the opening alone
of a tape or a watchdog does something), nor is a file of the kernel's (reading /proc/kmsg takes lines away). Folders
are held by descriptor, what is in them is reached through it, and links in them are not followed. Written: 0600
in folders of 0700 whatever the umask, whole or not at all.

A folder of the user's own, where mltop keeps state and where it takes programs for other machines from, belongs to
whoever runs mltop, and nobody else can write to it. For root everything above must be root's, too: ``sudo -E`` and
``su`` without ``-`` leave another user's HOME.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

from mltop.probes.model.units import size_words
from mltop.probes.system.writable import user_name

_BLOCK_BYTES = 1 << 18
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class BadFile(Exception):
    """A file that cannot be used; the message is one line with its path."""


def kind_of(mode: int) -> str:
    """What stands in place of a regular file, "" for one."""
    return _KINDS.get(stat.S_IFMT(mode), "")


def open_regular(path: Path | str, shown: Path | None = None, folder: int | None = None, links: bool = True) -> int:
    """A descriptor for reading a regular file. Raises BadFile, and OSError with the path where it cannot be opened.

    ``folder``: ``path`` is a name in the folder of this descriptor, and a link there is not followed; ``shown``: the
    path for messages; ``links``: whether one is followed.
    """
    shown = shown or Path(path)
    with named(shown):
        follow = 0 if links and folder is None else os.O_NOFOLLOW
        path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC | follow, dir_fd=folder)
        try:
            status = os.fstat(path_fd)
            kind = kind_of(status.st_mode)
            if not kind and _is_of_kernel(path_fd, status):
                kind = "a file of the kernel's"
            if kind:
                raise BadFile(f"{shown}: is {kind}, not a regular file")
            return _opened(path_fd, os.O_RDONLY)
        finally:
            os.close(path_fd)


def _is_of_kernel(fd: int, status: os.stat_result) -> bool:
    """proc, sysfs, debugfs: they have no blocks, as ramfs and some FUSE servers, whose files have any size."""
    if status.st_blocks or os.fstatvfs(fd).f_blocks:
        return False
    return status.st_size in (0, 4096) or (Path("/sys").is_dir() and status.st_dev == Path("/sys").stat().st_dev)


def _opened(path_fd: int, flags: int) -> int:
    """What an O_PATH descriptor stands for, opened: nobody can exchange it in between."""
    return os.open(f"/proc/self/fd/{path_fd}", flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def blocks(fd: int, most_bytes: int, shown: Path) -> Iterator[bytes]:
    """The content in pieces. Raises BadFile when there is more than ``most_bytes``: a file may grow without an end."""
    left = most_bytes
    while True:
        with named(shown):
            block = os.read(fd, _BLOCK_BYTES)
        if not block:
            return
        left -= len(block)
        if left < 0:
            raise BadFile(f"{shown}: is larger than {size_words(most_bytes)}, the most that mltop reads of such a file")
        yield block


def read_regular(path: Path | str, most_bytes: int, shown: Path | None = None, folder: int | None = None) -> bytes:
    """All of a regular file. Raises as ``open_regular`` and ``blocks``."""
    shown = shown or Path(path)
    fd = open_regular(path, shown, folder)
    try:
        return b"".join(blocks(fd, most_bytes, shown))
    finally:
        os.close(fd)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """An OSError from here names the whole path, not a name in a folder."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from None


class Folder:
    """A directory held by its descriptor. Names are single names: nothing here goes up or through links."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd, self.path = fd, path

    @classmethod
    def open(cls, path: Path, only_through: bool = False) -> Folder:
        """Whatever the path leads to, through links too. Raises OSError.

        ``only_through``: to reach what is in it by name, which needs no permission to list it.
        """
        with named(path):
            return cls(os.open(path, _FOLDER_FLAGS | (os.O_PATH if only_through else 0)), path)

    @classmethod
    def make(cls, path: Path) -> Folder:
        """A new one of 0700, as all that are missing above it. Raises OSError, FileExistsError for anything there."""
        above, missing = path.parent, [path.name]
        while not os.path.lexists(above) and above != above.parent:
            missing.append(above.name)
            above = above.parent
        folder = cls.open(above, only_through=True)
        for name in reversed(missing):
            with folder:
                folder = folder.make_folder(name)
        return folder

    def make_folder(self, name: str) -> Folder:
        """A new, empty one of 0700 that is ours. Raises OSError."""
        path = self.path / name
        with named(path):
            os.mkdir(_single(name), 0o700, dir_fd=self.fd)
            path_fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                status = os.fstat(path_fd)
                if status.st_uid != os.geteuid():
                    raise PermissionError(0, f"belongs to uid {status.st_uid} right after it was made")
                if stat.S_IMODE(status.st_mode) != 0o700:  # the umask, or a set-group-id bit from above
                    os.chmod(f"/proc/self/fd/{path_fd}", 0o700)  # noqa: PTH101 - there is no fchmod for O_PATH
                folder = Folder(_opened(path_fd, os.O_RDONLY | os.O_DIRECTORY), path)
            finally:
                os.close(path_fd)
        if os.listdir(folder.fd):  # noqa: PTH208 - of a descriptor
            folder.close()
            raise FileExistsError(0, "was exchanged while it was made", str(path))
        return folder

    def folder(self, name: str, only_through: bool = False) -> Folder:
        """Opens one in it that is there and no link. Raises OSError, and BadFile for what is no folder."""
        path, flags = self.path / name, _FOLDER_FLAGS | os.O_NOFOLLOW | (os.O_PATH if only_through else 0)
        try:
            with named(path):
                return Folder(os.open(_single(name), flags, dir_fd=self.fd), path)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise BadFile(f"{path}: is {self.kind(name) or 'a file'}, not a directory") from None
            raise

    def kind(self, name: str) -> str:
        """As ``kind_of``; "" also for what cannot be looked at."""
        try:
            return kind_of(os.stat(_single(name), dir_fd=self.fd, follow_symlinks=False).st_mode)
        except OSError:
            return ""

    def ensure_folder(self, name: str, only_through: bool = False) -> Folder:
        """Opens one in it, or makes it; of several who make it at once, all have the first one's. Raises as both."""
        try:
            return self.folder(name, only_through)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                return self.make_folder(name)
            return self.folder(name, only_through)

    def names(self, most: int) -> dict[str, int]:
        """The names in it, sorted, and what they are (`stat.S_IFMT`). Raises BadFile for more than ``most``."""
        kinds: dict[str, int] = {}
        with named(self.path), os.scandir(self.fd) as entries:
            for entry in entries:
                if len(kinds) >= most:
                    raise BadFile(f"{self.path}: holds more than {most:,} files")
                kinds[entry.name] = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
        return dict(sorted(kinds.items()))

    def open_file(self, name: str) -> int:
        """As ``open_regular``."""
        return open_regular(_single(name), self.path / name, self.fd)

    def read(self, name: str, most_bytes: int) -> bytes:
        """As ``read_regular``."""
        return read_regular(_single(name), most_bytes, self.path / name, self.fd)

    def write(self, name: str, data: bytes) -> None:
        """A file of 0600 that appears whole: written beside it, synced, then renamed. Raises OSError."""
        with named(self.path / name):
            temporary, fd = self.new_file()
            try:
                try:
                    write_all(fd, data)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                os.replace(temporary, _single(name), src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=self.fd)
                raise

    def new_file(self) -> tuple[str, int]:
        """The name, which begins with a dot, and the descriptor of a new file of 0600. Raises OSError."""
        name = f".new-{secrets.token_hex(8)}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        os.fchmod(fd, 0o600)
        return name, fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """To write into, 0600; one that is there is never replaced. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        yield file


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _single(name: str) -> str:
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        raise OSError(0, "no name of a file", name)
    return name


_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotOurs(BadFile):
    """Somebody else may write to it; the message is one line with its path."""


def home_folder(kind: str) -> Path | None:
    """mltop's folder; ``kind``: "state" or "data", as XDG has them. None where there is no home directory."""
    import platformdirs

    dirs = platformdirs.PlatformDirs("mltop")
    try:
        folder = dirs.user_state_path if kind == "state" else dirs.user_data_path
    except (RuntimeError, OSError):
        return None
    return folder if folder.is_absolute() else None  # older versions leave a "~" that stands for nothing


def state_folder() -> Path | None:
    """``$MLTOP_STATE_DIR``, or the user's state directory (XDG_STATE_HOME/mltop); None where there is no home."""
    chosen = os.environ.get("MLTOP_STATE_DIR")
    return Path(chosen).absolute() if chosen else home_folder("state")


def open_own(path: Path) -> Folder | None:
    """Opens a folder of the user's own, None for none. Raises NotOurs, BadFile and OSError."""
    try:
        with _above(path, make=False) as above:
            return _checked(above.folder(path.name))
    except FileNotFoundError:
        return None


def ensure_own(path: Path) -> Folder:
    """Opens one; makes it, and all that is missing above it, with 0700. Raises NotOurs, BadFile and OSError."""
    with _above(path, make=True) as above:
        return _checked(above.ensure_folder(path.name))


def _above(path: Path, make: bool) -> Folder:
    """The folder above, reached from the root: for root everything on the way must be root's, too."""
    folder = _trusted(Folder.open(Path("/"), only_through=True))
    for name in Path(os.path.realpath(path.parent)).parts[1:]:
        with folder:
            step = folder.ensure_folder if make else folder.folder
            folder = _trusted(step(name, only_through=True))
    return folder


def _trusted(folder: Folder) -> Folder:
    if os.geteuid() != 0:
        return folder
    status = os.fstat(folder.fd)
    if status.st_uid != 0 and not _is_root_outside(status.st_uid):
        return _refused(folder, f"belongs to {user_name(status.st_uid)}, and this is root")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return _refused(folder, "everybody may write to it, and this is root")
    return folder


def _checked(folder: Folder) -> Folder:
    status = os.fstat(folder.fd)
    if status.st_uid != os.geteuid():
        return _refused(folder, f"belongs to {user_name(status.st_uid)}, not to {user_name(os.geteuid())}")
    if status.st_mode & _OTHERS_WRITE:
        return _refused(folder, f"others may write to it: chmod 700 {shlex.quote(str(folder.path))}")
    return folder


def _refused(folder: Folder, why: str) -> NoReturn:
    folder.close()
    raise NotOurs(f"{folder.path}: {why}")


def _is_root_outside(uid: int) -> bool:
    """In a user namespace that does not know the machine's root, what is root's belongs to the overflow uid.

    Wider than ``writable.is_trusted``, which says whose programs may run: the folders above ours are only gone through.
    """
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
        mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False
    return uid == overflow and mapped[:3] != ["0", "0", "4294967295"]
