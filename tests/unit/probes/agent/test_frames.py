"""Which frames a sample makes: a row every time, whole samples, parts and findings when they have changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgspec

from mltop.probes.agent.frames import Frames
from mltop.probes.agent.protocol import Message, encode, payload_of
from mltop.probes.model import (
    BlockedProcess,
    Gap,
    GpuSample,
    HostSample,
    LinkSample,
    MigInstance,
    Nvlink,
    NvlinkLink,
    Pcie,
    Pressure,
    RankSample,
    Sample,
)
from mltop.probes.reach.receiving import Envelope, judged_of_frame, own_type, parts_of_frame
from tests.builders.health_samples import node_h100

START = 1_700_000_000.0


def payload(message: Message) -> bytes:
    found = payload_of(encode(message)[:-1])
    assert found is not None
    return found


def kinds(frames: Frames, sample: Sample) -> list[str]:
    return [message.kind for message in frames.of(sample)]


def busy_node(at: float) -> Sample:
    return node_h100(at, node="n1")


def test_values_zeros_and_unknowns_arrive_as_they_are() -> None:
    busy = GpuSample(0, "GPU-0", busy=0.5, power_w=0.0, throttle_reasons=[], throttle_ns={"a": 0}, processes=[])
    busy.pcie, busy.nvlink = Pcie(gen=5, errors={"naks": 0}), Nvlink([NvlinkLink(0)], rx_bytes_per_s=0.0)
    busy.mig_instances = [MigInstance(0, sm_active=0.0)]
    lost = GpuSample(1, "GPU-1", state="lost", error="gone")
    rank = RankSample(7, 0, job="j", children=[8], cpu_fraction=0.0, open_files=0, settings={"A": "1"})
    host = HostSample("n1", cpu_count=4, load_1m=0.0, zombies=0, blocked=[BlockedProcess(9, "x")], oom_kills=0)
    host.pressure = Pressure(cpu_some=0.0)
    sample = Sample(
        "n1", 1.0, interval_s=2.0, simulated=True, gpus=[busy, lost], ranks=[rank, RankSample(8)], host=host
    )
    sample.links, sample.gaps = [LinkSample("mlx5_0")], [Gap("a", "b"), Gap("c", "d", "e", "starting")]
    whole = Frames("n1").of(sample)[0]
    assert msgspec.json.decode(payload(whole), type=Message, dec_hook=own_type).sample == sample


def test_a_quiet_node_sends_a_row_of_half_a_kilobyte_each_second() -> None:
    frames = Frames("n1")
    assert kinds(frames, busy_node(START))[0] == "sample" and kinds(frames, busy_node(START + 1))[-1] == "row"
    sent = [
        (message.kind, len(encode(message)))
        for second in range(2, 242)
        for message in frames.of(busy_node(START + second))
    ]
    assert sum(size for _, size in sent) / 240 < 1500
    assert max(size for kind, size in sent if kind == "row") < 500
    assert len([kind for kind, _ in sent if kind == "sample"]) in (4, 5), "once a minute"


def test_whole_samples_come_at_once_when_something_matters_and_while_the_node_is_watched() -> None:
    frames = Frames("n1")
    notebook = RankSample(7, command="python notebook.py", rss_bytes=5)
    assert "sample" in kinds(frames, Sample("n1", 1.0))
    assert "sample" not in kinds(frames, Sample("n1", 2.0))
    assert "sample" in kinds(frames, Sample("n1", 3.0, unassigned=[notebook]))
    assert "sample" not in kinds(frames, Sample("n1", 4.0, unassigned=[notebook]))
    assert "sample" in kinds(frames, Sample("n1", 5.0, ranks=[RankSample(7, 0)]))
    assert "sample" in kinds(frames, Sample("n1", 6.0, ranks=[RankSample(7, 1)]))
    assert "sample" not in kinds(frames, Sample("n1", 7.0, ranks=[RankSample(7, 1)]))
    frames.watch(60.0)
    assert "sample" in kinds(frames, Sample("n1", 8.0, ranks=[RankSample(7, 1)]))
    frames.watch(0.0)
    assert "sample" not in kinds(frames, Sample("n1", 9.0, ranks=[RankSample(7, 1)]))


def test_a_caller_that_cannot_ask_gets_whole_samples_every_five_seconds() -> None:
    frames = Frames("n1", attended=False)
    sent = [at for at in range(1, 50) if "sample" in kinds(frames, Sample("n1", float(at)))]
    assert {after - before for before, after in pairwise(sent[-6:])} == {5}


def test_findings_and_ranks_go_out_when_they_change() -> None:
    frames = Frames("n1")
    for second in range(10):
        frames.of(busy_node(START + second))
    broken = busy_node(START + 10)
    broken.gpus[3] = replace(broken.gpus[3], state="lost", error="fell off the bus")
    sent = {message.kind: payload(message) for message in frames.of(broken)}
    assert {"sample", "judged", "row"} <= set(sent)
    judged = judged_of_frame(sent["judged"], "as we call it")
    assert ("gpu.lost", "as we call it") in {(one.id, one.node) for one in judged.findings}
    row = msgspec.json.decode(sent["row"], type=Envelope).row
    assert row is not None and row.at == START + 10
    row.check()
    fewer = replace(broken, sampled_at=START + 11, ranks=broken.ranks[:-1])
    (parts,) = [parts_of_frame(payload(message)) for message in frames.of(fewer) if message.kind == "parts"]
    assert len(parts[0].ranks) == len(fewer.ranks) and [gone.pid for gone in parts[0].gone] == [broken.ranks[-1].pid]
