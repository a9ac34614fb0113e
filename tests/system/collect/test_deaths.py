"""How ranks ended, of real processes that end in every way, and what /proc trees alone tell."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mltop.probes.agent.sampler import Sampler
from mltop.probes.collect.kernel_log import KernelLogSource
from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.ranks.ends.deaths import KEPT_S, MOST_DEATHS, DeathSource
from mltop.probes.collect.ranks.ends.exits import ProcessEvents
from mltop.probes.model import Gap, GpuSample, KernelEvent, RankDeath, RankSample
from tests.fakes.proctree import ProcTree
from tests.others import ordinary
from tests.waiting import wait_until

RANK = "import sys, time; exec(sys.argv[1])"
pytestmark = pytest.mark.machine  # the proc connector, and the pids in the kernel's log

# Waits for a byte on stdin, so that it is surely seen alive, then ends.
ENDS = {
    "kill": ("sys.stdin.read(1); import os; os.kill(os.getpid(), 9)", "signal", 9),
    "segfault": ("sys.stdin.read(1); import ctypes; ctypes.string_at(0)", "signal", 11),
    "abort": ("sys.stdin.read(1); import os; os.abort()", "signal", 6),
    "exception": ("sys.stdin.read(1); 1 / 0", "exit", 1),
    "exit 7": ("sys.stdin.read(1); import os; os._exit(7)", "exit", 7),
    "end": ("sys.stdin.read(1)", "exit", 0),
    "crash of a thread": (
        "sys.stdin.read(1); import ctypes, threading; threading.Thread(target=ctypes.string_at, args=(0,)).start(); "
        "time.sleep(60)",
        "signal",
        11,
    ),
}


def linux() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


def events_are_heard() -> bool:
    """Root of the machine itself, or since Linux 6.6 anybody in its first namespaces."""
    is_first = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    may = os.geteuid() == 0 or linux() >= (6, 6)
    return is_first and may and os.path.exists("/proc/net/connector")


class Watch:
    """What the agent does with some processes once a second."""

    def __init__(self, *pids: int) -> None:
        self.pids = list(pids)
        self.ranks, self.source = RankSource(only=lambda: self.pids), DeathSource()

    def look(self, events: list[KernelEvent] | None = None) -> tuple[list[RankDeath], list[Gap]]:
        clock_s, now = time.monotonic(), time.time()
        ranks, _ = self.ranks.read(clock_s, {})
        self.pids = [pid for pid in self.pids if os.path.exists(f"/proc/{pid}")]
        return self.source.read(clock_s, now, ranks, self.ranks.launchers, events or [])

    def deaths(self, count: int = 1) -> list[RankDeath]:
        """As soon as there are so many."""

        def enough() -> list[RankDeath]:
            found, _ = self.look()
            return found if len(found) >= count else []

        return wait_until(enough, what=f"{count} deaths")

    def settled(self, how: str) -> RankDeath:
        """The first death, as soon as it is told so."""
        return wait_until(lambda: next((death for death in self.look()[0] if death.how == how), None), what=how)


@contextmanager
def rank(code: str, number: int = 0, job: str = "", **more: str) -> Iterator[subprocess.Popen[bytes]]:
    name = job or f"test-{uuid.uuid4()}"
    environ = {**os.environ, "RANK": str(number), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": name, **more}
    for variable in ("MASTER_ADDR", "SLURM_JOB_ID"):
        environ.pop(variable, None)
    argv = [sys.executable, "-c", RANK, code]
    with subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def watched(*processes: subprocess.Popen[bytes]) -> Watch:
    watch = Watch(*(process.pid for process in processes))
    wait_until(lambda: (watch.look(), len(watch.ranks.launchers) == len(processes))[1], what="the ranks")
    assert watch.look() == ([], [])
    return watch


def let_go(process: subprocess.Popen[bytes], reaped: bool) -> None:
    assert process.stdin is not None
    process.stdin.write(b"x")
    process.stdin.flush()
    if reaped:
        process.wait()


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
@pytest.mark.parametrize(("code", "how", "number"), ENDS.values(), ids=ENDS)
def test_how_a_rank_ended(code: str, how: str, number: int, reaped: bool) -> None:
    began_at = time.time()
    with rank(code, 6) as process:
        watch = watched(process)
        let_go(process, reaped)
        death = watch.deaths()[0]
        if reaped and not events_are_heard() and linux() < (6, 15):
            assert (death.how, death.code, death.told_by) == ("unknown", None, "gone")  # nothing tells
        else:
            assert (death.how, death.code) == (how, number)
            sources = ("proc connector",) if events_are_heard() else ("zombie", "pidfd")
            assert death.told_by in sources
        assert (death.pid, death.rank, death.uid) == (process.pid, 6, os.getuid())
        assert death.at is not None and began_at <= death.at <= time.time()
        assert watch.look()[0] == [death]
        process.wait()
        assert watch.look()[0] == [death]
        watch.source.close()


def test_a_rank_that_only_its_first_thread_left_is_not_dead() -> None:
    code = (
        "import ctypes, threading; go = threading.Event(); threading.Thread(target=go.wait).start(); "
        "sys.stdin.read(1); ctypes.CDLL(None).pthread_exit(None)"
    )
    with rank(code) as process:
        watch = watched(process)
        let_go(process, reaped=False)
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", what="its first thread's end")
        for _ in range(3):
            assert watch.look()[0] == []
        process.kill()
        process.wait()
        death = watch.deaths()[0]
        assert (death.how, death.code) == (("signal", 9) if linux() >= (6, 15) else ("unknown", None))


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_an_end_that_is_looked_at_while_it_goes_on_is_told_as_it_was(reaped: bool) -> None:
    """The first of many threads that are killed is gone before the last; to the kernel the process is a zombie then."""
    code = "import threading; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(400)]; "
    with rank(code + "print(end='', flush=True); sys.stdin.read(1); import os; os.kill(os.getpid(), 9)", 6) as process:
        watch = watched(process)
        wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 400, what="its threads")
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert watch.deaths()[0].rank == 6
        if reaped:
            process.wait()
        if events_are_heard() or not reaped or linux() >= (6, 15):  # else nothing tells
            assert watch.settled("signal").code == 9
        assert watch.deaths()[0].told_by == "proc connector" or not events_are_heard()
        watch.source.close()


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_a_rank_that_is_left_out_of_one_look_and_ends_has_ended(reaped: bool) -> None:
    """Of a process that ends not everything can be read any more, though it is there."""
    with rank("sys.stdin.read(1); import os; os._exit(7)", 6) as process:
        watch = watched(process)
        assert watch.source.read(time.monotonic(), time.time(), [], {}) == ([], [])
        let_go(process, reaped)
        death = watch.deaths()[0]
        is_told = events_are_heard() or not reaped or linux() >= (6, 15)
        assert (death.how, death.code, death.rank) == (("exit", 7, 6) if is_told else ("unknown", None, 6))
        watch.source.close()


def test_a_rank_that_was_dead_at_first_sight_is_told_beside_its_living_sibling() -> None:
    job = f"test-{uuid.uuid4()}"
    with rank("sys.stdin.read(1); sys.exit(3)", 1, job) as dead, rank("sys.stdin.read(1)", 0, job) as living:
        let_go(dead, reaped=False)
        wait_until(lambda: Path(f"/proc/{dead.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        watch = Watch(dead.pid, living.pid)
        death = watch.deaths()[0]
        assert (death.pid, death.rank, death.job) == (dead.pid, None, job)
        assert (death.how, death.code, death.told_by) == ("exit", 3, "zombie")


@pytest.mark.skipif(not events_are_heard(), reason="the kernel tells the order of ends to root of the machine only")
def test_the_first_of_many_ends_of_one_moment_is_told_from_the_others() -> None:
    count = 8
    job = f"test-{uuid.uuid4()}"
    held = [rank("sys.stdin.read(1)", number, job) for number in range(count)]
    processes = [ranks.__enter__() for ranks in held]
    try:
        watch = watched(*processes)
        processes[5].send_signal(signal.SIGSEGV)
        processes[5].wait()
        for process in (*processes[:5], *processes[6:]):
            process.terminate()
        for process in processes:
            process.wait()
        deaths = watch.deaths(count)
        assert deaths[0].rank == 5
        assert (deaths[0].how, deaths[0].code) == ("signal", 11)
        assert {(death.how, death.code) for death in deaths[1:]} == {("stopped", 15)}
        times = [death.at or 0.0 for death in deaths]
        assert times == sorted(times) and len(set(times)) == count
    finally:
        for ranks in held:
            ranks.__exit__(None, None, None)


@pytest.mark.skipif(not events_are_heard(), reason="ends are told to root of the machine only")
def test_a_thousand_ends_of_one_second_are_all_heard_and_no_others() -> None:
    sleep = shutil.which("sleep") or "sleep"
    children = [os.posix_spawn(sleep, ["sleep", "600"], os.environ) for _ in range(1000)]
    events = ProcessEvents()
    events.watch(children)
    try:
        for _ in range(100):  # nobody watches these
            os.waitpid(os.posix_spawn(sleep, ["sleep", "0"], os.environ), 0)
        assert list(events.read()) == []
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        heard = list(events.read())
        assert [event.pid for event in heard] == children
        assert {event.status for event in heard} == {9}
        assert [event.at for event in heard] == sorted(event.at for event in heard)
    finally:
        events.close()


def test_no_socket_is_open_while_there_is_no_rank() -> None:
    def sockets() -> int:
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        found = 0
        for link in links:
            with suppress(OSError):
                found += os.readlink(link).startswith("socket:")
        return found

    before = sockets()
    watch = Watch()
    assert watch.look() == ([], []) and sockets() == before
    with rank("sys.stdin.read(1)") as process:
        watch = watched(process)
        assert sockets() == before + events_are_heard()
        watch.source.close()
        assert sockets() == before


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


class TreeWatch:
    """The same of a tree; its clock stands still between looks."""

    def __init__(self, tree: ProcTree, count: int = 2) -> None:
        tree.python(10, "/venv/bin/torchrun", "train.py")
        for number in range(count):
            environ = {"RANK": str(number), "WORLD_SIZE": str(count), "TORCHELASTIC_RUN_ID": "run-1"}
            tree.python(20 + number, "train.py", ppid=10, environ=environ)
        self.ranks, self.source = RankSource(str(tree.root)), DeathSource(str(tree.root))

    def look(self, clock_s: float, events: list[KernelEvent] | None = None) -> list[tuple[int, int | None, str]]:
        ranks, _ = self.ranks.read(clock_s, {})
        now = 1_800_000_000.0 + clock_s
        self.deaths, self.gaps = self.source.read(clock_s, now, ranks, self.ranks.launchers, events or [])
        return [(death.pid, death.rank, death.how) for death in self.deaths]


def test_a_zombie_tells_how_it_ended_and_its_end_stays_when_it_is_gone(tree: ProcTree) -> None:
    watch = TreeWatch(tree)
    assert watch.look(0.0) == []
    tree.die(21, exit_status=139)
    assert watch.look(1.0) == [(21, 1, "signal")]
    assert (watch.deaths[0].code, watch.deaths[0].dumped_core, watch.deaths[0].told_by) == (11, True, "zombie")
    tree.remove(21)
    for clock_s in (2.0, 3.0, 100.0):
        assert watch.look(clock_s) == [(21, 1, "signal")]
    assert watch.deaths[0].at == 1_800_000_001.0


def test_what_the_kernel_does_not_tell_of_others_zombies_is_unknown(tree: ProcTree) -> None:
    watch = TreeWatch(tree)
    watch.look(0.0)
    tree.die(21)
    (tree.root / "21" / "io").unlink()  # as where reading it is refused
    assert watch.look(1.0) == [(21, 1, "unknown")]
    assert watch.deaths[0].told_by == "gone"
    assert [(gap.what, gap.code) for gap in watch.gaps] == [("ranks.deaths", "no_permission")]


def test_a_pid_that_was_used_again_at_once_and_a_restart_are_no_revival(tree: ProcTree) -> None:
    watch = TreeWatch(tree)
    watch.look(0.0)
    environ = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "run-1"}
    tree.remove(21)
    tree.python(21, "train.py", ppid=10, environ=environ)
    tree.change(21, start_ticks=999_999)
    assert watch.look(1.0) == [(21, 1, "unknown")]
    assert watch.look(2.0) == [(21, 1, "unknown")]  # and the new one is watched, as are those of a restart
    for pid in (20, 21):
        tree.remove(pid)
        tree.python(pid + 10, "train.py", ppid=10, environ={**environ, "RANK": str(pid - 20)})
    assert sorted(watch.look(3.0)) == [(20, 0, "unknown"), (21, 1, "unknown"), (21, 1, "unknown")]
    assert len(watch.look(4.0)) == 3
    tree.die(31, 9)
    assert len(watch.look(5.0)) == 4


def test_a_process_that_is_no_rank_any_more_has_not_ended(tree: ProcTree) -> None:
    watch = TreeWatch(tree)
    for clock_s in range(5):
        watch.look(float(clock_s))
    tree.exec(21, "/bin/bash", "after.sh")
    for clock_s in range(5, 45):
        assert watch.look(float(clock_s)) == []
    assert 21 not in watch.ranks.launchers
    tree.remove(21)
    assert watch.look(46.0) == []


def test_ends_are_kept_for_an_hour_also_of_zombies_that_stay(tree: ProcTree) -> None:
    watch = TreeWatch(tree)
    watch.look(0.0)
    tree.die(21, 9)
    assert watch.look(1.0) == watch.look(KEPT_S) == [(21, 1, "signal")]
    for later_s in (2.0, 3.0, KEPT_S, 2 * KEPT_S):
        assert watch.look(KEPT_S + later_s) == []


class Many:
    """So many ranks that a whole tree of them would take minutes to write."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.source = root / "proc", DeathSource(str(root / "proc"))
        self.ranks = [RankSample(pid, pid, job="j", started_at=float(pid), state="S") for pid in range(1, count + 1)]
        for rank in self.ranks:
            (self.root / str(rank.pid)).mkdir(parents=True)
            (self.root / str(rank.pid) / "io").touch()
            self.write(rank, "S", 0)

    def write(self, rank: RankSample, state: str, status: int) -> None:
        fields = [state, "1", *"0" * 15, "1", "0", str(rank.pid), *"0" * 29, str(status)]
        (self.root / str(rank.pid) / "stat").write_text(f"{rank.pid} (python) {' '.join(fields)}\n")
        rank.state = state

    def look(self, clock_s: float) -> tuple[list[RankDeath], float]:
        """And its processor time."""
        began_s = time.process_time()
        deaths, _ = self.source.read(clock_s, 1_800_000_000.0 + clock_s, self.ranks, {})
        return deaths, time.process_time() - began_s


