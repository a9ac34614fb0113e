"""What rules need of a sample, and what of it a sample does not tell although no gap says why.

A need is named as gaps name it: ``gpu.*.ecc.enabled``, ``host.load``, ``links.*.counters``, ``ranks.rss_bytes``,
``kernel_log``. Of ``a | b`` one will do.

The third state of a rule: not fine, not firing, but unknown, with why and the command that would tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache

from mltop.probes.judge.health.jobs import JobRule
from mltop.probes.judge.health.names import RDMA, is_up, port_name
from mltop.probes.judge.health.rule import SEVERITIES, Rule
from mltop.probes.model import CounterKind, Gap, GpuSample, LinkSample, Sample, Unknown
from mltop.probes.model.sample import Reads

# GPU indexes and PCI addresses (which hold a dot themselves).
_INDEX = re.compile(r"(?<=\.)(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+)(?=\.|$)")
_BRACE = re.compile(r"(.*)\{(.*)\}(.*)")
# Where a gap has another name than the fields that it is about.
_HOST_FIELDS: dict[str, tuple[str, ...]] = {
    "load": ("load_1m",),
    "memory": ("memory_total_bytes", "memory_available_bytes"),
    "swap": ("swap_total_bytes", "swap_used_bytes"),
    "shm": ("shm_total_bytes", "shm_used_bytes"),
    "disk": ("disk_read_bytes_per_s", "disk_write_bytes_per_s"),
}
_BY_GAPS = object()  # there is no value that could be missing
_LISTS_THAT_MAY_BE_EMPTY = ("blocked", "filesystems")
_MOST_NAMED = 8
_PRESSURES = {"cpu": ("cpu_some",), "memory": ("memory_some", "memory_full"), "io": ("io_some",)}
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


def alternatives(need: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in need.split("|"))


@lru_cache(maxsize=1024)
def subjects_of(what: str) -> tuple[str, ...]:
    """What a gap is about, with ``*`` for indexes: it may name several (``gpu.*.{a,b}`` and ``a, b``)."""
    brace = _BRACE.fullmatch(what)
    if brace:
        head, inner, tail = brace.groups()
        return tuple(_starred(f"{head}{part}{tail}") for part in inner.split(","))
    return tuple(_starred(part.strip()) for part in what.split(","))


def touches(gap: Gap, need: str) -> bool:
    """Whether the gap is about ``need`` or about all that it is a part of.

    ``gpu.3.ecc`` is about ``gpu.*.ecc.sram_threshold_exceeded``, and ``nvml`` is about everything below ``gpu``. A
    missing part does not hinder: who needs it names it. One of several ports or devices is not a part.
    """
    return any(_is_about(what, one) for what in subjects_of(gap.what) for one in alternatives(need))


def _is_about(what: str, need: str) -> bool:
    if what == need or need.startswith(what + ".") or whole_of(what) == need:
        return True
    return what == "nvml" and need.startswith("gpu.")


def whole_of(what: str) -> str:
    """The need that a gap about ``what`` (as of ``subjects_of``) is one of many parts of, "" for none: of who needs all
    GPUs on the PCI bus one is missing.
    """
    if what.endswith(".*"):
        return what[:-2]
    return "links" if what.count(".") == 1 and what.startswith("links.") else ""


@lru_cache(maxsize=4096)
def prefixes(need: str) -> frozenset[str]:
    """What is about ``need``: itself, and all that it is a part of."""
    parts = need.split(".")
    found = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return frozenset(found | {"nvml", "nvml.starting"} if parts[0] == "gpu" and len(parts) > 1 else found)


def _starred(what: str) -> str:
    what = _INDEX.sub("*", what)
    parts = what.split(".")
    # ``links.mlx5_4.counters`` is of one port.
    return ".".join(("links", "*", *parts[2:])) if parts[0] == "links" and len(parts) > 2 else what


class Told:
    """What one sample tells, and what its gaps say of the rest (of any kind)."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._gaps = frozenset(name for gap in sample.gaps for name in _exactly(gap.what))
        self._absent = frozenset(
            name for gap in sample.gaps if gap.kind == "unsupported" for name in _exactly(gap.what)
        )
        self._gpus = [gpu for gpu in sample.gpus if gpu.state == "ok"]
        self._known: dict[tuple[Sequence[str], str], tuple[list[list[str]], int]] = {}

    def tells(self, need: str, rule_id: str = "") -> bool:
        """Whether there is any value of it."""
        return any(value is not None for _, _, value in self._values(need, rule_id))

    def is_there(self, need: str, rule_id: str = "") -> bool:
        """Whether it can be judged by: a value, or of what only gaps can tell no gap."""
        values = list(self._values(need, rule_id))
        if values:
            return any(value is not None for _, _, value in values)
        return not self._has_gap(need)

    def has_another(self, ways: Sequence[str], missing: str, rule_id: str) -> bool:
        """Whether another one of several ways will do where one is missing."""
        if any(True for way in ways for _ in self._values(way, rule_id)) and _are_alike(ways):
            return not self._lacking(ways, rule_id)[0]
        return any(self.is_there(one, rule_id) for one in ways if missing not in prefixes(one))

    def untold(self, ways: Sequence[str], rule_id: str = "") -> str:
        """Of which things (GPUs, ports, ranks) none of the ways has a value, and of one of them no gap says why: "" of
        none.
        """
        lacking, count = self._lacking(ways, rule_id)
        found = [names for names in lacking if not all(self._has_gap(name) for name in names)]
        if not found:
            return ""
        return ways[0] if len(found) == count else ", ".join(names[0] for names in found[:_MOST_NAMED])

    def unsupported(self, ways: Sequence[str], rule_id: str = "") -> str:
        """As ``untold``, where gaps of the kind "unsupported" say why, and only such."""
        lacking, _ = self._lacking(ways, rule_id)
        if any(all(self._has_gap(name, self._absent) for name in names) for names in lacking):
            return " | ".join(ways)
        return ""

    def _lacking(self, ways: Sequence[str], rule_id: str) -> tuple[list[list[str]], int]:
        """The names of what each thing lacks, of those that lack all of the ways, and how many things there are."""
        key = ways, rule_id
        if key not in self._known:
            self._known[key] = self._find_lacking(ways, rule_id)
        return self._known[key]

    def _find_lacking(self, ways: Sequence[str], rule_id: str) -> tuple[list[list[str]], int]:
        names: dict[str, list[str]] = {}
        well: set[str] = set()
        for way in ways:
            for thing, name, value in self._values(way, rule_id):
                if value is None:
                    names.setdefault(thing, []).append(name)
                else:
                    well.add(thing)
        lacking = [own for thing, own in names.items() if thing not in well]
        if lacking and not _are_alike(ways) and any(self._is_whole(way, rule_id) for way in ways):
            lacking = []
        return lacking, len(names.keys() | well)

    def _is_whole(self, way: str, rule_id: str) -> bool:
        values = [value for _, _, value in self._values(way, rule_id)]
        return bool(values) and None not in values

    def _values(self, need: str, rule_id: str) -> Iterator[tuple[str, str, object]]:
        """(thing, name, value) for each thing that it could be told of; nothing where only gaps can tell."""
        kind, _, rest = need.partition(".")
        if need.startswith("gpu.*."):
            path = need[6:].split(".")
            for gpu in self._gpus:
                yield f"gpu.{gpu.index}", f"gpu.{gpu.index}.{need[6:]}", _of_gpu(gpu, path)
        elif kind == "host" and rest:
            value = self._of_host(rest)
            if value is not _BY_GAPS:
                yield kind, need, value
        elif kind == "ranks" and rest:
            for rank in self._sample.ranks:
                if rank.state not in ("Z", "X", ""):
                    value = getattr(rank, rest, None)
                    yield f"ranks.{rank.pid}", need, None if value == "" else value
        elif need.startswith("links.*.") and need[8:] in _LINK_FIELDS:
            for link in self._ports(rule_id):
                thing = f"links.{port_name(link)}"
                yield thing, f"{thing}.{need[8:]}", _LINK_FIELDS[need[8:]](link)
        elif need in ("pci.*.link", "pci.*.aer"):
            for device in self._sample.pci:
                if device.kind in ("gpu", "nic"):
                    value = device.link_width if need == "pci.*.link" else device.aer or None
                    yield f"pci.{device.bus_id}", f"pci.{device.bus_id}.{need[6:]}", value

    def _ports(self, rule_id: str) -> Iterator[LinkSample]:
        kinds = next((kinds for prefix, kinds in _KINDS_OF if rule_id.startswith(prefix)), RDMA | {"ethernet"})
        return (link for link in self._sample.links if link.error is None and link.kind in kinds)

    def _of_host(self, name: str) -> object:
        host = self._sample.host
        values: list[object]
        if name == "cgroups.cpu":
            values = [one.cpu_throttled_fraction for one in host.cgroups] or [None]
        elif name.startswith("pressure."):
            values = [getattr(host.pressure, field) for field in _PRESSURES[name[9:]]]
        else:
            values = [getattr(host, field, _BY_GAPS) for field in _HOST_FIELDS.get(name, (name,))]
        if name in _LISTS_THAT_MAY_BE_EMPTY:
            return _BY_GAPS
        return None if any(value is None or value in ("", {}, []) for value in values) else values[0]

    def _has_gap(self, what: str, gaps: frozenset[str] | None = None) -> bool:
        gaps = self._gaps if gaps is None else gaps
        return not gaps.isdisjoint(prefixes(what)) or not gaps.isdisjoint(prefixes(_starred(what)))


