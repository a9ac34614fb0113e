"""A session whose ranks can be acted upon: what the screen asks for is kept, answers are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from mltop.probes.investigate.acting import Facts, RankProcess, Results
from mltop.probes.investigate.ras import RasPlan, RasTold
from mltop.probes.model import JobKey, JobReport, RankStacks
from mltop.probes.model.acts import DiagResult, LogTail, SignalFacts, SignalName, SignalResult
from mltop.probes.model.sample import UNLIMITED
from tests.tui.fake_session import FakeSession


def facts_of(pid: int, caught: Sequence[str] = ("TERM", "USR1")) -> SignalFacts:
    return SignalFacts(
        pid,
        caught=list(caught),
        core_pattern="|/lib/systemd/systemd-coredump %P %u",
        core_limit_bytes=UNLIMITED,
        core_bytes=65 << 30,
        dumpable="yes",
    )


class Asked:
    def cancel(self) -> None:
        """What is sent is sent."""


class ActingSession(FakeSession):
    """``signals``: what was sent to whom; ``outcomes``: of pids, what came of it (others end)."""

    facts_come = True

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.signals: list[tuple[SignalName, list[tuple[str, int]]]] = []
        self.outcomes: dict[int, SignalResult] = {}
        self.native: list[tuple[str, int]] = []
        self.diagnosed: list[str] = []
        self.logs_asked: list[tuple[tuple[str, int], int]] = []
        self.tails: list[LogTail] = []
        self.diagnosis: tuple[list[DiagResult], str] = ([], "")
        self.native_done: list[Callable[[RankStacks | None, str], None]] = []
        self.ras_asked: list[str] = []
        self.ras_plan = RasPlan(JobKey("llama-7b", None), "node01", 4, 1, "2.30.7")
        self.ras_told = RasTold(JobKey("llama-7b", None), why="no answer in time")

    def signal_facts(self, processes: Sequence[RankProcess], on_done: Callable[[Facts], None]) -> Asked:
        if self.facts_come:
            in_thread(lambda: on_done({process.key: facts_of(process.pid) for process in processes}))
        return Asked()

    def send_signal(
        self, signal: SignalName, processes: Sequence[RankProcess], on_done: Callable[[Results], None]
    ) -> Asked:
        self.signals.append((signal, [process.key for process in processes]))
        results = {
            process.key: self.outcomes.get(process.pid, SignalResult(process.pid, "ended")) for process in processes
        }
        in_thread(lambda: on_done(results))
        return Asked()

    def diagnose(self, node: str, on_done: Callable[[list[DiagResult], str], None]) -> Asked:
        self.diagnosed.append(node)
        in_thread(lambda: on_done(*self.diagnosis))
        return Asked()

    def log_tail(self, process: RankProcess, lines: int, on_done: Callable[[list[LogTail], str], None]) -> Asked:
        self.logs_asked.append((process.key, lines))
        on_done(self.tails, "" if self.tails else "no answer")
        return Asked()

    def look_at_ras(self, report: JobReport, on_done: Callable[[RasPlan], None]) -> Asked:
        in_thread(lambda: on_done(replace(self.ras_plan, job=report.job_key)))
        return Asked()

    def ask_ras(self, report: JobReport, on_done: Callable[[RasTold], None]) -> Asked:
        self.ras_asked.append(report.job)
        in_thread(lambda: on_done(replace(self.ras_told, job=report.job_key)))
        return Asked()

    def dump_native(self, process: RankProcess, on_done: Callable[[RankStacks | None, str], None]) -> Asked:
        self.native.append(process.key)
        self.native_done.append(on_done)
        return Asked()


def in_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, daemon=True).start()
