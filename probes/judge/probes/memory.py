"""Is a device slow at copying within its memory: against its own history, then its peers; the table is for reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mltop.probes.judge.probes import numbers
from mltop.probes.judge.probes.compare import RateLook, alike, looks, memory_key, span, unknown_past
from mltop.probes.judge.probes.devices import device_name
from mltop.probes.judge.probes.hardware.peaks import COPY_SOURCE, peak_of
from mltop.probes.model.probe import MemoryResult, PastResult, ProbeFailure, ProbeVerdict, Suspect

NEAR_TABLE = 0.9  # of what good ones copy; below it is told, never accused
HELD = 0.05  # of the time: a throttle reason that held less explains nothing
_THROTTLED = {
    "power_brake": ("the external power brake", "check PSU, PDU and the BMC's event log"),
    "hw_thermal": ("HW thermal slowdown", "check fans, inlet temperature and the neighbours"),
    "sw_thermal": ("thermal slowdown", "check fans, inlet temperature and the neighbours"),
    "hw_slowdown": ("HW slowdown", "check PSU, PDU and the BMC's event log"),
}
_LOOK = "nvidia-smi -q -d CLOCK,ECC,ROW_REMAPPER, mltop check; if it stays: dcgmi diag -r 3"
_LOOK_CPU = "look for other load, missing memory channels (dmidecode -t memory) and the power profile"
_REPLACE = "take it out of service, run it again to confirm, then dcgmi diag -r 3"
_SAID = 4


def judge_memory(
    results: Sequence[MemoryResult], past: Sequence[PastResult] = (), failures: Sequence[ProbeFailure] = ()
) -> ProbeVerdict:
    """One sentence, who is accused and why, and the rest as details."""
    measured = [result for result in results if result.copy_bytes_per_s is not None]
    if not measured:
        return ProbeVerdict("nothing was measured", details=[_failure(failure) for failure in failures])
    damaging = {id(result) for result in measured if result.intact is False}
    wrong = [_wrong(result) for result in measured if result.intact is False]
    groups = _groups(measured, past)
    slow = [(look, group) for group in groups for look in group if look.slow and id(look.result) not in damaging]
    suspects = [*wrong, *(_suspect(look, group) for look, group in slow)]
    parts = [f"{device_name(result)} damages what it copies" for result in measured if result.intact is False]
    parts += [part for group in groups for part in _headline(group, several=len(groups) > 1)]
    parts += _slow_sentences(slow)
    details = [line for group in groups for line in _against_table(group)]
    details += [_failure(failure) for failure in failures]
    return ProbeVerdict("; ".join(parts), suspects, details)


def _groups(measured: list[MemoryResult], past: Sequence[PastResult]) -> list[list[RateLook]]:
    """The largest first. Alike are model (or MIG profile), size and, of processors, the number of threads."""
    keys = {place: (one.kind, one.name, one.size_bytes, one.threads) for place, one in enumerate(measured)}
    found = looks(
        {place: one.copy_bytes_per_s or 0.0 for place, one in enumerate(measured)},
        measured,
        keys,
        {place: memory_key(one) for place, one in enumerate(measured)},
        past,
    )
    groups: dict[object, list[RateLook]] = {}
    for place in range(len(measured)):
        groups.setdefault(keys[place], []).append(found[place])
    return sorted(groups.values(), key=lambda group: -len(group))


def _headline(group: list[RateLook], several: bool) -> Iterator[str]:
    rest = [look for look in group if not look.slow]
    if not rest:
        return
    first = rest[0].result
    model = f"{first.name}: " if several and first.name else ""
    if len(group) == 1:
        whose = f"their memory{_with_what(first)}" if first.kind == "cpu" else "its memory"
        said = f"{device_name(first)}: {numbers.rate(rest[0].rate)} within {whose}"
        yield f"{model}{said}{unknown_past(rest[0])}"
        return
    yield f"{model}{alike(rest, len(group))} within their memory"


def _with_what(result: object) -> str:
    path = result.code_path if isinstance(result, MemoryResult) else ""
    return f" ({path})" if path else ""


def _slow_sentences(slow: Sequence[tuple[RateLook, Sequence[RateLook]]]) -> list[str]:
    ordered = sorted(slow, key=lambda one: -one[0].slower)
    said = [f"{device_name(look.result)} is {_text(look, group)}" for look, group in ordered[:_SAID]]
    left = len(ordered) - _SAID
    return [*said, f"{left} more are slow"] if left > 0 else said


def _suspect(look: RateLook, group: Sequence[RateLook]) -> Suspect:
    result = look.result
    action = _LOOK_CPU if result.kind == "cpu" else (_throttle(look) or ("", _LOOK))[1]
    return Suspect(
        result.node,
        _text(look, group),
        gpu=result.gpu,
        uuid=result.uuid,
        action=f"{device_name(result)}: {action}",
    )


def _text(look: RateLook, group: Sequence[RateLook]) -> str:
    held = _throttle(look)
    if held is not None:
        why = f"held back by {held[0]}"
    else:
        why = _other_versions(look, group) or "nothing that was measured shows why"
    return f"{look.against()}: {why}"


def _throttle(look: RateLook) -> tuple[str, str] | None:
    """(what held it, what to do)"""
    for phase in look.result.phases:
        for reason, words in _THROTTLED.items():
            share = phase.throttle_share.get(reason, 0.0)
            if share >= HELD:
                often = "" if share >= 0.9 else f" {numbers.percent(share)} of the time"
                return words[0] + often, words[1]
    return None


def _other_versions(look: RateLook, group: Sequence[RateLook]) -> str:
    others = [one.result.versions for one in group if one is not look]
    different = [
        f"{what} {mine} (others {others[0].get(what)})"
        for what, mine in sorted(look.result.versions.items())
        if others and all(one.get(what) == others[0].get(what) != mine for one in others)
    ]
    return f"it has {numbers.listed(different)}" if different else ""


def _wrong(result: MemoryResult) -> Suspect:
    reason = "what it copied within its memory did not arrive as it was sent"
    return Suspect(result.node, reason, gpu=result.gpu, uuid=result.uuid, action=f"{device_name(result)}: {_REPLACE}")


def _against_table(group: Sequence[RateLook]) -> Iterator[str]:
    first = group[0].result
    peak = peak_of(first.name, first.pci_device) if first.kind == "gpu" else None
    if peak is None:
        return
    rates = [look.rate for look in group]
    if peak.copy_bytes_per_s is not None:
        good = peak.copy_bytes_per_s[0]
        share = numbers.percent_span(rate / good for rate in rates)
        line = f"{span(rates)}, {share} of the {numbers.rate(good)} that good ones copy ({COPY_SOURCE})"
        if not peak.certain:
            line += "; that figure is not certain"
        elif min(rates) < NEAR_TABLE * good:
            line += "; clocks, ECC and the driver can make such a difference"
        yield line
    floor = peak.copy_floor_bytes_per_s
    below = [look for look in group if floor is not None and look.rate < floor]
    if below and floor is not None:
        yield f"{len(below)} of {len(group)} below the {numbers.rate(floor)} that DCGM's diagnostic asks of this model"


def _failure(failure: ProbeFailure) -> str:
    who = f"GPU {failure.gpu} on {failure.node}" if failure.gpu is not None else failure.node
    return f"{who}: {failure.why}"
