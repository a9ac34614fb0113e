"""What the feed makes of views of a large fleet."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.model import NodeState, RankSample, Sample
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.judging import HealthWatch


class Fleet:
    """``nodes`` nodes with two ranks each of one job, second by second."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self.now, self.moved = nodes, 1000.0, 0

    def view(self) -> FleetView:
        return FleetView(self.now, tuple(self._views()))

    def _views(self) -> Iterator[NodeView]:
        for node in range(self.nodes):
            ranks = [
                RankSample(
                    pid=4000 + local,
                    rank=2 * node + local,
                    world_size=2 * self.nodes,
                    job="train",
                    uid=1000,
                    state="S",
                    started_at=5.0,
                    cpu_fraction=0.02,
                    children_cpu_fraction=0.0,
                    voluntary_switches=36 * self.moved,
                    main_cpu_s=0.007 * self.moved,
                    read_syscalls=12 * self.moved,
                    write_syscalls=14 * self.moved,
                )
                for local in (0, 1)
            ]
            name = f"n{node}"
            yield NodeView(NodeState(name, "live"), Sample(name, self.now, ranks=ranks))


def test_a_job_that_falls_still_is_reported_within_seconds() -> None:
    fleet = Fleet(30)
    watch = HealthWatch(clock=lambda: fleet.now)
    told = []
    for second in range(90):
        watch.findings(fleet.view())
        told += [(second, motion.phase) for motion in watch.motions]
        fleet.now += 1.0
        fleet.moved += 0 if 30 <= second < 60 else 1
    assert 40 <= min(second for second, phase in told if phase == "quiet") <= 46
    assert 61 <= min(second for second, phase in told if phase == "moving" and second > 50) <= 66
