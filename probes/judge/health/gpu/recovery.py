"""What the driver asks for: field 230 (GPU recovery action), or Xid 154 where that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mltop.probes.judge.health.gpu.xid_catalog import ADVICE
from mltop.probes.judge.health.gpu.xid_events import booted_at, seen_xids
from mltop.probes.judge.health.names import gpu_name
from mltop.probes.judge.health.rule import DRIVER, EVENT_LISTED_S, Hit, Moment, Rule
from mltop.probes.model import GpuSample, Remedy

# Field 230 by name; the text of Xid 154 has its number.
RECOVERY_NAMES = {
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "imex_restart",
    6: "bus_reset",
    7: "system_reboot",
}
_REBOOT = "drain and reboot the node"
_RECOVERY: dict[str, tuple[str, str, Remedy]] = {
    "gpu_reset": ("GPU reset", "end its job, then: sudo nvidia-smi -r -i {index}", "reset"),
    "node_reboot": ("node reboot", _REBOOT, "reboot"),
    "drain_p2p": ("drain of peer-to-peer traffic", "end the jobs that use this GPU together with others", "none"),
    "drain_and_reset": (
        "drain and GPU reset",
        "end the jobs on this GPU, then: sudo nvidia-smi -r -i {index}",
        "reset",
    ),
    "imex_restart": ("IMEX recovery", "restart nvidia-imex on all nodes of the NVLink domain", "none"),
    "bus_reset": ("bus reset", "end the jobs on this GPU, then reset it or reboot the node", "reset"),
    "system_reboot": ("system reboot", _REBOOT, "reboot"),
}
_CHANGED_TO = re.compile(r"\bto (0x[0-9a-fA-F]+|\d+)\b")


def asked_of(gpu: GpuSample) -> tuple[str, Remedy | None]:
    """The driver's own word on what helps, and what that comes to; ("", None) where it has none."""
    return advice(gpu.recovery_action or "", gpu.index)


def advice(wanted: str, index: int) -> tuple[str, Remedy | None]:
    """The same for a recovery action by name."""
    words = _RECOVERY.get(wanted)
    return ("", None) if words is None else (words[1].format(index=index), words[2])


def recovery(moment: Moment) -> Iterator[Hit]:
    """Field 230 is the driver's present word; the newest Xid 154 of the last hour speaks where it cannot be read."""
    unread = False
    for gpu in moment.now.gpus:
        wanted = gpu.recovery_action
        if wanted is None:
            unread = True
        elif wanted != "none":
            yield _recovery(gpu.index, gpu_name(gpu.index), wanted, "NVML: GPU recovery action", None)
    if not moment.now.kernel_events or not (unread or not moment.now.gpus):
        return
    known = {gpu.index for gpu in moment.now.gpus if gpu.recovery_action is not None}
    since = max(moment.now.sampled_at - EVENT_LISTED_S, booted_at(moment.now))
    newest = {one.subject: one for one in seen_xids(moment) if one.tier == ADVICE}
    for one in newest.values():
        number = _CHANGED_TO.search(one.text)
        wanted = RECOVERY_NAMES.get(int(number[1], 0)) if number else None
        if wanted is not None and one.index not in known and one.at >= since:
            yield _recovery(one.index, one.subject, wanted, one.text, one.at)


def _recovery(index: int | None, subject: str, wanted: str, evidence: str, since: float | None) -> Hit:
    unknown: tuple[str, str, Remedy] = (wanted.replace("_", " "), "do what the driver asks for", "none")
    words, action, remedy = _RECOVERY.get(wanted, unknown)
    return Hit(
        subject,
        f"{subject}: the driver asks for: {words}",
        (evidence,),
        severity="warning" if wanted == "drain_p2p" else "critical",
        action=action.format(index="N" if index is None else index),
        since=since,
        remedy=remedy,
    )


RULES = (
    Rule(
        "gpu.recovery",
        "critical",
        0.0,
        "do what the driver asks for",
        recovery,
        meaning="the driver says what the GPU needs to work again",
        threshold="any action but none; draining peer-to-peer traffic: warning",
        source="NVML field 230; Xid 154 where that cannot be read",
        needs=("gpu.*.recovery_action",),
        precedence=DRIVER,
        explains=("gpu.remap.pending",),
    ),
)
