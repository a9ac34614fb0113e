"""RDMA devices as a whole: gone, without their character device, or with a driver that complains."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mltop.probes.judge.health.names import DEVICE_VANISHED, RDMA, board, bus_id, group, port_name
from mltop.probes.judge.health.peers import Fact
from mltop.probes.judge.health.rule import DRIVER, EVENT_LISTED_S, LINK_DOWN, Hit, Moment, Rule, usual
from mltop.probes.model import KernelEvent, LinkSample, Sample

_COUNT = "ib.devices"
_KINDS = {"infiniband": "HCAs", "roce": "RoCE devices", "efa": "EFA adapters"}
# What mlx5 writes to the kernel log (health.c, cmd.c, events.c): what it means, how bad it is, what helps.
_REPLACE = "reset the NIC (mlxfwreset) or reboot; replace it if it comes again"
_COMPLAINTS = (
    ("miss count", "", "firmware stopped answering", "critical", _REPLACE),
    ("unrecoverable hardware error", "", "reports an unrecoverable hardware error", "critical", _REPLACE),
    ("Will cause a leak of a command resource", "", "firmware does not finish a command", "critical", _REPLACE),
    # These are no cause of what else the port may have: another subject, so that they hide nothing.
    ("Detected insufficient power", " power", "gets too little power from its slot", "warning", "check slot and cable"),
    ("High Temperature", " transceiver", "is too hot", "warning", "check airflow at the transceiver"),
)
_HOT = re.compile(r"Port module event.*High Temperature", re.DOTALL)
_MLX5 = re.compile(r"\bmlx5_\d+\b")


def missing(moment: Moment) -> Iterator[Hit]:
    now = moment.now
    gone = [link for link in now.links if link.error == DEVICE_VANISHED and link.kind in RDMA]
    for link in gone:
        where = (f"PCI {bus_id(link.pci_bus_id)}",) if link.pci_bus_id else ()
        yield Hit(port_name(link), f"{port_name(link)} vanished: the RDMA device is gone", where)
    if moment.peers.nodes < 3 or _is_partial(now):
        return
    counts = _counts(now)
    vanished = {link.kind for link in gone}
    name = board(now)
    for kind, words in _KINDS.items():
        typical = usual(moment.peers, _COUNT, group(name, kind))
        if typical is not None and counts.get(kind, 0) < typical.value and kind not in vanished:
            evidence = (f"{typical.value} on {typical.count} of {typical.of} like nodes",)
            yield Hit(words, f"{counts.get(kind, 0)} of {typical.value} {words} present", evidence)


def driver(moment: Moment) -> Iterator[Hit]:
    oldest = moment.now.sampled_at - EVENT_LISTED_S
    newest: dict[tuple[str, int], KernelEvent] = {}
    for event in moment.now.kernel_events:
        if event.kind == "mlx5" and event.at >= oldest:
            which = _complaint(event.text)
            if which is not None:
                newest[_subject(moment.now, event), which] = event
    for (subject, which), event in newest.items():
        _, part, what, severity, action = _COMPLAINTS[which]
        whose = f"{subject}{part}"
        yield Hit(whose, f"{whose}: {what}", (event.text,), severity, action, since=event.at, key=str(which))


def chardev(moment: Moment) -> Iterator[Hit]:
    """A container is not given all devices: there only the one that lacks it among others is a fault."""
    lacking, others = [], 0
    for link in moment.now.links:
        if link.has_chardev is False and link.error is None and link.kind in RDMA:
            lacking.append(link)
        elif link.has_chardev:
            others += 1
    if lacking and (others or not moment.now.host.is_confined):
        for link in lacking:
            text = f"no uverbs device for {port_name(link)}: programs cannot use it"
            yield Hit(port_name(link), text, ("/sys/class/infiniband_verbs has none of its own",))


def facts(sample: Sample, name_of_board: str) -> Iterator[Fact]:
    if not _is_partial(sample):
        counts = _counts(sample)
        for kind in _KINDS:
            yield _COUNT, group(name_of_board, kind), counts.get(kind, 0)


def _counts(sample: Sample) -> dict[str, int]:
    found: dict[str, int] = {}
    for link in sample.links:
        if link.error != DEVICE_VANISHED:
            found[link.kind] = found.get(link.kind, 0) + 1
    return found


def _is_partial(sample: Sample) -> bool:
    """Where the devices could not be listed, or a container shows only some, their number says nothing."""
    unlisted = any(gap.what in ("links", "links.infiniband") and gap.kind == "unknown" for gap in sample.gaps)
    return unlisted or bool(sample.host.is_confined)


def _complaint(text: str) -> int | None:
    for number, (needle, *_) in enumerate(_COMPLAINTS):
        if needle in text and (needle != "High Temperature" or _HOT.search(text)):
            return number
    return None


def _subject(sample: Sample, event: KernelEvent) -> str:
    """The port whose device the line is about, else what the line says."""
    device = _MLX5.search(event.text)
    for link in sample.links:
        if _is_of(link, event.subject, device[0] if device else ""):
            return port_name(link)
    return event.subject or "mlx5"


def _is_of(link: LinkSample, subject: str, device: str) -> bool:
    return bool(subject) and (bus_id(link.pci_bus_id) == bus_id(subject) or link.device in (subject, device))


_OF_A_PORT = ("ib.", "roce.", "eth.", "efa")

RULES = (
    Rule(
        "ib.missing",
        "critical",
        10.0,
        "look for the card on PCIe (lspci); reboot, reseat it",
        missing,
        meaning="an RDMA device is gone, or the node has fewer than its like",
        threshold="vanished from the list, or fewer than most like nodes have, for 10 s",
        source="/sys/class/infiniband; NVSentinel, Azure",
        needs=("links",),
        precedence=LINK_DOWN,
        explains=_OF_A_PORT,
    ),
    Rule(
        "ib.driver",
        "critical",
        0.0,
        _REPLACE,
        driver,
        meaning="the mlx5 driver reports that a NIC's firmware or hardware fails",
        threshold="its line in the kernel log within the hour; too little power and heat: warning",
        source="kernel log (mlx5 health.c, cmd.c, events.c); NVSentinel, gpud",
        needs=("kernel_log",),
        precedence=DRIVER,
        explains=_OF_A_PORT,
    ),
    Rule(
        "ib.chardev",
        "critical",
        10.0,
        "reload the driver (mlx5_ib, ib_uverbs) or restart openibd",
        chardev,
        meaning="programs cannot open an RDMA device",
        threshold="no uverbs device for 10 s",
        source="/sys/class/infiniband_verbs; NVSentinel",
        needs=("links", "links.*.has_chardev"),
        precedence=DRIVER,
    ),
)
