"""What the driver reported in the kernel log: Xids, one line per incident; NVSwitches' SXids; what it asks for.

One fault logs several lines within seconds (an ECC error: 48, 63, 94, then 43 and 45 as the programs end; a dead link:
74 on both ends). They are told once, by the gravest; the same Xid again and again is one line with a count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from mltop.probes.judge.health.gpu import xid_catalog as catalog
from mltop.probes.judge.health.gpu.xid_catalog import ADVICE, APP, HW, NVLINK5, QUIET, WARN, lookup, numbers
from mltop.probes.judge.health.moment import DAY_S, EVENT_LISTED_S, Moment, once_per_moment
from mltop.probes.judge.health.names import links_of, slot, slots
from mltop.probes.judge.health.relations import BRIDGE, FABRIC, RANK_ENDED, SLOWS, STOPS, SYMPTOM
from mltop.probes.judge.health.rule import Hit, critical_if, gpu_fault
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import KernelEvent, Sample
from mltop.probes.model.units import clock_time
from mltop.probes.model.verdict import gpu_name

CHAIN_S = 60.0  # so close together on one GPU they are one incident
MOST_OPEN = 64  # incidents of one GPU that may still grow
SAME_LINE_S = 5.0  # the kernel log and NVML's event of one and the same Xid
BOOT_SLACK_S = 5.0  # boot time and the log's times come from different clocks
REPEAT_S = DAY_S
FATAL_TIMES = 5  # on one GPU in a day
ONE_OCCURRENCE_S = 10.0  # one fault writes many lines
PAGE_FAULT, PAGE_FAULT_TIMES = 31, 2
OFF_BUS = 79  # "GPU has fallen off the bus", which comes with and without this Xid
CLEANUP = 45  # of a program that ended for another reason
_FATAL = re.compile(r"(?<![-\w])Fatal\b")
_CHANGED_TO = re.compile(r"\bto (0x[0-9a-fA-F]+|\d+)\b")
_GRAVITY = {HW: 0, WARN: 1, APP: 2, QUIET: 3, ADVICE: 4}
# What the GPUs of a node log when an NVSwitch has failed.
LINK_XIDS = frozenset({74, *NVLINK5})
_AFTER_SXID = frozenset({43, 45, *LINK_XIDS})
_OF_ALL = (
    "The driver reports faults of all {count} GPUs, e.g. {example}",
    "look for what they share (power, PCIe switch, driver): dmesg; reboot the node",
)
_NVLINK5 = f"{min(NVLINK5)} to {max(NVLINK5)}"

_Asked = tuple["int | None", str, str, "float | None"]  # of which GPU what is asked for, how that is known, since when
_log_rule = partial(gpu_fault, source="NVIDIA Xid catalog; kernel log", needs=("kernel_log",))


@dataclass(frozen=True)
class SeenXid:
    """One Xid. ``subject``: "GPU 3", or the PCI bus id of a GPU that NVML has not listed since we watch."""

    at: float
    code: int
    tier: str
    subject: str
    index: int | None
    event: KernelEvent


@dataclass
class Incident:
    """Xids of one GPU that belong together, the oldest first."""

    xids: list[SeenXid] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)

    @property
    def gravest(self) -> SeenXid:
        """The gravest Xid; of equals the first that is not mended by the driver."""
        return min(self.xids, key=lambda xid: (_GRAVITY[xid.tier], xid.code in (63, 92, 121)))

    def takes(self, xid: SeenXid) -> bool:
        apart_s = xid.at - self.xids[-1].at
        return apart_s <= CHAIN_S or (apart_s <= EVENT_LISTED_S and xid.code in self.codes)


@once_per_moment
def _seen_xids(moment: Moment) -> list[SeenXid]:
    """All that the sample knows of (24 hours), the oldest first; the same one from two sources counts once."""
    events = [event for event in moment.now.kernel_events if event.kind in ("xid", "off_bus")]
    if not events:
        return []
    # By slot and UUID; a GPU that is gone is known from earlier samples, or by its place on the PCI bus.
    gpus = (*moment.known_gpus.values(), *moment.now.gpus)
    indexes = {**slots(moment), **{gpu.uuid: gpu.index for gpu in gpus if gpu.uuid}}
    newest: dict[tuple[str, int], SeenXid] = {}
    xids = []
    for event in sorted(events, key=lambda event: event.at):
        code = OFF_BUS if event.kind == "off_bus" else event.code
        if code is None:
            continue
        index = indexes.get(event.subject, indexes.get(slot(event.subject)))
        subject = (slot(event.subject) or "a GPU") if index is None else gpu_name(index)
        xid = SeenXid(event.at, code, _tier(event, code), subject, index, event)
        twin = newest.get((subject, code))
        # The driver also writes a line without a number when it logs Xid 79.
        again = twin is not None and (twin.event.kind, twin.event.source) == (event.kind, event.source)
        if twin is None or again or xid.at - twin.at > SAME_LINE_S:
            newest[subject, code] = xid
            xids.append(xid)
    return xids


def _tier(event: KernelEvent, code: int) -> str:
    """NVLink errors of Blackwell say in their line whether they are fatal; where it does not, they are not."""
    if code in NVLINK5:
        fatal = event.severity == "fatal" or (not event.severity and _FATAL.search(event.text) is not None)
        return HW if fatal else WARN
    return lookup(code).tier


@once_per_moment
def _listed_incidents(moment: Moment) -> list[Incident]:
    """Those whose newest Xid is less than an hour old and of this boot: a reboot is the cure of many."""
    since = _listed_since(moment.now)
    fatal_sxids = [event.at for event in moment.now.kernel_events if event.kind == "sxid" and event.severity == "fatal"]
    by_subject: dict[str, list[Incident]] = {}
    for xid in _seen_xids(moment):
        if xid.tier == ADVICE or _is_of_switch(xid, fatal_sxids):
            continue
        own = by_subject.setdefault(xid.subject, [])
        incident = next((incident for incident in own[:-MOST_OPEN:-1] if incident.takes(xid)), None)
        if incident is None:
            incident = Incident()
            own.append(incident)
        incident.xids.append(xid)
        incident.codes.add(xid.code)
    return [incident for own in by_subject.values() for incident in own if incident.xids[-1].at >= since]


def _listed_since(sample: Sample) -> float:
    """Unix s: an hour ago, or a little before the boot."""
    uptime_s = sample.host.uptime_s
    booted_at = float("-inf") if uptime_s is None else sample.sampled_at - uptime_s - BOOT_SLACK_S
    return max(sample.sampled_at - EVENT_LISTED_S, booted_at)


def _is_of_switch(xid: SeenXid, fatal_sxids: list[float]) -> bool:
    """Whether the node's GPUs logged it because of an NVSwitch's fatal error."""
    return xid.code in _AFTER_SXID and any(abs(xid.at - at) <= CHAIN_S for at in fatal_sxids)


def failed(moment: Moment) -> list[str]:
    """The GPUs, or their slots, that the driver has lost or given up lately."""
    return list(dict.fromkeys(each.gravest.subject for each in _listed_incidents(moment) if each.gravest.tier == HW))


def _of_tier(*tiers: str) -> Callable[[Moment], Iterator[Hit]]:
    def check(moment: Moment) -> Iterator[Hit]:
        for incident in _listed_incidents(moment) if moment.now.kernel_events else ():
            if incident.gravest.tier in tiers:
                yield _hit(moment, incident)

    return check


hardware = _log_rule("gpu.xid.hw", "critical", remedy="reset")(
    meaning="the driver reports a fault that a GPU does not come back from by itself",
    threshold=f"Xid {numbers(HW)}, fatal ones of {_NVLINK5}, and 'GPU has fallen off the bus' without one; listed for "
    f"1 h; Xids within {CHAIN_S:.0f} s* of each other are one incident",
    action="reset the GPU",
    explains=(
        *("gpu.error", "gpu.recovery", "gpu.ecc.dbe_volatile", "gpu.ecc.sram_threshold", "gpu.ecc.sram_aggregate"),
        *("gpu.remap.", "gpu.xid.warn", "gpu.xid.app", "gpu.driver", "nvlink.", "fabric.state", "pcie."),
    ),
    explains_node=("nvml.stuck",),
    adds=True,
    together="{each}",
    whole_node=_OF_ALL,
    whole_node_by={"reboot": _OF_ALL},
    explains_ranks=(*STOPS, *SLOWS),
)(_of_tier(HW))

warnings = _log_rule("gpu.xid.warn", "warning", remedy="restart")(
    meaning="the driver reports a fault that the GPU survives",
    threshold=f"Xid {numbers(WARN)}, non-fatal ones of {_NVLINK5}, and numbers that NVIDIA's catalog lists as unused "
    "or does not have; listed for 1 h",
    action="restart the job",
    explains=("gpu.ecc.sbe_rate", "gpu.recovery", "fabric.state", "nvlink."),
    as_grave=True,
    explains_ranks=(*STOPS, *SLOWS),
)(_of_tier(WARN))

applications = _log_rule("gpu.xid.app", "info")(
    meaning="the driver reports a fault that is most often the program's own",
    threshold=f"Xid {numbers(APP)}, engine exceptions, and those that NVIDIA says to ignore; listed for 1 h",
    action="debug the program",
    precedence=SYMPTOM,
    follows_ranks=(RANK_ENDED,),
)(_of_tier(APP, QUIET))


def _hit(moment: Moment, incident: Incident) -> Hit:
    xid, first = incident.gravest, incident.xids[0]
    same = [other for other in incident.xids if other.code == xid.code]
    of_links = [other.event.text for other in incident.xids if other.code in LINK_XIDS]
    what = lookup(xid.code).what
    head = f"Xid {xid.code}" if "{gpu}" in what else f"Xid {xid.code} on {xid.subject}"
    links = links_of(of_links) if xid.code in LINK_XIDS else ""  # each link that fails has a line of its own
    text, pid = f"{head}: {what.format(gpu=xid.subject)}{links}", xid.event.pid
    if xid.tier == APP and pid is not None:
        text += f" by pid {pid} ({xid.event.process})" if xid.event.process else f" by pid {pid}"
    if len(same) > 1:
        text += f", {len(same)} times since {clock_time(first.at)}"
    if xid.tier == APP and xid.code != CLEANUP:
        text += " – probably your code"
    action, remedy = catalog.advice(xid.code, xid.index), catalog.remedy(xid.code)
    asked = _asked(moment).get(xid.subject) if xid.tier in (HW, WARN) else None
    if asked is not None and (wanted := catalog.recovery_of(asked[1], asked[0])) is not None:
        action, remedy = wanted.action, wanted.remedy
    about = (BRIDGE,) if any(other.code == OFF_BUS for other in incident.xids) else ()
    evidence = (xid.event.text,) if xid.event.text else ()
    others = dict.fromkeys(other.code for other in incident.xids if other.code != xid.code)
    if others:
        with_it = ", ".join(f"Xid {code} ({lookup(code).what.format(gpu='GPU')})" for code in others)
        evidence = (*evidence, f"with it: {with_it}")
    key = str(first.code)
    return Hit(xid.subject, text, evidence, None, action, xid.at, key, remedy, about=about, pid=pid)


@_log_rule("gpu.xid.repeat", "critical", remedy="service")(
    meaning="the same GPU fails again and again",
    threshold=f"{FATAL_TIMES} or more faults of gpu.xid.hw in 24 h, {ONE_OCCURRENCE_S:.0f} s* apart: critical; Xid "
    f"{PAGE_FAULT} in {PAGE_FAULT_TIMES} programs on this GPU and on no other* in 24 h: warning",
    source="NVSentinel's repeat rule; kernel log",
    action="take the node out of the pool and run: dcgmi diag -r 3",
    explains_peers=(),
)
def repeat(moment: Moment) -> Iterator[Hit]:
    if len(moment.now.kernel_events) < PAGE_FAULT_TIMES:
        return
    since = moment.now.sampled_at - REPEAT_S
    lately = [xid for xid in _seen_xids(moment) if xid.at >= since]
    fatal = grouped((xid for xid in lately if xid.tier == HW), lambda xid: xid.subject)
    faults = grouped((xid for xid in lately if xid.code == PAGE_FAULT), lambda xid: xid.subject)
    for subject, xids in fatal.items():
        times = _occurrences(xids)
        if len(times) >= FATAL_TIMES:
            codes = ", ".join(map(str, sorted({xid.code for xid in xids})))
            text = f"{subject}: {len(times)} fatal Xids in 24 h ({codes}): suspect the hardware"
            yield Hit(subject, text, _times(times), "critical", since=times[FATAL_TIMES - 1].at, key="fatal")
    for subject, xids in faults.items():
        pids = set(known(xid.event.pid for xid in xids))
        # A program's own fault shows on any GPU that runs it.
        if len(pids) >= PAGE_FAULT_TIMES and len(faults) == 1:
            programs = f"{len(pids)} programs within 24 h, on no other GPU"
            text = f"{subject}: Xid {PAGE_FAULT} in {programs}: suspect the hardware"
            yield Hit(subject, text, _times(xids), "warning", since=xids[-1].at, key=str(PAGE_FAULT))


def _occurrences(xids: list[SeenXid]) -> list[SeenXid]:
    """The first of each burst."""
    first, last_at = [], float("-inf")
    for xid in xids:
        if xid.at - last_at > ONE_OCCURRENCE_S:
            first.append(xid)
        last_at = xid.at
    return first


def _times(xids: list[SeenXid]) -> tuple[str, ...]:
    return ("at " + ", ".join(f"{clock_time(xid.at)} (Xid {xid.code})" for xid in xids[-8:]),)


@gpu_fault("gpu.recovery", "critical")(
    meaning="the driver says what the GPU needs to work again",
    threshold="any action but none; draining peer-to-peer traffic: warning",
    source="NVML field 230; Xid 154 where that cannot be read",
    action="do what the driver asks for",
    needs=("gpu.*.recovery_action",),
    orders=True,
    explains=("gpu.remap.pending",),
    explains_peers=(),
)
def recovery(moment: Moment) -> Iterator[Hit]:
    for subject, asked in _asked(moment).items():
        index, wanted, evidence, since = asked
        step = catalog.recovery_of(wanted, index) or catalog.Recovery(wanted.replace("_", " "), "", "none")
        text = f"{subject}: the driver asks for: {step.words}"
        severity = critical_if(wanted != "drain_p2p")
        yield Hit(subject, text, (evidence,), severity, step.action, since, remedy=step.remedy)


@once_per_moment
def _asked(moment: Moment) -> dict[str, _Asked]:
    """By GPU. Field 230 is the driver's present word; the last hour's newest Xid 154 speaks where it cannot be read."""
    asked: dict[str, _Asked] = {}
    for gpu in moment.now.gpus:
        if (wanted := gpu.recovery_action) is not None and (gpu.state == "ok" or wanted != "none"):
            asked[gpu_name(gpu.index)] = gpu.index, wanted, "NVML: GPU recovery action", None
    readable, since = set(asked), _listed_since(moment.now)
    for xid in _seen_xids(moment) if moment.now.kernel_events else ():
        if xid.tier == ADVICE and xid.subject not in readable and xid.at >= since:
            number = _CHANGED_TO.search(xid.event.text)
            wanted = catalog.RECOVERY_NAMES.get(int(number[1], 0)) if number else None
            asked[xid.subject] = xid.index, wanted or "none", xid.event.text, xid.at
    return {subject: one for subject, one in asked.items() if one[1] != "none"}


@gpu_fault("gpu.sxid", "critical", remedy="reset")(
    meaning="an NVSwitch reports an error",
    threshold="fatal: critical; non-fatal: info; listed for 1 h",
    source="kernel log, nvidia-nvswitch",
    action="end the jobs, reset all GPUs of the node and restart nvidia-fabricmanager; if it comes back: service",
    needs=("kernel_log",),
    precedence=FABRIC,
    explains_node=("fabric.state", "fabric.manager", "nvlink."),
    explains_ranks=(*STOPS, *SLOWS),
)
def nvswitch(moment: Moment) -> Iterator[Hit]:
    """Lines with data and instance numbers follow each one and say nothing of their own."""
    since = _listed_since(moment.now)
    sxids = (event for event in moment.now.kernel_events if event.kind == "sxid" and event.at >= since)
    alike = grouped(sxids, lambda event: (event.subject, event.code, event.severity))
    for (switch, code, severity), events in alike.items():
        if not severity:
            continue
        fatal, where = severity == "fatal", links_of(event.text for event in events)
        times = f", {len(events)} times" if len(events) > 1 else ""
        evidence = [events[-1].text] if events[-1].text else []
        if fatal:
            followed = (xid for xid in _seen_xids(moment) if _is_of_switch(xid, [events[0].at]))
            after = Counter(f"Xid {xid.code} on {xid.subject}" for xid in followed)
            evidence += [f"then {', '.join(after)}"] if after else []
        yield Hit(
            f"NVSwitch {switch}",
            f"SXid {code}: {'fatal' if fatal else 'non-fatal'} error of NVSwitch {switch}{where}{times}",
            tuple(evidence),
            severity="critical" if fatal else "info",
            action="" if fatal else "none needed; watch for more",
            remedy="reset" if fatal else "watch",
            about=tuple(gpu_name(gpu.index) for gpu in moment.now.gpus) if fatal else (),
            since=events[0].at,
            key=f"{code} {severity}",
        )
