"""How many active NVLinks a GPU should have. A count of its own tells little: boards, bridges and partitions differ.

NVLink: links down, slow, or counting errors. GPUs in MIG mode have none to judge.

What is remembered: errors of all links of a GPU by name, under a name that tells of how many links they are: where one
link's counter cannot be read for a while, the sum of the others is another counter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.names import bus_id, gpu_key, group, name_of_gpu, numbered
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import (
    HOUR_S,
    LINK_DOWN,
    MINUTE_S,
    RATE_S,
    Hit,
    Moment,
    OfNewest,
    Rule,
    grown,
    has_grown,
    rate_text,
    usual,
)
from mltop.probes.judge.health.trails import Increase, Valued
from mltop.probes.model import GpuSample, NvlinkLink, Sample

TOPIC = "nvlink.active"
# All links of a GPU on a board with NVSwitches lead to these. The first name that fits counts.
ON_SWITCH_BOARDS = (
    ("H800", 8),
    ("A800", 8),
    ("H20", 18),
    ("H100", 18),
    ("GH200", 18),
    ("B200", 18),
    ("B300", 18),
    ("A100", 12),
    ("V100", 6),
)
# Cards with bridges, which may be fewer than fit.
_BRIDGED = re.compile(r"PCIe|\bNVL\b|RTX|\bA(?:10|16|30|40)\b|\bL(?:4|40)S?\b|Quadro|GeForce|TITAN")


@dataclass(frozen=True)
class Expected:
    count: int
    why: str
    severity: str


def expected_links(moment: Moment, gpu: GpuSample, up: int) -> Expected | None:
    """The highest count that there is a reason for; None when ``up`` is as many. ``up``: active now."""
    card = "warning" if _BRIDGED.search(gpu.name or "") else "critical"
    found = [
        Expected(count, why, severity)
        for count, why, severity in (
            (_earlier(moment, gpu, up), "so many were active before", "critical"),
            _siblings(moment.now, gpu, card),
            _peers(moment, gpu, card),
            (_board(moment.now, gpu, card), "all links of an NVSwitch board have to be active", "critical"),
        )
        if count > up
    ]
    return max(found, key=lambda one: (one.count, one.severity == "critical"), default=None)


class Linked(NamedTuple):
    """A GPU whose NVLinks can be judged, what is remembered of it is under ``key``, and its active links."""

    gpu: GpuSample
    key: str
    up: int


def _linked(sample: Sample) -> list[Linked]:
    return [
        Linked(gpu, gpu_key(gpu), active_count(gpu.nvlink.links))
        for gpu in sample.gpus
        if gpu.nvlink.links and gpu.state == "ok" and not gpu.mig_enabled  # in MIG mode they are not used
    ]


linked = OfNewest(_linked)


def active_count(links: list[NvlinkLink]) -> int:
    return [link.active for link in links].count(True)


@lru_cache(maxsize=128)
def seen_name(count: int) -> str:
    """Of the counter that exists once a GPU has been seen with so many active links."""
    return f"nvlink {count} active"


def peers_group(sample: Sample, model: str) -> str:
    """Virtual machines with one GPU have no NVLinks, those with eight have all."""
    return group(model, f"{len(sample.gpus)} GPUs")


def _earlier(moment: Moment, gpu: GpuSample, up: int) -> int:
    for count in range(len(gpu.nvlink.links), up, -1):
        if moment.increase(gpu_key(gpu), seen_name(count), 1.0) is not None:
            return count
    return 0


def _siblings(sample: Sample, gpu: GpuSample, severity: str) -> tuple[int, str, str]:
    best = _best_of_model(linked(sample)).get(gpu.name)
    if best is None or best.gpu is gpu:
        return 0, "", severity
    return best.up, f"{name_of_gpu(best.gpu)} of the same model has {best.up}", severity


class _BestOfModel:
    """By model the first GPU that has most active links; of the list that was asked about last."""

    def __init__(self) -> None:
        self._kept: tuple[list[Linked], dict[str | None, Linked]] = [], {}

    def __call__(self, gpus: list[Linked]) -> dict[str | None, Linked]:
        kept = self._kept
        if kept[0] is not gpus:
            best: dict[str | None, Linked] = {}
            for one in gpus:
                known = best.get(one.gpu.name)
                if known is None or one.up > known.up:
                    best[one.gpu.name] = one
            kept = self._kept = gpus, best
        return kept[1]


_best_of_model = _BestOfModel()


def _peers(moment: Moment, gpu: GpuSample, severity: str) -> tuple[int, str, str]:
    typical = usual(moment.peers, TOPIC, peers_group(moment.now, gpu.name)) if gpu.name else None
    if typical is None:
        return 0, "", severity
    return typical.value, f"{typical.count} of {typical.of} like nodes have {typical.value}", severity


def _board(sample: Sample, gpu: GpuSample, severity: str) -> int:
    if severity != "critical" or not any(device.kind == "nvswitch" for device in sample.pci):
        return 0
    full = next((count for name, count in ON_SWITCH_BOARDS if name in (gpu.name or "")), 0)
    return min(full, len(gpu.nvlink.links))


REPLAYS = ("replay", "recovery")  # up to Hopper
RECOVERED = ("recovery_ok", "recovery_failed")  # from Blackwell on; recovery_events are all of them
# What is left after forward error correction. At the bit error rate that a link may have (1e-15), a Blackwell GPU
# counts about one in two minutes.
AFTER_FEC = ("effective", "symbol")
JUDGED = frozenset({*REPLAYS, *RECOVERED, "recovery_events", *AFTER_FEC, "crc"})
MOST_REPLAYS_PER_MIN, MOST_AFTER_FEC_PER_MIN, MOST_CRC_PER_S = 10.0, 60.0, 100.0
# Data rate of one link in one direction, bytes/s, by generation. Not of generation 3: boards differ (14 and 25 GB/s).
NOMINAL = {4: 26.562e9, 5: 53.125e9}
SLOW = 0.9  # of it: drivers round differently
XIDS = frozenset({74, *range(144, 151)})

_WATCH, _ERRORS, _BY_LINK = "nvlink", "errors", "errors by link"


def inactive(moment: Moment) -> Iterator[Hit]:
    for gpu, _, up in linked(moment.now):
        links = gpu.nvlink.links
        if up == len(links):
            continue
        down = [link.index for link in links if link.active is False]
        expected = expected_links(moment, gpu, up) if down else None
        if expected is not None:
            text = f"{name_of_gpu(gpu)}: {up} of {expected.count} NVLinks up ({numbered(down)} down)"
            yield Hit(name_of_gpu(gpu), text, (expected.why,), severity=expected.severity)


def speed(moment: Moment) -> Iterator[Hit]:
    """Against the generation's rate, or against the fastest link of the same model on this node."""
    fastest: dict[str | None, float] = {}
    slowest: list[tuple[GpuSample, float]] = []
    for gpu, _, up in linked(moment.now):
        links = gpu.nvlink.links
        least, most = _speeds(links if up == len(links) else [link for link in links if link.active])
        if least is not None:
            nominal = NOMINAL.get(links[0].version or 0, 0.0)
            fastest[gpu.name] = max(fastest.get(gpu.name, 0.0), nominal, most)
            slowest.append((gpu, least))
    for gpu, least in slowest:
        full = fastest[gpu.name]
        if least < SLOW * full:
            slow = [link.index for link in gpu.nvlink.links if link.active and _below(link, SLOW * full)]
            who = f"NVLink {slow[0]} runs" if len(slow) == 1 else f"NVLinks {numbered(slow)} run"
            text = f"{name_of_gpu(gpu)}: {who} at {least / 1e9:.1f} of {full / 1e9:.1f} GB/s"
            yield Hit(name_of_gpu(gpu), text)


