"""Compiles the fake ``libnvidia-ml.so.1`` with the machine's C compiler."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
LIBRARY = "libnvidia-ml.so.1"
FLAGS = [
    "-std=gnu11",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-fvisibility=hidden",
    "-shared",
    f"-Wl,-soname,{LIBRARY}",
]


def build() -> Path:
    """The directory that holds libnvidia-ml.so.1, built from the current sources.

    Every state of the sources has a directory of its own, so that running processes keep theirs; processes
    that build at the same time wait for each other. RuntimeError with the compiler's words when it fails.
    """
    directory = SOURCES / "build" / _fingerprint()
    if not (directory / LIBRARY).exists():
        directory.parent.mkdir(exist_ok=True)
        with open(directory.parent / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / LIBRARY).exists():
                _compile(directory)
    return directory


def _fingerprint() -> str:
    digest = hashlib.sha256(" ".join([_compiler(), platform.machine(), *FLAGS]).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compiler() -> str:
    return os.environ.get("CC", "cc")


def _compile(directory: Path) -> None:
    if shutil.which(_compiler()) is None:
        raise RuntimeError(f"the fake NVML needs a C compiler: {_compiler()} not found (apt-get install gcc libc6-dev)")
    temporary = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".building-"))
    try:
        sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
        command = [_compiler(), *FLAGS, *sources, "-o", str(temporary / LIBRARY), "-lpthread", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the fake NVML does not compile:\n{done.stderr}")
        temporary.chmod(0o755)
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    print(build())
