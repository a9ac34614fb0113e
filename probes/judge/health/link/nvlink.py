"""NVLink: links down, slow, or counting errors. GPUs in MIG mode have none to judge.

What is remembered: errors of all links of a GPU by name, under a name that tells of how many links they are: where one
link's counter cannot be read for a while, the sum of the others is another counter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mltop.probes.judge.health.moment import MINUTE_S, FleetMoment, Moment, OfNewest
from mltop.probes.judge.health.names import gpu_key, group, numbered, rate_text
from mltop.probes.judge.health.relations import LINK_DOWN, SLOWS, STOPS
from mltop.probes.judge.health.rule import LIMIT, Hit, Limit, device_rule, share
from mltop.probes.judge.health.trails import RATE_S, Increase, Valued
from mltop.probes.model import GpuSample, NvlinkLink, Sample
from mltop.probes.model.news.judged import Fact
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import Severity

# All links of a GPU on a board with NVSwitches lead to these. The first name that fits counts.
ON_SWITCH_BOARDS = (
    *(("H800", 8), ("A800", 8), ("H20", 18), ("H100", 18), ("GH200", 18)),
    *(("B200", 18), ("B300", 18), ("A100", 12), ("V100", 6)),
)
# Cards with bridges, which may be fewer than fit.
_BRIDGED = re.compile(r"PCIe|\bNVL\b|RTX|\bA(?:10|16|30|40)\b|\bL(?:4|40)S?\b|Quadro|GeForce|TITAN")

REPLAYS = ("replay", "recovery")  # up to Hopper
RECOVERED = ("recovery_ok", "recovery_failed")  # from Blackwell on; recovery_events are all of them
# What is left after forward error correction. At the bit error rate that a link may have (1e-15), a Blackwell GPU
# counts about one in two minutes.
AFTER_FEC = ("effective", "symbol")
JUDGED = frozenset({*REPLAYS, *RECOVERED, "recovery_events", *AFTER_FEC, "crc"})
MOST_REPLAYS_PER_MIN, MOST_AFTER_FEC_PER_MIN = 10.0, 60.0
# Data rate of one link in one direction, bytes/s, by generation. Not of generation 3: boards differ (14 and 25 GB/s).
NOMINAL = {4: 26.562e9, 5: 53.125e9}

_ACTIVE, _BY_LINK = "nvlink.active", "errors by link"
_RESEAT = "nothing where no NVLink bridge is mounted; else reseat it"
_SERVICE = "reset the GPUs (nvidia-smi -r), then restart the OS, then service"


class Linked(NamedTuple):
    """A GPU whose NVLinks can be judged, what is remembered of it is under ``key``, and its active links."""

    gpu: GpuSample
    key: str
    up: int


@OfNewest
def _linked(sample: Sample) -> list[Linked]:
    return [
        Linked(gpu, gpu_key(gpu), active_count(gpu.nvlink.links))
        for gpu in sample.gpus
        if gpu.nvlink.links and gpu.state == "ok" and not gpu.mig_enabled  # in MIG mode they are not used
    ]


def active_count(links: list[NvlinkLink]) -> int:
    return [link.active for link in links].count(True)


@OfNewest
def _best(sample: Sample) -> dict[str | None, Linked]:
    """By model the first GPU that has most active links."""
    best: dict[str | None, Linked] = {}
    for linked in _linked.afresh(sample):
        if linked.gpu.name not in best or linked.up > best[linked.gpu.name].up:
            best[linked.gpu.name] = linked
    return best


@dataclass(frozen=True)
class _Expected:
    """How many active links a GPU should have."""

    count: int
    why: str
    severity: Severity


def _expected(moment: FleetMoment, linked: Linked) -> _Expected | None:
    """The highest count that there is a reason for; None when as many are up. Boards, bridges and partitions differ."""
    gpu, model = linked.gpu, linked.gpu.name or ""
    card: Severity = "critical"
    if _BRIDGED.search(model):
        card = "warning" if linked.up else "info"  # without any link: most likely there is no bridge
    counts = range(len(gpu.nvlink.links), linked.up, -1)
    earlier = next((count for count in counts if moment.trails.has_seen(linked.key, _seen_name(count))), 0)
    reasons = [_Expected(earlier, "so many were active before", "critical")]
    best = _best(moment.now)[gpu.name]
    if best.gpu is not gpu:
        reasons.append(_Expected(best.up, f"{gpu_name(best.gpu.index)} of the same model has {best.up}", card))
    usual = moment.peers.common(_ACTIVE, _peers_group(moment.now, model)) if model else None
    if usual is not None:
        reasons.append(_Expected(usual.value, f"{usual} have {usual.value}", card))
    if card == "critical" and any(device.kind == "nvswitch" for device in moment.now.pci):
        of_board = next((count for name, count in ON_SWITCH_BOARDS if name in model), 0)
        why = "all links of an NVSwitch board have to be active"
        reasons.append(_Expected(min(of_board, len(gpu.nvlink.links)), why, "critical"))
    more = (reason for reason in reasons if reason.count > linked.up)
    return max(more, key=lambda reason: (reason.count, reason.severity == "critical"), default=None)


def _peers_group(sample: Sample, model: str) -> str:
    """Virtual machines with one GPU have no NVLinks, those with eight have all."""
    return group(model, f"{len(sample.gpus)} GPUs")


@device_rule("nvlink.inactive", "critical", hold_s=10.0, compares_nodes=True, remedy="reset")(
    meaning="NVLinks of a GPU are down: its traffic takes the slow way, or does not pass at all",
    threshold="fewer active than before, than its siblings or like nodes (info: of a card that may have no "
    "bridge), or than an NVSwitch board has",
    source="nvmlDeviceGetNvLinkState; NVIDIA Health Validation, DCGM",
    action=_SERVICE,
    needs=("gpu.*.nvlink.links", "gpu.*.nvlink.active"),
    precedence=LINK_DOWN,
    adds=True,
    together="{each}",
    explains=("nvlink.",),
    whole_node=("NVLinks are down on all {count} GPUs", f"check the Fabric Manager; {_SERVICE}"),
    explains_ranks=(*STOPS, *SLOWS),
)
def inactive(moment: FleetMoment) -> Iterator[Hit]:
    for linked in _linked(moment.now):
        links = linked.gpu.nvlink.links
        if linked.up == len(links):
            continue
        down = [link.index for link in links if link.active is False]
        expected = _expected(moment, linked) if down else None
        if expected is not None:
            name = gpu_name(linked.gpu.index)
            text = f"{name}: {linked.up} of {expected.count} NVLinks up ({numbered(down)} down)"
            action = _RESEAT if expected.severity == "info" else ""
            yield Hit(name, text, (expected.why,), severity=expected.severity, action=action)


@device_rule("nvlink.speed", "warning", hold_s=10.0, remedy="reboot")(
    meaning="NVLinks run slower than their generation",
    threshold=f"< {LIMIT}* of {NOMINAL[4] / 1e6:.0f} MB/s (NVLink 4), {NOMINAL[5] / 1e6:.0f} MB/s "
    "(NVLink 5), or of the node's fastest",
    limit=share(0.9),  # drivers round differently
    source="NVML field 164; NVIDIA Health Validation",
    action="restart the OS; if it stays, service",
    needs=("gpu.*.nvlink.links", "gpu.*.nvlink.speed_bytes_per_s"),
    whole_node=("NVLinks are slow on all {count} GPUs", "restart the OS; if it stays, service"),
    explains_ranks=SLOWS,
)
def speed(moment: Moment, limit: float) -> Iterator[Hit]:
    """Against the generation's rate, or against the fastest link of the same model on this node."""
    fastest: dict[str | None, float] = {}
    slowest: list[tuple[GpuSample, float]] = []
    for gpu, _, up in _linked(moment.now):
        links = gpu.nvlink.links
        least, most = _speeds(links if up == len(links) else [link for link in links if link.active])
        if least is not None:
            nominal = NOMINAL.get(links[0].version or 0, 0.0)
            fastest[gpu.name] = max(fastest.get(gpu.name, 0.0), nominal, most)
            slowest.append((gpu, least))
    for gpu, least in slowest:
        full = fastest[gpu.name]
        if least < limit * full:
            active = [(link.index, link.speed_bytes_per_s) for link in gpu.nvlink.links if link.active]
            slow = [index for index, bytes_per_s in active if bytes_per_s and bytes_per_s < limit * full]
            links_run = f"NVLink {slow[0]} runs" if len(slow) == 1 else f"NVLinks {numbered(slow)} run"
            text = f"{gpu_name(gpu.index)}: {links_run} at {least / 1e9:.1f} of {full / 1e9:.1f} GB/s"
            yield Hit(gpu_name(gpu.index), text)


