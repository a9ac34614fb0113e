"""What samples of real jobs tell of their motion: all ways to hang at once, beside two jobs that are only slow."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mltop.probes.collect.ranks import RankSource
from mltop.probes.judge.stall.motions import JobMotions
from mltop.probes.judge.stall.thresholds import QUIET_S
from mltop.probes.model import JobMotion, Sample
from tests.system.cases.launch import CASES, RunningJob, start
from tests.waiting import wait_until

HEALTHY_S = 25.0  # they step before they hang: one that was not seen to step may be compiling
SECOND_S = 1.0
SLOW = ("healthy_slow", "straggler")
ALONE = ("endless_loop", "gone")  # told in other ways
STANDING = tuple(name for name, case in CASES.items() if case.script == "train.py" and name not in SLOW + ALONE)
ODD = {"sigstop": "stopped (T)", "uninterruptible": "in the kernel, uninterruptible (D)"}


@dataclass
class Watch:
    """Samples of the running jobs once a second, and what was said of each: its motions whenever the phase changed."""

    jobs: dict[str, RunningJob]
    motions: JobMotions = field(default_factory=JobMotions)
    source: RankSource = field(default_factory=RankSource)
    said: dict[str, list[JobMotion]] = field(default_factory=dict)
    newest: dict[str, JobMotion] = field(default_factory=dict)
    last_at: float = 0.0
    longest_gap_s: float = 0.0

    def look(self) -> None:
        for job in self.jobs.values():
            job.check_alive()
        if time.time() - self.last_at < SECOND_S / 2:
            return
        ranks, _ = self.source.read(time.monotonic(), {})
        names = {job.address: name for name, job in self.jobs.items()}
        at = time.time()
        self.longest_gap_s = max(self.longest_gap_s, at - self.last_at if self.last_at else 0.0)
        self.last_at = at
        self.motions.see(Sample("here", at, ranks=[rank for rank in ranks if rank.job in names]))
        for motion in self.motions.motions():
            told = self.said.setdefault(names[motion.job], [])
            if not told or told[-1].phase != motion.phase:
                told.append(motion)
            self.newest[names[motion.job]] = motion

    def phases(self, name: str) -> list[str]:
        return [motion.phase for motion in self.said.get(name, ())]

    def wait(self, names: tuple[str, ...], phase: str, timeout_s: float) -> None:
        def reached() -> bool:
            self.look()
            return all(phase in self.phases(name) for name in names)

        try:
            wait_until(reached, timeout_s, f"{phase} of all of {names}", pause_s=SECOND_S)
        except AssertionError as error:
            said = {name: self.phases(name) for name in self.jobs}
            logs = "\n".join(f"{name}: {self.jobs[name].logs()}" for name in names if phase not in said[name])
            raise AssertionError(f"{error}; said: {said}\n{logs}") from None


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """Watched until every hang was asked about, and a killed rank's job was called stalled."""
    with ExitStack() as stack:
        folder: Path = tmp_path_factory.mktemp("motion")
        jobs: dict[str, RunningJob] = {}
        watch = Watch(jobs)
        for name in (*STANDING, *ALONE, *SLOW):  # on a busy machine the first ones are far when the last one starts
            jobs[name] = stack.enter_context(start(name, folder / name, healthy_s=HEALTHY_S))
            watch.look()
        watch.wait((*STANDING, *SLOW, "endless_loop"), "moving", 120.0)
        for name in ("sigstop", "gone"):
            marked = jobs[name].directory / "events" / ("moving.2" if name == "sigstop" else "hung")
            wait_until(lambda: watch.look() or marked.exists(), 120.0, f"{marked}", pause_s=SECOND_S)  # noqa: B023
            os.kill(jobs[name].pids[2], CASES[name].kill_with or 0)
        watch.wait(STANDING, "quiet", 120.0)
        watch.wait(("gone",), "stalled", 60.0)
        return watch


@pytest.mark.parametrize("name", STANDING)
def test_every_hang_is_asked_about_in_time(watched: Watch, name: str) -> None:
    assert watched.phases(name)[:3] == ["starting", "moving", "quiet"]
    quiet = watched.said[name][2]
    assert QUIET_S - 0.5 <= quiet.still_s <= QUIET_S + 2 * watched.longest_gap_s
    assert (str(quiet.ranks), quiet.ranks_seen, quiet.world_size) == ("0-3", 4, 4)
    assert "no read or write calls" in quiet.signals and len(quiet.signals) >= 2
    assert [(odd.rank, odd.reason) for odd in quiet.odd] == ([(2, ODD[name])] if name in ODD else [])


@pytest.mark.parametrize("name", SLOW)
def test_what_is_slow_is_never_asked_about(watched: Watch, name: str) -> None:
    assert watched.phases(name) == ["starting", "moving"]
    assert watched.newest[name].odd == []


def test_a_loop_is_named_and_asked_about_later(watched: Watch) -> None:
    """From outside it may as well be an evaluation, for a minute."""
    assert watched.phases("endless_loop")[:2] == ["starting", "moving"]
    assert all(motion.still_s >= 59.0 for motion in watched.said["endless_loop"][2:])
    assert [odd.rank for odd in watched.newest["endless_loop"].odd] == [2]


def test_a_killed_rank_is_named_as_soon_as_the_others_stand(watched: Watch) -> None:
    stalled = watched.said["gone"][-1]
    assert stalled.phase == "stalled" and stalled.ranks_seen == 3
    assert [(odd.rank, odd.pid) for odd in stalled.odd] == [(2, watched.jobs["gone"].pids[2])]
