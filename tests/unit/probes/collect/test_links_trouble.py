"""Ports that vanish, come back, refuse to answer, or answer nonsense."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.links import LinkSource
from mltop.probes.collect.sysfile import OpenFiles
from mltop.probes.model import Gap, LinkSample
from tests.fakes.sysfs import SysTree

PORT = "class/infiniband/mlx5_3/ports/1"


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path).h100_node()


@pytest.fixture
def links(tree: SysTree) -> Iterator[LinkSource]:
    source = LinkSource(str(tree.root))
    yield source
    source.close()


def port_of(links: LinkSource, now: float, name: str = "mlx5_3") -> tuple[LinkSample, list[Gap]]:
    samples, gaps = links.read(now)
    (sample,) = [sample for sample in samples if sample.device == name]
    return sample, [gap for gap in gaps if gap.what.startswith(f"links.{name}")]


def test_a_port_that_refuses_is_not_asked_again(tree: SysTree, links: LinkSource) -> None:
    tree.refuse(f"{PORT}/counters/symbol_error")
    sample, gaps = port_of(links, 0.0)
    assert re.match(r"symbol_error: Input/output error at \d{4}-.*Z; not read again", sample.error or "")
    assert (sample.state, sample.rate_bits_per_s) == ("ACTIVE", 400e9)  # these answered
    assert not [name for name in sample.counters if not name.startswith("netdev_")]
    assert sample.rx_bytes_per_s is None
    assert [(gap.what, gap.why, gap.kind) for gap in gaps] == [("links.mlx5_3.counters", sample.error, "unknown")]
    tree.remove(f"{PORT}/counters/symbol_error")
    tree.write(f"{PORT}/counters/symbol_error", "0")
    later, _ = port_of(links, 30.0)
    assert later.error == sample.error and "symbol_error" not in later.counters
    assert port_of(links, 31.0, "mlx5_2")[0].error is None


def test_a_port_that_refuses_its_state_is_asked_for_no_part_of_it(tree: SysTree, links: LinkSource) -> None:
    tree.refuse(f"{PORT}/state")
    sample, gaps = port_of(links, 0.0)
    assert (sample.state, sample.physical_state, sample.rate_bits_per_s) == (None, None, None)
    assert sample.error is not None and sample.error.startswith("state: Input/output error")
    assert "links.mlx5_3" in [gap.what for gap in gaps]


def test_a_port_that_starts_to_refuse_shows_no_old_values(tree: SysTree) -> None:
    links = LinkSource(str(tree.root), most_open=0)  # so that the tree may put another file in its place
    assert "symbol_error" in port_of(links, 0.0)[0].counters
    tree.refuse(f"{PORT}/counters/port_rcv_data")
    sample, _ = port_of(links, 1.0)
    assert sample.error is not None and sample.error.startswith("port_rcv_data")
    assert not {"symbol_error", "link_downed", "port_xmit_data"} & sample.counters.keys()
    assert sample.saturated == []


def test_a_device_that_vanished_stays_listed(tree: SysTree, links: LinkSource) -> None:
    before, _ = port_of(links, 0.0)
    tree.remove_pci(tree.nic_of(3))
    sample, gaps = port_of(links, 10.0)
    assert (sample.state, sample.error, sample.counters) == (None, "device vanished", {})
    assert (sample.kind, sample.pci_bus_id, sample.firmware) == ("infiniband", before.pci_bus_id, before.firmware)
    assert [(gap.what, gap.kind) for gap in gaps] == [("links.mlx5_3", "unknown")]
    assert port_of(links, 500.0)[0].error == "device vanished"
    assert [sample.device for sample in links.read(501.0)[0]][2:5] == ["mlx5_2", "mlx5_3", "mlx5_4"]


def test_a_device_whose_files_stop_answering_is_noticed_at_once(tree: SysTree) -> None:
    links = LinkSource(str(tree.root), most_open=0)
    links.read(0.0)
    tree.remove_pci(tree.nic_of(3))
    assert port_of(links, 1.0)[0].error == "device vanished"


def test_a_device_that_is_back_is_read_anew(tree: SysTree, links: LinkSource) -> None:
    tree.refuse(f"{PORT}/counters/symbol_error")
    assert port_of(links, 0.0)[0].error is not None
    tree.remove_infiniband("mlx5_3")
    assert port_of(links, 10.0)[0].error == "device vanished"
    tree.infiniband("mlx5_3", tree.nic_of(3))
    sample, gaps = port_of(links, 20.0)
    assert (sample.state, sample.error, sample.counters["symbol_error"], gaps) == ("ACTIVE", None, 0, [])
    assert sample.rx_bytes_per_s is None
    assert port_of(links, 21.0)[0].rx_bytes_per_s == 0.0


def test_a_device_replaced_between_two_listings_is_read_anew(tree: SysTree, links: LinkSource) -> None:
    links.read(0.0)
    tree.remove_infiniband("mlx5_3")
    tree.infiniband("mlx5_3", tree.nic_of(3), state="1: DOWN", fw_ver="28.43.1000")
    sample, _ = port_of(links, 10.0)
    assert (sample.state, sample.error, sample.firmware) == ("DOWN", None, "28.43.1000")


def test_a_renamed_device_has_not_vanished(tree: SysTree, links: LinkSource) -> None:
    links.read(0.0)
    tree.remove_infiniband("mlx5_3")
    tree.infiniband("ibp98s0", tree.nic_of(3))
    tree.remove_net("eth0")
    tree.ethernet("enp49s0f0", "0000:31:00.0")
    names = [sample.device for sample in links.read(10.0)[0]]
    assert "mlx5_3" not in names and "eth0" not in names and {"ibp98s0", "enp49s0f0"} <= set(names)


def test_an_interface_that_left_its_device_is_told_from_one_that_vanished_with_it(
    tree: SysTree, links: LinkSource
) -> None:
    links.read(0.0)
    tree.remove_net("eth0")
    tree.remove_pci("0000:31:00.1")
    moved, gaps = port_of(links, 10.0, "eth0")
    assert (moved.state, moved.error) == (None, "interface vanished")
    assert [gap.why for gap in gaps if "its PCI device is still there" in gap.why]
    assert port_of(links, 10.0, "eth1")[0].error == "device vanished"


def test_an_interface_that_joins_an_rdma_device_is_shown_once(tree: SysTree, links: LinkSource) -> None:
    assert port_of(links, 0.0, "eth0")[0].kind == "ethernet"
    tree.infiniband("irdma0", "0000:31:00.0", link_layer="Ethernet", netdev="eth0")
    samples, gaps = links.read(10.0)
    assert "eth0" not in [sample.device for sample in samples]
    assert [sample.netdev for sample in samples if sample.device == "irdma0"] == ["eth0"]
    assert [gap.what for gap in gaps] == ["links.rates"]
    tree.remove_infiniband("irdma0")
    names = {sample.device: sample.error for sample in links.read(20.0)[0]}
    assert (names["eth0"], names["irdma0"]) == (None, "device vanished")


def test_the_whole_driver_unloaded(tree: SysTree, links: LinkSource) -> None:
    links.read(0.0)
    for index in range(8):
        tree.remove_infiniband(f"mlx5_{index}")
    tree.remove("class/infiniband")
    samples, gaps = links.read(10.0)
    assert sum(sample.error == "device vanished" for sample in samples) == 8
    assert "links.infiniband" not in [gap.what for gap in gaps]


@pytest.mark.parametrize("content", [b"", b"\n", b"garbage\n", b"\xff\xfe\x00", b"7" * 100_000, b"N/A (no PMA)\n"])
def test_nonsense_is_unknown_with_a_gap_and_never_raises(tree: SysTree, content: bytes) -> None:
    for path in ("state", "phys_state", "rate", "counters/link_downed", "hw_counters/out_of_sequence"):
        tree.write(f"{PORT}/{path}", content)
    for path in ("device/numa_node", "fw_ver", "ports/1/link_layer"):
        tree.write(f"class/infiniband/mlx5_3/{path}", content)
    for path in ("operstate", "speed", "mtu", "flags", "carrier", "statistics/rx_bytes", "carrier_changes", "type"):
        tree.write(f"class/net/eth0/{path}", content)
        tree.write(f"class/net/ib3/{path}", content)
    tree.write("class/infiniband_verbs/uverbs3/ibdev", content)
    links = LinkSource(str(tree.root))
    for now in (0.0, 1.0, 10.0):
        sample, gaps = port_of(links, now)
        assert sample.rate_bits_per_s is None
        assert {"link_downed", "out_of_sequence"}.isdisjoint(sample.counters)
        whats = {gap.what for gap in gaps}
        assert {"links.mlx5_3.rate", "links.mlx5_3.counters"} <= whats
        assert sample.error is None
        eth0, gaps = port_of(links, now, "eth0")
        assert (eth0.rate_bits_per_s, eth0.rx_bytes_per_s) == (None, None)
        assert "links.eth0.rx_bytes" in {gap.what for gap in gaps}


def test_counters_with_all_bits_set_are_unknown(tree: SysTree) -> None:
    ones = (1 << 64) - 1
    tree.set_counters("mlx5_3", link_downed=ones, port_rcv_data=ones, symbol_error=ones - 1)
    tree.set_statistics("eth0", rx_crc_errors=ones)
    links = LinkSource(str(tree.root))
    for now in (0.0, 1.0, 10.0):
        sample, gaps = port_of(links, now)
        assert {"link_downed", "port_rcv_data"}.isdisjoint(sample.counters)
        assert sample.counters["symbol_error"] == ones - 1
        assert (sample.rx_bytes_per_s, sample.error) == (None, None)
        (gap,) = [gap for gap in gaps if gap.what == "links.mlx5_3.counters"]
        assert gap.why.startswith(f"link_downed: reads {ones}: all bits are set") and gap.kind == "unknown"
        eth0, gaps = port_of(links, now, "eth0")
        assert "rx_crc_errors" not in eth0.counters
        assert "links.eth0.rx_crc_errors" in {gap.what for gap in gaps}


def test_folders_where_files_belong_and_files_where_folders_belong(tree: SysTree, links: LinkSource) -> None:
    tree.remove(f"{PORT}/counters/symbol_error")
    tree.write(f"{PORT}/counters/symbol_error/x", "1")
    tree.remove(f"{PORT}/hw_counters")
    tree.write(f"{PORT}/hw_counters", "1")
    tree.write("class/infiniband/stray", "not a device")
    sample, gaps = port_of(links, 0.0)
    assert sample.state == "ACTIVE" and "symbol_error" not in sample.counters
    assert [gap.what for gap in gaps] == ["links.mlx5_3.counters"]


def test_a_sysfs_that_is_not_there(tmp_path: Path) -> None:
    samples, gaps = LinkSource(str(tmp_path / "nothing")).read(0.0)
    assert samples == []
    assert {gap.what: gap.kind for gap in gaps} == {"links.infiniband": "unsupported", "links.ethernet": "unknown"}


def open_below(folder: Path) -> int:
    """Of our files: what an earlier test has not closed yet lies elsewhere."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed by another thread
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder.resolve()}/")
    return found


def test_files_stay_open_as_far_as_there_is_room(tree: SysTree) -> None:
    links = LinkSource(str(tree.root), most_open=20)
    first, _ = links.read(0.0)
    assert open_below(tree.root) == 20
    second, _ = links.read(5.0)
    assert [sample.counters for sample in first] == [sample.counters for sample in second]
    links.close()
    assert open_below(tree.root) == 0


def test_no_file_stays_open_of_what_vanished(tree: SysTree) -> None:
    links = LinkSource(str(tree.root))
    links.read(0.0)
    for index in range(8):
        tree.remove_infiniband(f"mlx5_{index}")
    for name in os.listdir(tree.root / "class/net"):
        tree.remove_net(name)
    links.read(10.0)
    assert open_below(tree.root) == 0


def test_half_of_the_limit_of_open_files_is_left_to_others() -> None:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < OpenFiles().left <= max(soft // 2, 1)
