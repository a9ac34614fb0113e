"""Ethernet interfaces (of their own, or of a RoCE port: told under that port's name) and EFA adapters."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.moment import HOUR_S, MINUTE_S, FleetMoment, Moment
from mltop.probes.judge.health.names import NETDEV, board, group, is_up, port_name, rate_text
from mltop.probes.judge.health.relations import LINK_DOWN, SLOWS, STOPS
from mltop.probes.judge.health.rule import LIMIT, Hit, Limit, port_fault, port_rule
from mltop.probes.judge.health.trails import rate_key
from mltop.probes.model import LinkSample, Sample
from mltop.probes.model.news.judged import Fact

# "At least one a minute" has to last, or to be several at once: a single damaged packet is no fault.
ERRORS_IN_A_MINUTE, ERRORS_IN_FIVE_MINUTES = 3.0, 5.0
CARRIER_CHANGES = 2.0  # in an hour; down and up are two
_ERRORS = ("rx_crc_errors", "rx_errors", "tx_errors", "rx_missed_errors")
_PLAIN = {name: name for name in (*_ERRORS, "carrier_changes")}
# By kind of port: the counter that the sample has of each.
_COUNTERS = {
    "ethernet": _PLAIN,
    "roce": {name: f"{NETDEV}{name}" for name in _PLAIN},
    "efa": {name: name for name in ("no_completion_cmds", "rx_drops")},
}
_INTERFACE = "interface "
_SEEN_UP = "interface seen up"  # the counter that exists once one has been up
_RATE, _MTU, _STATE = "eth.rate", "eth.mtu", "eth.state"


@port_fault("eth.errors", "warning", clear_s=60.0)(
    meaning="an Ethernet interface receives damaged packets, loses packets or its link",
    threshold=f"{', '.join(_ERRORS[:-1])} or {_ERRORS[-1]} >= 1/min ({ERRORS_IN_FIVE_MINUTES:.0f} in 5 min or "
    f"{ERRORS_IN_A_MINUTE:.0f} in one*); carrier_changes > {CARRIER_CHANGES:.0f}/h",
    source="/sys/class/net/I/statistics; NVSentinel",
    action="check or replace cable and transceiver",
    needs=("links", "links.*.counters", *(f"links.*.{name}" for name in (*_PLAIN, *_COUNTERS["roce"].values()))),
    grows=("links",),
)
def errors(moment: Moment) -> Iterator[Hit]:
    if not moment.trails.any_grew(counters, HOUR_S):
        return
    for link, names in _interfaces(moment.now):
        port = port_name(link)
        per_minute = {}
        for name in _ERRORS:
            lately = moment.trails.grown(port, names[name], MINUTE_S).per(MINUTE_S)
            longer = moment.trails.grown(port, names[name], 5 * MINUTE_S).per(5 * MINUTE_S)
            if lately >= ERRORS_IN_A_MINUTE or longer >= ERRORS_IN_FIVE_MINUTES:
                per_minute[name] = max(lately, longer / 5)
        if "rx_crc_errors" in per_minute:
            per_minute.pop("rx_errors", None)  # which counts them too
        troubles = [f"{name} {count:.0f}/min" for name, count in per_minute.items()]
        changes = moment.trails.grown(port, names["carrier_changes"], HOUR_S).per(HOUR_S)
        if changes > CARRIER_CHANGES:
            troubles.append(f"carrier changed {changes:.0f} times in the last hour")
        if troubles:
            yield Hit(port, f"{_interface(link)}: {', '.join(troubles)}")


@port_fault("eth.slow", "warning", hold_s=10.0, compares_nodes=True)(
    meaning="an Ethernet interface is down, slower or with a smaller MTU than on like nodes",
    threshold="speed, MTU or operstate < most like nodes, or < before",
    source="/sys/class/net/I/{speed,mtu,operstate}; Meta gcm",
    action="check cable and configuration of interface and switch",
    needs=("links", "links.*.state", "links.*.rate", "links.*.mtu"),
    explains=("eth.errors",),
)
def slow(moment: FleetMoment) -> Iterator[Hit]:
    """Like nodes know what is usual. Alone, an interface is compared with what it was."""
    name = board(moment.now)
    for link in moment.now.links:
        if link.kind not in ("ethernet", "roce"):
            continue
        port, of_like = port_name(link), group(name, _interface(link))
        was_up = moment.trails.has_seen(port, _SEEN_UP)
        if link.error is not None:
            if link.error_code == "interface_vanished" and was_up:
                yield Hit(port, f"{link.device} vanished: the interface is gone", key="state")
        elif link.kind == "ethernet" and link.state is not None and not is_up(link):
            usual, state = moment.peers.common(_STATE, of_like), f"operstate {link.state}"
            if was_up:
                yield Hit(port, f"{port} is down, it was up before", (state,), key="state")
            elif usual is not None and usual.value:
                yield Hit(port, f"{port} is down", (state, f"up on {usual}"), key="state")
        elif is_up(link):
            yield from _slower(moment, link, of_like)


def _slower(moment: FleetMoment, link: LinkSample, of_like: str) -> Iterator[Hit]:
    port, name, own, mtu = port_name(link), _interface(link), link.rate_bits_per_s, link.mtu
    if own and link.kind == "ethernet":  # of RoCE ib.rate tells
        usual = moment.peers.common(_RATE, of_like)
        if usual is not None:
            full, why = usual.value, f"{usual} have {usual.value / 1e9:g} Gb/s"
        else:
            full, why = moment.trails.earlier_rate(port, own, (10, 4, 2.5, 2), _INTERFACE), "it was faster before"
        if own < full:
            yield Hit(port, f"{name} at {own / 1e9:g} of {full / 1e9:g} Gb/s", (why,), key="rate")
    usual = moment.peers.common(_MTU, of_like) if mtu else None
    if usual is not None and mtu is not None and mtu < usual.value:
        text, why = f"{name} has an MTU of {mtu}, like nodes {usual.value}", f"{usual} have {usual.value}"
        yield Hit(port, text, (why,), action="set the same MTU everywhere", key="mtu")


@port_rule("efa", "warning", clear_s=60.0)(
    meaning="an EFA adapter drops packets or does not answer",
    threshold=f"rx_drops > {LIMIT}/s; critical: no_completion_cmds + 1, or no link",
    limit=Limit(100, unit="packets per second"),
    source="EFA hw_counters; NVSentinel",
    action="reboot; let AWS replace the instance if it comes again",
    needs=("links", "links.*.state", "links.*.counters"),
    grows=("links",),
    precedence=LINK_DOWN,
    explains_ranks=(*STOPS, *SLOWS),
    explains=("ib.still",),
)
def efa(moment: Moment, limit: float) -> Iterator[Hit]:
    adapters = [link for link in moment.now.links if link.kind == "efa" and link.error is None]
    interfaces = {link.device: link for link in moment.now.links if link.kind == "ethernet"} if adapters else {}
    for link in adapters:
        port = port_name(link)
        # The port's own state is always ACTIVE on AWS: where it is not, or its interface is down, it is lost.
        interface = interfaces.get(link.netdev or "", link)
        carrier = interface if interface.state is not None and not is_up(interface) else link
        was_up = moment.trails.has_seen(port_name(carrier), _SEEN_UP)
        lost = moment.trails.grown(port, "no_completion_cmds", HOUR_S).amount
        drops = moment.trails.per_second(port, "rx_drops")
        if lost:
            text = f"EFA adapter {port} is not answering: {lost:.0f} commands never completed in the last hour"
            yield Hit(port, text, severity="critical")
        elif carrier.state is not None and not is_up(carrier) and was_up:
            yield Hit(port, f"EFA adapter {port} has no link ({link.state})", severity="critical")
        elif drops > limit:
            yield Hit(port, f"EFA adapter {port} drops {rate_text(drops)} received packets")


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for link in sample.links:
        names = _COUNTERS.get(link.kind) if link.error is None else None
        if names is not None:
            port, values = port_name(link), link.counters
            yield from ((port, name, values[name]) for name in names.values() if name in values)


def seen(sample: Sample) -> Iterator[tuple[str, str]]:
    for link in sample.links:
        if link.kind in _COUNTERS and link.error is None and is_up(link):
            yield port_name(link), _SEEN_UP
            if link.kind != "efa":
                yield port_name(link), rate_key(link.rate_bits_per_s, _INTERFACE)


def facts(sample: Sample) -> Iterator[Fact]:
    name = board(sample)
    for link, _ in _interfaces(sample):
        of_like = group(name, _interface(link))
        if link.kind == "ethernet" and link.state is not None:
            yield _STATE, of_like, is_up(link)
        if is_up(link):
            if link.mtu:
                yield _MTU, of_like, link.mtu
            if link.rate_bits_per_s and link.kind == "ethernet":
                yield _RATE, of_like, link.rate_bits_per_s


def _interfaces(sample: Sample) -> Iterator[tuple[LinkSample, dict[str, str]]]:
    """With the names that its counters have."""
    kinds = ("ethernet", "roce")
    return ((link, _COUNTERS[link.kind]) for link in sample.links if link.error is None and link.kind in kinds)


def _interface(link: LinkSample) -> str:
    """``eth2 (mlx5_2)``: of a RoCE port both names are known to people."""
    return f"{link.netdev} ({port_name(link)})" if link.kind == "roce" and link.netdev else port_name(link)
