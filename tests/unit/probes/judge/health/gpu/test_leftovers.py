"""Processes that hold memory of GPUs: in an epilog everything is told, on the screen a notebook is left in peace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.judge.health.unknowns import unknowns_of
from mltop.probes.model import Finding, Gap, GpuProcess, GpuSample, MigInstance, Remap, Sample
from tests.builders.health_samples import GIB, gpu, judged, node_h100, rank, sample

NOW = 100_000.0
NOTEBOOK = GpuProcess(
    4242, 66 * GIB, "compute", user="ada", name="python3", state="S", ppid=4100, started_at=NOW - 7300.0
)
OWN = ("gpu.orphan", "gpu.leftover", "gpu.idle_memory", "gpu.ghost_mem")


def idle(*processes: GpuProcess, at: float = NOW, **fields: Any) -> Sample:
    return sample(at, [gpu(3, "idle", at, processes=list(processes), memory_used_bytes=66 * GIB, **fields)])


def checked(*samples: Sample) -> list[Finding]:
    """As `mltop check` does it: some samples within seconds, everything at once."""
    health = Health(Expectations(vacated=True), eager=True)
    for one in samples:
        health.see(one)
    return [one for one in health.findings() if one.until is None and one.id in OWN]


def on_screen(*samples: Sample) -> list[Finding]:
    health = Health(eager=True)
    for one in samples:
        health.see(one)
    return [one for one in health.findings() if one.until is None and one.id in OWN]


def test_a_live_process_is_found_in_an_epilog() -> None:
    (finding,) = checked(idle(NOTEBOOK), idle(NOTEBOOK, at=NOW + 0.5))
    assert (finding.id, finding.severity, finding.subject) == ("gpu.leftover", "warning", "GPU 3")
    assert finding.message == "GPU 3 is idle, but python3 (pid 4242 of ada, 2 h 1 min old) holds 66 GiB of its memory"
    assert finding.action == "if nothing may run here: sudo kill 4242"
    assert finding.evidence == ["state S: python3 (pid 4242 of ada, 2 h 1 min old), 66 GiB, parent 4100"]


def test_several_are_one_line_and_all_are_named() -> None:
    many = [replace(NOTEBOOK, pid=5000 + number, memory_bytes=GIB) for number in range(5)]
    (finding,) = checked(idle(*many))
    assert "5 processes" not in finding.message and "and 2 more hold 5 GiB of it" in finding.message
    assert finding.action.endswith("sudo kill 5000 5001 5002 5003 5004")
    assert all(f"pid {process.pid} " in "\n".join(finding.evidence) for process in many)


@pytest.mark.parametrize(
    ("process", "who", "action"),
    [
        (
            replace(NOTEBOOK, state="Z"),
            ": python3 (pid 4242 of ada, 2 h 1 min old)",
            "sudo kill 4100 (its parent); if the memory stays: sudo nvidia-smi -r -i 3",
        ),
        (
            replace(NOTEBOOK, state="Z", ppid=1),
            ": python3 (pid 4242 of ada, 2 h 1 min old)",
            "sudo fuser -v /dev/nvidia3; if nobody holds it: sudo nvidia-smi -r -i 3",
        ),
        (
            replace(NOTEBOOK, state="", absent="ended"),
            ": python3 (pid 4242 of ada, 2 h 1 min old)",
            "sudo fuser -v /dev/nvidia3; if nobody holds it: sudo nvidia-smi -r -i 3",
        ),
        (
            GpuProcess(4242, 66 * GIB, absent="ended"),
            "",
            "sudo fuser -v /dev/nvidia3; if nobody holds it: sudo nvidia-smi -r -i 3",
        ),
    ],
)
def test_a_dead_process_is_found_in_an_epilog_and_on_the_screen(process: GpuProcess, who: str, action: str) -> None:
    (finding,) = checked(idle(process))
    assert (finding.id, finding.severity) == ("gpu.leftover", "warning")
    assert finding.message == f"Dead process holds 66 GiB on GPU 3{who}" and finding.action == action
    assert "pid 4242" in finding.evidence[0]
    assert on_screen(idle(process), idle(process, at=NOW + 5)) == []
    (finding,) = on_screen(*(idle(process, at=NOW + at) for at in (0, 5, 10)))
    assert (finding.id, finding.severity, finding.action) == ("gpu.orphan", "warning", action)


def test_nothing_is_reset_that_has_to_be_replaced() -> None:
    failed = Remap(2, 1, False, True, False)
    for process in (replace(NOTEBOOK, state="Z"), replace(NOTEBOOK, state="", absent="ended")):
        (finding,) = checked(idle(process, remap=failed))
        assert "nvidia-smi -r" not in finding.action and "pool" in finding.action


def test_the_dead_of_a_gpu_at_work_are_found_and_its_living_are_not() -> None:
    work = gpu(3, "training", NOW, processes=[replace(NOTEBOOK, state="Z"), replace(NOTEBOOK, pid=7)])
    (finding,) = checked(sample(NOW, [work]))
    assert finding.message.startswith("Dead process holds") and "pid 7" not in str(finding)


def test_on_the_screen_a_notebook_is_worth_a_line_and_no_more() -> None:
    minute = [idle(NOTEBOOK, at=NOW + at) for at in range(0, 3600, 20)]
    (finding,) = on_screen(*minute)
    assert (finding.id, finding.severity) == ("gpu.idle_memory", "info")
    assert "pid 4242" in finding.message and finding.action
    quiet = judged([sample(NOW - 5, [gpu(3, "idle", NOW - 5)]), *minute[:3]], "gpu.")
    assert quiet == []  # for less than a minute
    assert [one.id for one in judged([sample(NOW - 5, [gpu(3, "idle", NOW - 5)]), *minute[:5]], "gpu.")] == [
        "gpu.idle_memory"
    ]


NOBODYS = [
    replace(NOTEBOOK, kind="graphics", name="Xorg", user="root"),
    replace(NOTEBOOK, name="gnome-shell", user="gdm"),
    replace(NOTEBOOK, name="nvidia-cuda-mps", user="root"),
    replace(NOTEBOOK, name="nv-hostengine", user="root"),
    replace(NOTEBOOK, probe="matmul"),
    replace(NOTEBOOK, memory_bytes=0),
    replace(NOTEBOOK, absent="closed"),
    GpuProcess(4242, GIB, absent="hidden"),
]


@pytest.mark.parametrize("process", NOBODYS, ids=lambda process: process.name or process.absent)
def test_what_is_not_left_by_a_job(process: GpuProcess) -> None:
    assert checked(idle(process)) == []
    assert on_screen(*(idle(process, at=NOW + at) for at in range(0, 200, 10))) == []


@pytest.mark.parametrize(
    "process",
    [
        replace(NOTEBOOK, name="nvidia-cuda-mps"),  # a job's own
        replace(NOTEBOOK, kind="mps"),
        replace(NOTEBOOK, user="root"),
        replace(NOTEBOOK, memory_bytes=None),
        replace(NOTEBOOK, state="T"),
        replace(NOTEBOOK, ppid=1),
        GpuProcess(4242, GIB, absent="elsewhere"),
        GpuProcess(4242, GIB),  # an agent of another version
    ],
    ids=lambda process: process.name or process.absent,
)
def test_what_may_be_left_by_a_job(process: GpuProcess) -> None:
    (finding,) = checked(idle(process))
    assert finding.id == "gpu.leftover" and "4242" in finding.message
    assert "4242" in finding.action


def test_of_another_namespace_it_is_said_that_it_cannot_be_told() -> None:
    (finding,) = checked(idle(GpuProcess(4242, GIB, absent="elsewhere")))
    assert "its owner is unknown, the pids (4242) are of another PID namespace" in finding.message
    assert finding.severity == "info"
    assert "kill" not in finding.action and "outside of this container" in finding.action


@pytest.mark.parametrize(
    ("pids", "ranks", "found"), [((8001,), 1, False), ((8001, 8002), 2, False), ((8001, 8002), 1, True)]
)
def test_as_many_ranks_as_foreign_pids_are_the_same(pids: tuple[int, ...], ranks: int, found: bool) -> None:
    """In a container NVML names the ranks by the host's pids."""
    own = [replace(rank(index, NOW), gpus=[3], gpus_by="open devices") for index in range(ranks)]
    apart = [GpuProcess(pid, GIB, absent="elsewhere") for pid in pids]
    assert bool(checked(replace(idle(*apart), ranks=own))) is found