def replay(moment: Moment) -> Iterator[Hit]:
    if not has_grown(moment, _WATCH, _ERRORS, MINUTE_S):
        return
    for one in linked(moment.now):
        counts = {name: _growth(moment, one, name, MINUTE_S).per(60.0) for name in JUDGED - {"crc"}}
        parts = sum(counts[name] for name in RECOVERED)
        hurt = sum(counts[name] for name in REPLAYS) + max(counts["recovery_events"], parts)
        if hurt < 1 and sum(counts[name] for name in AFTER_FEC) < MOST_AFTER_FEC_PER_MIN:
            continue
        xid = _xid(moment, one.gpu) if hurt >= 1 else ""
        grave = hurt >= MOST_REPLAYS_PER_MIN or counts["recovery_failed"] or xid
        told = ", ".join(f"{name} {count:.0f}" for name, count in sorted(counts.items()) if count)
        by_link = _by_link(moment, one.gpu, counts)
        text = f"NVLink recovery errors growing on {_of(by_link, one.gpu)}, per minute: {told}"
        evidence = (*_each(by_link), *([xid] if xid else []))
        yield Hit(name_of_gpu(one.gpu), text, evidence, severity="critical" if grave else "warning")


def crc(moment: Moment) -> Iterator[Hit]:
    if not has_grown(moment, _WATCH, _ERRORS, MINUTE_S):
        return
    for one in linked(moment.now):
        lately = _growth(moment, one, "crc", MINUTE_S).per(1.0)
        if lately:
            now = _growth(moment, one, "crc", RATE_S).per(1.0)
            grave = now >= MOST_CRC_PER_S
            by_link = _by_link(moment, one.gpu, ("crc",))
            text = f"NVLink CRC errors {rate_text(now if grave else lately)} on {_of(by_link, one.gpu)}"
            yield Hit(name_of_gpu(one.gpu), text, _each(by_link), severity="critical" if grave else "info")


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    whole = 0  # told even while it is 0: what is first seen has not grown
    for gpu, key, up in linked(sample):
        for name, count, total in _sums([link.errors for link in gpu.nvlink.links]):
            whole += total
            yield key, _sum_name(name, count), total
        yield key, seen_name(up), 1
    yield _WATCH, _ERRORS, whole


