"""Whether a port that is down is missed: most nodes have ports that nothing is plugged into.

Ports of InfiniBand and RoCE: down, flapping, too slow, counters that stand still. Devices: ib_device.py.

What is remembered of a port beside its own counters: that it was up, how often it went down (a counter that is 1 while
it is down and 0 otherwise grows by one each time), and the rates it had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mltop.probes.judge.health.link import ib_device
from mltop.probes.judge.health.names import NETDEV, Port, board, bus_id, group, port_name, rdma_ports
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import (
    DAY_S,
    HOUR_S,
    LINK_DOWN,
    Hit,
    Moment,
    Rule,
    grown,
    has_grown,
    once_per_moment,
    usual,
)
from mltop.probes.model import LinkSample, Sample

SEEN_UP = "seen up"  # the counter that exists once a port has been seen up
STATE, ACTIVE = "ib.state", "ib.active"  # topics of facts
Model = tuple["int | None", "int | None"]  # vendor and device
# Ports of one kind that a whole node of this GPU trains with; the first name that fits (gpud's table).
NEEDED = (("A100", 1), ("H100", 8), ("H200", 8), ("B200", 8), ("B300", 8))


@dataclass(frozen=True)
class Wanted:
    """``yes``: it is missed, and why. ``unused``: like nodes have it down too, there is nothing to tell.
    ``with_all``: only because no port of its kind has a link.
    """

    yes: bool
    why: str
    unused: bool = False
    with_all: bool = False


def how_wanted(moment: Moment, link: LinkSample) -> Wanted:
    """What speaks for a port that is down now."""
    if moment.increase(port_name(link), SEEN_UP, 1.0) is not None:
        return Wanted(True, "it was up since it is watched")
    if link.counters.get(f"{NETDEV}carrier_up_count", 0) > 0 and link.physical_state != "Disabled":
        return Wanted(True, "it was up since the node was started")
    name = board(moment.now)
    typical = usual(moment.peers, STATE, group(name, port_name(link)))
    if typical is not None and typical.value == "ACTIVE":
        return Wanted(True, f"ACTIVE on {typical.count} of {typical.of} like nodes")
    if typical is not None and typical.value == "DOWN":
        return Wanted(False, f"DOWN on {typical.count} of {typical.of} like nodes too", unused=True)
    return _by_count(moment, link, name)


def _by_count(moment: Moment, link: LinkSample, board_name: str) -> Wanted:
    count, active, model = _of_kinds(moment).get(link.kind, (0, 0, None))
    own = _models(moment).get(bus_id(link.pci_bus_id))
    # A NIC that differs from those in use is there for something else (storage, management).
    if own is not None and model is not None and model != own:
        return Wanted(False, "no other port of this kind of NIC is up")
    typical = usual(moment.peers, ACTIVE, group(board_name, link.kind))
    if typical is not None and active < typical.value:
        return Wanted(True, f"{active} ports ACTIVE, {typical.value} on {typical.count} of {typical.of} like nodes")
    needed = min(_needed(board_name), len(moment.now.gpus))
    if active < needed <= count:
        why = f"{active} ports ACTIVE, {needed} belong to {len(moment.now.gpus)} x {board_name}"
        return Wanted(True, why, with_all=not active)
    return Wanted(False, "it was not up since it is watched")


def _needed(board_name: str) -> int:
    return next((count for name, count in NEEDED if name in board_name), 0)


@once_per_moment
def _models(moment: Moment) -> dict[str, Model]:
    """By PCI address."""
    return {bus_id(device.bus_id): (device.vendor_id, device.device_id) for device in moment.now.pci}


@once_per_moment
def _of_kinds(moment: Moment) -> dict[str, tuple[int, int, Model | None]]:
    """By kind how many ports there are, how many are up, and what model most of these are (None: not known of all)."""
    counts: dict[str, int] = {}
    active: dict[str, Counter[Model | None]] = {}
    for port in rdma_ports(moment.now):
        counts[port.link.kind] = counts.get(port.link.kind, 0) + 1
        if port.up:
            models = active.setdefault(port.link.kind, Counter())
            models[_models(moment).get(bus_id(port.link.pci_bus_id))] += 1
    found: dict[str, tuple[int, int, Model | None]] = {}
    for kind, count in counts.items():
        models = active.get(kind, Counter())
        most = models.most_common(1)[0][0] if models and None not in models else None
        found[kind] = count, models.total(), most
    return found


FLAPS, FLAPS_OVER_S = 3, 12 * HOUR_S
_DOWNED, _CARRIER, _WENT_DOWN = "link_downed", f"{NETDEV}carrier_down_count", "seen going down"
_WATCH, _ALL, _RATES = "links", "all flaps", "all rates"
_RATE = "ib.rate"
_MOST_OF = 3  # so many ports on one that is slower: below that a node may have two sorts of links
_LABELS = {"infiniband": "InfiniBand", "roce": "RoCE"}
_TRAINED = ("INIT", "ARMED")  # a physical link, no subnet manager yet
# Widths of the counters that saturate (kernel, infiniband/core/sysfs.c).
NARROW = {
    "link_downed": 0xFF,
    "link_error_recovery": 0xFF,
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
}
_MAXIMA = frozenset(NARROW.values())


def down(moment: Moment) -> Iterator[Hit]:
    """Of ports none of which was ever up, the cause is outside of them and told once."""
    together: dict[str, list[Hit]] = {}
    for link, name, up in rdma_ports(moment.now):
        if up or link.state is None:
            continue
        if link.state in _TRAINED:
            if _was_down(moment, link):
                continue  # on its way to ACTIVE
            text = f"{name} has a link, but no subnet manager has made it ACTIVE ({link.state})"
            yield Hit(name, text, severity="warning", action="check the subnet manager (sminfo)")
            continue
        wanted = how_wanted(moment, link)
        if not wanted.unused:
            text = f"{name} is down ({link.physical_state or link.state})"
            evidence = (wanted.why, *_flap_evidence(moment, link))
            hit = Hit(name, text, evidence, severity="critical" if wanted.yes else "info", action=_action(wanted.yes))
            if wanted.with_all:
                together.setdefault(link.kind, []).append(hit)
            else:
                yield hit
    for kind, hits in together.items():
        yield _of_all(kind, hits) if len(hits) > 1 else hits[0]


def _of_all(kind: str, hits: list[Hit]) -> Hit:
    label = _LABELS.get(kind, kind)
    return Hit(
        f"all {len(hits)} {label} ports",
        f"None of the {len(hits)} {label} ports has a link",
        (*hits[0].evidence, ", ".join(hit.subject for hit in hits)),
        severity="critical",
        action="check the cables and the switch; nothing, if this node has no such network",
    )


def flap(moment: Moment) -> Iterator[Hit]:
    """While a port is down, ib.down tells how often it was."""
    if not has_grown(moment, _WATCH, _ALL, FLAPS_OVER_S):
        return
    for link, name, up in rdma_ports(moment.now):
        often = _flaps(moment, link, FLAPS_OVER_S) if up else 0
        lately = _flaps(moment, link, HOUR_S) if often else 0
        if lately < 1 and often < FLAPS:
            continue
        severity = "info"
        if lately >= FLAPS:
            severity = "critical"
        elif often >= FLAPS or moment.now.ranks:
            severity = "warning"
        count, span = (lately, "the last hour") if lately >= FLAPS or often < FLAPS else (often, "12 hours")
        times = "once" if count == 1 else f"{count} times"
        text = f"{name} flapped {times} in {span}"
        yield Hit(name, text, _flap_evidence(moment, link), severity=severity)


def saturated(moment: Moment) -> Iterator[Hit]:
    for link, name, up in rdma_ports(moment.now):
        stuck = _stuck(link)
        if not stuck or not (up or moment.increase(name, SEEN_UP, 1.0)):
            continue
        told = ", ".join(f"{name} stuck at {link.counters.get(name, NARROW.get(name))}" for name in stuck)
        text = f"{name}: {told}, it can count no further"
        yield Hit(name, text, ("flaps are counted from the port's state instead",))


def rate(moment: Moment) -> Iterator[Hit]:
    """Like nodes know best how fast a port should be, then its own past, then the node's other ports."""
    name_of_board = board(moment.now)
    own_ports = [port for port in rdma_ports(moment.now) if port.up and port.link.rate_bits_per_s]
    changed = has_grown(moment, _WATCH, _RATES, DAY_S)
    most = _most_have(own_ports)
    for port in own_ports:
        own = port.link.rate_bits_per_s or 0.0
        typical = usual(moment.peers, _RATE, group(name_of_board, port.name))
        if typical is not None:
            full, why = typical.value, f"{typical.count} of {typical.of} like nodes have {typical.value / 1e9:g} Gb/s"
        elif changed and (before := _was_faster(moment, port.name, own)):
            full, why = before, "it was faster before"
        else:
            full = most.get((port.link.kind, port.link.firmware), own)
            why = f"most ports of this kind here have {full / 1e9:g} Gb/s"
        if own < full:
            yield Hit(port.name, f"{port.name} at {own / 1e9:g} of {full / 1e9:g} Gb/s", (why,))


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    whole, rates = 0, 0.0  # told even while they are 0: what is first seen has not grown
    for link, name, up in rdma_ports(sample):
        if up:
            rates += link.rate_bits_per_s or 0.0
            yield name, SEEN_UP, 1
            yield name, _WENT_DOWN, 0
            yield name, _rate_name(link.rate_bits_per_s), 1
        elif link.state is not None and link.state not in _TRAINED:
            whole += 1
            yield name, _WENT_DOWN, 1
        for counter in (_DOWNED, _CARRIER):
            value = link.counters.get(counter)
            if value is not None:
                whole += value
                yield name, counter, value
    yield _WATCH, _ALL, whole
    yield _WATCH, _RATES, rates  # falls or rises: a counter that changes has grown