def test_a_stranger_beside_pids_of_another_namespace_is_told_apart() -> None:
    findings = checked(idle(NOTEBOOK, GpuProcess(8001, GIB, absent="elsewhere")))
    kills = {finding.severity: "kill" in finding.action for finding in findings}
    assert kills == {"warning": True, "info": False}
    assert "8001" not in "".join(finding.action for finding in findings if finding.severity == "warning")


def test_ranks_are_no_leftovers_however_idle() -> None:
    """At start-up, in a debugger, in a barrier; nor what they started, nor what their job has beside them."""
    ranks = [rank(index, NOW) for index in range(8)]
    ranks[5].state, ranks[3].children = "t", [9001]
    server = replace(NOTEBOOK, pid=9002, user=ranks[2].user)
    changes = {3: {"processes": [GpuProcess(9001, GIB, name="python3", user="x")]}, 2: {"processes": [server]}}
    waiting = node_h100(NOW, changes, load="checkpoint", ranks=ranks)
    assert waiting.gpus[0].busy == 0 and checked(waiting) == []
    stranger = {2: {"processes": [replace(server, user="somebody")]}}
    (finding,) = checked(node_h100(NOW, stranger, load="checkpoint", ranks=ranks))
    assert finding.subject == "GPU 2" and "somebody" in finding.message


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"busy": 0.0, "sm_active": None}, True),
        ({"busy": None, "sm_active": 0.001}, True),
        ({"busy": 0.04, "sm_active": 0.0}, True),  # telemetry itself
        ({"busy": 1.0, "sm_active": 0.0}, False),  # a kernel that is there counts, however small
        ({"busy": 1.0, "sm_active": 0.0071}, False),  # a kernel of one block on an H100
        ({"busy": None, "sm_active": 0.0049}, False),  # the same on the largest chip
        ({"busy": 0.4, "sm_active": None}, False),
        ({"busy": 0.4, "sm_active": 0.3}, False),
        ({"busy": None, "sm_active": None}, False),
        ({"state": "lost"}, False),
    ],
)
def test_only_an_idle_gpu_has_leftovers(fields: dict[str, Any], found: bool) -> None:
    assert bool(checked(idle(NOTEBOOK, **fields))) is found


