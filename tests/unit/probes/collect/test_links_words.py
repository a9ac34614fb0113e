"""What the files of network ports say: tables of text and value."""

from __future__ import annotations

import pytest

from mltop.probes.collect.links import discovery as parsing
from mltop.probes.collect.links.counters import ByteMeter
from mltop.probes.collect.sysfile import number

WEIRD = [b"", b"\n", b"\0\0", b"\xff\xfe", b"\x1b[31mred", b"x" * 4096, "é".encode()]


@pytest.mark.parametrize(
    ("text", "state"),
    [(b"4: ACTIVE\n", "ACTIVE"), (b"5: LinkUp\n", "LinkUp"), (b"2: INIT", "INIT"), (b"ACTIVE\n", "ACTIVE")],
)
def test_states(text: bytes, state: str) -> None:
    assert parsing.state_word(text) == state


@pytest.mark.parametrize("text", [*WEIRD, b"4:", None])
def test_a_state_without_a_word_is_unknown(text: bytes | None) -> None:
    assert parsing.state_word(text) is None


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (b"400 Gb/sec (4X NDR)\n", 400e9),
        (b"2.5 Gb/sec (1X SDR)\n", 2.5e9),
        (b"800 Gb/sec (8X NDR)", 800e9),
        (b"N/A", None),
        (b"-1 Gb/sec", None),
        (b"9999999999999 Gb/sec", None),
        (b"0 Gb/sec", None),
        (b"999999 Gb/sec (4X ?)", None),
        *((text, None) for text in WEIRD),
    ],
)
def test_rates(text: bytes, rate: float | None) -> None:
    assert parsing.rate_bits_per_s(text) == rate


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        (b"100000\n", 100e9),
        (b"-1\n", None),
        (b"0\n", None),
        (b"4294967295\n", None),
        (b"65535\n", None),
        (None, None),
        (b"fast", None),
    ],
)
def test_speeds_of_interfaces(text: bytes | None, speed: float | None) -> None:
    assert parsing.speed_bits_per_s(text) == speed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0\n", 0),
        (b"255\n", 255),
        (b"18446744073709551615\n", (1 << 64) - 1),
        (b"18446744073709551616\n", None),
        (b"-1\n", None),
        (b"N/A (no PMA)\n", None),
        (b"9" * 256, None),
        *((text, None) for text in WEIRD),
    ],
)
def test_counters(text: bytes, value: int | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/sys/devices/pci0000:18/0000:18:01.0/0000:19:00.0", "0000:19:00.0"),
        ("/sys/devices/pci0000:00/0000:00:03.0/virtio2", "0000:00:03.0"),
        ("/sys/devices/pci10000:00/10000:E1:00.0/net/eth0", "10000:e1:00.0"),
        ("/sys/devices/virtual/net/lo/device", None),
    ],
)
def test_pci_addresses_of_devices(path: str, address: str | None) -> None:
    assert parsing.last_pci_address(path) == address


@pytest.mark.parametrize(
    ("counters", "stuck"),
    [
        ({"link_downed": 255, "symbol_error": 3}, ["link_downed"]),
        (
            {"link_downed": 254, "symbol_error": 65535, "port_xmit_discards": 65535},
            ["symbol_error", "port_xmit_discards"],
        ),
        ({"local_link_integrity_errors": 15, "excessive_buffer_overrun_errors": 14}, ["local_link_integrity_errors"]),
        ({"port_xmit_wait": 65535, "out_of_sequence": 255}, []),
        ({}, []),
    ],
)
def test_counters_at_their_maximum(counters: dict[str, int], stuck: list[str]) -> None:
    assert parsing.saturated(counters) == stuck
    assert not parsing.beyond_narrow(counters)


@pytest.mark.parametrize("name", parsing.NARROW_MAXIMA)
def test_a_value_above_the_narrow_maximum_proves_a_wide_counter(name: str) -> None:
    assert parsing.beyond_narrow({name: parsing.NARROW_MAXIMA[name] + 1})


def test_names_sort_by_their_numbers() -> None:
    names = ["mlx5_10", "mlx5_9", "eth0", "mlx5_bond_0", "ibp24s0", "rdmap0s6"]
    assert sorted(names, key=parsing.natural)[:2] == ["eth0", "ibp24s0"]
    assert sorted(["mlx5_10", "mlx5_9"], key=parsing.natural) == ["mlx5_9", "mlx5_10"]


def test_rates_need_two_looks_and_start_anew_after_a_reset() -> None:
    meter = ByteMeter(unit_bytes=4)
    assert meter.rates(10.0, 100, 50) == (None, None) and meter.is_first
    assert meter.rates(12.0, 300, 60) == (400.0, 20.0) and not meter.is_first and meter.gaps("a") == []
    assert meter.rates(13.0, 5, 70) == (None, None)
    assert meter.rates(14.0, 6, 71) == (4.0, 4.0)
    assert meter.rates(15.0, None, 72) == (None, None) and not meter.is_first
    assert meter.rates(16.0, 7, 73) == (None, None)
    assert meter.rates(3.0, 8, 74) == (None, None)  # the clock went back
    assert meter.rates(4.0, 9, 75) == (4.0, 4.0)


def test_a_rate_that_no_port_has_is_unknown_with_its_value() -> None:
    meter = ByteMeter(unit_bytes=4)
    meter.rates(10.0, 100, 50)
    assert meter.rates(11.0, 1 << 60, 60) == (None, None)
    (gap,) = meter.gaps("mlx5_3")
    assert (gap.what, gap.kind, gap.code) == ("links.mlx5_3.rates", "unknown", "implausible")
    assert "4.6e+18 bytes/s" in gap.why
    assert meter.rates(12.0, (1 << 60) + 25, 70) == (100.0, 40.0) and meter.gaps("mlx5_3") == []
