"""States of nodes from what is known of them, and samples that are decoded when somebody looks."""

from __future__ import annotations

import math
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from mltop.probes.agent.protocol import Message, encode, payload_of
from mltop.probes.model import (
    Ecc,
    GpuSample,
    HostSample,
    LinkSample,
    Nvlink,
    NvlinkLink,
    PciDevice,
    RankSample,
    Sample,
)
from mltop.probes.model.news.judged import PartNumbers
from mltop.probes.model.news.row import pack_row, row_of, width_of
from mltop.probes.reach.receiving import RowFrame
from mltop.probes.reach.records import NodeRecord, Records, newer_skew
from mltop.probes.reach.sharing import MOST_BYTES, Sharing


def encoded(sample: Sample) -> bytes:
    found = payload_of(encode(Message("sample", node=sample.node, sample=sample))[:-1])
    assert found is not None
    return found


def row(at: float, sample: Sample | None = None, numbers: tuple[PartNumbers, ...] = ()) -> RowFrame:
    return RowFrame(at, pack_row(row_of(sample or Sample("n1", at))), numbers)


def take(records: Records, at: float, node: str = "n1") -> None:
    records.take_news(node, "sample", encoded(Sample("other", at)))
    records.take(node, row(at), time.monotonic())


def test_from_connecting_to_live_to_stale_to_lost() -> None:
    record = NodeRecord("n1", interval_s=2.0)
    assert (record.state(0.0).state, record.state(0.0).age_s) == ("connecting", None)
    record.phase, record.why, record.received_at = "live", "", 10.0
    assert (record.state(11.0).state, record.state(11.0).age_s) == ("live", 1.0)
    assert record.state(16.0).state == "live"
    late = record.state(17.0)
    assert (late.state, late.reason, late.age_s) == ("stale", "no sample for 7 s", 7.0)
    record.phase, record.why = "lost", "gone"
    assert (record.state(17.0).state, record.state(17.0).reason, record.state(17.0).age_s) == ("lost", "gone", 7.0)
    record.phase = "refused"
    assert record.state(17.0).state == "refused"


def test_short_intervals_do_not_make_a_node_stale_at_once() -> None:
    record = NodeRecord("n1", interval_s=0.1, phase="live", received_at=10.0)
    assert record.state(12.9).state == "live"


def test_a_sample_is_decoded_once_and_kept_when_the_node_is_lost() -> None:
    records = Records(["n1", "n2"], 1.0)
    take(records, 5.0)
    sample = records.node("n1").sample
    assert sample is not None and (sample.node, sample.sampled_at) == ("n1", 5.0)
    assert records.view().nodes[0].sample is sample
    records.set_phase("n1", "lost", "gone")
    view = records.view()
    assert (view.nodes[0].sample, view.nodes[0].state.reason, view.nodes[1].sample) == (sample, "gone", None)


def test_a_sample_that_cannot_be_decoded_leaves_the_one_before_and_says_so() -> None:
    records = Records(["n1"], 1.0)
    take(records, 5.0)
    records.view()
    records.take_news("n1", "sample", b'{"kind":"sample","sample":{"sampled_at":6.0,"node":7}}')
    records.take("n1", row(6.0), time.monotonic())
    view = records.node("n1")
    assert view.sample is not None and view.sample.sampled_at == 5.0
    assert "another version" in view.state.reason


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (RowFrame(-1.0, pack_row(row_of(Sample("n1", 1.0)))), "is no time"),
        (RowFrame(6.0, b""), "0 bytes"),
        (RowFrame(6.0, b"x" * 7), "7 bytes"),
        (RowFrame(6.0, bytes(2 * width_of(100_000))), "too long"),
        (row(6.0, numbers=(PartNumbers(recent=-1),)), "cannot be"),
        (row(6.0, numbers=(PartNumbers(worked_ago_s=-5.0),)), "cannot be"),
    ],
)
def test_a_row_that_cannot_be_is_refused_and_the_one_before_stays(bad: RowFrame, why: str) -> None:
    records = Records(["n1"], 1.0)
    take(records, 5.0)
    records.view()
    records.take("n1", bad, time.monotonic())
    view = records.node("n1")
    assert view.row is not None and view.row[0] == 5.0
    assert view.state.state == "stale" and why in view.state.reason


@pytest.mark.parametrize("wild", [math.inf, -math.inf, -7.0, 65_504.0])
def test_values_of_a_row_that_cannot_be_are_unknown(wild: float) -> None:
    records = Records(["n1"], 1.0)
    whole = Sample("n1", 1.0, gpus=[GpuSample(0, busy=0.25, sm_active=0.5)])
    good = row_of(whole)
    records.take_news("n1", "sample", encoded(whole))
    records.take("n1", RowFrame(2.0, struct.pack(f"<{len(good)}e", *[wild] * len(good))), 1.0)
    view = records.node("n1")
    assert view.sample is not None
    for gpu in (view.gpus[0], view.sample.gpus[0]):
        values = (gpu.busy, gpu.sm_active, gpu.power_w, gpu.temperature_c, gpu.sm_clock_mhz, gpu.throttle_reasons)
        assert values == (None,) * len(values) and gpu.state == "ok"
    assert view.sample.host.cpu_fraction is None
    records.take("n1", row(3.0, whole), 1.0)
    assert records.node("n1").gpus[0].sm_active == 0.5