def values(sample: Sample) -> Iterator[Valued]:
    """The counters of each link, to tell which of them it was."""
    for gpu, key, _ in linked(sample):
        yield key, _BY_LINK, [link.errors for link in gpu.nvlink.links], 2 * MINUTE_S


def facts(sample: Sample) -> Iterator[Fact]:
    """Per model the most active links that a GPU of the node has."""
    most: dict[str, int] = {}
    for gpu, _, up in linked.afresh(sample):
        if gpu.name:
            most[gpu.name] = max(most.get(gpu.name, 0), up)
    for name, count in most.items():
        yield TOPIC, peers_group(sample, name), count


def _sums(errors: list[dict[str, int]]) -> list[tuple[str, int, int]]:
    """Per error its name, how many links count it, and their sum. Most often all links count the same: nothing."""
    first, links = errors[0], len(errors)
    if errors.count(first) == links:
        return [(name, links, value * links) for name, value in first.items() if name in JUDGED]
    found = []
    for name in JUDGED.intersection({name for one in errors for name in one}):
        values = [one[name] for one in errors if name in one]
        if values:
            found.append((name, len(values), sum(values)))
    return found


def _speeds(links: list[NvlinkLink]) -> tuple[float | None, float]:
    """The slowest and the fastest of the links; None where none is known."""
    found = [link.speed_bytes_per_s for link in links]
    if found and found.count(found[0]) == len(found):
        return found[0] or None, found[0] or 0.0
    known = [speed for speed in found if speed]
    return (min(known), max(known)) if known else (None, 0.0)


@lru_cache(maxsize=1024)
def _sum_name(name: str, count: int) -> str:
    return f"nvlink {name} of {count}"


def _growth(moment: Moment, one: Linked, name: str, over_s: float) -> Increase:
    count = sum(1 for link in one.gpu.nvlink.links if name in link.errors)
    return grown(moment, one.key, _sum_name(name, count), over_s)