def _are_alike(ways: Sequence[str]) -> bool:
    """Whether they are about the same things: two values of each GPU, not one of the ranks and one of the machine."""
    return len({way.partition(".")[0] for way in ways}) == 1


def _exactly(what: str) -> Iterator[str]:
    """As ``subjects_of``, with the indexes."""
    brace = _BRACE.fullmatch(what)
    if brace:
        head, inner, tail = brace.groups()
        for part in inner.split(","):
            yield f"{head}{part}{tail}"
        return
    yield from (part.strip() for part in what.split(","))


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


__all__ = ["AnyRule", "growth_unknown", "touches", "unknowns_of"]

AnyRule = Rule | JobRule
GROWTH = "growth"
MOST_TOLD = 64  # of one node; there may be a gap for each of its ten thousand GPUs
_UNTOLD = "the node does not tell it"
_NO_SUCH = "this hardware, driver or kernel tells none of what it could be judged by"
# What their needs begin with, and what they are.
_COUNTERS: dict[CounterKind, tuple[str, str]] = {
    "gpus": ("gpu.", "NVLink's, PCIe's and memory's error counters of the GPUs"),
    "links": ("links.", "the error counters of the network ports"),
    "pci": ("pci.", "PCIe's error counters"),
    "host": ("host.", "the machine's error counters"),
}


