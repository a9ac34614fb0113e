"""What is taken of a sample or a dump that came from elsewhere: a node, a recording, a capture.

Neither is trusted. What cannot be is left out, and a gap says so with the value; of what is more than any machine has,
the first are taken, and a gap says how many there were. So whoever judges, adds up or draws has bounded work and meets
no number that breaks arithmetic, a calendar or a column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from operator import attrgetter
from typing import Any, Callable, TypeVar

from mltop.probes.model.gap import Gap
from mltop.probes.model.gpu import GpuSample, Nvlink
from mltop.probes.model.sample import (
    MAX_KERNEL_EVENTS,
    MAX_LOG_LINES,
    HostSample,
    LinkSample,
    LogLine,
    RankDeath,
    RankSample,
    Sample,
)
from mltop.probes.model.text import plain_text
from mltop.probes.model.verdict import Frame, RankStacks, StackDigest

MOST_GPUS = 256  # of one node: the largest have 16, and 72 behind one NVLink switch
MOST_RANKS = 8192  # of one node: more than any has processors
MOST_UNASSIGNED = 4096  # processes of one node that belong to no job
MOST_DEATHS = 8192
MOST_RANK_NUMBERS = 1 << 24  # of one job: more than any has processors
MOST_PIDS = 1 << 32
MOST_TIME_S = 1e11  # unix s: the year 5138; calendars end soon after
MOST_NUMBER = 1e24  # beyond any counter and any size in bytes
# Of a probe's result: its figures (bytes/s, FLOPs, iterations), temperatures and -1 for "no NUMA node", ranks.
MOST_FIGURE = 1e18
MOST_NEGATIVE = 300
MOST_PROBE_RANKS = 65_536
MOST_FIGURES = 65_536  # of one list: every iteration of a collective
_COUNTS = ("rank", "ranks", "gpu", "index", "to_gpu", "round", "group", "wrong_ranks")
LONGEST_TEXT = 16_384  # characters of one value
MOST_SENTENCE = 4096  # characters
_TIMES = ("since", "until", "at")
LARGE_BYTES = 256 * 1024  # a sample's JSON: 8 GPUs and as many ranks make 80 KB
MOST_SAID = 8  # values left out that have a gap of their own; the rest is counted

_THROTTLE = ("throttle_reasons", "throttle_ns", "throttle_share")
# How much of what may repeat is taken.
_MOST: dict[type, dict[str, int]] = {
    Sample: {
        "unassigned": MOST_UNASSIGNED,
        "deaths": MOST_DEATHS,
        "links": 1024,
        "pci": 4096,
        "gaps": 4096,
        "cost_s": 64,
    },
    HostSample: {"blocked": 4096, "cgroups": 8192, "filesystems": 4096, "services": 256, "modules": 256},
    GpuSample: {"processes": 4096, "mig_instances": 64, **dict.fromkeys(_THROTTLE, 32)},
    Nvlink: {"links": 256},
    Gap: {"fields": 256},
    RankSample: {"children": 65_536, "settings": 512, "parallel": 32, "versions": 64},
    LinkSample: {"counters": 1024, "saturated": 64},
    RankStacks: {"digests": 4096, "raw": 4096},
    StackDigest: {"frames": 1024, "holds": 64},
    Frame: {"ints": 256},
    LogLine: {"named": 256},
}
# Below which fields such a record may be.
_PARTS: dict[type, tuple[str, ...]] = {
    Sample: ("host", "gpus", "ranks", "unassigned", "log_lines", "links", "gaps"),
    GpuSample: ("nvlink",),
    RankStacks: ("digests",),
    StackDigest: ("frames",),
}
# Whose own numbers are looked at in every sample, and below which fields of a sample they are.
_OF_HOST = ("host", "host.pressure", "host.filesystems", "host.cgroups", "host.blocked")
_LOOKED_AT = tuple(
    map(attrgetter, (*_OF_HOST, "gpus", "ranks", "unassigned", "deaths", "log_lines", "links", "pci", "kernel_events"))
)
_numbers_of: dict[type, tuple[str, ...]] = {}

Entry = TypeVar("Entry")


class Refused(ValueError):
    """Nothing of it can be taken; the text says why."""


class LeftOut:
    """What was left out, as gaps."""

    def __init__(self) -> None:
        self._gaps: list[Gap] = []
        self._more = 0

    def value(self, what: str, value: object) -> None:
        if len(self._gaps) < MOST_SAID:
            self._gaps.append(Gap(what, f"left out: the node says {said(value)}, which cannot be", code="left_out"))
        else:
            self._more += 1

    def rest(self, what: str, count: int, most: int) -> None:
        self._gaps.append(Gap(what, f"only {most} of {count} are taken: no machine has so many", code="left_out"))

    def gaps(self) -> list[Gap]:
        more = [Gap("sample", f"{self._more} more values are left out, which cannot be")] if self._more else []
        return self._gaps + more


def admit(sample: Sample, is_large: bool = True) -> list[Gap]:
    """Bring ``sample``, just decoded, within bounds, in place. Returns gaps for what was left out.

    ``is_large``: its JSON is: else, when no number at the usual places is suspect, its values need not be gone through
    one by one. Raises Refused for one without a time.
    """
    if not 0 <= sample.sampled_at <= MOST_TIME_S:
        raise Refused(f"its sampled_at, {said(sample.sampled_at)}, is no time")
    left_out = LeftOut()
    if not 0 < sample.interval_s <= 86_400:
        left_out.value("interval_s", sample.interval_s)
        sample.interval_s = 1.0
    sample.gpus = _distinct(sample.gpus, "gpu", lambda gpu: gpu.index, MOST_GPUS, left_out)
    sample.ranks = _distinct(sample.ranks, "rank", lambda rank: rank.pid, MOST_PIDS, left_out)
    if len(sample.ranks) > MOST_RANKS:
        left_out.rest("ranks", len(sample.ranks), MOST_RANKS)
        del sample.ranks[MOST_RANKS:]
    sample.unassigned = _distinct(sample.unassigned, "unassigned", lambda rank: rank.pid, MOST_PIDS, left_out)
    for rank in (*sample.ranks, *sample.unassigned):
        _admit_rank(rank, left_out)
    sample.deaths = [death for death in sample.deaths if _admit_death(death, left_out)]
    sample.kernel_events = [
        event for event in sample.kernel_events[-MAX_KERNEL_EVENTS:] if _is_time(event.at, "kernel_log", left_out)
    ]
    sample.log_lines = [line for line in sample.log_lines[-MAX_LOG_LINES:] if _admit_log_line(line, left_out)]
    _cut(sample, left_out)
    if is_large or _is_suspect(sample):
        _walk(sample, "", left_out)
    return left_out.gaps()


def admit_stacks(stacks: RankStacks) -> None:
    """The same of one rank's dump, whose gaps nobody would see. Raises Refused for one whose pid or time cannot be."""
    if not 0 < stacks.pid < MOST_PIDS or not 0 <= stacks.taken_at <= MOST_TIME_S:
        raise Refused(f"it says that it dumped pid {said(stacks.pid)} at {said(stacks.taken_at)}")
    left_out = LeftOut()
    stacks.rank = _rank_number(stacks.rank)
    for rank in (stacks.before, stacks.after):
        if rank is not None:
            _admit_rank(rank, left_out)
    _cut(stacks, left_out)
    for digest in stacks.digests:
        digest.rank = _rank_number(digest.rank)
        if digest.taken_at is not None and not 0 <= digest.taken_at <= MOST_TIME_S:
            digest.taken_at = None
    raw, stacks.raw = stacks.raw, []  # is only written out again
    _walk(stacks, "", left_out)
    stacks.raw = raw


