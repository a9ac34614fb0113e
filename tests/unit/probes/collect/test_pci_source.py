"""GPUs, NICs, NVSwitches and NVMe disks on the PCI bus, over time."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import pytest

from mltop.probes.collect.pci import PciSource
from mltop.probes.model import Gap, PciDevice
from tests.fakes.sysfs import SysTree


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path)


def source(tree: SysTree) -> PciSource:
    return PciSource(str(tree.root))


def read(pci: PciSource, now: float) -> dict[str, PciDevice]:
    return {device.bus_id: device for device in pci.read(now)[0]}


def one_gpu(tree: SysTree, acs: tuple[bool | None, bool | None] = (False, False)) -> str:
    tree.bridge("0000:18:01.0", acs=acs[0])
    tree.bridge("0000:19:00.0", below="0000:18:01.0", acs=acs[1])
    tree.gpu("0000:1b:00.0", below="0000:19:00.0")
    return "0000:1b:00.0"


def acs_gaps(gaps: list[Gap]) -> list[Gap]:
    return [gap for gap in gaps if gap.what == "pci.acs"]


def test_a_whole_h100_node(tree: SysTree) -> None:
    devices, gaps = source(tree.h100_node(acs=False)).read(0.0)
    assert Counter(device.kind for device in devices) == {"gpu": 8, "nic": 10, "nvme": 8, "nvswitch": 4}
    assert [device.bus_id for device in devices] == sorted(device.bus_id for device in devices)
    (gpu,) = [device for device in devices if device.bus_id == tree.gpu_at(6)]
    assert gpu == PciDevice(
        bus_id="0000:d1:00.0",
        kind="gpu",
        vendor_id=0x10DE,
        device_id=0x2330,
        driver="nvidia",
        link_speed_gt_per_s=32.0,
        link_speed_max_gt_per_s=32.0,
        link_width=16,
        link_width_max=16,
        numa_node=1,
        local_cpus="56-111",
        aer={"correctable": 0, "nonfatal": 0, "fatal": 0},
        acs=False,
    )
    assert {device.acs for device in devices if device.kind in ("nvme", "nvswitch")} == {None}
    assert gaps == []


def test_a_degraded_link_a_lost_driver_and_errors_are_seen_soon(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    pci = source(tree)
    pci.read(0.0)
    tree.set_pci(gpu, current_link_width="8", current_link_speed="16.0 GT/s PCIe")
    tree.bind(gpu, None)
    tree.pci_errors(gpu, correctable=600, nonfatal=2, fatal=1)
    assert read(pci, 0.4)[gpu].link_width == 16
    device = read(pci, 5.0)[gpu]
    assert (device.link_width, device.link_width_max) == (8, 16)
    assert (device.link_speed_gt_per_s, device.link_speed_max_gt_per_s) == (16.0, 32.0)
    assert device.driver is None
    assert device.aer == {"correctable": 600, "nonfatal": 2, "fatal": 1}


def test_devices_take_turns_after_the_second_look_each_is_read_every_fifteen_seconds(tree: SysTree) -> None:
    """One look at counters does not tell whether they grow: the second one is over within five seconds."""
    pci = source(tree.h100_node(acs=False))
    before = pci.read(0.0)[0]
    assert pci.counters_read_at == 0.0

    def seen(errors: int, at: range, most_a_look: int) -> None:
        for device in before:
            tree.pci_errors(device.bus_id, correctable=errors)
        counts = [0]
        for now in at:
            devices, _ = pci.read(float(now))
            counts.append(sum(device.aer["correctable"] == errors for device in devices))
        assert counts[-1] == len(before) == 30
        assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= most_a_look

    seen(3, range(1, 6), 6)
    assert pci.counters_read_at == 1.0
    seen(4, range(6, 21), 2)
    seen(5, range(21, 36), 2)
    assert pci.counters_read_at is not None
    assert pci.counters_read_at >= 35.0 - 15.0
    devices = pci.read(36.0)[0]
    assert all(one is other for one, other in zip(devices, pci.read(37.0)[0], strict=True)), "nothing has changed"


def test_a_clock_that_went_back_delays_nothing(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    pci = source(tree)
    pci.read(1000.0)
    tree.set_pci(gpu, current_link_width="8")
    assert read(pci, 5.0)[gpu].link_width == 8


def test_samples_already_taken_do_not_change(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    pci = source(tree)
    first = read(pci, 0.0)[gpu]
    tree.set_pci(gpu, current_link_width="8")
    tree.pci_errors(gpu, correctable=5)
    assert read(pci, 15.0)[gpu].aer["correctable"] == 5
    assert (first.link_width, first.aer["correctable"]) == (16, 0)


def test_a_device_that_fell_off_is_listed_without_link_values(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    pci = source(tree)
    pci.read(0.0)
    tree.fall_off(gpu)
    devices, gaps = pci.read(15.0)
    (device,) = devices
    assert (device.bus_id, device.kind, device.device_id) == (gpu, "gpu", 0x2330)
    links = (device.link_speed_gt_per_s, device.link_width, device.link_speed_max_gt_per_s, device.link_width_max)
    assert links == (None, None, None, None)
    (gap,) = [gap for gap in gaps if gap.what == f"pci.{gpu}"]
    assert "all ones" in gap.why and gap.kind == "unknown"


def test_a_device_that_answers_at_last_has_its_best_link(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    tree.set_pci(gpu, max_link_width="255", max_link_speed="Unknown")
    pci = source(tree)
    devices, gaps = pci.read(0.0)
    assert (devices[0].link_width, devices[0].link_width_max) == (16, None)
    assert [gap.why for gap in gaps if gap.what == f"pci.{gpu}.link"] == ["max_link_width reads b'255'"]
    tree.set_pci(gpu, max_link_width="16", max_link_speed="32.0 GT/s PCIe")
    devices, gaps = pci.read(15.0)
    assert (devices[0].link_width_max, devices[0].link_speed_max_gt_per_s) == (16, 32.0)
    assert not [gap for gap in gaps if gap.what == f"pci.{gpu}.link"]


def test_a_number_of_errors_that_is_no_count_is_unknown(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    tree.pci_errors(gpu, correctable=(1 << 64) - 1)
    devices, gaps = source(tree).read(0.0)
    assert devices[0].aer == {"nonfatal": 0, "fatal": 0}
    assert [gap.why for gap in gaps if gap.what == f"pci.{gpu}.aer"] == [
        "aer_dev_correctable reads 18446744073709551615, which is not a count"
    ]


def test_a_device_that_vanished_from_the_bus_is_a_gap_until_it_is_back(tree: SysTree) -> None:
    tree.h100_node()
    pci = source(tree)
    gpu = tree.gpu_at(3)
    pci.read(0.0)
    tree.remove_pci(gpu)
    for now in (10.0, 500.0):
        devices, gaps = pci.read(now)
        assert gpu not in [device.bus_id for device in devices]
        assert [gap.why for gap in gaps if gap.what == f"pci.{gpu}"] == ["device vanished from the PCI bus"]
    tree.gpu(gpu)
    devices, gaps = pci.read(510.0)
    assert gpu in [device.bus_id for device in devices]
    assert f"pci.{gpu}" not in [gap.what for gap in gaps]


def test_virtual_functions_and_other_devices_are_left_out(tree: SysTree) -> None:
    tree.pci("0000:18:00.0", 0x15B3, 0x1021, 0x020700, "mlx5_core")
    tree.virtual_function("0000:18:00.1", of="0000:18:00.0")
    tree.pci("0000:00:02.0", 0x1A03, 0x2000, 0x030000, "ast")
    assert list(read(source(tree), 0.0)) == ["0000:18:00.0"]


@pytest.mark.parametrize(
    ("bridges", "acs"),
    [((False, False), False), ((True, False), True), ((False, True), True), ((None, True), True)],
)
def test_acs_of_any_bridge_above_counts(tree: SysTree, bridges: tuple[bool | None, bool | None], acs: bool) -> None:
    gpu = one_gpu(tree, bridges)
    devices, gaps = source(tree).read(0.0)
    assert {device.bus_id: device.acs for device in devices} == {gpu: acs}
    assert acs_gaps(gaps) == []


@pytest.mark.parametrize("bridges", [(None, None), (False, None)])
def test_acs_needs_root_and_says_so_once(tree: SysTree, bridges: tuple[bool | None, bool | None]) -> None:
    gpu = one_gpu(tree, bridges)
    tree.pci("0000:1c:00.0", 0x15B3, 0x1021, 0x020700, "mlx5_core", below="0000:19:00.0")
    devices, gaps = source(tree).read(0.0)
    assert [device.acs for device in devices] == [None, None]
    assert gpu in [device.bus_id for device in devices]
    (gap,) = acs_gaps(gaps)
    assert (gap.what, gap.kind) == ("pci.acs", "unknown")
    assert gap.fix == ("sudo mltop" if os.geteuid() else "start the container with --cap-add SYS_ADMIN")


def test_a_device_that_sleeps_is_not_woken_and_misses_nothing(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    tree.fall_off(gpu)  # asleep, it reads so, too
    tree.write(f"bus/pci/devices/{gpu}/power/runtime_status", "suspended")
    (device, *_), gaps = source(tree).read(0.0)
    assert (device.link_width, device.link_speed_gt_per_s) == (None, None)
    assert [gap.kind for gap in gaps if gpu in gap.what] == ["unsupported"]
    tree.write(f"bus/pci/devices/{gpu}/power/runtime_status", "active")
    _, gaps = source(tree).read(0.0)
    assert [gap.kind for gap in gaps if gap.what == f"pci.{gpu}"] == ["unknown"], "that one fell off the bus"


def test_a_virtual_machine_shows_no_bridges_links_or_nodes(tree: SysTree) -> None:
    for bus_id in ("0000:00:05.0", "0000:00:06.0"):
        tree.pci(bus_id, 0x10DE, 0x2330, 0x030200, "nvidia", numa_node=-1, speed=None)
    devices, gaps = source(tree).read(0.0)
    assert [(device.acs, device.link_width, device.numa_node, device.aer) for device in devices] == [
        (None, None, None, {})
    ] * 2
    both = "pci.{0000:00:05.0,0000:00:06.0}"
    assert {gap.what: gap.kind for gap in gaps} == dict.fromkeys(
        [f"{both}.link", f"{both}.aer", f"{both}.numa_node", "pci.acs"], "unsupported"
    )


@pytest.mark.parametrize("content", [b"", b"\n", b"garbage\n", b"\xff\xfe\x00", b"7" * 100_000, b"-1\n"])
def test_nonsense_is_unknown_and_never_raises(tree: SysTree, content: bytes) -> None:
    gpu = one_gpu(tree)
    names = ("max_link_speed", "max_link_width", "current_link_speed", "current_link_width", "numa_node")
    for name in (*names, "local_cpulist", "aer_dev_fatal", "device", "config"):
        tree.set_pci(gpu, **{name: content})
    pci = source(tree)
    for now in (0.0, 15.0, 30.0):
        devices, gaps = pci.read(now)
        (device,) = [device for device in devices if device.bus_id == gpu]
        assert (device.link_width, device.link_speed_gt_per_s, device.link_speed_max_gt_per_s) == (None, None, None)
        assert "fatal" not in device.aer
        assert f"pci.{gpu}.aer" in [gap.what for gap in gaps if gap.kind == "unknown"]
        assert [gap.kind for gap in gaps if gap.what == f"pci.{gpu}.link"] == ["unknown"]


def test_a_device_whose_class_cannot_be_read_is_no_reason_to_fail(tree: SysTree) -> None:
    gpu = one_gpu(tree)
    tree.refuse("bus/pci/devices/0000:18:01.0/class")
    tree.refuse(f"bus/pci/devices/{gpu}/current_link_width")
    devices, gaps = source(tree).read(0.0)
    assert [(device.bus_id, device.link_width) for device in devices] == [(gpu, None)]
    assert [gap.kind for gap in gaps if gap.what == f"pci.{gpu}.link"] == ["unknown"]


def test_a_machine_without_pci(tmp_path: Path) -> None:
    devices, gaps = PciSource(str(tmp_path)).read(0.0)
    assert devices == []
    assert [(gap.what, gap.kind) for gap in gaps] == [("pci", "unsupported")]


def test_the_devices_of_this_machine() -> None:
    folder = "/sys/bus/pci/devices"
    devices, gaps = PciSource().read(0.0)
    for device in devices:
        assert f"0x{device.vendor_id:04x}" == Path(f"{folder}/{device.bus_id}/vendor").read_text().strip()
        assert device.local_cpus == Path(f"{folder}/{device.bus_id}/local_cpulist").read_text().strip()
        driver = Path(f"{folder}/{device.bus_id}/driver")
        assert device.driver == (os.path.basename(os.readlink(driver)) if driver.exists() else None)
    if not os.path.isdir(folder):
        assert [gap.kind for gap in gaps] == ["unsupported"]
