"""Kernel lines that say that something is wrong (or well again), as tables of kind, literal and expression.

What an Xid means and what to do about it is the judge's business. Sources of the formats: the drivers' and the kernel's
own format strings (open-gpu-kernel-modules kernel_rc.c and nv.c, mlx5 health.c, cmd.c and events.c, mm/oom_kill.c,
hung_task.c, watchdog.c, nfs, md, nvme, pcie/aer.c, edac_mc.c, mce) and lines published in issue threads.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

from mltop.probes.collect.kernel_log.records import Record, parse, shown
from mltop.probes.model import KernelEvent

Fields = dict[str, Any]  # of KernelEvent
DOWN, UP = 0, 1  # ``code`` of link events

_BUS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_BDF = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_FIRST_BDF = re.compile(rf"\b{_BDF}\b")
_NO_DISK = re.compile(r"^(?:fd|sr|loop|nbd|zram)\d")  # floppy and optical drives that are not there, images
_VIRTUAL = re.compile(r"^(?:veth|cali|cni|docker|br-|virbr|lxc|tap|tun|flannel|vnet|SATA$|NVLink$|PCIe$|PHY$)")
# arch/x86/kernel/traps.c and what it sends then (arm64 writes no such lines unless it is told to).
_TRAPS = {
    "general protection": signal.SIGSEGV,
    "divide error": signal.SIGFPE,
    "invalid opcode": signal.SIGILL,
    "int3": signal.SIGTRAP,
    "stack segment": signal.SIGBUS,
    "alignment check": signal.SIGBUS,
}
_IN_LIBRARY = re.compile(r" in ([^\s\[]+)\[")
_SEVERITY = {
    "fatal": "fatal",
    "nonfatal": "nonfatal",
    "ue": "fatal",
    "ce": "nonfatal",
    "corrected": "nonfatal",
    "recoverable": "nonfatal",
}


def plain(match: re.Match[str], _: str) -> Fields | None:
    """The expression's named groups are the event's fields."""
    fields = {name: value for name, value in match.groupdict().items() if value}
    for name in ("code", "pid"):
        if name in fields:
            fields[name] = int(fields[name])
    if "severity" in fields:
        fields["severity"] = _SEVERITY.get(fields["severity"].lower().replace("-", ""), "")
    return fields


_XID_PROCESS = re.compile(r"(?:pid='?<?(?P<pid>\w+)>?'?(?:, |$))?(?:name='?(?P<process>[^,']*)'?(?:, |$))?")
_XID_SEVERITY = re.compile(r"\b(Fatal|Nonfatal)\s+XC\d\s+i\d+\s+Link\b|NVLink: (fatal) error")


def xid(match: re.Match[str], _: str) -> Fields | None:
    fields: Fields = {"subject": match["subject"], "code": int(match["code"])}
    rest = match["rest"] or ""
    process = _XID_PROCESS.match(rest)
    if process is not None:
        if (process["pid"] or "").isdigit():
            fields["pid"] = int(process["pid"])
        name = process["process"] or ""
        fields["process"] = "" if name == "<unknown>" else name
    severity = _XID_SEVERITY.search(rest)
    if severity is not None:
        fields["severity"] = _SEVERITY[(severity[1] or severity[2]).lower()]
    return fields


def oom_kill(match: re.Match[str], text: str) -> Fields | None:
    """The killed process, with the kernel's summary shortened: paths of cgroups can be longer than all that is kept."""
    fields = of_process(match, text) or {}
    if "constraint" not in match.groupdict():
        return fields
    groups = [f"{name}={value[-80:]}" for name, value in re.findall(r"(oom_memcg|task_memcg)=([^,]*)", text)]
    words = ["oom-kill:constraint=" + match["constraint"], *groups, f"task={fields['process']}", f"pid={match['pid']}"]
    return {**fields, "text": ",".join(words)}