def _speeds(links: list[NvlinkLink]) -> tuple[float | None, float]:
    """The slowest and the fastest of the links; None where none is known."""
    speeds = [link.speed_bytes_per_s for link in links]
    if speeds and speeds.count(speeds[0]) == len(speeds):
        return speeds[0] or None, speeds[0] or 0.0
    rated = [bytes_per_s for bytes_per_s in speeds if bytes_per_s]
    return (min(rated), max(rated)) if rated else (None, 0.0)


@device_rule("nvlink.replay", "warning", clear_s=60.0, remedy="reset")(
    meaning="packets on NVLink have to be sent again, or the link recovers from errors",
    threshold=f"replay or recovery >= 1/min; critical: >= {MOST_REPLAYS_PER_MIN:.0f}/min*, or a failed "
    f"recovery; errors after FEC >= {MOST_AFTER_FEC_PER_MIN:.0f}/min*",
    source="NVML fields 161, 162, 213-215, 219, 221; DCGM",
    action="watch it; reset the GPU after the job, service if it comes again",
    needs=("gpu.*.nvlink.errors",),
    grows=("gpus",),
    explains=("nvlink.crc",),
    as_grave=True,
    explains_ranks=(*STOPS, *SLOWS),
)
def replay(moment: Moment) -> Iterator[Hit]:
    if not moment.trails.any_grew(counters, MINUTE_S):
        return
    for linked in _linked(moment.now):
        gpu = linked.gpu
        counts = {name: _growth(moment, linked, name, MINUTE_S).per(MINUTE_S) for name in JUDGED - {"crc"}}
        parts = sum(counts[name] for name in RECOVERED)
        hurt = sum(counts[name] for name in REPLAYS) + max(counts["recovery_events"], parts)
        if hurt < 1 and sum(counts[name] for name in AFTER_FEC) < MOST_AFTER_FEC_PER_MIN:
            continue
        grave = hurt >= MOST_REPLAYS_PER_MIN or counts["recovery_failed"]
        growing = ", ".join(f"{name} {count:.0f}" for name, count in sorted(counts.items()) if count)
        where, evidence = _where(moment, gpu, counts)
        text = f"NVLink recovery errors growing on {where}, per minute: {growing}"
        yield Hit(gpu_name(gpu.index), text, evidence, "critical" if grave else "warning")


