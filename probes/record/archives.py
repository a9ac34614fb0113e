"""Captures as one file (.tar.gz): packed for sending, unpacked to be read. Anybody may have made one that is read.

It is unpacked into a private folder that is removed afterwards, file by file through descriptors: regular files and
folders only, under single plain names, within the limits of `decoding.py`. Nothing of it is ever linked, run, or given
an owner or a mode.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from mltop.probes.model.units import size_words
from mltop.probes.record.decoding import MOST_FILES, MOST_RECORDING_BYTES, BadRecording
from mltop.probes.system.files import BadFile, Folder, named, open_regular

SUFFIXES = (".tar.gz", ".tgz")
MOST_UNPACKED_BYTES = MOST_RECORDING_BYTES
_MOST_HEADER_BYTES = 1 << 15  # of one entry: tarfile calls itself for each extension, and keeps it whole
_MOST_DEPTH = 5  # capture/stacks/node/file, and "."
_LEFT_FREE = 0.1  # of the file system that it is unpacked to
_BLOCK_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_USTAR_AT = 257  # of a header (tar(5)); GNU's and POSIX's both have "ustar" there


def pack(folder: Folder, archive: Path, top: str, given_up: Callable[[], bool] = lambda: False) -> None:
    """Writes all regular files of ``folder`` into a new file of 0600, below ``top``. Raises OSError and BadFile, that
    too where it is ``given_up`` meanwhile.

    FileExistsError for anything that is there; it appears whole or not at all. Owners and modes are left out.
    """
    with Folder.open(archive.parent) as above:
        temporary, fd = above.new_file()
        try:
            with named(archive), os.fdopen(fd, "wb") as file:
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as tar:
                    _add(tar, folder, top, given_up)
                file.flush()
                os.fsync(file.fileno())
            with named(archive):
                _name_anew(temporary, archive.name, above.fd)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=above.fd)


def _name_anew(temporary: str, name: str, folder: int) -> None:
    """Gives a file a name that is free: unlike a rename, a link never replaces what is there."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: an empty file of ours holds the place
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def empty(folder: Folder) -> None:
    """Removes all that is in it, by descriptors: no link is followed. Raises OSError and BadFile."""
    for name, kind in folder.names(MOST_FILES).items():
        if kind == stat.S_IFDIR:
            with folder.folder(name) as below:
                empty(below)
            os.rmdir(name, dir_fd=folder.fd)
        else:
            os.unlink(name, dir_fd=folder.fd)


def _add(tar: tarfile.TarFile, folder: Folder, inside: str, given_up: Callable[[], bool]) -> None:
    """The files of a folder, and of those in it; names that begin with a dot are temporary."""
    _add_entry(tar, inside, None, 0)
    for name, kind in folder.names(MOST_FILES).items():
        if given_up():
            raise BadFile(f"{folder.path}: not all of it is packed: mltop was ended")
        if name.startswith("."):
            continue
        if kind == stat.S_IFDIR:
            with folder.folder(name) as below:
                _add(tar, below, f"{inside}/{name}", given_up)
        elif kind == stat.S_IFREG:
            fd = folder.open_file(name)
            with os.fdopen(fd, "rb") as file:
                _add_entry(tar, f"{inside}/{name}", file, os.fstat(fd).st_size)


def _add_entry(tar: tarfile.TarFile, name: str, file: IO[bytes] | None, size: int) -> None:
    entry = tarfile.TarInfo(name)  # uid, gid 0 and no names
    entry.type = tarfile.DIRTYPE if file is None else tarfile.REGTYPE
    entry.mode = 0o700 if file is None else 0o600
    entry.size, entry.mtime = size, int(time.time())
    tar.addfile(entry, file)


def is_archive(path: Path) -> bool:
    """Whether it begins as a tar file, packed or not. Raises OSError and BadFile."""
    fd = open_regular(path)
    try:
        with named(path):
            head = os.read(fd, 1 << 12)  # BlockingIOError where a file object says None
    finally:
        os.close(fd)
    if head.startswith(_GZIP):
        with contextlib.suppress(zlib.error):
            head = zlib.decompressobj(wbits=31).decompress(head, 512)
    return head[_USTAR_AT : _USTAR_AT + 5] == b"ustar"


