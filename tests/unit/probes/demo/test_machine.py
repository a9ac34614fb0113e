"""What simulated nodes say beside GPUs: healthy, with old counters that do not grow, and one with telling faults."""

from __future__ import annotations

import msgspec
import pytest

from mltop.probes.demo.fleet import build
from mltop.probes.demo.gpus import simulate
from mltop.probes.demo.machine import FULL_SHARE
from mltop.probes.demo.simulated import SimulatedNode
from mltop.probes.model import Sample, to_json

DECODER = msgspec.json.Decoder(Sample)
RATES = ("port_rcv_data", "port_xmit_data")


def sample(node: SimulatedNode, after_s: float = 1.0) -> Sample:
    return DECODER.decode(to_json(node.sample(node.began_at + after_s)).encode())


def healthy_node() -> SimulatedNode:
    return build(6, 1, 8, 1.0, 1e6)[0]


def faulty_nodes(count: int) -> list[str]:
    return [node.name for node in build(count, 1, 8, 1.0, 5.0) if node.faulty]


@pytest.mark.parametrize(("count", "names"), [(1, []), (2, []), (3, ["sim002"]), (6, ["sim004"]), (64, ["sim043"])])
def test_one_node_of_a_fleet_is_faulty(count: int, names: list[str]) -> None:
    assert faulty_nodes(count) == names
    assert not any(node.faulty and (node.braked or node.lost_gpu) for node in build(count, 1, 8, 1.0, 5.0))


def test_a_healthy_node_is_healthy_and_whole() -> None:
    one = sample(healthy_node())
    assert len(one.links) == 9 and {link.state for link in one.links} == {"ACTIVE", "UP"}
    assert {link.rate_bits_per_s for link in one.links if link.kind == "infiniband"} == {400e9}
    assert one.kernel_events == [] and one.host.services["nvidia-fabricmanager"] == "active"
    for mount in one.host.filesystems:
        assert mount.available_bytes is not None and mount.total_bytes is not None
        assert 0.2 < mount.available_bytes / mount.total_bytes < 1
    for device in one.pci:
        assert device.link_speed_gt_per_s == device.link_speed_max_gt_per_s
        assert device.link_width == device.link_width_max and not any(device.aer.values())


def test_gpus_nics_and_ports_are_the_same_devices_everywhere() -> None:
    one = sample(healthy_node())
    by_kind = {kind: {d.bus_id for d in one.pci if d.kind == kind} for kind in ("gpu", "nic", "nvswitch", "nvme")}
    assert {gpu.pci_bus_id.lower()[4:] for gpu in one.gpus if gpu.pci_bus_id} == by_kind["gpu"]
    assert {link.pci_bus_id for link in one.links if link.kind == "infiniband"} == by_kind["nic"]
    assert len({device.bus_id for device in one.pci}) == len(one.pci)


def test_traffic_moves_with_the_job_and_error_counters_never() -> None:
    node = build(6, 1, 8, 1.0, 10.0)[0]
    before, after, hung, later = (sample(node, at) for at in (1.0, 2.0, 30.0, 31.0))
    for old, new in zip(before.links, after.links, strict=True):
        fixed = {name: value for name, value in old.counters.items() if name not in RATES}
        assert fixed == {name: value for name, value in new.counters.items() if name not in RATES}
    port, moved = before.links[0], after.links[0]
    grown = 4 * (moved.counters["port_rcv_data"] - port.counters["port_rcv_data"])
    assert moved.rx_bytes_per_s == pytest.approx(grown, rel=0.02)
    still = 4 * (later.links[0].counters["port_xmit_data"] - hung.links[0].counters["port_xmit_data"])
    assert 0 <= still < grown / 1000, "a hung job sends nothing"


def test_the_faulty_node_has_a_port_down_a_contained_error_and_a_full_disk() -> None:
    node = next(node for node in build(6, 1, 8, 1.0, 1e6) if node.faulty)
    one = sample(node)
    assert [link.device for link in one.links if link.state == "DOWN"] == ["mlx5_4"]
    (xid,) = one.kernel_events
    assert xid.code == 94 and 3000 < one.sampled_at - xid.at < 3600
    assert xid.subject in {gpu.pci_bus_id.lower()[4:-2] for gpu in one.gpus if gpu.pci_bus_id}
    full = [m.mount for m in one.host.filesystems if m.available_bytes / m.total_bytes < 1.001 - FULL_SHARE]
    assert full == ["/scratch"]
    assert "SIMULATED" in xid.text


def test_simulated_gpus_have_every_field_a_healthy_h100_has() -> None:
    for gpu in simulate(100.0, 8, 3, [(4001, 0)], None):
        assert gpu.unified_memory is False
        missing = {name for name, value in vars(gpu).items() if value is None}
        assert missing == {"error", "last_seen_at", "retired_pages_double_bit", "retired_pages_pending"}
        assert len(gpu.nvlink.links) == 18 and all(link.active and link.version == 4 for link in gpu.nvlink.links)
        assert gpu.temperature_slowdown_c == 87 and gpu.memory_temperature_max_c == 95
        assert not any(link.errors["recovery"] or link.errors["crc"] for link in gpu.nvlink.links)


def test_throttle_shares_are_those_of_the_last_second() -> None:
    hot = [simulate(t, 2, 3, [(1, 0), (2, 1)], None)[1] for t in (27.0, 28.5, 30.0, 40.5, 41.5)]
    assert [gpu.throttle_share.get("hw_thermal", 0.0) for gpu in hot] == [0.0, 0.5, 1.0, 0.5, 0.0]
    assert all(0 <= share <= 1 for gpu in hot for share in gpu.throttle_share.values())