def of_process(match: re.Match[str], text: str) -> Fields | None:
    """The process is the subject, where the line names one."""
    if "process" not in match.groupdict():
        return plain(match, text)
    return {"subject": match["process"], "process": match["process"], "pid": int(match["pid"])}


def crash(match: re.Match[str], text: str) -> Fields | None:
    """A thread that crashed, with the signal that it got as ``code``; without the addresses."""
    trap = match.groupdict().get("trap")
    number = signal.SIGSEGV if trap is None else _TRAPS[trap]
    library = _IN_LIBRARY.search(text, match.end())
    where = f" in {library[1]}" if library else ""
    said = f"{match['process']}[{match['pid']}]: {trap or 'segfault'}{where}"
    return {**(of_process(match, text) or {}), "code": number.value, "text": said}


def with_device(match: re.Match[str], text: str) -> Fields | None:
    """The first PCI address of the line is the device that the driver speaks of."""
    device = _FIRST_BDF.search(text) or re.search(r"\bmlx5_\d+\b", text)
    return {**(plain(match, text) or {}), "subject": device[0] if device else ""}


def link(match: re.Match[str], _: str) -> Fields | None:
    groups = match.groupdict()
    name, state = groups["subject"] or groups.get("interface"), groups["state"].lower()
    if not name or _VIRTUAL.match(name):
        return None
    return {"subject": name, "code": UP if state in ("up", "gained") else DOWN}


def disk(match: re.Match[str], _: str) -> Fields | None:
    name = match.groupdict().get("subject") or ""
    return None if _NO_DISK.match(name) else {"subject": name}


