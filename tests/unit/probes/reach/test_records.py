"""States of nodes from what is known of them, and samples that are decoded when somebody looks."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec

from mltop.probes.agent.protocol import Message, encode, encode_light, payload_of
from mltop.probes.model import Ecc, Gap, GpuSample, HostSample, LinkSample, NodeState, RankSample, Sample
from mltop.probes.model.gpu import Nvlink
from mltop.probes.reach.records import NodeRecord, Records, newer_skew
from mltop.probes.reach.view import NodeView, NvlinkSummary, Received, SampleFrame, summary_of


def payload(node: str, at: float) -> bytes:
    return encoded(Sample(node, at))


def encoded(sample: Sample) -> bytes:
    found = payload_of(encode(Message("sample", node=sample.node, sample=sample))[:-1])
    assert found is not None
    return found


def test_from_connecting_to_live_to_stale_to_lost() -> None:
    record = NodeRecord("n1", interval_s=2.0)
    assert (record.state(0.0).state, record.state(0.0).age_s) == ("connecting", None)
    record.take(payload("n1", 1.0), 10.0, 10**6)
    assert (record.state(11.0).state, record.state(11.0).age_s) == ("live", 1.0)
    assert record.state(16.0).state == "live"
    late = record.state(17.0)
    assert (late.state, late.reason, late.age_s) == ("stale", "no sample for 7 s", 7.0)
    record.phase, record.why = "lost", "gone"
    assert (record.state(17.0).state, record.state(17.0).reason, record.state(17.0).age_s) == ("lost", "gone", 7.0)
    record.phase = "refused"
    assert record.state(17.0).state == "refused"


def test_short_intervals_do_not_make_a_node_stale_at_once() -> None:
    record = NodeRecord("n1", interval_s=0.1)
    record.take(payload("n1", 1.0), 10.0, 10**6)
    assert record.state(12.9).state == "live"


def test_a_sample_is_decoded_once_and_kept_when_the_node_is_lost() -> None:
    records = Records(["n1", "n2"], 1.0)
    records.take("n1", payload("other", 5.0), 5.0, time.monotonic())
    sample = records.node("n1").sample
    assert sample is not None and (sample.node, sample.sampled_at) == ("n1", 5.0)
    assert records.view().nodes[0].sample is sample
    records.set_phase("n1", "lost", "gone")
    view = records.view()
    assert (view.nodes[0].sample, view.nodes[0].state.reason, view.nodes[1].sample) == (sample, "gone", None)


def test_a_sample_that_cannot_be_decoded_leaves_the_one_before_and_says_so() -> None:
    records = Records(["n1"], 1.0)
    records.take("n1", payload("n1", 5.0), 5.0, time.monotonic())
    records.view()
    records.take("n1", b'{"kind":"sample","sample":{"sampled_at":6.0,"node":7}}', 6.0, time.monotonic())
    view = records.node("n1")
    assert view.sample is not None and view.sample.sampled_at == 5.0
    assert "another version" in view.state.reason
    assert [sample.sampled_at for sample in records.history("n1")] == [5.0]


def test_a_whole_sample_is_decoded_when_it_is_asked_for_and_ahead_while_somebody_does() -> None:
    records = Records(["n1", "n2"], 1.0)
    decoded = []

    def newest(at: float, node: str = "n1") -> Received:
        records.take(node, payload("", at), at, time.monotonic())
        received = records.node(node).newest
        assert isinstance(received, Received) and received.summary.sampled_at == at
        decoded.append(received._decoded)
        return received

    newest(1.0).decoded()  # in turn
    found = newest(2.0).sample()
    assert found is not None and (found.node, found.sampled_at) == ("n1", 2.0)
    newest(3.0)  # somebody asked for the one before, nobody for this one
    newest(4.0)
    assert decoded == [False, False, True, False]


def test_a_sample_of_which_only_a_summary_is_known_says_so() -> None:
    records = Records(["n1"], 1.0)
    records.take("n1", b'{"kind":"sample","sample":{"sampled_at":6.0,"links":7}}', 6.0, time.monotonic())
    view = records.node("n1")
    assert view.summary is not None and view.state.reason == ""
    assert view.sample is None and view.sample is None
    assert "another version" in records.node("n1").state.reason


def test_many_threads_get_one_and_the_same_sample() -> None:
    records = Records(["n1"], 1.0)
    records.take("n1", payload("n1", 5.0), 5.0, time.monotonic())
    view, together = records.node("n1"), threading.Barrier(8)

    def look(_: int) -> int:
        together.wait(30)
        return id(view.sample)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(look, range(8)))) == 1


def test_a_summary_has_the_values_of_the_sample() -> None:
    gpus = [
        GpuSample(0, busy=0.5, power_w=610.5, sm_clock_mhz=1755, throttle_reasons=["hw_thermal"], uuid="GPU-1"),
        GpuSample(1, state="lost", error="gone"),
    ]
    ranks = [RankSample(8120, 3, job="77", started_at=1.5, voluntary_switches=9, read_syscalls=0)]
    gpus[0].nvlink = Nvlink(rx_bytes_per_s=1e9)
    sample = Sample("n1", 5.0, interval_s=2.0, simulated=True, gpus=gpus, ranks=ranks, gaps=[Gap("nvml", "why")])
    sample.host = HostSample(cpu_fraction=0.25, ports_rx_bytes_per_s=2.0, ports_tx_bytes_per_s=3.0)
    decoded = msgspec.json.decode(encoded(sample), type=SampleFrame).sample
    assert decoded == summary_of(sample) == NodeView(NodeState("n1", "live"), sample).summary
    assert decoded is not None and decoded.gpus[0].throttle_reasons == ("hw_thermal",)
    for part, whole in ((decoded.gpus[1], gpus[1]), (decoded.ranks[0], ranks[0])):
        for name in part.__struct_fields__:
            value = getattr(whole, name)
            if name != "nvlink":
                assert getattr(part, name) == (tuple(value) if isinstance(value, list) else value), name
    assert decoded.gpus[0].nvlink == NvlinkSummary(1e9, None) and decoded.host.cpu_fraction == 0.25
    assert decoded.host.all_network_bytes_per_s == 5.0


def test_all_traffic_is_that_of_the_ports_where_it_is_known() -> None:
    sample = Sample("n1", 5.0, host=HostSample(network_rx_bytes_per_s=1.0, network_tx_bytes_per_s=2.0))
    assert summary_of(sample).host.all_network_bytes_per_s == 3.0, "an older agent without ports"
    sample.links = [LinkSample("mlx5_0", rx_bytes_per_s=40.0, tx_bytes_per_s=50.0), LinkSample("mlx5_1")]
    assert summary_of(sample).host.all_network_bytes_per_s == 90.0, "an older agent with ports"
    sample.host.ports_rx_bytes_per_s = sample.host.ports_tx_bytes_per_s = 7.0
    assert summary_of(sample).host.all_network_bytes_per_s == 14.0
    assert summary_of(Sample("n1", 5.0)).host.all_network_bytes_per_s is None


def test_the_serial_grows_with_changes_only() -> None:
    records = Records(["n1"], 1.0)
    serial = records.serial
    records.set_phase("n1", "connecting", "starting")
    records.set_phase("n1", "connecting", "starting")
    assert records.serial == serial + 1
    now = time.monotonic()
    records.take("n1", payload("n1", 1.0), 1.0, now)
    records.tick(now)
    assert records.serial == serial + 2
    records.tick(now + 10)
    records.tick(now + 11)
    assert records.serial == serial + 3


def test_history_keeps_to_its_share_and_to_its_time() -> None:
    record = NodeRecord("n1")
    for second in range(100):
        record.take(b"x" * 100, float(second), 1000)
    assert record.history_bytes == 1000 == sum(len(kept.payload) for kept in record.history)
    record.take(b"x" * 5000, 100.0, 1000)
    assert len(record.history) == 2
    record.take(b"x", 1000.0, 1000)
    assert [kept.at for kept in record.history] == [1000.0]


def test_a_whole_sample_is_shared_by_those_after_it_and_counted_once() -> None:
    record = NodeRecord("n1")
    whole = b"w" * 400
    record.slow = whole
    for second in range(5):
        record.take(b"x" * 10, float(second), 10_000)
    assert record.history_bytes == 400 + 5 * 10
    assert all(kept.slow is whole for kept in record.history)


def test_a_light_sample_is_completed_by_the_whole_one_before_it() -> None:
    gpus = [GpuSample(index, f"GPU-{index}", "H100", ecc=Ecc(True), busy=0.1) for index in range(2)]
    whole = Sample("n1", 1.0, gpus=gpus, ranks=[RankSample(7, 0, command="train.py")], links=[LinkSample("mlx5_0")])
    later = replace(whole, sampled_at=2.0, gpus=[replace(gpus[0], busy=0.9), replace(gpus[1], uuid="GPU-new")])
    records = Records(["n1"], 1.0)
    slow = payload_of(encode(Message("slow", sample=whole))[:-1])
    light = payload_of(encode_light(later)[:-1])
    assert slow is not None and light is not None and len(light) < 0.7 * len(slow)
    records.take_slow("n1", slow)
    records.take("n1", light, 2.0, time.monotonic())
    found = records.node("n1").sample
    assert found is not None
    assert (found.gpus[0].name, found.gpus[0].ecc.enabled, found.gpus[0].busy) == ("H100", True, 0.9)
    assert found.gpus[1].name is None, "another board than that of the whole sample"
    assert (found.ranks[0].command, found.links[0].device) == ("train.py", "mlx5_0")
    assert [one.gpus[0].name for one in records.history("n1")] == ["H100"]


def test_the_clock_skew_is_that_of_the_fastest_sample_and_follows_a_clock_that_is_set() -> None:
    skew = newer_skew(None, -0.2)
    for seen in (-0.1, -0.5, -0.05, -0.3):
        skew = newer_skew(skew, seen)
    assert -0.1 < skew < -0.04
    for _ in range(400):
        skew = newer_skew(skew, -60.0)
    assert skew < -55
    assert newer_skew(skew, 5.0) == 5.0