def test_a_wall_clock_that_is_set_back_takes_no_end_away(tmp_path: Path) -> None:
    many = Many(tmp_path, 2)
    many.look(0.0)
    many.write(many.ranks[1], "Z", 9)
    assert len(many.look(1.0)[0]) == 1
    (death,), _ = many.source.read(2.0, 1_700_000_000.0, many.ranks, {})
    assert (death.pid, death.at) == (2, 1_800_000_001.0)


def test_a_thousand_ends_at_once_cost_little_before_and_after(tmp_path: Path) -> None:
    many = Many(tmp_path, 1000)
    _, met_s = many.look(0.0)
    assert min(many.look(1.0 + number)[1] for number in range(5)) < met_s / 5
    for rank in many.ranks:
        many.write(rank, "Z", 9 if rank.pid == 500 else 15)
    deaths, ended_s = many.look(10.0)
    assert len(deaths) == 1000 and {death.how for death in deaths} == {"signal"}  # nobody was seen to be the first
    assert ended_s < 20 * met_s
    assert min(many.look(11.0 + number)[1] for number in range(5)) < met_s
    assert min(many.look(110.0 + number)[1] for number in range(5)) < met_s / 5


def test_so_many_ends_are_kept_and_no_more(tmp_path: Path) -> None:
    many = Many(tmp_path, MOST_DEATHS + 100)
    many.look(0.0)
    for rank in many.ranks[:200]:
        many.write(rank, "Z", 9)
    many.look(1.0)
    for rank in many.ranks[200:]:
        many.write(rank, "Z", 9)
    deaths, _ = many.look(2.0)
    assert len(deaths) == MOST_DEATHS and deaths[-1].pid == MOST_DEATHS + 100
    assert [len(many.look(clock_s)[0]) for clock_s in (3.0, 4.0, 50.0)] == [
        MOST_DEATHS
    ] * 3  # the zombies are still there