def unknowns_of(sample: Sample, rules: Sequence[AnyRule] = (), at_the_end: bool = False) -> list[Unknown]:
    """A line per gap of the sample that keeps rules from being judged (none given: all rules), and per value that they
    need and that is not there although no gap says why.

    What does not exist here is not unknown, unless a rule has nothing at all to go by then: that is said, but missed by
    nobody (severity info), as what would only be worth knowing. ``at_the_end``: no sample comes after this one, so what
    is still starting is unknown, too.
    """
    judged = tuple(rules) or all_rules()
    told = Told(sample)
    found = [*_by_gaps(sample, judged, told, at_the_end), *_untold(sample, judged, told)]
    if len(found) <= MOST_TOLD:
        return found
    rest = found[MOST_TOLD:]
    merged = sorted({rule for one in rest for rule in one.rules})
    severity = min((one.severity for one in rest), key=SEVERITIES.index)
    more = Unknown(sample.node, "more", f"{len(rest):,} more things are not known", "", merged, severity)
    return [*found[:MOST_TOLD], more]


def growth_unknown(sample: Sample, rules: Sequence[AnyRule], reads: Reads) -> list[Unknown]:
    """Rules about counters that were read once only: whether these grow is not known. Pure."""
    told = Told(sample)
    found = []
    for kind, (prefix, words) in _COUNTERS.items():
        if reads.twice(kind):
            continue
        counting = (rule for rule in rules if isinstance(rule, Rule) and kind in rule.grows)
        open_rules = [rule for rule in counting if _applies(rule, prefix, told)]
        if open_rules:
            why = f"{words} were read once only: whether they grow was not judged"
            found.append(_unknown(sample, f"{GROWTH}.{kind}", why, "give it more time: --timeout 30", open_rules))
    return found


