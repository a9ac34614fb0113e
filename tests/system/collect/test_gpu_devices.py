"""Which GPUs a rank has where NVML lists no process of it: from its open devices and its variables."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.ranks.gpu_devices import Claim, GpuDevices, gpus_of
from mltop.probes.model import GpuProcess, GpuSample, MigInstance, RankSample
from tests.fakes.proctree import ProcTree

ALL = frozenset(range(8))
# Minor numbers run the other way round than indexes do.
NODE = [GpuSample(index, f"GPU-{index}{index}{index}{index}-aaaa", "H100", minor=7 - index) for index in range(8)]
NODE[6].mig_instances = [MigInstance(0, "MIG-6a6a6a6a-1"), MigInstance(1, "MIG-6a6a6a6a-2")]


def minors(*indexes: int) -> frozenset[int]:
    return frozenset(7 - index for index in indexes)


def claim(local_rank: int | None = 1, opened: frozenset[int] | None = ALL, *flags: str, **environ: str) -> Claim:
    return Claim(local_rank, opened, environ, "own" in flags, "apart" in flags)


NOTHING: tuple[list[int], str] = ([], "")
BY_DEVICE, BY_ENVIRONMENT = "open devices", "environment"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        # One open device proves it, whatever the variables say.
        (claim(0, minors(3)), ([3], BY_DEVICE)),
        (claim(0, minors(3), CUDA_VISIBLE_DEVICES="5"), ([3], BY_DEVICE)),
        (claim(1, frozenset()), NOTHING),  # it has opened none
        (claim(1, frozenset(), CUDA_VISIBLE_DEVICES="5"), NOTHING),
        (claim(1, frozenset({99})), ([1], BY_ENVIRONMENT)),  # a device that NVML does not list
        # All eight are open: they were counted only.
        (claim(5), ([5], BY_ENVIRONMENT)),
        (claim(None), NOTHING),
        (claim(8), NOTHING),
        (claim(2, CUDA_VISIBLE_DEVICES="7,6,5,4"), ([5], BY_ENVIRONMENT)),
        (claim(0, ALL, "own", CUDA_VISIBLE_DEVICES="6,7"), ([6, 7], BY_ENVIRONMENT)),
        (claim(3, ALL, "own", CUDA_VISIBLE_DEVICES="3"), ([3], BY_ENVIRONMENT)),
        (claim(3, ALL, CUDA_VISIBLE_DEVICES="4"), ([4], BY_ENVIRONMENT)),
        # Those that it may use are open: also counted only.
        (claim(2, minors(4, 5, 6, 7), CUDA_VISIBLE_DEVICES="4,5,6,7"), ([6], BY_ENVIRONMENT)),
        (claim(None, minors(4, 5, 6, 7), CUDA_VISIBLE_DEVICES="4,5,6,7"), NOTHING),
        # Some of those that it may use: it computes on several.
        (claim(None, minors(2, 3)), ([2, 3], BY_DEVICE)),
        (claim(7, minors(2, 3)), ([2, 3], BY_DEVICE)),
        (claim(2, minors(2, 3)), ([2], BY_ENVIRONMENT)),
        # Not readable.
        (claim(2, None), ([2], BY_ENVIRONMENT)),
        (claim(2, None, CUDA_VISIBLE_DEVICES="1"), ([1], BY_ENVIRONMENT)),
        (claim(2, None, CUDA_VISIBLE_DEVICES="1,0"), NOTHING),
        # UUIDs, their heads, MIG instances of new and old drivers.
        (claim(1, None, CUDA_VISIBLE_DEVICES="GPU-0000-aaaa,GPU-4444-aaaa"), ([4], BY_ENVIRONMENT)),
        (claim(0, None, CUDA_VISIBLE_DEVICES="GPU-4444"), ([4], BY_ENVIRONMENT)),
        (claim(0, None, CUDA_VISIBLE_DEVICES="GPU-"), NOTHING),
        (claim(0, None, CUDA_VISIBLE_DEVICES="GPU-9999"), NOTHING),
        (claim(3, None, CUDA_VISIBLE_DEVICES="MIG-6a6a6a6a-2"), ([6], BY_ENVIRONMENT)),
        (claim(3, None, CUDA_VISIBLE_DEVICES="MIG-GPU-5555-aaaa/1/0"), ([5], BY_ENVIRONMENT)),
        (claim(3, None, CUDA_VISIBLE_DEVICES="MIG-9"), NOTHING),
        # What CUDA would not take either.
        *((claim(0, None, CUDA_VISIBLE_DEVICES=text), NOTHING) for text in ("", "-1", "NoDevFiles", "0,0", "9", "0,x")),
        (claim(0, None, CUDA_VISIBLE_DEVICES="٣"), NOTHING),
        (claim(0, None, CUDA_VISIBLE_DEVICES="9" * 5000), NOTHING),
        # In a container numbers count what it has.
        (claim(1, None, "apart", NVIDIA_VISIBLE_DEVICES="all"), ([1], BY_ENVIRONMENT)),
        (claim(1, None, "apart", NVIDIA_VISIBLE_DEVICES="4,5"), ([5], BY_ENVIRONMENT)),
        (claim(0, None, "apart", NVIDIA_VISIBLE_DEVICES="4,5", CUDA_VISIBLE_DEVICES="1"), ([5], BY_ENVIRONMENT)),
        (claim(1, None, "apart", NVIDIA_VISIBLE_DEVICES="GPU-4444-aaaa,GPU-2222-aaaa"), ([4], BY_ENVIRONMENT)),
        (claim(1, None, "apart"), NOTHING),
        (claim(1, None, "apart", NVIDIA_VISIBLE_DEVICES="void", CUDA_VISIBLE_DEVICES="0,1"), NOTHING),
        (claim(1, minors(4, 5), "apart"), ([5], BY_ENVIRONMENT)),
        (claim(1, minors(4, 5), "apart", NVIDIA_VISIBLE_DEVICES="void"), ([5], BY_ENVIRONMENT)),
        (claim(None, minors(4, 5), "apart"), NOTHING),
        # Slurm that constrains devices numbers anew, one that does not does not.
        (claim(1, None, SLURM_JOB_GPUS="4,5", CUDA_VISIBLE_DEVICES="0,1"), ([5], BY_ENVIRONMENT)),
        (claim(1, None, SLURM_JOB_GPUS="4-5", CUDA_VISIBLE_DEVICES="4,5"), ([5], BY_ENVIRONMENT)),
        (claim(1, None, SLURM_STEP_GPUS="4,5", SLURM_JOB_GPUS="0-7"), ([5], BY_ENVIRONMENT)),
        (claim(0, None, SLURM_JOB_GPUS="1,2", CUDA_VISIBLE_DEVICES="1"), NOTHING),  # the first or the second?
        (claim(0, minors(2, 3), SLURM_JOB_GPUS="1,2,3", CUDA_VISIBLE_DEVICES="1,2"), ([2], BY_ENVIRONMENT)),
        (claim(0, None, SLURM_JOB_GPUS="40-50"), NOTHING),
    ],
    ids=str,
)  # fmt: skip
def test_which_gpus_a_rank_has(known: Claim, expected: tuple[list[int], str]) -> None:
    assert gpus_of(known, NODE) == expected


def test_of_several_kinds_of_gpus_cuda_counts_the_fastest_first() -> None:
    mixed = [GpuSample(0, name="T4", minor=0), GpuSample(1, name="H100", minor=1)]
    assert gpus_of(claim(0, None), mixed) == NOTHING
    assert gpus_of(claim(0, None, CUDA_VISIBLE_DEVICES="1"), mixed) == NOTHING
    assert gpus_of(claim(1, None, CUDA_DEVICE_ORDER="PCI_BUS_ID"), mixed) == ([1], BY_ENVIRONMENT)


def test_without_minor_numbers_open_devices_prove_nothing() -> None:
    untold = [GpuSample(index) for index in range(8)]
    assert gpus_of(claim(None, frozenset({3})), untold) == NOTHING
    assert gpus_of(claim(2, frozenset({3})), untold) == ([2], BY_ENVIRONMENT)


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


EIGHT = [f"/dev/nvidia{minor}" for minor in range(8)]


def start(tree: ProcTree, devices: list[list[str]], **more: str) -> tuple[RankSource, GpuDevices]:
    for number, opened in enumerate(devices):
        environ = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": "r",
            **more,
        }
        tree.python(20 + number, "train.py", environ=environ)
        tree.change(20 + number, devices=["/dev/nvidiactl", "/dev/nvidia-uvm", *opened, "/data/nvidia3"])
    return RankSource(str(tree.root)), GpuDevices(str(tree.root))


def told(
    ranks: RankSource, devices: GpuDevices, now: float, nvml: dict[int, list[int]] | None = None
) -> list[tuple[list[int], str]]:
    samples, _ = ranks.read(now, nvml or {})
    devices.fill(samples, NODE, now)
    return [(sample.gpus, sample.gpus_by) for sample in samples]


def test_open_devices_are_told_by_their_minor_numbers(tree: ProcTree) -> None:
    ranks, devices = start(tree, [["/dev/nvidia0"], ["/dev/nvidia7", "/dev/nvidia7"]])
    assert told(ranks, devices, 0.0) == [([7], BY_DEVICE), ([0], BY_DEVICE)]


def test_eight_open_devices_are_not_eight_gpus_of_each_rank(tree: ProcTree) -> None:
    ranks, devices = start(tree, [EIGHT, EIGHT], CUDA_VISIBLE_DEVICES="4,5")
    assert told(ranks, devices, 0.0) == [([4], BY_ENVIRONMENT), ([5], BY_ENVIRONMENT)]


def test_nvml_comes_first(tree: ProcTree) -> None:
    ranks, devices = start(tree, [["/dev/nvidia0"], ["/dev/nvidia0"]])
    assert told(ranks, devices, 0.0, {20: [2]}) == [([2], "nvml"), ([7], BY_DEVICE)]
    assert told(ranks, devices, 1.0) == [([7], BY_DEVICE)] * 2


def test_lists_of_their_own_are_whole(tree: ProcTree) -> None:
    ranks, devices = start(tree, [EIGHT, EIGHT])
    for number, words in ((0, "0,1"), (1, "2,3")):
        environ = {**tree.processes[20 + number].environ, "CUDA_VISIBLE_DEVICES": words}
        tree.change(20 + number, environ=environ)
    assert told(ranks, devices, 0.0) == [([0, 1], BY_ENVIRONMENT), ([2, 3], BY_ENVIRONMENT)]


def test_a_device_that_is_opened_later_is_found_and_links_are_read_seldom(tree: ProcTree) -> None:
    ranks, devices = start(tree, [[], []])
    assert told(ranks, devices, 0.0) == [NOTHING] * 2
    tree.change(20, devices=["/dev/nvidia0"])
    assert told(ranks, devices, 1.0) == [NOTHING] * 2
    assert told(ranks, devices, 2.0) == [([7], BY_DEVICE), NOTHING]
    tree.change(20, devices=[])
    assert told(ranks, devices, 3.0)[0] == ([7], BY_DEVICE)
    assert told(ranks, devices, 8.0)[0] == NOTHING


def test_what_cannot_be_read_is_said(tree: ProcTree) -> None:
    ranks, devices = start(tree, [[], []])
    for pid in (20, 21):
        shutil.rmtree(tree.root / str(pid) / "fd")
        tree.processes[pid].environ.pop("LOCAL_RANK")
    samples, _ = ranks.read(0.0, {})
    for sample in samples:
        sample.local_rank = None
    (gap,) = devices.fill(samples, NODE, 0.0)
    assert (gap.what, gap.code) == ("ranks.gpus", "no_permission")
    assert gap.why.startswith("the open devices of 2 ranks of root cannot be read")
    assert devices.fill(samples, [], 0.0) == []  # no GPUs: nothing is missed


def test_a_dead_rank_has_none() -> None:
    assert GpuDevices().fill([RankSample(1, state="Z")], NODE, 0.0) == []


@pytest.mark.parametrize(("foreign", "count"), [({7: 1}, 0), ({7: 2}, 2), ({7: 1, 3: 1}, 1)])
def test_processes_of_another_namespace_are_the_ranks_where_they_are_as_many(
    tree: ProcTree, foreign: dict[int, int], count: int
) -> None:
    """Rank 0 has the GPU of index 7 open. Whose the others are cannot be told."""
    ranks, devices = start(tree, [["/dev/nvidia0"]])
    gpus = [replace(gpu, processes=None) for gpu in NODE]
    for gpu in gpus:
        pids = [4000 + 10 * gpu.index + number for number in range(foreign.get(gpu.index, 0))]
        gpu.processes = [GpuProcess(pid, absent="elsewhere") for pid in pids]
    gaps = devices.fill(ranks.read(0.0, {})[0], gpus, 0.0)
    told = [(gap.what, gap.why.partition(" GPU")[0], "on the host" in gap.fix) for gap in gaps]
    assert told == ([("gpu processes", str(count), True)] if count else [])
