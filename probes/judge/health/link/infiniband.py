"""InfiniBand and RoCE: ports that are down, flap or are too slow, counters that stand still; devices as a whole.

What is remembered of a port beside its own counters: that it was up, how often it went down (a counter that is 1 while
it is down and 0 otherwise grows by one each time), and the rates it had.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from mltop.probes.judge.health.moment import HOUR_S, FleetMoment, Moment, once_per_moment
from mltop.probes.judge.health.names import NETDEV, RDMA, Port, board, bus_id, group, listed, port_name, rdma_ports
from mltop.probes.judge.health.peers import NODES_AT_LEAST
from mltop.probes.judge.health.relations import DRIVER, LINK_DOWN, SLOWS
from mltop.probes.judge.health.rule import HOLD, Hit, port_fault, port_rule
from mltop.probes.judge.health.trails import rate_key
from mltop.probes.judge.values import grouped
from mltop.probes.model import KernelEvent, LinkSample, Sample
from mltop.probes.model.news.judged import Fact
from mltop.probes.model.plausible import NARROW_MAXIMA
from mltop.probes.model.units import counted
from mltop.probes.model.vocabulary import Severity

# Ports of one kind that a whole node of this GPU trains with; the first name that fits (gpud's table).
NEEDED = (("A100", 1), ("H100", 8), ("H200", 8), ("B200", 8), ("B300", 8))
FLAPS, FLAPS_OVER_S = 3, 12 * HOUR_S
_MAXIMA = frozenset(NARROW_MAXIMA.values())
_MOST_OF = 3  # so many ports on one that is slower: below that a node may have two sorts of links
_LABELS = {"infiniband": "InfiniBand", "roce": "RoCE"}
_KINDS = {"infiniband": "HCAs", "roce": "RoCE devices", "efa": "EFA adapters"}
_TRAINED = ("INIT", "ARMED")  # a physical link, no subnet manager yet
_DOWNED, _CARRIER = "link_downed", f"{NETDEV}carrier_down_count"
_SEEN_UP, _WENT_DOWN = "seen up", "seen going down"  # our own counters; the first exists once a port has been up
_STATE, _ACTIVE, _RATE, _COUNT = "ib.state", "ib.active", "ib.rate", "ib.devices"  # topics of facts
# What mlx5 writes to the kernel log (health.c, cmd.c, events.c): what it means, how bad it is, what helps.
_HEAT = r"(?s)Port module event.*High Temperature"
_REPLACE = "reset the NIC (mlxfwreset) or reboot; replace it if it comes again"
_COMPLAINTS: tuple[tuple[str, str, str, Severity, str], ...] = (  # pattern, part of the port, words, how bad, action
    ("miss count", "", "firmware stopped answering", "critical", _REPLACE),
    ("unrecoverable hardware error", "", "reports an unrecoverable hardware error", "critical", _REPLACE),
    ("Will cause a leak of a command resource", "", "firmware does not finish a command", "critical", _REPLACE),
    # Several of one card at a time: each has a subject of its own.
    ("Detected insufficient power", " power", "gets too little power from its slot", "warning", "check slot and cable"),
    (_HEAT, " transceiver", "is too hot", "warning", "check airflow at the transceiver"),
)
_MLX5 = re.compile(r"\bmlx5_\d+\b")
_OF_A_PORT = ("ib.", "roce.", "eth.", "efa")

Model = tuple["int | None", "int | None"]  # vendor and device


# Devices


@port_fault("ib.missing", "critical", hold_s=10.0, compares_nodes=True)(
    meaning="an RDMA device is gone, or the node has fewer than its like",
    threshold=f"vanished from the list, or fewer than most like nodes have, for {HOLD}",
    source="/sys/class/infiniband; NVSentinel, Azure",
    action="look for the card on PCIe (lspci); reboot, reseat it",
    needs=("links",),
    precedence=LINK_DOWN,
    explains=_OF_A_PORT,
)
def missing(moment: FleetMoment) -> Iterator[Hit]:
    now = moment.now
    gone = [link for link in now.links if link.error_code == "device_vanished" and link.kind in RDMA]
    for link in gone:
        where = (f"PCI {bus_id(link.pci_bus_id)}",) if link.pci_bus_id else ()
        yield Hit(port_name(link), f"{port_name(link)} vanished: the RDMA device is gone", where)
    if moment.peers.nodes < NODES_AT_LEAST or _is_partial(now):
        return
    counts = _device_counts(now)
    for kind, words in _KINDS.items():
        usual = moment.peers.common(_COUNT, group(board(now), kind))
        if usual is not None and counts[kind] < usual.value and all(link.kind != kind for link in gone):
            yield Hit(words, f"{counts[kind]} of {usual.value} {words} present", (f"{usual.value} on {usual}",))


def _device_counts(sample: Sample) -> Counter[str]:
    return Counter(link.kind for link in sample.links if link.error_code != "device_vanished")


def _is_partial(sample: Sample) -> bool:
    """Where the devices could not be listed, or a container shows only some, their number says nothing."""
    of_lists = (gap for gap in sample.gaps if gap.source == "links" and not gap.item and gap.kind == "unknown")
    return bool(sample.host.is_confined) or any(gap.fields in ([], ["infiniband"]) for gap in of_lists)


@port_fault("ib.driver", "critical")(
    meaning="the mlx5 driver reports that a NIC's firmware or hardware fails",
    threshold="its line in the kernel log within the hour; too little power and heat: warning",
    source="kernel log (mlx5 health.c, cmd.c, events.c); NVSentinel, gpud",
    action=_REPLACE,
    needs=("kernel_log",),
    precedence=DRIVER,
    explains=_OF_A_PORT,
)
def complaints(moment: Moment) -> Iterator[Hit]:
    newest: dict[tuple[str, int], KernelEvent] = {}
    for event in moment.events("mlx5"):
        number = next((at for at, (pattern, *_) in enumerate(_COMPLAINTS) if re.search(pattern, event.text)), None)
        if number is not None:
            newest[_port_of(moment.now, event), number] = event
    for (port, number), event in newest.items():
        _, part, what, severity, action = _COMPLAINTS[number]
        subject, about = f"{port}{part}", (port,) if part else ()
        text = f"{subject}: {what}"
        yield Hit(subject, text, (event.text,), severity, action, event.at, str(number), about=about)


def _port_of(sample: Sample, event: KernelEvent) -> str:
    """The port whose device the line is about, else what the line says."""
    device = _MLX5.search(event.text)
    names = (event.subject, device[0] if device else "")
    for link in sample.links if event.subject else ():
        if bus_id(link.pci_bus_id) == bus_id(event.subject) or link.device in names:
            return port_name(link)
    return event.subject or "mlx5"


@port_fault("ib.chardev", "critical", hold_s=10.0)(
    meaning="programs cannot open an RDMA device",
    threshold=f"no uverbs device for {HOLD}",
    source="/sys/class/infiniband_verbs; NVSentinel",
    action="reload the driver (mlx5_ib, ib_uverbs) or restart openibd",
    needs=("links", "links.*.has_chardev"),
    precedence=DRIVER,
    explains=("ib.still",),
)
def without_device_file(moment: Moment) -> Iterator[Hit]:
    """A container is not given all devices: there only the one that lacks it among others is a fault."""
    links = moment.now.links
    if moment.now.host.is_confined and not any(link.has_chardev for link in links):
        return
    for link in links:
        if link.has_chardev is False and link.error is None and link.kind in RDMA:
            text = f"no uverbs device for {port_name(link)}: programs cannot use it"
            yield Hit(port_name(link), text, ("/sys/class/infiniband_verbs has none of its own",))


# Ports


class _Wanted(NamedTuple):
    """Whether a port that is down should be up: most nodes have ports that nothing is plugged into."""

    missed: bool
    why: str
    with_all: bool = False  # only because no port of its kind has a link


@port_fault("ib.down", "critical", clear_s=10.0, compares_nodes=True)(
    meaning="a port of InfiniBand or RoCE has no link",
    threshold="not ACTIVE, and it was up, or is on like nodes, or fewer are ACTIVE than the GPUs need; else info; "
    "INIT: warning",
    source="/sys/class/infiniband/D/ports/N/{state,phys_state}; gpud, Meta gcm, NVSentinel",
    action="reseat or clean the cable; check the switch port",
    needs=("links", "links.*.state", "links.*.phys_state"),
    precedence=LINK_DOWN,
    together="{subjects} are down",
    explains=(
        *("ib.rate", "ib.ber", "ib.recovery", "ib.integrity", "ib.rcv_errors", "ib.discards", "ib.wait"),
        *("ib.transport", "ib.still", "roce.", "eth."),
    ),
)
def down(moment: FleetMoment) -> Iterator[Hit]:
    """Of ports none of which was ever up, or that wait for a subnet manager, the cause is outside of them: one hit."""
    together: dict[str, list[Hit]] = {}
    waiting: dict[str, list[str]] = {}
    for link, name, up in rdma_ports(moment.now):
        if up or link.state is None:
            continue
        if link.state in _TRAINED:
            if _states_before(moment).get(name, "INIT") in _TRAINED:  # else it is on its way to ACTIVE
                waiting.setdefault(link.state, []).append(name)
            continue
        wanted = _wanted(moment, link)
        if wanted is None:
            continue
        text = f"{name} is down ({link.physical_state or link.state})"
        hit = Hit(name, text, (wanted.why, *_flap_evidence(moment, link)))
        if not wanted.missed:
            hit = replace(hit, severity="info", action="nothing, if nothing is plugged in")
        if wanted.with_all:
            together.setdefault(link.kind, []).append(hit)
        else:
            yield hit
    for state, names in waiting.items():
        has, them = ("has", "it") if len(names) == 1 else ("have", "them")
        text = f"{listed(names)} {has} a link, but no subnet manager has made {them} ACTIVE ({state})"
        action = "check the subnet manager (sminfo)"
        yield Hit(names[0], text, severity="warning", action=action, about=tuple(names))
    for kind, hits in together.items():
        if len(hits) == 1:
            yield hits[0]
            continue
        ports = f"{len(hits)} {_LABELS.get(kind, kind)} ports"
        evidence = (*hits[0].evidence, ", ".join(hit.subject for hit in hits))
        action = "check the cables and the switch; nothing, if this node has no such network"
        yield Hit(f"all {ports}", f"None of the {ports} has a link", evidence, "critical", action)


def _wanted(moment: FleetMoment, link: LinkSample) -> _Wanted | None:
    """What speaks for a port that is down now; None: like nodes have it down too, there is nothing to tell."""
    seen_up = moment.trails.has_seen(port_name(link), _SEEN_UP)
    if seen_up or (link.counters.get(f"{NETDEV}carrier_up_count", 0) > 0 and link.physical_state != "Disabled"):
        return _Wanted(True, f"it was up since {'it is watched' if seen_up else 'the node was started'}")
    gpus, name = len(moment.now.gpus), board(moment.now)
    usual = moment.peers.common(_STATE, group(name, port_name(link)))
    if usual is not None and usual.value in ("ACTIVE", "DOWN"):
        return _Wanted(True, f"ACTIVE on {usual}") if usual.value == "ACTIVE" else None
    count, active, model = _of_kinds(moment).get(link.kind, (0, 0, None))
    own = _models(moment).get(bus_id(link.pci_bus_id))
    # A NIC that differs from those in use is there for something else (storage, management).
    if own is not None and model is not None and model != own:
        return _Wanted(False, "no other port of this kind of NIC is up")
    usual = moment.peers.common(_ACTIVE, group(name, link.kind))
    if usual is not None and active < usual.value:
        return _Wanted(True, f"{active} ports ACTIVE, {usual.value} on {usual}")
    needed = min(next((count for model_name, count in NEEDED if model_name in name), 0), gpus)
    if active < needed <= count:
        return _Wanted(True, f"{active} ports ACTIVE, {needed} belong to {gpus} x {name}", with_all=not active)
    return _Wanted(False, "it was not up since it is watched")


@once_per_moment
def _models(moment: Moment) -> dict[str, Model]:
    """By PCI address."""
    return {bus_id(device.bus_id): (device.vendor_id, device.device_id) for device in moment.now.pci}


@once_per_moment
def _of_kinds(moment: Moment) -> dict[str, tuple[int, int, Model | None]]:
    """By kind how many ports there are, how many are up, and what model most of these are (None: not known of all)."""
    of_kinds: dict[str, tuple[int, int, Model | None]] = {}
    for kind, ports in grouped(rdma_ports(moment.now), lambda port: port.link.kind).items():
        models = Counter(_models(moment).get(bus_id(port.link.pci_bus_id)) for port in ports if port.up)
        most = models.most_common(1)[0][0] if models and None not in models else None
        of_kinds[kind] = len(ports), sum(models.values()), most
    return of_kinds


@once_per_moment
def _states_before(moment: Moment) -> dict[str, str | None]:
    return {port_name(link): link.state for link in moment.before.links} if moment.before is not None else {}


@port_fault("ib.flap", "warning", clear_s=60.0)(
    meaning="a port lost its link and got it again",
    threshold=f"once in the hour: info, warning with ranks; {FLAPS} in {FLAPS_OVER_S / HOUR_S:.0f} h: warning; {FLAPS} "
    "in 1 h: critical",
    source="link_downed, carrier_down_count, state; gpud, NVSentinel, Azure",
    action="replace cable or transceiver",
    needs=("links", "links.*.state", "links.*.counters"),
    grows=("links",),
    precedence=LINK_DOWN,
    explains=("ib.still",),
)
def flap(moment: Moment) -> Iterator[Hit]:
    """While a port is down, ib.down tells how often it was."""
    if not moment.trails.any_grew(counters, FLAPS_OVER_S):
        return
    for link, name, up in rdma_ports(moment.now):
        if not up:
            continue
        # By the counter that saw more: brief flaps fall between two samples.
        names = _flap_counters(link)
        often = round(max(moment.trails.grown(name, one, FLAPS_OVER_S).per(FLAPS_OVER_S) for one in names))
        lately = round(max(moment.trails.grown(name, one, HOUR_S).per(HOUR_S) for one in names))
        if not often or (lately < 1 and often < FLAPS):
            continue
        severity: Severity = "warning" if often >= FLAPS or moment.now.ranks else "info"
        count, span = lately, "the last hour"
        if lately >= FLAPS:
            severity = "critical"
        elif often >= FLAPS:
            count, span = often, f"{FLAPS_OVER_S / HOUR_S:.0f} hours"
        times = "once" if count == 1 else counted(count, "time")
        yield Hit(name, f"{name} flapped {times} in {span}", _flap_evidence(moment, link), severity=severity)


def _flap_counters(link: LinkSample) -> tuple[str, ...]:
    """The interface's carrier only where the port's own counter is stuck: a new subnet manager takes it away too."""
    stuck = _DOWNED not in link.counters or _DOWNED in _stuck(link)
    return (_DOWNED, _WENT_DOWN, _CARRIER) if stuck else (_DOWNED, _WENT_DOWN)


def _flap_evidence(moment: Moment, link: LinkSample) -> tuple[str, ...]:
    name = port_name(link)
    counts = {counter: moment.trails.grown(name, counter, FLAPS_OVER_S).amount for counter in _flap_counters(link)}
    parts = [f"{counter.removeprefix(NETDEV)} +{count:.0f}" for counter, count in counts.items() if count]
    parts += ["link_downed is stuck at its maximum"] if _DOWNED in _stuck(link) else []
    return (", ".join(parts),) if parts else ()


def _stuck(link: LinkSample) -> list[str]:
    """Counters at their maximum; a value above the classic one shows that this driver's counters are wider."""
    values = link.counters
    if link.saturated or _MAXIMA.isdisjoint(values.values()):
        return link.saturated
    if any(values.get(name, 0) > most for name, most in NARROW_MAXIMA.items()):
        return []
    return [name for name, most in NARROW_MAXIMA.items() if values.get(name) == most]


