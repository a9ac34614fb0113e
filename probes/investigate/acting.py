"""What is done to ranks at the user's word, over the connections that are there: signals, and what is asked before.

Each runs in a thread of its own and ends at its deadline: what a node says later is not waited for, and a node that
gets the request late refuses it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from mltop.probes.investigate.advice import advised
from mltop.probes.investigate.progress import NoAnswer, Question, Run, Stop
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


def send_signal(
    hub: Hub,
    signal: SignalName,
    processes: Sequence[RankProcess],
    on_done: Callable[[Results], None],
    deadline_s: float = ANSWER_S,
) -> Run:
    """One signal to some ranks; ``on_done`` gets a result for each of them, whatever happens."""

    def ask(stop: Stop) -> Results:
        args = {}
        for node, pids in _by_node(processes).items():
            if (sample := hub.node(node).sample) is not None:
                args[node] = {"signal": signal, "processes": pids, "sampled_at": sample.sampled_at}
        answers = _ask(hub, "signal", args, stop.deadline_s)
        return {each.key: _signal_result(each, args, answers, stop.deadline_s) for each in processes}

    def on_results(results: Results, error: str) -> None:
        failed = {process.key: SignalResult(process.pid, "unknown", why=error) for process in processes}
        on_done({**failed, **results})

    return Question[Results]("signal", deadline_s, ask, {}, on_results)


def _signal_result(
    process: RankProcess, asked: Container[str], answers: Mapping[str, Answered], deadline_s: float
) -> SignalResult:
    answer = answers.get(process.node)
    if process.started_at is None:
        return SignalResult(process.pid, "failed", why="when it started is unknown, and pids are used again")
    if process.node not in asked:
        return SignalResult(process.pid, "failed", why="nothing was heard of this node")
    if answer is None:
        return SignalResult(process.pid, "unknown", why=SILENT.format(deadline_s))
    try:
        results = _converted(answer, "results", SignalResult)
    except NoAnswer as error:
        return SignalResult(process.pid, "failed", why=str(error))
    of_process = next((result for result in results if result.pid == process.pid), None)
    if of_process is None:
        return SignalResult(process.pid, "unknown", why="the node does not say")
    state, why = plain_text(of_process.state, 4), plain_text(of_process.why)
    return SignalResult(process.pid, of_process.outcome, state, why)


def signal_facts(hub: Hub, processes: Sequence[RankProcess], on_done: Callable[[Facts], None]) -> Run:
    """What these ranks would do with signals; ``on_done`` gets what could be learned."""

    def ask(stop: Stop) -> Facts:
        args = {node: {"processes": pids} for node, pids in _by_node(processes).items()}
        wanted, found = {process.key for process in processes}, {}
        for node, answer in _ask(hub, "signal_facts", args, stop.deadline_s).items():
            with contextlib.suppress(NoAnswer):  # what is missing is unknown
                facts = _converted(answer, "facts", SignalFacts)
                found.update({(node, each.pid): make_plain(each) for each in facts if (node, each.pid) in wanted})
        return found

    return Question[Facts]("look at signals", FACTS_S, ask, {}, lambda facts, _: on_done(facts))


def dump_native(hub: Hub, process: RankProcess, on_done: Callable[[RankStacks | None, str], None]) -> Run:
    """One dump of one rank with the frames of C. ``on_done``: its stacks, or why there are none."""

    def ask(stop: Stop) -> RankStacks | None:
        node, pid = process.key
        stacks, why = None, ""
        pending = hub.request("stacks", {"native": True, "pids": [pid], "deadline_s": NATIVE_S}, nodes=[node])
        try:
            while pending.open_nodes and not stop.now:
                for answer in pending.answers(min(0.2, max(0.0, stop.left_s))):
                    message = answer.message
                    if message.stacks is not None and message.stacks.pid == pid:
                        stacks = message.stacks
                    why = message.error or why
        finally:
            pending.cancel()
        if stacks is None:
            over = "is no rank (any more)" if not pending.open_nodes else SILENT.format(stop.deadline_s)
            raise NoAnswer(why or f"pid {pid}: {over}")
        return stacks

    return Question("native dump", NATIVE_S, ask, None, on_done)


def log_tail(hub: Hub, process: RankProcess, lines: int, on_done: Callable[[list[LogTail], str], None]) -> Run:
    """The last lines that one rank has written. ``on_done``: the ends of its files, or why there are none."""

    def plain(tail: LogTail) -> LogTail:
        shown = [plain_text(line, MOST_LINE) for line in tail.lines[-lines:]]
        return replace(tail, file=plain_text(tail.file), lines=shown, why=plain_text(tail.why))

    def ask(stop: Stop) -> list[LogTail]:
        answer = _ask_one(hub, "log_tail", process.node, {"pid": process.pid, "lines": lines}, stop)
        return [plain(tail) for tail in _converted(answer, "tails", LogTail)[:2]]

    return Question[list[LogTail]]("log", ANSWER_S, ask, [], on_done)


def diagnose(hub: Hub, node: str, on_done: Callable[[list[DiagResult], str], None]) -> Run:
    """`dcgmi diag -r 1` on one node. ``on_done``: its results, or why there are none."""

    def ask(stop: Stop) -> list[DiagResult]:
        answer = _ask_one(hub, "diagnose", node, {}, stop)
        return [make_plain(result) for result in _converted(answer, "results", DiagResult)[:MOST_TESTS]]

    return Question[list[DiagResult]]("diagnosis", DIAGNOSIS_S, ask, [], on_done)


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


def _ask_one(hub: Hub, op: str, node: str, args: dict[str, Any], stop: Stop) -> Answered:
    """Raises NoAnswer when the node is silent."""
    answer = _ask(hub, op, {node: args}, stop.deadline_s).get(node)
    if answer is None:
        raise NoAnswer(SILENT.format(stop.deadline_s))
    return answer


def _converted(answer: Answered, field: str, kind: type[Reply]) -> list[Reply]:
    """What a node says, in our words. Raises NoAnswer when it refuses, or cannot be understood."""
    if isinstance(answer, str):
        raise NoAnswer(plain_text(answer))
    try:
        return msgspec.convert(answer.get(field), list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise NoAnswer(plain_text(f"its answer is refused: {error}")) from None