def admit_result(result: Any) -> None:
    """One result of a probe, just decoded: a dataclass of numbers, texts, lists and tables. Raises Refused."""
    for item in fields(result):
        _admit_figure(getattr(result, item.name), item.name)


def _admit_figure(value: Any, name: str) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not -MOST_NEGATIVE <= value <= MOST_FIGURE or (name in _COUNTS and not 0 <= value <= MOST_PROBE_RANKS):
            raise Refused(f"it says {name} is {said(value)}")
    elif isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise Refused(f"{name} has {len(value)} characters")
    elif isinstance(value, (list, dict)):
        if len(value) > MOST_FIGURES:
            raise Refused(f"{name} has {len(value)} entries")
        for entry in value.values() if isinstance(value, dict) else value:
            _admit_figure(entry, name)
    elif is_dataclass(value):
        admit_result(value)


def admit_told(value: Any, name: str = "") -> Any:
    """JSON that people will read, as it was decoded: every text one plain line. Raises Refused for a number that cannot
    be.
    """
    if isinstance(value, str):
        return plain_text(value, MOST_SENTENCE)
    if isinstance(value, dict):
        return {key: admit_told(each, key) for key, each in zip(map(plain_text, value), value.values())}
    if isinstance(value, list):
        return [admit_told(each, name) for each in value]
    least, most = (0, MOST_TIME_S) if name in _TIMES else (-MOST_NUMBER, MOST_NUMBER)
    if isinstance(value, (int, float)) and not least <= value <= most:
        raise Refused(f"it says {name} is {said(value)}")
    return value