def facts(sample: Sample) -> Iterator[Fact]:
    name_of_board = board(sample)
    yield from ib_device.facts(sample, name_of_board)
    active: dict[str, int] = {}
    for link, name, up in rdma_ports.afresh(sample):
        place = group(name_of_board, name)
        if up:
            active[link.kind] = active.get(link.kind, 0) + 1
            if link.rate_bits_per_s:
                yield _RATE, place, link.rate_bits_per_s
        if link.state is not None:
            yield STATE, place, link.state
    for kind, count in active.items():
        yield ACTIVE, group(name_of_board, kind), count


def _flaps(moment: Moment, link: LinkSample, over_s: float) -> int:
    """By the counter that saw more: brief flaps fall between two samples."""
    name = port_name(link)
    return round(max(grown(moment, name, one, over_s).per(over_s) for one in _flap_counters(link)))


def _flap_counters(link: LinkSample) -> tuple[str, ...]:
    """The interface's carrier only where the port's own counter is stuck: a new subnet manager takes it away too."""
    stuck = _DOWNED not in link.counters or _DOWNED in _stuck(link)
    return (_DOWNED, _WENT_DOWN, _CARRIER) if stuck else (_DOWNED, _WENT_DOWN)


def _flap_evidence(moment: Moment, link: LinkSample) -> tuple[str, ...]:
    counts = {one: grown(moment, port_name(link), one, FLAPS_OVER_S).amount for one in _flap_counters(link)}
    told = [f"{one.removeprefix(NETDEV)} +{count:.0f}" for one, count in counts.items() if count]
    if _DOWNED in _stuck(link):
        told.append("link_downed is stuck at its maximum")
    return (", ".join(told),) if told else ()


