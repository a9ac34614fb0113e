"""What a stack dump over a fleet costs the caller: `python tests/bench/bench_dump.py [--quick]`.

The fleet is one process that speaks for all nodes (8 ranks each); making up its answers costs it as much as taking
them costs us, so that the times are those of two busy cores. Each row runs in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / ".dev"), str(Path(__file__).parents[2])]

from mltop.probes.demo.fleet import node_names
from mltop.probes.investigate.progress import StackProgress
from mltop.probes.investigate.rounds import Plan
from mltop.probes.investigate.session import LiveSession
from mltop.probes.investigate.stacks import StackRequest
from mltop.probes.reach.channel import Channel
from mltop.probes.system.spawn import python_command
from tests.bench.table import Goal, print_table

NEVER_S = 1e6
HUNG_AT_ONCE_S = 0.1


def measure(nodes: int, hangs: bool) -> dict[str, float]:
    """One dump of ``nodes`` simulated nodes, until it is sure of its verdict."""
    hang_after_s = HUNG_AT_ONCE_S if hangs else NEVER_S
    fleet = python_command("mltop.probes.demo.fleet", "--nodes", str(nodes), "--hang-after", str(hang_after_s))
    session = LiveSession("bench", [Channel(tuple(fleet), node_names(nodes, 1))], 1.0, lambda *_: "")
    try:
        while any(view.sample is None for view in session.view().nodes):
            time.sleep(0.05)
        time.sleep(1.0)  # the start is over
        told: list[StackProgress] = []
        began, cpu_began = time.monotonic(), time.process_time()
        first_s: list[float] = []

        def on_progress(progress: StackProgress) -> None:
            told.append(progress)
            if progress.reports and not first_s:
                first_s.append(time.monotonic() - began)

        run = session.dump_stacks(None, on_progress, StackRequest(plan=Plan(), deadline_s=120.0))
        run.wait()
        verdict = run.reports[0].verdict
        return {
            "ranks": sum(made.count for made in run.reports[0].classes),
            "first_s": first_s[0],
            "sure_s": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu_began,
            "rounds": run.rounds_done,
            "told": len(told),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "named": len(verdict.culprits),
        }
    finally:
        session.close()


def apart(nodes: int, hangs: bool) -> dict[str, float]:
    """``measure`` in a process of its own: the peak is its own then."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(nodes), str(int(hangs))], capture_output=True, text=True, check=True
    )
    made: dict[str, float] = json.loads(done.stdout)
    return made


def main(quick: bool = False) -> None:
    for nodes, hangs in ((8, True),) if quick else ((64, True), (512, True), (512, False), (1000, True)):
        made = apart(nodes, hangs)
        what = "a job that hangs" if hangs else "a job that moves"
        print_table(
            f"stack dump over {nodes} simulated nodes, {made['ranks']:.0f} ranks, {what}, {made['rounds']:.0f} rounds",
            [
                ("request to first verdict, s", made["first_s"], Goal(2.0) if hangs and nodes <= 512 else None),
                ("request to sure verdict, s", made["sure_s"], Goal(12.0) if hangs and nodes <= 512 else None),
                ("CPU of ours, s", made["cpu_s"], None),
                ("progress reports per second", made["told"] / made["sure_s"], Goal(8.0)),
                ("peak RSS, MB", made["peak_mb"], Goal(400.0) if nodes <= 512 else None),
                ("ranks named", made["named"], None),
            ],
        )


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure(int(sys.argv[2]), bool(int(sys.argv[3])))))
    else:
        main("--quick" in sys.argv[1:])
