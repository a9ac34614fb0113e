"""NVLink: links down, slow, or counting errors. GPUs in MIG mode have none to judge.

What is remembered: errors of all links of a GPU by name, under a name that tells of how many links they are: where one
link's counter cannot be read for a while, the sum of the others is another counter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from mltop.probes.judge.health import nvlink_expected
from mltop.probes.judge.health.gpu_words import numbered
from mltop.probes.judge.health.link_growth import HOUR_S, MINUTE_S, RATE_S, grown, has_grown, rate_text
from mltop.probes.judge.health.link_ports import bus_id, gpu_key, gpu_name
from mltop.probes.judge.health.nvlink_expected import Linked, linked, seen_name
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import LINK_DOWN, Hit, Moment, Rule
from mltop.probes.judge.health.trails import Increase, Valued
from mltop.probes.model import GpuSample, NvlinkLink, Sample

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
        expected = nvlink_expected.of(moment, gpu, up) if down else None
        if expected is not None:
            text = f"{gpu_name(gpu)}: {up} of {expected.count} NVLinks up ({numbered(down)} down)"
            yield Hit(gpu_name(gpu), text, (expected.why,), severity=expected.severity)


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
            text = f"{gpu_name(gpu)}: {who} at {least / 1e9:.1f} of {full / 1e9:.1f} GB/s"
            yield Hit(gpu_name(gpu), text)


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
        yield Hit(gpu_name(one.gpu), text, evidence, severity="critical" if grave else "warning")


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
            yield Hit(gpu_name(one.gpu), text, _each(by_link), severity="critical" if grave else "info")


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
        yield nvlink_expected.TOPIC, nvlink_expected.peers_group(sample, name), count


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
    return f"link{plural} {numbered(links)} of {gpu_name(gpu)}" if links else gpu_name(gpu)


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
