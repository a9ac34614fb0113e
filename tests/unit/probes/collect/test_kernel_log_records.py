"""The formats in which kernel lines are found, and the patterns that they are counted by."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from mltop.probes.collect.kernel_log.records import Record, parse
from mltop.probes.collect.kernel_log.scan import MAX_PATTERNS, Patterns, pattern_of, scan
from tests.fakes.kmsg import BOOT_AT, FakeKmsg

NOW = BOOT_AT + 1000.0


def local(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"4,17,2500000,-;some text\n SUBSYSTEM=pci\n", Record(BOOT_AT + 2.5, 4, "some text")),
        (b"12,18,0,-,caller=T1;a\\x0ab\\xc3\\xa9\\x5c", Record(BOOT_AT, 4, "a\nbé\\", by_user=True)),
        (b"[   12.500000] some text", Record(BOOT_AT + 12.5, None, "some text")),
        (b"[   12.500000][  T291] some text", Record(BOOT_AT + 12.5, None, "some text")),
        (b"<3>[   12.500000] some text", Record(BOOT_AT + 12.5, 3, "some text")),
        (b"kern  :warn  : [   12.500000] some text", Record(BOOT_AT + 12.5, 4, "some text")),
        (b"daemon:info  : [   12.500000] systemd[1]: x", Record(BOOT_AT + 12.5, 6, "systemd[1]: x", by_user=True)),
        (b"[Sun Feb 23 16:24:18 2025] some text", Record(local("2025-02-23 16:24:18"), None, "some text")),
        (b"kern  :err   : 2025-02-10T16:28:06,500000+00:00 some text", Record(1739204886.5, 3, "some text")),
        (b"2025-02-10T16:28:06,500000+00:00 some text", Record(1739204886.5, None, "some text")),
        (b"2025-02-10T17:28:06.500000+01:00 h1 kernel: [ 1.0] some text", Record(1739204886.5, None, "some text")),
        (b"2025-02-10T17:28:06.500000+01:00 h1 cron[3]: some text", Record(1739204886.5, None, "", by_user=True)),
        (b'{"__REALTIME_TIMESTAMP":"1500000","PRIORITY":"2","MESSAGE":"text"}', Record(1.5, 2, "text")),
        (b'{"__REALTIME_TIMESTAMP":"1500000","MESSAGE":[97,10,98]}', Record(1.5, None, "a\nb")),
        (b"without any time", Record(None, None, "without any time")),
        (b"NVRM: warn: is no level", Record(None, None, "NVRM: warn: is no level")),
    ],
)
def test_every_format(line: bytes, expected: Record) -> None:
    assert parse(line, BOOT_AT, NOW) == expected


def test_a_time_without_a_year_is_of_the_past() -> None:
    january = local("2026-01-02 00:00:00")
    record = parse(b"Dec 31 23:59:58 h1 kernel: some text", 0.0, january)
    assert record == Record(local("2025-12-31 23:59:58"), None, "some text")
    assert parse(b"Jan  1 10:00:00 h1 kernel: some text", 0.0, january).at == local("2026-01-01 10:00:00")


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("mlx5_core 0000:5c:00.0: renamed from eth3", "mlx#_core BDF: renamed from eth#"),
        ("EXT4-fs (dm-0): mounted 8d2f3c1a-12ab-4000-8000-0123456789ab r/w", "EXT#-fs (dm-#): mounted UUID r/w"),
        ("usb 1-2: MAC 1c:34:da:5a:00:ff at 0xffff9a3c", "usb #-#: MAC MAC at HEX"),
        ("task python:268911 blocked for more than 120 seconds", "task python:# blocked for more than # seconds"),
        ("RIP at ffffffff81637d5c of veth3fa1b2c", "RIP at HEX of NAME"),
        ("Dump: 0f 1f 44 00 <0f> 0b", "Dump: BYTES"),
        ("effected facade deadbeef cafe", "effected facade deadbeef cafe"),
        ("NVRM: Xid (PCI:0000:05:00): 79, pid=12, GPU 3", "NVRM: Xid (PCI:BDF): 79, pid=#, GPU #"),
    ],
)
def test_what_varies_is_replaced(text: str, pattern: str) -> None:
    assert pattern_of(text) == pattern


def test_lines_are_counted_by_pattern(tmp_path: Path) -> None:
    kmsg = FakeKmsg(tmp_path)
    for number in range(3):
        kmsg.write(f"mlx5_core 0000:5{number}:00.0 eth{number}: Link down", 10.0 + number, level=6 - number)
    kmsg.write(" ? do_syscall_64+0x5b/0x85", 20.0)
    kmsg.write("systemd[1]: Started.", 21.0, level=3 * 8 + 6)
    kmsg.write("Code: 0f 1f 44 00 00", 22.0)
    lines, gap = scan(kmsg.places(), NOW)
    assert gap is None
    assert lines == [
        {
            "pattern": "mlx#_core BDF eth#: Link down",
            "count": 3,
            "first_at": BOOT_AT + 10,
            "last_at": BOOT_AT + 12,
            "level": 4,
            "example": "mlx5_core 0000:50:00.0 eth0: Link down",
        }
    ]


def test_more_kinds_than_are_kept_are_counted_and_said(tmp_path: Path) -> None:
    kmsg = FakeKmsg(tmp_path)
    names = ["".join(chr(ord("g") + int(digit)) for digit in f"{number:04d}") for number in range(MAX_PATTERNS + 7)]
    kmsg.write_raw(b"".join(kmsg.record(f"module {name} loaded") for name in names))
    lines, gap = scan(kmsg.places(), NOW)
    assert len(lines) == MAX_PATTERNS
    assert gap is not None and gap.what == "kernel_log.lines" and "7 lines" in gap.why


def test_patterns_take_less_than_two_megabytes() -> None:
    long = "x" * 70
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    patterns = Patterns()
    for number in range(MAX_PATTERNS + 100):
        name = "".join(chr(ord("g") + int(digit)) for digit in f"{number:05d}")
        patterns.add(Record(float(number), 4, f"{name} {long}"))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert patterns.left_out > 0
    assert used < 2 * 1024 * 1024