# By kind of event, then by needle: literal text without which the expression cannot match, looked for first because
# that is cheap. It is not a word of healthy boots (a driver's name): then every line of the log would be looked at
# more closely. The first expression that matches counts.
EXPRESSIONS = {
    "xid": {
        "NVRM: Xid": rf"NVRM: Xid \((?:PCI:)?(?P<subject>{_BUS})[^)]*\)[^:]*: (?P<code>\d{{1,6}})"
        r"(?:, ?(?P<rest>.*)|\s*)$",
    },
    "off_bus": {
        "NVRM: GPU": rf"NVRM: GPU (?:at )?(?:PCI:)?(?P<subject>{_BUS}):? (?:GPU )?has fallen off the bus",
        "NVRM: The NVIDIA GPU": rf"NVRM: The NVIDIA GPU (?P<subject>{_BUS})\b.*fallen off the bus",
    },
    "sxid": {
        "SXid (": rf"SXid \((?:PCI:)?(?P<subject>{_BUS})\): (?P<code>\d+), (?P<severity>Fatal|Non-fatal)\b",
    },
    "peermem": {
        "invalid context": r"(?P<subject>nvidia[-_]peermem|nv_peer_mem)\b.*ERROR detected invalid context",
    },
    "oom": {
        "oom-kill:": r"oom-kill:constraint=(?P<constraint>\w+),.*\btask=(?P<process>.+),pid=(?P<pid>\d+)",
        "Killed process": (r"Killed process (?P<pid>\d+)(?:, UID \d+,)? \((?P<process>.+?)\)(?:[,.]|\s+total-vm|\s*$)"),
    },
    "segfault": {
        "segfault at": r"\b(?P<process>\S.*)\[(?P<pid>\d+)\]: segfault at ",
        "traps: ": rf"traps: (?P<process>.+)\[(?P<pid>\d+)\] (?:trap )?(?P<trap>{'|'.join(_TRAPS)})",
    },
    "hung_task": {
        "for more than": r"\btask (?P<process>\S.*):(?P<pid>\d+) (?:<[^>]*> )?blocked (?:in I/O wait )?"
        r"for more than \d+ seconds",
    },
    "soft_lockup": {
        "soft lockup": r"soft lockup - CPU#\d+ stuck for \d+s! \[(?P<process>.+):(?P<pid>\d+)\]",
        "hard LOCKUP": r"Watchdog detected hard LOCKUP on (?P<subject>cpu ?\d+)",
    },
    "nfs": {"not responding": r"\bnfs: server (?P<subject>\S+) not responding"},
    "nfs_ok": {"nfs: server": r"\bnfs: server (?P<subject>\S+) OK"},
    "mlx5": {
        **{
            words: rf"mlx5.*{words}"
            for words in (
                "reached miss count",
                "unrecoverable hardware error",
                "Will cause a leak of a command resource",
                "Detected insufficient power",
            )
        },
        "High Temperature": r"Port module event.*High Temperature",
    },
    "link": {
        "link status definitely": r"(?:\(slave (?P<subject>\S+)\): )?link status definitely (?P<state>up|down)\b"
        r"(?: for interface (?P<interface>[^,\s]+))?",
        "ink ": r"(?:^|\s)(?P<subject>[A-Za-z][\w.@-]{0,30}):? (?:NIC )?[Ll]ink(?: is)? "
        r"(?P<state>[Uu]p|UP|[Dd]own|DOWN)\b",
        "arrier": r"systemd-networkd\[\d+\]: (?P<subject>\S+): (?P<state>[Ll]ost|[Gg]ained) carrier",
    },
    "remount_ro": {
        "ead-only": r"(?:\((?:device )?(?P<subject>[^)]+)\): )?Remounting filesystem read-only",
        "forced readonly": r"(?:\((?:device )?(?P<subject>[^)]+)\)[^:]*: )?forced readonly",
    },
    "disk_io": {
        "Buffer I/O error": r"Buffer I/O error on dev(?:ice)? (?P<subject>[^\s,]+), logical block \d+",
        " error, dev ": r"(?:I/O|critical (?:medium|target|nexus|space allocation)|protection) error, "
        r"dev (?P<subject>[^\s,]+), sector",
        "writing superblock": r"\((?P<subject>[^)]+)\): I/O error while writing superblock",
        "EXT4-fs error": r"EXT4-fs error \(device (?P<subject>[^)]+)\)",
        "XFS (": r"XFS \((?P<subject>[^)]+)\): .*(?:Shutting down filesystem|Filesystem has been shut down)",
        " timeout, ": r"\b(?P<subject>nvme\d+): I/O .*\btimeout, "
        r"(?:reset controller|disable controller|aborting|completion polled)",
        **{
            words: rf"\b(?P<subject>nvme\d+(?:n\d+)?): {words}"
            for words in (
                "controller is down; will reset",
                "Disabling device after reset failure",
                "Removing after probe failure",
                "Device not ready; aborting",
                "no available path - failing I/O",
            )
        },
        "Disk failure on": r"md/raid\S*: ?Disk failure on (?P<subject>[^\s,]+)(?:,| detected)",
    },
    "pcie_limited": {"bandwidth, limited by": rf"(?P<subject>{_BDF}): .*available PCIe bandwidth, limited by"},
    "aer": {
        "(Fatal) error": rf"AER: (?:Multiple )?Uncorrect(?:ed|able) \((?P<severity>Fatal)\) error (?:message )?received"
        rf"(?: from|:) ?(?P<subject>{_BDF})?",
        "(Fatal), type=": (
            rf"(?P<subject>{_BDF}): (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \((?P<severity>Fatal)\)"
        ),
        "DPC: containment": rf"(?P<subject>{_BDF}): DPC: containment event",
    },
    "mce": {
        "EDAC ": r"EDAC (?P<subject>MC\d+): \d+ (?P<severity>CE|UE)\b",
        "Machine Check": r"\[Hardware Error\]: (?P<subject>CPU \d+): Machine Check(?: Exception)?: ",
        "Machine check events": r"\[Hardware Error\]: Machine check events logged",
        "event severity": r"\[Hardware Error\]: event severity: (?P<severity>corrected|recoverable|fatal)",
        "Memory failure": r"\bMemory failure: 0x[0-9a-f]+: recovery action",
        "hardware memory": r"Uncorrected hardware memory error",
        "memory corruption": r"Killing (?P<process>.+):(?P<pid>\d+) due to hardware memory corruption",
    },
}
# What makes an event of a match; of all other kinds it is ``plain``.
_BUILDS: dict[str, Callable[[re.Match[str], str], Fields | None]] = {
    "xid": xid,
    "oom": oom_kill,
    "segfault": crash,
    "hung_task": of_process,
    "soft_lockup": of_process,
    "mlx5": with_device,
    "link": link,
    "disk_io": disk,
}


