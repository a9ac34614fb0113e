"""MIG instances over the fake library: which there are, their memory and activity, and changes of the layout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.nvml.codes import reason_of, unsupported
from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.model import MigInstance
from tests.fakes.nvml.child import Child
from tests.fakes.nvml.counts import calls_on_gpu, read_counts
from tests.fakes.nvml.readers import start as start_readers
from tests.fakes.nvml.scenario import FakeNvml
from tests.waiting import wait_until

GIB = 2**30
ACTIVITY = ("sm_active", "tensor_active", "dram_active", "sm_occupancy")


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    made = FakeNvml(tmp_path, count=2)
    made.set("gpu.0.mig_enabled", True)
    made.set("gpu.0.mig.0", f"3g.40gb gi=2 used={GIB} gpm.2=75 gpm.5=50 gpm.10=25.5 gpm.3=10")
    made.set("gpu.0.mig.2", f"2g.20gb gi=3 ci=1 uuid=MIG-second used={2 * GIB} gpm.2=12")
    made.write()
    return made


def activity_of(instance: object) -> str:
    return ",".join(f"mig_instances.{instance}.{field}" for field in ACTIVITY)


Reader = Callable[..., Child]


@pytest.fixture
def reader(fake: FakeNvml) -> Iterator[Reader]:
    children: list[Child] = []

    def make(*options: float) -> Child:
        """``options``: relist_s, calls_per_s."""
        arguments = ", ".join(["calls", *map(str, options)])
        children.append(start_readers(fake, f"mig = MigReader({arguments})", "first = device(0)"))
        return children[-1]

    yield make
    for child in children:
        child.close()
    assert not [name for name in read_counts(fake.counts_path) if name.startswith("misuse")]


def read(child: Child) -> dict[str, Any]:
    found: dict[str, Any] = child("read(mig, first)")
    return found


def read_until(child: Child, wanted: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    def step() -> dict[str, Any] | None:
        found = read(child)
        return found if wanted(found) else None

    return wait_until(step, 30, what)


def instances(found: dict[str, Any]) -> list[MigInstance]:
    return [MigInstance(**entry) for entry in found["values"]["mig_instances"]]


def all_active(found: dict[str, Any]) -> bool:
    return all(instance.sm_active is not None for instance in instances(found))


def test_identity_and_memory_come_at_once_and_activity_with_the_second_sample(reader: Reader) -> None:
    child = reader()
    found = read(child)
    assert instances(found) == [
        MigInstance(0, "MIG-5a4e0001-0000-4000-8000-000000000000", "3g.40gb", 2, 0, GIB, 40 * GIB),
        MigInstance(2, "MIG-second", "2g.20gb", 3, 1, 2 * GIB, 20 * GIB),
    ]
    assert {name: reason_of(problem).kind for name, problem in found["problems"].items()} == {
        activity_of(0): "starting",
        activity_of(2): "starting",
    }
    first, second = instances(read_until(child, all_active, "activity"))
    assert [getattr(first, field) for field in ACTIVITY] == pytest.approx([0.75, 0.5, 0.255, 0.1])
    assert [getattr(second, field) for field in ACTIVITY] == pytest.approx([0.12, 0, 0, 0])


def test_an_unknown_metric_of_one_instance(fake: FakeNvml, reader: Reader) -> None:
    fake.set("gpu.0.mig.0", "3g.40gb gi=2 gpm.2=nan gpm.5=50")
    fake.write()
    found = read_until(reader(), lambda found: instances(found)[0].tensor_active, "activity")
    assert instances(found)[0].sm_active is None
    problem = reason_of(found["problems"]["mig_instances.0.sm_active"])
    assert problem.code == "implausible" and "which is not a value" in problem.why


def test_compute_instances_of_one_gpu_instance_share_its_counters(fake: FakeNvml, reader: Reader) -> None:
    fake.set("gpu.0.mig.2", "1c.3g.40gb gi=2 ci=1")
    fake.write()
    found = instances(read_until(reader(), all_active, "activity"))
    assert [(entry.name, entry.gpu_instance, entry.compute_instance) for entry in found] == [
        ("3g.40gb", 2, 0),
        ("1c.3g.40gb", 2, 1),
    ]
    assert [entry.sm_active for entry in found] == pytest.approx([0.75, 0.75])


def test_an_instance_that_is_gone_is_no_error(fake: FakeNvml, reader: Reader) -> None:
    child = reader()
    read_until(child, all_active, "activity")
    fake.unset("gpu.0.mig.0")
    fake.write()
    found = read_until(child, lambda found: len(instances(found)) == 1, "the new list")
    assert instances(found)[0].uuid == "MIG-second"
    assert instances(found)[0].sm_active == pytest.approx(0.12)
    assert not [name for name in found["problems"] if name.startswith("mig_instances.0")]


def test_a_new_instance_is_seen_and_known_ones_keep_their_samples(fake: FakeNvml, reader: Reader) -> None:
    child = reader(0.3, 1000)
    read_until(child, all_active, "activity")
    fake.set("gpu.0.mig.1", "1g.10gb gi=9 gpm.2=33")
    fake.write()
    found = read_until(child, lambda found: len(instances(found)) == 3, "the new instance")
    assert instances(found)[0].sm_active == pytest.approx(0.75)
    found = read_until(child, all_active, "its activity")
    assert [entry.index for entry in instances(found)] == [0, 1, 2]
    assert instances(found)[1].sm_active == pytest.approx(0.33)


def test_another_instance_at_the_same_place(fake: FakeNvml, reader: Reader) -> None:
    """Handles may be reused: what was known of the old instance is not the new one's."""
    child = reader(0.3, 1000)
    read_until(child, all_active, "activity")
    fake.set("gpu.0.mig.0", "1g.10gb gi=5 uuid=MIG-other used=7 gpm.2=5")
    fake.write()
    found = read_until(child, lambda found: instances(found)[0].uuid == "MIG-other", "the other instance")
    entry = instances(found)[0]
    assert (entry.name, entry.gpu_instance) == ("1g.10gb", 5)
    assert entry.sm_active in (None, pytest.approx(0.05))
    found = read_until(child, all_active, "its activity")
    assert instances(found)[0].sm_active == pytest.approx(0.05)
    assert instances(found)[0].memory_used_bytes == 7


