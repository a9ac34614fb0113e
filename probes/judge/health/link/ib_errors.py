"""Error counters of InfiniBand and RoCE ports. Only growth since they are watched counts: healthy ports have a past."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from statistics import median_low
from typing import Any

from mltop.probes.judge.health.names import rate_text, rdma_ports
from mltop.probes.judge.health.rule import (
    HOLD,
    HOUR_S,
    LIMIT,
    LINK_ERRORS,
    MINUTE_S,
    RANK_ENDED,
    RANK_STALLED,
    RATE_S,
    SILENT_PEER,
    SLOW_PEER,
    SLOWS,
    STOPS,
    Hit,
    Limit,
    Moment,
    Rule,
    port_rule,
)
from mltop.probes.model import LinkSample, Sample
from mltop.probes.model.vocabulary import Severity

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
_WAITED, _SENT = "port_xmit_wait", "port_xmit_data"
_OF_PORTS = (
    *("symbol_error", "link_error_recovery", *INTEGRITY, "port_rcv_errors", "port_xmit_discards"),
    *(*TRANSPORT_PER_S, *GAVE_UP, "roce_slow_restart"),
)

_counter_rule = partial(
    port_rule,
    source="/sys/class/infiniband counters; NVSentinel",
    needs=("links", "links.*.counters"),
    grows=("links",),
    clear_s=60.0,
    explains_ranks=(*STOPS, *SLOWS),
)


@_counter_rule(
    "ib.ber",
    "warning",
    meaning="bits arrive damaged",
    threshold=f"symbol_error > {LIMIT}/s; critical: > {SYMBOLS_PER_HOUR:.0f}/h",
    limit=Limit(10, unit="errors per second"),
    action="clean the fibre, then replace cable or transceiver",
    explains=("ib.rcv_errors", "ib.recovery"),
    explains_peers=SLOW_PEER,
    precedence=LINK_ERRORS,
)
def bit_errors(moment: Moment, limit: float) -> Iterator[Hit]:
    for name in _with_errors(moment, HOUR_S):
        hourly = moment.grown(name, "symbol_error", HOUR_S).per(HOUR_S)
        per_s = moment.per_second(name, "symbol_error") if hourly else 0.0
        if hourly > SYMBOLS_PER_HOUR or per_s > limit:
            severity: Severity = "critical" if hourly > SYMBOLS_PER_HOUR else "warning"
            evidence = (f"now {rate_text(per_s)}",) if per_s else ()
            yield Hit(name, f"bit errors on {name}: {hourly:.0f} in the last hour", evidence, severity)


@_counter_rule(
    "ib.recovery",
    "warning",
    meaning="a port trains its link again and again",
    threshold=f"link_error_recovery > {LIMIT}/min",
    limit=Limit(5, unit="per minute"),
    action="replace cable or transceiver",
    explains_peers=SLOW_PEER,
    precedence=LINK_ERRORS,
)
def recovery(moment: Moment, limit: float) -> Iterator[Hit]:
    for name in _with_errors(moment, MINUTE_S):
        count = moment.grown(name, "link_error_recovery", MINUTE_S).per(MINUTE_S)
        if count > limit:
            yield Hit(name, f"{name} retrains its link {count:.0f} times a minute")


@_counter_rule(
    "ib.integrity",
    "critical",
    meaning="so many errors in a row that the hardware gave up counting them as single ones",
    threshold=f"{INTEGRITY[0]} or {INTEGRITY[1]} + 1, for an hour",
    action="replace the cable; then look at the ports on both ends",
    clear_s=None,
    explains=("ib.ber", "ib.recovery", "ib.rcv_errors"),
    explains_peers=SLOW_PEER,
    precedence=LINK_ERRORS,
)
def integrity(moment: Moment) -> Iterator[Hit]:
    for name in _with_errors(moment, HOUR_S):
        counts = {counter: moment.grown(name, counter, HOUR_S).amount for counter in INTEGRITY}
        evidence = tuple(f"{counter} +{count:.0f}" for counter, count in counts.items() if count)
        if evidence:
            yield Hit(name, f"{name} passed the cap that its hardware sets on errors", evidence)


def _too_fast(rule_id: str, counter: str, most_per_s: float, text: str, **words: Any) -> Rule:
    """A rule about one counter that grows by more than ``most_per_s``; ``text``: of {name} and {rate}."""

    def check(moment: Moment, limit: float) -> Iterator[Hit]:
        for name in _with_errors(moment, RATE_S):
            per_s = moment.per_second(name, counter)
            if per_s > limit:
                yield Hit(name, text.format(name=name, rate=rate_text(per_s)))

    limit = Limit(most_per_s, unit="per second")
    return _counter_rule(rule_id, "warning", threshold=f"{counter} > {LIMIT}/s", limit=limit, **words)(check)


received_bad = _too_fast(
    "ib.rcv_errors",
    "port_rcv_errors",
    10.0,
    "{name} receives {rate} malformed packets",
    precedence=LINK_ERRORS,
    meaning="malformed packets arrive",
    action="replace cable or transceiver",
    explains_ranks=(*STOPS, *SLOWS),
    explains_peers=SLOW_PEER,
)
discards = _too_fast(
    "ib.discards",
    "port_xmit_discards",
    100.0,
    "{name} drops {rate} packets that it cannot send",
    meaning="packets wait too long to be sent and are dropped",
    action="look for congestion in the fabric, or a peer that is down",
    explains_ranks=SLOWS,
    explains_peers=SILENT_PEER,
)


@port_rule(
    "ib.wait",
    "info",
    hold_s=60.0,
    meaning="a port waits for the receiver's credits longer than others do",
    threshold=f"{_WAITED} per {_SENT} in {OVER_S:.0f} s > {LIMIT} x the median of the node's busy ports*, for {HOLD}",
    limit=Limit(3, unit="times as long"),
    source="/sys/class/infiniband counters",
    action="look for congestion behind this port",
    needs=("links", "links.*.counters", "links.*.rates"),
    grows=("links",),
    eager=False,
    explains_ranks=SLOWS,
)
def waits(moment: Moment, limit: float) -> Iterator[Hit]:
    """Its path through the fabric is congested."""
    busy = [port for port in rdma_ports(moment.now) if port.up and _is_busy(port.link)]
    if len(busy) < LEAST_PORTS:
        return
    ratios = {port.name: ratio for port in busy if (ratio := _ticks_per_word(moment, port.name)) is not None}
    if len(ratios) < LEAST_PORTS or max(ratios.values()) < LEAST_TICKS_PER_WORD:
        return
    usual = median_low(ratios.values())
    for name, ratio in ratios.items():
        if ratio >= LEAST_TICKS_PER_WORD and ratio > limit * usual:
            evidence = (f"{ratio:.2g} ticks of waiting per word sent, {usual:.2g} on the node's other ports",)
            yield Hit(name, f"{name} waits for credits more than the other ports", evidence)


def _is_busy(link: LinkSample) -> bool:
    return bool(link.rate_bits_per_s) and 8 * (link.tx_bytes_per_s or 0.0) >= BUSY_SHARE * (link.rate_bits_per_s or 0.0)


def _ticks_per_word(moment: Moment, name: str) -> float | None:
    waited, sent = moment.increase(name, _WAITED, OVER_S), moment.increase(name, _SENT, OVER_S)
    return waited.amount / sent.amount if sent.amount > 0 and moment.has_seen(name, _WAITED) else None


@_counter_rule(
    "ib.transport",
    "warning",
    meaning="peers answer late, out of order or not at all",
    threshold="; ".join(
        f"{', '.join(names)} {rate:.0f}/s" for rate, names in groupby(TRANSPORT_PER_S, TRANSPORT_PER_S.get)
    )
    + f"* (the last not where all ports have it); retries exceeded + 1; critical: {GAVE_UP[1]} + 1",
    source="/sys/class/infiniband hw_counters; NVSentinel",
    action="find the peer that several nodes complain of",
    follows_ranks=(RANK_ENDED, RANK_STALLED),
    explains=("ib.still",),
)
def transport(moment: Moment) -> Iterator[Hit]:
    reordered = _reordered_everywhere(moment)
    for name in _with_errors(moment, HOUR_S):
        rates = {counter: moment.per_second(name, counter) for counter in TRANSPORT_PER_S}
        if reordered:
            del rates["out_of_sequence"]
        lost = {counter: moment.grown(name, counter, HOUR_S).amount for counter in GAVE_UP}
        evidence = [
            f"{counter} {rate_text(rate)}" for counter, rate in rates.items() if rate >= TRANSPORT_PER_S[counter]
        ]
        evidence += [f"{counter} +{count:.0f} in the last hour" for counter, count in lost.items() if count]
        if evidence:
            severity: Severity = "critical" if lost["rnr_nak_retry_err"] else "warning"
            yield Hit(name, f"peers are not answering {name} as they should", tuple(evidence), severity)


slow_restart = _too_fast(
    "roce.slow",
    "roce_slow_restart",
    10.0,
    "RoCE congestion on {name}: {rate} slow restarts",
    meaning="RoCE slows down because of congestion",
    source="/sys/class/infiniband hw_counters; NVSentinel",
    action="check PFC and ECN on NICs and switches",
    explains_ranks=SLOWS,
)


def _with_errors(moment: Moment, over_s: float) -> Iterator[str]:
    """The names of all ports, if anything at all was counted in the last ``over_s``."""
    if moment.any_grew(counters, over_s):
        yield from (port.name for port in rdma_ports(moment.now))


def _reordered_everywhere(moment: Moment) -> bool:
    """Adaptive routing sends packets along several paths: they arrive out of order at all ports, which is meant."""
    rates = [moment.per_second(name, "out_of_sequence") for name in _with_errors(moment, RATE_S)]
    return len(rates) > 2 and median_low(rates) >= TRANSPORT_PER_S["out_of_sequence"]


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for link, name, _ in rdma_ports(sample):
        values = link.counters
        yield from ((name, counter, values[counter]) for counter in _OF_PORTS if counter in values)


def wait_counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for link, name, _ in rdma_ports(sample):
        values = link.counters
        yield from ((name, counter, values[counter]) for counter in (_WAITED, _SENT) if counter in values)
