"""What stands in front of a line: who wrote it, and when. Launchers put theirs before the program's own, in any order.

Stamps without a zone are of this machine's; those without a year are of the year in which they lie before the file's
last change.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mltop.probes.model.evidence.logs import Speaker

_COLOURS_LEFT = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")  # what is copied from a terminal has lost its escapes
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b[()][0-9A-B]")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY_S = 86400.0

# Severity, month, day, time of c10 and of torch's own Python loggers: "E1103 10:00:05.123456789", "W709 …".
_C10 = re.compile(r"\[?([IWEF])(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(\.\d{1,9})?\b")
_ISO = re.compile(
    r"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[T_ ](\d\d):(\d\d):(\d\d)([.,]\d{1,9})?(?: ?(Z|[+-]\d\d:?\d\d))?(?![\d:])"
)
_SYSLOG = re.compile(r"\b([JFMASOND][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(\.\d{1,9})?\b")
_DMESG = re.compile(r"\[[A-Z][a-z]{2} ([JFMASOND][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) (20\d\d)\]")  # dmesg -T

_TIME = re.compile(r":\d\d:\d\d")  # in every stamp

# "[rank3]:", "[default3]:", "(RayTrainWorker pid=811, ip=10.0.0.2)", "(VllmWorker rank=7 pid=410)", "(raylet)",
# "[2025-03-11 03:17:15 DP1 TP4]", "[rank: 3]": brackets whose words are read one by one (`_WORDS_IN_BRACKETS`).
_BRACKETS = re.compile(r"\s*(?:\[([^\[\]\n]{1,100})\]|\(([^()\n]{1,120})\))(:?) ?")
_OF_A_CHILD = re.compile(r"\s*\[rank: \d{1,8}\] Child process")  # Lightning's launcher, about another process
_WORDS_IN_BRACKETS = re.compile(
    r"(?:(?:mpi)?rank|RANK)[:=]? ?(?P<rank>\d{1,8})\b|pid=(?P<pid>\d{1,8})\b|ip=(?P<ip>[\w.:-]{1,60})\b"
    r"|node_id=\w{1,80}"
    r"|(?P<process>(?!rank|pid|ip|node_id)[A-Za-z_][\w.:-]{0,80})(?![=\w])"
)
_STAMPED = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})? ")
_PARALLEL = re.compile(r"(?:(?:ATTN_)?(?:DP|TP|PP|EP|CP)\d{1,5}[ _]?)+")
_ONLY_TENSOR_PARALLEL = re.compile(r"(?:Worker_)?TP(\d{1,5})(?:_(?:D?CP|EP)\d{1,5})*")
# "default3", "node01:3" of TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE; a host has a digit, and is no file: "utils2.py:57"
_LOCAL = re.compile(
    r"(?:(?P<node>(?=[A-Za-z.-]{0,80}\d)[A-Za-z][\w.-]{0,80})(?<!\.py)(?<!\.cc)(?<!\.cpp)(?<!\.cu):(?=\d{1,2}$)"
    r"|[A-Za-z_][\w-]{0,40}?)(?P<local>\d{1,4})"
)
# Prefixes whose groups are the fields that they say: containerd's and CRI-O's files, kubectl logs --prefix and
# Determined's trial logs, NVRx's monitor of one rank, NCCL, MPI, srun, the kernel. Of MPI: "[1,3]<stderr>: " of mpirun
# --tag-output: job, rank; "[3]<stderr>:" of horovodrun; SageMaker's "[1,mpirank:3,algo-2]<stderr>:".
_PREFIXES = (
    re.compile(
        r"20\d\d-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] |\[pod/[\w./-]{1,200}\] "
        r"|\[20\d\d-\d\d-\d\dT[\d:.]{8,18}Z\] (?:[0-9a-f]{8} )?(?:\[rank=(?P<rank>\d{1,8})\] )?\|\| "
    ),
    re.compile(r"\s*\[RankMonServer(?P<pid>\d{1,8})@(?P<node>[\w.-]{1,80}):(?P<rank>\d{1,8})\]:? ?"),
    re.compile(r"\s*(?:\[[^\]\n]{8,40}\] )?(?P<node>[\w.-]{1,80}):(?P<pid>\d{1,8}):\d{1,8} \[\d{1,3}\] "),
    re.compile(
        r"\s*(?:20\d\d-[\dT:.-]{10,22}Z?: )?\[(?:[\w.@-]{1,80}@)?(?:\d{1,8},)?(?:mpirank:)?(?P<task>\d{1,6})"
        r"(?:,(?P<node>[\w.-]{1,60}))?\]<std(?:out|err)>:? ?"
    ),
    re.compile(r"\s*(?P<task>\d{1,6}): "),
    re.compile(r"\s*(?:\w{3} [ \d]\d [\d:.]+|[\dT:.+-]{19,35}) (?P<node>[\w.-]{1,80}) kernel: "),
)
# What other tools put in front: a stamp (kubectl, docker), a number of the line (editors, cat), a pod, a host
# (pdsh), a file (grep). Only where a prefix follows that is known.
_KNOWN = r"(?=\[rank\d{1,8}\]:|\[[A-Za-z_][\w-]{0,40}?\d{1,4}\]: ?\[|\([\w:.\[\]=, -]{1,110}?pid=\d)"
_OTHERS = (
    r"\[[^\[\]\n]{1,120}\]:?",
    r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?",
    r"[^\s\[\]()\"']{1,200}(?: std(?:out|err) [FP])?(?: \|)?",
)
_STRANGE = re.compile(rf"\s*(?:{'|'.join(_OTHERS)})[ \t]*{_KNOWN}")
# Loggers' own formats: stamp and level before the rank, or fields after the message.
_LISTED = re.compile(r"world_rank=(\d{1,8})\b")  # Ray Train's list of its workers: after a worker's address and pid
_FIELD_AT_END = re.compile(r"20\d\d-\d\d-\d\dT[\d:.]{8,18}Z +[A-Z]{4,5} .{0,4000} rank=(\d{1,8})$")  # Rust's tracing
_LOGGED = re.compile(
    r"(?:(?:20\d\d-\d\d-\d\d[T ][\d:.,]{8,18}Z?|\[[^\[\]\n]{1,60}\]|[A-Z]{4,8}|[-|:]) {0,3}){1,5}"
    r"(?=\[(?:rank|RANK)[ :=]{0,2}\d{1,8}\])"
)
_BY_HOST, _LEAST_BY_HOST = 0.8, 4  # share of lines, and how many there must be
_NO_HOST = re.compile(r"(?:Error|Exception|Warning|Interrupt|Exit)$|^[A-Z]+$|^\d+$")
_HOST = re.compile(r"\s*([A-Za-z\d][\w.-]{0,80}): ")
_CONTAINER = re.compile(r"([A-Za-z\d][\w.-]{0,80}) +\| ?")  # docker compose
_SPLIT = re.compile(r"(?<=[^\s:)\]])(?=\[rank\d{1,8}\]:)|(?<=[\] ])(?=\[rank\d{1,8}\]:\[[EWIF])")


def without_colours(line: str) -> str:
    if "\x1b" in line:
        return _COLOUR.sub("", line)
    return _COLOURS_LEFT.sub("", line) if line.startswith("[") and _COLOURS_LEFT.match(line) else line


def pieces(line: str) -> list[str]:
    """A line in which other processes' writes begin in the middle, cut where they do."""
    return [piece for piece in _SPLIT.split(line) if piece] if "[rank" in line[1:] else [line]


