"""Error counters of InfiniBand and RoCE ports. Only growth since they are watched counts: healthy ports have a past."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any

from mltop.probes.judge.health.moment import HOUR_S, MINUTE_S, Moment
from mltop.probes.judge.health.names import rate_text, rdma_ports
from mltop.probes.judge.health.relations import RANK_ENDED, RANK_STALLED, SILENT_PEER, SLOWS, STOPS
from mltop.probes.judge.health.rule import HOLD, LIMIT, Hit, Limit, Rule, critical_if, port_fault, port_rule
from mltop.probes.judge.health.trails import RATE_S
from mltop.probes.judge.values import low_median_of
from mltop.probes.model import Sample

SYMBOLS_PER_HOUR = 120.0
INTEGRITY = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
# Transport: errors per second from which on they are told.
TRANSPORT_PER_S = {
    "local_ack_timeout_err": 1.0,
    "packet_seq_err": 10.0,
    "implied_nak_seq_err": 10.0,
    "out_of_sequence": 10.0,
}
GAVE_UP = ("req_transport_retries_exceeded", "rnr_nak_retry_err")  # each one counts
# Waiting: the counters of healthy ports stand at billions: only what they grew by is compared, and only between ports
# of one node, which carry the same job's traffic. They come with a whole sample every five seconds: from one sample to
# the next most of them stand still.
OVER_S = 30.0
LEAST_TICKS_PER_WORD = 0.01  # below this nobody waits for long, whatever the others do
BUSY_SHARE = 0.05  # of the port's rate
LEAST_PORTS = 4
_UNITS = {"second": (1.0, RATE_S), "minute": (MINUTE_S, MINUTE_S)}  # seconds, and over how many they are counted
_WAITED, _SENT = "port_xmit_wait", "port_xmit_data"
_OF_PORTS = (
    *("symbol_error", "link_error_recovery", *INTEGRITY, "port_rcv_errors", "port_xmit_discards"),
    *(*TRANSPORT_PER_S, *GAVE_UP, "roce_slow_restart"),
)

_traffic_rule = partial(
    port_rule,
    source="/sys/class/infiniband counters; NVSentinel",
    needs=("links", "links.*.counters"),
    grows=("links",),
    clear_s=60.0,
    explains_ranks=SLOWS,
)
_counter_rule = partial(_traffic_rule, **port_fault.keywords)


@_counter_rule("ib.ber", "warning")(
    meaning="bits arrive damaged",
    threshold=f"symbol_error > {LIMIT}/s; critical: > {SYMBOLS_PER_HOUR:.0f}/h",
    limit=Limit(10, unit="errors per second"),
    action="clean the fibre, then replace cable or transceiver",
    explains=("ib.rcv_errors", "ib.recovery"),
)
def bit_errors(moment: Moment, limit: float) -> Iterator[Hit]:
    for name in _with_errors(moment, HOUR_S):
        hourly = moment.trails.grown(name, "symbol_error", HOUR_S).per(HOUR_S)
        per_s = moment.trails.per_second(name, "symbol_error") if hourly else 0.0
        if hourly > SYMBOLS_PER_HOUR or per_s > limit:
            evidence = (f"now {rate_text(per_s)}",) if per_s else ()
            text = f"bit errors on {name}: {hourly:.0f} in the last hour"
            yield Hit(name, text, evidence, critical_if(hourly > SYMBOLS_PER_HOUR))


def _too_fast(
    make: Callable[..., Any], rule_id: str, counter: str, most: float, text: str, *, unit: str = "second"
) -> Callable[..., Rule]:
    """A rule about one counter that grows by more than ``most`` in a unit of time; ``text``: of {name}, {rate} or
    {count}.
    """
    unit_s, over_s = _UNITS[unit]

    def check(moment: Moment, limit: float) -> Iterator[Hit]:
        for name in _with_errors(moment, over_s):
            count = moment.trails.grown(name, counter, over_s).per(unit_s)
            if count > limit:
                yield Hit(name, text.format(name=name, count=count, rate=rate_text(count / unit_s)))

    threshold = f"{counter} > {LIMIT}/{unit[:3] if unit_s > 1 else 's'}"
    header = make(rule_id, "warning", threshold=threshold, limit=Limit(most, unit=f"per {unit}"))
    return lambda **words: header(**words)(check)


_RETRAINS = "{name} retrains its link {count:.0f} times a minute"
recovery = _too_fast(_counter_rule, "ib.recovery", "link_error_recovery", 5, _RETRAINS, unit="minute")(
    meaning="a port trains its link again and again",
    action="replace cable or transceiver",
)


@_counter_rule("ib.integrity", "critical", clear_s=None)(
    meaning="so many errors in a row that the hardware gave up counting them as single ones",
    threshold=f"{INTEGRITY[0]} or {INTEGRITY[1]} + 1, for an hour",
    action="replace the cable; then look at the ports on both ends",
    explains=("ib.ber", "ib.recovery", "ib.rcv_errors"),
)
def integrity(moment: Moment) -> Iterator[Hit]:
    for name in _with_errors(moment, HOUR_S):
        counts = {counter: moment.trails.grown(name, counter, HOUR_S).amount for counter in INTEGRITY}
        evidence = tuple(f"{counter} +{count:.0f}" for counter, count in counts.items() if count)
        if evidence:
            yield Hit(name, f"{name} passed the cap that its hardware sets on errors", evidence)


_RECEIVES = "{name} receives {rate} malformed packets"
received_bad = _too_fast(_counter_rule, "ib.rcv_errors", "port_rcv_errors", 10.0, _RECEIVES)(
    meaning="malformed packets arrive",
    action="replace cable or transceiver",
)
_DROPS = "{name} drops {rate} packets that it cannot send"
discards = _too_fast(_traffic_rule, "ib.discards", "port_xmit_discards", 100.0, _DROPS)(
    meaning="packets wait too long to be sent and are dropped",
    action="look for congestion in the fabric, or a peer that is down",
    explains_peers=SILENT_PEER,
)


@port_rule("ib.wait", "info", hold_s=60.0, eager=False)(
    meaning="a port waits for the receiver's credits longer than others do",
    threshold=f"{_WAITED} per {_SENT} in {OVER_S:.0f} s > {LIMIT} x the median of the node's busy ports*, for {HOLD}",
    limit=Limit(3, unit="times as long"),
    source="/sys/class/infiniband counters",
    action="look for congestion behind this port",
    needs=("links", "links.*.counters", "links.*.rates"),
    grows=("links",),
    explains_ranks=SLOWS,
)
def waits(moment: Moment, limit: float) -> Iterator[Hit]:
    """Its path through the fabric is congested."""
    up = [port for port in rdma_ports(moment.now) if port.up and port.link.rate_bits_per_s]
    sends = ((name, 8 * (link.tx_bytes_per_s or 0.0) / (link.rate_bits_per_s or 1.0)) for link, name, _ in up)
    busy = [name for name, part in sends if part >= BUSY_SHARE]
    ratios = {}  # ticks per word
    for name in busy if len(busy) >= LEAST_PORTS else ():
        sent = moment.trails.increase(name, _SENT, OVER_S).amount
        if sent > 0 and moment.trails.has_seen(name, _WAITED):
            ratios[name] = moment.trails.increase(name, _WAITED, OVER_S).amount / sent
    if len(ratios) < LEAST_PORTS or max(ratios.values()) < LEAST_TICKS_PER_WORD:
        return
    usual = low_median_of(ratios.values())
    for name, ratio in ratios.items():
        if ratio >= LEAST_TICKS_PER_WORD and ratio > limit * usual:
            evidence = (f"{ratio:.2g} ticks of waiting per word sent, {usual:.2g} on the node's other ports",)
            yield Hit(name, f"{name} waits for credits more than the other ports", evidence)


@_traffic_rule("ib.transport", "warning")(
    meaning="peers answer late, out of order or not at all",
    threshold="; ".join(
        f"{', '.join(names)} {rate:.0f}/s" for rate, names in groupby(TRANSPORT_PER_S, TRANSPORT_PER_S.get)
    )
    + f"* (the last not where all ports have it); retries exceeded + 1; critical: {GAVE_UP[1]} + 1",
    source="/sys/class/infiniband hw_counters; NVSentinel",
    action="find the peer that several nodes complain of",
    explains_ranks=(*STOPS, *SLOWS),
    follows_ranks=(RANK_ENDED, RANK_STALLED),
    explains=("ib.still",),
)
def transport(moment: Moment) -> Iterator[Hit]:
    # Adaptive routing sends packets along several paths: they arrive out of order at all ports, which is meant.
    out_of_order = [moment.trails.per_second(name, "out_of_sequence") for name in _with_errors(moment, RATE_S)]
    is_meant = len(out_of_order) > 2 and low_median_of(out_of_order) >= TRANSPORT_PER_S["out_of_sequence"]
    for name in _with_errors(moment, HOUR_S):
        rates = {counter: moment.trails.per_second(name, counter) for counter in TRANSPORT_PER_S}
        if is_meant:
            del rates["out_of_sequence"]
        lost = {counter: moment.trails.grown(name, counter, HOUR_S).amount for counter in GAVE_UP}
        evidence = [
            f"{counter} {rate_text(rate)}" for counter, rate in rates.items() if rate >= TRANSPORT_PER_S[counter]
        ]
        evidence += [f"{counter} +{count:.0f} in the last hour" for counter, count in lost.items() if count]
        if evidence:
            text = f"peers are not answering {name} as they should"
            yield Hit(name, text, tuple(evidence), critical_if(lost["rnr_nak_retry_err"]))


_RESTARTS = "RoCE congestion on {name}: {rate} slow restarts"
slow_restart = _too_fast(_traffic_rule, "roce.slow", "roce_slow_restart", 10.0, _RESTARTS)(
    meaning="RoCE slows down because of congestion",
    source="/sys/class/infiniband hw_counters; NVSentinel",
    action="check PFC and ECN on NICs and switches",
)


def _with_errors(moment: Moment, over_s: float) -> Iterator[str]:
    """The names of all ports, if anything at all was counted in the last ``over_s``."""
    if moment.trails.any_grew(counters, over_s):
        yield from (port.name for port in rdma_ports(moment.now))


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for link, name, _ in rdma_ports(sample):
        values = link.counters
        yield from ((name, counter, values[counter]) for counter in _OF_PORTS if counter in values)


def wait_counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for link, name, _ in rdma_ports(sample):
        values = link.counters
        yield from ((name, counter, values[counter]) for counter in (_WAITED, _SENT) if counter in values)