def test_idle_means_in_the_whole_look() -> None:
    works = idle(NOTEBOOK, busy=0.9, sm_active=0.5)
    assert checked(works, idle(NOTEBOOK, at=NOW + 0.5)) == []
    assert checked(idle(NOTEBOOK), replace(works, sampled_at=NOW + 0.5)) == []
    unknown = idle(NOTEBOOK, busy=None, sm_active=None)
    assert [one.id for one in checked(unknown, idle(NOTEBOOK, at=NOW + 0.5))] == ["gpu.leftover"]


def test_of_a_gpu_in_mig_mode_the_instance_counts() -> None:
    def in_mig(active: float | None) -> Sample:
        instances = [MigInstance(0, gpu_instance=1, sm_active=0.9), MigInstance(1, gpu_instance=2, sm_active=active)]
        process = replace(NOTEBOOK, gpu_instance=2)
        return idle(process, mig_enabled=True, mig_pending=True, mig_instances=instances, busy=None, sm_active=None)

    assert [one.id for one in checked(in_mig(0.0))] == ["gpu.leftover"]
    assert checked(in_mig(0.0))[0].message.startswith("MIG 1 of GPU 3 is idle, but python3 (pid 4242 of ada")
    assert checked(in_mig(0.5)) == [] and checked(in_mig(None)) == []
    unread = in_mig(None)
    unread.gpus[0].sm_active = 0.0  # of all of it, which says nothing of what the instance does
    assert checked(unread) == []


@pytest.mark.parametrize(
    ("what", "rules"),
    [
        ("gpu.3.processes", set(OWN)),
        ("gpu.3.busy", {"gpu.idle_memory", "gpu.leftover"}),
        ("gpu processes", {"gpu.leftover", "gpu.orphan"}),
        ("ranks", {"gpu.idle_memory", "gpu.leftover", "gpu.orphan"}),
    ],
)
def test_without_what_they_need_they_are_unknown(what: str, rules: set[str]) -> None:
    unknown = replace(idle(NOTEBOOK), gaps=[Gap(what, "no permission")])
    assert {rule for one in unknowns_of(unknown) for rule in one.rules} & set(OWN) == rules


def test_a_healthy_machine_has_none() -> None:
    assert checked(*(node_h100(NOW + at, load="training") for at in (0, 1, 2))) == []
    assert checked(sample(NOW, [GpuSample(index) for index in range(8)])) == []