@dataclass(frozen=True)
class Clock:
    """How the stamps of one file are read: ``written_at``: its last change, unix s."""

    written_at: float

    def stamp(self, text: str) -> float | None:
        """Of the first stamp in ``text``; unix s."""
        match = _C10.search(text)
        if match is not None and match.start() < 64:
            _, month, day, *clock = match.groups()
            return self._without_year(int(month), int(day), clock)
        match = _ISO.search(text)
        if match is not None:
            year, month, day, hour, minute, second, part, zone = match.groups()
            return _unix((int(year), int(month), int(day), int(hour), int(minute), int(second)), part, zone)
        match = _DMESG.search(text)
        if match is not None and match[1] in _MONTHS:
            name, *parts, year = match.groups()
            day, hour, minute, second = map(int, parts)
            return _unix((int(year), _MONTHS.index(name) + 1, day, hour, minute, second), None, None)
        match = _SYSLOG.match(text)
        if match is not None and match[1] in _MONTHS:
            name, day, *clock = match.groups()
            return self._without_year(_MONTHS.index(name) + 1, int(day), clock)
        return None

    def last_stamp(self, text: str) -> float | None:
        """Of the last line of ``text`` that has one."""
        if _TIME.search(text) is None:
            return None
        for line in reversed(text.splitlines()):
            at = self.stamp(line[:200]) if _TIME.search(line) else None
            if at is not None:
                return at
        return None

    def _without_year(self, month: int, day: int, clock: list[str]) -> float | None:
        try:
            year = time.localtime(self.written_at).tm_year
        except (OverflowError, ValueError, OSError):  # a file system may say anything of a file's time
            return None
        hour, minute, second, part = clock
        for candidate in (year, year - 1):
            at = _unix((candidate, month, day, int(hour), int(minute), int(second)), part, None)
            if at is not None and at <= self.written_at + _DAY_S:
                return at
        return None


def _unix(parts: tuple[int, int, int, int, int, int], fraction: str | None, zone: str | None) -> float | None:
    try:
        whole = datetime(*parts)  # checks the ranges
    except ValueError:
        return None
    part = float("0." + fraction[1:]) if fraction else 0.0
    if zone is None:
        return time.mktime((*whole.timetuple()[:8], -1)) + part
    offset = 0 if zone == "Z" else int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return timegm(whole.timetuple()) - (-offset if zone.startswith("-") else offset) + part


