"""Who the processes on GPUs are: what /proc says of NVML's pids, of dead ones, and of those that cannot be seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mltop.probes.collect.ranks.access import in_first_namespace, user_name
from mltop.probes.collect.ranks.gpu_processes import EVERY_S, GpuProcesses
from mltop.probes.model import GpuProcess, GpuSample
from mltop.probes.system.spawn import PROBE_MARK
from tests.fakes.proctree import BOOT_TIME, FIRST_PID_NAMESPACE, ProcTree
from tests.waiting import wait_until

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path)
    tree.add(70, argv=["/usr/bin/python3", "notebook.py"], ppid=60, uid=0, start_ticks=5 * TICKS_PER_S)
    return tree


def filled(source: GpuProcesses, now: float, *pids: int) -> list[GpuProcess]:
    gpu = GpuSample(0, processes=[GpuProcess(pid, 7, "compute", 3) for pid in pids])
    assert source.fill([gpu], now) == []
    assert gpu.processes is not None
    return gpu.processes


def test_what_is_known_of_a_live_process(tree: ProcTree) -> None:
    (process,) = filled(GpuProcesses(str(tree.root)), 0.0, 70)
    assert process == GpuProcess(
        70, 7, "compute", 3, user=user_name(0), name="python3", state="S", ppid=60, started_at=BOOT_TIME + 5.0
    )
    assert not process.is_dead


def test_it_is_looked_at_every_five_seconds_and_a_new_one_at_once(tree: ProcTree) -> None:
    source = GpuProcesses(str(tree.root))
    filled(source, 100.0, 70)
    tree.change(70, state="D", ppid=1, comm="renamed")
    assert filled(source, 101.0, 70)[0].state == "S"
    tree.add(71, argv=["/bin/x"])
    assert [one.state for one in filled(source, 102.0, 70, 71)] == ["S", "S"]
    assert filled(source, 100.0 + EVERY_S, 70)[0] == GpuProcess(
        70, 7, "compute", 3, user=user_name(0), name="renamed", state="D", ppid=1, started_at=BOOT_TIME + 5.0
    )
    tree.change(70, state="R")
    assert filled(source, 50.0, 70)[0].state == "R"  # the clock went back


def test_processes_that_were_given_are_not_changed(tree: ProcTree) -> None:
    """Samples of earlier seconds share them."""
    given = [GpuProcess(70)]
    first, second, unknown = GpuSample(0, processes=given), GpuSample(1, processes=given), GpuSample(2)
    GpuProcesses(str(tree.root)).fill([first, second, unknown, GpuSample(3, processes=[])], 0.0)
    assert given == [GpuProcess(70)] and unknown.processes is None
    assert first.processes == second.processes and first.processes[0].name == "python3"


def test_a_zombie_and_its_parent(tree: ProcTree) -> None:
    source = GpuProcesses(str(tree.root))
    filled(source, 0.0, 70)
    tree.die(70)
    (process,) = filled(source, 5.0, 70)
    assert (process.state, process.ppid, process.user, process.absent) == ("Z", 60, user_name(0), "")
    assert process.is_dead


def test_one_that_was_here_and_is_gone_has_ended_wherever_we_are(tree: ProcTree) -> None:
    source = GpuProcesses(str(tree.root))
    filled(source, 0.0, 70)
    tree.remove(70)
    (process,) = filled(source, 5.0, 70)
    assert (process.state, process.absent, process.name, process.ppid) == ("", "ended", "python3", 60)
    assert process.is_dead and process.started_at == BOOT_TIME + 5.0
    tree.add(70, argv=["/bin/other"])  # its pid is used again
    (process,) = filled(source, 10.0, 70)
    assert (process.name, process.absent, process.is_dead) == ("other", "", False)


@pytest.mark.parametrize(
    ("namespace", "absent"), [(FIRST_PID_NAMESPACE, "ended"), (4026532198, "elsewhere"), (None, "elsewhere")]
)
def test_one_that_was_never_here(tree: ProcTree, namespace: int | None, absent: str) -> None:
    """In the machine's first namespace every process can be found; in a container nobody knows."""
    if namespace is not None:
        tree.pid_namespace(namespace)
    (process,) = filled(GpuProcesses(str(tree.root)), 0.0, 4242)
    assert process == GpuProcess(4242, 7, "compute", 3, absent=absent)
    assert process.is_dead == (absent == "ended")


