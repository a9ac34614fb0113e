"""RAS asked end to end: a real agent, processes that look as ranks, a fake RAS; what it says joins the evidence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from mltop.probes.investigate.material import Material
from mltop.probes.investigate.ras import RasDesk, RasTold, ask_about, joined_with
from mltop.probes.investigate.session import LiveSession
from mltop.probes.judge.evidence.progress_words import progress_evidence
from mltop.probes.model import Frame, JobMotion, JobReport, RankSample, Sample, StackDigest, Verdict
from mltop.probes.model.units import clock_time
from mltop.probes.model.vocabulary import MotionPhase
from mltop.probes.reach.channel import LaunchOptions
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.launchers import local
from tests.fakes.ras import Comm, FakeRas, Rank, Serve, json_report, speaking
from tests.hubs import opened
from tests.ports import free_ports
from tests.waiting import wait_until

RANKS = 4
BEHIND = 2
pytestmark = pytest.mark.jobs


@dataclass
class Job:
    port: int
    processes: Sequence[subprocess.Popen[bytes]]

    def report(self, pids: Sequence[int] | None = None) -> str:
        """What RAS says of it: rank BEHIND has launched one operation less."""
        own = [process.pid for process in self.processes] if pids is None else pids
        ranks = [
            Rank(rank, pid=pid, dev=rank, counts=(0, 0, 0, 0, 69 if rank == BEHIND else 70))
            for rank, pid in enumerate(own)
        ]
        return json_report([Comm(ranks)])


@pytest.fixture
def job() -> Iterator[Job]:
    ras, master = free_ports(2)
    common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(master),
              "NCCL_RAS_ADDR": f"127.0.0.1:{ras}"}  # fmt: skip
    processes = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        yield Job(ras, processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with opened(*local.launch(("here",), LaunchOptions()), interval_s=0.2) as hub:
        yield hub


def seen(hub: Hub, job: Job, *, age_s: float = 3600.0, nccl: str = "2.30.7") -> tuple[Material, JobReport]:
    """As the dump of a job that stands for long finds it; its processes are younger than that."""
    own = {process.pid for process in job.processes}

    def ranks() -> list[RankSample]:
        sample = hub.node("here").sample
        return [rank for rank in (sample.ranks if sample is not None else ()) if rank.pid in own]

    wait_until(lambda: len(ranks()) == RANKS, 60.0)
    sample = hub.node("here").sample
    assert sample is not None
    found = ranks()
    for rank in found:
        rank.started_at, rank.versions = sample.sampled_at - age_s, {"nccl": nccl}
    digests = [StackDigest(rank.rank, rank.pid, node="here", taken_at=sample.sampled_at) for rank in found]
    report = JobReport(found[0].job, RANKS, Verdict("hang", confidence="high"), digests=digests)
    return Material(samples={"here": [Sample("here", sample.sampled_at, ranks=found)]}), report


def why_not(report: JobReport) -> str:
    (gap,) = report.verdict.gaps
    assert (gap.source, report.progress) == ("ras", [])
    return gap.why


def test_who_is_behind(hub: Hub, job: Job) -> None:
    """Two questions, half a minute apart."""
    material, report = seen(hub, job)
    with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
        ask_about(hub, material, [report], consent=False)
        assert fake.connections == 2
        assert {*fake.asked} == {"CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "STATUS"}
    (told,) = report.progress
    assert (told.kind, told.culprits, told.waiting, told.source) == ("never_entered", (BEHIND,), (0, 1, 3), "ras")
    (line,) = progress_evidence(told)
    assert line.text == (
        "rank 2 has not entered operation 70 of communicator 0x1a2b (ranks 0-3) (the last one launched was 69); "
        "ranks 0-1,3 wait in it"
    )
    assert report.verdict.gaps == []
    json.dumps([vars(each) for each in told.counters], default=vars)


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"age_s": 60.0}, "started minutes ago"), ({"nccl": "2.28.9"}, "2.29.2 or later"), ({"nccl": ""}, "2.29.2")],
)
def test_a_job_that_is_not_asked(hub: Hub, job: Job, changes: dict[str, object], why: str) -> None:
    material, report = seen(hub, job, **changes)  # type: ignore[arg-type]
    with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
        ask_about(hub, material, [report], consent=False)
        assert fake.connections == 0
    assert why in why_not(report)


def test_a_job_that_moves_is_not_asked(hub: Hub, job: Job) -> None:
    material, report = seen(hub, job)
    report.verdict = Verdict("moving", confidence="high")
    with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
        ask_about(hub, material, [report], consent=True)
        assert fake.connections == 0
    assert "not known to be stuck" in why_not(report)


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (speaking(lambda: Job(0, ()).report([999_991, 999_992]), json_known=True), "another job answers"),
        (speaking("{", json_known=True), "cut off"),
        (None, "cannot connect"),
    ],
)
def test_what_cannot_be_used_says_nothing_of_the_job(hub: Hub, job: Job, serve: Serve | None, why: str) -> None:
    material, report = seen(hub, job)
    if serve is None:
        ask_about(hub, material, [report], consent=False)
    else:
        with FakeRas(job.port, [serve]):
            ask_about(hub, material, [report], consent=False)
    assert why in why_not(report)


def test_a_second_job_on_the_port_is_spared(hub: Hub, job: Job) -> None:
    material, report = seen(hub, job)
    other = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                               env={**os.environ, **other, "NCCL_RAS_ADDR": f"127.0.0.1:{job.port}"})  # fmt: skip
    try:
        wait_until(lambda: any(rank.pid == process.pid for rank in _ranks(hub)), 60.0)
        with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
            ask_about(hub, material, [report], consent=False)
            assert fake.connections == 0
    finally:
        process.kill()
        process.wait()
    assert "2 jobs of this user share RAS's port" in why_not(report)


def _ranks(hub: Hub) -> list[RankSample]:
    sample = hub.node("here").sample
    return sample.ranks if sample is not None else []


class Minute:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def desk_of(hub: Hub, material: Material, clock: Minute, motions: Sequence[JobMotion] = ()) -> RasDesk:
    return RasDesk(hub, lambda: motions, lambda _: material.newest[0], clock)


def test_the_key_asks_once_and_the_answer_joins_the_evidence(hub: Hub, job: Job) -> None:
    material, report = seen(hub, job)
    desk = desk_of(hub, material, Minute())
    plan = desk.plan(report)
    assert (plan.node, plan.ranks, plan.nodes, plan.nccl_version) == ("here", RANKS, 1, "2.30.7")
    assert (plan.why, plan.is_old) == ("", False)
    with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
        told = desk.ask(report)
        assert fake.connections == 1
        again = desk.ask(report)
        assert fake.connections == 1
    assert again.why.startswith("not asked: it was asked less than 30 s ago")
    assert (told.asked, told.answers, told.why, again.asked) == (True, 1, "", False)
    (verdict,) = told.progress
    assert (verdict.kind, verdict.culprits, verdict.confidence) == ("never_entered", (BEHIND,), "low")
    (joined,) = desk.joined([report])
    (line,) = progress_evidence(joined.progress[0])
    assert f"(recorded at {clock_time(told.received_at)})" in line.text
    assert report.progress == []


def test_a_question_that_fails_does_not_unsay_the_one_before(hub: Hub, job: Job) -> None:
    """The pause is the asker's and the node's, which keeps its own clock: it refuses the second one."""
    material, report = seen(hub, job)
    clock = Minute()
    desk = desk_of(hub, material, clock)
    with FakeRas(job.port, [speaking(job.report, json_known=True)]):
        first = desk.ask(report)
        clock.now = 31.0
        refused = desk.ask(report)
    assert first.answers == 1 and "RAS was asked" in refused.why and not refused.progress
    (joined,) = desk.joined([report])
    assert joined.progress == list(first.progress)  # what came of the question before is not lost


def test_old_versions_are_asked_about_and_then_asked(hub: Hub, job: Job) -> None:
    material, report = seen(hub, job, nccl="2.28.9")
    desk = desk_of(hub, material, Minute())
    plan = desk.plan(report)
    assert (plan.is_old, plan.why, plan.nccl_version) == (True, "", "2.28.9")
    with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
        assert desk.ask(report).answers == 1
        assert fake.connections == 1


def of_job(report: JobReport, phase: MotionPhase, since: float) -> JobMotion:
    return JobMotion(report.job, report.uid, phase=phase, since=since, at=since)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("young", "started minutes ago"),
        ("moves", "not known to be stuck"),
        ("moved since", "too old"),
        ("old stacks", "too old"),
        ("makes a communicator", "making or ending a communicator"),
        ("ended", "in any sample"),
    ],
)
def test_the_key_obeys_the_same_policy(hub: Hub, job: Job, how: str, why: str) -> None:
    """Whatever the user has said to it."""
    material, report = seen(hub, job, age_s=60.0 if how == "young" else 3600.0)
    at = material.newest[0].sampled_at
    motions = {
        "moves": [of_job(report, "moving", at - 5.0)],
        "moved since": [of_job(report, "stalled", at + 60.0)],
    }.get(how, [])
    if how == "old stacks":
        for digest in report.digests:
            digest.taken_at = at - 301.0
    elif how == "makes a communicator":
        report.digests[1].frames = [Frame("new_group", "distributed_c10d.py", 1)]
    elif how == "ended":
        report.digests = [replace(digest, pid=1 << 21) for digest in report.digests]
    desk = desk_of(hub, material, Minute(), motions)
    with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
        told = desk.ask(report)
        assert fake.connections == 0
    assert why in desk.plan(report).why
    assert why in told.why and not told.asked


def test_the_answer_of_another_stand_is_not_joined(hub: Hub, job: Job) -> None:
    material, report = seen(hub, job)
    with FakeRas(job.port, [speaking(job.report, json_known=True)]):
        told = desk_of(hub, material, Minute()).ask(report)
    assert joined_with(report, [told]).progress
    later = replace(report, verdict=Verdict("hang", confidence="high", since=told.received_at + 60.0))
    others = replace(report, digests=[replace(digest, pid=1 << 21) for digest in report.digests])
    moving = replace(report, verdict=Verdict("moving", confidence="high"))
    for other in (later, others, moving):
        assert joined_with(other, [told]) is other


def test_the_session_asks_and_later_dumps_know_it(job: Job) -> None:
    """Young processes: what comes of it is that nothing is asked, through all of the session's own parts."""
    channels = local.launch(("here",), LaunchOptions())
    session = LiveSession("here", channels, 0.2, lambda *_: "")
    try:
        own = {process.pid for process in job.processes}
        wait_until(lambda: own <= {rank.pid for rank in _ranks(session.hub)}, 60.0)
        ranks = [rank for rank in _ranks(session.hub) if rank.pid in own]
        digests = [StackDigest(rank.rank, rank.pid, node="here", taken_at=time.time()) for rank in ranks]
        report = JobReport(ranks[0].job, RANKS, Verdict("hang", confidence="high"), digests=digests, uid=ranks[0].uid)
        told: list[RasTold] = []
        with FakeRas(job.port, [speaking(job.report, json_known=True)]) as fake:
            session.ask_ras(report, told.append)
            wait_until(lambda: bool(told), 60.0)
            assert fake.connections == 0
        assert "started minutes ago" in told[0].why
        assert list(session.with_ras([report])) == [report]
    finally:
        session.close()


def test_the_command_line() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mltop", "stacks", "--ras", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert run("--read-only").returncode == 2
    refused = run("--recording", "x.jsonl")
    assert (refused.returncode, "--ras" in refused.stderr, "Traceback" in refused.stderr) == (2, True, False)
