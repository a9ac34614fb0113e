"""Whether a port that is down is missed: most nodes have ports that nothing is plugged into."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mltop.probes.judge.health.link_memo import once_per_moment, usual
from mltop.probes.judge.health.link_ports import NETDEV, board, bus_id, group, port_name, rdma_ports
from mltop.probes.judge.health.rule import Moment
from mltop.probes.model import LinkSample

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


def wanted(moment: Moment, link: LinkSample) -> Wanted:
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
