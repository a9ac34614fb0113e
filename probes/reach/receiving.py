"""Samples as they come from nodes and from files: decoded within bounds, or one sentence why not.

A node may send anything. How much memory a sample takes once it is decoded is bounded before it is: a GPU of twelve
bytes of JSON ("{"index":1},") becomes an object of thousands. Words that are in none of our vocabularies, and values of
hardware that cannot be, are left out with a gap: the node may be hostile, the recording of another version, or edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from operator import ge, le
from sys import intern
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from mltop.probes.model import Gap, GpuSample, HostSample, LinkSample, Sample
from mltop.probes.model.news.judged import Fact, JobPart, Judged, PartNumbers
from mltop.probes.model.news.row import (
    GPU_LANES,
    GPU_WIDTH,
    NODE_LANES,
    NODE_WIDTH,
    REASON_BITS,
    STATES,
    UNKNOWN,
    pack_row,
    values_of,
    width_of,
)
from mltop.probes.model.plausible import CLOCK_MAXIMA, CLOCK_OVER_MAX, GPU, LINKS, NODE, PCI, Range, ranges_below
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.receipt import (
    LARGE_BYTES,
    MOST_DEATHS,
    MOST_GPUS,
    MOST_NUMBER,
    MOST_RANK_NUMBERS,
    MOST_RANKS,
    MOST_TIME_S,
    MOST_UNASSIGNED,
    LeftOut,
    Refused,
    admit,
    admit_told,
    said,
)
from mltop.probes.model.sample import marked_not_here
from mltop.probes.model.text import plain_text
from mltop.probes.model.units import size_words

Decoded = TypeVar("Decoded")

MOST_SAMPLE_BYTES = 4 * 1024 * 1024  # of JSON: fifty times what a node of 8 GPUs sends
# What decoding raises; of JSON nested too deep and of bytes that are no UTF-8, msgspec does not make errors of its own.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, Refused)
MOST_LOOSE_BYTES = 512 * 1024  # of JSON with strange words: six times a node of 8 GPUs
MOST_ALIKE = 8  # values of one table that cannot be: so many have a gap
MANY_OBJECTS = 4096  # 8 GPUs with their ports make 1,000
MOST_PARTS = 1024  # jobs of one node
MOST_FINDINGS, MOST_FACTS = 16_384, 4096
_MOST_OF = {
    "gpus": MOST_GPUS,
    "ranks": MOST_RANKS,
    "unassigned": MOST_UNASSIGNED,
    "deaths": MOST_DEATHS,
    "log_lines": 4096,
    "links": 4096,
    "pci": 16_384,
    "kernel_events": 4096,
    "gaps": 16_384,
}


class RowFrame(msgspec.Struct, frozen=True, gc=False):
    """A row as it comes. ``lanes``: base64 in JSON."""

    at: float
    lanes: bytes
    numbers: tuple[PartNumbers, ...] = ()

    def check(self) -> None:
        """Raises Refused for what cannot be a row."""
        if not 0 <= self.at <= MOST_TIME_S:
            raise Refused(f"its time, {said(self.at)}, is no time")
        if len(self.lanes) < 2 * NODE_WIDTH or (len(self.lanes) // 2 - NODE_WIDTH) % GPU_WIDTH or len(self.lanes) % 2:
            raise Refused(f"its row has {len(self.lanes)} bytes")
        if len(self.lanes) > 2 * width_of(MOST_GPUS) or len(self.numbers) > MOST_PARTS:
            raise Refused("its row is too long")
        known = [value for numbers in self.numbers for value in numbers if value is not None]
        if known and not 0 <= min(known) <= max(known) <= MOST_NUMBER:
            raise Refused("its row has numbers that cannot be")


# Lanes of GPUs that model/plausible.py has under another name.
_RANGES = {
    "clock_mhz": GPU["sm_clock_mhz"],
    "nvlink_bytes_per_s": Range(0.0, 2 * GPU["nvlink.rx_bytes_per_s"].high),  # of both directions
    "reasons": Range(min(STATES), sum(REASON_BITS.values())),
}


@lru_cache(maxsize=64)
def _limits(width: int) -> tuple[Sequence[float], Sequence[float]]:
    """The least and the most that each value of a row may be, in memory's units."""
    of_node = [(lane, NODE[lane.name]) for lane in NODE_LANES]
    of_gpu = [(lane, _RANGES.get(lane.name) or GPU[lane.name]) for lane in GPU_LANES]
    every = (*of_node, *of_gpu * ((width - NODE_WIDTH) // GPU_WIDTH))
    return [each.low / lane.unit for lane, each in every], [each.high / lane.unit for lane, each in every]


def plausible_lanes(lanes: bytes) -> bytes:
    """A row without values that cannot be: they are unknown. An agent has sifted what its driver said."""
    values = values_of(lanes)
    least, most = _limits(len(values))
    if all(map(le, least, values)) and all(map(ge, most, values)):  # nearly always: no value is NaN either
        return lanes
    fits = [low <= value <= high for low, value, high in zip(least, values, most, strict=True)]
    return pack_row([value if is_plausible else UNKNOWN for value, is_plausible in zip(values, fits, strict=True)])


class Envelope(msgspec.Struct):
    """What the hub reads of every frame before anything else: the rest is decoded when somebody looks at it."""

    kind: str
    node: str = ""
    row: RowFrame | None = None


# How many there are of what takes most memory.
_Shape = msgspec.defstruct("_Shape", [(name, list[msgspec.Raw], []) for name in _MOST_OF])
_shapes: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Shape)
_samples = msgspec.json.Decoder(Sample)
_frames: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("_Frame", [("sample", msgspec.Raw)]))
_parts: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("_Parts", [("parts", list[JobPart])]))
_FactsFrame: Any = msgspec.defstruct("_FactsFrame", [("facts", list[Fact])])
_JudgedFrame: Any = msgspec.defstruct("_JudgedFrame", [("judged", Judged)])


