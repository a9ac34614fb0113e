"""PCI bus ids, classes, link speeds, error counters and ACS: pure functions by tables."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mltop.probes.collect.pci import source
from mltop.probes.collect.pci.source import kind_of, source_validation, upstream_ports
from mltop.probes.collect.sysfile import same_bus, sysfs_bus_id
from tests.fakes.sysfs import acs_config


@pytest.mark.parametrize(
    ("text", "bus_id"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),  # NVML
        ("00000000:9B:00.0", "0000:9b:00.0"),
        ("0000:9b:00", "0000:9b:00.0"),  # Xid lines
        ("9b:00.1", "0000:9b:00.1"),  # lspci
        ("00010000:E1:00.0", "10000:e1:00.0"),
        (" 0008:01:00.0\n", "0008:01:00.0"),
        ("", None),
        ("GPU-1234", None),
        ("0000:9b:00.9", None),
        ("0000:9b", None),
    ],
)
def test_bus_ids_as_in_sysfs(text: str, bus_id: str | None) -> None:
    assert sysfs_bus_id(text) == bus_id


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("00000000:9B:00.0", "0000:9b:00.0", True),
        ("0000:9b:00", "0000:9b:00.0", True),
        ("0001:9b:00.0", "0000:9b:00.0", False),
        ("0000:9b:00.0", "0000:9b:00.1", False),
        ("nonsense", "nonsense", False),
        ("", "", False),
    ],
)
def test_the_same_function_written_in_two_ways(first: str, second: str, same: bool) -> None:
    assert same_bus(first, second) is same


@pytest.mark.parametrize(
    ("vendor", "pci_class", "kind"),
    [
        (0x10DE, 0x030200, "gpu"),
        (0x10DE, 0x030000, "gpu"),
        (0x10DE, 0x068000, "nvswitch"),
        (0x10DE, 0x040300, None),  # the sound device of a graphics card
        (0x1A03, 0x030000, None),  # the console of a server's management controller
        (0x15B3, 0x020700, "nic"),
        (0x8086, 0x020000, "nic"),
        (0x144D, 0x010802, "nvme"),
        (0x8086, 0x010601, None),
        (0x8086, 0x060400, None),
        (None, 0x020000, "nic"),
        (0x10DE, None, None),
        (0xFFFF, 0xFFFFFF, None),
    ],
)
def test_kinds(vendor: int | None, pci_class: int | None, kind: str | None) -> None:
    assert kind_of(vendor, pci_class) == kind


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        (b"32.0 GT/s PCIe\n", 32.0),
        (b"8 GT/s\n", 8.0),
        (b"2.5 GT/s PCIe\n", 2.5),
        (b"Unknown\n", None),
        (b"Unknown speed\n", None),
        (b"nan GT/s", None),
        (b"inf GT/s", None),
        (b"0 GT/s", None),
        (b"1.0 GT/s", None),
        (b"999.0 GT/s PCIe", None),
        (b"\xff GT/s", None),
        (b"", None),
        (None, None),
    ],
)
def test_link_speeds(text: bytes | None, speed: float | None) -> None:
    assert source.speed_gt_per_s(text) == speed


@pytest.mark.parametrize(
    ("text", "width"),
    [
        (b"16\n", 16),
        (b"1\n", 1),
        (b"0\n", None),
        (b"63\n", None),
        (b"255\n", None),
        (b"-1", None),
        (b"x", None),
        (b"5", None),
    ],
)
def test_link_widths(text: bytes, width: int | None) -> None:
    assert source.lanes(text) == width


@pytest.mark.parametrize(
    ("text", "total"),
    [
        (b"RxErr 0\nBadTLP 3\nTimeout 0\nTOTAL_ERR_COR 3\n", 3),
        (b"Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0\n", 0),
        (b"TOTAL_ERR_NONFATAL\n", None),
        (b"TOTAL_ERR_COR x\n", None),
        (b"RxErr 9\n", None),
        (b"", None),
        (None, None),
    ],
)
def test_totals_of_error_counters(text: bytes | None, total: int | None) -> None:
    assert source.error_total(text) == total


def test_the_bridges_above_a_device() -> None:
    top = "/sys/devices/pci0000:18"
    assert upstream_ports(f"{top}/0000:18:01.0/0000:19:00.0/0000:1b:00.0") == [
        f"{top}/0000:18:01.0/0000:19:00.0",
        f"{top}/0000:18:01.0",
    ]
    assert upstream_ports("/sys/devices/pci0000:00/0000:00:03.0") == []


def _loop() -> bytes:
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x100 << 20 | 1 << 16 | 0x0001)
    return bytes(data)


@pytest.mark.parametrize(
    ("config", "is_on"),
    [
        (acs_config(on=True), True),
        (acs_config(on=False), False),
        (bytes(4096), False),  # no extended capability
        (b"\xff" * 4096, False),
        (bytes(256), False),  # no extended space at all
        (_loop(), False),
    ],
)
def test_source_validation_of_a_bridge(tmp_path: Path, config: bytes, is_on: bool) -> None:
    (tmp_path / "config").write_bytes(config)
    assert source_validation(str(tmp_path / "config")) is is_on


@pytest.mark.parametrize("config", [bytes(64), b"", acs_config(on=True)[:0x14A]])
def test_a_space_that_is_cut_off_is_unreadable(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "config").write_bytes(config)
    for path in (str(tmp_path / "config"), str(tmp_path / "missing"), "/proc/self/mem"):
        assert source_validation(path) is None
