"""Whether a device is free for a probe, and what is measured on a node: pure decisions."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.active.supervisor.gate import Holder, choose, cpu_refusal, cpu_remark, of_all, refusal, unknowns
from mltop.probes.active.supervisor.request import ProbeRequest, request_from
from mltop.probes.agent.probing import slurm_job_in
from mltop.probes.model import Gap, GpuProcess, GpuSample, HostSample, MigInstance, PciDevice, RankSample, Remap, Sample
from mltop.probes.model.probe import ProbeDevice
from tests.fakes.probes import GIB, gpu

ALICE = Holder(4711, "alice", "python train.py", "815")
PROBE = Holder(12, "bob", "python -c", probe="matmul")
UNSEEN = Holder(99, is_visible=False)
HOLDERS = {4711: ALICE, 12: PROBE, 99: UNSEEN}


def on(pid: int, kind: str = "compute", gpu_instance: int | None = None) -> dict[str, Any]:
    return {"processes": [GpuProcess(pid, GIB, kind, gpu_instance)]}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        (on(4711), "in use by alice: python train.py (pid 4711, job 815)"),
        (on(4711, "mps"), "in use by alice: python train.py (pid 4711, job 815)"),
        (on(4711, "graphics"), ""),
        (on(5), ""),  # ours: it is not among the foreign ones
        (on(12), "a matmul probe of mltop (pid 12 of bob) runs here"),
        (on(99), "in use by pid 99, which is not seen here (in another container, or it has just ended)"),
        (
            {"processes": [GpuProcess(99), GpuProcess(4711), GpuProcess(12)]},
            "a matmul probe of mltop (pid 12 of bob) runs here and 2 more processes",
        ),
        ({"busy": 0.05}, ""),
        ({"busy": 0.06}, "busy: 6 %, though no process is seen that uses it"),
        ({"memory_used_bytes": GIB}, ""),
        ({"memory_used_bytes": 5 * GIB}, "5 GiB of its memory are in use, though no process is seen that uses it"),
        ({"remap": Remap(pending=True)}, "waits for a reset to repair its memory"),
        ({"retired_pages_pending": True}, "waits for a reset to repair its memory"),
        ({"remap": Remap(failed=True)}, "could not repair its memory"),
        ({"processes": None}, ""),
        ({"memory_used_bytes": None}, ""),
        ({"busy": None}, ""),
        ({"processes": None, "memory_used_bytes": None}, "whether it is free is not known"),
        ({"state": "error", "error": "stuck in nvmlX"}, "cannot be read: stuck in nvmlX"),
    ],
)
def test_gpu(fields: dict[str, Any], why: str) -> None:
    sample = gpu(3, **fields)
    found = refusal(sample, [sample] * 3, HOLDERS)
    assert (found is not None) == bool(why)
    if found is not None:
        assert found.why.startswith(why)
        assert found.fix
    assert refusal(sample, [sample] * 3, HOLDERS, force=True) is None


def test_a_lost_gpu_is_refused_even_by_force() -> None:
    lost = gpu(3, state="lost", error="fell off the bus")
    found = refusal(lost, [lost], {}, force=True)
    assert found is not None
    assert found.why == "lost: fell off the bus"


@pytest.mark.parametrize(
    ("busy", "free"), [((0.9, 0.9, 0.0), True), ((0.9, 0.1, 0.9), False), ((0.9, None, 0.9), True)]
)
def test_it_is_busy_when_all_samples_say_so(busy: tuple[float | None, ...], free: bool) -> None:
    recent = [gpu(busy=value) for value in busy]
    assert (refusal(recent[-1], recent, {}) is None) == free


@pytest.mark.parametrize(
    ("mode", "why"),
    [(None, ""), ("default", ""), ("prohibited", "Prohibited"), ("exclusive_process", "Exclusive")],
)
def test_compute_mode(mode: str | None, why: str) -> None:
    one = gpu(compute_mode=mode)
    found = refusal(one, [one], {})
    assert (found.why if found else "") == (f"in {why} compute mode" if why else "")


def mig(**fields: Any) -> MigInstance:
    return MigInstance(1, "MIG-1", "1g.10gb", **{"gpu_instance": 7, "memory_used_bytes": 0, **fields})


@pytest.mark.parametrize(
    ("fields", "instance", "why"),
    [
        ({}, mig(), ""),
        (on(4711, gpu_instance=7), mig(), "MIG instance 1: in use by alice"),
        (on(4711, gpu_instance=8), mig(), ""),
        (on(4711), mig(), "MIG instance 1: in use by alice"),  # in which instance is not known
        ({}, mig(memory_used_bytes=2 * GIB), "MIG instance 1: 2 GiB of its memory are in use"),
        ({}, mig(sm_active=0.0071), "MIG instance 1: busy: 0.7 %"),  # a kernel of one block on an H100
        ({"memory_used_bytes": 50 * GIB}, mig(), ""),  # of others
        ({}, mig(sm_active=0.5), "MIG instance 1: busy: 50 %"),
    ],
)
def test_mig_instance(fields: dict[str, Any], instance: MigInstance, why: str) -> None:
    sample = gpu(busy=None, mig_enabled=True, mig_instances=[instance], **fields)
    found = refusal(sample, [sample] * 3, HOLDERS, instance=instance)
    assert found.why.startswith(why) if found and why else (found is None and not why)


def test_what_is_not_known_is_said() -> None:
    known = gpu(busy=None, memory_used_bytes=None)
    assert unknowns(known, [known]) == [
        "of GPU 0 is not known: its memory use",
        "of GPU 0 is not known: how busy it is",
    ]
    assert unknowns(gpu(processes=None), [gpu()]) == ["of GPU 0 is not known: who uses it"]


def node(cpu: float | None = 0.0, **fields: Any) -> Sample:
    host = HostSample(cpu_fraction=cpu, load_1m=fields.pop("load_1m", None), cpu_count=8)
    return Sample("n1", 1.0, host=host, **fields)


def rank(state: str) -> RankSample:
    return RankSample(7, 3, user="alice", command="python train.py", job="815", state=state)


@pytest.mark.parametrize(
    ("samples", "others", "why"),
    [
        ([node()], [], ""),
        ([node(ranks=[rank("R"), rank("S")])], [], "a training job runs here: alice: python train.py (rank 3, pid 7, "),
        ([node(ranks=[rank("T"), rank("Z")])], [], ""),
        ([node(0.9)] * 3, [], ""),
        ([node()], [PROBE], "a matmul probe of mltop (pid 12 of bob) runs here"),
    ],
)
def test_processors(samples: list[Sample], others: list[Holder], why: str) -> None:
    found = cpu_refusal(samples, others)
    assert found.why.startswith(why) if found and why else (found is None and not why)
    assert cpu_refusal(samples, others, force=True) is None


@pytest.mark.parametrize(
    ("samples", "remark"),
    [
        ([node(0.9)] * 3, "this node was busy before: 90 % of its processors were in use"),
        ([node(0.9), node(0.9), node(0.2)], ""),
        ([node(None, load_1m=9.0)], "this node was busy before: load 9.0 on 8 processors"),
        ([node(0.0, load_1m=9.0)], ""),  # what has just ended
        ([node(None)], ""),
    ],
)
def test_what_else_keeps_the_processors_busy_is_said(samples: list[Sample], remark: str) -> None:
    assert cpu_remark(samples) == remark


CPU = ProbeDevice("cpu", None, "A processor", "cpu")
NO_DRIVER = Gap("nvml", "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)", code="no_driver")
STUCK = Gap("nvml", "NVML does not answer", "dmesg")
TWO = (gpu(0, pci_bus_id="00000000:9B:00.0"), gpu(1))
SPLIT = gpu(0, mig_enabled=True, mig_instances=[mig(), MigInstance(2, "MIG-2", "2g.20gb")])
UNSPLIT = gpu(0, mig_enabled=True)
GPU_ON_BUS = PciDevice("0000:9b:00.0", "gpu", device_id=0x2330)


@pytest.mark.parametrize(
    ("gpus", "gaps", "kind", "wanted", "devices", "refusals"),
    [
        (TWO, [], "matmul", (), ["GPU-0", "GPU-1"], []),
        (TWO, [], "all_reduce", (), ["GPU-0", "GPU-1"], []),
        (TWO, [], "matmul", ("1",), ["GPU-1"], []),
        (TWO, [], "matmul", ("GPU-0", "5"), ["GPU-0"], ["no GPU 5 on this node (there are 0, 1)"]),
        (TWO, [], "matmul", ("cpu",), ["cpu"], []),
        (TWO, [], "matmul", ("cpu", "0"), ["GPU-0"], ["processors are measured by themselves"]),
        ((), [NO_DRIVER], "matmul", (), ["cpu"], []),
        ((), [NO_DRIVER], "copies", (), [], ["no GPU here: copies are between a GPU and the host"]),
        ((), [NO_DRIVER], "matmul", ("0",), [], ["the GPUs of this node cannot be read: no NVIDIA driver"]),
        ((), [STUCK], "matmul", (), [], ["the GPUs of this node cannot be read: NVML does not answer"]),
        ((gpu(0, uuid=None, state="lost", error="gone"),), [], "matmul", (), [], ["no UUID is known of it"]),
        ((SPLIT,), [], "matmul", (), ["MIG-1", "MIG-2"], []),
        ((SPLIT,), [], "matmul", ("0",), ["MIG-1", "MIG-2"], []),
        ((SPLIT, gpu(1)), [], "memory", ("MIG-2",), ["MIG-2"], []),
        ((SPLIT, gpu(1)), [], "all_reduce", (), ["GPU-1"], ["in MIG mode: NCCL does not work between MIG"]),
        ((SPLIT,), [], "copies", (), [], ["in MIG mode: CUDA shows a process one MIG instance at a time"]),
        ((UNSPLIT,), [], "matmul", (), [], ["in MIG mode and has no instance"]),
    ],
)
def test_devices(
    gpus: tuple[GpuSample, ...],
    gaps: list[Gap],
    kind: str,
    wanted: tuple[str, ...],
    devices: list[str],
    refusals: list[str],
) -> None:
    chosen = list(choose(ProbeRequest("k", kind, wanted), Sample("n1", 1.0, gpus=list(gpus), gaps=gaps), CPU))
    assert [target.device.uuid for target in chosen if target.refusal is None] == devices
    for refused, why in zip([target.refusal for target in chosen if target.refusal], refusals, strict=True):
        assert refused.why.startswith(why)


def test_a_node_whose_gpus_are_on_the_bus_only_is_no_node_of_processors() -> None:
    sample = Sample("n1", 1.0, gaps=[NO_DRIVER], pci=[GPU_ON_BUS])
    (target,) = choose(ProbeRequest("k", "matmul"), sample, CPU)
    assert target.refusal is not None


def test_what_is_known_of_a_device() -> None:
    sample = Sample("n1", 1.0, gpus=[TWO[0], SPLIT], pci=[GPU_ON_BUS])
    (first, instance, *_) = (target.device for target in choose(ProbeRequest("k", "matmul"), sample, CPU))
    assert first == ProbeDevice("GPU-0", 0, "NVIDIA H100 80GB HBM3", "gpu", "2330", 80 * GIB)
    assert (instance.kind, instance.name) == ("mig", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")


def test_made_up_gpus_are_not_measured() -> None:
    (target,) = choose(ProbeRequest("k", "matmul"), Sample("n1", 1.0, gpus=[gpu()], simulated=True), CPU)
    assert target.refusal is not None and target.refusal.why.startswith("the GPUs of this node are made up (")


@pytest.mark.parametrize(
    ("cgroups", "job"),
    [
        (b"0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "4711"),
        (b"4:memory:/slurm/uid_1000/job_815/step_batch\n0::/\n", "815"),
        (b"0::/user.slice/user-1000.slice/job_x/session-2.scope\n", ""),
    ],
)
def test_slurms_cgroups_name_the_job(cgroups: bytes, job: str) -> None:
    assert slurm_job_in(cgroups) == job


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"key": "k", "kind": "dance"}, "unknown probe 'dance'"),
        ({"kind": "matmul"}, "a probe needs a key"),
        ({"key": "two words", "kind": "matmul"}, "a probe needs a key"),
        ({"key": "k", "kind": "matmul", "gpus": "0"}, "gpus must be a list"),
        ({"key": "k", "kind": "matmul", "deadlines_s": {"warm": "soon"}}, "deadlines_s of warm must be seconds"),
        ({"key": "k", "kind": "matmul", "total_s": -1}, "total_s must be seconds"),
        ({"key": "k", "kind": "matmul", "python": "a\x00b"}, r"'a\\x00b' has '\\x00'"),
        ({"key": "k", "kind": "matmul", "python": "a\nb"}, "has '"),
        ({"key": "k", "kind": "matmul", "python": "venv/bin/python"}, "is no full path"),
        ({"key": "k", "kind": "matmul", "python": "x" * 10_000}, "longer than any path"),
    ],
)
def test_what_cannot_be_asked(args: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        request_from(args)


def test_without_a_limit_of_its_own_a_probe_may_take_what_its_stages_may() -> None:
    assert request_from({"key": "k", "kind": "memory"}).total_s == 10 + 30 + 40 + 10 + 20
    assert request_from({"key": "k", "kind": "memory", "deadlines_s": {"copy": 60}}).total_s == 150


def test_reasons_of_different_people_and_faults_are_told_apart() -> None:
    def of(**fields: Any) -> tuple[str, str]:
        sample = gpu(3, **fields)
        found = refusal(sample, [sample] * 3, HOLDERS)
        assert found is not None
        return found.code, found.who

    assert of(**on(4711)) == ("in_use", "alice: python train.py")
    assert of(**on(12)) == ("probe", "a matmul probe of mltop of bob")
    assert of(state="error", error="no permission") == of(state="error", error="stuck") == ("", "")
    jobs = [Sample("n1", 1.0, ranks=[RankSample(7, 0, user=user, command="t.py")]) for user in ("ada", "bob")]
    assert [found.who for job in jobs if (found := cpu_refusal([job], []))] == ["ada: t.py", "bob: t.py"]


def test_a_fault_of_the_whole_gpu_is_no_instance_s() -> None:
    sample = gpu(3, mig_enabled=True, mig_instances=[mig()], remap=Remap(failed=True), busy=None)
    found = refusal(sample, [sample] * 3, {}, instance=mig())
    assert found is not None and found.why.startswith("could not repair its memory")


def test_of_a_collective_the_refused_gpu_is_named() -> None:
    assert "GPU 0 of this node is refused: in use by ada" in of_all(0, "in use by ada").why
    assert "another device of this node is refused: no GPU 9" in of_all(None, "no GPU 9").why