def test_the_kernels_lines_tell_what_the_process_cannot(tree: ProcTree) -> None:
    tree.pid_namespace()
    watch = TreeWatch(tree, 3)
    watch.look(0.0)
    for pid in (20, 21, 22):
        tree.remove(pid)
    now = 1_800_000_001.0
    events = [KernelEvent(now - 0.3, "oom", pid=20), KernelEvent(now - 0.2, "segfault", pid=21, code=11)]
    assert watch.look(1.0) == [(pid, pid - 20, "unknown") for pid in (20, 21, 22)]
    assert watch.look(2.0, events) == [(20, 0, "oom"), (21, 1, "signal"), (22, 2, "unknown")]
    assert [(death.code, death.at, death.told_by) for death in watch.deaths[:2]] == [
        (9, now - 0.3, "kernel log"),
        (11, now - 0.2, "kernel log"),
    ]


def test_in_another_pid_namespace_the_kernels_pids_are_not_ours(tree: ProcTree) -> None:
    tree.pid_namespace(7)
    watch = TreeWatch(tree)
    watch.look(0.0)
    tree.remove(20)
    assert watch.look(1.0, [KernelEvent(1_800_000_001.0, "oom", pid=20)]) == [(20, 0, "unknown")]


def test_nobodys_many_ends_push_out_anothers(tmp_path: Path) -> None:
    many = Many(tmp_path, MOST_DEATHS + 100)
    for rank in many.ranks[:3]:
        rank.uid = 1000
    many.look(0.0)
    for rank in many.ranks[:3]:
        many.write(rank, "Z", 9)
    many.look(1.0)
    for rank in many.ranks[3:]:
        many.write(rank, "Z", 9)
    deaths, _ = many.look(2.0)
    assert len(deaths) == MOST_DEATHS and [death.pid for death in deaths[:3]] == [1, 2, 3]