def _stuck(link: LinkSample) -> list[str]:
    """Counters at their maximum; a value above the classic one shows that this driver's counters are wider."""
    counters = link.counters
    if link.saturated or _MAXIMA.isdisjoint(counters.values()):
        return link.saturated
    if any(counters.get(name, 0) > most for name, most in NARROW.items()):
        return []
    return [name for name, most in NARROW.items() if counters.get(name) == most]


def _was_down(moment: Moment, link: LinkSample) -> bool:
    return _states_before(moment).get(port_name(link), "INIT") not in _TRAINED


@once_per_moment
def _states_before(moment: Moment) -> dict[str, str | None]:
    return {port_name(link): link.state for link in moment.before.links} if moment.before is not None else {}


def _action(wanted: bool) -> str:
    return "" if wanted else "nothing, if nothing is plugged in"


def _was_faster(moment: Moment, name: str, own: float) -> float:
    """The higher rate that the port had; 0 for none. A port that loses lanes falls to a half or a quarter."""
    for times in (4, 2):
        if moment.increase(name, _rate_name(times * own), 1.0) is not None:
            return times * own
    return 0.0


def _most_have(own_ports: list[Port]) -> dict[tuple[str, str | None], float]:
    """By kind of card (which the firmware tells) the rate that all but a few ports have; {} where all have one."""
    if len({port.link.rate_bits_per_s for port in own_ports}) < 2:
        return {}
    rates: dict[tuple[str, str | None], Counter[float]] = {}
    for port in own_ports:
        rates.setdefault((port.link.kind, port.link.firmware), Counter())[port.link.rate_bits_per_s or 0.0] += 1
    found = {}
    for card, counts in rates.items():
        most, count = counts.most_common(1)[0]
        if count >= _MOST_OF * max(counts.total() - count, 1):
            found[card] = most
    return found


