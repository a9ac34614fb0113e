"""A kernel log of our own: a file or FIFO with /dev/kmsg's records, and a `journalctl` that says what it is told."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from mltop.probes.collect.kernel_log.readers import LogFiles
from tests.fakes.scripts import python_script

BOOT_AT = 1_700_000_000.0
PIPE_BYTES = 1024 * 1024


def escaped(text: str) -> str:
    """As the kernel does it: what is not printable ASCII, and the backslash, become \\xNN."""
    return "".join(
        char if " " <= char <= "~" and char != "\\" else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for char in text
    )


class FakeKmsg:
    """Records in ``path``. ``seq`` is the number of the next one; set it higher, and lines were overwritten."""

    def __init__(self, directory: Path, fifo: bool = False, seq: int = 0) -> None:
        self.path = directory / "kmsg"
        self.seq = seq
        if fifo:
            os.mkfifo(self.path)
            self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        else:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def places(self, directory: Path | None = None, journalctl: str = "", boot_at: float = BOOT_AT) -> LogFiles:
        return LogFiles(str(self.path), journalctl, str((directory or self.path.parent) / "kern.log"), boot_at)

    def record(self, text: str, uptime_s: float = 1.0, level: int = 4, fields: Sequence[str] = ()) -> bytes:
        """The next record; ``fields``: KEY=value lines behind it."""
        extra = "".join(f" {field}\n" for field in fields)
        made = f"{level},{self.seq},{round(uptime_s * 1e6)},-;{escaped(text)}\n{extra}"
        self.seq += 1
        return made.encode()

    def write(self, text: str, uptime_s: float = 1.0, level: int = 4, fields: Sequence[str] = ()) -> None:
        self.write_raw(self.record(text, uptime_s, level, fields))

    def write_raw(self, data: bytes) -> None:
        os.write(self._fd, data)

    def close(self) -> None:
        os.close(self._fd)


def journal_line(text: str, at: float, level: int = 4) -> str:
    """As `journalctl -o json` prints it: a text with line breaks is a list of bytes."""
    message = list(text.encode()) if "\n" in text else text
    entry = {"__REALTIME_TIMESTAMP": str(round(at * 1e6)), "PRIORITY": str(level), "MESSAGE": message}
    return json.dumps(entry, separators=(",", ":"))


def fake_journalctl(directory: Path, lines: Sequence[str] = (), said: str = "", stays: bool = True) -> Path:
    """A program named journalctl. ``said``: on stderr; ``stays``: with --follow it goes on running.

    Its arguments are in journalctl.args, a line for each run.
    """
    return python_script(
        directory / "journalctl",
        "import sys, time\n"
        f"open({str(directory / 'journalctl.args')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"sys.stderr.write({said!r}); sys.stderr.flush()\n"
        f"sys.stdout.write({''.join(line + chr(10) for line in lines)!r}); sys.stdout.flush()\n"
        f"while {stays!r} and '--follow' in sys.argv: time.sleep(60)\n",
        "-IS",
    )
