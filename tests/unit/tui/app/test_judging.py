"""What the feed makes of views of a large fleet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from mltop.probes.agent.frames import Frames
from mltop.probes.agent.protocol import encode, payload_of
from mltop.probes.demo.fleet import build
from mltop.probes.model import NodeState, RankSample, Sample
from mltop.probes.reach.receiving import Envelope
from mltop.probes.reach.records import NEWS, Records
from mltop.probes.reach.view import FleetView, NodeView
from mltop.tui.app.feed import Picture
from mltop.tui.app.judging import HealthWatch
from mltop.tui.render.answer import answer_of


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
    assert 37 <= min(second for second, phase in told if phase == "quiet") <= 40
    assert 61 <= min(second for second, phase in told if phase == "moving" and second > 50) <= 66


def test_the_largest_job_is_line_1_within_ten_seconds_of_its_fall() -> None:
    """Of the demo's 64 nodes, one of which has lost a GPU, as they judge themselves."""
    falls_at = 20.0
    nodes = build(64, 1, 8, 1.0, falls_at, spares=6)
    began = nodes[0].began_at
    frames = {node.name: Frames(node.name, judged_every_s=10.0) for node in nodes}
    records, now = Records(list(frames), 1.0), began
    watch, decoder = HealthWatch(clock=lambda: now), msgspec.json.Decoder(Envelope)
    for second in range(int(falls_at) + 11):
        now = began + second
        for node in nodes:
            for message in frames[node.name].of(node.sample(now)):
                payload = payload_of(encode(message)[:-1])
                assert payload is not None
                envelope = decoder.decode(payload)
                records.set_phase(node.name, "live", "")
                if envelope.kind in NEWS:
                    records.take_news(node.name, envelope.kind, payload)
                elif envelope.row is not None:
                    records.take(node.name, envelope.row, now)
        view = replace(records.view(), taken_at=now)
        findings = watch.findings(view)
        answer = answer_of(
            Picture(view, tuple(findings), incidents=tuple(watch.incidents), motions=tuple(watch.motions))
        )
        if second < falls_at:
            assert answer.word != "STALLED?"
    lost = next(one for one in watch.incidents if one.kind == "node")
    assert lost.severity == "critical" and "lost" in " ".join(finding.message for finding in lost.findings)
    assert answer.word == "STALLED?" and answer.headline.startswith("job llama-70b: 464 ranks: no progress (+")
    (fallen,) = watch.motions
    assert fallen.since == pytest.approx(began + falls_at, abs=1.0)