@port_rule("ib.saturated", "info")(
    meaning="an error counter is at its maximum and shows nothing new",
    threshold="{}, {} or {}, as wide as the counter is".format(*dict.fromkeys(NARROW_MAXIMA.values())),
    source="kernel infiniband/core/sysfs.c",
    action="sudo perfquery -R",
    needs=("links", "links.*.counters"),
)
def saturated(moment: Moment) -> Iterator[Hit]:
    for link, name, up in rdma_ports(moment.now):
        stuck = _stuck(link)
        if stuck and (up or moment.trails.has_seen(name, _SEEN_UP)):
            at = ((counter, link.counters.get(counter, NARROW_MAXIMA.get(counter))) for counter in stuck)
            text = f"{name}: {', '.join(f'{counter} stuck at {value}' for counter, value in at)}"
            why = "flaps are counted from the port's state instead"
            yield Hit(name, f"{text}, it cannot count any further", (why,))


@port_fault("ib.rate", "warning", hold_s=10.0, compares_nodes=True)(
    meaning="a port runs slower than it should",
    threshold="< most like nodes; without these < before, or < the node's other ports of this kind",
    source="/sys/class/infiniband/D/ports/N/rate; gpud, NHC, NVIDIA Health Validation",
    action="check cable and the switch port's configuration",
    needs=("links", "links.*.rate"),
    explains_ranks=SLOWS,
)
def rate(moment: FleetMoment) -> Iterator[Hit]:
    """Like nodes know best how fast a port should be, then its own past, then the node's other ports."""
    ports = [port for port in rdma_ports(moment.now) if port.up and port.link.rate_bits_per_s]
    most = _most_have(ports)
    for link, name, _ in ports:
        own = link.rate_bits_per_s or 0.0
        usual = moment.peers.common(_RATE, group(board(moment.now), name))
        if usual is not None:
            full, why = usual.value, f"{usual} have {usual.value / 1e9:g} Gb/s"
        elif before := moment.trails.earlier_rate(name, own, (4, 2)):  # it loses lanes
            full, why = before, "it was faster before"
        else:
            full = most.get((link.kind, link.firmware), own)
            why = f"most ports of this kind here have {full / 1e9:g} Gb/s"
        if own < full:
            yield Hit(name, f"{name} at {own / 1e9:g} of {full / 1e9:g} Gb/s", (why,))


