"""The bundle: one zip, named by its hash, that is read once, checked, and imported from memory.

A copy in memory does not change while the agent runs, which may be for weeks, needs no file server, and is found by
child processes, too. Part of stage 1, and sent by itself to start an installed agent over pdsh.
"""

import os
import sys

from mltop.probes.system.blobs import NOEXEC_SEAL, memory_fd, read_file, sha256

BUNDLE = "bundle.zip"  # in the folder that is named by its hash


def read_bundle(folder: str, digest: str) -> bytes:
    """The bundle in a cache folder, b"" for one that is not there or damaged."""
    content = read_file(os.path.join(folder, digest, BUNDLE))
    return content if sha256(content) == digest else b""


def import_from(content: bytes, path: str = "") -> None:
    """Put a zip in memory on the import path. By our pid, so that child processes find it.

    ``path``: the bundle's in a cache folder, for kernels that refuse files in memory; OSError without one.
    """
    try:
        fd = memory_fd("mltop-bundle", NOEXEC_SEAL)
        own = f"/proc/{os.getpid()}/fd/{fd}"
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(content)
        if not os.path.samestat(os.stat(own), os.fstat(fd)):  # /proc is that of another namespace
            raise OSError(f"{own} is not ours")
    except OSError:
        if not path:
            raise
        own = path
    sys.path.append(own)


def import_installed(folder: str, digest: str, exit_code: int) -> None:
    """Import from the bundle in a cache folder; ends the process where there is none."""
    content = read_bundle(folder, digest)
    if not content:
        sys.exit(exit_code)
    import_from(content, os.path.join(folder, digest, BUNDLE))
    try:
        os.utime(os.path.join(folder, digest))  # it is in use: what is not for a week is removed
    except OSError:
        return  # a read-only home, where nothing is removed either
