"""What the driver reported: Xids, one line per incident; SXids and what the driver asks for stand beside.

Source: lines of the kernel log (NVRM: Xid), NVIDIA's Xid catalog.
"""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.gpu import recovery, sxid
from mltop.probes.judge.health.gpu.recovery import asked_of
from mltop.probes.judge.health.gpu.xid_catalog import APP, HW, QUIET, WARN, advice, lookup, remedy
from mltop.probes.judge.health.gpu.xid_events import Incident, SeenXid, listed_incidents, seen_xids
from mltop.probes.judge.health.names import at_time, links_of, plural
from mltop.probes.judge.health.rule import DRIVER, Hit, Moment, Rule, once_per_moment
from mltop.probes.model import GpuSample

REPEAT_S = 86_400.0
FATAL_TIMES = 5  # on one GPU in a day
ONE_OCCURRENCE_S = 10.0  # one fault writes many lines
PAGE_FAULT = 31
PAGE_FAULT_TIMES = 2


def hardware(moment: Moment) -> Iterator[Hit]:
    return _of_tier(moment, HW)


def warnings(moment: Moment) -> Iterator[Hit]:
    return _of_tier(moment, WARN)


def applications(moment: Moment) -> Iterator[Hit]:
    return _of_tier(moment, APP, QUIET)


def _of_tier(moment: Moment, *tiers: str) -> Iterator[Hit]:
    if not moment.now.kernel_events:
        return
    for incident in listed_incidents(moment):
        if incident.told.tier in tiers:
            yield _hit(moment, incident)


def _hit(moment: Moment, incident: Incident) -> Hit:
    told = incident.told
    times = sum(one.code == told.code for one in incident.xids)
    what = lookup(told.code).what
    head = f"Xid {told.code}" if "{gpu}" in what else f"Xid {told.code} on {told.subject}"
    text = f"{head}: {what.format(gpu=told.subject)}{_links(incident)}{_by(told)}"
    if times > 1:
        text += f", {times} times since {at_time(incident.xids[0].at)}"
    if told.tier == APP and told.code != 45:
        text += " – probably your code"
    gpu = _gpu(moment, told.index)
    asked, asked_remedy = ("", None) if gpu is None or told.tier != HW else asked_of(gpu)
    return Hit(
        told.subject,
        text,
        (*_lines(incident), *_state(gpu)),
        action=asked or advice(told.code, told.index),
        since=told.at,
        key=str(incident.xids[0].code),
        remedy=asked_remedy or remedy(told.code),
    )


def _by(one: SeenXid) -> str:
    if one.tier != APP or one.pid is None:
        return ""
    return f" by pid {one.pid} ({one.process})" if one.process else f" by pid {one.pid}"


def _links(incident: Incident) -> str:
    """All that the incident names: each link that fails has a line of its own."""
    code = incident.told.code
    if "NVLink" not in lookup(code).what:
        return ""
    return links_of(one.text for one in incident.xids if one.code == code)


def _lines(incident: Incident) -> Iterator[str]:
    told = incident.told
    if told.text:
        yield told.text
    others = [code for code in incident.codes() if code != told.code]
    if others:
        yield "with it: " + ", ".join(f"Xid {code} ({lookup(code).what.format(gpu='GPU')})" for code in others)


def _state(gpu: GpuSample | None) -> Iterator[str]:
    """What NVML's counters say of the same GPU: it is part of the same picture."""
    if gpu is None:
        return
    if gpu.ecc.uncorrected_volatile:
        yield f"{plural(gpu.ecc.uncorrected_volatile, 'uncorrectable memory error')} since its reset"
    if gpu.remap.failed:
        yield "a row remapping has failed: its memory cannot be repaired, plan an RMA"
    elif gpu.remap.pending:
        yield "a row remapping is pending: it takes effect at the next reset"


def _gpu(moment: Moment, index: int | None) -> GpuSample | None:
    return _by_index(moment).get(index) if index is not None else None


@once_per_moment
def _by_index(moment: Moment) -> dict[int, GpuSample]:
    return {gpu.index: gpu for gpu in moment.now.gpus}


