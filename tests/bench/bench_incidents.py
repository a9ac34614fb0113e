"""What joining all evidence costs: `python -m tests.bench incidents [--quick]`.

1,000 nodes with 8 GPUs and ranks each, 100 jobs, every tenth node with two findings: CPU per second, as a share of a
core, of what the screen's feed does beside the health rules (motion of jobs; the join, as often as it allows itself).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / ".dev"), str(Path(__file__).parents[2])]

from mltop.probes.judge.incidents.join import incidents_of
from mltop.probes.judge.incidents.scene import scene_of, stacks_of
from mltop.tui.app.judging import IncidentJoin
from tests.bench.bench_stall import NODES, samples
from tests.bench.table import Goal, print_table
from tests.builders.scenes import finding, fleet, hang, stalled, with_findings
from tests.builders.simulated_motion import NCCL, NCCL_WAIT

SECONDS = 60
UNCOUNTED_S = 20  # every node is seen twice first
INTERVAL_S = 10.0  # between two samples of a node
HUNG_FROM = 40


def share_of_a_core(nodes: int, jobs: int, seconds: int) -> float:
    """CPU of a live fleet, in percent: each second a tenth of the nodes is judged; half of the time all jobs hang."""
    join, spent_s, moved = IncidentJoin(), 0.0, 0.0
    wrong = {
        f"node-{at}": (
            finding("ib.ber", f"node-{at}", "mlx5_0", "bits arrive damaged"),
            finding("gpu.temp.peer", f"node-{at}", "GPU 2", "GPU 2 is cooled worse"),
        )
        for at in range(0, nodes, 10)
    }
    turns = round(INTERVAL_S)
    for second in range(seconds):
        hangs = second >= HUNG_FROM
        moved += 0.0 if hangs else 1.0
        fresh = samples(NCCL_WAIT if hangs else NCCL, nodes, jobs, 1000.0 + second, moved)
        began = time.thread_time()
        for at in range(second % turns, nodes, turns):
            join.see(fresh[at])
            join.take_findings(fresh[at], wrong.get(fresh[at].node, ()))
        for tenth in range(10):
            join.join((), (), second + tenth / 10)
        spent_s += time.thread_time() - began if second >= UNCOUNTED_S or seconds <= UNCOUNTED_S else 0.0
    return 100.0 * spent_s / (seconds - UNCOUNTED_S if seconds > UNCOUNTED_S else seconds)


def join_ms(nodes: int) -> float:
    """One join of a fleet whose one job hangs for a known rank, with a cause on its node."""
    made = with_findings(fleet(nodes), finding("gpu.lost", "n0", "GPU 2", "GPU 2 fell off the bus"))
    motions, report = (stalled(made),), hang(2, 8 * nodes)
    stacks = stacks_of([report])
    began = time.thread_time()
    listed = incidents_of(scene_of(made.values(), (), motions, stacks))
    took_ms = 1000 * (time.thread_time() - began)
    assert [incident.kind for incident in listed] == ["hang"]
    return took_ms


def main(quick: bool = False) -> None:
    nodes, seconds = (64, 4) if quick else (NODES, SECONDS)
    print_table(
        "incidents",
        [
            (f"{nodes} nodes, 100 jobs: % of a core", share_of_a_core(nodes, min(100, nodes), seconds), Goal(1.0)),
            (f"one join, a job of {8 * nodes} ranks hangs: ms", join_ms(nodes), None),
        ],
    )


if __name__ == "__main__":
    main("--quick" in sys.argv)