@lru_cache(maxsize=1024)
def _rate_name(bits_per_s: float | None) -> str:
    """Of the counter that exists once a port has been seen at this rate."""
    return f"seen at {(bits_per_s or 0.0) / 1e9:g} Gb/s"


COUNTERS = (counters,)
FACTS = (facts,)

RULES = (
    *ib_device.RULES,
    Rule(
        "ib.down",
        "critical",
        0.0,
        "reseat or clean the cable; check the switch port",
        down,
        meaning="a port of InfiniBand or RoCE has no link",
        threshold="not ACTIVE, and it was up, or is on like nodes, or fewer are ACTIVE than the GPUs need; else info; "
        "INIT: warning",
        source="/sys/class/infiniband/D/ports/N/{state,phys_state}; gpud, Meta gcm, NVSentinel",
        needs=("links", "links.*.state", "links.*.phys_state"),
        clear_s=10.0,
        precedence=LINK_DOWN,
        explains=(
            "ib.rate",
            "ib.ber",
            "ib.recovery",
            "ib.integrity",
            "ib.rcv_errors",
            "ib.discards",
            "ib.wait",
            "ib.transport",
            "roce.",
            "eth.",
        ),
    ),
    Rule(
        "ib.flap",
        "warning",
        0.0,
        "replace cable or transceiver",
        flap,
        meaning="a port lost its link and got it again",
        threshold="once in the hour: info, warning with ranks; 3 in 12 h: warning; 3 in 1 h: critical",
        source="link_downed, carrier_down_count, state; gpud, NVSentinel, Azure",
        needs=("links", "links.*.state", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
        precedence=LINK_DOWN,
    ),
    Rule(
        "ib.saturated",
        "info",
        0.0,
        "sudo perfquery -R",
        saturated,
        meaning="an error counter stands at its maximum and shows nothing new",
        threshold="255, 65535 or 15, as wide as the counter is",
        source="kernel infiniband/core/sysfs.c",
        needs=("links", "links.*.counters"),
    ),
    Rule(
        "ib.rate",
        "warning",
        10.0,
        "check cable and the switch port's configuration",
        rate,
        meaning="a port runs slower than it should",
        threshold="< most like nodes; without these < before, or < the node's other ports of this kind",
        source="/sys/class/infiniband/D/ports/N/rate; gpud, NHC, NVIDIA Health Validation",
        needs=("links", "links.*.rate"),
    ),
)