def _applies(rule: Rule, prefix: str, told: Told) -> bool:
    """Whether there are such counters: of GPUs that cannot be read none is waited for."""
    needs = (one for need in rule.needs for one in alternatives(need) if one.startswith(prefix))
    return any(told.tells(one, rule.id) for one in needs)


Needed = dict[str, list[tuple[AnyRule, str]]]


@lru_cache(maxsize=8)
def _who_needs(rules: tuple[AnyRule, ...]) -> tuple[Needed, Needed]:
    """Rules and their needs by what a gap may be about, and by the need itself."""
    parts: Needed = {}
    whole: Needed = {}
    for rule in rules:
        for need in rule.needs:
            for one in alternatives(need):
                whole.setdefault(one, []).append((rule, need))
                for what in prefixes(one):
                    parts.setdefault(what, []).append((rule, need))
    return parts, whole


def _by_gaps(sample: Sample, rules: tuple[AnyRule, ...], told: Told, at_the_end: bool) -> Iterable[Unknown]:
    parts, whole = _who_needs(rules)
    for gap in sample.gaps:
        if gap.kind == "unsupported" or (gap.kind == "starting" and not at_the_end):
            continue
        hindered: dict[str, AnyRule] = {}
        for subject in subjects_of(gap.what):
            for rule, need in (*parts.get(subject, ()), *whole.get(whole_of(subject), ())):
                if rule.id not in hindered and not _has_another(rule, need, subject, told):
                    hindered[rule.id] = rule
        if hindered:
            yield _unknown(sample, gap.what, gap.why, gap.fix, hindered.values())


def _has_another(rule: AnyRule, need: str, missing: str, told: Told) -> bool:
    """Whether another one of several things will do, and is there."""
    ways = alternatives(need)
    return len(ways) > 1 and told.has_another(ways, missing, rule.id)


def _untold(sample: Sample, rules: tuple[AnyRule, ...], told: Told) -> Iterable[Unknown]:
    lacking: dict[str, list[AnyRule]] = {}
    for rule in rules:
        for need in rule.needs:
            what = told.untold(alternatives(need), rule.id)
            if what:
                lacking.setdefault(what, []).append(rule)
        for need in rule.decisive:
            what = told.unsupported(alternatives(need), rule.id)
            if what:
                yield Unknown(sample.node, what, _NO_SUCH, "", [rule.id], "info")
    for what, hindered in lacking.items():
        yield _unknown(sample, what, _UNTOLD, "", hindered)


def _unknown(sample: Sample, what: str, why: str, fix: str, rules: Collection[AnyRule]) -> Unknown:
    severity = min((rule.severity for rule in rules), key=SEVERITIES.index)
    return Unknown(sample.node, what, why, fix, [rule.id for rule in rules], severity)  # type: ignore[arg-type]


def all_rules() -> tuple[AnyRule, ...]:
    from mltop.probes.judge.health.job.whole_job import JOB_RULES
    from mltop.probes.judge.health.registry import RULES

    return (*RULES, *JOB_RULES)
