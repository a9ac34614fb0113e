"""Xids that NVML reports while it is watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.model import MAX_KERNEL_EVENTS, KernelEvent
from tests.fakes.nvml.counts import read_counts
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import fake_here
from tests.waiting import wait_until

Start = Callable[[], NvmlSource]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 3)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    sources: list[NvmlSource] = []

    def make() -> NvmlSource:
        fake.write()
        sources.append(NvmlSource())
        return sources[-1]

    yield make
    for source in sources:
        source.close()


def poll(source: NvmlSource) -> float:
    """One answered poll; when it was, in unix time."""
    now = time.time()

    def answered() -> bool:
        source.request(now)
        gpus, _ = source.collect(now, 0.2)
        return any(gpu.last_seen_at == now for gpu in gpus)

    wait_until(answered, what="an answer from NVML")
    return now


def test_an_xid_is_an_event_with_the_address_of_its_gpu(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.1.xids", "13")  # before we came: NVML does not tell
    source = start()
    poll(source)
    assert source.events() == []
    fake.set("gpu.1.xids", "13, 94")
    fake.set("gpu.2.xids", "0x10:0, 31, 43")  # a clock event comes with data 0
    fake.write()
    at = poll(source)
    bus_ids = [gpu.pci_bus_id for gpu in source.collect(at, 0)[0]]
    assert source.events() == [
        xid(at, 94, bus_ids[1]),
        xid(at, 31, bus_ids[2]),
        xid(at, 43, bus_ids[2]),
    ]
    poll(source)
    assert len(source.events()) == 3, "each is told once, and kept"


def xid(at: float, code: int, bus_id: str | None) -> KernelEvent:
    assert bus_id
    text = f"NVML reports Xid {code} of the GPU at {bus_id}"
    return KernelEvent(at, "xid", subject=bus_id, code=code, text=text, source="nvml")


def test_the_newest_are_kept(fake: FakeNvml, start: Start) -> None:
    source = start()
    poll(source)
    codes: list[str] = []
    for _ in range(4):
        codes += ["1"] * 15 + ["2"] * 15
        fake.set("gpu.0.xids", ",".join(codes))
        fake.write()
        poll(source)
        poll(source)  # at most 16 with one poll
    assert [event.code for event in source.events()] == [int(code) for code in codes][-MAX_KERNEL_EVENTS:]


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait"])
@pytest.mark.parametrize("how", ["missing", "error 3", "error 4", "error 999"])
def test_where_there_are_no_events_nothing_is_said(fake: FakeNvml, start: Start, call: str, how: str) -> None:
    """The kernel's log is the first source. It is remembered: nothing is asked every second."""
    fake.set(f"call.{call}", how)
    source = start()
    at = poll(source)
    gpus, gaps = source.collect(at, 0)
    assert [gpu.state for gpu in gpus] == ["ok"] * 3
    assert not [gap for gap in gaps if gap.kind == "unknown"]
    before = read_counts(fake.counts_path)
    poll(source)
    poll(source)
    after = read_counts(fake.counts_path)
    for function in ("nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"):
        assert after.get(function, 0) == before.get(function, 0), function
    assert source.events() == []


def test_a_gpu_that_comes_back_is_listened_to_again(fake: FakeNvml, start: Start) -> None:
    source = start()
    poll(source)
    fake.set("gpu.1.call.nvmlDeviceGetUtilizationRates", "error 15")
    fake.write()
    poll(source)
    fake.unset("gpu.1.call.nvmlDeviceGetUtilizationRates")
    fake.write()

    def is_back() -> bool:
        at = poll(source)
        return source.collect(at, 0)[0][1].state == "ok"

    wait_until(is_back, what="GPU 1")
    fake.set("gpu.1.xids", "79")
    fake.write()
    poll(source)
    assert [event.code for event in source.events()] == [79]
