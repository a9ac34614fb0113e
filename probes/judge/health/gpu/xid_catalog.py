"""Every Xid that NVIDIA has a number for: what it means, what NVIDIA says to do, and how much it matters to us.

Numbers and actions: NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, sheet of Oct 2025: 1 to 172) and
nverror.h of the open kernel modules (to 176). The tier is ours: where sources disagree we follow NVIDIA's action, not
the severity that other monitors give the number.
"""

from __future__ import annotations

from typing import NamedTuple

from mltop.probes.model import Remedy

HW, WARN, APP, QUIET, ADVICE = "hw", "warn", "app", "quiet", "advice"
LAST_XID = 176


class Xid(NamedTuple):
    """``bucket``: NVIDIA's immediate action, "" where its catalog has none. ``do``: a key of ACTIONS where we differ.

    ``what``: {gpu} stands for "GPU 3". ``tier``: hw: the GPU needs a reset or worse; warn: it works on, with a loss or
    a sign of worse; app: most often the program's own fault; quiet: NVIDIA says to ignore it; advice: 154, what the
    driver asks for.
    """

    bucket: str
    tier: str
    what: str
    do: str = ""

    @property
    def action(self) -> str:
        """A key of ACTIONS."""
        return self.do or self.bucket


# What these come to; all others do nothing to the hardware.
_REMEDIES: dict[str, Remedy] = {
    "RESTART_APP": "restart",
    "RESET_GPU": "reset",
    "WORKFLOW_XID_48": "reset",
    "WORKFLOW_NVLINK": "reset",
    "RESTART_BM": "reboot",
    "RESTART_VM": "reboot",
    "REMAP_LATER": "reset",
}
# {index}: the GPU's index, for the command.
ACTIONS = {
    "RESTART_APP": "restart the job; if it comes back on the same GPU: dcgmi diag -r 3",
    "CHECK_APP": "debug the program: compute-sanitizer python …, or CUDA_LAUNCH_BLOCKING=1",
    "IGNORE": "nothing to do by itself",
    "CONTACT_SUPPORT": "NVIDIA's catalog has no remedy: contact your vendor with nvidia-bug-report.sh",
    "RESET_GPU": "end its job and reset it: sudo nvidia-smi -r -i {index}; if it comes back: service",
    "WORKFLOW_XID_48": "end its job, reset it: sudo nvidia-smi -r -i {index}; then dcgmi diag -r 3",
    "WORKFLOW_NVLINK": "end the job and reset all GPUs that are linked with it; if it comes back: service",
    "RESTART_BM": "reboot the node; if it comes back: reseat the GPU, then service",
    "RESTART_VM": "restart the virtual machine",
    "CHECK_MECHANICALS": "check the GPU's auxiliary power connectors",
    "UPDATE_SWFW": "update the driver and the vGPU software",
    "REMAP_LATER": "finish the job, then reset: sudo nvidia-smi -r -i {index}",
    "XID_154": "do what the driver asks for",
}