def is_by_host(lines: Sequence[str]) -> bool:
    """Whether each line begins with its host, as pdsh's and DeepSpeed's do: most have a name with a digit in front; or
    with its container, as docker compose's.
    """
    written = [line for line in lines if line.strip()]
    names = [match[1] for match in map(_HOST.match, written) if match is not None and not _NO_HOST.search(match[1])]
    hosts = {name for name in names if any(letter.isdigit() for letter in name)}
    from_hosts = sum(name in hosts for name in names)
    from_containers = sum(_CONTAINER.match(line) is not None for line in written)
    return len(written) >= _LEAST_BY_HOST and max(from_hosts, from_containers) >= _BY_HOST * len(written)


def speaker_of(line: str, *, by_host: bool = False) -> tuple[Speaker, str]:
    """Who wrote a line, and what is left of it. ``by_host``: of a file in which each line begins with its host."""
    speaker, rest = Speaker(), line
    host = (_HOST.match(line) or _CONTAINER.match(line)) if by_host else None
    if host is not None and not _NO_HOST.search(host[1]):
        speaker, rest = Speaker(node=host[1]), line[host.end() :]
    for _ in range(6):
        found = _one_prefix(speaker, rest) or _strange(speaker, rest)
        if found is None:
            break
        speaker, rest = found
    field = _FIELD_AT_END.match(line) if speaker.rank is None and " rank=" in line[-20:] else None
    return (speaker if field is None else replace(speaker, rank=int(field[1]))), rest


def _one_prefix(speaker: Speaker, rest: str) -> tuple[Speaker, str] | None:
    for prefix in _PREFIXES:
        match = prefix.match(rest)
        if match is not None and (speaker.task is None or "task" not in prefix.groupindex):
            found: dict[str, Any] = {
                name: value if name == "node" else int(value) for name, value in match.groupdict().items() if value
            }
            return replace(speaker, **found), rest[match.end() :]
    return _bracketed(speaker, rest) if rest.lstrip(" ")[:1] in ("[", "(") else None


def _strange(speaker: Speaker, rest: str) -> tuple[Speaker, str] | None:
    """Over what means nothing here; pdsh's host is the node."""
    near = rest[:256]
    logged = _LOGGED.match(near) if speaker.rank is None and ("[rank" in near or "[RANK" in near) else None
    if logged is not None:
        return _bracketed(speaker, rest[logged.end() :])
    if speaker.rank is not None or not ("[rank" in near or "pid=" in near or "]:" in near):
        return None
    match = _STRANGE.match(rest)
    if match is None:
        return None
    host = _HOST.fullmatch(match[0])
    if host is None or speaker.node:
        return speaker, rest[match.end() :]
    if _NO_HOST.search(host[1]):  # an exception's message may begin as a prefix does
        return (speaker, rest[match.end() :]) if host[1].isupper() or host[1].isdigit() else None
    return replace(speaker, node=host[1]), rest[match.end() :]


def _bracketed(speaker: Speaker, rest: str) -> tuple[Speaker, str] | None:
    match = None if _OF_A_CHILD.match(rest) else _BRACKETS.match(rest)
    found = _in_brackets(speaker, *match.groups()) if match is not None else None
    if match is None or found is None:
        return None
    listed = _LISTED.match(rest, match.end())
    return (found if listed is None else replace(found, rank=int(listed[1]))), rest[match.end() :]


def _in_brackets(speaker: Speaker, square: str | None, round_: str | None, colon: str) -> Speaker | None:
    """The writer with what its words say, None where they say nothing of it."""
    words = square or round_ or ""
    stamp = _STAMPED.match(words)
    if stamp is not None:
        words = words[stamp.end() :]
    if square is not None and _PARALLEL.fullmatch(words):  # SGLang's "TP3", "DP1 TP3"
        return _with_words(speaker, words, {})
    if square is not None and stamp is not None:
        return None
    if square is not None and not words.startswith(("rank", "RANK")):
        local = _LOCAL.fullmatch(words) if colon else None
        if local is None or speaker.local_rank is not None:
            return None
        return replace(speaker, local_rank=int(local["local"]), node=local["node"] or speaker.node)
    found: dict[str, str] = {}
    at = 0
    while at < len(words):
        match = _WORDS_IN_BRACKETS.match(words, at)
        if match is None:
            return None
        found |= {name: value for name, value in match.groupdict().items() if value and name not in found}
        at = match.end()
        while at < len(words) and words[at] in " ,[]":
            at += 1
    process = found.get("process", "")
    return _with_words(speaker, process, found) if "pid" in found or process in ("", "raylet") else None


def _with_words(speaker: Speaker, process: str, found: dict[str, str]) -> Speaker:
    """``process``: its number is a rank where tensors are all that is split."""
    parallel = _ONLY_TENSOR_PARALLEL.fullmatch(process)
    rank = found.get("rank") or (parallel[1] if parallel is not None else None)
    return replace(
        speaker,
        rank=int(rank) if rank is not None else speaker.rank,
        pid=int(found["pid"]) if "pid" in found else speaker.pid,
        node=found.get("ip", speaker.node),
        process=process or speaker.process,
    )
