"""What runs beside its caller (a stack dump, a capture, a probe): its thread, its end, and what it reports."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from mltop.probes.model import JobReport, NodeState

End = Literal["done", "cancelled", "failed"]
StackPhase = Literal["connecting", "dumping", "watching", "judging"] | End
FINISHED: tuple[End, ...] = ("done", "cancelled", "failed")


class Stop:
    """When to end: after ``deadline_s`` seconds, or when somebody cancels, from any thread."""

    def __init__(self, deadline_s: float) -> None:
        self.began = time.monotonic()
        self.deadline_s = deadline_s
        self.cancelled = threading.Event()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        return self.deadline_s - self.elapsed_s

    @property
    def now(self) -> bool:
        return self.cancelled.is_set() or self.left_s <= 0


AnyRun = TypeVar("AnyRun", bound="Run")
Reply = TypeVar("Reply")


class Run(ABC):
    """Work in a daemon thread of its own. ``error``: one sentence when it failed."""

    name = ""  # "dump"

    def __init__(self, deadline_s: float) -> None:
        self.error = ""
        self._stop = Stop(deadline_s)
        self._finished = threading.Event()

    def start(self: AnyRun) -> AnyRun:
        threading.Thread(target=self._run, name=f"mltop-{self.name}", daemon=True).start()
        return self

    def cancel(self) -> None:
        self._stop.cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._stop.cancelled.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has finished, after waiting for that for at most ``timeout_s`` seconds (None: any time)."""
        return self._finished.wait(timeout_s)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - a thread of its own: the caller must hear of it
            self.error = f"the {self.name} failed: {type(error).__name__}: {error}"
        try:
            self._tell_end("failed" if self.error else "cancelled" if self.cancelled else "done")
        finally:
            self._finished.set()

    @abstractmethod
    def _work(self) -> None: ...

    @abstractmethod
    def _tell_end(self, end: End) -> None:
        """Reports for the last time."""


class NoAnswer(Exception):
    """Why there is none, in one sentence."""


class Question(Run, Generic[Reply]):
    """Something that is asked and waited for. ``on_done`` gets what ``ask`` gives, or ``nothing`` and why there is no
    answer: it raised NoAnswer, or failed.
    """

    def __init__(
        self,
        name: str,
        deadline_s: float,
        ask: Callable[[Stop], Reply],
        nothing: Reply,
        on_done: Callable[[Reply, str], None],
    ) -> None:
        super().__init__(deadline_s)
        self.name = name
        self._ask, self._reply, self._on_done = ask, nothing, on_done

    def _work(self) -> None:
        try:
            self._reply = self._ask(self._stop)
        except NoAnswer as why:
            self.error = str(why)

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - what there is
        self._on_done(self._reply, self.error)


@dataclass(frozen=True)
class StackProgress:
    """``reports`` holds partial results while running and the final ones when done; ``error`` is one plain sentence
    when it failed. ``not_answered``: nodes without a full answer so far (the final ones when finished), with reason.
    """

    phase: StackPhase
    round: int = 0
    rounds: int = 0
    ranks_done: int = 0
    ranks_expected: int | None = None
    elapsed_s: float = 0.0
    reports: tuple[JobReport, ...] = ()
    not_answered: tuple[NodeState, ...] = ()
    error: str = ""
    nodes_total: int = 0
    nodes_reached: int = 0  # they send samples, or did when they were dumped
    nodes_answered: int = 0  # they have answered at least once in full

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED


@dataclass(frozen=True)
class CaptureResult:
    """Where a capture went; ``problems`` lists what is missing from it, each a plain sentence.

    ``cancelled``: it was interrupted, what was known is in the directory. ``error``: nothing could be written.
    """

    directory: Path
    problems: tuple[str, ...] = ()
    cancelled: bool = False
    error: str = ""
