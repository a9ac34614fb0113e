"""What keeping the past costs: `python -m tests.bench past [--quick]`.

512 nodes of 8 GPUs at 1 Hz, noisy as training is: CPU of taking a second's samples, as a share of a core, memory for
four hours, and how long a graph of a job, a track of a GPU and a picture of a moment take.
"""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2] / ".dev"), str(Path(__file__).parents[2])]

from mltop.probes.model import GpuSample, HostSample, JobKey, NodeState, RankSample, Sample, to_json
from mltop.probes.model.gpu import Nvlink
from mltop.probes.model.news.row import pack_row, row_of
from mltop.probes.reach.view import FleetView, NodeView, Received
from mltop.tui.app.feed import Picture
from mltop.tui.app.past.node import NodePast
from mltop.tui.app.past.past import Past
from tests.bench.goals import PAST_CPU_PERCENT, PAST_GRAPH_MS, PAST_MIB, PAST_PICTURE_MS
from tests.bench.table import Goal, print_table

NODES, GPUS, SECONDS = 512, 8, 240
HOURS = 4
MADE = 64  # different nodes: the others say the same
WHOLE_EVERY_S = 60  # a node sends a whole sample
T0 = 1_763_640_000.0
JOB = JobKey("train-70b", 1000)


def gpu(source: random.Random, index: int) -> GpuSample:
    return GpuSample(
        index,
        busy=1.0,
        sm_active=round(source.gauss(0.87, 0.02), 4),
        tensor_active=round(source.gauss(0.5, 0.02), 4),
        dram_active=round(source.gauss(0.55, 0.03), 4),
        memory_used_bytes=67_000_000_000,
        memory_total_bytes=85_000_000_000,
        temperature_c=float(source.choice((61, 62, 63))),
        power_w=round(source.gauss(640, 15), 3),
        power_limit_w=700.0,
        sm_clock_mhz=source.choice((1980, 1965, 1950)),
        sm_clock_max_mhz=1980,
        throttle_reasons=source.choice(([], [], [], ["sw_power_cap"])),
        nvlink=Nvlink(rx_bytes_per_s=source.gauss(1.15e11, 4e9), tx_bytes_per_s=source.gauss(1.15e11, 4e9)),
    )


def sample(source: random.Random, node: int, at: float) -> Sample:
    ranks = [
        RankSample(1000 + index, GPUS * node + index, job=JOB.name, uid=JOB.uid, started_at=T0, gpus=[index])
        for index in range(GPUS)
    ]
    host = HostSample(
        cpu_fraction=source.uniform(0.2, 0.4), ports_rx_bytes_per_s=source.gauss(9e10, 2e9), ports_tx_bytes_per_s=9e10
    )
    return Sample(f"n{node}", at, gpus=[gpu(source, index) for index in range(GPUS)], ranks=ranks, host=host)


def frame(whole: Sample) -> bytes:
    return f'{{"kind":"sample","sample":{to_json(whole)}}}'.encode()


def views(nodes: int, seconds: int) -> Sequence[Callable[[], FleetView]]:
    """One for each second, made when it is asked for."""
    wholes: dict[int, Sample] = {}
    payloads: dict[int, bytes] = {}

    def view(second: int) -> FleetView:
        source, at = random.Random(second), T0 + second
        made = [sample(source, node, at) for node in range(min(MADE, nodes))]
        rows = [pack_row(row_of(one)) for one in made]
        for node in range(nodes):
            if node not in wholes or (second + node) % WHOLE_EVERY_S == 0:
                wholes[node] = replace(made[node % len(made)], node=f"n{node}")
                payloads[node] = zlib.compress(frame(wholes[node]), 1)
        received = [Received(wholes[node], at, rows[node % len(made)], packed=payloads[node]) for node in range(nodes)]
        return FleetView(at, tuple(NodeView(NodeState(f"n{node}", "live"), own) for node, own in enumerate(received)))

    return [lambda second=second: view(second) for second in range(seconds)]  # type: ignore[misc]


def kept_bytes() -> int:
    """What the values of one node take after four hours."""
    source, own = random.Random(1), NodePast(1.0)
    rows = [pack_row(row_of(sample(source, 0, T0))) for _ in range(600)]
    for second in range(HOURS * 3600):
        own.take(T0 + second, rows[second % len(rows)])
    return own.packed_bytes


def milliseconds(call: Callable[[], object], times: int = 20) -> float:
    began = time.thread_time()
    for _ in range(times):
        call()
    return 1000 * (time.thread_time() - began) / times


def main(quick: bool = False) -> None:
    nodes, seconds = (64, 70) if quick else (NODES, SECONDS)
    past, spent_s = Past(), 0.0
    for make in views(nodes, seconds):
        view = make()
        began = time.thread_time()
        past.see(Picture(view))
        spent_s += time.thread_time() - began
    until = T0 + seconds - 1
    print_table(
        "past",
        [
            (f"{nodes} nodes of {GPUS} GPUs at 1 Hz: % of a core", 100 * spent_s / seconds, Goal(PAST_CPU_PERCENT)),
            ("their values of four hours: MiB", kept_bytes() * nodes / (1 << 20), Goal(PAST_MIB)),
            ("ten minutes of a job in 60 columns: ms", milliseconds(lambda: past.sums(JOB, 60)), Goal(PAST_GRAPH_MS)),
            (
                f"a picture of a moment of {nodes} nodes, seen first: ms",
                milliseconds(lambda: past.picture(until - 50.0), 1),
                None,
            ),
            (
                "the same, a second later: ms",
                milliseconds(lambda: past.picture(until - 49.0), 1),
                Goal(PAST_PICTURE_MS),
            ),
            (
                "ten minutes of 8 GPUs' SM activity: ms",
                milliseconds(lambda: [past.track("n0", gpu, until).sm_active for gpu in range(GPUS)]),
                None,
            ),
        ],
    )


if __name__ == "__main__":
    main("--quick" in sys.argv)