_BY_NUMBER: dict[int, Xid] = {
    8: Xid("RESTART_APP", APP, "the GPU stopped processing"),
    11: Xid("RESTART_APP", APP, "invalid or corrupted push buffer stream", do="CHECK_APP"),
    13: Xid("RESTART_APP", APP, "exception in a kernel (index out of range, bad instruction)", do="CHECK_APP"),
    14: Xid("IGNORE", QUIET, "unused by today's GPUs"),
    25: Xid("RESTART_APP", APP, "invalid push buffer stream", do="CHECK_APP"),
    31: Xid("RESTART_APP", APP, "illegal memory access", do="CHECK_APP"),
    32: Xid("RESTART_APP", APP, "invalid or corrupted push buffer stream", do="CHECK_APP"),
    37: Xid("IGNORE", QUIET, "driver firmware error"),
    38: Xid("IGNORE", QUIET, "driver firmware error"),
    43: Xid("IGNORE", APP, "a program's channel was reset and the program ended"),
    44: Xid("IGNORE", QUIET, "fault during a context switch"),
    45: Xid("WORKFLOW_XID_45", APP, "cleanup after an earlier error", do="IGNORE"),
    46: Xid("RESET_GPU", HW, "the GPU stopped processing"),
    48: Xid("WORKFLOW_XID_48", HW, "uncorrectable (double bit) memory error"),
    54: Xid("CHECK_MECHANICALS", WARN, "auxiliary power is not connected to the board"),
    60: Xid("RESTART_APP", APP, "video processor exception"),
    62: Xid("RESET_GPU", HW, "the power management controller has halted"),
    63: Xid("IGNORE", WARN, "a memory row was remapped; it takes effect at the next reset", do="REMAP_LATER"),
    64: Xid("RESET_GPU", HW, "a memory row could not be remapped"),
    66: Xid("IGNORE", QUIET, "illegal access by the driver"),
    67: Xid("IGNORE", QUIET, "illegal access by the driver"),
    69: Xid("RESTART_APP", APP, "graphics engine class error", do="CHECK_APP"),
    74: Xid("WORKFLOW_NVLINK_ERR", HW, "NVLink error", do="WORKFLOW_NVLINK"),
    78: Xid("UPDATE_SWFW", WARN, "a vGPU could not be started"),
    79: Xid("RESTART_BM", HW, "{gpu} fell off the bus"),
    80: Xid("RESTART_APP", APP, "corrupted data was sent to the GPU", do="CHECK_APP"),
    92: Xid("IGNORE", WARN, "many correctable memory errors"),
    93: Xid("IGNORE", WARN, "the InfoROM is worn out", do="CONTACT_SUPPORT"),
    94: Xid("RESTART_APP", WARN, "memory error, contained; the process that used the memory dies"),
    95: Xid("RESET_GPU", HW, "memory error, not contained: results of every process on it may be wrong"),
    106: Xid("IGNORE", QUIET, "test message of the board's management"),
    107: Xid("IGNORE", QUIET, "test message of the board's management"),
    108: Xid("IGNORE", QUIET, "NVLink remote translation error"),
    109: Xid("RESET_GPU", HW, "a context switch timed out"),
    110: Xid("RESET_GPU", HW, "security fault"),
    119: Xid("RESET_GPU", HW, "the GPU's firmware (GSP) does not answer the driver"),
    120: Xid("RESET_GPU", HW, "error in the GPU's firmware (GSP)"),
    121: Xid("IGNORE", WARN, "corrected error on the link to the CPU (C2C)"),
    136: Xid("RESET_GPU", HW, "NVLink training failed"),
    137: Xid("IGNORE", WARN, "NVLink access without privilege; the peer's Xids say why"),
    140: Xid("RESET_GPU", HW, "uncorrectable memory error that the driver could not mark for repair"),
    141: Xid("IGNORE", QUIET, "CUDA fast path error"),
    142: Xid("CONTACT_SUPPORT", WARN, "video encoder (NVENC) exception"),
    143: Xid("RESET_GPU", HW, "the GPU could not be initialised"),
    151: Xid("RESTART_VM", HW, "key rotation error (confidential computing)"),
    152: Xid("IGNORE", QUIET, "DLA memory management error"),
    153: Xid("IGNORE", QUIET, "DLA timeout"),
    154: Xid("XID_154", ADVICE, "the driver asks for another recovery action"),
    155: Xid("RESET_GPU", HW, "NVLink error found by software"),
    156: Xid("RESET_GPU", HW, "a part of the GPU was retired; it takes effect at a reset"),
    157: Xid("IGNORE", WARN, "a part of the GPU could not be retired", do="CONTACT_SUPPORT"),
    158: Xid("RESET_GPU", HW, "fatal timeout"),
    159: Xid("CHECK_UVM", WARN, "CHI non-data error; alone it should be reported", do="CONTACT_SUPPORT"),
    160: Xid("IGNORE", WARN, "a memory channel was retired"),
    161: Xid("IGNORE", WARN, "a memory channel could not be retired", do="CONTACT_SUPPORT"),
    162: Xid("", QUIET, "power smoothing is on again", do="IGNORE"),
    163: Xid("", QUIET, "power smoothing is off", do="IGNORE"),
    164: Xid("", QUIET, "power smoothing circuitry is near the end of its life", do="IGNORE"),
    165: Xid("", WARN, "power smoothing circuitry is at the end of its life", do="CONTACT_SUPPORT"),
    166: Xid("", WARN, "NVLink traffic before the link was encrypted", do="CONTACT_SUPPORT"),
    167: Xid("", HW, "fatal PCIe timeout", do="RESTART_BM"),
    168: Xid("", WARN, "errors in protected memory: less GPU memory than usual", do="CONTACT_SUPPORT"),
    169: Xid("", WARN, "the security controller (SEC2) has halted", do="CONTACT_SUPPORT"),
    170: Xid("", WARN, "NVLink interrupt in confidential computing mode", do="CONTACT_SUPPORT"),
    171: Xid("", HW, "uncorrectable error in DRAM", do="WORKFLOW_XID_48"),
    172: Xid("", HW, "uncorrectable error in SRAM", do="WORKFLOW_XID_48"),
    173: Xid("", HW, "fatal error on the link to the CPU (C2C)", do="RESET_GPU"),
}
# Engines of which there are many, one number each.
_ENGINES = {
    "copy engine exception": (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
    "video decoder (NVDEC) exception": (68, 83, 84, 88, 89, 96, 97, 98),
    "JPEG decoder (NVJPG) exception": (82, *range(99, 106)),
    "optical flow (OFA) exception": (86, 139),
}
# NVLink of Blackwell and newer: the line itself says "Fatal" or "Nonfatal"; the tier is that of a fatal one.
NVLINK5 = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}
_UNUSED = Xid("CONTACT_SUPPORT", WARN, "a number that NVIDIA lists as unused")
_NOT_IN_CATALOG = Xid("CONTACT_SUPPORT", WARN, "a number that is not in NVIDIA's catalog")


