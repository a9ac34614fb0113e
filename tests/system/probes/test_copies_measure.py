"""The copies probe's measurement over a node whose links are known: rates, link states, damage, failures and hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mltop.probes
from mltop.probes.active.host import on_cpus
from mltop.probes.active.nvml import Link
from mltop.probes.active.transfers import Measurement, Plan, Timed, timed
from mltop.probes.model.probe import CopiesResult
from tests.fakes.nvml.scenario import FakeNvml

MIB = 1 << 20
IMPORT_PATH = str(Path(mltop.probes.__file__).parent.parent.parent)
STAGES = ("to device", "to host", "together", "peers")


class Copies:
    """Done from the ``looks``-th look on; a number below 0: never."""

    def __init__(self, seconds: float, looks: int) -> None:
        self._seconds, self._looks = seconds, looks

    def done(self) -> bool:
        self._looks -= self._looks > 0
        return self._looks == 0

    def seconds(self) -> float:
        return self._seconds


class Node:
    """GPUs with links of known speed, bytes/s. ``hangs``, ``fails``, ``damages``: (place, way) or (source, target)."""

    def __init__(self, **rates: float) -> None:
        self.rates = {"to_device": 50e9, "to_host": 25e9, "peer": 360e9, **rates}
        self.hangs: set[tuple[int, Any]] = set()
        self.fails: set[tuple[int, Any]] = set()
        self.damages: set[tuple[int, Any]] = set()
        self.unreachable: set[tuple[int, int]] = set()

    def start(self, place: int, way: str | int, copies: int) -> list[Copies]:
        seconds = copies * 256 * MIB / self.rates[way if isinstance(way, str) else "peer"]
        if (place, way) in self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")
        return [Copies(seconds, -1 if (place, way) in self.hangs else 2)]

    def arrived(self, place: int, way: str | int) -> bool:
        return (place, way) not in self.damages

    def reaches(self, source: int, target: int) -> bool:
        return (source, target) not in self.unreachable


class Links:
    """A link that trains up: each look sees the next of ``seen``, then the last one."""

    def __init__(self, *seen: Link) -> None:
        self._seen = list(seen)

    def now(self, uuid: str) -> Link:
        return self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]


def measured(
    node: Node, gpus: int = 3, links: Links | None = None, stall_s: float = 30.0
) -> tuple[list[CopiesResult], str, list[str]]:
    """The results, what ended it early, and the stages in their order."""
    plans = {stage: Plan(256 * MIB, 20, 30.0, stall_s) for stage in STAGES}
    results = [CopiesResult("n1", gpu, f"GPU-{gpu}") for gpu in range(gpus)]
    stages: list[str] = []
    ended = Measurement(node, results, links or Links(Link()), plans, lambda stage, share: stages.append(stage)).run()
    return results, ended, list(dict.fromkeys(stages))


def test_a_healthy_node() -> None:
    results, ended, stages = measured(Node())
    assert ended == "" and stages == ["to device", "to host", "together", "peers"]
    for result in results:
        assert result.to_device_bytes_per_s == pytest.approx(50e9)
        assert result.to_host_bytes_per_s == pytest.approx(25e9)
        assert result.to_device_together_bytes_per_s == pytest.approx(50e9)
        assert result.to_host_together_bytes_per_s == pytest.approx(25e9)
        assert result.intact is True and result.iterations == 20 and result.gaps == {}
        assert [copy.to_gpu for copy in result.peers] == [gpu for gpu in range(3) if gpu != result.gpu]
        assert all(copy.bytes_per_s == pytest.approx(360e9) and copy.direct and copy.intact for copy in result.peers)


def test_one_gpu_has_nobody_to_copy_with() -> None:
    (result,), ended, stages = measured(Node(), gpus=1)
    assert ended == "" and "together" not in stages
    assert result.peers == [] and result.to_device_together_bytes_per_s is None
    assert result.to_device_bytes_per_s is not None


def test_the_link_is_the_best_that_was_seen_while_it_copied() -> None:
    (result,), _, _ = measured(Node(), 1, Links(Link(1, 16), Link(2, 16), Link(4, 16), Link(4, 8)))
    assert (result.phases[0].name, result.phases[0].pcie_gen, result.phases[0].pcie_width) == ("to device", 4, 16)
    (unknown,), _, _ = measured(Node(), 1)
    assert unknown.phases[0].pcie_gen is None and unknown.phases[0].pcie_width is None


def test_damage_on_the_way() -> None:
    node = Node()
    node.damages = {(1, "to_host"), (2, 0)}
    results, ended, _ = measured(node)
    assert ended == ""
    assert [result.intact for result in results] == [True, False, True]
    assert [copy.intact for copy in results[2].peers] == [False, True]
    assert {copy.intact for copy in results[1].peers} == {None}  # what it sends may have been wrong before


def test_a_gpu_that_fails_is_left_out_and_the_others_are_measured() -> None:
    node = Node()
    node.fails = {(1, "to_device")}
    results, ended, _ = measured(node)
    assert ended == ""
    assert results[1].to_device_bytes_per_s is None and results[1].to_host_bytes_per_s is None
    assert results[1].gaps == {"to device": "CUDA error: an illegal memory access was encountered"}
    assert results[1].peers == []
    for other in (results[0], results[2]):
        assert other.to_host_bytes_per_s is not None and other.to_device_together_bytes_per_s is not None
        assert [copy.to_gpu for copy in other.peers] == [2 - (other.gpu or 0)]


def test_peers_without_access_and_peers_that_fail() -> None:
    node = Node()
    node.unreachable, node.fails = {(0, 1)}, {(2, 1)}
    results, ended, _ = measured(node)
    assert ended == ""
    assert [copy.direct for copy in results[0].peers] == [False, True]
    assert results[2].peers[1].why.startswith("CUDA error") and results[2].peers[1].bytes_per_s is None


def test_a_copy_that_hangs_ends_the_measurement_and_keeps_what_is_known() -> None:
    node = Node()
    node.hangs = {(1, 2)}
    results, ended, _ = measured(node, stall_s=0.1)
    assert "did not end within 0.1 s (GPU 1 to GPU 2)" in ended
    assert all(result.to_host_together_bytes_per_s is not None for result in results)
    assert [copy.why for copy in results[1].peers] == ["", "a copy did not end within 0.1 s"]
    assert results[2].peers == []


def test_a_hang_of_one_gpu_alone() -> None:
    node = Node()
    node.hangs = {(1, "to_host")}
    results, ended, stages = measured(node, stall_s=0.1)
    assert "(GPU 1, to host)" in ended and "together" not in stages
    assert results[1].gaps["to host"] and results[1].to_device_bytes_per_s is not None


def test_a_slow_link_makes_fewer_copies() -> None:
    plan = Plan(MIB, 1000, 0.0, 1.0)
    (found,) = timed([lambda count: [Copies(0.5 * count, 1)]], plan)
    assert found == Timed(5, 2.5)
    assert found.rate(MIB) == pytest.approx(2 * MIB)
    assert Timed().rate(MIB) is None


def test_memory_is_allocated_on_the_cpus_beside_the_gpu_and_the_thread_goes_back() -> None:
    before = os.sched_getaffinity(0)
    one = frozenset([min(before)])
    with on_cpus(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before
    for nowhere in (frozenset[int](), frozenset([100_000])):
        with on_cpus(nowhere):
            assert os.sched_getaffinity(0) == before


def ask(code: str, **env: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys; sys.path.insert(0, {IMPORT_PATH!r})\n{code}"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


PLACE = """
from dataclasses import asdict
from mltop.probes.active.host import affinity_of
place = asdict(affinity_of("0000:1b:00.0"))
print(json.dumps({**place, "cpus": sorted(place["cpus"])}))
"""


@pytest.mark.parametrize(
    ("cpus", "node", "near", "numa_node"),
    [("0-{most}", "1", True, 1), ("5000-5003", "0", False, 0), ("", "-1", None, None), ("0-{most}", "-1", True, None)],
)
def test_where_a_gpu_is(tmp_path: Path, cpus: str, node: str, near: bool | None, numa_node: int | None) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text(cpus.format(most=max(os.sched_getaffinity(0))) + "\n")
    (folder / "numa_node").write_text(f"{node}\n")
    found = ask(PLACE, MLTOP_SYSROOT=str(tmp_path))
    assert (found["near"], found["numa_node"]) == (near, numa_node)
    assert found["cpus"] == (sorted(os.sched_getaffinity(0)) if near else [])


def test_an_unknown_gpu_is_nowhere(tmp_path: Path) -> None:
    assert ask(PLACE, MLTOP_SYSROOT=str(tmp_path)) == {"numa_node": None, "cpus": [], "near": None}


PCIE = """
from mltop.probes.active.nvml import PcieLinks
links, uuid = PcieLinks(), UUID
now, most = links.now(uuid), links.most(uuid)
print(json.dumps([links.why, now.gen, now.width, most.gen, most.width, links.address(uuid)]))
"""
SECOND = "GPU-5a4e0001-0000-4000-8000-000000000001"


def pcie(fake: FakeNvml, uuid: str = SECOND) -> list[Any]:
    fake.write()
    found: list[Any] = ask(PCIE.replace("UUID", repr(uuid)), **fake.env())
    return found


def test_the_pcie_link_of_a_gpu_by_its_uuid(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=3)
    fake.set("gpu.1.pcie_gen", 3)
    fake.set("gpu.1.pcie_width", 8)
    fake.set("gpu.1.pci_bus_id", "00010000:9B:00.0")
    assert pcie(fake) == ["", 3, 8, 5, 16, "10000:9b:00.0"]


def test_what_nvml_does_not_tell_is_unknown(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=3)
    fake.set("gpu.1.pcie_gen", "unsupported")
    fake.set("call.nvmlDeviceGetMaxPcieLinkWidth", "missing")
    fake.set("gpu.1.call.nvmlDeviceGetPciInfo", "error 999")
    assert pcie(fake) == ["", None, 16, 5, None, ""]
    assert pcie(fake, "GPU-none") == ["", None, None, None, None, ""]


def test_nvml_that_does_not_start(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, count=1)
    fake.set("call.nvmlInit", "error 9")
    why, *rest = pcie(fake)
    assert why.startswith("NVML: nvmlInit_v2") and rest == [None, None, None, None, ""]


def test_a_machine_without_nvml() -> None:
    why, *rest = ask(PCIE.replace("UUID", repr(SECOND)))
    assert why.startswith("NVML: ") and rest == [None, None, None, None, ""]


def test_the_better_of_two_looks() -> None:
    assert Link(4, 8).best(Link(1, 16)) == Link(4, 16)
    assert Link().best(Link(3, None)) == Link(3, None)
