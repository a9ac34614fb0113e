"""Ethernet interfaces (of their own, or of a RoCE port: told under that port's name) and EFA adapters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from mltop.probes.judge.health.names import INTERFACE_VANISHED, NETDEV, board, group, is_up, port_name
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import (
    HOUR_S,
    LINK_DOWN,
    MINUTE_S,
    Hit,
    Moment,
    Rule,
    grown,
    has_grown,
    once_per_moment,
    per_second,
    rate_text,
    usual,
)
from mltop.probes.model import LinkSample, Sample

# "At least one a minute" has to last, or to be several at once: a single damaged packet is no fault.
ERRORS_IN_A_MINUTE, ERRORS_IN_FIVE_MINUTES = 3.0, 5.0
CARRIER_CHANGES = 2.0  # in an hour; down and up are two
EFA_DROPS_PER_S = 100.0
_ERRORS = ("rx_crc_errors", "rx_errors", "tx_errors", "rx_missed_errors")
_PLAIN = {name: name for name in (*_ERRORS, "carrier_changes")}
_MERGED = {name: f"{NETDEV}{name}" for name in _PLAIN}
_WATCH, _ALL, _SEEN_UP = "links", "all Ethernet errors", "interface seen up"
_RATE, _MTU, _STATE = "eth.rate", "eth.mtu", "eth.state"


def errors(moment: Moment) -> Iterator[Hit]:
    if not has_grown(moment, _WATCH, _ALL, HOUR_S):
        return
    for link, names in _interfaces(moment.now):
        port = port_name(link)
        told = [f"{one} {count:.0f}/min" for one, count in _growing(moment, port, names).items()]
        changes = grown(moment, port, names["carrier_changes"], HOUR_S).per(HOUR_S)
        if changes > CARRIER_CHANGES:
            told.append(f"carrier changed {changes:.0f} times in the last hour")
        if told:
            yield Hit(port, f"{_interface(link)}: {', '.join(told)}")


def slow(moment: Moment) -> Iterator[Hit]:
    """Like nodes know what is usual. Alone, an interface is compared with what it was."""
    name = board(moment.now)
    for link in moment.now.links:
        if link.kind not in ("ethernet", "roce"):
            continue
        port, place = port_name(link), group(name, _interface(link))
        if link.error is not None:
            if link.error == INTERFACE_VANISHED and _was_up(moment, port):
                yield Hit(port, f"{link.device} vanished: the interface is gone", key="state")
        elif link.kind == "ethernet" and link.state is not None and not is_up(link):
            yield from _down(moment, link, place)
        elif is_up(link):
            yield from _slower(moment, link, place)


def efa(moment: Moment) -> Iterator[Hit]:
    for link in moment.now.links:
        if link.kind != "efa" or link.error is not None:
            continue
        port = port_name(link)
        lost = grown(moment, port, "no_completion_cmds", HOUR_S).amount
        drops = per_second(moment, port, "rx_drops")
        if lost:
            text = f"EFA adapter {port} is not answering: {lost:.0f} commands without an end in the last hour"
            yield Hit(port, text, severity="critical")
        elif _carrier_lost(moment, link):
            yield Hit(port, f"EFA adapter {port} has no link ({link.state})", severity="critical")
        elif drops > EFA_DROPS_PER_S:
            yield Hit(port, f"EFA adapter {port} drops {rate_text(drops)} received packets")


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    whole = 0  # told even while it is 0: what is first seen has not grown
    for link, names in _interfaces(sample):
        port, known = port_name(link), link.counters
        if is_up(link):
            yield port, _SEEN_UP, 1
            yield port, _rate_name(link.rate_bits_per_s or 0.0), 1
        for name in names.values():
            if name in known:
                value = known[name]
                whole += value
                yield port, name, value
    for link in sample.links:
        if link.kind == "efa" and link.error is None:
            if is_up(link):
                yield port_name(link), _SEEN_UP, 1
            for name in ("no_completion_cmds", "rx_drops"):
                if name in link.counters:
                    yield port_name(link), name, link.counters[name]
    yield _WATCH, _ALL, whole


def facts(sample: Sample) -> Iterator[Fact]:
    name = board(sample)
    for link, _ in _interfaces(sample):
        place = group(name, _interface(link))
        if link.kind == "ethernet" and link.state is not None:
            yield _STATE, place, is_up(link)
        if is_up(link):
            if link.mtu:
                yield _MTU, place, link.mtu
            if link.rate_bits_per_s and link.kind == "ethernet":
                yield _RATE, place, link.rate_bits_per_s


def _interfaces(sample: Sample) -> Iterator[tuple[LinkSample, dict[str, str]]]:
    """With the names that its counters have."""
    for link in sample.links:
        if link.error is None:
            if link.kind == "ethernet":
                yield link, _PLAIN
            elif link.kind == "roce":
                yield link, _MERGED


def _interface(link: LinkSample) -> str:
    """``eth2 (mlx5_2)``: of a RoCE port both names are known to people."""
    return f"{link.netdev} ({port_name(link)})" if link.kind == "roce" and link.netdev else port_name(link)


def _growing(moment: Moment, port: str, names: dict[str, str]) -> dict[str, float]:
    """Errors per minute, of those that are too many."""
    found = {}
    for name in _ERRORS:
        lately = grown(moment, port, names[name], MINUTE_S).per(MINUTE_S)
        longer = grown(moment, port, names[name], 5 * MINUTE_S).per(5 * MINUTE_S)
        if lately >= ERRORS_IN_A_MINUTE or longer >= ERRORS_IN_FIVE_MINUTES:
            found[name] = max(lately, longer / 5)
    if "rx_crc_errors" in found:
        found.pop("rx_errors", None)  # which counts them too
    return found


def _down(moment: Moment, link: LinkSample, place: str) -> Iterator[Hit]:
    typical = usual(moment.peers, _STATE, place)
    name = port_name(link)
    if _was_up(moment, name):
        yield Hit(name, f"{name} is down, it was up before", (f"operstate {link.state}",), key="state")
    elif typical is not None and typical.value:
        evidence = (f"operstate {link.state}", f"up on {typical.count} of {typical.of} like nodes")
        yield Hit(name, f"{name} is down", evidence, key="state")


def _slower(moment: Moment, link: LinkSample, place: str) -> Iterator[Hit]:
    name, own, mtu = _interface(link), link.rate_bits_per_s, link.mtu
    if own and link.kind == "ethernet":  # of RoCE ib.rate tells
        typical = usual(moment.peers, _RATE, place)
        if typical is not None and own < typical.value:
            why = f"{typical.count} of {typical.of} like nodes have {typical.value / 1e9:g} Gb/s"
            yield Hit(port_name(link), f"{name} at {own / 1e9:g} of {typical.value / 1e9:g} Gb/s", (why,), key="rate")
        elif typical is None:
            for times in (10, 4, 2.5, 2):
                if moment.increase(port_name(link), _rate_name(times * own), 1.0) is not None:
                    text = f"{name} at {own / 1e9:g} of {times * own / 1e9:g} Gb/s"
                    yield Hit(port_name(link), text, ("it was faster before",), key="rate")
                    break
    typical = usual(moment.peers, _MTU, place) if mtu else None
    if typical is not None and mtu is not None and mtu < typical.value:
        why = f"{typical.count} of {typical.of} like nodes have {typical.value}"
        text = f"{name} has an MTU of {mtu}, like nodes {typical.value}"
        yield Hit(port_name(link), text, (why,), action="set the same MTU everywhere", key="mtu")


def _carrier_lost(moment: Moment, link: LinkSample) -> bool:
    """The port's own state is always ACTIVE on AWS: where it is not, or its interface is down, it is lost."""
    own = _ethernet_ports(moment).get(link.netdev or "")
    down = link.state is not None and not is_up(link)
    if own is not None and own.state is not None and not is_up(own):
        return _was_up(moment, port_name(own))
    return down and _was_up(moment, port_name(link))


