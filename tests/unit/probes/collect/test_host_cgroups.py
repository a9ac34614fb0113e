"""Cgroups of both versions: where their files are, which limit counts, and how often they had to pause."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mltop.probes.collect.host.cgroups import USUAL, CgroupFolder, Cgroups, folder_of, parse_mounts
from mltop.probes.collect.ranks.details import cgroup_of, cgroup_paths
from mltop.probes.model import UNLIMITED, CgroupSample, RankSample

JOB = "/system.slice/slurmstepd.scope/job_7"
TASK = f"{JOB}/step_0/task_3"
V2 = "sys/fs/cgroup"
GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def cpu_stat(periods: int, throttled: int) -> str:
    return f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 9\n"


# A rank's cgroup without limits of its own, inside of a job that has them.
SLURM_V2 = {
    "proc/self/cgroup": "0::/user.slice\n",
    "proc/300/cgroup": f"0::{TASK}\n",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
    f"{V2}/user.slice/memory.max": "max\n",
    f"{V2}/user.slice/memory.current": "1000\n",
    f"{V2}/user.slice/memory.events": "low 0\noom 1\noom_kill 2\noom_group_kill 0\n",
    f"{V2}{TASK}/memory.max": "max\n",
    f"{V2}{TASK}/memory.current": "500\n",
    f"{V2}{TASK}/memory.events": "oom 0\noom_kill 1\n",
    f"{V2}{TASK}/cpu.max": "max 100000\n",
    f"{V2}{TASK}/cpu.stat": cpu_stat(0, 0),
    f"{V2}{JOB}/memory.max": f"{GIB}\n",
    f"{V2}{JOB}/memory.current": f"{GIB - 4096}\n",
    f"{V2}{JOB}/memory.stat": "anon 7\ninactive_file 4096\nactive_file 5\n",
    f"{V2}{JOB}/cpu.max": "1600000 100000\n",
    f"{V2}{JOB}/cpu.stat": cpu_stat(100, 10),
    f"{V2}/system.slice/memory.max": f"{2 * GIB}\n",
    f"{V2}/system.slice/cpu.max": "6400000 100000\n",
    f"{V2}/system.slice/cpu.stat": cpu_stat(100, 0),
}
RANK = RankSample(300, cgroup=TASK)


def test_limits_of_a_cgroup_are_the_lowest_on_its_path(tmp_path: Path) -> None:
    source = Cgroups(write(tmp_path, SLURM_V2))
    first = source.read(0.0, [RANK])
    assert [(gap.what, gap.kind) for gap in first.gaps] == [("host.cgroups.cpu", "starting")]
    own, task = first.values["cgroups"]
    assert own == CgroupSample("/user.slice", None, 0.0, 1000, UNLIMITED, 2)
    assert task == CgroupSample(TASK, 16.0, None, GIB - 8192, GIB, 1)
    write(tmp_path, {f"{V2}{JOB}/cpu.stat": cpu_stat(150, 27), f"{V2}{JOB}/memory.current": "4096\n"})
    second = source.read(10.0, [RANK])
    assert second.gaps == []
    task = second.values["cgroups"][1]
    assert (task.cpu_throttled_fraction, task.memory_used_bytes) == (pytest.approx(17 / 50), 0)
    write(tmp_path, {f"{V2}{JOB}/cpu.stat": cpu_stat(150, 27), f"{V2}{JOB}/cpu.max": "max 100000\n"})
    assert source.read(20.0, [RANK]).values["cgroups"][1].cpu_throttled_fraction == 0.0  # idle: no period passed
    assert source.read(31.0, [RANK]).values["cgroups"][1].cpu_limit_cores == 64.0  # limits are read again


def test_a_cgroup_whose_ranks_ended_is_forgotten_and_one_without_files_is_no_error(tmp_path: Path) -> None:
    source = Cgroups(write(tmp_path, SLURM_V2))
    assert len(source.read(0.0, [RANK, RankSample(301, cgroup=TASK)]).values["cgroups"]) == 2
    assert len(source.read(10.0, []).values["cgroups"]) == 1
    gone = source.read(20.0, [RankSample(999, cgroup="/gone")])
    assert gone.values["cgroups"][1] == CgroupSample("/gone")
    assert [gap.what for gap in gone.gaps] == ["host.cgroups"]


V1 = {
    "proc/self/cgroup": "4:memory:/slurm/job_1\n3:cpu,cpuacct:/slurm/job_1\n1:name=systemd:/x\n0::/\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes": "5000\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.stat": "inactive_file 1\ntotal_inactive_file 1000\n",
    "sys/fs/cgroup/memory/slurm/job_1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 6\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/cpu/slurm/job_1/cpu.cfs_quota_us": "250000\n",
    "sys/fs/cgroup/cpu/slurm/job_1/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/slurm/job_1/cpu.stat": "nr_periods 10\nnr_throttled 0\nthrottled_time 0\n",
    "sys/fs/cgroup/cpu/slurm/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/slurm/cpu.cfs_period_us": "100000\n",
}


def test_shares_that_cannot_be_told_are_said(tmp_path: Path) -> None:
    unread = {**SLURM_V2, f"{V2}{JOB}/cpu.stat": "strange", f"{V2}/system.slice/cpu.stat": "strange"}
    source = Cgroups(write(tmp_path / "unread", unread))
    for now in (0.0, 10.0):
        (gap,) = source.read(now, [RANK]).gaps
        assert (gap.what, gap.kind, gap.why) == ("host.cgroups.cpu", "unknown", f"cpu.stat of {TASK} cannot be read")
    memory_only = {name: text for name, text in V1.items() if "/cpu/" not in name}
    memory_only["proc/self/cgroup"] = "4:memory:/slurm/job_1\n"
    gaps = Cgroups(write(tmp_path / "without", memory_only)).read(0.0, []).gaps
    assert [(gap.what, gap.kind) for gap in gaps] == [("host.cgroups.cpu", "unsupported")]


def test_version_1(tmp_path: Path) -> None:
    source = Cgroups(write(tmp_path, V1))
    (own,) = source.read(0.0, []).values["cgroups"]
    assert own == CgroupSample("/slurm/job_1", 2.5, None, 4000, GIB, 6)
    assert source.read(10.0, []).values["cgroups"][0].cpu_throttled_fraction == 0.0


def test_the_root_of_version_2_has_no_limit(tmp_path: Path) -> None:
    reading = Cgroups(write(tmp_path, {"proc/self/cgroup": "0::/\n"})).read(0.0, [])
    assert reading.values["cgroups"] == [CgroupSample("/", None, 0.0, None, UNLIMITED, None)]
    assert reading.gaps == []


@pytest.mark.parametrize("limit", ["", "strange", "-5", "\0"])
def test_strange_limits_are_no_limits(tmp_path: Path, limit: str) -> None:
    files = {name: limit for name in SLURM_V2 if name.endswith(("memory.max", "cpu.max", "cpu.stat"))}
    reading = Cgroups(write(tmp_path, {**SLURM_V2, **files})).read(0.0, [RANK])
    assert [one.memory_limit_bytes for one in reading.values["cgroups"]] == [None, None]
    assert {gap.what: gap.kind for gap in reading.gaps} == {"host.cgroups.memory": "unsupported"}


def test_more_cgroups_than_are_shown_are_told(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", **{f"proc/{n}/cgroup": f"0::/j{n}\n" for n in range(50)}})
    reading = Cgroups(root).read(0.0, [RankSample(n, cgroup=f"/j{n}") for n in range(50)])
    assert len(reading.values["cgroups"]) == 40
    assert "51 cgroups are in use: 40 are shown" in [gap.why for gap in reading.gaps]


def test_without_cgroups_nothing_is_missed(tmp_path: Path) -> None:
    assert [gap.kind for gap in Cgroups(str(tmp_path)).read(0.0, []).gaps] == ["unsupported"]


def test_this_machines_own_cgroup() -> None:
    reading = Cgroups("").read(0.0, [RankSample(os.getpid(), cgroup=cgroup_of(Path("/proc/self/cgroup").read_text()))])
    (own,) = reading.values["cgroups"]
    assert own.path.startswith("/")
    assert own.memory_used_bytes is None or own.memory_used_bytes > 0


HYBRID = """31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
33 25 0:29 / /sys/fs/cgroup/memory rw shared:9 master:2 - cgroup cgroup rw,memory
34 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 25 0:31 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
"""
CONTAINER = "33 25 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("controller", "cgroup", "mountinfo", "found"),
    [
        ("memory", "4:memory:/a/b\n0::/c\n", HYBRID, CgroupFolder(1, "/sys/fs/cgroup/memory", "/a/b")),
        ("cpu", "4:memory:/a/b\n0::/c\n", HYBRID, CgroupFolder(2, "/sys/fs/cgroup/unified", "/c")),
        ("cpu", "3:cpuacct,cpu:/a\n0::/c\n", HYBRID, CgroupFolder(1, "/sys/fs/cgroup/cpu,cpuacct", "/a")),
        ("memory", "4:memory:/docker/abc\n", CONTAINER, CgroupFolder(1, "/sys/fs/cgroup/memory", "")),
        ("memory", "4:memory:/docker/abc/x\n", CONTAINER, CgroupFolder(1, "/sys/fs/cgroup/memory", "/x")),
        ("memory", "4:memory:/docker/abcdef\n", CONTAINER, None),
        ("cpu", "3:cpu:/a\n", CONTAINER, None),
        ("memory", "0::/../other\n", HYBRID, None),
        ("memory", "", HYBRID, None),
        ("memory", "strange\n0:\n", HYBRID, None),
    ],
)
def test_places(controller: str, cgroup: str, mountinfo: str, found: CgroupFolder | None) -> None:
    assert folder_of(controller, cgroup_paths(cgroup), parse_mounts(mountinfo)) == found


def test_without_mountinfo_they_are_where_they_usually_are() -> None:
    assert parse_mounts("") == []
    assert folder_of("memory", {"": "/a"}, list(USUAL)) == CgroupFolder(2, "/sys/fs/cgroup", "/a")
    assert CgroupFolder(2, "/c", "/a/b").and_above() == ["/c/a/b", "/c/a", "/c"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/user.slice/x\n", "/user.slice/x"),
        ("5:cpu:/c\n4:memory:/m\n0::/u\n", "/m"),
        ("5:cpu,cpuacct:/c\n0::/u\n", "/c"),
        ("1:name=systemd:/s\n0::/a:b\n", "/a:b"),
        ("", "/"),
        ("nonsense", "/"),
    ],
)
def test_the_one_name_of_a_cgroup(text: str, path: str) -> None:
    assert cgroup_of(text) == path