@pytest.mark.parametrize("pid", [0, 1 << 22, (1 << 31) - 1, (1 << 32) - 1])
def test_pids_that_no_process_can_have(pid: int) -> None:
    """What drivers say where they cannot tell. The last ones are no argument of kill(2)."""
    (process,) = filled(GpuProcesses(), 0.0, pid)
    assert process.absent in ("ended", "elsewhere") and process.name == ""


def test_very_many_are_looked_at_in_part(tree: ProcTree) -> None:
    gpu = GpuSample(0, processes=[GpuProcess(pid) for pid in range(100_000, 110_000)])
    (gap,) = GpuProcesses(str(tree.root)).fill([gpu], 0.0)
    assert gap.what == "gpu processes" and "of 10000 processes" in gap.why


def test_a_probe_of_ours_is_known_by_its_command_line(tree: ProcTree) -> None:
    tree.add(80, argv=["/usr/bin/python3", "-c", "…", PROBE_MARK, "matmul", "key"])
    found = filled(GpuProcesses(str(tree.root)), 0.0, 70, 80)
    assert [process.probe for process in found] == ["", "matmul"]


# Real processes.

HOLDER = "import sys, time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def make(*command: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield make
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ready(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process.pid


def test_a_real_holder_dies_and_is_collected(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    before = time.time()
    child = start(sys.executable, "-c", HOLDER)
    pid = ready(child)
    source = GpuProcesses()
    (process,) = filled(source, 0.0, pid)
    assert (process.user, process.ppid, process.absent) == (user_name(os.getuid()), os.getpid(), "")
    assert process.name == Path(f"/proc/{pid}/comm").read_text().strip() and process.state in ("S", "R")
    # The kernel counts the boot time in whole seconds, and clocks are set.
    assert process.started_at is not None and before - 60 < process.started_at < time.time() + 60
    child.kill()
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", what="a zombie")
    (process,) = filled(source, 5.0, pid)
    assert (process.state, process.ppid, process.is_dead) == ("Z", os.getpid(), True)
    child.wait()
    (process,) = filled(source, 10.0, pid)
    assert (process.state, process.absent, process.ppid) == ("", "ended", os.getpid())
    (process,) = filled(GpuProcesses(), 0.0, pid)  # who has never seen it
    assert process.absent == ("ended" if in_first_namespace("/proc") else "elsewhere")


SEEN = """
import json, os, sys
from mltop.probes.collect.ranks.gpu_processes import GpuProcesses
from mltop.probes.model import GpuProcess, GpuSample
gpu = GpuSample(0, processes=[GpuProcess(int(pid)) for pid in sys.argv[2:]])
if sys.argv[1] == "nobody" and os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
GpuProcesses().fill([gpu], 0.0)
print(json.dumps([vars(process) for process in gpu.processes]))
"""


def seen_by(who: str, prefix: list[str], *pids: int) -> list[GpuProcess]:
    """``who``: "nobody" gives root's rights away, once everything is imported that others may not read."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [*prefix, "env", f"PYTHONPATH={path}", sys.executable, "-c", SEEN, who, *map(str, pids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [GpuProcess(**process) for process in json.loads(done.stdout)]


def test_from_another_pid_namespace(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    pid = ready(start(sys.executable, "-c", HOLDER))
    inside = [
        "unshare",
        *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]),
        "--pid",
        "--fork",
        "--mount-proc",
    ]
    foreign, own = seen_by("", inside, pid + 1_000_000, 1)
    assert (foreign.absent, foreign.state, own.absent) == ("elsewhere", "", "")
    here, gone = seen_by("", [], pid, 4_194_303)
    assert here.name and here.absent == ""
    assert gone.absent == ("ended" if in_first_namespace("/proc") else "elsewhere")


def test_another_users_process() -> None:
    """Who may not read its environment does not know whether it is a rank. pid 1 is root's."""
    (process,) = seen_by("nobody", [], 1)
    assert (process.user, process.absent, bool(process.name)) == (user_name(0), "closed", True)


def test_a_hidden_process_has_not_ended(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    """/proc with hidepid. Not in a user namespace: there all processes are one user's, and nothing is hidden."""
    if os.geteuid() != 0:
        pytest.skip("hidepid hides other users' processes, and only root can mount it where there are some")
    pid = ready(start(sys.executable, "-c", HOLDER))
    mounted = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    (process,) = seen_by("nobody", ["unshare", "--mount", "sh", "-c", mounted, "sh"], pid)
    assert (process.absent, process.state, process.is_dead) == ("hidden", "", False)
