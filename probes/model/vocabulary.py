"""The closed vocabularies: every word that a program decides by, as types.

A word from elsewhere that is not in its vocabulary is left out where it comes in, with a gap that says so
(``probes/reach/receiving.py``): behind that, and in our own code, mypy holds them. Orders are those of the tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

# What a health finding is worth: the gravest first.
Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


def gravity(severity: Severity) -> int:
    """For sorting: 0 is the gravest."""
    return SEVERITIES.index(severity)


# connecting: no sample yet; stale: no new one in time; lost: tried again; refused: left alone until the user acts.
NodePhase = Literal["connecting", "live", "stale", "lost", "refused"]

# How a node is reached; the launchers' names (probes/reach/launchers).
Via = Literal["local", "ssh", "pdsh", "srun"]

# unknown: there is a value that we do not have; unsupported: this hardware, driver or kernel has no such thing, nothing
# is missed; starting: it comes with one of the next samples.
GapKind = Literal["unknown", "unsupported", "starting"]

# Why NVML, or a GPU, or a value of it does not answer (GpuSample.error_code, Gap.code; NVML's numbers in brackets).
# Of the whole node: no_driver (12), no_bindings (nvidia-ml-py is missing), library_broken (it cannot be loaded),
# old_driver (older than mltop reads), driver_not_loaded (9), driver_mismatch (18: upgraded underneath), devices_denied
# (blocked, and in a container), stale (values are shown that are old), limit (of files, processes, threads or memory).
_NodeFault = Literal[
    "no_driver",
    "no_bindings",
    "library_broken",
    "old_driver",
    "driver_not_loaded",
    "driver_mismatch",
    "devices_denied",
    "stale",
    "limit",
]
# Of the node or one GPU: no_permission (4), blocked (17, 999: what a device gives that may not be opened, and a driver
# that fails), failed (any other), stuck (a call does not return), crashed (the reader process died). Of one GPU also
# unpowered (8), lost (15, or its handle cannot be had), needs_reset (16), vanished (NVML lists fewer), and those of the
# node while all of NVML is down.
_GpuFault = Literal[
    "no_permission", "blocked", "failed", "stuck", "crashed", "unpowered", "lost", "needs_reset", "vanished"
]
# Of one value: no_permission, implausible (it was told, and cannot be).
Fault = Literal[_NodeFault, _GpuFault, "implausible"]
# Faults that all of NVML is refused with. A call that hangs is none: the other GPUs answer.
REFUSALS = frozenset(
    {
        *("no_driver", "no_bindings", "library_broken", "old_driver", "driver_not_loaded", "driver_mismatch"),
        *("no_permission", "unpowered", "lost", "needs_reset", "blocked", "failed", "devices_denied"),
    }
)
FaultCode = Literal[Fault, ""]
# Of a value also left_out (a node told what cannot be, or more than any has), not_here (it exists, and machines of this
# kind, containers or virtual ones, never show it); of a verdict unwatched (ranks that no watched node has), no_answer
# (of a node), duplicate (ranks that exist twice); of a source unread (nothing of it could be read). "" where nobody
# needs to know.
GapCode = Literal[Fault, "left_out", "not_here", "unwatched", "no_answer", "duplicate", "unread", ""]

GpuState = Literal["ok", "lost", "error"]
ActivitySource = Literal["gpm", "dcgm"]

# Of a process on a GPU: what it uses it for, and why not all of it can be seen: ended (there is no such process in all
# of the machine, or there was one here and it is gone), elsewhere (not in our PID namespace: in another one, or it has
# ended), hidden (/proc is mounted with hidepid), closed (no permission to read its environment: whether it is a rank is
# unknown).
ProcessKind = Literal["compute", "graphics", "mps"]
Absence = Literal["ended", "elsewhere", "hidden", "closed", ""]

# What a PCI device and a network port is.
PciKind = Literal["gpu", "nic", "nvswitch", "nvme", "other"]
LinkKind = Literal["infiniband", "roce", "ethernet", "efa"]
# What became of a port that was there: its device is gone, or only its interface, while the PCI device is still there
# (moved to a container, driver unloaded). "" also of one that cannot be read.
LinkFault = Literal["device_vanished", "interface_vanished", ""]

# Error counters that are read together.
CounterKind = Literal["gpus", "links", "pci", "host"]
COUNTER_KINDS: tuple[CounterKind, ...] = get_args(CounterKind)

# What an action comes to for the hardware, the farthest-reaching last: what makes the weaker ones pointless.
Remedy = Literal["none", "watch", "restart", "reset", "reboot", "service", "replace"]
REMEDIES: tuple[Remedy, ...] = get_args(Remedy)

# What mltop itself does next about what is wrong: dumps and judges stacks; shows what is wrong with the nodes that are
# named, or with all; measures with which node the links are slow, or collectives. "" where it has nothing for it.
Act = Literal["stacks", "node", "findings", "probe_pairs", "probe_all_reduce", ""]
COMMANDS: Mapping[Act, str] = MappingProxyType(
    {
        "stacks": "mltop stacks",
        "node": "mltop check",
        "findings": "mltop check",
        "probe_pairs": "mltop probe pairs",
        "probe_all_reduce": "mltop probe all-reduce",
    }
)

# What is said of a job, in the order in which several are told. "suspect": a hang whose culprits are named with low
# confidence, since they may be doing long work of their own.
VerdictKind = Literal["hang", "suspect", "straggler", "moving", "unclear"]
VERDICT_KINDS: tuple[VerdictKind, ...] = get_args(VerdictKind)
# What who holds a job up does: stands in one place outside collectives; computes or loops alone; asks again and again
# for something that does not come; waits elsewhere than the others; is a turn of a loop behind or ahead; is stopped by
# a signal; is held by a debugger; does not come back from the kernel; has died; ended well before the others; works,
# but slowly.
CulpritKind = Literal[
    "stands", "computes", "polls", "elsewhere", "behind", "stopped", "traced", "kernel", "dead", "left", "slow", ""
]
# What a process sleeps in (wchan) that waits for any child's end: os.waitpid and os.system have no Python frames.
WAITS_FOR_CHILD = "do_wait"
Confidence = Literal["high", "medium", "low"]
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)

# The probes, by the names of the command line, and what they measure.
ProbeKind = Literal["matmul", "all-reduce", "pairs", "memory", "copies"]

DeviceKind = Literal["gpu", "mig", "cpu"]
# Why a device is not measured.
RefusalCode = Literal["in_use", "probe", "job", "busy", "full", "broken", "unknown", "stuck", ""]

# How a rank's number is known: variables at its start or set since, the title that it gave itself, its arguments, or
# only the place among its parent's children in the order of their starts, which is a guess.
IdentifiedBy = Literal["environment", "live environment", "title", "arguments", "parent and order", ""]

# How a process ended: by itself with an exit code, by a signal, killed by the kernel for want of memory, stopped from
# outside (a time limit, scancel, an eviction).
DeathKind = Literal["exit", "signal", "oom", "stopped", "unknown"]

# What a line of a rank's own log comes to: a collective timed out; other ranks are named as those that did not come;
# something of its own failed; a peer has gone.
LogLineKind = Literal["timeout", "names", "fault", "peer"]

# What an incident is, in the order in which several of equal loss are told. "stopped": from outside (time limit,
# cancel, Ctrl-C, eviction); "node": hardware or system trouble that no job is known to suffer from.
IncidentKind = Literal["crash", "hang", "stopped", "straggler", "starved", "slow", "node"]
INCIDENT_KINDS: tuple[IncidentKind, ...] = get_args(IncidentKind)
EvidenceSource = Literal["samples", "stacks", "log", "flight_recorder", "ras", "kernel", "health", "probe", "launcher"]

# What the counters of a job's collectives say: the processes of some ranks do not answer NCCL's own thread (stopped,
# gone, or their node is); some ranks have not entered the operation that the others wait in; ranks of a group are in
# different operations, or in different sizes of one; a group is being made, and some do not come to it; on some the
# kernel of an operation has not begun that runs on the others; every rank has launched it, so what keeps it is below
# the hosts; most have not entered what a few wait in, and either may be wrong; ranks wait for one another in a circle;
# of some members there is no record, and of all others the same is told; the records are too old, too few, or
# contradict one another.
ProgressKind = Literal[
    "unresponsive",
    "never_entered",
    "mismatch",
    "init",
    "not_started",
    "all_launched",
    "uneven",
    "circle",
    "unrecorded",
    "unsure",
]
# Why NCCL's RAS is not asked: the job is not known to stand; it has begun only now; a communicator is being made, or
# its stacks are too old to tell; its NCCL has errors that a question may turn into a crash, or nobody knows which NCCL
# it has; it was asked just now.
RasRefusal = Literal["not_standing", "young", "creating", "old_stacks", "old_version", "asked_lately"]
PROGRESS_KINDS: tuple[ProgressKind, ...] = get_args(ProgressKind)

# How a job gets on, as seen from outside: it loads or compiles; it steps; nothing has moved for ten seconds; nothing
# has moved for longer than it ever took; it cannot be told.
MotionPhase = Literal["starting", "moving", "quiet", "stalled", "unknown"]

# It works; it waits for others of its job in a collective; it is what the others wait for; its job stands still, and
# who holds it up is not known; nothing of its job has moved for seconds only; it computes while the others wait; it
# waits for data; its clock is held down; its job starts; there is a process and nothing to do; there is none; its
# process is gone; NVML has lost it; NVML gives an error; it cannot be told.
WorkState = Literal[
    "works",
    "waits",
    "stands",
    "stalled",
    "quiet",
    "alone",
    "starved",
    "throttled",
    "starting",
    "idle",
    "no_process",
    "ended",
    "lost",
    "error",
    "unknown",
]
