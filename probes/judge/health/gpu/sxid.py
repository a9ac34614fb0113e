"""Errors of NVSwitches, and what the GPUs log because of them. Source: nvidia-nvswitch lines of the kernel log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mltop.probes.judge.health.gpu.xid_events import booted_at, on_switch_fault
from mltop.probes.judge.health.names import gpu_name, links_of
from mltop.probes.judge.health.rule import EVENT_LISTED_S, FABRIC, Hit, Moment, Rule
from mltop.probes.model import KernelEvent


def sxid(moment: Moment) -> Iterator[Hit]:
    """Lines with data and instance numbers follow each one and say nothing of their own."""
    since = max(moment.now.sampled_at - EVENT_LISTED_S, booted_at(moment.now))
    found: dict[tuple[str, int | None, str], list[KernelEvent]] = {}
    for event in moment.now.kernel_events:
        if event.kind == "sxid" and event.at >= since and event.severity:
            found.setdefault((event.subject, event.code, event.severity), []).append(event)
    for (switch, code, severity), events in found.items():
        yield _sxid(moment, switch, code, severity, events)


def _sxid(moment: Moment, switch: str, code: int | None, severity: str, events: list[KernelEvent]) -> Hit:
    fatal = severity == "fatal"
    where = links_of(event.text for event in events)
    times = f", {len(events)} times" if len(events) > 1 else ""
    evidence = [events[-1].text] if events[-1].text else []
    if fatal:
        after = Counter(f"Xid {one.code} on {one.subject}" for one in on_switch_fault(moment, events[0].at))
        evidence += [f"then {', '.join(after)}"] if after else []
    return Hit(
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


RULES = (
    Rule(
        "gpu.sxid",
        "critical",
        0.0,
        "end the jobs, reset all GPUs of the node and restart nvidia-fabricmanager; if it comes back: service",
        sxid,
        meaning="an NVSwitch reports an error",
        threshold="fatal: critical; non-fatal: info; listed for 1 h",
        source="kernel log, nvidia-nvswitch",
        needs=("kernel_log",),
        remedy="reset",
        precedence=FABRIC,
    ),
)
