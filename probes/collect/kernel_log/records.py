"""One line of a kernel log, whatever program wrote it down: when, how bad, and the text.

Formats: /dev/kmsg ("6,1234,5678901,-;text", Documentation/ABI/testing/dev-kmsg), `dmesg` ("[   12.345678] text"),
`dmesg -T` ("[Sun Feb 23 16:24:18 2025] text"), `dmesg -x --time-format iso` ("kern  :warn  : 2025-02-23T…,123456+00:00
text"), syslog files ("Feb 23 16:24:18 node kernel: [   12.345678] text", ISO times likewise), and the journal's JSON.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import NamedTuple

from mltop.probes.collect.redaction.shapes import HIDDEN, masked
from mltop.probes.collect.redaction.values import shown_script

MAX_TEXT_CHARS = 300
_BREAK = re.compile(r"\s*[\r\n]+\s*(?:NVRM: )?")  # a record of several lines repeats its driver's name
_ODD = re.compile(r"[^\x20-\x7e]")
# What the audit subsystem repeats of command lines, in hex digits or quoted (audit-userspace: auparse/typetab.h).
_AUDITED = re.compile(r"\b(proctitle|cmd|data|a\d+(?:\[\d+\])?)=(?:\"[^\"]*\"|\S+)")
_BOOT = re.compile(r"command line(?: parameters)?[:\s]", re.IGNORECASE)  # the kernel's own: rd.luks.key=…
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_MONTHS = {
    "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * month : 3 * month + 3]: month + 1
    for month in range(12)  # in any locale
}
_LEVELS = {"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warn": 4, "notice": 5, "info": 6, "debug": 7}
_LEAD = re.compile(r"(?:<(\d+)>|(\w+)\s*:(emerg|alert|crit|err|warn|notice|info|debug)\s*: )")
_UPTIME = re.compile(r"\[\s*(\d+\.\d+)\](?:\[\s*[TC]\d+\])? ?")
_CTIME = re.compile(r"\[\w{3} (\w{3}) +(\d+) (\d\d):(\d\d):(\d\d) (\d{4})\] ?")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:([.,])(\d{1,9}))?(Z|[+-]\d\d:?\d\d) ")
_SYSLOG = re.compile(r"(\w{3}) +(\d+) (\d\d):(\d\d):(\d\d) ")
_HOST_KERNEL = re.compile(r"\S+ kernel: (?:\[\s*\d+\.\d+\] ?)?")
_DAY_S = 86400.0


class Record(NamedTuple):
    """One line of a log. ``at``: unix s, None where the line does not say. ``level``: 0 (emergency) to 7 (debug).

    ``by_user``: a program wrote it into the log, not the kernel; what programs say in a syslog file has no text here.
    """

    at: float | None
    level: int | None
    text: str
    by_user: bool = False


def parse(line: bytes, boot_at: float, now: float) -> Record:
    """Reads a line; never raises. ``boot_at``: unix s of the kernel's time 0; ``now``: for times without a year."""
    if line[:1].isdigit():
        record = _kmsg(line, boot_at)
        if record is not None:
            return record
    if line[:2] == b'{"':
        record = _journal(line)
        if record is not None:
            return record
    return _text(line.decode("utf-8", "replace").rstrip("\n"), boot_at, now)


def seq_of(line: bytes) -> int | None:
    """The number of a /dev/kmsg record, without parsing the rest; None for other lines."""
    if not line[:1].isdigit():
        return None
    try:
        return int(line.split(b",", 2)[1])
    except (IndexError, ValueError):
        return None


def _kmsg(line: bytes, boot_at: float) -> Record | None:
    head, separator, text = line.partition(b"\n")[0].partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3:
        return None
    try:
        prefix, _, usec = map(int, fields[:3])
    except ValueError:
        return None
    if b"\\x" in text:  # the kernel escapes what is not printable ASCII, line breaks too
        text = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), text)
    return Record(boot_at + usec / 1e6, prefix & 7, text.decode("utf-8", "replace"), prefix >> 3 != 0)


def _journal(line: bytes) -> Record | None:
    try:
        entry = json.loads(line)
        at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        level = int(entry["PRIORITY"]) if "PRIORITY" in entry else None
        text = entry["MESSAGE"]  # one with line breaks or invalid UTF-8 is a list of bytes
        return Record(at, level, bytes(text).decode("utf-8", "replace") if isinstance(text, list) else str(text))
    except (ValueError, TypeError, KeyError):
        return None


def _text(line: str, boot_at: float, now: float) -> Record:
    level, by_user = None, False
    lead = _LEAD.match(line)
    if lead is not None:
        level, by_user = _LEVELS.get(lead[3]), lead[2] != "kern"
        if lead[1] is not None:
            level, by_user = int(lead[1]) & 7, int(lead[1]) >> 3 != 0
        line = line[lead.end() :]
    match = _UPTIME.match(line)
    if match is not None:
        return Record(boot_at + float(match[1]), level, line[match.end() :], by_user=by_user)
    at, end, of_syslog = _wall_time(line, now)
    if of_syslog:
        kernel = _HOST_KERNEL.match(line, end)
        if kernel is None:
            return Record(at, level, "", by_user=True)
        end = kernel.end()
    return Record(at, level, line[end:], by_user=by_user)


def _wall_time(line: str, now: float) -> tuple[float | None, int, bool]:
    """The time that the line begins with, where the rest begins, and whether that is a host and a program."""
    match = _CTIME.match(line)
    if match is not None:
        return _local(int(match[6]), match), match.end(), False
    match = _ISO.match(line)
    if match is not None:
        return _iso(match), match.end(), match[2] != ","  # dmesg's decimal comma
    match = _SYSLOG.match(line)
    if match is not None:
        year = time.localtime(now).tm_year
        at = _local(year, match)
        if at is not None and at > now + _DAY_S:  # December's, read in January
            at = _local(year - 1, match)
        return at, match.end() if at is not None else 0, at is not None
    return None, 0, False


def _local(year: int, match: re.Match[str]) -> float | None:
    """Local time of the groups month (its name), day, hour, minute and second."""
    month = _MONTHS.get(match[1])
    day, hour, minute, second = (int(match[group]) for group in (2, 3, 4, 5))
    try:
        return time.mktime((year, month, day, hour, minute, second, 0, 0, -1)) if month else None
    except (OverflowError, ValueError):
        return None


def _iso(match: re.Match[str]) -> float | None:
    zone = "+00:00" if match[4] == "Z" else match[4]
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    try:
        return datetime.fromisoformat(match[1] + zone).timestamp() + float(f"0.{match[3] or 0}")
    except ValueError:
        return None


def shown(text: str, most_chars: int = MAX_TEXT_CHARS) -> str:
    """Kernel text that may be shown: one line without secrets, with an end. Control characters (also the invisible ones
    of Unicode) are \\x1b or \\u202e.
    """
    text = masked(text[: 8 * most_chars], hashes=False)
    if "audit(" in text:
        text = _AUDITED.sub(rf"\1={HIDDEN}", text)
    boot = _BOOT.search(text)
    if boot is not None:
        text = text[: boot.end()] + shown_script(text[boot.end() :])
    if len(text) <= most_chars and text.isprintable():  # nearly always
        return text.strip()
    text = _BREAK.sub(" ", text[: 4 * most_chars].strip())
    text = _ODD.sub(lambda odd: odd[0] if odd[0].isprintable() else _escaped(odd[0]), text)
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
