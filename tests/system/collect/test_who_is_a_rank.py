"""Who is a rank, of real processes: what a program sets after its start, multiprocessing, titles, notebooks.

The reader runs in a process of its own that has not started them: what mltop starts itself is never a rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.ports import free_port

READER = """
import json, sys, time
from mltop.probes.collect.ranks import RankSource
source, pids = RankSource(), set(map(int, sys.argv[1:]))
for line in sys.stdin:
    ranks, gaps = source.read(time.monotonic(), {})
    said = {"ranks": [vars(rank) for rank in ranks], "unassigned": [vars(rank) for rank in source.unassigned]}
    print(json.dumps({**said, "gaps": [gap.why for gap in gaps]}), flush=True)
"""
LOADED = "import mmap, os, sys, time\nloaded = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)\n"
WAIT = "\nprint('up', flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def library(tmp_path: Path) -> str:
    """A file that is called as torch's library: whoever maps it counts as having torch loaded, without its seconds."""
    path = tmp_path / "torch" / "lib" / "libtorch_cpu.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(4096))
    return str(path)


@contextmanager
def running(argv: Sequence[str], executable: str | None = None, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
    process = subprocess.Popen(
        argv,
        executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**plain, **environ},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


# Its parent, sh, leaves it at once.
ORPHANED = ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- & echo $!', "sh"]


@contextmanager
def orphan(argv: Sequence[str]) -> Iterator[tuple[int, IO[bytes], IO[bytes]]]:
    """Its pid, stdin and stdout. What runs the tests is not above it: that is a Python with torch itself as soon as one
    of its tests has loaded it, and then of no job together with all that it has started.
    """
    started = subprocess.Popen(
        [*ORPHANED, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert started.stdin is not None and started.stdout is not None
        lines = {started.stdout.readline().strip(), started.stdout.readline().strip()}
        (pid,) = lines - {b"up"}
        yield int(pid), started.stdin, started.stdout
    finally:
        os.killpg(started.pid, 9)
        started.communicate()


@contextmanager
def reader(user: Sequence[str] = ()) -> Iterator[Callable[[], dict[str, Any]]]:
    with subprocess.Popen(
        [*user, sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def read() -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield read
        process.stdin.close()


def read_until(read: Callable[[], dict[str, Any]], has: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """At the pace of the agent."""
    until = time.monotonic() + 300
    while not has(said := read()):
        assert time.monotonic() < until, said
        time.sleep(0.5)
    return said


def of(entries: list[dict[str, Any]], *pids: int) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["pid"] in pids]


def test_a_rank_that_python_sets_in_itself(library: str) -> None:
    """As Ray Train's workers: first a process of no job, then a rank."""
    code = LOADED + WAIT.replace("sys.stdin.read()", "sys.stdin.readline()")
    code += "os.environ.update(RANK='3', WORLD_SIZE='8', LOCAL_RANK='1', MASTER_ADDR='h', MASTER_PORT='1')\n" + WAIT
    with orphan([sys.executable, "-c", code, library]) as (pid, stdin, stdout), reader() as read:
        said = read_until(read, lambda said: of(said["unassigned"], pid))
        assert not of(said["ranks"], pid)
        stdin.write(b"\n")
        stdin.flush()
        assert stdout.readline() == b"up\n"
        said = read_until(read, lambda said: of(said["ranks"], pid))
        (rank,) = of(said["ranks"], pid)
        assert (rank["rank"], rank["world_size"], rank["local_rank"], rank["job"]) == (3, 8, 1, "h:1")
        assert rank["identified_by"] == "live environment"
        assert not of(said["unassigned"], pid)


def test_in_a_container(library: str) -> None:
    code = LOADED + "os.environ.update(RANK='0', WORLD_SIZE='1')" + WAIT
    argv = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
    with running([*argv, sys.executable, "-c", code, library]) as process, reader() as read:
        inner = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        (rank,) = of(read_until(read, lambda said: of(said["ranks"], inner))["ranks"], inner)
        assert (rank["rank"], rank["identified_by"]) == (0, "live environment")


def test_titles_of_a_server(library: str) -> None:
    """Titles as ``exec -a`` gives them; setproctitle's look the same."""
    worker = LOADED + WAIT
    server = (
        "import os, subprocess, sys\n"
        f"for n in (0, 1): subprocess.Popen(['VLLM::Worker_TP%d' % n, '-c', {worker!r}, sys.argv[-1]],"
        " executable=sys.executable, stdout=subprocess.PIPE).stdout.readline()\n" + WAIT
    )
    argv = [sys.executable, "-c", server, "vllm", "serve", "model", "-tp", "2", library]
    with running(argv) as process, reader() as read:
        workers = list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
        ranks = of(read_until(read, lambda said: of(said["ranks"], *workers)[1:])["ranks"], *workers)
        assert [(rank["rank"], rank["world_size"], rank["identified_by"]) for rank in ranks] == [
            (0, 2, "title"),
            (1, 2, "title"),
        ]
        assert [rank["parallel"] for rank in ranks] == [{"tp": tp, "tp_size": 2} for tp in (0, 1)]
        assert {rank["job"] for rank in ranks} == {f"vllm:{process.pid}"}


MP_SPAWN = """
import os, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    if sys.argv[1] == "set":
        os.environ.update(RANK=str(world - 1 - rank), WORLD_SIZE=str(world))
        rank = world - 1 - rank
    dist.init_process_group("gloo", rank=rank, world_size=world)
    dist.barrier()
    if rank == 0:
        print("up", flush=True)
    time.sleep(300)
if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""


@pytest.mark.parametrize("kind", ["set", "plain"])
def test_mp_spawn_with_torch(kind: str, tmp_path: Path) -> None:
    port = free_port()
    script = tmp_path / "train.py"
    script.write_text(MP_SPAWN)
    with running([sys.executable, str(script), kind, str(port)]) as process, reader() as read:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = sorted(map(int, children))[1:]  # the first is multiprocessing's resource tracker
        said = read_until(read, lambda said: len(of(said["ranks"], *workers)) == 2)
        ranks = of(said["ranks"], *workers)
        expected = workers if kind == "plain" else workers[::-1]
        assert [(rank["rank"], rank["world_size"]) for rank in ranks] == [(0, 2), (1, 2)]
        assert [rank["pid"] for rank in ranks] == expected
        how = "parent and order" if kind == "plain" else "live environment"
        assert {rank["identified_by"] for rank in ranks} == {how}
        assert {rank["job"] for rank in ranks} == {f"127.0.0.1:{port}"}
        assert not of(said["unassigned"], process.pid, *workers)


def test_without_the_right_to_attach_the_gap_says_so(library: str) -> None:
    """A process that may not be dumped: its environment can be read by nobody but root."""
    undumpable = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"  # PR_SET_DUMPABLE
    with running([sys.executable, "-c", LOADED + undumpable + WAIT, library]) as process:
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        with reader(nobody) as read:
            said = read_until(read, lambda said: said["gaps"])
            assert any("cannot be read (permission denied)" in why for why in said["gaps"])
            assert not of(said["ranks"], process.pid)
