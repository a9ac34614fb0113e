"""One request answered and the end: for carriers whose stdin does not reach the nodes (pdsh)."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from functools import partial
from typing import Any, Callable

from mltop.probes.agent.caller import reader_left
from mltop.probes.agent.protocol import Message, Request, Wire
from mltop.probes.agent.requests import Requests
from mltop.probes.agent.sampler import KEPT, Sampler
from mltop.probes.collect.ranks import RankSource
from mltop.probes.model import RankSample, Sample

TOTAL_S = 60.0
PROBE_EXTRA_S = 45.0  # beyond a probe's own limit: reading the GPUs, finding a Python before it, the end after it
SAMPLES_S = 0.4  # between the samples that show whether a GPU is busy
SECOND_READ_S = 0.1  # between the two reads that a rank's CPU share needs
CANCEL_S = 2.0  # from cancelling to leaving: py-spy is killed within it, and with us in any case
READER_POLL_S = 0.1

EXIT_NO_READER, EXIT_LATE = 2, 3


def answer(op: str, args: dict[str, Any], wire: Wire, out_fd: int = 1) -> int:
    """Frames of one answer to ``out_fd``; returns the exit code once its last frame is written.

    0: answered, be it by an error frame; 2: nobody reads ``out_fd`` any more; 3: not done within ``args["total_s"]``
    (60 s; of a probe that is the limit of its processes, and there is more to do); 128 + n: signal n. The rest of
    ``args`` is the operation's, but its ``py_spy`` is by machine type: whoever asks does not know which this is.
    Installs signal handlers: for the main thread of a process of its own.
    """
    args = dict(args)
    total_s = limit_s(op, args)
    args["py_spy"] = args.get("py_spy", {}).get(platform.machine(), "")
    reply = _Reply(wire, out_fd)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: reply.give_up(128 + number))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    source = RankSource()
    requests = Requests(
        reply.send,
        partial(roster, source),
        receives=False,
        samples=partial(samples, wire.node),
        unassigned=lambda: source.unassigned,
        process=source.process,
    )
    requests.start(Request("request", op=op, args=args))
    reply.wait(time.monotonic() + total_s, Message("error", error=f"no answer within {total_s:g} s"))
    if not reply.complete.is_set():
        requests.cancel_all()
        reply.complete.wait(CANCEL_S)
    return reply.code


def roster(source: RankSource) -> list[RankSample]:
    """The ranks now, read twice: shares of time need a span. Without NVML, which takes seconds to start."""
    source.read(time.monotonic(), {})
    time.sleep(SECOND_READ_S)
    return source.read(time.monotonic(), {})[0]


def limit_s(op: str, args: dict[str, Any]) -> float:
    """The limit for everything, taken out of ``args``; a probe has more to do than its own limit is for."""
    if op != "probe":
        return float(args.pop("total_s", TOTAL_S))
    from mltop.probes.active.supervisor.request import request_from

    try:
        return request_from(args).total_s + PROBE_EXTRA_S
    except ValueError:
        return TOTAL_S  # the probe will say what is wrong with them


def samples(
    node: str,
    after_s: float,  # noqa: ARG001 - all are new
    timeout_s: float,
    cancelled: threading.Event,
    suits: Callable[[list[Sample]], bool] = lambda _: True,
) -> list[Sample]:
    """The newest three samples, as ``RecentSamples.wait`` gives them."""
    from mltop.probes.collect.nvml.source import NvmlSource

    sampler = Sampler(node, NvmlSource(), SAMPLES_S)
    newest: list[Sample] = []
    deadline_s = time.monotonic() + timeout_s
    try:
        while not cancelled.is_set():
            newest = [*newest, sampler.sample(time.time())][-KEPT:]
            if (len(newest) == KEPT and suits(newest)) or time.monotonic() > deadline_s:
                break
            cancelled.wait(SAMPLES_S)
    finally:
        sampler.close()
    return newest


class _Reply:
    """Where the frames go. ``complete``: the operation sent its last frame, written or not."""

    def __init__(self, wire: Wire, out_fd: int) -> None:
        self.complete = threading.Event()
        self.code = 0
        self._wire = wire
        self._out_fd = out_fd
        self._closed = False
        self._write_lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Called by the operation's threads; waits while the reader is slow."""
        last = message.kind in ("done", "error")
        message.node = message.node or self._wire.node
        with self._write_lock:
            if not self._closed:
                self._write(self._wire.encode(message))
            self._closed = self._closed or last
        if last:
            self.complete.set()

    def give_up(self, code: int) -> None:
        """No frame is begun any more. Takes no lock: a signal handler may interrupt the thread that holds it."""
        if not self._closed:
            self._closed, self.code = True, code

    def wait(self, deadline_s: float, too_late: Message) -> None:
        """Wait until the answer is complete, nobody reads it, or the deadline (monotonic s), told by ``too_late``."""
        while not self._closed:
            if time.monotonic() > deadline_s:
                self._say_last(too_late)
                self.give_up(EXIT_LATE)
            elif reader_left(self._out_fd):
                self.give_up(EXIT_NO_READER)
            else:
                self.complete.wait(READER_POLL_S)

    def _say_last(self, message: Message) -> None:
        message.node = self._wire.node
        if self._write_lock.acquire(timeout=0.5):  # a reader that takes nothing blocks whoever holds it
            try:
                if not self._closed:
                    self._write(self._wire.encode(message))
            finally:
                self._write_lock.release()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._out_fd, view) :]
        except OSError:
            self.give_up(EXIT_NO_READER)
