"""A port that waits for credits more than the node's others: its path through the fabric is congested."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from mltop.probes.judge.health.link_ports import port_name, rdma_ports
from mltop.probes.judge.health.rule import Hit, Moment
from mltop.probes.model import LinkSample

# The counters of healthy ports stand at billions: only what they grew by since the sample before is compared, and only
# between ports of one node, which carry the same job's traffic.
TIMES_OTHERS = 3.0
LEAST_TICKS_PER_WORD = 0.01  # below this nobody waits for long, whatever the others do
BUSY_SHARE = 0.05  # of the port's rate
LEAST_PORTS = 4


def waits(moment: Moment) -> Iterator[Hit]:
    if moment.before is None:
        return
    busy = [port for port in rdma_ports(moment.now) if port.up and _is_busy(port.link)]
    if len(busy) < LEAST_PORTS:
        return
    old = {port_name(link): link.counters for link in moment.before.links}
    found = ((port.name, _ticks_per_word(port.link.counters, old.get(port.name, {}))) for port in busy)
    ratios = {name: ratio for name, ratio in found if ratio is not None}
    if len(ratios) < LEAST_PORTS or max(ratios.values()) < LEAST_TICKS_PER_WORD:
        return
    usual = median_low(ratios.values())
    for name, ratio in ratios.items():
        if ratio >= LEAST_TICKS_PER_WORD and ratio > TIMES_OTHERS * usual:
            evidence = (f"{ratio:.2g} ticks of waiting per word sent, {usual:.2g} on the node's other ports",)
            yield Hit(name, f"{name} waits for credits more than the other ports", evidence)


def _is_busy(link: LinkSample) -> bool:
    sent, rate = link.tx_bytes_per_s, link.rate_bits_per_s
    return bool(sent and rate) and 8 * (sent or 0.0) >= BUSY_SHARE * (rate or 0.0)


def _ticks_per_word(now: dict[str, int], before: dict[str, int]) -> float | None:
    try:
        waited = now["port_xmit_wait"] - before["port_xmit_wait"]
        sent = now["port_xmit_data"] - before["port_xmit_data"]
    except KeyError:
        return None
    return waited / sent if sent > 0 and waited >= 0 else None