def test_a_node_is_what_its_newest_row_says_beside_its_newest_whole_sample() -> None:
    gpus = [GpuSample(index, f"GPU-{index}", "H100", ecc=Ecc(True), busy=0.25) for index in range(2)]
    whole = Sample("n1", 1.0, gpus=gpus, ranks=[RankSample(7, 0, command="train.py")], links=[LinkSample("mlx5_0")])
    reasons = ["hw_thermal"]
    later = replace(gpus[0], busy=0.875, sm_clock_mhz=1200, power_w=512.0, throttle_reasons=reasons)
    lost = replace(gpus[1], state="lost")
    records = Records(["n1"], 1.0)
    records.take_news("n1", "sample", encoded(whole))
    records.take("n1", row(2.0, replace(whole, gpus=[later, lost], host=HostSample(cpu_fraction=0.5))), 1.0)
    view = records.node("n1")
    found = view.sample
    assert found is not None
    assert found.sampled_at == view.sampled_at == 2.0 and found.links[0].device == "mlx5_0"
    assert (found.gpus[0].name, found.gpus[0].ecc.enabled) == ("H100", True)
    for gpu in (found.gpus[0], view.gpus[0]):
        assert (gpu.busy, gpu.sm_clock_mhz, gpu.power_w) == (0.875, 1200, 512.0)
        assert list(gpu.throttle_reasons or ()) == reasons
    assert found.gpus[1].state == view.gpus[1].state == "lost"
    assert found.host.cpu_fraction == 0.5 and view.ranks is found.ranks


def test_equal_parts_of_many_nodes_are_kept_once_and_others_are_not_mixed_up() -> None:
    records = Records(["n1", "n2", "n3"], 1.0)
    for node, errors in (("n1", 0), ("n2", 0), ("n3", 5)):
        link = NvlinkLink(0, active=True, errors={"crc": errors})
        gpu = GpuSample(0, ecc=Ecc(True, corrected_volatile=errors), nvlink=Nvlink([link], rx_bytes_per_s=1.0))
        records.take_news(node, "sample", encoded(Sample(node, 1.0, gpus=[gpu], pci=[PciDevice("0000:9b:00.0")])))
        records.take(node, row(1.0), 1.0)
    first, second, third = (view.whole for view in records.view().nodes)
    assert first is not None and second is not None and third is not None
    assert first.gpus[0].nvlink.links is second.gpus[0].nvlink.links
    assert first.gpus[0].ecc is second.gpus[0].ecc and first.pci[0] is second.pci[0] is third.pci[0]
    assert [sample.gpus[0].nvlink.links[0].errors["crc"] for sample in (first, second, third)] == [0, 0, 5]
    assert [sample.gpus[0].ecc.corrected_volatile for sample in (first, second, third)] == [0, 0, 5]


def test_a_node_whose_parts_differ_each_time_fills_no_memory() -> None:
    sharing = Sharing()
    for number in range(40):
        sample = Sample("n1", 1.0, pci=[PciDevice(f"device {number}", driver="x" * (MOST_BYTES // 10))])
        sharing.sample(sample)
        assert sample.pci[0].bus_id == f"device {number}"
        assert 0 < sharing.size_bytes <= MOST_BYTES
    larger = Sample("n1", 1.0, pci=[PciDevice("large", driver="x" * (MOST_BYTES + 1))])
    sharing.sample(larger)
    assert larger.pci[0].bus_id == "large" and sharing.size_bytes == 0


def test_many_threads_get_one_and_the_same_sample() -> None:
    records = Records(["n1"], 1.0)
    take(records, 5.0)
    view, together = records.node("n1"), threading.Barrier(8)

    def look(_: int) -> int:
        together.wait(30)
        return id(view.sample)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(look, range(8)))) == 1


def test_a_bad_whole_sample_stays_bad_with_every_row_that_follows() -> None:
    records = Records(["n1"], 1.0)
    take(records, 5.0)
    records.view()
    records.take_news("n1", "sample", b'{"kind":"sample","sample":7}')
    for at in (6.0, 7.0):
        records.take("n1", row(at), time.monotonic())
        assert "another version" in records.node("n1").state.reason
    take(records, 8.0)
    assert records.node("n1").state.state == "live"


def test_a_row_shorter_than_its_node_leaves_the_other_gpus_as_they_were() -> None:
    records = Records(["n1"], 1.0)
    gpus = [GpuSample(0, busy=0.25), GpuSample(1, busy=0.5)]
    records.take_news("n1", "sample", encoded(Sample("n1", 1.0, gpus=gpus)))
    records.take("n1", row(2.0, Sample("n1", 2.0, gpus=[GpuSample(0, busy=0.75)])), 1.0)
    view = records.node("n1")
    assert view.sample is not None
    assert [gpu.busy for gpu in view.gpus] == [gpu.busy for gpu in view.sample.gpus] == [0.75, 0.5]


def test_the_serial_grows_with_changes_only() -> None:
    records = Records(["n1"], 1.0)
    serial = records.serial
    records.set_phase("n1", "connecting", "starting")
    records.set_phase("n1", "connecting", "starting")
    assert records.serial == serial + 1
    now = time.monotonic()
    records.take("n1", row(1.0), now)
    records.tick(now)
    assert records.serial == serial + 2
    records.tick(now + 10)
    records.tick(now + 11)
    assert records.serial == serial + 3


def test_the_clock_skew_is_that_of_the_fastest_sample_and_follows_a_clock_that_is_set() -> None:
    skew = newer_skew(None, -0.2)
    for seen in (-0.1, -0.5, -0.05, -0.3):
        skew = newer_skew(skew, seen)
    assert -0.1 < skew < -0.04
    for _ in range(400):
        skew = newer_skew(skew, -60.0)
    assert skew < -55
    assert newer_skew(skew, 5.0) == 5.0
