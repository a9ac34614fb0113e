"""The agent's loop: one sample per interval, requests in between, an end as soon as the caller is gone."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from typing import Any, Callable, Protocol, TypeVar

from mltop.probes.agent.caller import Caller, Terms
from mltop.probes.agent.outbox import Outbox
from mltop.probes.agent.protocol import (
    VERSION,
    Hello,
    Message,
    Request,
)
from mltop.probes.agent.requests import Requests
from mltop.probes.agent.wire import Wire
from mltop.probes.collect.host import HostSource
from mltop.probes.collect.ranks import RankSource
from mltop.probes.model import Gap, GpuSample, HostSample, RankSample, Sample
from mltop.probes.paths import proc
from mltop.probes.version import __version__

Result = TypeVar("Result")


class GpuSource(Protocol):
    """Where GPU samples come from: NVML's child process, or the demo's simulation."""

    def request(self, now: float) -> None: ...
    def collect(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]: ...
    def close(self) -> None: ...


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
    ) -> None:
        terms = terms or Terms()
        self._node = node
        self._wire = wire or Wire(node)
        self._interval_s = interval_s
        self._gpus = gpu_source
        self._host = HostSource()
        self._ranks = RankSource()
        self._boot_id = read_boot_id()
        self._stop = threading.Event()
        self._outbox = Outbox(out_fd, self._stop.set)
        pong = self._wire.encode(Message("pong", node=node))
        self._progress = self._wire.encode(Message("progress", node=node))
        self._caller = Caller(
            in_fd,
            out_fd,
            terms,
            outbox=self._outbox,
            pong=pong,
            handle=self._handle,
            receiving=self._receiving,
            stop=self._stop.set,
        )
        self._requests = Requests(self._send, self._roster, receives=terms.attended)
        self._newest_ranks: list[RankSample] = []
        self._have_ranks = threading.Event()

    def run(self) -> int:
        # An agent whose caller is gone must end, not be told by SIGPIPE somewhere inside a collector.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c in the caller's terminal is the caller's to handle
        self._send(Message("hello", hello=self._hello()))  # before any answer to what was asked already
        self._caller.start()
        due = time.monotonic()
        while not self._stop.is_set():
            sample = Message("sample", node=self._node, sample=self.sample(time.time()))
            self._outbox.put_newest("sample", self._wire.encode(sample))
            due = max(due + self._interval_s, time.monotonic())
            self._stop.wait(due - time.monotonic())
        return self._close()

    def sample(self, now: float) -> Sample:
        """One sample of everything at ``now`` (unix s). ``cost_s``: wall time of each collector in this process."""
        started = time.perf_counter()
        clock_s = time.monotonic()  # for rates: the wall clock may jump
        _, request_gaps = guarded("gpus", lambda: self._request_gpus(now), lambda: None)
        host, host_gaps = guarded("host", lambda: self._host.read(clock_s), HostSample)
        host_done = time.perf_counter()
        gpus, gpu_gaps = guarded("gpus", lambda: self._collect_gpus(now), list[GpuSample])
        gpus_done = time.perf_counter()
        ranks, rank_gaps = guarded("ranks", lambda: self._ranks.read(clock_s, gpus_of_pid(gpus)), list[RankSample])
        ranks_done = time.perf_counter()
        self._newest_ranks = ranks
        self._have_ranks.set()
        return Sample(
            node=self._node,
            sampled_at=now,
            boot_id=self._boot_id,
            interval_s=self._interval_s,
            simulated=bool(getattr(self._gpus, "simulated", False)),
            gpus=gpus,
            ranks=ranks,
            host=host,
            gaps=request_gaps + gpu_gaps + rank_gaps + host_gaps + not_built(),
            cost_s={
                "host": round(host_done - started, 6),
                "gpus": round(gpus_done - host_done, 6),
                "ranks": round(ranks_done - gpus_done, 6),
            },
        )

    def _request_gpus(self, now: float) -> tuple[None, list[Gap]]:
        self._gpus.request(now)
        return None, []

    def _collect_gpus(self, now: float) -> tuple[list[GpuSample], list[Gap]]:
        return self._gpus.collect(now, wait_s=min(0.25, self._interval_s / 2))

    def _hello(self) -> Hello:
        return Hello(
            version=__version__,
            protocol=VERSION,
            pid=os.getpid(),
            python=platform.python_version(),
            hostname=platform.node(),
            machine=platform.machine(),
        )

    def _roster(self) -> list[RankSample]:
        self._have_ranks.wait(5.0)
        return self._newest_ranks

    def _send(self, message: Message) -> None:
        message.node = message.node or self._node
        self._outbox.put(self._wire.encode(message))

    def _handle(self, request: Request) -> None:
        if request.node not in ("", self._node):  # a carrier that gives every agent what is meant for one
            return
        if request.kind == "request":
            self._requests.start(request)
        elif request.kind == "cancel":
            self._requests.cancel(request.id)
        elif request.kind == "file":
            self._requests.receive(request)

    def _receiving(self) -> None:
        self._requests.receiving()
        self._outbox.put_newest("progress", self._progress)

    def _close(self) -> int:
        self._requests.cancel_all()
        self._gpus.close()
        return 0


def guarded(
    what: str, read: Callable[[], tuple[Result, list[Gap]]], empty: Callable[[], Result]
) -> tuple[Result, list[Gap]]:
    """What ``read`` gives. A collector that fails costs its own part of one sample, and says so."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - the gap tells every caller, and the other collectors go on
        return empty(), [Gap(what, f"the collector failed: {type(error).__name__}: {error}", "please report this")]


def gpus_of_pid(gpus: list[GpuSample]) -> dict[int, list[int]]:
    """Which GPUs each process holds, by NVML's process lists."""
    found: dict[int, list[int]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            indexes = found.setdefault(process.pid, [])
            if gpu.index not in indexes:
                indexes.append(gpu.index)
    return found


def not_built() -> list[Gap]:
    return [Gap("links, kernel_events", "not collected by this version of mltop")]


def read_boot_id() -> str:
    try:
        with open(proc("sys/kernel/random/boot_id"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def exit_now(code: int) -> Any:
    """Leave without waiting for daemon threads that may be stuck in a system call."""
    sys.stdout.flush()
    os._exit(code)
