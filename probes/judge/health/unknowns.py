"""The third state of a rule: not fine, not firing, but unknown, with why and the command that would tell.

What a rule needs of a sample is named as JSON names it, ``*`` for each of several: ``gpu.*.ecc.enabled``,
``host.load``, ``links.*.counters``, ``ranks.rss_bytes``, ``kernel_log``. Of ``a | b`` one will do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from mltop.probes.judge.health.names import RDMA, is_up, port_name
from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.values import grouped
from mltop.probes.model import CounterKind, Gap, GpuSample, Sample, Unknown
from mltop.probes.model.gap import subject_text
from mltop.probes.model.sample import Reads
from mltop.probes.model.vocabulary import gravity

GROWTH = "growth"
MOST_TOLD = 64  # of one node; there may be a gap for each of its ten thousand GPUs
_MOST_NAMED = 8
_NOT_TOLD = "the node does not report it"
_NO_SUCH = "this hardware, driver or kernel reports nothing to judge it by"
# Of what the counters are, and what they are.
_COUNTERS: dict[CounterKind, tuple[str, str]] = {
    "gpus": ("gpu", "NVLink's, PCIe's and memory's error counters of the GPUs"),
    "links": ("links", "the error counters of the network ports"),
    "pci": ("pci", "PCIe's error counters"),
    "host": ("host", "the machine's error counters"),
}
# Ports whose counters each rule is about, by the beginning of its id.
_KINDS_OF = (
    ("ib.", frozenset({"infiniband", "roce"})),
    ("roce.", frozenset({"roce"})),
    ("eth.", frozenset({"ethernet", "roce"})),
    ("efa", frozenset({"efa"})),
)


def _of_links(gpu: GpuSample, name: str) -> object:
    """What a GPU has none of is told."""
    links = gpu.nvlink.links
    if name == "errors":
        return None if links and not any(link.errors for link in links) else links
    lacking = [link for link in links if getattr(link, name) is None and (name == "active" or link.active)]
    return None if lacking else links


# How a need is read where it is no field of that name. Of several values all are needed. None: only gaps tell of it.
_READ: dict[str, Callable[[Any], object] | None] = {
    **{f"gpu.nvlink.{name}": partial(_of_links, name=name) for name in ("active", "errors", "speed_bytes_per_s")},
    # Only then the driver tells it; and without a sensor a limit is of no use.
    "gpu.fabric.health": lambda gpu: gpu.fabric.health if gpu.fabric.state == "completed" else "no fabric",
    "gpu.memory_temperature_max_c": lambda gpu: gpu.memory_temperature_c is None or gpu.memory_temperature_max_c,
    "host.load": attrgetter("load_1m"),
    "host.memory": attrgetter("memory_total_bytes", "memory_available_bytes"),
    "host.swap": attrgetter("swap_total_bytes", "swap_used_bytes"),
    "host.shm": attrgetter("shm_total_bytes", "shm_used_bytes"),
    "host.pressure.cpu": attrgetter("pressure.cpu_some"),
    "host.pressure.memory": attrgetter("pressure.memory_some", "pressure.memory_full"),
    "host.pressure.io": attrgetter("pressure.io_some"),
    "host.cgroups.cpu": lambda host: tuple(group.cpu_throttled_fraction for group in host.cgroups) or None,
    "links.state": attrgetter("state"),
    "links.phys_state": attrgetter("physical_state"),
    "links.rate": lambda link: link.rate_bits_per_s if is_up(link) else 0.0,
    "links.counters": lambda link: link.counters or None,
    "links.has_chardev": attrgetter("has_chardev"),
    "pci.link": attrgetter("link_width"),
    "pci.aer": lambda device: device.aer or None,
    **dict.fromkeys(("gpu.fabric.status", "host.blocked", "host.filesystems", "host.filesystems.counters")),
}
_EMPTY: dict[str, tuple[object, ...]] = {"host": ("", {}, []), "ranks": ("",)}  # is as good as nothing there


class Need(NamedTuple):
    """``field`` ("": all) of ``source``, or of ``each`` of its things."""

    source: str
    each: bool
    field: str


@lru_cache(maxsize=1024)
def alternatives(need: str) -> tuple[Need, ...]:
    ways = (way.strip().partition(".") for way in need.split("|"))
    return tuple(Need(source, rest.startswith("*."), rest.removeprefix("*.")) for source, _, rest in ways)


def touches(gap: Gap, need: str) -> bool:
    """Whether the gap is about ``need`` or about something larger: GPU 3's ECC for the SRAM threshold, NVML for GPUs.

    A part of what is needed does not count, but one of several ports or devices does where all are needed.
    """
    return any(_is_about(gap, way) for way in alternatives(need))


def _is_about(gap: Gap, need: Need) -> bool:
    if gap.source == "nvml" and need.source == "gpu":
        return gap.fields in ([], ["starting"])
    if gap.source != need.source:
        return False
    if gap.source == "links" and (gap.fields == []) != (gap.item == ""):  # a port, or what lists them
        return not need.field
    if gap.fields:
        return _covers(gap.fields, need.field)
    return not gap.item or need.each or not need.field


def _covers(fields: Iterable[str], field: str) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in fields)


def unknowns_of(sample: Sample, rules: Sequence[Rule] = ALL_RULES, at_the_end: bool = False) -> list[Unknown]:
    """A line per gap that keeps rules from being judged, and per value that they need and that no gap explains.

    What does not exist here is not unknown; a rule that has nothing at all to go by then is reported with severity
    info. ``at_the_end``: no sample comes after this one, so what is still starting is unknown, too.
    """
    values = _SampleValues(sample)
    unknown = [*_by_gaps(sample, rules, values, at_the_end), *_missing(sample, rules, values)]
    if len(unknown) <= MOST_TOLD:
        return unknown
    rest = unknown[MOST_TOLD:]
    ids = sorted({rule_id for more in rest for rule_id in more.rules})
    gravest = min((more.severity for more in rest), key=gravity)
    more_text = f"{len(rest):,} more things are not known"
    return [*unknown[:MOST_TOLD], Unknown(sample.node, "more", more_text, "", ids, gravest)]


def growth_unknown(sample: Sample, rules: Sequence[Rule], reads: Reads) -> list[Unknown]:
    """Rules about counters that were read once only: whether these grow is not known."""
    values = _SampleValues(sample)
    unknown = []
    for kind, (source, words) in _COUNTERS.items():
        if reads.twice(kind):
            continue
        waiting = [rule for rule in rules if kind in rule.grows and values.has_any(rule, source)]
        if waiting:
            why = f"{words} were read once only: whether they grow was not judged"
            unknown.append(_unknown(sample, f"{GROWTH}.{kind}", why, "give it more time: --timeout 30", waiting))
    return unknown


def _by_gaps(sample: Sample, rules: Sequence[Rule], values: _SampleValues, at_the_end: bool) -> Iterable[Unknown]:
    hindered_by: dict[tuple[str, bool, tuple[str, ...]], list[tuple[Rule, str]]] = {}
    for gap in sample.gaps:
        if gap.kind == "unsupported" or (gap.kind == "starting" and not at_the_end):
            continue
        key = (gap.source, bool(gap.item), tuple(gap.fields))  # many gaps are alike but for their items
        if key not in hindered_by:
            hindered_by[key] = [(rule, need) for rule in rules for need in rule.needs if touches(gap, need)]
        hindered = {rule.id: rule for rule, need in hindered_by[key] if not values.has_another(need, gap, rule.id)}
        if hindered:
            yield _unknown(sample, gap.what, gap.why, gap.fix, hindered.values())


def _missing(sample: Sample, rules: Sequence[Rule], values: _SampleValues) -> Iterable[Unknown]:
    lacking: dict[str, list[Rule]] = {}
    for rule in rules:
        for need in rule.needs:
            what = values.missing(need, rule.id)
            if what:
                lacking.setdefault(what, []).append(rule)
        for need in rule.decisive:
            if values.is_unsupported(need, rule.id):
                yield Unknown(sample.node, need, _NO_SUCH, "", [rule.id], "info")
    for what, hindered in lacking.items():
        yield _unknown(sample, what, _NOT_TOLD, "", hindered)


def _unknown(sample: Sample, what: str, why: str, fix: str, rules: Collection[Rule]) -> Unknown:
    gravest = min((rule.severity for rule in rules), key=gravity)
    return Unknown(sample.node, what, why, fix, [rule.id for rule in rules], gravest)


class _Value(NamedTuple):
    """Whether ``field`` of one ``item`` of ``source`` is told."""

    source: str
    item: str
    field: str
    told: bool

    @property
    def name(self) -> str:
        return subject_text(self.source, "" if self.source == "ranks" else self.item, [self.field])


class _SampleValues:
    """What one sample tells, and what its gaps say of the rest (of any kind)."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._gaps: dict[tuple[str, str], list[Gap]] = {}
        for gap in sample.gaps:
            for item in gap.items:
                self._gaps.setdefault((gap.source, item), []).append(gap)
        self._values: dict[tuple[Need, str], list[_Value]] = {}
        self._lacks: dict[tuple[str, str], tuple[list[list[_Value]], int]] = {}

    def of(self, need: Need, rule_id: str) -> list[_Value]:
        """For each thing that it could be told of; nothing where only gaps can tell."""
        key = need, rule_id
        if key not in self._values:
            self._values[key] = [_Value(need.source, item, need.field, told) for item, told in self._read(*key)]
        return self._values[key]

    def has_any(self, rule: Rule, source: str) -> bool:
        """Whether there is any value that the rule needs of this source."""
        ways = (way for need in rule.needs for way in alternatives(need) if way.source == source)
        return any(entry.told for way in ways for entry in self.of(way, rule.id))

    def has_another(self, need: str, gap: Gap, rule_id: str) -> bool:
        """Whether another one of several ways is there in place of what the gap is about."""
        ways = alternatives(need)
        if len(ways) > 1 and _are_alike(ways) and any(self.of(way, rule_id) for way in ways):
            return not self._lacking(need, rule_id)[0]
        return any(self._is_there(way, rule_id) for way in ways if len(ways) > 1 and not _is_about(gap, way))

    def _is_there(self, need: Need, rule_id: str) -> bool:
        values = self.of(need, rule_id)
        if values:
            return any(entry.told for entry in values)
        return not self._has_gap(need.source, "*" if need.each else "", need.field)

    def missing(self, need: str, rule_id: str) -> str:
        """Which things (GPUs, ports, ranks) have a value by none of the ways, and no gap that says why; "": none."""
        lacking, count = self._lacking(need, rule_id)
        unsaid = [ways for ways in lacking if not all(self._has_gap(*way[:3]) for way in ways)]
        if unsaid and len(unsaid) == count:
            return need.partition("|")[0].strip()
        return ", ".join(ways[0].name for ways in unsaid[:_MOST_NAMED])

    def is_unsupported(self, need: str, rule_id: str) -> bool:
        """Whether gaps of the kind "unsupported", and only such, say why a thing lacks all of the ways."""
        lacking, _ = self._lacking(need, rule_id)
        return any(all(self._has_gap(*way[:3], only_unsupported=True) for way in ways) for ways in lacking)

    def _lacking(self, need: str, rule_id: str) -> tuple[list[list[_Value]], int]:
        """What each thing lacks, of those that lack all of the ways, and how many things there are."""
        key = need, rule_id
        if key not in self._lacks:
            ways = alternatives(need)
            of_ways = [self.of(way, rule_id) for way in ways]
            of_things = grouped(chain.from_iterable(of_ways), lambda entry: (entry.source, entry.item))
            lacking = [entries for entries in of_things.values() if not any(entry.told for entry in entries)]
            if not _are_alike(ways) and any(values and all(one.told for one in values) for values in of_ways):
                lacking = []  # one of the ways is there for everything
            self._lacks[key] = lacking, len(of_things)
        return self._lacks[key]

    def _read(self, need: Need, rule_id: str) -> Iterator[tuple[str, bool]]:
        is_read = need.field and need.source not in ("links", "pci")
        read = _READ.get(f"{need.source}.{need.field}", attrgetter(need.field) if is_read else None)
        empty = (None, *_EMPTY.get(need.source, ()))
        if read is None:
            return
        for item, thing in self._things(need.source, rule_id):
            value = read(thing)
            yield item, not any(each in empty for each in (value if isinstance(value, tuple) else (value,)))

    def _things(self, source: str, rule_id: str) -> Iterable[tuple[str, object]]:
        sample = self._sample
        if source == "gpu":
            return [(str(gpu.index), gpu) for gpu in sample.gpus if gpu.state == "ok"]
        if source == "ranks":
            return [(str(rank.pid), rank) for rank in sample.ranks if rank.state not in ("Z", "X", "")]
        if source == "links":
            kinds = next((kinds for prefix, kinds in _KINDS_OF if rule_id.startswith(prefix)), RDMA | {"ethernet"})
            return [(port_name(link), link) for link in sample.links if link.error is None and link.kind in kinds]
        if source == "pci":
            return [(device.bus_id, device) for device in sample.pci if device.kind in ("gpu", "nic")]
        return [("", sample.host)] if source == "host" else []

    def _has_gap(self, source: str, item: str, field: str, only_unsupported: bool = False) -> bool:
        items = dict.fromkeys((item, "*", ""))
        gaps = [gap for name in items for gap in self._gaps.get((source, name), ())]
        if source == "gpu":
            gaps += [gap for gap in self._gaps.get(("nvml", ""), ()) if gap.fields in ([], ["starting"])]
        if only_unsupported:
            gaps = [gap for gap in gaps if gap.kind == "unsupported"]
        return any(gap.source != source or not gap.fields or _covers(gap.fields, field) for gap in gaps)


def _are_alike(ways: Sequence[Need]) -> bool:
    """Whether they are about the same things: two values of each GPU, not one of the ranks and one of the machine."""
    return len({way.source for way in ways}) == 1
