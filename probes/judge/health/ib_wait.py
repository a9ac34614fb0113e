"""A port that waits for credits more than the node's others: its path through the fabric is congested."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from mltop.probes.judge.health.link_ports import rdma_ports
from mltop.probes.judge.health.rule import Hit, Moment
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


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
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