def sample_of_frame(payload: bytes) -> Sample:
    """The sample of an agent's frame; its gaps say what was left out. Raises UNREADABLE."""
    return sample_of_line(bytes(_frames.decode(payload).sample))


def sample_of_line(line: bytes) -> Sample:
    """The same of one line of a recording."""
    if len(line) > LARGE_BYTES or line.count(b"{") + line.count(b"[") > MANY_OBJECTS:  # others need no second look
        _bound(line, _shapes.decode(line))
    left_out = LeftOut()
    sample = _decoded(line, _samples, left_out)
    sample.gaps[:] = marked_not_here(sample.gaps, sample.host)  # recorded before agents did
    sample.gaps += left_out.gaps() + admit(sample, len(line) > LARGE_BYTES) + sift(sample)
    return sample


def parts_of_frame(payload: bytes) -> list[JobPart]:
    """What a node's ranks do, of a frame. Raises UNREADABLE."""
    parts: list[JobPart] = _parts.decode(payload).parts
    for part in parts:
        numbers = [rank.rank for rank in part.ranks] + [gone.rank for gone in part.gone]
        if len(parts) > MOST_PARTS or len(numbers) > MOST_RANKS:
            raise Refused("it reports more ranks than any node has")
        if any(number is not None and not 0 <= number <= MOST_RANK_NUMBERS for number in numbers):
            raise Refused("it reports a rank number that cannot be")
    return parts


def facts_of_frame(payload: bytes) -> list[Fact]:
    """What a node is compared with others by, of a frame. Raises UNREADABLE."""
    facts: list[Fact] = msgspec.convert(admit_told(msgspec.json.decode(payload)), _FactsFrame).facts
    if len(facts) > MOST_FACTS:
        raise Refused(f"it has {len(facts)} facts")
    return [(intern(topic), intern(group), value) for topic, group, value in facts]  # those of most nodes are the same


