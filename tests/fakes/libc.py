"""What the C library tells the programs on a fake machine: how full filesystems are, and what time it is.

libc = FakeLibc(tmp_path / "libc", root, compiled(tmp_path))
subprocess.run([...], env={**os.environ, **libc.env()})
libc.fill(root / "scratch", 97); libc.set_clock(-12)
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("libc.c")
HEALTHY_PERCENT = 30


def compiled(directory: Path) -> Path:
    """The library, for any number of machines."""
    library = directory / "libfake.so"
    command = [os.environ.get("CC", "cc"), "-O1", "-Wall", "-fPIC", "-shared", str(SOURCE), "-o", str(library), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the fake C library does not compile:\n{done.stderr}")
    return library


class FakeLibc:
    """All filesystems below ``root`` are 30 % full until told otherwise. Changes reach running programs at once."""

    def __init__(self, directory: Path, root: Path, library: Path) -> None:
        self._directory, self._library = directory, library
        self._full = {str(root): HEALTHY_PERCENT}
        directory.mkdir(parents=True)
        self._write_filesystems()
        self.set_clock(0)

    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "FAKE_LIBC": str(self._directory)}

    def fill(self, path: Path, percent: int) -> None:
        self._full[str(path)] = percent
        self._write_filesystems()

    def set_clock(self, seconds: int) -> None:
        """The wall clock is off by so much."""
        self._write("clock", str(seconds))

    def _write_filesystems(self) -> None:
        self._write("filesystems", "".join(f"{percent} {path}\n" for path, percent in self._full.items()))

    def _write(self, name: str, text: str) -> None:
        temporary = self._directory / f"{name}.new"
        temporary.write_text(text)
        temporary.replace(self._directory / name)