@once_per_moment
def _ethernet_ports(moment: Moment) -> dict[str, LinkSample]:
    return {link.device: link for link in moment.now.links if link.kind == "ethernet"}


def _was_up(moment: Moment, port: str) -> bool:
    return moment.increase(port, _SEEN_UP, 1.0) is not None


@lru_cache(maxsize=1024)
def _rate_name(bits_per_s: float) -> str:
    """Of the counter that exists once an interface has been seen at this speed."""
    return f"interface seen at {bits_per_s / 1e9:g} Gb/s"


COUNTERS = (counters,)
FACTS = (facts,)

RULES = (
    Rule(
        "eth.errors",
        "warning",
        0.0,
        "check or replace cable and transceiver",
        errors,
        meaning="an Ethernet interface receives damaged packets, loses packets or its link",
        threshold="rx_crc_errors, rx_errors, tx_errors or rx_missed_errors >= 1/min (5 in 5 min or 3 in one*); "
        "carrier_changes > 2/h",
        source="/sys/class/net/I/statistics; NVSentinel",
        needs=("links", "links.*.counters", *(f"links.*.{name}" for name in (*_PLAIN, *_MERGED.values()))),
        grows=("links",),
        clear_s=60.0,
    ),
    Rule(
        "eth.slow",
        "warning",
        10.0,
        "check cable and configuration of interface and switch",
        slow,
        meaning="an Ethernet interface is down, slower or with a smaller MTU than on like nodes",
        threshold="speed, MTU or operstate < most like nodes, or < before",
        source="/sys/class/net/I/{speed,mtu,operstate}; Meta gcm",
        needs=("links", "links.*.state", "links.*.rate", "links.*.mtu"),
        explains=("eth.errors",),
    ),
    Rule(
        "efa",
        "warning",
        0.0,
        "reboot; let AWS replace the instance if it comes again",
        efa,
        meaning="an EFA adapter drops packets or does not answer",
        threshold="rx_drops > 100/s; critical: no_completion_cmds + 1, or no link",
        source="EFA hw_counters; NVSentinel",
        needs=("links", "links.*.state", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
        precedence=LINK_DOWN,
    ),
)