def judged_of_frame(payload: bytes, node: str) -> Judged:
    """What a node's own rules say, of a frame. Its texts are plain, its findings about the node. Raises UNREADABLE."""
    told = admit_told(msgspec.json.decode(payload))
    judged: Judged = msgspec.convert(told, _JudgedFrame, dec_hook=own_type).judged
    if len(judged.findings) > MOST_FINDINGS or len(judged.ranks) > MOST_RANKS:
        raise Refused("its rules report more than there can be")
    judged.node = node
    for finding in judged.findings:
        finding.node = node
    return judged


def own_type(kind: type[object], value: object) -> object:
    """For decoders of findings and incidents: what is written as text."""
    if kind is Ranges and isinstance(value, str):
        return Ranges.parsed(value)
    raise NotImplementedError(kind)


def why_unreadable(error: Exception) -> str:
    """The words behind "is" for each kind of UNREADABLE; anything else is a bug of ours, and says so."""
    words = plain_text(str(error))  # it may quote what came
    if isinstance(error, Refused):
        return f"refused: {words}"
    if not isinstance(error, UNREADABLE):
        return f"more than mltop can read: {type(error).__name__}: {words} (please report)"
    return f"not readable, or of another version: {words or type(error).__name__}"


def too_large(payload: bytes) -> str:
    """Why a sample of so many bytes is not even kept, "" when it may be."""
    if len(payload) <= MOST_SAMPLE_BYTES:
        return ""
    return f"its sample has {size_words(len(payload))} of JSON (at most {size_words(MOST_SAMPLE_BYTES)})"


def _bound(payload: bytes, shape: msgspec.Struct | None) -> None:
    if too_large(payload):
        raise Refused(too_large(payload))
    for name, most in _MOST_OF.items():
        count = len(getattr(shape, name, ()))
        if count > most:
            raise Refused(f"its sample has {count} {name.replace('_', ' ')} (at most {most})")


# In place of a word that is in no vocabulary of ours, where the field's default would say what is not so; MISSING: the
# record is left out.
_INSTEAD: dict[tuple[type, str], Any] = {(GpuSample, "state"): "error", (LinkSample, "kind"): MISSING}

_UNIONS = (UnionType, Union)


class _StrangeWord(ValueError):
    """A word that is in no vocabulary of ours (of a newer version, or made up), and its record cannot be without it."""


def _decoded(payload: bytes, decoder: msgspec.json.Decoder[Decoded], left_out: LeftOut) -> Decoded:
    """What it says, without the strange words of its closed vocabularies (model/vocabulary.py) and records that cannot
    be without them: one of them does not cost all the rest. Raises UNREADABLE.
    """
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        if len(payload) > MOST_LOOSE_BYTES:  # what follows takes twenty times as long
            raise
        try:
            plain = msgspec.json.decode(payload)
        except RecursionError:
            raise error from None
        return msgspec.convert(_without_strange_words(plain, decoder.type, "", left_out), decoder.type)


