"""Where a case is played: starts its jobs, waits for the moment of the fault, has mltop look, and ends them.

Run as ``python -m tests.bench.cases.stage ORDER.json`` in a process namespace of its own (as its first process), or in
the one that all share; what was seen is written beside the order as result.json (``Seen``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from mltop.probes.system.spawn import die_with_parent
from tests.bench.cases.data import BY_NAME, JOBS, Launch, names_its_rank

if TYPE_CHECKING:
    from tests.bench.cases.watch import Watch

START_S = 240.0  # for the fault to be reached
STACKS_S = 60.0
SETTLED_S = 4.0  # after the first word of an incident: what is known a moment later belongs to it, too
SMALL_DISK_MIB = 4
CGROUP_MIB = 600  # torch alone has 250
EXTENSIONS = Path.home() / ".cache" / "mltop-cases"  # what DeepSpeed compiles before its first step, minutes of it


@dataclass
class Order:
    """``part``: "" the jobs that mltop sees, "outside": those that it does not (nothing looks at them here).
    ``address``: rank 0's; of a loopback all ranks are on one machine. ``scratch``: the jobs' folder for temporary files
    (Open MPI and Ray name theirs by pids, which several namespaces have; Ray's sockets need it short).
    """

    case: str
    directory: str
    python: str
    port: int
    watch: bool
    scratch: str
    part: str = ""
    address: str = "127.0.0.1"


@dataclass
class Seen:
    """``moment``: when the fault began, unix s, and ``pid`` whose it is. ``stacks``: what `mltop stacks --json` said.
    ``watched``: whether there was a watcher, whose the rest is (``Watched``). ``problem``: why the case could not be
    played.
    """

    moment: float | None = None
    pid: int | None = None
    stacks: dict[str, Any] = field(default_factory=dict)
    stacks_s: float | None = None
    stacks_errors: str = ""
    watched: bool = False
    quiet_at: float | None = None
    stalled_at: float | None = None
    incidents: list[dict[str, Any]] = field(default_factory=list)
    with_stacks: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""


class Stage:
    def __init__(self, order: Order) -> None:
        self.order, self.case = order, BY_NAME[order.case]
        self.directory = Path(order.directory)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.added: dict[str, str] = {}

    def play(self) -> Seen:
        seen = Seen()
        with self.wanted(), self.watcher() as watch:
            for number, launch in enumerate(self.case.jobs):
                self.start(launch, number)
            seen.problem = self.await_moment(seen)
            if seen.problem:
                return seen
            if watch is None or self.case.truth == "healthy":
                self.sleep_until(seen, self.case.settle_s)
                self.take_stacks(seen)
            if watch is not None:
                watch.stacks_wanted = self.case.apart  # others' jobs would be stopped for them, too
                self.watch_on(seen, watch)
        return seen

    def watch_on(self, seen: Seen, watch: Watch) -> None:
        """Until an incident is told, of which stacks are then taken; a job that is well until its time is over."""
        assert seen.moment is not None
        seen.watched, watched = True, watch.watched
        watch.until_told(seen.moment, seen.moment + self.case.watch_s)
        if self.case.truth != "healthy":
            time.sleep(SETTLED_S)
            if watched.reports:
                seen.stacks, seen.stacks_s = {"jobs": watched.reports}, watched.stacks_s
            else:
                self.take_stacks(seen)
        seen.quiet_at, seen.stalled_at = watched.quiet_at, watched.stalled_at
        seen.incidents, seen.with_stacks = list(watched.incidents.values()), list(watched.with_stacks.values())
        seen.phases = watched.phases
        seen.problem = seen.problem or watched.failed

    def start(self, launch: Launch, number: int) -> None:
        """Its processes; each is collected as it ends, as a shell does."""
        python, port = self.order.python, self.order.port + 10 * number
        for rank in launch.bare or (0,):
            words = {
                "python": python,
                "bin": str(Path(python).parent),
                "jobs": str(JOBS),
                "directory": str(self.directory),
                "ranks": launch.ranks,
                "rank": rank,
                "port": port,
            }
            command = [word.format(**words) for word in launch.words]
            log = (self.directory / f"log{number}.{rank}").open("wb")
            process = subprocess.Popen(
                command,
                env=self.environment(launch, rank, port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            self.processes.append(process)
            threading.Thread(target=process.wait, daemon=True).start()

    def environment(self, launch: Launch, rank: int, port: int) -> dict[str, str]:
        case, bin_of = self.case, str(Path(self.order.python).parent)
        common = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON"))},
            "PATH": f"{bin_of}:{os.environ['PATH']}",
            "TMPDIR": self.order.scratch,
            "CASE_MODE": launch.mode,
            "CASE_CULPRIT": str(case.culprit),
            "CASE_STEPS": str(case.steps),
            "CASE_DIRECTORY": str(self.directory),
            "CASE_HANG_STEP": str(case.steps),
            "CASE_PACE_S": "0.12",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
            **self.added,
        }
        if not launch.bare or names_its_rank(launch.words):
            return common
        return {
            **common,
            "RANK": str(rank),
            "WORLD_SIZE": str(launch.ranks),
            "LOCAL_RANK": str(launch.bare.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(launch.bare)),
            "MASTER_ADDR": self.order.address,
            "MASTER_PORT": str(port),
        }

    def await_moment(self, seen: Seen) -> str:
        """Until the fault begins, or a job that has none is where it is looked at; "" or why that did not happen."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.read_moment(seen):
                return ""
            if all(process.returncode is not None for process in self.processes):
                time.sleep(0.3)
                return "" if self.read_moment(seen) else f"the job ended at once: {self.last_words()}"
            time.sleep(0.05)
        return f"nothing happened within {START_S:g} s: {self.last_words()}"

    def read_moment(self, seen: Seen) -> bool:
        moments, events = self.directory / "moments", self.directory / "events"
        lines = [line.split() for line in moments.read_text().splitlines()] if moments.exists() else []
        of_culprit = [line for line in lines if int(line[1]) == self.case.culprit] or lines
        if of_culprit:
            seen.moment, seen.pid = float(of_culprit[0][0]), int(of_culprit[0][2])
        for event in ("hung", "moving.0"):
            if (events / event).exists():
                seen.moment = (events / event).stat().st_mtime
        return seen.moment is not None

    def last_words(self) -> str:
        logs = sorted(self.directory.glob("log*"), key=lambda log: log.stat().st_mtime)
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-400:]

    def sleep_until(self, seen: Seen, after_s: float) -> None:
        assert seen.moment is not None
        time.sleep(max(0.0, seen.moment + after_s - time.time()))

    def take_stacks(self, seen: Seen) -> None:
        """Not in the namespace of all, where others' jobs would be stopped for it, too."""
        if not self.case.apart:
            return
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "mltop", "stacks", "--json"], capture_output=True, text=True, timeout=STACKS_S
            )
        except subprocess.TimeoutExpired:
            seen.problem = f"mltop stacks did not end within {STACKS_S:g} s"
            return
        seen.stacks_s = time.monotonic() - began
        seen.stacks_errors = done.stderr[-2000:]
        try:
            seen.stacks = json.loads(done.stdout)
        except ValueError:
            seen.problem = f"mltop stacks: exit {done.returncode}: {done.stderr[-300:]}"

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """A cgroup with little memory, a small disk; both are gone afterwards."""
        cgroup = Path("/sys/fs/cgroup/memory") / f"mltop-case-{os.getpid()}"
        disk = self.directory / "small"
        try:
            if "cgroup" in self.case.wants:
                cgroup.mkdir()
                (cgroup / "memory.limit_in_bytes").write_text(f"{CGROUP_MIB << 20}")
                self.added["CASE_CGROUP"] = str(cgroup)
            if "small_disk" in self.case.wants:
                disk.mkdir()
                subprocess.run(
                    ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "tmpfs", str(disk)], check=True
                )
                self.added["CASE_SMALL_DISK"] = str(disk)
            yield
        finally:
            self.end()
            if "CASE_SMALL_DISK" in self.added:
                subprocess.run(["umount", "-l", str(disk)], check=False)
            if "CASE_CGROUP" in self.added:
                cgroup.rmdir()

    @contextlib.contextmanager
    def watcher(self) -> Iterator[Watch | None]:
        if not self.order.watch:
            yield None
            return
        from tests.bench.cases.watch import Watch

        with Watch() as watch:
            yield watch

    def end(self) -> None:
        """Everything that was started, whatever session or parent it has by now (ours: we are the subreaper)."""
        for _ in range(20):
            left = [child for child in psutil.Process().children(recursive=True) if child.status() != "zombie"]
            if not left:
                return
            for child in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            time.sleep(0.1)


