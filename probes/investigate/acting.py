"""What is done to ranks at the user's word, over the connections that are there: signals, and what is asked before.

Each runs in a thread of its own and ends at its deadline: what a node says later is not waited for, and a node that
gets the request late refuses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from mltop.probes.investigate.advice import advised
from mltop.probes.investigate.progress import End, Run
from mltop.probes.model import RankSample, RankStacks
from mltop.probes.model.acts import DiagResult, LogTail, SignalFacts, SignalName, SignalResult
from mltop.probes.model.text import make_plain, plain_text
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.requests import Pending

ANSWER_S = 10.0  # of a node that answers at all
FACTS_S = 5.0
DIAGNOSIS_S = 240.0  # the node ends it after three minutes
MOST_TESTS = 256
MOST_LINE = 1024  # characters of a log's line
NATIVE_S = 30.0  # py-spy reads the symbols of every library
SILENT = "no answer within {:g} s"

Reply = TypeVar("Reply")
Answered = dict[str, Any] | str  # the data of a node's answer, or why it refuses


@dataclass(frozen=True)
class RankProcess:
    """A rank's process as the user saw it. ``started_at``: unix s, by its node's clock."""

    node: str
    pid: int
    started_at: float | None
    rank: int | None = None
    job: str = ""
    user: str = ""
    command: str = ""

    @classmethod
    def of(cls, node: str, rank: RankSample) -> RankProcess:
        return cls(node, rank.pid, rank.started_at, rank.rank, rank.job, rank.user, rank.command)

    @property
    def key(self) -> tuple[str, int]:
        return self.node, self.pid


Results = dict[tuple[str, int], SignalResult]  # by RankProcess.key
Facts = dict[tuple[str, int], SignalFacts]


class SignalRun(Run):
    """One signal to some ranks; ``on_done`` gets a result for each of them, whatever happens."""

    name = "signal"

    def __init__(
        self,
        hub: Hub,
        signal: SignalName,
        processes: Sequence[RankProcess],
        on_done: Callable[[Results], None],
        deadline_s: float = ANSWER_S,
    ) -> None:
        super().__init__(deadline_s)
        self._hub, self._signal, self._processes, self._on_done = hub, signal, processes, on_done
        self._results: Results = {}

    def _work(self) -> None:
        args = {}
        for node, pids in _by_node(self._processes).items():
            if (sample := self._hub.node(node).sample) is not None:
                args[node] = {"signal": self._signal, "processes": pids, "sampled_at": sample.sampled_at}
        answers = _ask(self._hub, "signal", args, self._stop.deadline_s)
        for process in self._processes:
            self._results[process.key] = self._result(process, args, answers)

    def _result(self, process: RankProcess, asked: Container[str], answers: Mapping[str, Answered]) -> SignalResult:
        answer = answers.get(process.node)
        if process.started_at is None:
            return SignalResult(process.pid, "failed", why="when it started is unknown, and pids are used again")
        if process.node not in asked:
            return SignalResult(process.pid, "failed", why="nothing was heard of this node")
        if answer is None:
            return SignalResult(process.pid, "unknown", why=SILENT.format(self._stop.deadline_s))
        results = answer if isinstance(answer, str) else _converted(answer.get("results"), list[SignalResult])
        if isinstance(results, str):
            return SignalResult(process.pid, "failed", why=plain_text(results))
        of_process = next((result for result in results if result.pid == process.pid), None)
        if of_process is None:
            return SignalResult(process.pid, "unknown", why="the node does not say")
        state, why = plain_text(of_process.state, 4), plain_text(of_process.why)
        return SignalResult(process.pid, of_process.outcome, state, why)

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - the results say it
        failed = {process.key: SignalResult(process.pid, "unknown", why=self.error) for process in self._processes}
        self._on_done({key: self._results.get(key, result) for key, result in failed.items()})


class FactsRun(Run):
    """What these ranks would do with signals; ``on_done`` gets what could be learned."""

    name = "look at signals"

    def __init__(self, hub: Hub, processes: Sequence[RankProcess], on_done: Callable[[Facts], None]) -> None:
        super().__init__(FACTS_S)
        self._hub, self._processes, self._on_done = hub, processes, on_done
        self._facts: Facts = {}

    def _work(self) -> None:
        args = {node: {"processes": pids} for node, pids in _by_node(self._processes).items()}
        wanted = {process.key for process in self._processes}
        for node, answer in _ask(self._hub, "signal_facts", args, self._stop.deadline_s).items():
            facts = answer if isinstance(answer, str) else _converted(answer.get("facts"), list[SignalFacts])
            if not isinstance(facts, str):
                self._facts.update(((node, each.pid), make_plain(each)) for each in facts if (node, each.pid) in wanted)

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - what is missing is unknown
        self._on_done(self._facts)


class NativeRun(Run):
    """One dump of one rank with the frames of C. ``on_done``: its stacks, or why there are none."""

    name = "native dump"

    def __init__(self, hub: Hub, process: RankProcess, on_done: Callable[[RankStacks | None, str], None]) -> None:
        super().__init__(NATIVE_S)
        self._hub, self._process, self._on_done = hub, process, on_done
        self._stacks: RankStacks | None = None

    def _work(self) -> None:
        node, pid = self._process.key
        pending = self._hub.request("stacks", {"native": True, "pids": [pid], "deadline_s": NATIVE_S}, nodes=[node])
        try:
            while pending.open_nodes and not self._stop.now:
                for answer in pending.answers(min(0.2, max(0.0, self._stop.left_s))):
                    message = answer.message
                    if message.stacks is not None and message.stacks.pid == pid:
                        self._stacks = message.stacks
                    self.error = message.error or self.error
        finally:
            pending.cancel()
        if self._stacks is None and not self.error:
            over = "is no rank (any more)" if not pending.open_nodes else SILENT.format(self._stop.deadline_s)
            self.error = f"pid {pid}: {over}"

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - what there is
        self._on_done(self._stacks, self.error)


class LogRun(Run):
    """The last lines that one rank has written. ``on_done``: the ends of its files, or why there are none."""

    name = "log"

    def __init__(
        self, hub: Hub, process: RankProcess, lines: int, on_done: Callable[[list[LogTail], str], None]
    ) -> None:
        super().__init__(ANSWER_S)
        self._hub, self._process, self._lines, self._on_done = hub, process, lines, on_done
        self._tails: list[LogTail] = []

    def _work(self) -> None:
        node, pid = self._process.key
        answer = _ask(self._hub, "log_tail", {node: {"pid": pid, "lines": self._lines}}, ANSWER_S).get(node)
        if answer is None:
            self.error = SILENT.format(ANSWER_S)
            return
        tails = answer if isinstance(answer, str) else _converted(answer.get("tails"), list[LogTail])
        if isinstance(tails, str):
            self.error = plain_text(tails)
            return
        for tail in tails[:2]:
            lines = [plain_text(line, MOST_LINE) for line in tail.lines[-self._lines :]]
            self._tails.append(replace(tail, file=plain_text(tail.file), lines=lines, why=plain_text(tail.why)))

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - what there is
        self._on_done(self._tails, self.error)


class DiagnosisRun(Run):
    """`dcgmi diag -r 1` on one node. ``on_done``: its results, or why there are none."""

    name = "diagnosis"

    def __init__(self, hub: Hub, node: str, on_done: Callable[[list[DiagResult], str], None]) -> None:
        super().__init__(DIAGNOSIS_S)
        self._hub, self._node, self._on_done = hub, node, on_done
        self._results: list[DiagResult] = []

    def _work(self) -> None:
        answer = _ask(self._hub, "diagnose", {self._node: {}}, self._stop.deadline_s).get(self._node)
        if answer is None:
            self.error = SILENT.format(self._stop.deadline_s)
            return
        results = answer if isinstance(answer, str) else _converted(answer.get("results"), list[DiagResult])
        if isinstance(results, str):
            self.error = plain_text(results)
        else:
            self._results = [make_plain(result) for result in results[:MOST_TESTS]]

    def _tell_end(self, end: End) -> None:  # noqa: ARG002 - what there is
        self._on_done(self._results, self.error)


def _by_node(processes: Iterable[RankProcess]) -> dict[str, list[dict[str, Any]]]:
    """What is asked of each node: those whose start is known."""
    by_node: dict[str, list[dict[str, Any]]] = {}
    for process in processes:
        if process.started_at is not None:
            by_node.setdefault(process.node, []).append({"pid": process.pid, "started_at": process.started_at})
    return by_node


def _ask(hub: Hub, op: str, args: Mapping[str, dict[str, Any]], deadline_s: float) -> dict[str, Answered]:
    """What each of these nodes answers, or why it refuses; those that are silent are left out."""
    until = time.monotonic() + deadline_s
    answers: dict[str, Answered] = {}
    pending: Pending | None = None
    for node, of_node in args.items():
        pending = hub.request(op, of_node, [node], pending)
    if pending is None:
        return answers
    while pending.open_nodes and time.monotonic() < until:
        for answer in pending.answers(max(0.0, until - time.monotonic())):
            message = answer.message
            if message.kind == "done":
                answers[answer.node] = message.data
            elif message.kind == "error":
                answers[answer.node] = message.error + (f" ({advised(message.fix)})" if message.fix else "")
    pending.cancel()  # what has not been sent yet never will be
    return answers


def _converted(value: object, kind: type[Reply]) -> Reply | str:
    """What a node says, in our words; else why it cannot be understood."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return f"its answer is refused: {error}"
