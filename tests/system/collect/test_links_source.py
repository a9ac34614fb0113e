"""Network ports as a node has them: InfiniBand, RoCE, EFA, Ethernet and bonds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mltop.probes.collect.links import LinkSource
from mltop.probes.model import Gap, LinkSample
from tests.fakes.sysfs import SysTree


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path)


def source(tree: SysTree) -> LinkSource:
    return LinkSource(str(tree.root))


def by_name(samples: list[LinkSample]) -> dict[str, LinkSample]:
    assert len({sample.device for sample in samples}) == len(samples)
    return {sample.device: sample for sample in samples}


def read(links: LinkSource, now: float) -> dict[str, LinkSample]:
    return by_name(links.read(now)[0])


def one_port(tree: SysTree, **more: object) -> LinkSource:
    tree.pci("0000:18:00.0", 0x15B3, 0x1021, 0x020700, "mlx5_core", numa_node=1)
    tree.infiniband("mlx5_0", "0000:18:00.0", **more)  # type: ignore[arg-type]
    return source(tree)


def test_a_whole_h100_node(tree: SysTree) -> None:
    links = source(tree.h100_node())
    samples, gaps = links.read(0.0)
    assert [sample.device for sample in samples] == [*(f"mlx5_{index}" for index in range(8)), "eth0", "eth1"]
    port = samples[5]
    assert (port.kind, port.port, port.state, port.physical_state) == ("infiniband", 1, "ACTIVE", "LinkUp")
    assert (port.rate_bits_per_s, port.firmware, port.netdev) == (400e9, "28.39.2048", "ib5")
    assert (port.pci_bus_id, port.numa_node, port.has_chardev) == (tree.nic_of(5), 1, True)
    assert (port.saturated, port.error) == ([], None)
    assert port.counters["port_xmit_wait"] == 2_489_603_687  # counters/
    assert port.counters["rnr_nak_retry_err"] == 0  # hw_counters/
    assert port.counters["netdev_carrier_down_count"] == 1
    assert "lifespan" not in port.counters
    assert gaps == [Gap("links.rates", "first sample: rates need two", kind="starting")]
    assert links.read(1.0)[1] == []


def test_a_port_that_never_had_a_carrier_is_shown_and_says_so(tree: SysTree) -> None:
    unused = read(source(tree.h100_node()), 0.0)["eth1"]
    assert (unused.kind, unused.state, unused.physical_state) == ("ethernet", "DOWN", "LinkDown")
    assert (unused.rate_bits_per_s, unused.counters["carrier_up_count"]) == (None, 0)


def test_rates_count_words_of_four_bytes_over_the_real_interval(tree: SysTree) -> None:
    links = one_port(tree)
    assert read(links, 100.0)["mlx5_0"].rx_bytes_per_s is None
    tree.count("mlx5_0", port_rcv_data=1000, port_xmit_data=500)
    sample = read(links, 102.5)["mlx5_0"]
    assert (sample.rx_bytes_per_s, sample.tx_bytes_per_s) == (1600.0, 800.0)


def test_a_reset_counter_gives_no_rate_once_and_says_so(tree: SysTree) -> None:
    links = one_port(tree)
    links.read(0.0)
    tree.set_counters("mlx5_0", port_rcv_data=0)
    samples, gaps = links.read(1.0)
    assert samples[0].rx_bytes_per_s is None
    assert [(gap.what, gap.kind) for gap in gaps if gap.what.startswith("links.mlx5_0")] == [
        ("links.mlx5_0.rates", "starting")
    ]
    assert read(links, 2.0)["mlx5_0"].rx_bytes_per_s == 0.0


def test_a_flap_brings_all_counters_at_once_the_others_follow_within_five_seconds(tree: SysTree) -> None:
    links = one_port(tree)
    links.read(0.0)
    tree.count("mlx5_0", symbol_error=7)
    assert read(links, 1.0)["mlx5_0"].counters["symbol_error"] == 0
    assert read(links, 5.0)["mlx5_0"].counters["symbol_error"] == 7
    tree.count("mlx5_0", symbol_error=1, link_downed=1)
    tree.set_port("mlx5_0", rate="200 Gb/sec (4X HDR)")
    sample = read(links, 6.0)["mlx5_0"]
    assert (sample.counters["symbol_error"], sample.counters["link_downed"]) == (8, 1)
    assert sample.rate_bits_per_s == 200e9


def test_a_state_is_seen_at_the_next_look_with_its_physical_state(tree: SysTree) -> None:
    links = one_port(tree)
    links.read(0.0)
    tree.set_port("mlx5_0", state="1: DOWN", phys_state="2: Polling")
    sample = read(links, 1.0)["mlx5_0"]
    assert (sample.state, sample.physical_state) == ("DOWN", "Polling")


def test_samples_already_taken_do_not_change(tree: SysTree) -> None:
    links = one_port(tree)
    first = read(links, 0.0)["mlx5_0"]
    tree.count("mlx5_0", link_downed=1)
    assert read(links, 1.0)["mlx5_0"].counters["link_downed"] == 1
    assert first.counters["link_downed"] == 0


def test_counters_that_stand_at_their_maximum(tree: SysTree) -> None:
    links = one_port(tree)
    tree.set_counters("mlx5_0", link_downed=255, excessive_buffer_overrun_errors=15)
    assert read(links, 0.0)["mlx5_0"].saturated == ["link_downed", "excessive_buffer_overrun_errors"]


def test_wide_counters_are_never_at_their_maximum(tree: SysTree) -> None:
    links = one_port(tree)
    tree.set_counters("mlx5_0", link_downed=255, port_rcv_errors=70_000)
    assert read(links, 0.0)["mlx5_0"].saturated == []
    tree.set_counters("mlx5_0", port_rcv_errors=0)  # a reset does not make them narrow
    assert read(links, 5.0)["mlx5_0"].saturated == []


def test_a_roce_port_is_shown_once_with_its_interface(tree: SysTree) -> None:
    tree.pci("0000:18:00.0", 0x15B3, 0x1021, 0x020000, "mlx5_core")
    tree.roce("mlx5_0", "0000:18:00.0", "ens1f0")
    tree.set_net("ens1f0", carrier_down_count=4)
    tree.set_statistics("ens1f0", rx_crc_errors=9)
    (port,), gaps = source(tree).read(0.0)
    assert (port.device, port.kind, port.netdev, port.mtu) == ("mlx5_0", "roce", "ens1f0", 9000)
    assert (port.counters["netdev_carrier_down_count"], port.counters["netdev_rx_crc_errors"]) == (4, 9)
    assert port.counters["roce_slow_restart"] == 0
    assert [gap.what for gap in gaps] == ["links.rates"]


def test_a_roce_port_whose_interface_is_elsewhere_says_so(tree: SysTree) -> None:
    links = one_port(tree, link_layer="Ethernet", netdev="in-a-container")
    samples, gaps = links.read(0.0)
    assert samples[0].netdev is None
    assert "links.mlx5_0.netdev" in [gap.what for gap in gaps]


def test_the_bond_of_a_roce_device_and_the_ports_of_the_bond(tree: SysTree) -> None:
    for number in range(2):
        tree.pci(f"0000:18:00.{number}", 0x15B3, 0x1021, 0x020000, "mlx5_core")
        tree.ethernet(f"ens1f{number}", f"0000:18:00.{number}")
    tree.bond("bond0", "ens1f0", "ens1f1")
    tree.infiniband("mlx5_bond_0", "0000:18:00.0", link_layer="Ethernet", netdev="bond0")
    tree.set_net("ens1f1", operstate="down")
    samples = read(source(tree), 0.0)
    assert list(samples) == ["mlx5_bond_0", "ens1f0", "ens1f1"]
    counters = samples["mlx5_bond_0"].counters
    assert (counters["netdev_bond_ports"], counters["netdev_bond_ports_up"]) == (2, 1)
    assert samples["ens1f1"].state == "DOWN"


def test_a_bond_of_ethernet_ports_is_a_link(tree: SysTree) -> None:
    tree.pci("0000:31:00.0", 0x8086, 0x1593, 0x020000, "ice")
    tree.ethernet("eth0", "0000:31:00.0")
    tree.bond("bond0", "eth0", speed=100_000)
    bond = read(source(tree), 0.0)["bond0"]
    assert (bond.kind, bond.state, bond.rate_bits_per_s, bond.pci_bus_id) == ("ethernet", "UP", 100e9, None)
    assert (bond.counters["bond_ports"], bond.counters["bond_ports_up"]) == (1, 1)


def test_an_interface_switched_off_by_hand_is_told_from_one_without_a_cable(tree: SysTree) -> None:
    tree.pci("0000:31:00.0", 0x8086, 0x1593, 0x020000, "ice")
    tree.ethernet("eth0", "0000:31:00.0", state="down")
    tree.set_net("eth0", flags="0x1002")
    assert read(source(tree), 0.0)["eth0"].physical_state == "Disabled"


def test_what_carries_others_traffic_is_no_port(tree: SysTree) -> None:
    tree.pci("0000:31:00.0", 0x15B3, 0x1021, 0x020000, "mlx5_core")
    tree.ethernet("eth0", "0000:31:00.0")
    for name in ("lo", "docker0", "veth12ab", "eth0.100"):
        tree.ethernet(name)
    tree.ethernet("eth0_0", "0000:31:00.0")
    tree.set_net("eth0_0", phys_port_name="pf0vf0")
    tree.write("class/net/bonding_masters", "")
    assert list(read(source(tree), 0.0)) == ["eth0"]


def test_virtual_functions_are_ports_once_they_are_in_use(tree: SysTree) -> None:
    tree.pci("0000:18:00.0", 0x15B3, 0x1021, 0x020000, "mlx5_core")
    tree.roce("mlx5_0", "0000:18:00.0", "ens1")
    tree.virtual_function("0000:18:00.1", of="0000:18:00.0")
    tree.ethernet("ens1v0", "0000:18:00.1", state="down")
    tree.virtual_function("0000:18:00.2", of="0000:18:00.0")
    tree.infiniband("mlx5_1", "0000:18:00.2", state="1: DOWN")
    links = source(tree)
    assert list(read(links, 0.0)) == ["mlx5_0"]
    tree.set_net("ens1v0", operstate="up")
    tree.set_port("mlx5_1", state="4: ACTIVE")
    assert list(read(links, 10.0)) == ["mlx5_0", "mlx5_1", "ens1v0"]
    tree.set_net("ens1v0", operstate="down")
    assert read(links, 20.0)["ens1v0"].state == "DOWN"
    tree.remove_net("ens1v0")  # given to a container: these come and go
    tree.remove_infiniband("mlx5_1")
    assert list(read(links, 30.0)) == ["mlx5_0"]


@pytest.mark.parametrize("name", ["efa_0", "rdmap0s6"])
def test_efa_counts_bytes_and_has_counters_of_the_whole_device(tree: SysTree, name: str) -> None:
    tree.efa(name, "0000:00:06.0")
    links = source(tree)
    links.read(0.0)
    tree.count(name, rx_bytes=3000, tx_bytes=1000)
    (port,), gaps = links.read(2.0)
    assert (port.device, port.kind, port.state, port.netdev) == (name, "efa", "ACTIVE", None)
    assert (port.rx_bytes_per_s, port.tx_bytes_per_s) == (1500.0, 500.0)
    assert (port.counters["rx_drops"], port.counters["no_completion_cmds"]) == (0, 0)
    assert gaps == []


def test_two_ports_of_one_device_are_told_apart(tree: SysTree) -> None:
    links = one_port(tree, ports=(1, 2), device_counters={"cmds_err": 3})
    tree.set_port("mlx5_0", 2, state="1: DOWN")
    tree.set_counters("mlx5_0", 2, symbol_error="broken")
    samples, gaps = links.read(0.0)
    assert [(sample.port, sample.state) for sample in samples] == [(1, "ACTIVE"), (2, "DOWN")]
    assert ["cmds_err" in sample.counters for sample in samples] == [True, False]
    assert "links.mlx5_0.2.counters" in [gap.what for gap in gaps]


def test_devices_that_programs_cannot_open(tree: SysTree) -> None:
    tree.h100_node()
    tree.chardev("mlx5_4", present=False)
    samples = read(source(tree), 0.0)
    assert [name for name, sample in samples.items() if sample.has_chardev is False] == ["mlx5_4"]


def test_a_machine_without_rdma_has_nothing_to_miss(tree: SysTree) -> None:
    tree.pci("0000:31:00.0", 0x8086, 0x1593, 0x020000, "ice")
    tree.ethernet("eth0", "0000:31:00.0")
    _, gaps = source(tree).read(0.0)
    assert [(gap.what, gap.kind) for gap in gaps] == [
        ("links.infiniband", "unsupported"),
        ("links.rates", "starting"),
    ]


def test_a_copied_tree_is_read_in_place_of_this_machines(tree: SysTree, tmp_path: Path) -> None:
    tree.h100_node()
    program = (
        "from mltop.probes.collect.links import LinkSource; from mltop.probes.collect.pci import PciSource\n"
        "print(len(LinkSource().read(0.0)[0]), len(PciSource().read(0.0)[0]))"
    )
    environ = {**os.environ, "MLTOP_SYSROOT": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("10 30\n", "")


def test_the_interfaces_of_this_machine() -> None:
    links = LinkSource()
    links.read(0.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        end.sendto(b"x", end.getsockname())
    samples, gaps = links.read(1.0)
    hardware = {name for name in os.listdir("/sys/class/net") if os.path.exists(f"/sys/class/net/{name}/device")}
    assert "lo" not in by_name(samples)
    for sample in samples:
        if sample.kind != "ethernet" or sample.device not in hardware:
            continue
        state = Path(f"/sys/class/net/{sample.device}/operstate").read_text().strip()
        assert sample.state == state.upper()
        assert sample.mtu == int(Path(f"/sys/class/net/{sample.device}/mtu").read_text())
        assert sample.rx_bytes_per_s is not None and sample.rx_bytes_per_s >= 0
    assert not [gap for gap in gaps if gap.kind == "unknown"]
    links.close()