def _by_link(moment: Moment, gpu: GpuSample, names: Collection[str]) -> dict[int, str]:
    """By link ``replay +3``, in the last minute, of all links that counted."""
    old = moment.was(gpu_key(gpu), _BY_LINK, MINUTE_S)
    if old is None or len(old) != len(gpu.nvlink.links):
        return {}
    found = {}
    for link, before in zip(gpu.nvlink.links, old, strict=True):
        more = {name: link.errors.get(name, 0) - before.get(name, 0) for name in names}
        told = ", ".join(f"{name} +{count}" for name, count in sorted(more.items()) if count > 0)
        if told:
            found[link.index] = told
    return found


def _of(links: Collection[int], gpu: GpuSample) -> str:
    """``link 3 of GPU 2``, ``links 3, 7-9 of GPU 2``: all of them."""
    plural = "s" if len(links) > 1 else ""
    return f"link{plural} {numbered(links)} of {name_of_gpu(gpu)}" if links else name_of_gpu(gpu)


def _each(by_link: dict[int, str]) -> tuple[str, ...]:
    return tuple(f"link {number}: {told}" for number, told in by_link.items())


def _below(link: NvlinkLink, least: float) -> bool:
    return bool(link.speed_bytes_per_s) and (link.speed_bytes_per_s or 0.0) < least


def _xid(moment: Moment, gpu: GpuSample) -> str:
    """The newest NVLink Xid of this GPU within the hour."""
    address, oldest = bus_id(gpu.pci_bus_id), moment.now.sampled_at - HOUR_S
    for event in reversed(moment.now.kernel_events):
        if event.kind == "xid" and event.code in XIDS and event.at >= oldest and bus_id(event.subject) == address:
            return f"Xid {event.code}: {event.text}"
    return ""


_SERVICE = "reset the GPUs (nvidia-smi -r), then restart the OS, then service"

COUNTERS = (counters,)
VALUES = (values,)
FACTS = (facts,)

RULES = (
    Rule(
        "nvlink.inactive",
        "critical",
        10.0,
        _SERVICE,
        inactive,
        meaning="NVLinks of a GPU are down: its traffic takes the slow way, or does not pass at all",
        threshold="fewer active than before, than its siblings or like nodes, or than an NVSwitch board has",
        source="nvmlDeviceGetNvLinkState; NVIDIA Health Validation, DCGM",
        needs=("gpu.*.nvlink.links", "gpu.*.nvlink.active"),
        remedy="reset",
        precedence=LINK_DOWN,
        explains=("nvlink.",),
        whole_node=("NVLinks are down on all {count} GPUs", f"check the Fabric Manager; {_SERVICE}"),
    ),
    Rule(
        "nvlink.speed",
        "warning",
        10.0,
        "restart the OS; if it stays, service",
        speed,
        meaning="NVLinks run slower than their generation",
        threshold="< 90 %* of 26562 MB/s (NVLink 4), 53125 MB/s (NVLink 5), or of the node's fastest",
        source="NVML field 164; NVIDIA Health Validation",
        needs=("gpu.*.nvlink.links", "gpu.*.nvlink.speed_bytes_per_s"),
        remedy="reboot",
        whole_node=("NVLinks are slow on all {count} GPUs", "restart the OS; if it stays, service"),
    ),
    Rule(
        "nvlink.replay",
        "warning",
        0.0,
        "watch it; reset the GPU after the job, service if it comes again",
        replay,
        meaning="packets on NVLink have to be sent again, or the link recovers from errors",
        threshold="replay or recovery >= 1/min; critical: >= 10/min*, a failed recovery, or with an NVLink Xid; "
        "errors after FEC >= 60/min*",
        source="NVML fields 161, 162, 213-215, 219, 221; DCGM",
        needs=("gpu.*.nvlink.errors",),
        grows=("gpus",),
        remedy="reset",
        clear_s=60.0,
        explains=("nvlink.crc",),
    ),
    Rule(
        "nvlink.crc",
        "critical",
        0.0,
        "service if it comes again",
        crc,
        meaning="damaged packets on NVLink",
        threshold=">= 100/s; info: >= 1/min",
        source="NVML field 163; DCGM",
        needs=("gpu.*.nvlink.errors",),
        grows=("gpus",),
        remedy="watch",
        clear_s=60.0,
    ),
)
