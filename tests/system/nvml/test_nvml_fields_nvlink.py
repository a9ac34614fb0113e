"""NVLink and its fabric: links, errors, traffic, registration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.counts import calls_on_gpu
from tests.fakes.nvml.machine import Machine
from tests.fakes.nvml.scenario import FakeNvml


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(tmp_path, count=2)
    for name, value in made.env().items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def machine(fake: FakeNvml) -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def test_every_link_has_its_own_values(fake: FakeNvml, machine: Machine) -> None:
    for key, value in {
        "links": 4,
        "state": "1, 0, 2, 3",
        "version": "6, 6, 4, 7",
        "speed_mbps": "26562, 0, 25000, 53125",
        "remote": "switch, 00000000:9B:00.0, unknown, switch",
        "replay": "1, 2, 3, 4",
        "recovery": "0, 5, 0",
        "crc": "0, 0, 6, 0",
    }.items():
        fake.set(f"gpu.0.nvlink_{key}", value)
    fake.write()
    links = machine.poll()[0].nvlink.links
    assert [link.index for link in links] == [0, 1, 2, 3]
    assert [link.active for link in links] == [True, False, True, False]  # a link that sleeps is up
    assert [link.version for link in links] == [4, 4, 3, 5]
    assert [link.speed_bytes_per_s for link in links] == [26.562e9, 0, 25e9, 53.125e9]
    assert [link.remote for link in links] == ["switch", "00000000:9B:00.0", None, "switch"]
    assert [link.errors["replay"] for link in links] == [1, 2, 3, 4]
    assert [link.errors["recovery"] for link in links] == [0, 5, 0, 0]
    assert [link.errors["crc"] for link in links] == [0, 0, 6, 0]


def test_all_links_of_a_gpu_are_one_call(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.nvlink_links", 36)
    fake.write()
    assert len(machine.poll(0.0)[0].nvlink.links) == 36
    before = calls_on_gpu(fake.counts_path, 0)
    machine.poll(0.1)
    fast = calls_on_gpu(fake.counts_path, 0)["nvmlDeviceGetFieldValues"] - before["nvmlDeviceGetFieldValues"]
    machine.poll(10.0)
    after = calls_on_gpu(fake.counts_path, 0)
    assert after["nvmlDeviceGetFieldValues"] - before["nvmlDeviceGetFieldValues"] == fast * 2 + 2  # health and links
    assert after["nvmlDeviceGetNvLinkRemoteDeviceType"] == before["nvmlDeviceGetNvLinkRemoteDeviceType"] == 36
    assert "nvmlDeviceGetNvLinkErrorCounter" not in after


def test_new_errors_of_a_link_are_seen(fake: FakeNvml, machine: Machine) -> None:
    machine.poll(0.0)
    fake.set("gpu.1.nvlink_replay", "0, 0, 0, 12, 0")
    fake.set("gpu.1.nvlink_state", "1, 1, 1, 0, 1")
    fake.write()
    samples = machine.poll(10.0)
    assert (samples[1].nvlink.links[3].errors["replay"], samples[1].nvlink.links[3].active) == (12, False)
    assert samples[0].nvlink.links[3].errors["replay"] == 0


def test_no_error_counters_at_all_are_one_gap(fake: FakeNvml, machine: Machine) -> None:
    for name in ("replay", "recovery", "crc"):
        fake.set(f"gpu.*.nvlink_{name}", "unsupported")
    fake.write()
    assert [link.errors for link in machine.poll()[0].nvlink.links] == [{}] * 18
    assert machine.gaps()["gpu.*.nvlink.errors"].kind == "unsupported"


def test_a_version_that_mltop_does_not_know(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.nvlink_version", "6, 99, 6")
    fake.write()
    links = machine.poll()[0].nvlink.links
    assert [link.version for link in links[:3]] == [4, None, 4]
    assert "99" in machine.gaps()["gpu.*.nvlink.version"].why


def test_links_without_a_count_are_not_shown(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.0.field.91", "unsupported")
    fake.write()
    samples = machine.poll()
    assert [len(sample.nvlink.links) for sample in samples] == [0, *[18] * (len(samples) - 1)]
    assert machine.gaps()["gpu.0.nvlink"].kind == "unsupported"


@pytest.mark.parametrize(
    ("key", "unit", "other"),
    [("kib", 1024, None), ("bytes", 1, None), ("bytes", 1, "kib")],
)
def test_traffic_of_all_links(fake: FakeNvml, machine: Machine, key: str, unit: int, other: str | None) -> None:
    """In KiB up to Hopper, in bytes from Blackwell on; where there are both, the bytes."""
    fake.set("gpu.*.gpm_supported", False)
    fake.set("gpu.*.nvlink_links", 3)
    for unused in {"kib", "bytes"} - {key, other}:
        fake.set(f"gpu.*.nvlink_rx_{unused}", "unsupported")
        fake.set(f"gpu.*.nvlink_tx_{unused}", "unsupported")
    if other:
        fake.set(f"gpu.*.nvlink_rx_{other}", 0)
        fake.set(f"gpu.*.nvlink_tx_{other}", 0)
    fake.set(f"gpu.*.nvlink_rx_{key}", "10, 20, 30")
    fake.set(f"gpu.*.nvlink_tx_{key}", 0)
    fake.write()
    assert machine.poll(0.0)[0].nvlink.rx_bytes_per_s is None
    assert machine.gaps()["gpu.*.nvlink.rx_bytes_per_s"].kind == "starting"
    fake.set(f"gpu.1.nvlink_rx_{key}", "110, 220, 330")
    fake.set(f"gpu.1.nvlink_tx_{key}", "0, 0, 2000")
    fake.write()
    samples = machine.poll(1.0)
    assert machine.is_rate(samples[1].nvlink.rx_bytes_per_s, 600 * unit)
    assert machine.is_rate(samples[1].nvlink.tx_bytes_per_s, 2000 * unit)
    assert samples[0].nvlink.rx_bytes_per_s == 0.0


def test_traffic_that_no_counter_tells(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.gpm_supported", False)
    fake.set("gpu.*.nvlink_rx_kib", "unsupported")
    fake.write()
    machine.poll(0.0)
    assert machine.poll(1.0)[0].nvlink.rx_bytes_per_s is None
    assert machine.gaps()["gpu.*.nvlink.rx_bytes_per_s"].kind == "unsupported"


# scenario, state, health, problems
FABRICS: list[tuple[dict[str, Any], str | None, str | None, list[str]]] = [
    ({"state": 0}, "not_supported", None, []),
    ({"state": 1}, "not_started", None, []),
    ({"state": 2}, "in_progress", None, []),
    ({"health_summary": 2, "health_mask": "0x19a"}, "completed", "unhealthy", ["route_unhealthy"]),
    ({"health_summary": 3, "health_mask": "0x1a9"}, "completed", "limited", ["degraded_bandwidth"]),
    ({"version": 2, "health_mask": "0x1aa"}, "completed", "ok", []),
    ({"version": 2, "health_mask": "0x5aa"}, "completed", "unhealthy", ["misconfigured"]),
    ({"version": 2, "health_mask": "0x166"}, "completed", "limited", ["route_recovery", "access_timeout"]),
]


@pytest.mark.parametrize(("keys", "state", "health", "problems"), FABRICS)
def test_the_fabric(
    fake: FakeNvml, machine: Machine, keys: dict[str, Any], state: str, health: str | None, problems: list[str]
) -> None:
    for key, value in keys.items():
        fake.set(f"gpu.*.fabric_{key}", value)
    fake.write()
    fabric = machine.poll()[0].fabric
    assert (fabric.state, fabric.health, fabric.problems) == (state, health, problems)


@pytest.mark.parametrize(("version", "health"), [(2, "ok"), (0, None)])
def test_the_fabric_of_older_drivers(fake: FakeNvml, machine: Machine, version: int, health: str | None) -> None:
    fake.set("gpu.*.fabric_version", version)
    fake.set("gpu.*.fabric_clique", 5)
    fake.set("gpu.*.fabric_cluster_uuid", "01020304-0506-0708-090a-0b0c0d0e0f10")
    if version == 0:
        fake.set("call.nvmlDeviceGetGpuFabricInfoV", "missing")
    fake.write()
    fabric = machine.poll()[0].fabric
    assert (fabric.state, fabric.health, fabric.clique_id) == ("completed", health, 5)
    assert fabric.cluster_uuid == "01020304-0506-0708-090a-0b0c0d0e0f10"
    assert ("gpu.*.fabric.health" in machine.gaps()) is (health is None)


def test_a_registration_that_failed(fake: FakeNvml, machine: Machine) -> None:
    fake.set("gpu.*.fabric_status", 999)
    fake.write()
    fabric = machine.poll()[0].fabric
    assert (fabric.state, fabric.health, fabric.clique_id) == ("completed", None, None)
    assert "NVML error 999" in machine.gaps()["gpu.*.fabric.status"].why