def test_no_instances_yet(fake: FakeNvml, reader: Reader) -> None:
    fake.unset("gpu.0.mig.0")
    fake.unset("gpu.0.mig.2")
    fake.write()
    assert read(reader()) == {"values": {"mig_instances": []}, "problems": {}}


def test_a_driver_that_gives_instances_the_name_of_the_gpu(fake: FakeNvml, reader: Reader) -> None:
    fake.set("gpu.0.call.nvmlDeviceGetName", "error 3")
    fake.write()
    assert [entry.name for entry in instances(read(reader()))] == ["3g.40gb", "2g.20gb"]


def test_instances_of_a_gpu_without_gpm(fake: FakeNvml, reader: Reader) -> None:
    fake.set("gpu.0.gpm_supported", False)
    fake.write()
    found = read(reader())
    assert [entry.memory_used_bytes for entry in instances(found)] == [GIB, 2 * GIB]
    assert [entry.sm_active for entry in instances(found)] == [None, None]
    ((name, problem),) = found["problems"].items()
    assert name == activity_of("*")
    assert problem == [*unsupported("GPM needs Hopper or newer: GPU-Util only says that a kernel was resident")]


def test_permission_to_sample_instances_comes_back(fake: FakeNvml, reader: Reader) -> None:
    child = reader()
    fake.set("gpu.0.call.nvmlGpmMigSampleGet", "error 4")
    fake.write()
    found = read(child)
    assert ["nvmlGpmMigSampleGet", 4] in found["problems"].values()
    assert [entry.memory_used_bytes for entry in instances(found)] == [GIB, 2 * GIB]
    fake.unset("gpu.0.call.nvmlGpmMigSampleGet")
    fake.write()
    read_until(child, all_active, "activity")


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlGpmMigSampleGet", "nvmlDeviceGetMaxMigDeviceCount"])
def test_a_lost_gpu_is_raised(fake: FakeNvml, reader: Reader, call: str) -> None:
    child = reader()
    fake.set(f"gpu.0.call.{call}", "error 15")
    fake.write()
    assert read(child) == {"raised": [call, 15]}
    child("first.release()")
    counts = read_counts(fake.counts_path)
    assert counts.get("nvmlGpmSampleAlloc", 0) == counts.get("nvmlGpmSampleFree", 0)


def test_a_list_that_cannot_be_had_is_one_problem(fake: FakeNvml, reader: Reader) -> None:
    fake.set("gpu.0.call.nvmlDeviceGetMigDeviceHandleByIndex", "error 999")
    fake.write()
    assert read(reader()) == {
        "values": {},
        "problems": {"mig_instances": ["nvmlDeviceGetMigDeviceHandleByIndex", 999]},
    }


def test_seven_instances_share_a_budget_of_calls(fake: FakeNvml, reader: Reader) -> None:
    for index in range(7):
        fake.set(f"gpu.0.mig.{index}", f"1g.10gb gi={7 + index} gpm.2={index + 1}")
    fake.write()
    child = reader()
    read_until(child, lambda found: len(instances(found)) == 7, "seven instances")

    def calls() -> int:
        return sum(calls_on_gpu(fake.counts_path, 0).values())

    wait_until(
        lambda: [read(child), calls()][1] and child("first.state(Instances).credit") < 6, 30, "the first credit's end"
    )
    before, started_s = calls(), time.monotonic()
    wait_until(lambda: read(child) and time.monotonic() - started_s > 2.0, what="two seconds")
    spent_s = time.monotonic() - started_s
    assert calls() - before <= 3 * spent_s + 8, "three calls per second, and one turn that was saved for"


def test_instances_in_the_sample_of_their_gpu(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: the second look at a GPU's instances comes within five seconds."""
    for name, value in fake.env().items():
        monkeypatch.setenv(name, value)
    fake.set("gpu.0.gpm.2", "42")
    fake.write()
    source = NvmlSource()
    try:

        def seen() -> tuple[Any, Any] | None:
            source.request(time.time())
            gpus, gaps = source.collect(time.time(), 0.05)
            done = gpus and gpus[0].mig_instances and gpus[0].mig_instances[0].sm_active and gpus[0].sm_active
            return (gpus, gaps) if done else None

        gpus, gaps = wait_until(seen, what="activity of the instances")
    finally:
        source.close()
    assert gpus[0].mig_enabled
    assert gpus[0].sm_active == pytest.approx(0.42)
    assert [entry.sm_active for entry in gpus[0].mig_instances] == pytest.approx([0.75, 0.12])
    assert gpus[1].mig_instances == []
    assert not [gap for gap in gaps if "mig_instances" in gap.what]
