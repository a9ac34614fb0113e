"""The child that reads NVML, seen from the agent; when to start it again after one was stuck or died, and which GPUs to
leave out then. Monotonic seconds.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Union

from mltop.probes.collect.nvml.calls import Breadcrumb, Note
from mltop.probes.collect.polled_child import PolledChild
from mltop.probes.collect.ranks.procfs import read_wchan
from mltop.probes.collect.sysfile import read_known
from mltop.probes.collect.timing import Backoff
from mltop.probes.model import Fault
from mltop.probes.system.blobs import NOEXEC_SEAL, memory_fd

CHILD = "mltop.probes.collect.nvml.child"
MAX_ANSWER_BYTES = 16 * 1024 * 1024
PIECE_S = 0.05  # from one piece of an answer to the next: the child has only to write it


@dataclass(frozen=True)
class Pauses:
    """Seconds between attempts. A loop of restarts would hide what happened and load a sick driver."""

    free_restarts: int = 3
    first_restart_s: float = 1.0
    longest_restart_s: float = 60.0
    forget_failures_s: float = 600.0
    init_retry_first_s: float = 2.0  # no driver, no permission: asked again, then after twice as long …
    init_retry_s: float = 30.0  # … and at last this often
    skipped_gpu_s: float = 300.0  # doubled each time it gets stuck again
    longest_skipped_gpu_s: float = 3600.0

    def restarts(self) -> Backoff:
        """After a child was stuck or died."""
        return Backoff(self.first_restart_s, self.longest_restart_s, self.free_restarts, self.forget_failures_s)

    def retries(self) -> Backoff:
        """After a library that could not be used."""
        return Backoff(self.init_retry_first_s, self.init_retry_s)


@dataclass
class Skip:
    """Something that is left out for now."""

    backoff: Backoff
    reason: str = ""
    code: Fault = "stuck"


What = Union[int, str]  # a GPU by NVML index, or a part of what is read of all, by name


@dataclass
class Skips:
    """What is left out because it got stuck."""

    pauses: Pauses
    _by_what: dict[What, Skip] = field(default_factory=dict)

    def add(self, what: What, reason: str, at_s: float, code: Fault = "stuck") -> None:
        backoff = Backoff(self.pauses.skipped_gpu_s, self.pauses.longest_skipped_gpu_s)
        skip = self._by_what.setdefault(what, Skip(backoff))
        skip.reason, skip.code = reason, code
        skip.backoff.failed(at_s)

    def now(self, at_s: float) -> frozenset[What]:
        """Not to be touched at this moment."""
        return frozenset(what for what, skip in self._by_what.items() if at_s < skip.backoff.next_s)

    def answered(self, whats: set[What]) -> None:
        """These were read: they are not skipped any more."""
        for what in whats & self._by_what.keys():
            del self._by_what[what]

    def items(self) -> list[tuple[What, Skip]]:
        """GPUs first, by index."""
        return sorted(self._by_what.items(), key=lambda item: (isinstance(item[0], str), item[0]))


class Worker(PolledChild):
    """A running child that reads NVML. ``received_s``: when the newest piece of the answer under way came."""

    def __init__(self) -> None:
        self._crumb = Breadcrumb.create()
        self._errors_fd = memory_fd("mltop-nvml-stderr", NOEXEC_SEAL)
        try:
            super().__init__(CHILD, str(self._crumb.fd), stderr=self._errors_fd, pass_fds=(self._crumb.fd,))
        except BaseException:
            self._crumb.close()
            os.close(self._errors_fd)
            raise
        self._received = bytearray()
        self.received_s: float | None = None

    def ask(self, request: dict[str, Any]) -> None:
        """Start one poll."""
        self.received_s = None
        self.send(json.dumps(request, separators=(",", ":")).encode() + b"\n")

    @property
    def is_overlong(self) -> bool:
        """It answers more than any machine has to say: it will not come to an end."""
        return len(self._received) > MAX_ANSWER_BYTES

    def answer(self, wait_s: float) -> dict[str, Any] | None:
        """The answer to the poll under way, waiting for it at most ``wait_s``; None while there is none.

        One that is larger than a pipe comes in pieces: the child writes the next when this has read the one before.
        """
        if self.asked_s is None:
            return None
        deadline_s = time.monotonic() + wait_s
        while not self._received.endswith(b"\n"):
            now_s = time.monotonic()
            more_s = 0.0 if self.received_s is None else self.received_s + PIECE_S - now_s
            piece = b"" if self.is_overlong else self.receive(max(0.0, deadline_s - now_s, more_s))
            if not piece:
                return None
            self._received += piece
            self.received_s = time.monotonic()
        line = bytes(self._received)
        self._received.clear()
        self.asked_s = None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def note(self) -> Note | None:
        """The NVML call that the child is in, or was in when it died."""
        return self._crumb.read()

    def last_words(self) -> str:
        """The last line that the child wrote to stderr, before faulthandler's report of a crash."""
        size = os.fstat(self._errors_fd).st_size
        tail = os.pread(self._errors_fd, 4096, max(0, size - 4096)).decode("utf-8", "replace")
        tail = tail.partition("Fatal Python error")[0]
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def kernel_state(self) -> str:
        """E.g. "state D, in rm_ioctl", "" when unknown. Always the real /proc: it is our own child."""
        stat = (read_known(f"/proc/{self.pid}/stat") or b"").rpartition(b")")[2].split()
        if not stat:
            return ""
        wchan = read_wchan(f"/proc/{self.pid}")
        return f"state {stat[0].decode('ascii', 'replace')}" + (f", in {wchan}" if wchan else "")

    def close(self) -> None:
        super().close()
        self._crumb.close()
        os.close(self._errors_fd)
