"""What the user has done to ranks from the screen: signals, native dumps of one rank; and what came of it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec

from textual.events import Callback
from textual.message import Message

from mltop.probes.investigate.acting import RankProcess, Results
from mltop.probes.model import JobKey, JobReport, RankStacks
from mltop.probes.model.acts import SENT, DiagResult, LogTail, SignalName
from mltop.probes.reach.view import FleetView
from mltop.tui.app.past.travel import TravellingApp
from mltop.tui.app.selection import first_of
from mltop.tui.app.session import Acts, AsksRas, Session
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

P = ParamSpec("P")

MOST_SAID = 500
LOG_LINES, READ_EVERY_S = 200, 2.0
REFUSED_S = 300.0  # that a question was refused is shown for so long
READ_ONLY = Notice("off: --read-only (no dump, capture, probe, signal or diagnosis)", "warn")
CANNOT = Notice("this needs live nodes: what is shown here takes no orders", "warn")


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
    """Lives in the UI loop. ``said``: what was done, for the events pane, the oldest first; ``natives``: by
    ``RankProcess.key``; ``ras``: what NCCL was asked about each job last.
    """

    def __init__(self, post: Callable[[Message], None]) -> None:
        self._post = post
        self._count = 0
        self._diagnosing: set[str] = set()
        self.said: deque[Happening] = deque(maxlen=MOST_SAID)
        self.natives: dict[tuple[str, int], NativeDump] = {}
        self.ras: dict[JobKey, RasAsked] = {}
        self._looking: set[JobKey] = set()
        self._log: tuple[tuple[str, int], ReadLog] = (("", 0), ReadLog())  # of the rank that was looked at last

    def _in_loop(self, take: Callable[P, None]) -> Callable[P, None]:
        """A callback for a session, which calls it in another thread: ``take`` is called in the UI loop."""

        def post(*args: P.args, **options: P.kwargs) -> None:
            self._post(Callback(partial(take, *args, **options)))

        return post

    def send(
        self, session: Acts, name: SignalName, processes: Sequence[RankProcess], take: Callable[[Results], None]
    ) -> Notice:
        session.send_signal(name, processes, self._in_loop(take))
        whom = who(processes[0]) if len(processes) == 1 else f"{len(processes)} ranks"
        return Notice(f"sending SIG{name} to {whom}", "accent")

    def take_results(self, name: SignalName, processes: Sequence[RankProcess], results: Results, now: float) -> Notice:
        """``now``: unix s, of the newest view."""
        for process in processes:
            result = results[process.key]
            style = "accent" if result.outcome in SENT else "warn"
            text = event_words(name, result)
            self.note(Happening(now, process.node, "SIGNAL", style, _subject(process), text, ""))
        words, style = results_words(name, processes, results)
        return Notice(words, style, more="" if len(processes) == 1 else _each())

    def dump_native(self, session: Acts, process: RankProcess, tell: Callable[[Notice | None], None]) -> Notice:
        """One at a time of each rank. ``tell`` gets why there are no frames, if so."""

        def take(stacks: RankStacks | None, error: str) -> None:
            self.natives[process.key] = NativeDump(stacks, error)
            tell(Notice(f"no C frames of {who(process)}: {error}", "warn") if stacks is None else None)

        if self.natives.get(process.key) != NativeDump():
            self.natives[process.key] = NativeDump()
            session.dump_native(process, self._in_loop(take))
        return Notice(f"dumping the C frames of {who(process)}", "accent")

    def log_of(self, session: object, process: RankProcess, clock_s: float, redraw: Callable[[], None]) -> ReadLog:
        """What is known of it; what is older is read again, and ``redraw`` called. ``clock_s``: monotonic."""
        if self._log[0] != process.key:
            self._log = process.key, ReadLog(float("-inf"))
        log = self._log[1]

        def take(tails: Sequence[LogTail], error: str) -> None:
            log.waits, log.error, log.tails = False, error, tails or log.tails
            redraw()

        if isinstance(session, Acts) and not log.waits and clock_s - log.asked_at >= READ_EVERY_S:
            log.asked_at, log.waits = clock_s, True
            session.log_tail(process, LOG_LINES, self._in_loop(take))
        return log

    def diagnose(self, session: Acts, node: str, take: Callable[[Sequence[DiagResult], str], None]) -> Notice:
        """One at a time on each node."""
        if node not in self._diagnosing:
            self._diagnosing.add(node)
            session.diagnose(node, self._in_loop(take))
        return Notice(f"dcgmi diag -r 1 runs on {node}", "accent")

    def take_diagnosis(self, node: str, results: Sequence[DiagResult], error: str, now: float) -> Notice:
        """``now``: unix s, of the newest view."""
        self._diagnosing.discard(node)
        words, style = diagnosis_words(results, error)
        for result in results:
            its_style = {"fail": "crit", "warn": "warn", "pass": "ok"}.get(result.status, "dim")
            self.note(Happening(now, node, "DIAG", its_style, result.test, tested_words(result), ""))
        return Notice(f"{node}: {words}", style, more=_each() if results else "")

    def look_at_ras(self, session: AsksRas, report: JobReport, take: Callable[[RasPlan], None]) -> Notice | None:
        """Have it looked at whether it may be asked about this job; one question at a time."""
        job = report.job_key
        asked = self.ras.get(job)
        if asked is not None and asked.waits:
            return Notice("NCCL's RAS is being asked: its answer takes some seconds", "accent")
        if job not in self._looking:
            self._looking.add(job)
            session.look_at_ras(report, self._in_loop(take))
        return None

    def take_ras_plan(self, plan: RasPlan, now: float) -> Notice | None:
        """Why it must not be asked; None where the user is to be. ``now``: unix s, of the newest view."""
        from mltop.probes.investigate.ras import RasTold

        self._looking.discard(plan.job)
        if not plan.why:
            return None
        before = self.ras.get(plan.job)
        if before is None or before.told is None or not before.told.asked:  # else its answer still stands there
            self.ras[plan.job] = RasAsked(now, RasTold(plan.job, why=f"not asked: {plan.why}"))
        return Notice(f"NCCL's RAS is not asked: {plan.why}", "warn")

    def ask_ras(
        self, session: AsksRas, report: JobReport, plan: RasPlan, now: float, take: Callable[[RasTold], None]
    ) -> Notice:
        self.ras[plan.job] = RasAsked(now)
        session.ask_ras(report, self._in_loop(take))
        return Notice(f"asking NCCL's RAS on {plan.node}, for up to 20 s", "accent")

    def take_ras(self, told: RasTold, now: float) -> Notice:
        """``now``: unix s, of the newest view."""
        self.ras[told.job] = RasAsked(now, told)
        style = "warn" if told.why else "accent"
        text = told_words(told)
        self.note(Happening(now, told.node, "RAS", style, told.job.name or "job", text, ""))
        return Notice(f"NCCL's RAS: {text}", style)

    def note(self, happening: Happening) -> None:
        """Say something in the events pane; its key is made here."""
        self._count += 1
        self.said.append(replace(happening, key=f"done/{self._count}"))


class ActingApp(TravellingApp):
    """What the app does for the keys that act upon ranks and nodes."""

    session: Session
    read_only: bool
    acting: Acting

    def newest_view(self) -> FleetView:
        raise NotImplementedError

    def join_stacks(self, reports: Sequence[JobReport]) -> None:
        """Make incidents of them anew."""
        raise NotImplementedError

    def _acts(self) -> Acts | None:
        """The session, where its ranks may be acted upon; else the reason is said."""
        if self.read_only:
            self.tell(READ_ONLY)
        elif not isinstance(self.session, Acts):
            self.tell(CANNOT)
        elif self.only_now():
            return self.session
        return None

    def ask_signal(self, processes: Sequence[RankProcess]) -> None:
        """Ask which signal these ranks are to get, and whether."""
        session = self._acts()
        if session is None:
            return
        from mltop.tui.screens.questions import AskSignal

        def send(name: SignalName | None) -> None:
            if name is not None:
                self.tell(self.acting.send(session, name, processes, partial(sent, name)))

        def sent(name: SignalName, results: Results) -> None:
            self.tell(self.acting.take_results(name, processes, results, self.newest_view().taken_at))

        self.push_screen(AskSignal(session, processes), send)

    def ask_diagnosis(self, node: str) -> None:
        session = self._acts()
        if session is None or not node:
            return
        from mltop.tui.screens.questions import Ask

        def run(yes: bool | None) -> None:
            if yes:
                self.tell(self.acting.diagnose(session, node, take))

        def take(results: Sequence[DiagResult], error: str) -> None:
            self.tell(self.acting.take_diagnosis(node, results, error, self.newest_view().taken_at))

        self.push_screen(Ask("run a diagnosis?", "run", partial(diagnosis_lines, node)), run)

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
        if self.read_only:
            self.tell(READ_ONLY)
            return
        if not self.only_now():
            return
        if not isinstance(self.session, AsksRas):
            self.tell(CANNOT)
            return
        result = self.investigation.result
        reports = result.reports if result is not None else ()
        report = next((one for one in reports if one.job_key == job), None)
        if report is None or self.investigation.dumping:
            why = "a dump runs" if self.investigation.dumping else "no job that stands still is here"
            if job is not None and not self.investigation.dumping:
                why = f"its stacks must be known first: {KEYCAPS['dump']} dumps them"
            self.tell(Notice(f"NCCL's RAS is not asked: {why}", "warn"))
            return
        self.tell(self.acting.look_at_ras(self.session, report, partial(self._ask_as_planned, report)))

    def _ask_as_planned(self, report: JobReport, plan: RasPlan) -> None:
        now, session = self.newest_view().taken_at, self.session
        if (notice := self.acting.take_ras_plan(plan, now)) is not None:
            self.tell(notice)
            return
        if len(self.screen_stack) > 1 or not isinstance(session, AsksRas):
            return  # the user is being asked something else
        from mltop.tui.screens.questions import Ask

        def ask(yes: bool | None) -> None:
            if yes:
                now = self.newest_view().taken_at
                self.tell(self.acting.ask_ras(session, report, plan, now, self._take_ras))

        self.push_screen(Ask("ask NCCL's RAS?", "ask", partial(ras_lines, plan)), ask)

    def _take_ras(self, told: RasTold) -> None:
        notice = self.acting.take_ras(told, self.newest_view().taken_at)
        joined = self.investigation.take_ras(told)
        if joined is not None:
            self.join_stacks([joined])
        self.tell(notice)

    def show_slurm_lines(self, nodes: Sequence[str], reason: str) -> None:
        """``reason``: where the health rules found nothing wrong with these nodes."""
        if self.read_only:
            self.tell(READ_ONLY)
            return
        from mltop.tui.render.slurm import reason_of, run_by_slurm, slurm_lines
        from mltop.tui.screens.questions import SlurmBox

        findings = self.picture.findings if self.picture is not None else ()
        is_slurms = bool(getattr(self.session, "job", None)) or run_by_slurm(self.newest_view().nodes)
        why = reason_of(findings, nodes) or reason
        self.push_screen(
            SlurmBox(slurm_lines(nodes, why, is_slurms, os.environ.get("SHELL", "")), f"{first_of(nodes)}: for Slurm")
        )

    def dump_native(self, process: RankProcess, show: Callable[[str], None]) -> None:
        """``show`` goes to where it will be seen; it takes the rank's key."""
        session = self._acts()
        if session is not None:
            show(f"{process.node}/{process.pid}")
            self.tell(self.acting.dump_native(session, process, self.tell))


def _each() -> str:
    return f"  {KEYCAPS['events']} shows each"


def _subject(process: RankProcess) -> str:
    return f"pid {process.pid}" if process.rank is None else f"rank {process.rank}"
