"""The fake NVML's structures of fabric and events are laid out as in pynvml; its events and links behave."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml.build import SOURCES
from tests.fakes.nvml.child import Child
from tests.fakes.nvml.scenario import FakeNvml

STRUCTURES = {
    ("abi_fabric.h", "nvmlGpuFabricInfo_t"): pynvml.c_nvmlGpuFabricInfo_t,
    ("abi_fabric.h", "nvmlGpuFabricInfo_v2_t"): pynvml.c_nvmlGpuFabricInfo_v2_t,
    ("abi_fabric.h", "nvmlGpuFabricInfo_v3_t"): pynvml.c_nvmlGpuFabricInfo_v3_t,
    ("abi_events.h", "nvmlEventData_t"): pynvml.c_nvmlEventData_t,
}


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "fake", count=2)


@pytest.fixture
def child(fake: FakeNvml) -> Iterator[Child]:
    with Child(fake) as running:
        yield running


def test_structures_are_laid_out_as_in_pynvml(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>"]
    for (header, name), structure in STRUCTURES.items():
        lines.append(f'#include "{SOURCES / header}"')
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
        for member, _ in structure._fields_:
            at = getattr(structure, member)
            lines.append(f'_Static_assert(offsetof({name}, {member}) == {at.offset}, "{name}.{member}");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    done = subprocess.run(
        ["cc", "-std=gnu11", "-fsyntax-only", str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_fields_of_links_by_scope(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.nvlink_links", 3)
    fake.set("gpu.0.nvlink_replay", "1, 2, unsupported")
    fake.set("gpu.0.nvlink_rx_kib", "10, 20")
    fake.write()
    scoped = "[[v.nvmlReturn, v.value.ullVal] for v in nvmlDeviceGetFieldValues(handle(0), {})]"
    assert child(scoped.format("[(161, 0), (161, 1)]")) == [[0, 1], [0, 2]]
    assert child(scoped.format("[(161, 2), (161, 3)]")) == [[3, 0], [2, 0]]
    assert child(scoped.format("[(139, 0xffffffff), (139, 2)]")) == [[0, 50], [0, 20]]
    assert child(scoped.format("[(204, 0xffffffff), (91, 0)]")) == [[3, 0], [0, 3]]


def test_links_by_calls(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.nvlink_remote", "switch, 00000000:9B:00.0")
    fake.set("gpu.1.nvlink_links", 0)
    fake.write()
    assert child("[nvmlDeviceGetNvLinkRemoteDeviceType(handle(0), link) for link in (0, 1)]") == [2, 0]
    assert child("nvmlDeviceGetNvLinkRemotePciInfo(handle(0), 1).busId") == "00000000:9B:00.0"
    assert child("nvmlDeviceGetNvLinkVersion(handle(0), 17)") == 6
    assert child.error("nvmlDeviceGetNvLinkState(handle(0), 18)") == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert child.error("nvmlDeviceGetNvLinkState(handle(1), 0)") == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_events_are_delivered_once_and_not_from_before(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.1.xids", "13")
    fake.write()
    child("globals().update(events=nvmlEventSetCreate())")
    child("nvmlDeviceRegisterEvents(handle(1), 8, events)")
    assert child.error("nvmlEventSetWait_v2(events, 1)") == pynvml.NVML_ERROR_TIMEOUT
    fake.set("gpu.1.xids", "13, 79, 0x10:0")
    fake.set("gpu.0.xids", "31")  # nobody listens to this one
    fake.write()
    waited = "(lambda e: [e.eventType, e.eventData])(nvmlEventSetWait_v2(events, 100))"
    assert [child(waited), child(waited)] == [[8, 79], [16, 0]]
    assert child.error("nvmlEventSetWait_v2(events, 1)") == pynvml.NVML_ERROR_TIMEOUT
    child("nvmlEventSetFree(events)")


def test_a_fabric_structure_newer_than_the_driver_is_refused(fake: FakeNvml, child: Child) -> None:
    fake.set("gpu.0.fabric_version", 2)
    fake.write()
    call = "nvmlDeviceGetGpuFabricInfoV(handle(0), byref({}()))"
    assert child.error(call.format("c_nvmlGpuFabricInfo_v3_t")) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert child(call.format("c_nvmlGpuFabricInfo_v2_t")) == 0