def _catalog() -> dict[int, Xid]:
    catalog = dict(_BY_NUMBER)
    for what, codes in _ENGINES.items():
        catalog.update(dict.fromkeys(codes, Xid("RESTART_APP", APP, what)))
    for code, unit in NVLINK5.items():
        catalog[code] = Xid("WORKFLOW_NVLINK5_ERR", HW, f"NVLink error ({unit})", do="WORKFLOW_NVLINK")
    for code in range(1, LAST_XID + 1):
        catalog.setdefault(code, _UNUSED if code <= 172 else _NOT_IN_CATALOG)
    return catalog


CATALOG = _catalog()


def numbers(*tiers: str) -> str:
    """``46 48 167*``: all single numbers of these tiers; * is told of those that NVIDIA names no action for."""
    own = sorted(code for code, entry in _BY_NUMBER.items() if entry.tier in tiers)
    return " ".join(f"{code}{'' if lookup(code).bucket else '*'}" for code in own)


def lookup(code: int) -> Xid:
    """The entry of a number, also of one that no catalog has."""
    return CATALOG.get(code, _NOT_IN_CATALOG)


def advice(code: int, index: int | None) -> str:
    """What to do about this Xid; ``index``: the GPU's, None where NVML does not list it."""
    return ACTIONS[lookup(code).action].format(index="N" if index is None else index)


def remedy(code: int) -> Remedy:
    """What the advice for this Xid comes to."""
    return _REMEDIES.get(lookup(code).action, "none")


class Recovery(NamedTuple):
    """A recovery action in words, what to do, and what that comes to."""

    words: str
    action: str
    remedy: Remedy

    def of(self, index: int | None) -> Recovery:
        """The recovery with the GPU's index in its command."""
        return self._replace(action=self.action.format(index="N" if index is None else index))


_REBOOT = "drain and reboot the node"
_RESET = "sudo nvidia-smi -r -i {index}"
# What the driver asks for, by name, in the order of the numbers that field 230 and the text of Xid 154 have.
_RECOVERY = {
    "gpu_reset": Recovery("GPU reset", f"end its job, then: {_RESET}", "reset"),
    "node_reboot": Recovery("node reboot", _REBOOT, "reboot"),
    "drain_p2p": Recovery(
        "drain of peer-to-peer traffic", "end the jobs that use this GPU together with others", "none"
    ),
    "drain_and_reset": Recovery("drain and GPU reset", f"end the jobs on this GPU, then: {_RESET}", "reset"),
    "imex_restart": Recovery("IMEX recovery", "restart nvidia-imex on all nodes of the NVLink domain", "none"),
    "bus_reset": Recovery("bus reset", "end the jobs on this GPU, then reset it or reboot the node", "reset"),
    "system_reboot": Recovery("system reboot", _REBOOT, "reboot"),
}
_TEXTS = (*ACTIONS.values(), *[recovery.action for recovery in _RECOVERY.values()])
ADVISED = tuple(text.format(index=index) for text in _TEXTS for index in ("N", 0))  # all that there can be
RECOVERY_NAMES = dict(enumerate(_RECOVERY, 1))


def recovery_of(wanted: str | None, index: int | None) -> Recovery | None:
    """The recovery of this name; None for "none", and for one that we do not know."""
    return _RECOVERY[wanted].of(index) if wanted in _RECOVERY else None


def gpu_reset(index: int) -> Recovery:
    return _RECOVERY["gpu_reset"].of(index)
