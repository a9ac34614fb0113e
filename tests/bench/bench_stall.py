"""What motion costs, and what it says of healthy jobs: `python -m tests.bench stall [--quick]`.

Cost: samples of 1,000 nodes with 8 ranks each, as shares of a core. False alarms: simulated jobs that are healthy, in
seconds in which they were said to stand; and of jobs whose counters are noise the share with a rhythm.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / ".dev"), str(Path(__file__).parents[2])]

from mltop.probes.judge.stall.motions import JobMotions
from mltop.probes.model import GpuSample, Nvlink, RankSample, Sample
from tests.bench.table import Goal, print_table
from tests.builders.health_samples import H100
from tests.builders.simulated_motion import (
    ASLEEP,
    COMPILING,
    GLOO,
    GPU_LOADS,
    IMPORTING,
    NCCL,
    NCCL_SAVING,
    NCCL_WAIT,
    SAVING,
    Act,
    SimulatedJob,
    stepping,
)

NODES, PER_NODE = 1000, 8
ROUNDS, UNCOUNTED = 12, 8  # at first jobs are seen to step
CPU_PERCENT = Goal(1.0)
ALARM_S = Goal(0.0)


def samples(act: Act, nodes: int, jobs: int, at: float, second: float) -> list[Sample]:
    """One sample of each node, spread over the interval; all ranks have done the same since second 0."""
    load = {name: GPU_LOADS[act.gpu][name] for name in ("busy", "power_w", "tensor_active", "sm_active", "dram_active")}
    nvlink = Nvlink(rx_bytes_per_s=act.nvlink / 2, tx_bytes_per_s=act.nvlink / 2)
    gpus = [GpuSample(place, name=H100, power_limit_w=700.0, nvlink=nvlink, **load) for place in range(PER_NODE)]
    made = []
    for node in range(nodes):
        ranks = [
            RankSample(
                pid=4000 + place,
                rank=node * PER_NODE + place,
                world_size=nodes * PER_NODE,
                job=f"job-{node * jobs // nodes}",
                uid=1000,
                state="S",
                started_at=5.0,
                gpus=[place],
                cpu_fraction=act.cpu,
                children_cpu_fraction=0.0,
                voluntary_switches=int(22 * second),
                main_cpu_s=act.main_cpu * at,
                read_syscalls=int(4 * second),
                write_syscalls=int(5 * second),
            )
            for place in range(PER_NODE)
        ]
        made.append(Sample(f"node-{node}", at + node / nodes, ranks=ranks, gpus=gpus))
    return made


def round_ms(jobs: int, interval_s: float, nodes: int, hung: bool = False) -> float:
    """CPU for one sample of every node, with the motions asked for once a second."""
    motions, spent, moved = JobMotions(), 0.0, 0.0
    for turn in range(ROUNDS):
        stands = hung and turn >= UNCOUNTED - 2
        moved += 0.0 if stands else interval_s
        fresh = samples(NCCL_WAIT if stands else NCCL, nodes, jobs, 1000.0 + turn * interval_s, moved)
        asked = max(1, round(nodes / interval_s))
        began = time.process_time()
        for index, sample in enumerate(fresh):
            motions.see(sample)
            if index % asked == 0:
                motions.motions()
        if turn >= UNCOUNTED:
            spent += time.process_time() - began
    said = {motion.phase for motion in motions.motions()}
    assert said <= ({"quiet", "stalled"} if hung else {"moving"}), said
    return 1e3 * spent / (ROUNDS - UNCOUNTED)


def bytes_per_rank(nodes: int) -> float:
    tracemalloc.start()
    motions = JobMotions()
    for turn in range(ROUNDS):
        for sample in samples(NCCL, nodes, nodes // 8, 1000.0 + turn * 100.0, turn * 100.0):
            motions.see(sample)
        motions.motions()
    del sample
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / (nodes * PER_NODE)


def alarms() -> Iterable[tuple[str, float]]:
    """Of healthy jobs: for how long they were said to stand."""
    healthy = {
        "import and first compile": SimulatedJob(16, with_gpus=True)
        .run(30, IMPORTING)
        .run(240, COMPILING)
        .run(30, NCCL),
        "indexing on rank 0": SimulatedJob(8).run(10, IMPORTING).run(240, ASLEEP, {0: IMPORTING}).run(30, GLOO),
        "evaluation on rank 0": SimulatedJob(16, with_gpus=True).run(30, NCCL).run(300, NCCL_WAIT, {0: NCCL}),
        "saving on rank 0, 90 s": SimulatedJob(16, with_gpus=True).run(30, NCCL).run(90, NCCL_WAIT, {0: NCCL_SAVING}),
        "saving by all, 90 s": SimulatedJob(8).run(30, GLOO).run(90, SAVING).run(30, GLOO),
        "accumulation, step 8 s": SimulatedJob(8, with_gpus=True).run(300, stepping(8.0, NCCL, NCCL_WAIT, 0.9)),
        "steps of 30 s, mostly asleep": SimulatedJob(8).run(600, stepping(30.0, GLOO, ASLEEP, 0.1)),
        "one node of two": SimulatedJob(16, with_gpus=True, seen=1).run(300, NCCL),
        "notebook": SimulatedJob(1).run(60, GLOO).run(5, ASLEEP),
    }
    for name, job in healthy.items():
        spells = zip(job.phases, [*job.phases[1:], (job.at, "")], strict=True)
        yield name, sum(until - at for (at, phase), (until, _) in spells if phase in ("quiet", "stalled"))


def noise(jobs: int) -> Iterable[tuple[str, float]]:
    from tests.unit.probes.judge.stall.test_rhythm import NOISE, claimed

    for kind in NOISE:
        yield f"noise: {kind}", 100 * claimed(kind, jobs) / jobs


def main(quick: bool = False) -> None:
    rows: list[tuple[str, float, Goal | None]] = []
    nodes = NODES // 40 if quick else NODES
    for jobs, hung in ((1, False), (nodes // 10, False), (nodes, False), (1, True)):
        for interval_s in (5.0,) if quick else (2.0, 5.0, 10.0):
            what = f"{jobs} job{'s' if jobs > 1 else ''}{', all stand' if hung else ''}, every {interval_s:g} s"
            goal = None if hung else CPU_PERCENT  # for the minute in which everybody wants to know
            rows.append((what, round_ms(jobs, interval_s, nodes, hung) / interval_s / 10, goal))
    if not quick:
        rows.append(("1 job of 8,192 ranks, every 5 s", round_ms(1, 5.0, nodes=1024) / 5.0 / 10, CPU_PERCENT))
    print_table(f"% of a core, {nodes} nodes x {PER_NODE} ranks", rows)
    print_table("memory", [("KiB per rank", bytes_per_rank(64 if quick else 512) / 1024, Goal(8.0))])
    print_table("s in which healthy jobs were said to stand", [(name, value, ALARM_S) for name, value in alarms()])
    print_table(
        "% of jobs with a rhythm where there is none", [(*row, Goal(5.0)) for row in noise(2 if quick else 100)]
    )


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
