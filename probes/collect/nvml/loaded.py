"""Which file libnvidia-ml.so.1 was when this process loaded it: an upgrade of the driver puts another in its place."""

from __future__ import annotations

import os

_NAME = "libnvidia-ml.so.1"


class LoadedLibrary:
    """Where this process has the library from, and which file that was."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _identity(path)

    @classmethod
    def find(cls) -> LoadedLibrary | None:
        """None where it is not loaded."""
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")[2]
                if os.path.basename(path).startswith(_NAME.removesuffix("1")):
                    return cls(os.path.join("/", os.path.dirname(path), _NAME))  # the loader's name leads to the file
        return None

    def is_replaced(self) -> bool:
        """Whether another file has taken its place, as an upgrade of the driver does."""
        now = _identity(self._path)
        return now is not None and now != self._file


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
