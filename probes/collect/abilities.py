"""What works on this node and what does not, each with the command that fixes it (`mltop doctor`).

Sources: yama/ptrace_scope (kernel documentation, LSM/Yama), capabilities(7), proc(5) for hidepid.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from mltop.probes.collect.host.machine import in_container
from mltop.probes.collect.stacks import find_py_spy, may_trace, why_no_py_spy
from mltop.probes.collect.sysfile import read_file, read_number
from mltop.probes.system import paths


@dataclass
class Ability:
    """One thing checked. ``why`` is one sentence, ``fix`` a command or ""."""

    name: str
    state: Literal["ok", "warning", "missing"]
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
        why = f"Python {version} is too old for the agent (3.9 or newer)"
        return Ability("python", "missing", why, "--python PATH")
    return Ability("python", "ok", f"Python {version} at {sys.executable}")


def check_driver() -> Ability:
    """The kernel module's own word, which containers may hide. Whether GPUs are shown is for NVML to say."""
    name, path = "nvidia driver", paths.proc("driver/nvidia/version")
    try:
        line = read_file(path).decode("utf-8", "replace").partition("\n")[0].strip()
    except FileNotFoundError:
        why = f"{path} is not there: the kernel module is not loaded, or hidden from this container"
        return Ability(name, "warning", why, "" if in_container(paths.SYSROOT) else "sudo modprobe nvidia")
    except OSError as error:
        return Ability(name, "warning", f"cannot read its version: {error.strerror}")
    return Ability(name, "ok", line.partition(":")[2].strip() or line)


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
    if may_trace():
        return Ability(name, "ok", "stacks of every user's processes can be read")
    if os.geteuid() == 0:
        why = "root without CAP_SYS_PTRACE (a container?): stacks are refused"
        return Ability(name, "missing", why, "start the container with --cap-add SYS_PTRACE")
    scope = read_number(paths.proc("sys/kernel/yama/ptrace_scope"))
    if not scope:  # None where Yama is not built in
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
        why = "/proc is mounted with hidepid: only your own processes are visible"
        return Ability(name, "warning", why, "sudo mltop")
    if os.geteuid() != 0:
        return Ability(name, "ok", "all are visible; the environment of other users' needs root", "sudo mltop")
    return Ability(name, "ok", "all processes of all users are visible")


def check_torch() -> Ability:
    """Found without importing it: an import takes seconds."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        why = "not in this Python: `mltop demo` uses a stand-in job"
        return Ability("torch", "ok", why, "pip install 'mltop[torch]'")
    return Ability("torch", "ok", "importable in this Python")