class Pattern(NamedTuple):
    """One row of ``EXPRESSIONS``."""

    kind: str
    needle: str
    expression: re.Pattern[str]


PATTERNS = [
    Pattern(kind, needle, re.compile(expression, re.DOTALL))
    for kind, by_needle in EXPRESSIONS.items()
    for needle, expression in by_needle.items()
]
NEEDLES = tuple({pattern.needle.encode(): None for pattern in PATTERNS})


def decode(text: str, at: float, source: str = "kmsg") -> KernelEvent | None:
    """What one line (or a record of several) reports; None for everything else. ``at``: unix s."""
    for pattern in PATTERNS:
        if pattern.needle not in text:
            continue
        match = pattern.expression.search(text)
        if match is None:
            continue
        fields = _BUILDS.get(pattern.kind, plain)(match, text)
        if fields is not None:
            told: Fields = {
                name: shown(value, 300 if name == "text" else 80) if isinstance(value, str) else value
                for name, value in {"text": text, **fields}.items()
            }
            return KernelEvent(at=at, kind=pattern.kind, source=source, **told)
    return None


# The journal's way to write texts with line breaks; the words in them cannot be looked for.
_LISTS_OF_BYTES = (b'MESSAGE":[', b'MESSAGE" : [')
_ANY = (*NEEDLES, *_LISTS_OF_BYTES)
_BEGUN = "NVRM: The NVIDIA GPU "  # "… 0000:18:00.0", "(PCI ID: …) installed in this system has", "fallen off the bus …"
_BEGUN_LINES = 3


class Decoder:
    """Makes events of one log's raw lines: cheap for the many that say nothing, and across lines that belong together.

    Feed it the lines in order. ``source``: as in KernelEvent. ``boot_at``: unix s, may be set anew."""

    def __init__(self, source: str, boot_at: float) -> None:
        self._source = source
        self.boot_at = boot_at
        self._before = b""  # the line before, of the last batch
        self._begun: Record | None = None
        self._begun_lines = 0

    def feed(self, batch: Sequence[bytes], now: float) -> Iterator[KernelEvent]:
        """The events in some lines; ``now``: unix s, for lines that do not say when they were written."""
        together = b"\n".join(batch)
        needles = [needle for needle in _ANY if needle in together]
        before, self._before = self._before, batch[-1] if batch else self._before
        if not needles and self._begun is None:
            return
        for line in batch:
            if self._begun is not None or any(needle in line for needle in needles):
                event = self._event(self._dated(line, before, now))
                if event is not None:
                    yield event
            before = line

    def _dated(self, line: bytes, before: bytes, now: float) -> Record:
        """`dmesg` writes the time of a record of several lines before the first one only."""
        record = parse(line, self.boot_at, now)
        if record.at is not None:
            return record
        at = parse(before, self.boot_at, now).at if before else None
        return record._replace(at=now if at is None else at)

    def _event(self, record: Record) -> KernelEvent | None:
        at = record.at or 0.0
        begun = self._begun
        if begun is not None:
            begun = begun._replace(text=f"{begun.text}\n{record.text.strip()}")
            self._begun_lines += 1
            goes_on = "NVRM:" in record.text and self._begun_lines < _BEGUN_LINES
            event = decode(begun.text, begun.at or at, self._source) if "fallen off" in record.text else None
            self._begun = begun if goes_on and event is None else None
            if event is not None:
                return event
        event = decode(record.text, at, self._source)
        if event is None and _BEGUN in record.text:
            self._begun, self._begun_lines = record, 0
        return event
