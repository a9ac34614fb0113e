"""What works on this node and what does not, each with the command that fixes it (`mltop doctor`).

Sources: yama/ptrace_scope (kernel documentation, LSM/Yama), capabilities(7), proc(5) for hidepid.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass

from mltop.probes.collect.stacks import find_py_spy, why_no_py_spy
from mltop.probes.system import paths

CAP_SYS_PTRACE = 19  # linux/capability.h


@dataclass
class Ability:
    """One thing checked. ``state``: ok | warning | missing; ``why`` is one sentence, ``fix`` a command or ""."""

    name: str
    state: str
    why: str
    fix: str = ""


def abilities() -> list[Ability]:
    """All checks of this node; none touches a GPU or a training process."""
    return [
        check_python(),
        check_driver(),
        check_py_spy(),
        check_stack_permission(),
        check_processes_visible(),
        check_torch(),
    ]


def check_python() -> Ability:
    version = platform.python_version()
    if sys.version_info < (3, 9):  # noqa: UP036 - the agent may be started with any interpreter
        return Ability(
            "python", "missing", f"Python {version} is too old for the agent (3.9 or newer)", "--python PATH"
        )
    return Ability("python", "ok", f"Python {version} at {sys.executable}")


def check_driver() -> Ability:
    """The kernel module's own word, which containers may hide. Whether GPUs are shown is for NVML to say."""
    try:
        with open(paths.proc("driver/nvidia/version"), encoding="utf-8", errors="replace") as file:
            line = file.readline().strip()
    except FileNotFoundError:
        return Ability(
            "nvidia driver",
            "warning",
            f"{paths.proc('driver/nvidia/version')} is not there: "
            "the kernel module is not loaded, or hidden from this container",
            "sudo modprobe nvidia",
        )
    except OSError as error:
        return Ability("nvidia driver", "warning", f"cannot read its version: {error.strerror}")
    return Ability("nvidia driver", "ok", line.partition(":")[2].strip() or line)


def check_py_spy() -> Ability:
    path = find_py_spy()
    if path is None:
        return no_py_spy()
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ability("py-spy", "missing", f"{path} does not run: {error}", "pip install --force-reinstall py-spy")
    return Ability("py-spy", "ok", f"{done.stdout.strip()} at {path}")


def no_py_spy() -> Ability:
    """An agent that came over its connection ($MLTOP_CACHE) gets py-spy so too, unless one was chosen by hand."""
    if "MLTOP_CACHE" in os.environ and not os.environ.get("MLTOP_PY_SPY"):
        return Ability("py-spy", "ok", "not here yet: it is sent when stacks are first asked for")
    why = why_no_py_spy() or "not found: no stacks can be dumped"
    return Ability("py-spy", "missing", why, "pip install py-spy")


def check_stack_permission() -> Ability:
    """Whether this user may read the stacks of other processes of the same user, and of other users."""
    name = "stack permission"
    if has_capability(CAP_SYS_PTRACE):
        return Ability(name, "ok", "stacks of every user's processes can be read")
    if os.geteuid() == 0:
        return Ability(
            name,
            "missing",
            "root without CAP_SYS_PTRACE (a container?): stacks are refused",
            "start the container with --cap-add SYS_PTRACE",
        )
    scope = yama_scope()
    if scope is None or scope == 0:
        return Ability(name, "ok", "stacks of your own processes can be read; other users' need root", "sudo mltop")
    return Ability(
        name,
        "missing",
        f"kernel.yama.ptrace_scope is {scope}: stacks of running processes need root",
        "sudo mltop   (or: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope)",
    )


def check_processes_visible() -> Ability:
    name = "processes"
    if not os.path.exists(paths.proc(1, "stat")):
        return Ability(
            name,
            "warning",
            "/proc is mounted with hidepid: only your own processes are visible",
            "sudo mltop",
        )
    if os.geteuid() != 0:
        return Ability(name, "ok", "all are visible; the environment of other users' needs root", "sudo mltop")
    return Ability(name, "ok", "all processes of all users are visible")


def check_torch() -> Ability:
    """Found without importing it: an import takes seconds."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return Ability(
            "torch",
            "ok",
            "not in this Python: `mltop demo` uses a stand-in job",
            "pip install 'mltop[torch]'",
        )
    return Ability("torch", "ok", "importable in this Python")


def yama_scope() -> int | None:
    """kernel.yama.ptrace_scope, None where Yama is not built in."""
    try:
        with open(paths.proc("sys/kernel/yama/ptrace_scope"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def has_capability(number: int) -> bool:
    """Whether this process's effective set holds a capability (/proc/self/status CapEff)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("CapEff:"):
                    return bool(int(line.split()[1], 16) >> number & 1)
    except (OSError, ValueError):
        return False
    return False
