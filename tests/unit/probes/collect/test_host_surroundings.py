"""Virtual machines, containers and jobs, from the files that each of them shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.collect.host.machine import in_container, is_virtual, read_surroundings, sees_all_processes

FLAGS = "processor : 0\nflags\t\t: fpu vme {} sse\n\nprocessor : 1\n"
ID = "3f" * 32


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("files", "virtual"),
    [
        ({"proc/cpuinfo": FLAGS.format("hypervisor")}, True),
        ({"proc/cpuinfo": FLAGS.format("")}, False),
        ({"sys/class/dmi/id/sys_vendor": "Supermicro", "proc/cpuinfo": FLAGS.format("")}, False),
        ({"sys/class/dmi/id/sys_vendor": "QEMU"}, True),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "p5.metal"}, False),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "proc/cpuinfo": FLAGS.format("hypervisor")}, True),
        ({"sys/class/dmi/id/product_name": "Google Compute Engine"}, True),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation",
                "sys/class/dmi/id/product_name": "Virtual Machine",
            },
            True,
        ),
        ({"sys/hypervisor/type": "xen"}, True),
        ({"sys/class/dmi/id/sys_vendor": "NVIDIA", "proc/cpuinfo": "Features : fp asimd\n"}, False),
        ({"proc/device-tree/compatible": "nvidia,p3737-0000\0nvidia,tegra234\0"}, False),
        ({"proc/device-tree/compatible": "linux,dummy-virt\0"}, True),
        ({"proc/cpuinfo": "Features : fp asimd\n"}, None),
        ({}, None),
    ],
)
def test_virtual_machines(tmp_path: Path, files: dict[str, str], virtual: bool | None) -> None:
    assert is_virtual(write(tmp_path, files)) is virtual


@pytest.mark.parametrize(
    ("line", "container", "confined"),
    [
        ("0::/", False, False),
        ("0::/user.slice/user-1000.slice/session-3.scope", False, False),
        ("0::/system.slice/sshd.service", False, False),
        ("0::/system.slice/docker.service", False, False),
        ("0::/system.slice/slurmd.service", False, False),
        ("0::/init.scope", False, False),
        (f"0::/docker/{ID}", True, True),
        (f"0::/system.slice/docker-{ID}.scope", True, True),
        (f"12:memory:/kubepods/burstable/pod1/{ID}", True, True),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", True, True),
        (f"0::/system.slice/containerd.service/kubepods-burstable-pod1.slice:cri-containerd:{ID}", True, True),
        (f"0::/machine.slice/libpod-{ID}.scope", True, True),
        ("0::/lxc.payload.node", True, True),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", False, True),
        ("9:memory:/slurm/uid_1000/job_4711/step_0\n1:name=systemd:/system.slice", False, True),
    ],
)
def test_cgroups_tell_of_containers_and_jobs(tmp_path: Path, line: str, container: bool, confined: bool) -> None:
    root = write(tmp_path, {"proc/self/cgroup": line + "\n"})
    assert in_container(root) is container
    assert read_surroundings(root).values["is_confined"] is confined


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv", ".singularity.d/x"])
def test_files_that_containers_leave(tmp_path: Path, mark: str) -> None:
    assert in_container(write(tmp_path, {mark: "", "proc/self/cgroup": "0::/\n"}))


@pytest.mark.parametrize(("namespace", "first"), [("cgroup", 4026531835), ("pid", 4026531836)])
def test_namespaces_of_its_own(tmp_path: Path, namespace: str, first: int) -> None:
    link = tmp_path / "proc/self/ns" / namespace
    link.parent.mkdir(parents=True)
    link.symlink_to(f"{namespace}:[{first}]")
    assert not in_container(str(tmp_path))
    link.unlink()
    link.symlink_to(f"{namespace}:[4026532999]")
    assert in_container(str(tmp_path))


REST = " 0" * 43 + "\n"
KTHREADD = "2 (kthreadd) S 0 0 0 0 -1 2129984" + REST


@pytest.mark.parametrize(
    ("namespace", "second", "sees_all"),
    [
        (4026531836, "", True),
        (4026532999, "", False),
        (4026532999, KTHREADD, True),  # the host's /proc, mounted into a container
        (4026532999, "2 (kthreadd) S 1 0 0 0 -1 4194560" + REST, False),  # one that only calls itself so
        (None, KTHREADD, True),
        (None, "2 (x", None),
        (None, "", None),
    ],
)
def test_whether_all_processes_of_the_machine_show(
    tmp_path: Path, namespace: int | None, second: str, sees_all: bool | None
) -> None:
    link = tmp_path / "proc/self/ns/pid"
    link.parent.mkdir(parents=True)
    if namespace is not None:
        link.symlink_to(f"pid:[{namespace}]")
    assert sees_all_processes(write(tmp_path, {"proc/2/stat": second})) is sees_all


def test_where_nothing_tells_both_are_unknown(tmp_path: Path) -> None:
    reading = read_surroundings(str(tmp_path))
    assert reading.values == {}
    assert {gap.what: gap.kind for gap in reading.gaps} == {
        "host.is_virtual": "unknown",
        "host.is_confined": "unknown",
        "host.sees_all_processes": "unknown",
    }
