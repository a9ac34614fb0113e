"""What it costs to find out who is a rank: of each kind of process, and of a node full of Python processes of no job.

CPU time of the reading process. A look is what is done to a process that may be a rank (``collect/ranks/looks.py``):
its libraries, its environment as it is now, its threads' names. Ranks of torchrun and its like have none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mltop.probes.collect.ranks import RankSource, procfs
from mltop.probes.collect.ranks.live_environ import read_live_environ
from mltop.probes.collect.ranks.looks import is_in_group, libraries_of
from tests.bench.table import Goal, print_table

NOTEBOOKS = 16
TORCH = "import os, sys, torch; os.environ['RANK'] = '3'; print('up', flush=True); sys.stdin.read()"
PLAIN = "import sys; print('up', flush=True); sys.stdin.read()"
LOADED = "import mmap, os, sys; m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0);" + PLAIN


def main(quick: bool = False) -> None:
    times = 20 if quick else 200
    rows: list[tuple[str, float, Goal | None]] = []
    for name, code in (("plain Python", PLAIN), ("Python with torch", TORCH)):
        with running(code) as pid:
            ticks = procfs.read_stat("/proc", pid).start_ticks
            parts: dict[str, Callable[[], object]] = {
                "its libraries": lambda pid=pid: libraries_of("/proc", pid),
                "its environment now": lambda pid=pid, ticks=ticks: read_live_environ("/proc", pid, ticks),
                "its threads' names": lambda pid=pid: is_in_group("/proc", pid),
            }
            rows += [(f"{name}: {part}, µs", 1e6 * cpu_each_s(read, times), None) for part, read in parts.items()]
    rows += of_a_node(10 if quick else 60)
    print_table("who is a rank: looks into processes", rows)


def of_a_node(seconds: int) -> list[tuple[str, float, Goal | None]]:
    """The whole reader over simulated seconds, beside so many idle notebooks; once more without looking at any."""
    with tempfile.TemporaryDirectory() as name:
        library = Path(name) / "torch" / "lib" / "libtorch_cpu.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(bytes(4096))
        with many(library) as pids:
            first_s, later_s = ticks_s(seconds, pids)
    return [
        ("a notebook in its first minute, ms in all", 1e3 * first_s / NOTEBOOKS, None),
        ("a notebook from then on, µs per second", 1e6 * later_s / seconds / NOTEBOOKS, Goal(at_most=200.0)),
    ]


def ticks_s(seconds: int, pids: list[int]) -> tuple[float, float]:
    """CPU seconds of all ticks of the first minute, and of so many seconds behind it."""
    source = RankSource(only=lambda: pids)
    spent = []
    for seconds_of_part in (range(61), range(61, 61 + seconds)):
        began = time.process_time()
        for second in seconds_of_part:
            source.read(float(second), {})
        spent.append(time.process_time() - began)
    return spent[0], spent[1]


def cpu_each_s(read: Callable[[], object], times: int) -> float:
    read()
    began = time.process_time()
    for _ in range(times):
        read()
    return (time.process_time() - began) / times


@contextmanager
def running(code: str, *arguments: str) -> Iterator[int]:
    argv = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def many(library: Path) -> Iterator[list[int]]:
    """Below another process: what the reader itself has started is never listed."""
    starts = (
        "import subprocess, sys\n"
        f"started = [subprocess.Popen([sys.executable, '-c', {LOADED!r}, sys.argv[1]], stdin=subprocess.PIPE,"
        f" stdout=subprocess.PIPE) for _ in range({NOTEBOOKS})]\n"
        "print(*[process.stdout.readline() and process.pid for process in started], flush=True)\nsys.stdin.read()"
    )
    argv = ["setsid", "--fork", sys.executable, "-c", starts, str(library)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        pids = list(map(int, process.stdout.readline().split()))
        os.kill(pids[0], 0)
        try:
            yield pids
        finally:
            process.stdin.close()
            for pid in pids:
                os.kill(pid, 9)
