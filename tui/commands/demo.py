"""`mltop demo`: the real screen over a real CPU job that hangs, with simulated GPUs; `--nodes N` adds simulated nodes.

The job's processes are children of the demo's agent, which ends with this process, however it ends. The demo tells its
story without a key: the job has trained for ten minutes, stops, and is dumped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mltop.probes.demo.gpus import SEED, UPTIME_S, simulate
from mltop.probes.demo.job import JOB
from mltop.probes.investigate.session import LiveSession
from mltop.probes.model import NodeState, RankSample, Sample
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.targets import TargetOptions
from mltop.probes.reach.view import FleetView, NodeView
from mltop.probes.system.spawn import python_command
from mltop.tui.commands.live import verdict_text
from mltop.tui.commands.screen import require_terminal, show
from mltop.tui.config.settings import Config

if TYPE_CHECKING:
    from mltop.probes.demo.simulated import SimulatedNode
    from mltop.tui.app.feed import Picture

GPUS_PER_NODE = 8
RANKS = 4
SPARES = 6  # simulated nodes without a job, as probes need them; at most a third of all
HERE = "sim001"  # the node of the real processes
HEALTHY_S = 15  # seconds of training on the screen: fewer, and the job is never seen to step
HANGS_AFTER_S = 2 * HEALTHY_S  # in a fleet, whose agents take longer to be there
TRAINED_S = 600  # before the demo began: the span of a graph
MOST_BEFORE = 8  # nodes: with more the screen would open seconds later


def run(options: TargetOptions, node_count: int, config: Config) -> int:
    require_terminal()
    session = LiveSession("demo", demo_channels(node_count, options.interval_s), options.interval_s, verdict_text)
    before = training_before(time.time(), node_count)
    return show(
        session, replace(config, auto_dump="always"), options.read_only, before=before, hint=hint, remembers=False
    )


def demo_channels(node_count: int, interval_s: float) -> list[Channel]:
    """Channels to the node with the real job, and to one process that speaks for all other nodes."""
    common = ("--gpus", str(GPUS_PER_NODE), "--interval", str(interval_s), "--spares", str(SPARES))
    healthy_s = HEALTHY_S if node_count == 1 else 24 * 3600  # in a fleet the simulated job hangs, it alone
    named = ("--node", HERE, "--ranks", str(RANKS), "--healthy", str(healthy_s), "--fleet", str(node_count - 1))
    first = Channel(tuple(python_command("mltop.probes.demo.node", *named, *common)), (HERE,))
    if node_count == 1:
        return [first]
    count = node_count - 1
    nodes = tuple(f"sim{number:03d}" for number in range(2, node_count + 1))
    others = ("--nodes", str(count), "--first", "2", "--hang-after", str(HANGS_AFTER_S))
    return [first, Channel(tuple(python_command("mltop.probes.demo.fleet", *others, *common)), nodes)]


def training_before(now: float, node_count: int) -> Iterator[FleetView]:
    """What the screen would have seen in the ten minutes before ``now`` (unix s). Of a large fleet the nodes around the
    one that will hang: graphs of a job scale up what some nodes report.
    """
    fleet: list[SimulatedNode] = []
    if node_count > 1:
        from mltop.probes.demo.fleet import build

        nodes = build(node_count - 1, 2, GPUS_PER_NODE, 1.0, HANGS_AFTER_S, spares=SPARES)
        middle = nodes[0].job.culprit // GPUS_PER_NODE
        fleet = nodes[max(0, middle - MOST_BEFORE // 2) :][:MOST_BEFORE]
    ranks = [RankSample(rank + 1, rank, job=JOB, uid=os.geteuid(), gpus=[rank]) for rank in range(RANKS)]
    on_gpus = [(rank.pid, index) for index, rank in enumerate(ranks)]
    for ago_s in range(TRAINED_S, 0, -2 if fleet else -1):
        gpus = simulate(UPTIME_S - ago_s, GPUS_PER_NODE, SEED, on_gpus, None)
        sample = Sample(HERE, now - ago_s, simulated=True, gpus=gpus, ranks=ranks)
        samples = [sample, *(node.sample(now - ago_s) for node in fleet)]
        yield FleetView(now - ago_s, tuple([NodeView(NodeState(one.node, "live"), one) for one in samples]))


def hint(picture: Picture) -> str:
    """What happens now in the demo, and which key leads on."""
    from mltop.tui.render.advice import KEYCAPS

    if any(report.verdict.kind == "hang" for report in picture.reports):
        keys = [KEYCAPS[name] for name in ("stacks", "incidents", "help", "quit")]
        return "demo: {} shows the stacks, {} all about the hang; {} lists the keys, {} quits".format(*keys)
    if any(incident.kind == "hang" for incident in picture.incidents):
        return "demo: the job stopped; mltop dumps its stacks as soon as it is sure"
    return "demo: real processes train on simulated GPUs; in a few seconds one of them stops"