IN_NAMESPACE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, os.getcwd())
from tests.system.collect.test_deaths import rank, watched, let_go, ENDS
with rank(ENDS["kill"][0], 6) as process:
    watch = watched(process)
    let_go(process, reaped=True)
    death = watch.deaths()[0]
    print(death.how, death.code, death.told_by, len(watch.look()[1]), sep="|")
"""


def test_in_a_container_a_pidfd_tells_it_or_nothing_does_and_it_is_said() -> None:
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--net"]
    environ = {**os.environ, "PYTHONPATH": ".dev"}
    done = subprocess.run(
        [*apart, sys.executable, "-c", IN_NAMESPACE], capture_output=True, text=True, env=environ, timeout=60
    )
    told = done.stdout.strip()
    assert told == ("signal|9|pidfd|0" if linux() >= (6, 15) else "unknown||gone|1").replace("||", "|None|"), (
        done.stderr
    )


def test_as_an_ordinary_user() -> None:
    environ = {**os.environ, "PYTHONPATH": ".dev"}
    command = ordinary([sys.executable, "-c", IN_NAMESPACE])
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    is_first = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    by_kernel = "signal|9|proc connector|0" if linux() >= (6, 6) and is_first else "unknown|None|gone|1"
    expected = {by_kernel, "signal|9|pidfd|0"} if linux() >= (6, 15) else {by_kernel}
    assert done.stdout.strip() in expected, done.stderr


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """One of our own, wherever this machine allows it."""
    base, name = Path("/sys/fs/cgroup"), f"mltop-test-{uuid.uuid4()}"
    places = [(base / "memory", "memory.limit_in_bytes"), (base, "memory.max"), (base / "unified", "memory.max")]
    for place, limit in places:
        folder = place / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(limit_bytes))
            for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
                with suppress(OSError):
                    (folder / swap).write_text(str(0 if swap.endswith("max") else limit_bytes))
            yield folder
            return
        except OSError:
            continue
        finally:
            wait_until(lambda folder=folder: removed(folder), what="the cgroup's end")
    pytest.skip("no memory cgroup may be made here: run the test as root, where the memory controller is at work")


def removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


@pytest.mark.parametrize("log", [True, False], ids=["kernel log", "cgroup"])
def test_a_rank_that_is_killed_for_want_of_memory(log: bool) -> None:
    # The blocks stay in use; each page is written.
    code = "sys.stdin.read(1); held = [bytearray(b'x' * (1 << 20)) for _ in range(400)]; time.sleep(60)"
    kernel_log = KernelLogSource()
    with memory_cgroup(100 << 20) as folder, rank(code, 6) as process:
        (folder / "cgroup.procs").write_text(str(process.pid))
        watch = watched(process)
        if log:
            wait_until(lambda: not any(gap.kind == "starting" for gap in kernel_log.read(time.time())[1]))
        let_go(process, reaped=True)

        def told() -> RankDeath | None:
            events = kernel_log.read(time.time())[0] if log else []
            found = [death for death in watch.look(events)[0] if not log or "kernel log" in death.told_by]
            return found[0] if found else None

        death = wait_until(told, what="the death")
        assert (death.how, death.code, death.rank) == ("oom", 9, 6)
        assert death.told_by.split(", ")[1] == ("kernel log" if log else "cgroup")
    kernel_log.close()


def test_a_kill_beside_an_old_one_for_memory_is_no_lack_of_memory() -> None:
    code = "held = [bytearray(b'x' * (1 << 20)) for _ in range(400)]"
    with memory_cgroup(100 << 20) as folder, rank("sys.stdin.read(1)") as process:
        (folder / "cgroup.procs").write_text(str(process.pid))
        with rank("sys.stdin.read(1); " + code, 1) as other:
            (folder / "cgroup.procs").write_text(str(other.pid))
            let_go(other, reaped=True)
        watch = watched(process)
        process.kill()
        process.wait()
        assert [(death.how, death.code) for death in watch.deaths()] == [("signal", 9)]


TRAIN = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    open(os.path.join(sys.argv[1], f"{attempt}.{rank}"), "w").write(str(os.getpid()))
    while not os.path.exists(os.path.join(sys.argv[1], f"go{attempt}")):
        time.sleep(0.02)
    if rank == "1" and attempt == "0":
        raise ValueError("first line\\nthe last token=hunter2")
    time.sleep(600 if attempt == "0" else 0)

main()
"""


