"""Hardware that is no GPU node: what NVML does not have there is no fault, no exit 3 and no advice that cannot help."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.machine import FakeMachine
from tests.fakes.nvml.shapes import OTHERS, other
from tests.fakes.sysfs import GPU_BUSES
from tests.probing import MLTOP

UNIFIED = ("gb10", "thor", "orin")
DRIVER = "580.95.05"
MIB = 2**20


def run(machine: FakeMachine, *args: str) -> subprocess.CompletedProcess[str]:
    machine.nvml.write()
    env = {**machine.env(), "COLUMNS": "160"}
    return subprocess.run([*MLTOP, *args], env=env, capture_output=True, text=True, timeout=90, check=False)


def sample_of(machine: FakeMachine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(machine, "snapshot", "--json").stdout)["samples"][0]
    return found


def machine_of(directory: Path, gpus: int = 1, ranks: bool = False) -> FakeMachine:
    """With as many GPUs on PCI as in the driver."""
    made = FakeMachine(directory, gpus=gpus, ranks=ranks)
    for bus in GPU_BUSES[gpus:]:
        made.sys.remove_pci(f"0000:{bus}:00.0")
    return made


@pytest.mark.parametrize("kind", OTHERS)
def test_what_such_hardware_does_not_have_is_not_missed(tmp_path: Path, kind: str) -> None:
    machine = machine_of(tmp_path)
    other(kind, machine.nvml)
    if kind == "wsl2":
        machine.write_proc("sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n")
        machine.sys.remove_pci(machine.sys.gpu_at(0))
        machine.proc.pid_namespace(4026532200)
        machine.proc.python(79, "fit.py")
        machine.nvml.set("gpu.0.busy_percent", 40)
    done = run(machine, "check")
    assert (done.returncode, done.stdout) == (0, "")
    gpu = sample_of(machine)["gpus"][0]
    assert (gpu["name"], gpu["state"]) == (OTHERS[kind]["name"], "ok")
    assert gpu["unified_memory"] is (kind in UNIFIED)
    assert (gpu["memory_total_bytes"] is None) is (kind in UNIFIED)
    if kind in ("gb10", "geforce"):  # one of each kind of memory: what is printed goes by that alone
        shown = run(machine, "snapshot").stdout
        assert ("unified" in shown) is (kind in UNIFIED)
        assert "dcgm" not in shown.lower() and "dcgm" not in run(machine, "doctor").stdout.lower()


def test_a_gb10_has_an_sm_clock_and_no_memory_clock(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    other("gb10", machine.nvml)
    machine.nvml.set("gpu.0.sm_clock_mhz", 2411)
    machine.nvml.set("gpu.0.busy_percent", 99)
    gpu = sample_of(machine)["gpus"][0]
    assert (gpu["sm_clock_mhz"], gpu["memory_clock_mhz"], gpu["power_w"]) == (2411, None, 41)
    assert gpu["pcie"]["width"] is None, "one lane of generation 1 is a placeholder"
    assert run(machine, "check").stdout == ""


@pytest.mark.parametrize("kind", ["geforce", "a40"])
def test_dcgm_is_advised_where_it_helps(tmp_path: Path, kind: str) -> None:
    machine = machine_of(tmp_path)
    other("geforce", machine.nvml)
    if kind == "a40":
        machine.nvml.set("gpu.*.name", "NVIDIA A40")
    assert ("nvidia-dcgm" in run(machine, "check").stdout) is (kind == "a40")


def test_in_a_container_dcgm_is_the_hosts(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    other("geforce", machine.nvml)
    machine.nvml.set("gpu.*.name", "NVIDIA A40")
    machine.become_container()
    said = run(machine, "check").stdout
    assert "start dcgm-exporter on the host" in said and "systemctl" not in said


def checked(machine: FakeMachine, code: int | None, *, driver: bool) -> subprocess.CompletedProcess[str]:
    """`mltop check` where nvmlInit returns ``code``; None: the loader finds no library."""
    if driver:
        machine.write_proc("driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Tue\n")
    if code is not None:
        machine.nvml.set("call.nvmlInit", f"error {code}")
    machine.nvml.write()
    env = {**machine.env(), "COLUMNS": "160"}
    if code is None:
        del env["LD_LIBRARY_PATH"]
    return subprocess.run([*MLTOP, "check"], env=env, capture_output=True, text=True, timeout=90, check=False)


# What the node shows beside NVML's refusal → what is said, and what is not.
@pytest.mark.parametrize(
    ("code", "in_container", "driver", "said", "not_said"),
    [
        (999, True, False, "restart the container", "dmesg"),
        (17, True, False, "restart the container", "dmesg"),
        (8, True, False, "sudo dmesg", "restart the container"),
        (999, False, False, "sudo dmesg", "container"),
        (17, False, False, "sudo dmesg", "container"),
        (9, False, False, "sudo modprobe nvidia", "container"),
        (9, False, True, "sudo nvidia-modprobe -c 0 -u", "modprobe nvidia"),
        (9, True, False, "on the host: sudo modprobe nvidia", "--gpus all"),
        (9, True, True, "--gpus all", "modprobe"),
        (None, False, True, "LD_LIBRARY_PATH", "no NVIDIA driver on this machine"),
        (None, True, True, "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "no NVIDIA driver on this machine"),
        (None, True, False, "--gpus all", "install the NVIDIA driver"),
        (18, False, True, "reboot, or end all that uses the GPUs", "container"),
        (18, True, True, "restart the container", "--gpus all"),
    ],
)
def test_advice_goes_by_what_the_node_shows(
    tmp_path: Path, code: int | None, in_container: bool, driver: bool, said: str, not_said: str
) -> None:
    machine = machine_of(tmp_path)
    if in_container:
        machine.become_container()
    done = checked(machine, code, driver=driver)
    assert said in done.stdout and not_said not in done.stdout
    assert "the node says" not in done.stdout
    assert done.returncode == (2 if code == 18 or (code in (999, 17) and in_container) else 3), "no job can run"


def test_a_gb10_may_report_the_hosts_memory_as_its_own(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    other("gb10", machine.nvml)
    for key, value in (("total", 2_048_000_000 * 1024), ("used", 1_000_000 * 1024), ("reserved", 0)):
        machine.nvml.set(f"gpu.0.memory_{key}_bytes", value)
    done = run(machine, "check")
    assert (done.returncode, done.stdout) == (0, "")
    gpu = sample_of(machine)["gpus"][0]
    assert (gpu["unified_memory"], gpu["memory_total_bytes"], gpu["pcie"]["width"]) == (True, None, None)


def test_gpus_of_nouveau_are_not_nvidias(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    machine.sys.bind(machine.sys.gpu_at(0), "nouveau")
    machine.nvml.set("call.nvmlInit", "error 9")
    said = run(machine, "check").stdout
    assert "nouveau has the GPUs" in said and "do: blacklist nouveau, then: sudo modprobe nvidia" in said


def test_what_a_gpu_off_the_bus_does_not_tell_is_no_second_line(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, gpus=2)
    machine.say("NVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 20)
    machine.say("NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.", 20)
    machine.sys.fall_off(machine.sys.gpu_at(1))
    machine.nvml.set("gpu.1.call.*", "error 15")
    (line,) = [line for line in run(machine, "check").stdout.splitlines() if not line.startswith("    do: ")]
    assert line.endswith(": GPU 1 lost; Xid 79: GPU 1 fell off the bus")


def test_what_a_broken_gpu_does_not_tell_is_no_second_line(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, gpus=2)
    machine.say(
        "NVRM: Xid (PCI:0000:43:00): 119, pid=40, name=python, Timeout after 6s of waiting for RPC response", 20
    )
    for call in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues"):
        machine.nvml.set(f"gpu.1.call.{call}", "error 999")
    (line,) = [line for line in run(machine, "check").stdout.splitlines() if not line.startswith("    do: ")]
    assert "Xid 119 on GPU 1" in line


def test_a_mig_slice_of_a_pod_shows_its_own_rank(tmp_path: Path) -> None:
    """NVML refuses the GPU's memory, and names the rank by the host's pid; root has no more rights to take."""
    machine = machine_of(tmp_path)
    machine.become_container()
    for key, value in (("mig_enabled", 1), ("busy_percent", "unsupported"), ("mig.0", "3g.40gb gi=2 uuid=MIG-own")):
        machine.nvml.set(f"gpu.0.{key}", value)
    machine.nvml.set("gpu.0.call.nvmlDeviceGetMemoryInfo", "error 4")
    machine.proc.python(31, "fit.py", environ={"RANK": "0", "WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": "MIG-own"})
    machine.proc.change(31, devices=["/dev/nvidiactl", "/dev/nvidia0"])
    machine.nvml.set("gpu.0.processes", [(993_120, 29_696 * MIB, "compute", 2)])
    said = run(machine, "check").stdout
    assert ("sudo mltop" in said) is (os.geteuid() != 0) and "the node says" not in said
    shown = run(machine, "snapshot").stdout
    (own,) = [line for line in shown.splitlines() if line.endswith(" python fit.py")]
    assert "29.0G" in own and "other GPU processes" not in shown


@pytest.mark.parametrize(("code", "driver", "said"), [(999, True, "sudo dmesg"), (None, True, "LD_LIBRARY_PATH")])
def test_the_cgroup_of_a_job_is_no_container(tmp_path: Path, code: int | None, driver: bool, said: str) -> None:
    machine = machine_of(tmp_path)
    cgroup = "0::/system.slice/slurmstepd.scope/job_7/step_batch\n"
    (machine.proc.root / "self/cgroup").write_text(cgroup)
    done = checked(machine, code, driver=driver)
    assert said in done.stdout and "container" not in done.stdout


@pytest.mark.parametrize("code", [999, 9])
def test_wsl_is_no_container_and_has_its_driver_from_windows(tmp_path: Path, code: int) -> None:
    machine = machine_of(tmp_path)
    machine.write_proc("sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n")
    machine.proc.pid_namespace(4026532200)
    machine.nvml.set("call.nvmlInit", f"error {code}")
    said = run(machine, "check").stdout
    assert "container" not in said and "modprobe" not in said
    assert ("on Windows" in said) is (code == 9)


def test_mig_without_instances_and_busy_without_power_are_no_idle_and_busy_gpus(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, gpus=3)
    machine.nvml.set("gpu.0.mig_enabled", 1)
    machine.nvml.set("gpu.1.mig_enabled", 1)
    machine.nvml.set("gpu.1.mig.0", "1g.10gb")
    for key, value in (("busy_percent", 100), ("power_mw", 0)):
        machine.nvml.set(f"gpu.2.{key}", value)
    found = json.loads(run(machine, "check", "--json").stdout)
    assert {(one["id"], one["subject"]) for one in found["findings"] if one["severity"] == "warning"} == {
        ("gpu.mig", "GPU 0"),
        ("gpu.power.zero", "GPU 2"),
    }


@pytest.mark.parametrize("is_rank", [True, False])
def test_pids_of_another_namespace_are_nobodys_to_kill(tmp_path: Path, is_rank: bool) -> None:
    """NVML names the ranks of a container by the host's pids; without a rank it cannot be told whose they are."""
    machine = machine_of(tmp_path, gpus=2)
    machine.proc.pid_namespace(4026533321)
    for index in range(2):
        if is_rank:
            environ = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "pod"}
            machine.proc.python(41 + index, "fit.py", environ={name: str(value) for name, value in environ.items()})
            machine.proc.change(41 + index, devices=["/dev/nvidiactl", f"/dev/nvidia{index}"])
        machine.nvml.set(f"gpu.{index}.processes", [(3344120 + index, 40_000 * MIB, "compute")])
        machine.nvml.set(f"gpu.{index}.memory_used_bytes", 40_500 * MIB)
    done = run(machine, "check")
    if is_rank:
        assert (done.returncode, done.stdout) == (0, "")
        return
    found = json.loads(run(machine, "check", "--json").stdout)
    assert {one["severity"] for one in found["findings"] if one["id"] == "gpu.leftover"} == {"info"}
    assert "another PID namespace" in done.stdout and "kill" not in done.stdout
    assert done.returncode == 3, "not healthy: what is left there is not known"
