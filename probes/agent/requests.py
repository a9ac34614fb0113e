"""What a caller can ask of an agent beside samples: each operation runs in a thread of its own and can be cancelled."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Optional

from mltop.probes.agent.programs import Programs, Unavailable
from mltop.probes.agent.protocol import Message, Operation, Request
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.model import RankSample, RankStacks
from mltop.probes.system.limits import limit_words

if TYPE_CHECKING:
    from mltop.probes.agent.probing import Probing
    from mltop.probes.agent.sampler import Samples
    from mltop.probes.collect.logs.pipes import PipeReaders
    from mltop.probes.collect.stacks import StackOptions
    from mltop.probes.model.probe import ProbeEvent

Send = Callable[[Message], None]
Answer = dict[str, Any]  # the data of the frame "done"
Process = Callable[[int], Optional[RankSample]]


def _none(pid: int) -> None:
    """No process beside those that are given."""


class Requests:
    """Runs requests. ``ranks`` gives the newest roster, waiting for the first one if it must; ``unassigned`` afterwards
    the processes of no job, ``process`` any one that this agent may look at.

    ``receives``: the caller can send us files. False where our stdin is not the caller's (pdsh).
    ``samples``: the newest ones, for probes; ``history``: those of the last minutes, packed, in so many bytes at most.
    """

    def __init__(
        self,
        send: Send,
        ranks: Callable[[], list[RankSample]],
        *,
        receives: bool = True,
        samples: Samples | None = None,
        history: Callable[[int], list[bytes]] = lambda _: [],
        unassigned: Callable[[], list[RankSample]] = list,
        process: Process = _none,
    ) -> None:
        self._send = send
        self._ranks = ranks
        self._unassigned = unassigned
        self._process = process
        self._receives = receives
        self._samples = samples
        self._history_of = history
        self._probing: Probing | None = None  # loaded when it is first needed: most agents never probe
        self.programs = Programs(send, receives)
        self._chosen_by_hand = bool(os.environ.get("MLTOP_PY_SPY"))
        self._cancels: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._pipes: PipeReaders | None = None
        self._lock_of_pipes = threading.Lock()
        # What only one of them needs is imported there: most agents are asked for few.
        self._operations: dict[Operation, Callable[[Request, threading.Event], Answer]] = {
            "stacks": self._stacks,
            "doctor": lambda *_: {
                "checks": [vars(check) for check in import_module("mltop.probes.collect.abilities").abilities()]
            },
            "kernel_lines": lambda *_: import_module("mltop.probes.collect.kernel_log").kernel_lines(),
            "probe": self._probe,
            "signal": self._signal,
            "diagnose": self._diagnose,
            "signal_facts": self._signal_facts,
            "probe_tell": self._probe_tell,
            "log_tail": self._log_tail,
            "ras": self._ras,
            "records": self._records,
            "history": self._history,
        }

    def start(self, request: Request) -> None:
        """Begin one request; its answer ends with one frame of kind done or error."""
        cancelled = threading.Event()
        with self._lock:
            self._cancels[request.id] = cancelled
        threading.Thread(target=self._run, args=(request, cancelled), name=f"mltop-{request.op}", daemon=True).start()

    def cancel(self, request_id: int) -> None:
        with self._lock:
            cancelled = self._cancels.get(request_id)
        if cancelled is not None:
            cancelled.set()

    def cancel_all(self) -> None:
        """Cancel everything, at exit: py-spy and probe processes are ended by the request that owns them."""
        with self._lock:
            for cancelled in self._cancels.values():
                cancelled.set()

    def _run(self, request: Request, cancelled: threading.Event) -> None:
        operation = next((run for name, run in self._operations.items() if name == request.op), None)
        try:
            if operation is None:
                raise Unavailable(f"unknown operation {request.op!r}")
            answer = operation(request, cancelled)
            self._send(Message("done", id=request.id, data=answer))
        except Unavailable as missing:
            self._send(Message("error", id=request.id, error=str(missing), fix=missing.fix))
        except Exception as error:  # noqa: BLE001 - the caller is told; a thread's traceback would reach nobody
            why = limit_words(error) or f"{type(error).__name__}: {shown_text(str(error))}"
            self._send(Message("error", id=request.id, error=why))
        finally:
            with self._lock:
                self._cancels.pop(request.id, None)

    def _stacks(self, request: Request, cancelled: threading.Event) -> Answer:
        from mltop.probes.collect.ranks import read_counters
        from mltop.probes.collect.stacks import dump_ranks

        ranks = chosen(self._ranks(), request.args, self._unassigned(), self._process)
        self._send(Message("part", id=request.id, expected=len(ranks)))

        def emit(stacks: RankStacks) -> None:
            self._send(Message("part", id=request.id, stacks=stacks))

        if ranks:
            self._provide_py_spy(request, cancelled)
        records = None
        if request.args.get("records"):
            from mltop.probes.collect.records.of_ranks import RecordReading

            records = RecordReading(ranks, cancelled)
        dump_ranks(ranks, stack_options(request.args), read_counters, emit, cancelled)
        for told in records.finished() if records is not None else ():
            self._send(Message("part", id=request.id, records=told))
        return {"cancelled": cancelled.is_set()}

    def _history(self, request: Request, cancelled: threading.Event) -> Answer:
        for packed in self._history_of(int(request.args.get("bytes") or 0)):
            if cancelled.is_set():
                break
            self._send(Message("part", id=request.id, packed=base64.b64encode(packed).decode("ascii")))
        return {}

    def _records(self, request: Request, cancelled: threading.Event) -> Answer:
        """Those that ranks have written within the last ``newer_s`` seconds."""
        from mltop.probes.collect.records.of_ranks import RecordReading

        ranks = chosen(self._ranks(), request.args, self._unassigned(), self._process)
        for told in RecordReading(ranks, cancelled, newer_s=float(request.args.get("newer_s") or 0.0)).finished():
            self._send(Message("part", id=request.id, records=told))
        return {}

    def _provide_py_spy(self, request: Request, cancelled: threading.Event) -> None:
        """See that ``find_py_spy`` finds one: the caller's where the agent came from the caller, else our own.

        ``args["py_spy"]``: sha256 of the caller's, absent when it does not send one.
        """
        from mltop.probes.collect.stacks import find_py_spy

        sha256 = str(request.args.get("py_spy") or "")
        is_installed = "MLTOP_CACHE" not in os.environ
        if not sha256 or self._chosen_by_hand or (is_installed and find_py_spy()):
            return
        try:
            os.environ["MLTOP_PY_SPY"] = self.programs.program("py-spy", sha256, request.id, cancelled)
        except Unavailable:
            os.environ.pop("MLTOP_PY_SPY", None)
            if not cancelled.is_set() and not find_py_spy():
                raise

    def _signal(self, request: Request, cancelled: threading.Event) -> Answer:
        from mltop.probes.agent.signals import send_signals

        return send_signals(request.args, self._ranks(), cancelled)

    def _signal_facts(self, request: Request, cancelled: threading.Event) -> Answer:  # noqa: ARG002 - answers at once
        from mltop.probes.agent.signals import signal_facts

        return signal_facts(request.args, self._ranks())

    def _log_tail(self, request: Request, cancelled: threading.Event) -> Answer:  # noqa: ARG002 - reads 512 KB
        from mltop.probes.collect.logs.follow import last_lines
        from mltop.probes.collect.logs.pipes import PipeReaders

        pid, lines = request.args.get("pid"), request.args.get("lines")
        if not isinstance(pid, int) or not isinstance(lines, int) or lines < 1:
            raise Unavailable("log_tail needs a pid and a number of lines")
        found = chosen(self._ranks(), {"pids": [pid]}, self._unassigned(), self._process)
        if not found:
            raise Unavailable(f"pid {pid} is no rank (any more)")
        with self._lock_of_pipes:
            self._pipes = self._pipes or PipeReaders(lambda _: None)
            behind_pipes = self._pipes.files_of([rank for rank in self._ranks() if rank.uid == found[0].uid])
        return {"tails": [vars(tail) for tail in last_lines(pid, lines, behind_pipes)]}

    def _diagnose(self, request: Request, cancelled: threading.Event) -> Answer:  # noqa: ARG002 - there is one kind
        from mltop.probes.agent.diagnosis import diagnose

        if self._samples is None:
            raise Unavailable("this agent takes no samples, so it does not know whether the node is free")
        return diagnose(self._ranks(), self._samples, cancelled)

    def _ras(self, request: Request, cancelled: threading.Event) -> Answer:  # noqa: ARG002 - has a deadline of its own
        from mltop.probes.agent.ras import ask_nccl

        return ask_nccl(request.args, self._ranks())

    def _probe(self, request: Request, cancelled: threading.Event) -> Answer:
        from mltop.probes.active.child import fields_of
        from mltop.probes.collect.redaction.process import shown_settings

        if request.args.get("kind") == "all_reduce" and not self._receives:
            why = "a collective gets its rounds while it runs, and nothing reaches a running probe this way"
            raise Unavailable(why, "--via ssh or --via srun")

        def emit(event: ProbeEvent) -> None:
            event.text, event.why = shown_text(event.text), shown_text(event.why)
            if isinstance(event.data.get("inherited"), dict):  # NCCL's variables, as the job or the user has set them
                event.data["inherited"] = shown_settings(event.data["inherited"])
            self._send(Message("part", id=request.id, data=fields_of(event)))

        self._prober().probe(request.args, emit, cancelled)
        return {"cancelled": cancelled.is_set()}

    def _probe_tell(self, request: Request, cancelled: threading.Event) -> Answer:  # noqa: ARG002 - answers at once
        self._prober().tell(request.args)
        return {}

    def _prober(self) -> Probing:
        from mltop.probes.agent.probing import Probing

        if self._samples is None:
            raise Unavailable("this agent takes no samples, so it does not know whether the node is free")
        with self._lock:
            self._probing = self._probing or Probing(self._samples)
            return self._probing


def chosen(
    ranks: list[RankSample], args: dict[str, Any], unassigned: Iterable[RankSample] = (), process: Process = _none
) -> list[RankSample]:
    """The ranks a stacks request is about: ``job`` (one job's) and ``pids`` narrow it; dead ones have no stack.

    ``pids`` may be processes of no job, too, and any other that ``process`` gives; of no job are all wanted with
    ``unassigned``: each is a job of its own. The users take turns: a thousand processes of one that are slow to dump
    keep no other's waiting.
    """
    job, pids = args.get("job"), args.get("pids")
    if pids is not None or args.get("unassigned"):
        ranks = [*ranks, *map(as_job, unassigned)]
    if pids is not None:
        known = {rank.pid for rank in ranks}
        others = [process(pid) for pid in pids if isinstance(pid, int) and pid not in known]
        ranks = [*ranks, *(as_job(other) for other in others if other is not None)]
    turns: dict[Any, int] = {}
    with_turns = []
    for rank in ranks:
        if rank.state != "Z" and (not job or rank.job == job) and (pids is None or rank.pid in pids):
            turns[rank.uid] = turns.get(rank.uid, 0) + 1
            with_turns.append((turns[rank.uid], rank))
    return [rank for _, rank in sorted(with_turns, key=lambda turn_and_rank: turn_and_rank[0])]


def as_job(process: RankSample) -> RankSample:
    """A process of no job, as the only one of a job that is called as itself."""
    return replace(process, job=f"pid {process.pid}")


def stack_options(args: dict[str, Any]) -> StackOptions:
    from mltop.probes.collect.stacks import StackOptions

    usual = StackOptions()
    return StackOptions(
        native=bool(args.get("native", usual.native)),
        ints=bool(args.get("ints", usual.ints)),
        raw=bool(args.get("raw", usual.raw)),
        deadline_s=float(args.get("deadline_s", usual.deadline_s)),
    )
