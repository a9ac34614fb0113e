"""Is a device slow at copying within its memory: against its own history, then its peers; the table is for reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mltop.probes.judge.probes.compare import memory_key
from mltop.probes.judge.probes.corruption import REPLACE
from mltop.probes.judge.probes.devices import (
    Rated,
    alike,
    compared,
    device_name,
    doubt,
    first_sentences,
    suspect,
    unknown_past,
)
from mltop.probes.judge.probes.hardware.peaks import COPY_SOURCE, peak_of
from mltop.probes.judge.probes.reasons import Throttle, other_versions, throttle_of, throttle_words
from mltop.probes.judge.values import grouped
from mltop.probes.model.probe import MemoryResult, PastResult, Phase, ProbeVerdict, Suspect
from mltop.probes.model.units import percent_span_words, rate_words, span

_LOOK = "nvidia-smi -q -d CLOCK,ECC,ROW_REMAPPER, mltop check; if it stays: dcgmi diag -r 3"
_LOOK_CPU = "look for other load, missing memory channels (dmidecode -t memory) and the power profile"

RatedMemory = Rated[MemoryResult]


def judge_memory(results: Sequence[MemoryResult], past: Sequence[PastResult] = ()) -> ProbeVerdict:
    """One sentence, who is accused and why, and the rest as details."""
    groups = _groups(results, past)
    if not groups:
        return ProbeVerdict("nothing was measured")
    damaging = [result for result in results if result.copy_bytes_per_s is not None and result.intact is False]
    slow = [(rated, group) for group in groups for rated in group if rated.slow and rated.result.intact is not False]
    parts = [f"{device_name(result)} damages what it copies" for result in damaging]
    parts += [part for group in groups for part in _headline(group, several=len(groups) > 1)]
    worst_first = sorted(slow, key=lambda member: -member[0].slower)
    parts += first_sentences([f"{device_name(rated.result)} is {_text(rated, group)}" for rated, group in worst_first])
    details = [line for group in groups for line in _against_table(group)]
    reason = "what it copied within its memory did not arrive as it was sent"
    suspects = [suspect(result, reason, f"{device_name(result)}: {REPLACE}") for result in damaging]
    return ProbeVerdict("; ".join(parts), [*suspects, *(_suspect(*member) for member in slow)], details)


def _groups(results: Sequence[MemoryResult], past: Sequence[PastResult]) -> list[list[RatedMemory]]:
    """Those that were measured, the largest group first: alike are model (or MIG profile), size and threads."""

    def alike_by(result: MemoryResult) -> tuple[object, ...]:
        return (result.kind, result.name, result.size_bytes, result.threads)

    every = compared(results, lambda result: result.copy_bytes_per_s, alike_by, memory_key, past)
    groups = grouped(every, lambda rated: alike_by(rated.result))
    return sorted(groups.values(), key=lambda group: -len(group))


def _headline(group: list[RatedMemory], several: bool) -> Iterator[str]:
    rest = [rated for rated in group if not rated.slow]
    if not rest:
        return
    first = rest[0].result
    model = f"{first.name}: " if several and first.name else ""
    if len(group) > 1:
        yield f"{model}{alike(rest, [rated.result for rated in group], rate_words)} within their memory"
        return
    path = f" ({first.code_path})" if first.code_path else ""
    whose = f"their memory{path}" if first.kind == "cpu" else "its memory"
    yield f"{model}{device_name(first)}: {rate_words(rest[0].rate)} within {whose}{unknown_past(rest[0])}"


def _suspect(rated: RatedMemory, group: Sequence[RatedMemory]) -> Suspect:
    throttled = _throttle(rated)
    action = _LOOK_CPU if rated.result.kind == "cpu" else throttled[0].action if throttled else _LOOK
    return suspect(rated.result, _text(rated, group), f"{device_name(rated.result)}: {action}")


def _text(rated: RatedMemory, group: Sequence[RatedMemory]) -> str:
    throttled = _throttle(rated)
    if throttled is not None:
        return f"{rated.against()}: held back by {throttle_words(*throttled)}"
    versions = other_versions(rated.result, [other.result for other in group if other is not rated])
    why = f"it has {versions}" if versions else "nothing that was measured shows why"
    return f"{rated.against()}: {why}"


def _throttle(rated: RatedMemory) -> tuple[Throttle, Phase] | None:
    throttled = ((throttle_of(phase), phase) for phase in rated.result.phases)
    return next(((throttle, phase) for throttle, phase in throttled if throttle is not None), None)


def _against_table(group: Sequence[RatedMemory]) -> Iterator[str]:
    first = group[0].result
    peak = peak_of(first.name, first.pci_device) if first.kind == "gpu" else None
    if peak is None:
        return
    rates = [rated.rate for rated in group]
    if peak.copy_bytes_per_s is not None:
        good = peak.copy_bytes_per_s[0]
        share = percent_span_words(rate / good for rate in rates)
        of = f"{share} of the {rate_words(good)} that good ones copy ({COPY_SOURCE})"
        yield f"{span(rates, rate_words)}, {of}{doubt(rates, good, peak.certain, 'clocks, ECC and the driver')}"
    floor = peak.copy_floor_bytes_per_s
    below = sum(floor is not None and rate < floor for rate in rates)
    if below and floor is not None:
        yield f"{below} of {len(group)} below the {rate_words(floor)} that DCGM's diagnostic asks of this model"
