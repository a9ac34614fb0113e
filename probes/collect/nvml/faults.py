"""From NVML's codes to sentences and gaps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mltop.probes.collect.host.machine import in_container
from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.codes import Failure, Problem, Reason, is_unsupported
from mltop.probes.collect.nvml.library import NAME
from mltop.probes.model import Fault, Gap, HostSample, PciDevice
from mltop.probes.model.nvml_fields import OLDEST_DRIVER
from mltop.probes.model.units import signal_name
from mltop.probes.system import paths

_DOWN_FAULTS: dict[str, Fault] = {"pynvml": "no_bindings", "library": "library_broken", "old_driver": "old_driver"}
OVERLONG = "NVML's reader process answers without end"
KERNEL_LOG = "sudo dmesg -T | grep -i -e nvrm -e xid"
WITH_GPUS = "start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
FIND_LIBRARY = f"sudo find / -xdev -name {NAME}; add its folder to LD_LIBRARY_PATH or /etc/ld.so.conf.d"
RELOAD = "reboot, or end all that uses the GPUs, unload the nvidia modules and run: sudo modprobe nvidia"
_NO_LIBRARY = f"the NVIDIA driver {{driver}} is loaded, but {NAME} is not in this container"
_NOT_FOUND = f"the NVIDIA driver {{driver}} is loaded, but the loader does not find its {NAME}"
_NO_DEVICE = "the NVIDIA driver {driver} is loaded, but /dev/nvidiactl cannot be opened"
# By the code, whether the driver is loaded and whether we are in a container: why ("": as it was) and what helps.
_CONTEXTS = {
    ("no_driver", True, True): (_NO_LIBRARY, WITH_GPUS),
    ("no_driver", True, False): (_NOT_FOUND, FIND_LIBRARY),
    ("no_driver", False, True): ("", WITH_GPUS),
    ("driver_not_loaded", True, True): (_NO_DEVICE, WITH_GPUS),
    ("driver_not_loaded", True, False): (_NO_DEVICE, "sudo nvidia-modprobe -c 0 -u"),
    ("driver_not_loaded", False, True): ("", "on the host: sudo modprobe nvidia"),
    ("driver_mismatch", True, True): (
        "",
        f"restart the container: it gets the library anew; else on the host: {RELOAD}",
    ),
}
_RIVALS = ("nouveau", "nova_core")  # other drivers of NVIDIA's GPUs
LOST_DEVICES = "this container has lost its GPU devices"
# systemd sets the device rules of its cgroups anew (NVIDIA/nvidia-container-toolkit#48).
RESTART_CONTAINER = (
    "restart the container; give it its devices by CDI so that systemctl daemon-reload does not take them again"
)
# CAP_SYS_ADMIN alone was not enough for some drivers (NVIDIA/DCGM#214).
_PRIVILEGED = "with --privileged, or --cap-add SYS_ADMIN where that suffices"
FOR_ROOT = f"start the container {_PRIVILEGED}; for GPUs in MIG mode also with NVIDIA_MIG_MONITOR_DEVICES=all"


def field_gap(fields: Sequence[str], gpu: str, reason: Reason) -> Gap:
    """Why fields of a GPU (its index, "*" for all) have no value; of none: why nothing of it is known."""
    lacking = partial(Gap.about, "gpu", *fields, item=gpu)
    if isinstance(reason, Problem):
        return lacking(why=reason.why, fix=reason.fix, kind=reason.kind, code=reason.code)
    call, code = reason
    if is_unsupported(reason):
        why = f"not supported by this GPU or driver ({call}: {codes.text(code)})"
        return lacking(why=why, kind="unsupported")
    if code == codes.NO_PERMISSION:
        why = f"no permission for {call} ({codes.text(code)})"
        return lacking(why=why, fix=permission_fix(call), code="no_permission")
    return lacking(why=f"{call} failed (NVML error {code}: {codes.text(code)})")


def permission_fix(call: str, uid: int | None = None) -> str:
    """What helps ``uid``, None: us. Root lacks a permission in containers only."""
    if (os.geteuid() if uid is None else uid) == 0:
        return FOR_ROOT
    return f"sudo mltop; in a container: start it {_PRIVILEGED}" if call.startswith("nvmlGpm") else "sudo mltop"


def down_gap(down: dict[str, Any]) -> Gap:
    """Why there is no NVML at all; ``down`` as in the child's answer. Its ``code`` is the Fault."""
    if down["kind"] != "nvml":
        why, fix = f"libnvidia-ml.so.1 cannot be loaded: {down['text']}", "ldconfig -p | grep libnvidia-ml"
        if down["kind"] == "pynvml":
            why, fix = f"the Python package nvidia-ml-py is missing ({down['text']})", "pip install nvidia-ml-py"
        elif down["kind"] == "old_driver":
            why = f"driver {down['text']} is older than {OLDEST_DRIVER}: mltop does not read it; nvidia-smi does"
            fix = f"update the NVIDIA driver to {OLDEST_DRIVER} or newer"
        return Gap.about("nvml", why=why, fix=fix, code=down_fault(down))
    call, code = down["call"], down["code"]
    words = f"{call}: {codes.text(code)}"
    explained = {
        codes.LIBRARY_NOT_FOUND: (
            "no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)",
            "install the NVIDIA driver",
        ),
        codes.DRIVER_NOT_LOADED: (f"the NVIDIA driver is not loaded ({words})", "sudo modprobe nvidia"),
        codes.NO_PERMISSION: (f"no permission to use the NVIDIA driver ({words})", permission_fix(call)),
        codes.LIB_RM_VERSION_MISMATCH: (
            f"the driver was upgraded while the old one is loaded (NVML error 18, {words})",
            RELOAD,
        ),
        codes.GPU_IS_LOST: (
            f"NVML cannot be used: a GPU has fallen off the bus (NVML error 15, {words})",
            "reboot the node",
        ),
        codes.RESET_REQUIRED: (
            f"NVML cannot be used: a GPU needs a reset (NVML error 16, {words})",
            "end the jobs on the node, then: sudo nvidia-smi -r",
        ),
    }
    why, fix = explained.get(code, (f"NVML cannot be used (NVML error {code}, {words})", KERNEL_LOG))
    return Gap.about("nvml", why=why, fix=fix, code=down_fault(down))