def repeat(moment: Moment) -> Iterator[Hit]:
    if len(moment.now.kernel_events) < PAGE_FAULT_TIMES:
        return
    since = moment.now.sampled_at - REPEAT_S
    xids = [one for one in seen_xids(moment) if one.at >= since]
    fatal: dict[str, list[SeenXid]] = {}
    faults: dict[str, list[SeenXid]] = {}
    for one in xids:
        if one.tier == HW:
            fatal.setdefault(one.subject, []).append(one)
        elif one.code == PAGE_FAULT:
            faults.setdefault(one.subject, []).append(one)
    for subject, ones in fatal.items():
        times = _occurrences(ones)
        if len(times) >= FATAL_TIMES:
            codes = ", ".join(str(code) for code in sorted({one.code for one in ones}))
            text = f"{subject}: {len(times)} fatal Xids in 24 h ({codes}): suspect the hardware"
            yield Hit(subject, text, _times(times), "critical", since=times[FATAL_TIMES - 1].at, key="fatal")
    for subject, ones in faults.items():
        pids = {one.pid for one in ones if one.pid is not None}
        # A program's own fault shows on any GPU that runs it.
        if len(pids) >= PAGE_FAULT_TIMES and len(faults) == 1:
            text = f"{subject}: Xid 31 in {len(pids)} programs within 24 h, on no other GPU: suspect the hardware"
            yield Hit(subject, text, _times(ones), "warning", since=ones[-1].at, key="31")


def _occurrences(xids: list[SeenXid]) -> list[SeenXid]:
    """The first of each burst."""
    found, last_at = [], float("-inf")
    for one in xids:
        if one.at - last_at > ONE_OCCURRENCE_S:
            found.append(one)
        last_at = one.at
    return found


def _times(xids: list[SeenXid]) -> tuple[str, ...]:
    return ("at " + ", ".join(f"{at_time(one.at)} (Xid {one.code})" for one in xids[-8:]),)


_LOG = ("kernel_log",)
# What a GPU shows after a fault that its Xid names.
_AFTER_A_FAULT = (
    "gpu.error",
    "gpu.recovery",
    "gpu.ecc.dbe_volatile",
    "gpu.remap.pending",
    "gpu.remap.failed",
    "gpu.xid.warn",
    "gpu.xid.app",
    "nvlink.",
)

RULES = (
    Rule(
        "gpu.xid.hw",
        "critical",
        0.0,
        "reset the GPU",
        hardware,
        meaning="the driver reports a fault that a GPU does not come back from by itself",
        threshold=(
            "Xid 46 48 62 64 74 79 95 109 110 119 120 136 140 143 151 155 156 158 167* 171* 172* 173*, fatal ones of "
            "144 to 150, and 'GPU has fallen off the bus' without one; listed for 1 h; Xids within 60 s* of each other "
            "are one incident"
        ),
        source="NVIDIA Xid catalog; kernel log",
        needs=_LOG,
        precedence=DRIVER,
        explains=_AFTER_A_FAULT,
        remedy="reset",
    ),
    Rule(
        "gpu.xid.warn",
        "warning",
        0.0,
        "restart the job",
        warnings,
        meaning="the driver reports a fault that the GPU survives",
        threshold=(
            "Xid 54 63 92 93 94 121 137 157 160 161 165* 166* 168* 169* 170*, non-fatal ones of 144 to 150, and "
            "numbers that NVIDIA's catalog lists as unused or does not have; listed for 1 h"
        ),
        source="NVIDIA Xid catalog; kernel log",
        needs=_LOG,
        precedence=DRIVER,
        explains=("gpu.ecc.sbe_rate",),
        remedy="restart",
    ),
    Rule(
        "gpu.xid.app",
        "info",
        0.0,
        "debug the program",
        applications,
        meaning="the driver reports a fault that is most often the program's own",
        threshold="Xid 13 31 32 43 45 68 69, engine exceptions, and those that NVIDIA says to ignore; listed for 1 h",
        source="NVIDIA Xid catalog; kernel log",
        needs=_LOG,
    ),
    Rule(
        "gpu.xid.repeat",
        "critical",
        0.0,
        "take the node out of the pool and run: dcgmi diag -r 3",
        repeat,
        meaning="the same GPU fails again and again",
        threshold=(
            "5 or more faults of gpu.xid.hw in 24 h, 10 s* apart: critical; Xid 31 in 2 programs on this GPU and on no "
            "other* in 24 h: warning"
        ),
        source="NVSentinel's repeat rule; kernel log",
        needs=_LOG,
        precedence=DRIVER,
        remedy="service",
    ),
    *recovery.RULES,
    *sxid.RULES,
)
