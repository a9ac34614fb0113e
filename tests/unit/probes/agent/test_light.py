"""A light sample, completed by the whole one before it, is the sample that it was made of."""

from __future__ import annotations

import msgspec

from mltop.probes.agent.light import WholeSamples, complete
from mltop.probes.agent.protocol import Message, encode, encode_light, payload_of
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


def decoded(frame: bytes) -> Sample:
    payload = payload_of(frame[:-1])
    assert payload is not None
    sample = msgspec.json.decode(payload, type=Message).sample
    assert sample is not None
    return sample


def through_the_wire(sample: Sample) -> Sample:
    found = decoded(encode_light(sample))
    complete(found, decoded(encode(Message("slow", sample=sample))))
    return found


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
    assert through_the_wire(sample) == sample


def test_processes_of_no_job_come_with_whole_samples_and_at_once_when_they_change() -> None:
    notebook = RankSample(7, command="python notebook.py", rss_bytes=5)
    assert b"notebook" not in encode_light(Sample("n1", 1.0, unassigned=[notebook]))
    assert through_the_wire(Sample("n1", 1.0, unassigned=[notebook])).unassigned == [notebook]
    whole = WholeSamples()
    assert whole.is_due(Sample("n1", 1.0))
    assert not whole.is_due(Sample("n1", 2.0))
    assert whole.is_due(Sample("n1", 3.0, unassigned=[notebook]))
    assert not whole.is_due(Sample("n1", 4.0, unassigned=[notebook]))
    assert whole.is_due(Sample("n1", 5.0, ranks=[RankSample(7, 0)]))
    assert whole.is_due(Sample("n1", 6.0, ranks=[RankSample(7, 1)]))


def test_a_sample_of_nothing_but_defaults() -> None:
    assert through_the_wire(Sample("n1", 1.0)) == Sample("n1", 1.0)
    frame = encode_light(Sample("n1", 1.0, gpus=[GpuSample(0)]))
    assert b"null" not in frame and b"[]" not in frame