def test_torchruns_first_failure_its_victims_and_the_attempt_after_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    watch = Watch()
    with subprocess.Popen([*command, str(script), str(tmp_path)], env=environ, stderr=subprocess.DEVNULL) as launcher:
        try:
            first = attempt(tmp_path, 0)
            watch.pids = list(first.values())
            wait_until(lambda: (watch.look(), len(watch.ranks.launchers) == 2)[1], what="the ranks")
            assert watch.look()[0] == []
            (tmp_path / "go0").touch()
            second = attempt(tmp_path, 1)
            watch.pids += second.values()
            deaths = wait_until(lambda: with_error(watch), what="the error file")
            assert {death.pid: death.rank for death in deaths} == {pid: number for number, pid in first.items()}
            cause = next(death for death in deaths if death.rank == 1)
            assert (cause.how, cause.error) == ("exit", "the last token=***")
            if events_are_heard():
                assert deaths[0] == cause and cause.code == 1
                assert {(death.how, death.code) for death in deaths[1:]} == {("stopped", 15)}
            (tmp_path / "go1").touch()
            deaths = watch.deaths(4)
            ended_well = [death for death in deaths if death.pid in second.values()]
            assert len(ended_well) == 2 and {(death.how, death.code) for death in ended_well} <= {
                ("exit", 0),
                *([] if events_are_heard() or linux() >= (6, 15) else [("unknown", None)]),
            }
            assert launcher.wait(60) == 0
        finally:
            launcher.kill()


