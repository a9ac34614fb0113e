"""The agent's loop: one sample per interval, requests in between, an end as soon as the caller is gone."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from mltop.probes.agent.caller import Caller, Terms, leave
from mltop.probes.agent.frames import NO_THRESHOLDS, Frames
from mltop.probes.agent.protocol import VERSION, Hello, Message, Request, Wire
from mltop.probes.agent.requests import Requests
from mltop.probes.agent.sampler import Collectors, GpuSource, RecentSamples, Sampler
from mltop.probes.model import RankSample, Sample
from mltop.probes.version import __version__


class Agent:
    """Samples of one node to ``out_fd``, requests from ``in_fd``. ``run`` returns the exit code."""

    def __init__(
        self,
        node: str,
        gpu_source: GpuSource,
        interval_s: float,
        *,
        in_fd: int = 0,
        out_fd: int = 1,
        wire: Wire | None = None,
        terms: Terms | None = None,
        collectors: Collectors | None = None,
        thresholds: Mapping[str, float] = NO_THRESHOLDS,
    ) -> None:
        terms = terms or Terms()
        self._node = node
        self._wire = wire or Wire(node)
        self._interval_s = interval_s
        self._frames = Frames(node, terms.attended, thresholds=thresholds)
        collectors = collectors or Collectors()
        self._sampler = Sampler(node, gpu_source, interval_s, collectors)
        self._recent = RecentSamples()
        self._newest_ranks: list[RankSample] = []
        self._newest_unassigned: list[RankSample] = []
        self._have_ranks = threading.Event()
        self._caller = Caller(self._wire, terms, in_fd, out_fd)
        self._requests = Requests(
            self._caller.send,
            self._roster,
            receives=terms.attended,
            samples=self._recent.wait,
            history=self._recent.packed,
            unassigned=lambda: self._newest_unassigned,
            process=collectors.ranks.process,
        )

    def run(self) -> int:
        stop = self._caller.stop
        # An agent whose caller is gone must end, not be told by SIGPIPE somewhere inside a collector.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c in the caller's terminal is the caller's to handle
        self._caller.send(Message("hello", hello=_hello()))  # before any answer to what was asked already
        self._caller.start(self._handle, self._requests.programs.receiving)
        due = time.monotonic()
        while not stop.is_set():
            sample = self._sample()
            for message in self._frames.of(sample):
                self._caller.send_newest(message)
            now_s = time.monotonic()
            due = min(max(due, now_s - self._interval_s), now_s) + self._interval_s  # this one may have been hurried
            if not self._sampler.await_gpus(stop, due):
                self._recent.pause(stop, due)
        self._requests.cancel_all()
        self._sampler.close()
        return 0

    def _sample(self) -> Sample:
        sample = self._sampler.sample(time.time())
        self._newest_ranks, self._newest_unassigned = sample.ranks, sample.unassigned
        self._have_ranks.set()
        self._recent.add(sample)
        return sample

    def _roster(self) -> list[RankSample]:
        self._have_ranks.wait(5.0)
        return self._newest_ranks

    def _handle(self, request: Request) -> None:
        if request.node not in ("", self._node):  # a carrier that gives every agent what is meant for one
            return
        if request.kind == "request":
            self._requests.start(request)
        elif request.kind == "cancel":
            self._requests.cancel(request.id)
        elif request.kind == "watch":
            self._frames.watch(float(request.args.get("seconds") or 0.0))
        elif request.kind == "file":
            self._requests.programs.receive(request)


def _hello() -> Hello:
    return Hello(
        version=__version__,
        protocol=VERSION,
        pid=os.getpid(),
        python=platform.python_version(),
        hostname=platform.node(),
        machine=platform.machine(),
    )


def exit_now(code: int) -> Any:
    """Leave without waiting for daemon threads that may be stuck in a system call."""
    sys.stdout.flush()
    leave(code)
