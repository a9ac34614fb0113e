"""8 gloo ranks of one machine, from start to result: our launcher beside torchrun and mp.spawn doing the same."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mltop.probes.active import all_reduce
from mltop.probes.active.all_reduce.collectives import MOST, WARM_UPS
from tests.bench.table import Goal, print_table
from tests.launchers import Launchers

RANKS = 8
SIZES = [1 << 20, 4 << 20]
PLAIN = Path(all_reduce.__file__).with_name("plain_bench.py")
ARGUMENTS = ["--backend", "gloo", "--sizes", ",".join(map(str, SIZES))]

SPAWN = """
import os, runpy, sys
import torch.multiprocessing as mp

def rank(index, path, arguments, count):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK=str(index), LOCAL_RANK=str(index),
                      WORLD_SIZE=str(count), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")

if __name__ == "__main__":
    mp.spawn(rank, args=(sys.argv[1], sys.argv[3:], int(sys.argv[2])), nprocs=int(sys.argv[2]))
"""


def main(quick: bool = False) -> None:
    assert f"WARM_UPS, ITERATIONS = {WARM_UPS}, {MOST}\n" in PLAIN.read_text(), "they do not do the same"
    ranks = 2 if quick else RANKS
    ways = {"the launcher": launcher_s, "torchrun --standalone": torchrun_s, "mp.spawn": spawn_s}
    if not quick:
        for way in ways.values():
            way(ranks)  # torch's files come into memory
    walls: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 if quick else 7):
        for name, way in ways.items():
            before = _children_s()
            walls[name].append(way(ranks))
            cpu[name].append(_children_s() - before)
    medians = {name: statistics.median(found) for name, found in walls.items()}
    ours, theirs, spawned = medians.values()
    print_table(
        f"all-reduce with {ranks} gloo ranks, 1 and 4 MiB, {MOST} iterations: start to end",
        [
            *((f"{name}: median, s", value, None) for name, value in medians.items()),
            *((f"{name}: best, s", min(found), None) for name, found in walls.items()),
            *((f"{name}: median CPU, s", statistics.median(found), None) for name, found in cpu.items()),
            ("launcher / torchrun", ours / theirs, Goal(at_most=0.25)),
            ("launcher / mp.spawn", ours / spawned, None),
        ],
    )


def launcher_s(ranks: int) -> float:
    """Python, import, ranks, both sizes with their exact check, and the end of all processes."""
    began = time.perf_counter()
    with Launchers() as launchers:
        launchers.meet({"h01": ranks}, deadlines_s={"import torch": 300, "init": 300, "measure": 300})
        launchers.wait_ready()
        launchers.wait_round(launchers.begin_round([["h01"]], SIZES, budget_s=1000.0))  # the most iterations
        times = launchers["h01"].all("times")
        assert len(times) == ranks * len(SIZES)
        assert all(len(event["data"]["times_s"]) == MOST and event["data"]["wrong"] == 0 for event in times)
        assert launchers["h01"].end() == 0
        return time.perf_counter() - began


def torchrun_s(ranks: int) -> float:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return _run([*torchrun, str(PLAIN), *ARGUMENTS])


def spawn_s(ranks: int) -> float:
    with tempfile.TemporaryDirectory() as directory:  # every spawned process imports the script from its file
        script = Path(directory) / "spawn.py"
        script.write_text(SPAWN)
        return _run([sys.executable, str(script), str(PLAIN), str(ranks), *ARGUMENTS])


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(command: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - began
    assert done.returncode == 0 and done.stdout.count('"size_bytes"') == len(SIZES), done.stdout + done.stderr[-3000:]
    return took_s


if __name__ == "__main__":
    main("--quick" in sys.argv)