def attempt(folder: Path, number: int) -> dict[int, int]:
    """Pids by rank, as soon as all have said theirs."""

    def said() -> dict[int, int]:
        texts = {rank: folder / f"{number}.{rank}" for rank in range(2)}
        found = {rank: path.read_text() for rank, path in texts.items() if path.exists()}
        return (
            {rank: int(text) for rank, text in found.items() if text} if len(found) == 2 and all(found.values()) else {}
        )

    return wait_until(said, timeout_s=120, what=f"attempt {number}")


def with_error(watch: Watch) -> list[RankDeath]:
    deaths, _ = watch.look()
    return deaths if len(deaths) >= 2 and any(death.error for death in deaths) else []


class NoGpus:
    """A machine without a driver."""

    def request(self, now: float) -> None: ...
    def collect(self, now: float, wait_s: float) -> tuple[list[GpuSample], list[Gap]]:
        return [], []

    def events(self) -> list[KernelEvent]:
        return []

    def close(self) -> None: ...


def test_an_agents_samples_tell_it() -> None:
    sampler = Sampler("n1", NoGpus(), 1.0)
    try:
        with rank(ENDS["exit 7"][0], 6) as process:
            wait_until(lambda: process.pid in [one.pid for one in sampler.sample(time.time()).ranks], what="the rank")
            let_go(process, reaped=False)

            def told() -> list[RankDeath]:
                return [death for death in sampler.sample(time.time()).deaths if death.pid == process.pid]

            (death,) = wait_until(told, what="its end")
            assert (death.rank, death.how, death.code) == (6, "exit", 7)
    finally:
        sampler.close()
