"""The journal's kernel lines, by `journalctl` as a child process that ends with us."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

from mltop.probes.collect.kernel_log.readers import GrowingFile, Reader
from mltop.probes.spawn import die_with_parent

ANSWER_S = 20.0  # of an old journal on a slow disk
MOST_LINES = 20_000
_KILL_WAIT_S = 0.2


def command(program: str, *more: str) -> list[str]:
    fields = "--output-fields=MESSAGE,PRIORITY"
    return [program, "--dmesg", "--boot", "--output=json", fields, "--no-pager", *more]


class Journal(Reader):
    """``refused``: why it says nothing more, "" while it may. ``is_permitted``: we may see the kernel's lines in it.

    Whoever may not see the system's journal gets no line of it, and with --follow that looks like silence. So the
    newest line is asked for first: every boot has kernel lines.
    """

    def __init__(self, program: str, since: float | None = None) -> None:
        """``since``: unix s, for what was read before up to there. Raises OSError where there is no such program."""
        super().__init__(-1)
        self._program = program
        self._since = () if since is None else (f"--since=@{since:.0f}",)
        self.is_permitted = False
        self._said = b""
        self._began_s = time.monotonic()
        self._has_lines = False
        self.refused = ""
        self._start("--lines=1")

    def batches(self, until: float) -> Iterator[list[bytes]]:
        self.is_current = False
        if not self.is_permitted and not self._look_for_a_line(until):
            return
        for batch in self._out.batches(until):
            lines = [line for line in batch if line[:1] == b"{"]  # not "-- No entries --"
            if lines:
                self._has_lines = True
                yield lines
        self.is_current = self._out.is_current and (self._has_lines or bool(self._since))
        if self._has_ended():
            self._refuse("journalctl ended")

    def close(self) -> None:
        process = self._process
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_WAIT_S)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def _start(self, *more: str) -> None:
        self._process = subprocess.Popen(
            command(self._program, *more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            preexec_fn=die_with_parent,  # noqa: PLW1509 - prctl only, and its library is loaded already
        )
        assert self._process.stdout and self._process.stderr
        for pipe in (self._process.stdout, self._process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._out = GrowingFile(self._process.stdout.fileno())

    def _look_for_a_line(self, until: float) -> bool:
        """Whether the newest line has come; then the next child follows the journal."""
        found = any(line[:1] == b"{" for batch in self._out.batches(until) for line in batch)
        if found:
            self.close()
            self.is_permitted = True
            self._start(f"--lines={MOST_LINES}", "--follow", *self._since)
        elif self._has_ended():
            self._refuse("no permission, or no journal")
        elif time.monotonic() - self._began_s > ANSWER_S:
            self._refuse(f"no kernel line within {ANSWER_S:g} s")
        return found

    def _has_ended(self) -> bool:
        assert self._process.stderr
        with contextlib.suppress(BlockingIOError):
            self._said = (self._said + os.read(self._process.stderr.fileno(), 4096))[-4096:]
        return self._out.has_ended and self._process.poll() is not None

    def _refuse(self, why: str) -> None:
        words = "" if self._said.startswith(b"Hint:") else self._said.decode("utf-8", "replace").strip()
        self.refused = why + (f": {words.splitlines()[-1][:100]}" if words else "")