@device_rule("nvlink.crc", "critical", clear_s=60.0, remedy="watch")(
    meaning="damaged packets on NVLink",
    threshold=f">= {LIMIT}/s; info: >= 1/min",
    limit=Limit(100, unit="errors per second"),
    source="NVML field 163; DCGM",
    action="service if it comes again",
    needs=("gpu.*.nvlink.errors",),
    grows=("gpus",),
    explains_ranks=(*STOPS, *SLOWS),
)
def crc(moment: Moment, limit: float) -> Iterator[Hit]:
    if not moment.trails.any_grew(counters, MINUTE_S):
        return
    for linked in _linked(moment.now):
        lately = _growth(moment, linked, "crc", MINUTE_S).per(1.0)
        if lately:
            now = _growth(moment, linked, "crc", RATE_S).per(1.0)
            grave = now >= limit
            where, evidence = _where(moment, linked.gpu, ("crc",))
            text = f"NVLink CRC errors {rate_text(now if grave else lately)} on {where}"
            yield Hit(gpu_name(linked.gpu.index), text, evidence, "critical" if grave else "info")


def _growth(moment: Moment, linked: Linked, name: str, over_s: float) -> Increase:
    count = sum(1 for link in linked.gpu.nvlink.links if name in link.errors)
    return moment.trails.grown(linked.key, _sum_name(name, count), over_s)


def _where(moment: Moment, gpu: GpuSample, names: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """``links 3, 7-9 of GPU 2``: all links that counted in the last minute; and what each did (``link 3: crc +3``)."""
    old = moment.trails.was(gpu_key(gpu), _BY_LINK, MINUTE_S)
    links = gpu.nvlink.links if old is not None and len(old) == len(gpu.nvlink.links) else ()
    by_link = {}
    for link, before in zip(links, old or ()):
        more = {name: link.errors.get(name, 0) - before.get(name, 0) for name in names}
        if any(count > 0 for count in more.values()):
            by_link[link.index] = ", ".join(f"{name} +{count}" for name, count in sorted(more.items()) if count > 0)
    named = f"link{'s' * (len(by_link) > 1)} {numbered(by_link)} of " if by_link else ""
    return f"{named}{gpu_name(gpu.index)}", tuple(f"link {number}: {errors}" for number, errors in by_link.items())


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for gpu, key, _ in _linked(sample):
        for name, count, total in _sums([link.errors for link in gpu.nvlink.links]):
            yield key, _sum_name(name, count), total


def seen(sample: Sample) -> Iterator[tuple[str, str]]:
    return ((key, _seen_name(up)) for _, key, up in _linked(sample))


def values(sample: Sample) -> Iterator[Valued]:
    """The counters of each link, to tell which of them it was."""
    for gpu, key, _ in _linked(sample):
        yield key, _BY_LINK, [link.errors for link in gpu.nvlink.links], 2 * MINUTE_S


def facts(sample: Sample) -> Iterator[Fact]:
    """Per model the most active links that a GPU of the node has."""
    for name, best in _best.afresh(sample).items():
        if name:
            yield _ACTIVE, _peers_group(sample, name), best.up


def _sums(errors: list[dict[str, int]]) -> list[tuple[str, int, int]]:
    """Per error its name, how many links count it, and their sum. Most often all links count the same: nothing."""
    first, links = errors[0], len(errors)
    if errors.count(first) == links:
        return [(name, links, value * links) for name, value in first.items() if name in JUDGED]
    counts = {name: [of_link[name] for of_link in errors if name in of_link] for name in JUDGED}
    return [(name, len(of_links), sum(of_links)) for name, of_links in counts.items() if of_links]


@lru_cache(maxsize=1024)
def _sum_name(name: str, count: int) -> str:
    return f"nvlink {name} of {count}"


@lru_cache(maxsize=128)
def _seen_name(count: int) -> str:
    """What is remembered of a GPU once it was seen with so many active links."""
    return f"nvlink {count} active"
