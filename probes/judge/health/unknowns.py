"""The third state of a rule: not fine, not firing, but unknown, with why and the command that would tell.

What a rule needs of a sample is named as JSON names it, ``*`` for each of several: ``gpu.*.ecc.enabled``,
``host.load``, ``links.*.counters``, ``ranks.rss_bytes``, ``kernel_log``. Of ``a | b`` one will do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from mltop.probes.judge.health.names import RDMA, is_up, port_name
from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.values import grouped
from mltop.probes.model import CounterKind, Gap, GpuSample, LinkSample, Sample, Unknown
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
# Where a need has another name than the fields that it is made of.
_HOST_FIELDS: dict[str, tuple[str, ...]] = {
    "load": ("load_1m",),
    "memory": ("memory_total_bytes", "memory_available_bytes"),
    "swap": ("swap_total_bytes", "swap_used_bytes"),
    "shm": ("shm_total_bytes", "shm_used_bytes"),
    "disk": ("disk_read_bytes_per_s", "disk_write_bytes_per_s"),
}
_PRESSURES = {"cpu": ("cpu_some",), "memory": ("memory_some", "memory_full"), "io": ("io_some",)}
_LISTS_THAT_MAY_BE_EMPTY = ("blocked", "filesystems")
_BY_GAPS = object()  # there is no value that could be missing
_LINK_FIELDS: dict[str, Callable[[LinkSample], object]] = {
    "state": lambda link: link.state,
    "phys_state": lambda link: link.physical_state,
    "rate": lambda link: link.rate_bits_per_s if is_up(link) else 0.0,
    "counters": lambda link: link.counters or None,
    "has_chardev": lambda link: link.has_chardev,
}
# Ports whose counters each rule is about, by the beginning of its id.
_KINDS_OF = (
    ("ib.", frozenset({"infiniband", "roce"})),
    ("roce.", frozenset({"roce"})),
    ("eth.", frozenset({"ethernet", "roce"})),
    ("efa", frozenset({"efa"})),
)


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
    """``field`` of one ``item`` of ``source``; None: not told."""

    source: str
    item: str
    field: str
    value: object

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
            read = self._read(need, rule_id)
            self._values[key] = [_Value(need.source, item, need.field, value) for item, value in read]
        return self._values[key]

    def has_any(self, rule: Rule, source: str) -> bool:
        """Whether there is any value that the rule needs of this source."""
        ways = (way for need in rule.needs for way in alternatives(need) if way.source == source)
        return any(entry.value is not None for way in ways for entry in self.of(way, rule.id))

    def has_another(self, need: str, gap: Gap, rule_id: str) -> bool:
        """Whether another one of several ways is there in place of what the gap is about."""
        ways = alternatives(need)
        if len(ways) > 1 and _are_alike(ways) and any(self.of(way, rule_id) for way in ways):
            return not self._lacking(need, rule_id)[0]
        return any(self._is_there(way, rule_id) for way in ways if len(ways) > 1 and not _is_about(gap, way))

    def _is_there(self, need: Need, rule_id: str) -> bool:
        values = self.of(need, rule_id)
        if values:
            return any(entry.value is not None for entry in values)
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
            lacking = [entries for entries in of_things.values() if all(entry.value is None for entry in entries)]
            if not _are_alike(ways) and any(
                values and all(one.value is not None for one in values) for values in of_ways
            ):
                lacking = []  # one of the ways is there for everything
            self._lacks[key] = lacking, len(of_things)
        return self._lacks[key]

    def _read(self, need: Need, rule_id: str) -> Iterator[tuple[str, object]]:
        source, each, field = need
        if source == "gpu" and each:
            path = field.split(".")
            yield from ((str(gpu.index), _of_gpu(gpu, path)) for gpu in self._sample.gpus if gpu.state == "ok")
        elif source == "host" and field:
            value = self._of_host(field)
            if value is not _BY_GAPS:
                yield "", value
        elif source == "ranks" and field:
            living = (rank for rank in self._sample.ranks if rank.state not in ("Z", "X", ""))
            told = ((str(rank.pid), getattr(rank, field, None)) for rank in living)
            yield from ((pid, None if value == "" else value) for pid, value in told)
        elif source == "links" and each and field in _LINK_FIELDS:
            kinds = next((kinds for prefix, kinds in _KINDS_OF if rule_id.startswith(prefix)), RDMA | {"ethernet"})
            links = (link for link in self._sample.links if link.error is None and link.kind in kinds)
            yield from ((port_name(link), _LINK_FIELDS[field](link)) for link in links)
        elif source == "pci" and each and field in ("link", "aer"):
            for device in self._sample.pci:
                if device.kind in ("gpu", "nic"):
                    yield device.bus_id, device.link_width if field == "link" else device.aer or None

    def _of_host(self, name: str) -> object:
        host = self._sample.host
        values: list[object]
        if name == "cgroups.cpu":
            values = [group.cpu_throttled_fraction for group in host.cgroups] or [None]
        elif name.startswith("pressure."):
            values = [getattr(host.pressure, field) for field in _PRESSURES[name.removeprefix("pressure.")]]
        else:
            values = [getattr(host, field, _BY_GAPS) for field in _HOST_FIELDS.get(name, (name,))]
        if name in _LISTS_THAT_MAY_BE_EMPTY:
            return _BY_GAPS
        return None if any(value is None or value in ("", {}, []) for value in values) else values[0]

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


def _of_gpu(gpu: GpuSample, path: Sequence[str]) -> object:
    """None: not told. What a GPU has none of (NVLinks) is told."""
    if path[0] == "nvlink" and len(path) == 2 and path[1] != "links":
        return _of_links(gpu, path[1])
    if path == ["fabric", "health"] and gpu.fabric.state != "completed":
        return gpu.fabric.state or "no fabric"  # only then the driver tells it
    if path == ["memory_temperature_max_c"] and gpu.memory_temperature_c is None:
        return "no sensor"  # a limit alone is of no use
    value: object = gpu
    for name in path:
        value = getattr(value, name, _BY_GAPS)
    return value


def _of_links(gpu: GpuSample, name: str) -> object:
    links = gpu.nvlink.links
    if name == "errors":
        return None if links and not any(link.errors for link in links) else links
    lacking = [link for link in links if getattr(link, name, "") is None and (name == "active" or link.active)]
    return None if lacking else links