def said(value: object) -> str:
    """A value in a sentence, however long it is."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"a number of {math.ceil(value.bit_length() * math.log10(2))} digits"
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _admit_rank(rank: RankSample, left_out: LeftOut) -> None:
    for name, least in (("rank", 0), ("local_rank", 0), ("world_size", 1), ("local_world_size", 1)):
        value = getattr(rank, name)
        if value is not None and not least <= value <= MOST_RANK_NUMBERS:
            left_out.value(f"rank.{rank.pid}.{name}", value)
            setattr(rank, name, None)
    if rank.started_at is not None and not _is_time(rank.started_at, f"rank.{rank.pid}.started_at", left_out):
        rank.started_at = None
    if any(not 0 <= place <= MOST_RANK_NUMBERS for place in rank.parallel.values()):
        left_out.value(f"rank.{rank.pid}.parallel", next(iter(rank.parallel.values())))
        rank.parallel = {}
    if any(not 0 <= index < MOST_GPUS for index in rank.gpus):
        rank.gpus = [index for index in rank.gpus if 0 <= index < MOST_GPUS]


def _admit_death(death: RankDeath, left_out: LeftOut) -> bool:
    """Whether it can be: of a process, at a time. Two deaths may have one pid: it was used again."""
    death.rank = _rank_number(death.rank)
    if not 0 <= death.pid < MOST_PIDS:
        left_out.value("deaths", death.pid)
        return False
    return death.at is None or _is_time(death.at, f"deaths.{death.pid}.at", left_out)


def _admit_log_line(line: LogLine, left_out: LeftOut) -> bool:
    line.rank = _rank_number(line.rank)
    line.named = [rank for rank in line.named if _rank_number(rank) is not None]
    if not 0 <= line.line <= MOST_NUMBER or (line.pid is not None and not 0 <= line.pid < MOST_PIDS):
        left_out.value("log_lines", line.line)
        return False
    return _is_time(line.at, "log_lines", left_out)


def _rank_number(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= MOST_RANK_NUMBERS else None


def _is_time(at: float, what: str, left_out: LeftOut) -> bool:
    if 0 <= at <= MOST_TIME_S:
        return True
    left_out.value(what, at)
    return False


def _distinct(
    entries: Iterable[Entry], what: str, number_of: Callable[[Entry], int], most: int, left_out: LeftOut
) -> list[Entry]:
    """Those whose number can be, each number once: rows, cells and histories are found by it."""
    by_number: dict[int, Entry] = {}
    for entry in entries:
        number = number_of(entry)
        if not 0 <= number < most:
            left_out.value(what, number)
        elif number in by_number:
            left_out.value(what, f"{number} twice")
        else:
            by_number[number] = entry
    return list(by_number.values())


def _cut(record: Any, left_out: LeftOut) -> None:
    """Lists and tables that are too long, in ``record`` and below."""
    for name, most in _MOST[type(record)].items():
        value = getattr(record, name)
        if value is not None and len(value) > most:
            left_out.rest(name, len(value), most)
            setattr(record, name, dict(list(value.items())[:most]) if isinstance(value, dict) else value[:most])
    for name in _PARTS.get(type(record), ()):
        part = getattr(record, name)
        for entry in part if isinstance(part, list) else () if part is None else (part,):
            _cut(entry, left_out)


def _is_suspect(sample: Sample) -> bool:
    """A quick look: this runs for every sample."""
    for part in (part_of(sample) for part_of in _LOOKED_AT):
        if any(map(_has_suspect, part)) if isinstance(part, list) else _has_suspect(part):
            return True
    return any(not -MOST_NUMBER <= cost_s <= MOST_NUMBER for cost_s in sample.cost_s.values())


def _has_suspect(record: Any) -> bool:
    names = _numbers_of.get(type(record))
    if names is None:
        kinds = ("int", "float", "int | None", "float | None")
        names = _numbers_of[type(record)] = tuple(item.name for item in fields(record) if item.type in kinds)
    values = vars(record)  # without those that were not sent
    for name in names:
        value = values.get(name)
        if value is not None and not -MOST_NUMBER <= value <= MOST_NUMBER:
            return True
    return False


def _walk(record: Any, path: str, left_out: LeftOut) -> None:
    """Every value below ``record``: in place of one that cannot be, what the field holds when nothing is known."""
    for item in fields(record):
        value = getattr(record, item.name)
        if _is_kept(value, f"{path}{item.name}", left_out):
            admitted = _below(value, f"{path}{item.name}", left_out)
        else:
            admitted = item.default if item.default is not MISSING else 0
        if admitted is not value:
            setattr(record, item.name, admitted)


def _below(value: Any, path: str, left_out: LeftOut) -> Any:
    """``value`` itself, or what may be kept of it."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT]
    if is_dataclass(value):
        _walk(value, f"{path}.", left_out)
    elif isinstance(value, list):
        return [_below(entry, path, left_out) for entry in value if _is_kept(entry, path, left_out)]
    elif isinstance(value, dict):
        entries = {name: entry for name, entry in value.items() if _is_kept(entry, f"{path}.{name[:80]}", left_out)}
        return {name[:256]: _below(entry, path, left_out) for name, entry in entries.items()}
    return value


def _is_kept(value: Any, path: str, left_out: LeftOut) -> bool:
    if not isinstance(value, (int, float)) or abs(value) <= MOST_NUMBER:
        return True
    left_out.value(path, value)
    return False