def play_outside(stage: Stage) -> None:
    """The ranks that mltop does not see; they run until this process is killed."""
    assert stage.case.outside is not None
    stage.start(stage.case.outside, 0)
    signal.pause()


def adopt_orphans() -> None:
    """Processes whose parents end become ours (PR_SET_CHILD_SUBREAPER): none is left behind."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def as_init(order: Order) -> int:
    """The first process of a namespace: a child plays, this one collects what is orphaned; its end ends all.
    Shared memory is the namespace's own, too: Open MPI names its files there by pids.
    """
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    player = os.fork()
    if player == 0:
        os._exit(_play(order))
    while True:
        pid, status = os.wait()
        if pid == player:
            return os.waitstatus_to_exitcode(status)


def _play(order: Order) -> int:
    stage = Stage(order)
    if order.part == "outside":
        play_outside(stage)
    adopt_orphans()
    seen = Seen()
    try:
        seen = stage.play()
    except BaseException as error:
        seen.problem = f"the bench failed: {error!r}"
        raise
    finally:
        (stage.directory / "result.json").write_text(json.dumps(asdict(seen)))
    return 0


def main() -> int:
    order = Order(**json.loads(Path(sys.argv[1]).read_text()))
    return as_init(order) if os.getpid() == 1 else _play(order)


if __name__ == "__main__":
    sys.exit(main())