def _without_strange_words(value: Any, kind: Any, path: str, left_out: LeftOut) -> Any:
    """``value``, plain JSON that is to become a ``kind``. Raises _StrangeWord where a word is needed."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal and isinstance(value, str) and value not in args:
        raise _StrangeWord(value)
    if origin in _UNIONS:
        return _without_strange_words(value, next(arg for arg in args if arg is not NoneType), path, left_out)
    if origin is list and isinstance(value, list):
        usable = []
        for entry in value:
            try:
                usable.append(_without_strange_words(entry, args[0], path, left_out))
            except _StrangeWord as word:
                left_out.value(path, word)
        return usable
    if is_dataclass(kind) and isinstance(value, dict):
        return _record_without_strange_words(value, cast("type", kind), path, left_out)
    return value


def _record_without_strange_words(record: dict[str, Any], kind: type, path: str, left_out: LeftOut) -> dict[str, Any]:
    for name, hint, default in _worded_fields(kind):
        if name not in record:
            continue
        field_path = f"{path}.{name}".lstrip(".")
        try:
            record[name] = _without_strange_words(record[name], hint, field_path, left_out)
        except _StrangeWord as word:
            if default is MISSING:
                raise
            left_out.value(field_path, word)
            record[name] = default
    return record


@cache
def _worded_fields(kind: type) -> list[tuple[str, Any, Any]]:
    """(name, type, what takes the place of a strange word) of the fields that have words of a vocabulary in them."""
    types = get_type_hints(kind)
    return [
        (item.name, types[item.name], _INSTEAD.get((kind, item.name), item.default))
        for item in fields(kind)
        if _is_worded(types[item.name])
    ]


def _is_worded(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return True
    if is_dataclass(kind):
        return bool(_worded_fields(cast("type", kind)))
    return any(map(_is_worded, get_args(kind)))


# By the record that they are fields of: ("pcie", "gen"), and (nvlink.links, *, version) as ("nvlink.links", "version").
_Fields = tuple[tuple[str, Range], ...]


def _fields_of(table: dict[str, Range], prefix: str) -> _Fields:
    return tuple(ranges_below(table, prefix).items())


_GPU = _fields_of(GPU, "")
_PARTS = tuple((part, _fields_of(GPU, f"{part}.")) for part in ("ecc", "remap", "pcie", "nvlink", "fabric"))
_BANKS = _fields_of(GPU, "remap.banks.")
_LINK = _fields_of(GPU, "nvlink.links.*.")
_PROCESS = _fields_of(GPU, "processes.*.")
_INSTANCE = _fields_of(GPU, "mig_instances.*.")
_TABLES = ("throttle_ns", "throttle_share")
_PCI = _fields_of(PCI, "")
_PORT = _fields_of(LINKS, "")
# What collectors, and so the needs of rules, call what these fields are parts of.
_CALLED = {
    "link_speed_gt_per_s": "link",
    "link_speed_max_gt_per_s": "link",
    "link_width": "link",
    "link_width_max": "link",
    "rate_bits_per_s": "rate",
}


def sift(sample: Sample) -> list[Gap]:
    """Takes values of hardware that cannot be out of a sample, in place. Returns a gap for each.

    An agent sifts what its own driver answers by the same table (collect/nvml/readers/sieve.py), before its rules judge
    it. Here it is for nodes that do not run our agent, and for files.
    """
    gaps: list[Gap] = []
    for gpu in sample.gpus:
        _sift_gpu(gpu, _Sieve(gaps, "gpu", str(gpu.index)))
    for device in sample.pci:
        sieve = _Sieve(gaps, "pci", device.bus_id)
        sieve.record(device, _PCI)
        device.aer = sieve.table(device.aer, PCI["aer.*"], "aer", whole=True)
    _sift_host(sample.host, _Sieve(gaps, "host"))
    for link in sample.links:
        sieve = _Sieve(gaps, "links", link.device)
        sieve.record(link, _PORT)
        link.counters = sieve.table(link.counters, LINKS["counters.*"], "counters", whole=True)
    return gaps


def _sift_host(host: HostSample, sieve: _Sieve) -> None:
    """Takes out what is negative: of a machine everything is counted from 0 on."""
    sieve.counts(host, "")
    sieve.counts(host.pressure, "pressure.")
    for group in host.cgroups:
        sieve.counts(group, f"cgroups.{group.path}.")
    for filesystem in host.filesystems:
        sieve.counts(filesystem, f"filesystems.{filesystem.mount}.")


def _sift_gpu(gpu: GpuSample, sieve: _Sieve) -> None:
    sieve.record(gpu, _GPU)
    for part, limits in _PARTS:
        sieve.record(getattr(gpu, part), limits, f"{part}.")
    sieve.record(gpu.remap.banks, _BANKS, "remap.banks.")
    for name in _TABLES:
        setattr(gpu, name, sieve.table(getattr(gpu, name), GPU[f"{name}.*"], name))
    gpu.pcie.errors = sieve.table(gpu.pcie.errors, GPU["pcie.errors.*"], "pcie.errors")
    for link in gpu.nvlink.links:
        of = f"of link {link.index} "
        sieve.record(link, _LINK, "nvlink.", of)
        link.errors = sieve.table(link.errors, GPU["nvlink.links.*.errors.*"], "nvlink.errors", of, whole=True)
    for instance in gpu.mig_instances:
        sieve.record(instance, _INSTANCE, f"mig_instances.{instance.index}.")
    for process in gpu.processes or ():
        sieve.record(process, _PROCESS, "processes.")
    _sift_pairs(gpu, sieve)


def _sift_pairs(gpu: GpuSample, sieve: _Sieve) -> None:
    """What only two numbers together tell."""
    for name, maximum in CLOCK_MAXIMA.items():
        mhz, most = getattr(gpu, name), getattr(gpu, maximum)
        if mhz is not None and most is not None and mhz > most * CLOCK_OVER_MAX:
            sieve.say(name, f"{mhz} MHz", f"it names {most} MHz as the maximum")
            setattr(gpu, name, None)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is not None and total is not None and used > total:
        sieve.say("memory_used_bytes", f"{used} bytes", f"the memory has {total} bytes")
        gpu.memory_used_bytes = None


class _Sieve:
    """Takes out what cannot be of ``item`` of ``source``, as in Gap."""

    def __init__(self, gaps: list[Gap], source: str, item: str = "") -> None:
        self._gaps, self._source, self._item = gaps, source, item

    def record(self, record: Any, ranges: _Fields, prefix: str = "", of: str = "") -> None:
        """``of``: which of several it is, for the reason. Identities (an index, a pid) cannot be None: receipt.py sees
        to them.
        """
        values = vars(record)
        for name, limits in ranges:
            # Of a field that was not sent there is no value; a comparison costs a fifth of what ``holds`` does.
            value = values.get(name)
            if value is None or (limits.only is None and limits.low <= value <= limits.high) or limits.holds(value):
                continue
            if name not in ("index", "pid"):
                self._implausible(f"{prefix}{_CALLED.get(name, name)}", f"{of}{limits.shown(value)}", limits)
                setattr(record, name, None)

    def counts(self, record: Any, prefix: str) -> None:
        for name, value in vars(record).items():
            if type(value) in (int, float) and value < 0:
                self.say(f"{prefix}{name}", str(value), "it is counted from 0 on")
                setattr(record, name, None)

    def table(
        self, table: dict[str, Any], limits: Range, name: str, of: str = "", *, whole: bool = False
    ) -> dict[str, Any]:
        """Returns a table of counters without those that cannot be.

        ``whole``: rules need all of it, so a counter that is missing is the whole table's gap.
        """
        if not table or (limits.low <= min(table.values()) and max(table.values()) <= limits.high):
            return table
        bad = {name for name, value in table.items() if not limits.holds(value)}
        for key in sorted(bad)[:MOST_ALIKE]:
            value = limits.shown(table[key])
            if whole:
                self._implausible(name, f"{of}{key} {value}", limits)
            else:
                self._implausible(f"{name}.{key}", value, limits)
        return {key: value for key, value in table.items() if key not in bad}

    def _implausible(self, name: str, value: str, limits: Range) -> None:
        self.say(name, value, f"{limits.between} are plausible")

    def say(self, name: str, value: str, reason: str) -> None:
        why = f"it says {value}, which cannot be: {reason}"
        self._gaps.append(Gap.about(self._source, name, item=self._item, why=why, code="implausible"))
