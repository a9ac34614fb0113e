"""What the user has done to ranks from the screen: signals, native dumps of one rank; and what came of it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mltop.probes.investigate.acting import RankProcess, Results
from mltop.probes.model import JobKey, JobReport, RankStacks
from mltop.probes.model.acts import SENT, DiagResult, LogTail, SignalName
from mltop.probes.reach.view import FleetView
from mltop.tui.app.past.travel import TravellingApp
from mltop.tui.app.selection import first_of
from mltop.tui.render.acts import (
    RasAsked,
    asked_cells,
    diagnosis_lines,
    diagnosis_words,
    event_words,
    ras_lines,
    results_words,
    tested_words,
    told_words,
    who,
)
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell
from mltop.tui.render.findings import Happening
from mltop.tui.screens.bars import Notice

if TYPE_CHECKING:  # what asks is imported when somebody wants to
    from mltop.probes.investigate.ras import RasPlan, RasTold
    from mltop.probes.investigate.session import LiveSession
    from mltop.tui.app.session import Session

MOST_SAID = 500
LOG_LINES, READ_EVERY_S = 200, 2.0
REFUSED_S = 300.0  # that a question was refused is shown for so long
READ_ONLY = Notice("off: --read-only (no dump, capture, probe, signal or diagnosis)", "warn")


@dataclass(frozen=True)
class NativeDump:
    """The newest of one rank. ``stacks`` None: it runs, or failed (``error``)."""

    stacks: RankStacks | None = None
    error: str = ""


@dataclass
class ReadLog:
    """What a rank has written last. ``asked_at``: monotonic s; ``waits``: for an answer; ``error``: why none came."""

    asked_at: float = 0.0
    waits: bool = False
    tails: Sequence[LogTail] = ()
    error: str = ""


class Acting:
    """What came of it. ``said``: what was done, for the events pane, the oldest first; ``natives``: by
    ``RankProcess.key``; ``ras``: what NCCL was asked about each job last. ``busy``: nodes that are diagnosed, and
    jobs of which it is found out whether NCCL may be asked.
    """

    def __init__(self) -> None:
        self.said: deque[Happening] = deque(maxlen=MOST_SAID)
        self.natives: dict[tuple[str, int], NativeDump] = {}
        self.ras: dict[JobKey, RasAsked] = {}
        self.busy: set[str | JobKey] = set()
        self.log: tuple[tuple[str, int], ReadLog] = (("", 0), ReadLog())  # of the rank that was looked at last
        self._count = 0

    def note(self, happening: Happening) -> None:
        """Say something in the events pane; its key is made here."""
        self._count += 1
        self.said.append(replace(happening, key=f"done/{self._count}"))


class ActingApp(TravellingApp):
    """What the app does for the keys that act upon ranks and nodes."""

    session: Session
    live: LiveSession | None  # None: a recording
    read_only: bool
    acting: Acting

    def later(self, take: Callable[..., None], *reports: object) -> None:
        """Have it called in the UI loop; from any thread."""
        self.call_later(take, *reports)

    def newest_view(self) -> FleetView:
        raise NotImplementedError

    def join_stacks(self, reports: Sequence[JobReport]) -> None:
        """Make incidents of them anew."""
        raise NotImplementedError

    def may_act(self) -> LiveSession | None:
        """The machines, where what touches a process or writes a file may begin; else the reason is shown."""
        if self.read_only:
            self.tell(READ_ONLY)
            return None
        return self.live if self.only_now() else None

    def ask(self, title: str, verb: str, text: Callable[[int], list[list[Cell]]], do: Callable[[], None]) -> None:
        """Ask, and ``do`` it after a yes. ``verb``: what y does; ``text``: the question, for a width."""
        from mltop.tui.screens.questions import Ask

        self.push_screen(Ask(title, verb, text), lambda yes: do() if yes else None)

    def ask_signal(self, processes: Sequence[RankProcess]) -> None:
        """Ask which signal these ranks are to get, and whether."""
        if (live := self.may_act()) is None:
            return
        from mltop.tui.screens.questions import AskSignal

        def send(name: SignalName | None) -> None:
            if name is not None:
                live.send_signal(name, processes, partial(self.later, sent, name))
                whom = who(processes[0]) if len(processes) == 1 else f"{len(processes)} ranks"
                self.tell(Notice(f"sending SIG{name} to {whom}", "accent"))

        def sent(name: SignalName, results: Results) -> None:
            for process in processes:
                result = results[process.key]
                style = "accent" if result.outcome in SENT else "warn"
                subject = f"pid {process.pid}" if process.rank is None else f"rank {process.rank}"
                now = self.newest_view().taken_at
                text = event_words(name, result)
                self.acting.note(Happening(now, process.node, "SIGNAL", style, subject, text, ""))
            words, style = results_words(name, processes, results)
            self.tell(Notice(words, style, more="" if len(processes) == 1 else _each()))

        self.push_screen(AskSignal(live, processes), send)

    def ask_diagnosis(self, node: str) -> None:
        if (live := self.may_act()) is None or not node:
            return

        def run() -> None:
            if node not in self.acting.busy:
                self.acting.busy.add(node)
                live.diagnose(node, partial(self.later, take))
            self.tell(Notice(f"dcgmi diag -r 1 runs on {node}", "accent"))

        def take(results: Sequence[DiagResult], error: str) -> None:
            self.acting.busy.discard(node)
            now, (words, style) = self.newest_view().taken_at, diagnosis_words(results, error)
            for result in results:
                its_style = {"fail": "crit", "warn": "warn", "pass": "ok"}.get(result.status, "dim")
                self.acting.note(Happening(now, node, "DIAG", its_style, result.test, tested_words(result), ""))
            self.tell(Notice(f"{node}: {words}", style, more=_each() if results else ""))

        self.ask("run a diagnosis?", "run", partial(diagnosis_lines, node), run)

    def dump_native(self, process: RankProcess, show: Callable[[str], None]) -> None:
        """With the frames of C, one at a time of each rank. ``show`` goes to where they will be seen; it takes the
        rank's key.
        """
        if (live := self.may_act()) is None:
            return

        def take(stacks: RankStacks | None, error: str) -> None:
            self.acting.natives[process.key] = NativeDump(stacks, error)
            self.tell(Notice(f"no C frames of {who(process)}: {error}", "warn") if stacks is None else None)

        show(f"{process.node}/{process.pid}")
        if self.acting.natives.get(process.key) != NativeDump():
            self.acting.natives[process.key] = NativeDump()
            live.dump_native(process, partial(self.later, take))
        self.tell(Notice(f"dumping the C frames of {who(process)}", "accent"))

    def log_of(self, process: RankProcess) -> ReadLog:
        """What is known of it; what is older is read again."""
        if self.acting.log[0] != process.key:
            self.acting.log = process.key, ReadLog(float("-inf"))
        log, now = self.acting.log[1], time.monotonic()

        def take(tails: Sequence[LogTail], error: str) -> None:
            log.waits, log.error, log.tails = False, error, tails or log.tails
            self.redraw()

        if self.live is not None and not log.waits and now - log.asked_at >= READ_EVERY_S:
            log.asked_at, log.waits = now, True
            self.live.log_tail(process, LOG_LINES, partial(self.later, take))
        return log

    # NCCL's RAS.

    def ras_cells(self, job: JobKey, now: float) -> list[Cell]:
        """What NCCL was asked about this job's processes, and when; [] where nothing, or in the past."""
        asked, result = self.acting.ras.get(job), self.investigation.result
        if asked is None or self.investigation.moment is not None:
            return []
        told = asked.told
        if told is not None and not told.asked and now - asked.at > REFUSED_S:
            return []
        own = [report for report in (result.reports if result is not None else ()) if report.job_key == job]
        processes = {(digest.node, digest.pid) for report in own for digest in report.digests}
        of_others = told is not None and told.asked and not told.processes & processes
        return [] if of_others else asked_cells(asked, now)

    def ask_ras(self, job: JobKey | None) -> None:
        """Ask NCCL's RAS about this job, once it is known whether that may be, and the user knows what it can do."""
        if (live := self.may_act()) is None:
            return
        result = self.investigation.result
        report = next((one for one in (result.reports if result else ()) if one.job_key == job), None)
        if report is None or self.investigation.dumping:
            why = "a dump runs" if self.investigation.dumping else "no job here is stuck"
            if job is not None and not self.investigation.dumping:
                why = f"its stacks must be known first: {KEYCAPS['dump']} dumps them"
            self.tell(Notice(f"NCCL's RAS is not asked: {why}", "warn"))
            return
        asked = self.acting.ras.get(report.job_key)
        if asked is not None and asked.waits:
            self.tell(Notice("NCCL's RAS is being asked: its answer takes some seconds", "accent"))
            return
        if report.job_key not in self.acting.busy:
            self.acting.busy.add(report.job_key)
            live.look_at_ras(report, partial(self.later, self._ask_as_planned, live, report))
        self.tell(None)

    def _ask_as_planned(self, live: LiveSession, report: JobReport, plan: RasPlan) -> None:
        """Say why it must not be asked, or ask whether it is to be."""
        from mltop.probes.investigate.ras import RasTold

        asked = self.acting.ras
        self.acting.busy.discard(plan.job)
        if plan.why:
            before = asked.get(plan.job)
            if before is None or before.told is None or not before.told.asked:  # else its answer still stands there
                told = RasTold(plan.job, why=f"not asked: {plan.why}")
                asked[plan.job] = RasAsked(self.newest_view().taken_at, told)
            self.tell(Notice(f"NCCL's RAS is not asked: {plan.why}", "warn"))
            return
        if len(self.screen_stack) > 1:
            return  # the user is being asked something else

        def ask() -> None:
            asked[plan.job] = RasAsked(self.newest_view().taken_at)
            live.ask_ras(report, partial(self.later, self._take_ras))
            self.tell(Notice(f"asking NCCL's RAS on {plan.node}, for up to 20 s", "accent"))

        self.ask("ask NCCL's RAS?", "ask", partial(ras_lines, plan), ask)

    def _take_ras(self, told: RasTold) -> None:
        now, text, style = self.newest_view().taken_at, told_words(told), "warn" if told.why else "accent"
        self.acting.ras[told.job] = RasAsked(now, told)
        self.acting.note(Happening(now, told.node, "RAS", style, told.job.name or "job", text, ""))
        if (joined := self.investigation.take_ras(told)) is not None:
            self.join_stacks([joined])
        self.tell(Notice(f"NCCL's RAS: {text}", style))

    # Slurm.

    def show_slurm_lines(self, nodes: Sequence[str]) -> None:
        if self.read_only:
            self.tell(READ_ONLY)
            return
        from mltop.tui.render.slurm import reason_of, run_by_slurm, slurm_lines
        from mltop.tui.screens.questions import SlurmBox

        findings = self.picture.findings if self.picture is not None else ()
        is_slurms = (self.live is not None and bool(self.live.job)) or run_by_slurm(self.newest_view().nodes)
        why = reason_of(findings, nodes)
        self.push_screen(
            SlurmBox(slurm_lines(nodes, why, is_slurms, os.environ.get("SHELL", "")), f"{first_of(nodes)}: for Slurm")
        )


def _each() -> str:
    return f"  {KEYCAPS['events']} shows each"
