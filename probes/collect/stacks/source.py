"""One line of a process's source file, read as that process sees it, never for long."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

from mltop.probes import paths

_MAX_BYTES = 4 * 1024 * 1024


class SourceLines:
    """Reads source lines through /proc/PID/root (containers) or /proc/PID/cwd (relative names), once each.

    The read runs in a daemon thread with a deadline, because a training hang is often a file system that
    hangs: a file that did not answer once is not asked again.
    """

    def __init__(self, deadline_s: float = 0.3) -> None:
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._files: dict[tuple[str, int], list[str]] = {}

    def line(self, pid: int, filename: str, number: int) -> str | None:
        """The text of line ``number`` (from 1), None when it cannot be read (soon enough)."""
        if filename.startswith("<"):
            return None
        below = "root" if filename.startswith("/") else "cwd"
        lines = self._lines_of(paths.proc(pid, below, filename.lstrip("/")), pid)
        return lines[number - 1] if 0 < number <= len(lines) else None

    def _lines_of(self, path: str, pid: int) -> list[str]:
        # Ranks of one job share their root; the pid in the path differs, the file does not.
        key = (path.split(f"/{pid}/", 1)[-1], _namespace(pid))
        with self._lock:
            if key not in self._files:
                self._files[key] = _read_soon(path, self._deadline_s)
            return self._files[key]


def _namespace(pid: int) -> int:
    try:
        return Path(paths.proc(pid, "ns/mnt")).stat().st_ino
    except OSError:
        return pid


def _read_soon(path: str, deadline_s: float) -> list[str]:
    result: list[list[str]] = []
    reader = threading.Thread(target=lambda: result.append(_read(path)), name="mltop source line", daemon=True)
    reader.start()
    reader.join(deadline_s)
    return result[0] if result else []


def _read(path: str) -> list[str]:
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return []
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