def _most_have(ports: list[Port]) -> dict[tuple[str, str | None], float]:
    """By kind of card (which the firmware tells) the rate that all but a few ports have; {} where all have one."""
    if len({port.link.rate_bits_per_s for port in ports}) < 2:
        return {}
    most_have: dict[tuple[str, str | None], float] = {}
    for card, alike in grouped(ports, lambda port: (port.link.kind, port.link.firmware)).items():
        ((most, count),) = Counter(port.link.rate_bits_per_s or 0.0 for port in alike).most_common(1)
        if count >= _MOST_OF * max(len(alike) - count, 1):
            most_have[card] = most
    return most_have


def counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    for link, name, up in rdma_ports(sample):
        if up:
            yield name, _WENT_DOWN, 0
        elif link.state is not None and link.state not in _TRAINED:
            yield name, _WENT_DOWN, 1
        for counter in (_DOWNED, _CARRIER):
            if counter in link.counters:
                yield name, counter, link.counters[counter]


def seen(sample: Sample) -> Iterator[tuple[str, str]]:
    for link, name, up in rdma_ports(sample):
        if up:
            yield name, _SEEN_UP
            yield name, rate_key(link.rate_bits_per_s)


def facts(sample: Sample) -> Iterator[Fact]:
    name_of_board = board(sample)
    if not _is_partial(sample):
        counts = _device_counts(sample)
        yield from ((_COUNT, group(name_of_board, kind), counts[kind]) for kind in _KINDS)
    active: Counter[str] = Counter()
    for link, name, up in rdma_ports.afresh(sample):
        of_like = group(name_of_board, name)
        if up:
            active[link.kind] += 1
            if link.rate_bits_per_s:
                yield _RATE, of_like, link.rate_bits_per_s
        if link.state is not None:
            yield _STATE, of_like, link.state
    yield from ((_ACTIVE, group(name_of_board, kind), count) for kind, count in active.items())