def in_context(gaps: Sequence[Gap], host: HostSample, pci: Sequence[PciDevice]) -> list[Gap]:
    """The gaps; one about all of NVML says what else the node shows: the loaded driver, a container, no GPU."""
    return [_in_context(gap, host, pci) if gap.source == "nvml" and not gap.fields else gap for gap in gaps]


def _in_context(gap: Gap, host: HostSample, pci: Sequence[PciDevice]) -> Gap:
    if "microsoft" in host.kernel:  # WSL has its own PID namespace, but is no container
        is_absent = gap.code in ("no_driver", "driver_not_loaded")
        return replace(gap, fix="install the NVIDIA driver on Windows: WSL takes it from there") if is_absent else gap
    if gap.code == "no_driver" and not host.nvidia_driver and pci and not any(device.kind == "gpu" for device in pci):
        return replace(gap, why=f"{gap.why}; no NVIDIA GPU on the PCI bus", kind="unsupported")
    rival = next((device.driver for device in pci if device.kind == "gpu" and device.driver in _RIVALS), None)
    if rival and gap.code in ("no_driver", "driver_not_loaded"):
        return replace(gap, why=f"{gap.why}; {rival} has the GPUs", fix=f"blacklist {rival}, then: {gap.fix}")
    is_container = bool(host.is_confined) and in_container(paths.SYSROOT)  # not the cgroup of a job on the host
    if gap.code == "blocked" and is_container:
        return replace(gap, why=f"{LOST_DEVICES}: {gap.why}", fix=RESTART_CONTAINER, code="devices_denied")
    why, fix = _CONTEXTS.get((gap.code, bool(host.nvidia_driver), is_container), ("", gap.fix))
    return replace(gap, why=why.format(driver=host.nvidia_driver) or gap.why, fix=fix)


def down_fault(down: dict[str, Any]) -> Fault:
    """Why there is no NVML, as data."""
    if down["kind"] == "nvml":
        return codes.fault(down["code"])
    return _DOWN_FAULTS[down["kind"]]


def silence(waited_s: float, call: str, call_s: float | None, state: str) -> str:
    """Why no answer comes. ``call`` is where the child is ("" between calls) and ``call_s`` for how long."""
    if not call or call_s is None:
        state = state or "state unknown"
        return f"NVML does not answer: its reader process is in no call for {waited_s:.0f} s ({state})"
    if call_s < waited_s / 2:
        return f"NVML is slow: no answer for {waited_s:.0f} s, now in {call}"
    return f"NVML does not answer: stuck in {call} for {call_s:.0f} s"


def death(exit_code: int, call: str, last_words: str) -> str:
    """How the child ended without being asked to; ``call`` is the NVML call that it was in, or ""."""
    how = signal_name(-exit_code) if exit_code < 0 else f"exit code {exit_code}"
    where = f" in {call}" if call else ""
    return f"NVML's reader process died ({how}){where}" + (f": {last_words}" if last_words else "")


def lost_error(failure: Failure, gone: bool, last_seen_at: float | None) -> str:
    """E.g. "GPU is lost (NVML error 15: GPU is lost)": when it was seen last the sample says, not in words."""
    (call, code), seen = failure, last_seen(last_seen_at)
    if code == codes.NO_PERMISSION:
        return f"no permission to open this GPU ({call}: {codes.text(code)}){seen}"
    what = "GPU needs a reset" if code == codes.RESET_REQUIRED else "GPU is lost" if gone else f"{call} failed"
    return f"{what} (NVML error {code}: {codes.text(code)}){seen}"


def last_seen(at: float | None) -> str:
    """Nothing of one that was."""
    return ", not seen since mltop started" if at is None else ""
