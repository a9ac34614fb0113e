"""8 ranks' stacks: wall time of one dump over all of them, and how long a target stands still."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from mltop.probes.collect.ranks import read_counters
from mltop.probes.collect.stacks import StackOptions, dump_ranks
from mltop.probes.model import RankSample, RankStacks
from tests.bench.table import Goal, print_table

SLEEPER = """
import importlib.util, sys, threading, time
if {torch} and importlib.util.find_spec("torch"):
    import torch
def train(step):
    def all_reduce():
        print("ready", flush=True)
        time.sleep(600)
    all_reduce()
train(7)
"""

# Writes the longest pauses between two looks at the clock, in a loop that never sleeps.
TICKER = """
import json, sys, time
def main(seconds):
    step, pauses = 0, []
    last = time.perf_counter()
    print("ready", flush=True)
    end = last + seconds
    while last < end:
        now = time.perf_counter()
        if now - last > 0.0005:
            pauses.append((time.time(), now - last))
        last = now
        step += 1
    print(json.dumps(pauses), flush=True)
main(float(sys.argv[1]))
"""


def main(quick: bool = False) -> None:
    rounds = 3 if quick else 15
    rows: list[tuple[str, float, Goal | None]] = []
    for torch in (False,) if quick else (False, True):
        walls = wall_of_8(torch, rounds)
        name = "with torch imported" if torch else "plain Python"
        rows.append((f"8 ranks, {name}: median wall, ms", 1000 * statistics.median(walls), Goal(at_most=100)))
    pauses = target_pauses(rounds)
    rows.append(("pause of a running target, median ms", 1000 * statistics.median(pauses), Goal(at_most=5)))
    rows.append(("pause of a running target, longest ms", 1000 * max(pauses), None))
    print_table(f"stacks of 8 ranks, {rounds} dumps", rows)


def wall_of_8(torch: bool, rounds: int) -> list[float]:
    processes = [start(SLEEPER.format(torch=torch)) for _ in range(8)]
    try:
        for process in processes:
            await_line(process)
        ranks = [RankSample(process.pid, rank=i, job="bench") for i, process in enumerate(processes)]
        return [one_dump(ranks) for _ in range(rounds)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def one_dump(ranks: list[RankSample]) -> float:
    got: list[RankStacks] = []
    started = time.perf_counter()
    dump_ranks(ranks, StackOptions(), read_counters, got.append, threading.Event())
    took_s = time.perf_counter() - started
    assert all(stacks.digests and stacks.digests[0].frames for stacks in got), got
    return took_s


def target_pauses(rounds: int) -> list[float]:
    """The longest standstill of a busy process within each dump of it."""
    seconds = 0.15 * rounds + 1.0
    process = start(TICKER, str(seconds))
    await_line(process)
    windows = []
    for _ in range(rounds):
        time.sleep(0.05)  # a benchmark: let the target run between dumps
        begun = time.time()
        one_dump([RankSample(process.pid, rank=0, job="bench")])
        windows.append((begun, time.time()))
    assert process.stdout
    pauses = json.loads(process.stdout.readline())
    process.wait()
    return [max((pause for at, pause in pauses if a <= at <= b + 0.01), default=0.0) for a, b in windows]


def start(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )


def await_line(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    assert process.stdout.readline().strip() == "ready"


if __name__ == "__main__":
    main("--quick" in sys.argv)