@contextlib.contextmanager
def capture_folder(path: Path) -> Iterator[Folder]:
    """A capture, be it a folder or an archive, which is unpacked as long as this is open; messages name ``path``.

    Raises BadRecording, BadFile and OSError.
    """
    if stat.S_ISDIR(path.stat().st_mode):
        with Folder.open(path) as folder:
            yield folder
        return
    private = tempfile.mkdtemp(prefix="mltop-capture-")
    try:
        with Folder.open(Path(private)) as folder:
            folder.path = path
            _unpack(path, folder)
            with _top(folder) as top:
                yield top
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _top(folder: Folder) -> Folder:
    """Where the manifest is: in the only folder of an archive that mltop made, or beside everything else."""
    names = folder.names(MOST_FILES)
    if list(names.values()) == [stat.S_IFDIR]:
        (name,) = names
        inner = folder.folder(name)
        inner.path = folder.path
        return inner
    return Folder(os.dup(folder.fd), folder.path)


class _Limited:
    """Reads from a file, packed or plain: ``left`` bytes of one entry with its headers, and so many in all."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self.left, self._left_in_all = _MOST_HEADER_BYTES, MOST_UNPACKED_BYTES + _MOST_HEADER_BYTES

    def read(self, size: int) -> bytes:
        self.left -= size
        self._left_in_all -= size
        if self.left < 0:
            raise BadRecording(f"{self._path}: its headers are larger than any capture's")
        if self._left_in_all < 0:
            most = size_words(MOST_UNPACKED_BYTES)
            raise BadRecording(f"{self._path}: is larger than {most}, the most that mltop unpacks")
        return self._file.read(size)


def _unpack(path: Path, into: Folder) -> None:
    fd = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        is_packed = file.read(2) == _GZIP
        file.seek(0)
        limited = _Limited(cast("IO[bytes]", gzip.GzipFile(fileobj=file) if is_packed else file), path)
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", limited), mode="r|") as tar:
                _take(tar, limited, path, into)
        except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, ValueError, OverflowError) as error:
            why = "is cut off" if isinstance(error, (EOFError, tarfile.ReadError)) else str(error)
            raise BadRecording(f"{path}: {why}: not a whole archive") from None


def _take(tar: tarfile.TarFile, limited: _Limited, path: Path, into: Folder) -> None:
    space = os.statvfs(into.fd)
    left = min(MOST_UNPACKED_BYTES, int(space.f_bavail * space.f_frsize * (1 - _LEFT_FREE)))
    count = 0
    while (entry := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined, unused-ignore]  # it would keep every header
        limited.left = _MOST_HEADER_BYTES + entry.size
        count += 1
        if count > MOST_FILES:
            raise BadRecording(f"{path}: holds more than {MOST_FILES:,} files")
        parts = [part for part in entry.name.split("/") if part not in ("", ".")]
        if entry.name.startswith("/") or ".." in parts or len(parts) > _MOST_DEPTH or "\0" in entry.name:
            raise BadRecording(f"{path}: has a file outside of its folder ({entry.name[:80]!r})")
        if entry.issparse() or not (entry.isreg() or entry.isdir()) or tar.pax_headers:
            raise BadRecording(f"{path}: has something else than files in it ({entry.name[:80]!r})")
        left -= entry.size
        if left < 0:
            raise BadRecording(f"{path}: is larger than mltop unpacks here, {size_words(MOST_UNPACKED_BYTES)} at most")
        if parts:
            _put(tar, entry, parts, into)


def _put(tar: tarfile.TarFile, entry: tarfile.TarInfo, parts: list[str], into: Folder) -> None:
    folders = parts if entry.isdir() else parts[:-1]
    folder = into
    with contextlib.ExitStack() as opened:
        for name in folders:
            folder = opened.enter_context(folder.ensure_folder(name))
        if entry.isdir():
            return
        content = tar.extractfile(entry)
        assert content is not None  # a regular file
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with named(folder.path / parts[-1]):
            fd = os.open(parts[-1], flags, 0o600, dir_fd=folder.fd)
        with os.fdopen(fd, "wb") as file:
            while block := content.read(_BLOCK_BYTES):
                file.write(block)


def stem_of(archive: Path) -> str:
    """The name without its suffix: that of the folder in it."""
    suffix = next((suffix for suffix in SUFFIXES if archive.name.endswith(suffix)), "")
    return archive.name.removesuffix(suffix) or archive.name


def is_archive_name(name: str) -> bool:
    return name.endswith(SUFFIXES)
