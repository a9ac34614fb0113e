"""Whole files: read, hashed, and kept in memory (memfd_create(2)). Part of stage 1 of the bootstrap, too
(``agent/bootstrap``).
"""

import os
import stat

MOST_FILE_BYTES = 64 * 1024 * 1024

# By number, for Pythons that were built against a C library without it.
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279, "ppc64le": 360}
CLOEXEC = 1
NOEXEC_SEAL, EXEC = 8, 16  # since Linux 6.3: which of them may be used, or must, vm.memfd_noexec says


def read_file(path: str) -> bytes:
    """b"" for what cannot be read, is no regular file, or longer than any of ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_FILE_BYTES:
                return b""
            return file.read(MOST_FILE_BYTES)
    except OSError:
        return b""


def sha256(data: bytes) -> str:
    import hashlib  # loads OpenSSL

    return hashlib.sha256(data).hexdigest()


def memory_fd(name: str, use: int) -> int:
    """A descriptor of a new file. ``use``: NOEXEC_SEAL or EXEC, where the kernel knows them. Raises OSError."""
    try:
        return _created(name, CLOEXEC | use)
    except OSError:  # an older kernel
        return _created(name, CLOEXEC)


def _created(name: str, flags: int) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(MEMFD_CREATE.get(os.uname().machine, -1), name.encode(), flags))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd
