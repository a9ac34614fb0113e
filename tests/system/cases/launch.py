"""Starts the hanging jobs that the system tests look at: real processes, one session per rank, on 127.0.0.1.

    with start("sigstop", tmp_path) as job:
        job.wait_hung()
        ... job.pids[job.culprit] ...

Cases and what hangs on the culprit: see CASES.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mltop.probes.system.spawn import die_with_parent
from tests.ports import free_ports
from tests.system.cases.forge import Forge, ForgedRank

HERE = Path(__file__).parent
_PACE_S = 0.2


@dataclass(frozen=True)
class Case:
    """``script`` next to this file; ``hangs`` is False for jobs that only move slowly.

    ``kill_with``: the launcher sends this signal to the culprit. ``everyone``: nobody is the culprit, all ranks wait;
    ``polls``: they wake up to look. ``ends``: the ranks die.
    """

    name: str
    script: str = "train.py"
    hangs: bool = True
    kill_with: signal.Signals | None = None
    everyone: bool = False
    polls: bool = False
    ends: bool = False

    @property
    def uses_torch(self) -> bool:
        return self.script not in ("standin.py", "plain.py")


CASES = {
    case.name: case
    for case in (
        Case("sleep_in_dataset"),  # Samples.read_blocked
        Case("slow_validation"),  # slow_validation
        Case("mismatch"),  # broadcast in sync_metrics, while the others all_reduce
        Case("sigstop", kill_with=signal.SIGSTOP),  # state T
        Case("endless_loop"),  # spin_forever, state R
        Case("worker_deadlock"),  # its dataloader worker waits for a lock in Samples.read_blocked
        Case("fifo_read"),  # Samples.read_shard
        Case("uninterruptible"),  # Samples.run_decoder, state D
        Case("skewed_steps"),  # all ranks in the same all_reduce line; train's step is one ahead on the culprit
        Case("ddp_backward"),  # await_rows, while the others are in loss.backward() of DistributedDataParallel
        Case("checkpoint"),  # upload_shard, called by the all_reduce of torch.distributed.checkpoint
        Case("healthy_slow", hangs=False),
        Case("straggler", hangs=False),  # the culprit takes 0.6 s longer in every step
        Case("gone", script="standin.py", kill_with=signal.SIGKILL),  # a zombie until reap_culprit()
        Case("plain_sleep", script="plain.py"),  # read_blocked
        Case("plain_poll", script="plain.py", polls=True),  # the others in wait_for_marker
        Case("plain_asyncio", script="plain.py"),  # its event loop is idle
        Case("stale_baton", "waits.py", everyone=True, polls=True),
        Case("stale_file_lock", "waits.py", everyone=True, polls=True),
        Case("marker_of_nobody", "waits.py", everyone=True, polls=True),  # wait_for_marker
        Case("marker", "waits.py", polls=True),  # the others in wait_for_marker, the culprit in read_blocked
        Case("work_poll", "waits.py", polls=True),  # the others in poll_work
        Case("native_wait", "waits.py"),  # the others in C below native_wait
        Case("sleepy_steps", "waits.py", hangs=False),
        Case("thread_lock", "waits.py"),  # Metrics.push waits for the thread metrics-pusher
        Case("log_lock", "waits.py"),  # logging waits for the thread logger-thread
        Case("pipeline", "waits.py"),  # recv and send from rank to rank
        Case("deadlocked_pair", "waits.py", everyone=True),  # the culprit and the rank before it wait for each other
        Case("crossed_receives", "waits.py", everyone=True),  # the same with irecv; the others in a barrier
        Case("early_receive", "waits.py", everyone=True),  # the rank before the culprit receives, the others all_reduce
        Case(
            "polling_loops", "waits.py", polls=True
        ),  # the others look at their work in event loops, the culprit's is idle
        Case("trainer_in_loop", "waits.py"),  # the others all_reduce in their event loops, the culprit's is idle
        Case("server_in_loop", "waits.py"),  # the culprit serves in an event loop; the others all_reduce in main
        Case("crash", "waits.py", polls=True, ends=True),  # a segmentation fault; nobody is left
        Case("training_thread", "waits.py", polls=True),  # in train_in_thread; the main threads poll
        Case("tensor_data", "waits.py"),  # groups of rows and of columns
    )
}


@dataclass
class RunningJob:
    """``pids`` by rank. ``address`` is MASTER_ADDR:MASTER_PORT. Logs are in ``directory``/rank<N>.log."""

    case: Case
    directory: Path
    culprit: int
    address: str
    processes: list[subprocess.Popen[bytes] | ForgedRank] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def wait_hung(self, timeout_s: float = 60.0) -> None:
        """Return when the hang is reached and every rank but a spinning one stands still.

        For jobs that do not hang: when every rank has done two steps. AssertionError with the logs otherwise.
        """
        deadline = time.monotonic() + timeout_s
        for event in self._events():
            self._wait(lambda event=event: (self.directory / "events" / event).exists(), event, deadline)
        if self.case.kill_with is not None:
            os.kill(self.pids[self.culprit], self.case.kill_with)
        if self.case.hangs:
            self._wait(self._stands_still, "standstill", deadline)

    def reap_culprit(self) -> None:
        """Let a killed culprit vanish: its zombie is collected."""
        self.processes[self.culprit].wait(10)

    def stop(self) -> None:
        """Kill every rank's process group (its workers are in it) and collect the ranks."""
        for process in self.processes:
            # A leader that was collected has freed its number; its group can only have died with it.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(10)

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _events(self) -> list[str]:
        ranks = range(len(self.processes))
        if not self.case.hangs or self.case.kill_with == signal.SIGSTOP:
            return [f"moving.{rank}" for rank in ranks]
        waiters = [rank for rank in ranks if rank != self.culprit]
        if self.case.everyone:
            return [f"waiting.{rank}" for rank in ranks]
        if self._waiters_pass_no_event():
            return ["hung"]
        return ["hung", *(f"waiting.{rank}" for rank in waiters)]

    def _waiters_pass_no_event(self) -> bool:
        return len(self.processes) == 1

    def _stands_still(self) -> bool:
        if self.case.polls:
            return True
        waiters = [pid for rank, pid in enumerate(self.pids) if rank != self.culprit]
        before = [_main_thread_switches(pid) for pid in waiters]
        time.sleep(0.2)  # the only way to see that something does not happen
        after = [_main_thread_switches(pid) for pid in waiters]
        if self.case.kill_with is None:
            return before == after
        return before == after and _state(self.pids[self.culprit]) in ("T", "Z")

    def _wait(self, predicate, what: str, deadline: float) -> None:  # type: ignore[no-untyped-def]
        while not predicate():
            self.check_alive()
            assert time.monotonic() < deadline, f"{self.case.name}: no {what}\n{self.logs()}"
            time.sleep(0.02)

    def check_alive(self) -> None:
        """AssertionError with the logs when a rank has ended that was to go on: what is waited for will not come."""
        if self.case.ends:
            return
        mortal = self.culprit if self.case.kill_with == signal.SIGKILL else None
        ended = [rank for rank, pid in enumerate(self.pids) if rank != mortal and _state(pid) in ("Z", "X")]
        assert not ended, f"{self.case.name}: of the ranks ended {ended}\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(self.directory.glob("*.log")))


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _main_thread_switches(pid: int) -> int:
    return int(_status(pid)["voluntary_ctxt_switches"])


def _state(pid: int) -> str:
    return _status(pid)["State"][:1]


@functools.cache
def _forge() -> Forge:
    forge = Forge()
    atexit.register(forge.close)
    return forge


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "WANDB_API_KEY": "SECRET-in-environment",
    }


def _healthy(seconds: float) -> dict[str, str]:
    """Slow enough that a rank's first steps are not over before it is looked at."""
    return {"CASE_PACE_S": str(_PACE_S), "CASE_HANG_STEP": str(round(seconds / _PACE_S))} if seconds else {}


def start(
    case: str,
    directory: Path,
    ranks: int = 4,
    culprit: int = 2,
    *,
    forged: bool = True,
    healthy_s: float = 0.0,
    helper_calls_per_s: float = 0.0,
    python: Sequence[str] = (sys.executable,),
) -> RunningJob:
    """Start all ranks of ``case``; ``directory`` (created) takes their logs and event files.

    Ranks that import torch are ``forged``: they share one import, and the addresses of everything that was loaded.
    ``healthy_s``: they step for at least so long before the hang. ``helper_calls_per_s``: a thread of each rank writes.
    ``python``: the command that starts the interpreter of those that are not forged.

    The kernel kills the ranks when the calling thread ends, so that an interrupted test run leaves nothing.
    KeyError: no such case.
    """
    chosen = CASES[case]
    (directory / "events").mkdir(parents=True, exist_ok=True)
    port = free_ports(ranks)[0]
    job = RunningJob(chosen, directory, culprit, f"127.0.0.1:{port}")
    try:
        for rank in range(ranks):
            environment = _environment(rank, ranks, port) | _healthy(healthy_s)
            environment["CASE_HELPER_CALLS_PER_S"] = str(helper_calls_per_s)
            job.processes.append(_start_rank(job, rank, environment, None if forged else python))
    except OSError:
        job.stop()
        raise
    return job


def _start_rank(
    job: RunningJob, rank: int, environment: dict[str, str], python: Sequence[str] | None
) -> subprocess.Popen[bytes] | ForgedRank:
    command = [str(HERE / job.case.script), job.case.name, str(job.directory), str(job.culprit)]
    log_path = job.directory / f"rank{rank}.log"
    if python is None and job.case.uses_torch:
        return _forge().start(command, environment, log_path)
    with log_path.open("wb") as log:
        return subprocess.Popen(
            [*(python or (sys.executable,)), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
