"""A port that waits for credits more than the node's others: its path through the fabric is congested.

Error counters of InfiniBand and RoCE ports. Only growth since they are watched counts: healthy ports have a past.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from mltop.probes.judge.health.names import rdma_ports
from mltop.probes.judge.health.rule import (
    HOUR_S,
    MINUTE_S,
    RATE_S,
    Hit,
    Moment,
    Rule,
    clock,
    grown,
    has_grown,
    per_second,
    rate_text,
)
from mltop.probes.model import LinkSample, Sample

# The counters of healthy ports stand at billions: only what they grew by is compared, and only between ports of one
# node, which carry the same job's traffic. They come with a whole sample every five seconds: from one sample to the
# next most of them stand still.
OVER_S = 30.0
TIMES_OTHERS = 3.0
LEAST_TICKS_PER_WORD = 0.01  # below this nobody waits for long, whatever the others do
BUSY_SHARE = 0.05  # of the port's rate
LEAST_PORTS = 4
_WAITED, _SENT = "port_xmit_wait", "port_xmit_data"


def waits(moment: Moment) -> Iterator[Hit]:
    busy = [port for port in rdma_ports(moment.now) if port.up and _is_busy(port.link)]
    if len(busy) < LEAST_PORTS:
        return
    found = ((port.name, _ticks_per_word(moment, port.name)) for port in busy)
    ratios = {name: ratio for name, ratio in found if ratio is not None}
    if len(ratios) < LEAST_PORTS or max(ratios.values()) < LEAST_TICKS_PER_WORD:
        return
    usual = median_low(ratios.values())
    for name, ratio in ratios.items():
        if ratio >= LEAST_TICKS_PER_WORD and ratio > TIMES_OTHERS * usual:
            evidence = (f"{ratio:.2g} ticks of waiting per word sent, {usual:.2g} on the node's other ports",)
            yield Hit(name, f"{name} waits for credits more than the other ports", evidence)


def wait_counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for link, name, _ in rdma_ports(sample):
        for counter in (_WAITED, _SENT):
            value = link.counters.get(counter)
            if value is not None:
                yield name, counter, value


def _is_busy(link: LinkSample) -> bool:
    sent, rate = link.tx_bytes_per_s, link.rate_bits_per_s
    return bool(sent and rate) and 8 * (sent or 0.0) >= BUSY_SHARE * (rate or 0.0)


def _ticks_per_word(moment: Moment, name: str) -> float | None:
    waited, sent = moment.increase(name, _WAITED, OVER_S), moment.increase(name, _SENT, OVER_S)
    return waited.amount / sent.amount if waited is not None and sent is not None and sent.amount > 0 else None


SYMBOLS_PER_S, SYMBOLS_PER_HOUR = 10.0, 120.0
RECOVERIES_PER_MIN = 5.0
RECEIVED_BAD_PER_S = 10.0
DISCARDS_PER_S = 100.0
SLOW_RESTARTS_PER_S = 10.0
INTEGRITY = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
# Transport: errors per second from which on they are told.
TRANSPORT_PER_S = {
    "local_ack_timeout_err": 1.0,
    "packet_seq_err": 10.0,
    "implied_nak_seq_err": 10.0,
    "out_of_sequence": 10.0,
}
GAVE_UP = ("req_transport_retries_exceeded", "rnr_nak_retry_err")  # each one counts

_REMEMBERED = (
    "symbol_error",
    "link_error_recovery",
    *INTEGRITY,
    "port_rcv_errors",
    "port_xmit_discards",
    *TRANSPORT_PER_S,
    *GAVE_UP,
    "roce_slow_restart",
)
_WATCH, _ALL = "links", "all errors"


def ber(moment: Moment) -> Iterator[Hit]:
    for name in _with_errors(moment, HOUR_S):
        hourly = grown(moment, name, "symbol_error", HOUR_S).per(HOUR_S)
        now_per_s = per_second(moment, name, "symbol_error") if hourly else 0.0
        if hourly > SYMBOLS_PER_HOUR or now_per_s > SYMBOLS_PER_S:
            severity = "critical" if hourly > SYMBOLS_PER_HOUR else "warning"
            yield Hit(name, f"bit errors on {name}: {hourly:.0f} in the last hour", _now(now_per_s), severity)


def recovery(moment: Moment) -> Iterator[Hit]:
    for name in _with_errors(moment, MINUTE_S):
        count = grown(moment, name, "link_error_recovery", MINUTE_S).per(MINUTE_S)
        if count > RECOVERIES_PER_MIN:
            yield Hit(name, f"{name} retrains its link {count:.0f} times a minute")


def integrity(moment: Moment) -> Iterator[Hit]:
    for name in _with_errors(moment, HOUR_S):
        counts = {one: grown(moment, name, one, HOUR_S).amount for one in INTEGRITY}
        told = tuple(f"{one} +{count:.0f}" for one, count in counts.items() if count)
        if told:
            yield Hit(name, f"{name} passed the cap that its hardware sets on errors", told)


def received_bad(moment: Moment) -> Iterator[Hit]:
    for name, rate in _faster_than(moment, "port_rcv_errors", RECEIVED_BAD_PER_S):
        yield Hit(name, f"{name} receives {rate_text(rate)} malformed packets")


def discards(moment: Moment) -> Iterator[Hit]:
    for name, rate in _faster_than(moment, "port_xmit_discards", DISCARDS_PER_S):
        yield Hit(name, f"{name} drops {rate_text(rate)} packets that it cannot send")


def transport(moment: Moment) -> Iterator[Hit]:
    if not has_grown(moment, _WATCH, _ALL, HOUR_S):
        return
    reordered = _reordered_everywhere(moment)
    for _, name, _ in rdma_ports(moment.now):
        told = []
        for counter, most in TRANSPORT_PER_S.items():
            rate = per_second(moment, name, counter)
            if rate >= most and not (counter == "out_of_sequence" and reordered):
                told.append(f"{counter} {rate_text(rate)}")
        lost = {counter: grown(moment, name, counter, HOUR_S).amount for counter in GAVE_UP}
        told += [f"{counter} +{count:.0f} in the last hour" for counter, count in lost.items() if count]
        if told:
            severity = "critical" if lost["rnr_nak_retry_err"] else "warning"
            yield Hit(name, f"peers are not answering {name} as they should", tuple(told), severity)


def slow_restart(moment: Moment) -> Iterator[Hit]:
    for name, rate in _faster_than(moment, "roce_slow_restart", SLOW_RESTARTS_PER_S):
        yield Hit(name, f"RoCE congestion on {name}: {rate_text(rate)} slow restarts")


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    yield from clock(sample)
    whole = 0  # told even while it is 0: what is first seen has not grown
    for link, name, _ in rdma_ports(sample):
        known = link.counters
        for counter in _REMEMBERED:
            if counter in known:
                value = known[counter]
                whole += value
                yield name, counter, value
    yield _WATCH, _ALL, whole


def _with_errors(moment: Moment, over_s: float) -> Iterator[str]:
    """The names of all ports, if anything at all was counted in the last ``over_s``."""
    if has_grown(moment, _WATCH, _ALL, over_s):
        for port in rdma_ports(moment.now):
            yield port.name


def _faster_than(moment: Moment, counter: str, most_per_s: float) -> Iterator[tuple[str, float]]:
    for name in _with_errors(moment, RATE_S):
        rate = per_second(moment, name, counter)
        if rate > most_per_s:
            yield name, rate


def _reordered_everywhere(moment: Moment) -> bool:
    """Adaptive routing sends packets along several paths: they arrive out of order at all ports, which is meant."""
    if not has_grown(moment, _WATCH, _ALL, RATE_S):
        return False
    rates = [per_second(moment, port.name, "out_of_sequence") for port in rdma_ports(moment.now)]
    return len(rates) > 2 and median_low(rates) >= TRANSPORT_PER_S["out_of_sequence"]


def _now(per_s: float) -> tuple[str, ...]:
    return (f"now {rate_text(per_s)}",) if per_s else ()


COUNTERS = (counters, wait_counters)

RULES = (
    Rule(
        "ib.ber",
        "warning",
        0.0,
        "clean the fibre, then replace cable or transceiver",
        ber,
        meaning="bits arrive damaged",
        threshold="symbol_error > 10/s; critical: > 120/h",
        source="/sys/class/infiniband counters; NVSentinel",
        needs=("links", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
        explains=("ib.rcv_errors", "ib.recovery"),
    ),
    Rule(
        "ib.recovery",
        "warning",
        0.0,
        "replace cable or transceiver",
        recovery,
        meaning="a port trains its link again and again",
        threshold="link_error_recovery > 5/min",
        source="/sys/class/infiniband counters; NVSentinel",
        needs=("links", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
    ),
    Rule(
        "ib.integrity",
        "critical",
        0.0,
        "replace the cable; then look at the ports on both ends",
        integrity,
        meaning="so many errors in a row that the hardware gave up counting them as single ones",
        threshold="local_link_integrity_errors or excessive_buffer_overrun_errors + 1, for an hour",
        source="/sys/class/infiniband counters; NVSentinel",
        needs=("links", "links.*.counters"),
        grows=("links",),
        explains=("ib.ber", "ib.recovery", "ib.rcv_errors"),
    ),
    Rule(
        "ib.rcv_errors",
        "warning",
        0.0,
        "replace cable or transceiver",
        received_bad,
        meaning="malformed packets arrive",
        threshold="port_rcv_errors > 10/s",
        source="/sys/class/infiniband counters; NVSentinel",
        needs=("links", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
    ),
    Rule(
        "ib.discards",
        "warning",
        0.0,
        "look for congestion in the fabric, or a peer that is down",
        discards,
        meaning="packets wait too long to be sent and are dropped",
        threshold="port_xmit_discards > 100/s",
        source="/sys/class/infiniband counters; NVSentinel",
        needs=("links", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
    ),
    Rule(
        "ib.wait",
        "info",
        60.0,
        "look for congestion behind this port",
        waits,
        meaning="a port waits for the receiver's credits longer than others do",
        threshold="port_xmit_wait per port_xmit_data in 30 s > 3 x the median of the node's busy ports*, for 60 s",
        source="/sys/class/infiniband counters",
        needs=("links", "links.*.counters", "links.*.rates"),
        grows=("links",),
        eager=False,
    ),
    Rule(
        "ib.transport",
        "warning",
        0.0,
        "find the peer that several nodes complain of",
        transport,
        meaning="peers answer late, out of order or not at all",
        threshold="local_ack_timeout_err 1/s; packet_seq_err, implied_nak_seq_err, out_of_sequence 10/s* (the last not "
        "where all ports have it); retries exceeded + 1; critical: rnr_nak_retry_err + 1",
        source="/sys/class/infiniband hw_counters; NVSentinel",
        needs=("links", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
    ),
    Rule(
        "roce.slow",
        "warning",
        0.0,
        "check PFC and ECN on NICs and switches",
        slow_restart,
        meaning="RoCE slows down because of congestion",
        threshold="roce_slow_restart > 10/s",
        source="/sys/class/infiniband hw_counters; NVSentinel",
        needs=("links", "links.*.counters"),
        grows=("links",),
        clear_s=60.0,
    ),
)
