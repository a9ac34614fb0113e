"""Rules about the host and its ranks: each fires on its signal, and not on the healthy input beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.host import cpu, memory, storage, system
from mltop.probes.judge.health.job import ranks as job_ranks
from mltop.probes.judge.health.registry import rules_of
from mltop.probes.judge.health.unknowns import unknowns_of
from mltop.probes.model import (
    BlockedProcess,
    CgroupSample,
    FilesystemSample,
    Finding,
    Gap,
    KernelEvent,
    Pressure,
    Sample,
)
from mltop.probes.model.ranks import kernel_list
from tests.builders.evaluated import evaluate
from tests.builders.health_samples import GIB, host, node_h100, rank

RULES = rules_of(cpu, memory, storage, system, job_ranks)


def judged(*samples: Sample, eager: bool = True) -> list[Finding]:
    """What fires at the last of them."""
    health = Health(eager=eager)
    for one in samples:
        health.see(one)
    return [finding for finding in health.findings() if finding.until is None]


def held(seconds: float, step_s: float = 5.0, start: float = 1000.0, **changes: Any) -> list[Finding]:
    """A node that is so for a while."""
    count = int(seconds / step_s) + 1
    return judged(*(node_h100(start + step_s * number, **changes) for number in range(count)), eager=False)


def event(kind: str, at: float, subject: str = "", text: str = "", **more: Any) -> KernelEvent:
    return KernelEvent(at, kind, subject, None, text, **more)


def mount(path: str = "/ckpt", left: float = 0.5, inodes_left: float = 0.9, **more: Any) -> FilesystemSample:
    whole = FilesystemSample(path, "server:/x", "nfs4", True, False, 100 * GIB, int(left * 100 * GIB), 1000, 0)
    return replace(whole, inodes_free=int(inodes_left * 1000), **more)


def group(throttled: float | None = None, kills: int = 0) -> CgroupSample:
    return CgroupSample("/job", 16.0, throttled, 10 * GIB, 20 * GIB, kills)


# (rule, severity, words of the message, what makes it fire, what is close and healthy)
STATES: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("cpu.load", "warning", "load 500 on 192 cores", {"load_1m": 500.0}, {"load_1m": 380.0}),
    ("cpu.load", "warning", "CPU pressure 34 %", {"pressure": Pressure(cpu_some=0.34)}, {"pressure": Pressure(0.19)}),
    ("cpu.cgroup", "warning", "34 % of its periods", {"cgroups": [group(0.34)]}, {"cgroups": [group(0.04)]}),
    ("cpu.governor", "info", "powersave", {"governor": "powersave"}, {"governor": None}),
    (
        "cpu.dstate",
        "critical",
        "rank 5 (pid 4005) stuck in the kernel for 4 min in nfs_wait",
        {"blocked": [BlockedProcess(4005, "python", 240.0, "nfs_wait", 5)]},
        {"blocked": [BlockedProcess(4005, "python", 45.0, "nfs_wait", 5)]},
    ),
    (
        "cpu.dstate",
        "warning",
        "dd (pid 7)",
        {"blocked": [BlockedProcess(7, "dd", 301.0)]},
        {"blocked": [BlockedProcess(7, "dd", 299.0)]},
    ),
    (
        "mem.pressure",
        "warning",
        "12 % of the time",
        {"pressure": Pressure(0.0, 0.12, 0.0)},
        {"pressure": Pressure(0.0, 0.08, 0.0)},
    ),
    (
        "mem.pressure",
        "critical",
        "short of memory",
        {"memory_available_bytes": 50 * GIB},
        {"memory_available_bytes": 90 * GIB},
    ),
    ("mem.swap", "warning", "swapping", {"swap_in_bytes_per_s": 1e6}, {"swap_total_bytes": 8 * GIB}),
    ("mem.swap", "info", "of it in use", {"swap_used_bytes": GIB}, {"swap_used_bytes": 0}),
    ("mem.shm", "warning", "/dev/shm 85 % full", {"shm_used_bytes": 870 * GIB}, {"shm_used_bytes": 700 * GIB}),
    ("mem.shm", "critical", "SIGBUS", {"shm_used_bytes": 1000 * GIB}, {"shm_used_bytes": None}),
    (
        "mem.hugepages",
        "info",
        "300 GiB",
        {"huge_pages_free_bytes": 300 * GIB},
        {"huge_pages_free_bytes": 100 * GIB},
    ),
    (
        "mem.mce",
        "warning",
        "1 uncorrected",
        {"memory_errors_uncorrected": 1},
        {"memory_errors_corrected": 25},
    ),
    ("disk.full", "warning", "85 % full, 15 GiB left", {"filesystems": [mount(left=0.15)]}, {"filesystems": [mount()]}),
    ("disk.full", "critical", "97 % full", {"filesystems": [mount(left=0.03)]}, {"filesystems": [mount(left=0.21)]}),
    (
        "disk.full",
        "warning",
        "90 % of its inodes",
        {"filesystems": [mount(inodes_left=0.1)]},
        {"filesystems": [mount(left=0.0, read_only=True)]},
    ),
    (
        "fs.stall",
        "critical",
        "has not answered for 1 min 35 s",
        {"filesystems": [mount(stalled_s=95.0)]},
        {"filesystems": [mount()]},
    ),
    ("fs.stall", "warning", "for 3 s", {"filesystems": [mount(stalled_s=3.0)]}, {"filesystems": []}),
    ("fs.stall", "critical", "Lustre", {"lustre_health": "NOT HEALTHY"}, {"lustre_health": "healthy"}),
    ("time.sync", "critical", "4.2 s", {"clock_error_s": 4.2}, {"clock_error_s": 0.05}),
    ("time.sync", "warning", "0.3 s", {"clock_error_s": 0.3}, {"clock_error_s": None}),
    ("time.sync", "info", "not synchronized", {"clock_synchronized": False}, {"clock_synchronized": None}),
    ("host.ptrace", "info", "need root", {"ptrace_scope": 2}, {"ptrace_scope": 1}),
    ("host.fds", "warning", "file descriptors", {"open_files": 85, "open_files_max": 100}, {"open_files": 31_000}),
    ("host.fds", "critical", "of the machine's 100", {"open_files": 96, "open_files_max": 100}, {"open_files": None}),
    ("host.clocksource", "info", "hpet", {"clocksource": "hpet"}, {"clocksource": "kvm-clock"}),
]


@pytest.mark.parametrize(("rule", "severity", "words", "sick", "well"), STATES)
def test_a_state_of_the_host(rule: str, severity: str, words: str, sick: dict[str, Any], well: dict[str, Any]) -> None:
    hold_s = next(one.hold_s for one in RULES if one.id == rule)
    found = [one for one in held(hold_s + 5, host=sick) if one.id == rule]
    assert [(one.severity, words in one.message) for one in found] == [(severity, True)], found
    assert found[0].action
    assert held(hold_s + 5, host=well) == []


# (rule, severity, words, the ranks, those of the healthy node beside it)
RANKS: list[tuple[str, str, str, list[Any], list[Any]]] = [
    (
        "job.affinity",
        "critical",
        "all 8 ranks pinned to core 0",
        [rank(index, cpus_allowed="0") for index in range(8)],
        [rank(index, cpus_allowed=f"{index * 12}-{index * 12 + 11}") for index in range(8)],
    ),
    ("job.affinity", "warning", "rank 3 has core 7 only", [rank(3, cpus_allowed="7")], [rank(3, cpus_allowed="7,8")]),
    (
        "job.numa",
        "warning",
        "rank 5 runs on cores 0-47",
        [rank(5, cpus_allowed="0-47")],
        [rank(5, cpus_allowed="40-60")],
    ),
    (
        "job.numa",
        "warning",
        "ranks 4-7 run on cores 0-47, their GPUs",
        [rank(index, cpus_allowed="0-47") for index in range(8)],
        [rank(index, cpus_allowed="0-47") for index in range(4)],
    ),
    (
        "job.bad_env",
        "warning",
        "CUDA_LAUNCH_BLOCKING=1",
        [rank(index, settings={"CUDA_LAUNCH_BLOCKING": "1"}) for index in range(8)],
        [rank(0, settings={"CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG": "INFO"})],
    ),
    (
        "job.bad_env",
        "warning",
        "NCCL uses sockets beside 8",
        [rank(0, world_size=16, settings={"NCCL_IB_DISABLE": "1"})],
        [rank(0, world_size=8, settings={"NCCL_IB_DISABLE": "1"})],
    ),
    (
        "host.memlock",
        "warning",
        "limited to 64 KiB",
        [rank(0, memlock_limit_bytes=65536)],
        [rank(0, memlock_limit_bytes=1800 * GIB), rank(1, memlock_limit_bytes=None)],
    ),
    (
        "host.fds",
        "warning",
        "rank 0: 900 of its 1024",
        [rank(0, open_files=900, open_files_limit=1024)],
        [rank(0, open_files=700, open_files_limit=1024)],
    ),
    (
        "job.threads",
        "info",
        "8 ranks with 72 processes share 16 CPUs",
        [rank(index, cpus_allowed="0-7,48-55", children=list(range(8))) for index in range(8)],
        [rank(index, cpus_allowed="0-95", children=list(range(8))) for index in range(8)],
    ),
]


@pytest.mark.parametrize(("rule", "severity", "words", "sick", "well"), RANKS)
def test_a_state_of_the_ranks(rule: str, severity: str, words: str, sick: list[Any], well: list[Any]) -> None:
    hold_s = next(one.hold_s for one in RULES if one.id == rule)
    found = [one for one in held(hold_s + 5, ranks=sick) if one.id == rule]
    assert [(one.severity, words in one.message) for one in found] == [(severity, True)], found
    assert not [one for one in held(hold_s + 5, ranks=well) if one.id == rule]


EVENTS = [
    ("cpu.hung", "warning", "python3:268911", event("hung_task", 990.0, "python3:268911", "blocked for 120 s")),
    ("cpu.hung", "critical", "locked up", event("soft_lockup", 990.0, "CPU#3")),
    (
        "mem.oom",
        "critical",
        "kernel killed pt_data_worker (41233) for lack of memory, cgroup limit",
        event("oom", 990.0, "", "oom-kill:constraint=CONSTRAINT_MEMCG", process="pt_data_worker", pid=41233),
    ),
    ("disk.ro", "critical", "md0 was remounted", event("remount_ro", 990.0, "md0")),
    ("disk.io", "critical", "nvme4n1 is failing", event("disk_io", 990.0, "nvme4n1")),
    ("fs.stall", "critical", "NFS 10.0.4.11 not answering for 10 s", event("nfs", 990.0, "10.0.4.11")),
]


@pytest.mark.parametrize(("rule", "severity", "words", "line"), EVENTS)
def test_what_the_kernel_says_is_told_for_an_hour(rule: str, severity: str, words: str, line: KernelEvent) -> None:
    (found,) = judged(node_h100(1000.0, kernel_events=[line]))
    assert (found.id, found.severity, found.since) == (rule, severity, 990.0)
    assert words in found.message
    assert judged(node_h100(1000.0 + 3700.0, kernel_events=[line])) == []


def test_an_nfs_server_that_answers_again_is_fine() -> None:
    lines = [event("nfs", 900.0, "10.0.4.11"), event("nfs_ok", 950.0, "10.0.4.11")]
    assert judged(node_h100(1000.0, kernel_events=lines)) == []
    again = [*lines, event("nfs", 960.0, "10.0.4.11")]
    assert [one.id for one in judged(node_h100(1000.0, kernel_events=again))] == ["fs.stall"]


def test_oom_kills_of_before_are_old_and_new_ones_count_where_the_log_is_silent() -> None:
    assert judged(*(node_h100(1000.0 + 5 * step, host={"oom_kills": 7}) for step in range(3))) == []
    (found,) = judged(node_h100(1000.0), node_h100(1005.0, host={"oom_kills": 4}))
    assert found.message == "kernel killed 2 processes for lack of memory within the hour"
    inside = [node_h100(1000.0 + 5 * step, host={"cgroups": [group(kills=step)]}) for step in range(2)]
    assert [one.id for one in judged(*inside)] == ["mem.oom"]


def test_kills_of_which_only_counters_tell_name_the_cgroup() -> None:
    def at(now: float, kills: dict[str, int], host: int = 2) -> Sample:
        groups = [replace(group(), path=path, oom_kills=count) for path, count in kills.items()]
        return node_h100(now, host={"cgroups": groups, "oom_kills": host})

    (found,) = judged(at(1000.0, {"/job_1": 0, "/job_2": 3}), at(1010.0, {"/job_1": 2, "/job_2": 3}, host=4))
    assert found.message == "kernel killed 2 processes for lack of memory in cgroup /job_1 within the hour"
    assert found.evidence == ["/job_1: oom_kill +2"]
    (found,) = judged(at(1000.0, {"/job_1": 0, "/job_2": 3}), at(1010.0, {"/job_1": 1, "/job_2": 4}))
    assert found.message == "kernel killed 2 processes for lack of memory in cgroups /job_1, /job_2 within the hour"
    (found,) = judged(at(1000.0, {"/a": 0, "/a/b": 0}), at(1010.0, {"/a": 1, "/a/b": 1}))
    assert "killed a process" in found.message, "the outer one counts what happens in the inner one"


HUNG = event("hung_task", 990.0, "python", "task python:4003 blocked for more than 120 seconds", pid=4003)
NFS, NFS_OK = event("nfs", 950.0, "filer"), event("nfs_ok", 1200.0, "filer")


def test_a_hung_task_is_told_until_it_is_seen_to_go_on() -> None:
    """The kernel has no line for that: a file server that answers has one, and the task itself is looked at."""

    def hung(*samples: Sample) -> bool:
        return "cpu.hung" in str([(one.id, one.folded) for one in judged(*samples)])

    def at(now: float, *lines: KernelEvent, blocked: bool = False, **fields: Any) -> Sample:
        processes = [BlockedProcess(4003, "python", now - 900, "nfs_wait")] if blocked else []
        return node_h100(now, kernel_events=[HUNG, *lines], host={"blocked": processes}, **fields)

    nobody: dict[str, Any] = {"ranks": []}
    assert hung(at(1000.0, **nobody)), "nobody knows"
    assert hung(at(1000.0, blocked=True), at(1010.0, blocked=True))
    assert not hung(at(1000.0, blocked=True, **nobody), at(1010.0, **nobody)), "it was seen blocked, and is no more"
    assert not hung(at(1000.0)), "it is a rank, and runs"
    assert hung(at(1000.0, ranks=[rank(3, pid=4003, state="D")]))
    assert hung(at(1000.0, NFS, **nobody))
    assert not hung(at(1300.0, NFS, NFS_OK, **nobody)), "the server that it waited for answers"
    before = event("nfs_ok", 960.0, "filer")
    assert hung(at(1300.0, NFS, before, **nobody)), "that was before it hung"
    assert hung(at(1300.0, NFS, event("nfs_ok", 1200.0, "other"), **nobody))


def test_a_task_of_another_pid_that_goes_on_is_another_one() -> None:
    second = replace(HUNG, pid=4999)
    (found,) = judged(node_h100(1000.0, kernel_events=[HUNG, second]))
    assert "(pid 4999)" in found.message


ALONE, NO_PARTNER = {"world_size": 1, "local_world_size": 1}, {"world_size": 8, "local_world_size": 1}
PCIE_BOX = {index: {"nvlink": {"links": []}} for index in range(8)}
GEFORCE = {index: {"nvlink": {"links": []}, "name": "NVIDIA GeForce RTX 4090"} for index in range(8)}


@pytest.mark.parametrize(
    ("setting", "ranks", "fields", "is_told"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, {}, {}, True),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, {}, {}, False),
        ({"CUDA_LAUNCH_BLOCKING": ""}, {}, {}, False),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, {}, {"gpus": []}, False),  # no GPU, no launches
        ({"NCCL_P2P_DISABLE": "1"}, {}, {}, True),
        ({"NCCL_P2P_DISABLE": "0"}, {}, {}, False),
        ({"NCCL_P2P_DISABLE": "true"}, {}, {}, False),  # NCCL reads a number
        ({"NCCL_P2P_DISABLE": "1"}, ALONE, {}, False),
        ({"NCCL_P2P_DISABLE": "1"}, NO_PARTNER, {}, False),  # nobody on this node
        ({"NCCL_P2P_DISABLE": "1"}, {}, {"gpus": PCIE_BOX}, True),
        ({"NCCL_P2P_DISABLE": "1"}, {}, {"gpus": GEFORCE}, False),  # the driver allows none anyway
        ({"NCCL_SHM_DISABLE": "1"}, {}, {}, False),  # NVLink carries it
        ({"NCCL_SHM_DISABLE": "1"}, {}, {"gpus": PCIE_BOX}, True),
        ({"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}, {}, {}, True),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, {}, {}, True),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, ALONE, {}, False),
        ({"TORCH_NCCL_BLOCKING_WAIT": "false"}, {}, {}, False),
        ({"NCCL_IB_DISABLE": "1"}, {"world_size": 16}, {}, True),
        ({"NCCL_IB_DISABLE": "1"}, {"world_size": 16}, {"links": []}, False),
        ({"NCCL_IB_DISABLE": "1"}, {}, {}, False),  # one node
        ({"NCCL_DEBUG": "INFO"}, {}, {}, False),
    ],
)
def test_a_setting_that_changes_nothing_here_is_no_trouble(
    setting: dict[str, str], ranks: dict[str, Any], fields: dict[str, Any], is_told: bool
) -> None:
    changes = fields.get("gpus")
    sample = node_h100(1000.0, changes or None, ranks=[rank(index, settings=setting, **ranks) for index in range(8)])
    if changes == []:
        sample.gpus = []
    if "links" in fields:
        sample.links = []
    assert ("job.bad_env" in [one.id for one in judged(sample)]) is is_told


def test_a_setting_of_one_rank_costs_all_that_talk_to_it() -> None:
    ranks = [rank(index, settings={"NCCL_P2P_DISABLE": "1"} if index == 0 else {}) for index in range(8)]
    (found,) = judged(node_h100(1000.0, ranks=ranks))
    assert found.id == "job.bad_env" and "NCCL_P2P_DISABLE=1 is set on rank 0 only" in found.message


def test_very_many_dead_processes_are_told() -> None:
    assert judged(node_h100(1000.0, host={"zombies": 900})) == []
    (found,) = judged(node_h100(1000.0, host={"zombies": 31_000}))
    assert (found.id, found.message) == (
        "host.fds",
        "31,000 dead processes wait for their parents: process numbers run out",
    )


def test_uncorrected_host_memory_errors_that_grow_are_critical_and_corrected_ones_count_when_new() -> None:
    grown = [node_h100(1000.0 + step, host={"memory_errors_uncorrected": step + 1}) for step in range(2)]
    assert [one.severity for one in judged(*grown)] == ["critical"]
    many = [node_h100(1000.0 + step, host={"memory_errors_corrected": 100 + 12 * step}) for step in range(2)]
    assert [(one.id, one.severity) for one in judged(*many)] == [("mem.mce", "warning")]


def test_a_rank_that_writes_a_checkpoint_is_in_state_d_and_moves() -> None:
    def at(second: float, moves: bool) -> Sample:
        blocked = [BlockedProcess(4000, "python", 30.0 + second, "io_schedule", 0)]
        writing = rank(0, state="D", voluntary_switches=int(second) if moves else 7)
        return node_h100(1000.0 + second, host={"blocked": blocked}, ranks=[writing])

    assert judged(*(at(second, True) for second in range(90))) == []
    assert [one.id for one in judged(*(at(second, False) for second in range(90)))] == ["cpu.dstate"]


def test_a_disk_that_fills_up_is_told_before_it_is_full() -> None:
    def at(minute: float, per_hour: float) -> Sample:
        left = 0.7 - per_hour * minute / 60
        return node_h100(1000.0 + 60 * minute, host={"filesystems": [mount(left=left)]})

    (found,) = judged(*(at(minute, 0.1) for minute in range(60)))
    assert (found.id, found.severity) == ("disk.full", "warning") and "/ckpt full in 6 h" in found.message
    assert judged(*(at(minute, 0.01) for minute in range(60))) == [], "days away"
    assert judged(*(at(minute, 0.5) for minute in range(10))) == [], "one checkpoint"


def test_a_mount_that_went_read_only() -> None:
    def at(second: float, read_only: bool) -> Sample:
        return node_h100(1000.0 + second, host={"filesystems": [mount("/local", read_only=read_only)]})

    assert [one.id for one in judged(at(0, False), at(10, True))] == ["disk.ro"]
    assert judged(at(0, True), at(10, True)) == [], "it always was"


def test_memory_that_grows_all_the_time_and_a_model_that_is_loaded() -> None:
    def at(minute: float, rss: float) -> Sample:
        ranks = [rank(index, rss_bytes=int(rss)) for index in range(8)]
        return node_h100(1000.0 + 60 * minute, ranks=ranks, host={"memory_available_bytes": 100 * GIB})

    leak = judged(*(at(minute, (10 + minute * 0.1) * GIB) for minute in range(40)))
    assert [one.id for one in leak] == ["job.mem_growth"]
    assert "6 GiB an hour and 7 other ranks" in leak[0].message
    assert judged(*(at(minute, min(20, 10 + minute) * GIB) for minute in range(40))) == []


def test_what_a_stalled_filesystem_explains_is_one_line() -> None:
    blocked = [BlockedProcess(4000 + index, "python", 90.0, "nfs_wait", index) for index in range(8)]
    sick = {"blocked": blocked, "filesystems": [mount(stalled_s=95.0)]}
    (found,) = judged(node_h100(1000.0, host=sick))
    assert found.id == "fs.stall" and len(found.folded) == 8


@pytest.mark.parametrize(
    ("skews", "message"),
    [
        ([-4.2] * 5, "clock 4.2 s behind the machine that watches"),
        ([4.0, 4.3, 4.3, 4.1, 4.2], "clock 4.0 s ahead of the machine that watches"),
        ([-4.2] * 4, ""),  # not yet
        ([-4.2], ""),
        ([-9.0, -4.0, -1.5, -1.2, -1.1], ""),  # each came a little sooner: not its clock
        ([0.4] * 9, ""),
        ([-4.2] * 4 + [-0.1], ""),
        ([3.0, -3.0, 3.0, -3.0, 3.0], ""),
    ],
)
@pytest.mark.parametrize("every_s", [0.5, 1.0, 5.0, 40.0])
def test_a_clock_is_accused_when_samples_agree(skews: list[float], message: str, every_s: float) -> None:
    found = judged(*(node_h100(1000.0 + every_s * place, clock_skew_s=skew) for place, skew in enumerate(skews)))
    assert [one.message for one in found] == ([message] if message else [])


def test_a_clock_source_that_most_nodes_do_not_have() -> None:
    nodes = [node_h100(1000.0, node=f"n{number}") for number in range(4)]
    other = node_h100(1000.0, node="n9", host={"clocksource": "kvm-clock"})
    assert [(one.node, one.id) for one in evaluate([*nodes, other])] == [("n9", "host.clocksource")]


def test_what_cannot_be_read_is_unknown() -> None:
    gaps = [Gap("host.filesystems", "broken", "look"), Gap("kernel_log", "needs root", "sudo mltop")]
    unknown = {one.what: set(one.rules) for one in unknowns_of(node_h100(0.0, gaps=gaps))}
    assert {"disk.full", "disk.ro", "fs.stall"} <= unknown["host.filesystems"]
    assert {"cpu.hung", "disk.io"} <= unknown["kernel_log"]


@pytest.mark.parametrize("load", ["training", "capped", "spinning", "checkpoint", "idle"])
def test_a_healthy_node_has_nothing_to_say(load: str) -> None:
    own = {rule.id for rule in RULES}
    assert not [one for one in held(900.0, 10.0, load=load) if one.id in own]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_is_documented_and_tried(rule: Any) -> None:
    assert rule.meaning and rule.threshold and rule.source and rule.action
    tried = {one[0] for one in (*STATES, *RANKS, *EVENTS)} | {"job.mem_growth", "job.log"}
    assert rule.id in tried


def test_lists_of_the_kernel() -> None:
    assert kernel_list("0-3,8") == {0, 1, 2, 3, 8} and kernel_list("garbage") == kernel_list(None) == frozenset()
    assert host().cpu_count == 192
