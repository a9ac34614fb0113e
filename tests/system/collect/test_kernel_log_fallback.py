"""Where /dev/kmsg may not be read: the journal, kern.log, or a sentence that says why nothing is known."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from mltop.probes.collect.kernel_log import KernelLogSource
from mltop.probes.collect.kernel_log.readers import LogFiles
from mltop.probes.collect.kernel_log.scan import scan
from mltop.probes.model import Gap, KernelEvent
from tests.fakes.kmsg import FakeKmsg, fake_journalctl, journal_line
from tests.waiting import wait_until

NOBODY = 65534
HINT = (
    "Hint: You are currently not seeing messages from other users and the system.\n"
    "      Users in groups 'adm', 'systemd-journal' can see all messages.\n"
    "      Pass -q to turn off this notice.\n"
)
XID_79 = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def places(directory: Path, journalctl: Path | str = "", boot_at: float | None = None) -> LogFiles:
    return LogFiles(str(directory / "kmsg"), str(journalctl), str(directory / "kern.log"), boot_at)


def settled(source: KernelLogSource) -> tuple[list[KernelEvent], list[Gap]]:
    """Once it is decided what is read and the history is there."""
    got: list[Any] = []

    def has_settled() -> bool:
        got[:] = source.read(time.time())
        return not any(gap.kind == "starting" for gap in got[1])

    wait_until(has_settled, what="the kernel log's history")
    return got[0], got[1]


def as_nobody(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``check`` returns in a child process that may read no file of ours (which root always may)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setegid(NOBODY)
                os.seteuid(NOBODY)
            os.write(writing, json.dumps(check()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text)
    return found


def test_without_permission_the_gap_has_the_command_that_gives_it(tmp_path: Path) -> None:
    kmsg = FakeKmsg(tmp_path)
    kmsg.write(XID_79)
    kmsg.path.chmod(0)
    tmp_path.chmod(0o755)

    def check() -> dict[str, Any]:
        source = KernelLogSource(kmsg.places())
        events, gaps = source.read(time.time())
        lines, gap = scan(kmsg.places(), time.time())
        told = [vars(one) for one in (*gaps, gap or Gap("", ""))]
        return {"events": len(events), "lines": lines, "gaps": told}

    found = as_nobody(check)
    assert found["events"] == 0 and found["lines"] == []
    gap, again = found["gaps"]
    assert gap == again
    assert (gap["what"], gap["kind"]) == ("kernel_log", "unknown")
    assert "permission denied" in gap["why"] and "Xid history before start unknown" in gap["why"]
    assert gap["fix"].startswith("sudo usermod -aG adm $USER")


def test_the_journal_is_followed_where_kmsg_is_not_there(tmp_path: Path) -> None:
    now = time.time()
    three = "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: installed in this system has\nNVRM: fallen off the bus"
    lines = [
        "-- No entries --",
        journal_line("Linux version 6.8.0", now - 90),
        journal_line(XID_79, now - 60.25),
        journal_line(three, now - 30),
        '{"__REALTIME_TIMESTAMP":"x","MESSAGE":"NVRM: Xid (PCI:0000:06:00): 31, y"}',
        '{"__REALTIME_TIMESTAMP":"1","MESSAGE":null,"PRIORITY":"NVRM: "}',
    ]
    source = KernelLogSource(places(tmp_path, fake_journalctl(tmp_path, lines)))
    _, gaps = source.read(time.time())
    assert [gap.kind for gap in gaps] in (["starting"], [])
    events, gaps = settled(source)
    assert [(event.kind, event.subject, event.source) for event in events][:2] == [
        ("xid", "0000:05:00", "journal"),
        ("off_bus", "0000:18:00.0", "journal"),
    ]
    assert abs(events[0].at - (now - 60.25)) < 1e-3
    assert gaps == []
    probe, follow = (tmp_path / "journalctl.args").read_text().splitlines()
    assert "--dmesg --boot" in probe and "--lines=1" in probe.split() and "--follow" not in probe
    assert "--dmesg --boot" in follow and "--follow" in follow
    source.close()


def test_the_journals_program_ends_with_its_source(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    source = KernelLogSource(places(tmp_path, fake_journalctl(tmp_path, [journal_line("x", time.time())])))
    settled(source)
    started = [child for child in psutil.Process().children() if child.pid not in before]
    assert len(started) == 1
    source.close()
    assert not started[0].is_running()


def test_a_journal_without_permission_leads_to_kern_log(tmp_path: Path) -> None:
    stamp = time.strftime("%b %e %H:%M:%S", time.localtime(time.time() - 60))
    old = time.strftime("%b %e %H:%M:%S", time.localtime(time.time() - 7200))
    log = tmp_path / "kern.log"
    log.write_text(
        f"{old} h1 kernel: [ 9000.000001] NVRM: Xid (PCI:0000:06:00): 48, of the boot before\n"
        f"{stamp} h1 kernel: [   12.345678] {XID_79}\n"
        f"{stamp} h1 gpud[71]: NVRM: Xid (PCI:0000:07:00): 31, what a program says\n"
    )
    program = fake_journalctl(tmp_path, said=HINT)
    source = KernelLogSource(places(tmp_path, program, boot_at=time.time() - 3600))
    events, gaps = settled(source)
    assert [(event.code, event.source) for event in events] == [(79, "kern_log")]
    assert abs(events[0].at - (time.time() - 60)) < 30
    assert gaps == []
    # It is rotated, and goes on in a new file.
    log.rename(tmp_path / "kern.log.1")
    log.write_text(f"{stamp} h1 kernel: [   13.345678] nfs: server a not responding, still trying\n")
    wait_until(lambda: [event.kind for event in source.read(time.time())[0]] == ["xid", "nfs"], what="the new file")
    source.close()


def test_a_journal_that_ends_at_once_and_nothing_else_is_a_gap(tmp_path: Path) -> None:
    program = fake_journalctl(tmp_path, said="Failed to open: whatever\n", stays=False)
    source = KernelLogSource(places(tmp_path, program))
    events, gaps = settled(source)
    assert events == []
    assert [gap.what for gap in gaps] == ["kernel_log"]
    assert "journal: no permission, or no journal: Failed to open: whatever" in gaps[0].why


def test_a_journal_that_ends_later_keeps_its_events_and_says_so(tmp_path: Path) -> None:
    program = fake_journalctl(tmp_path, [journal_line(XID_79, time.time() - 5)], stays=False)
    source = KernelLogSource(places(tmp_path, program))
    wait_until(lambda: any("started again" in gap.why for gap in source.read(time.time())[1]), what="its end")
    events, gaps = source.read(time.time())
    assert [event.code for event in events] == [79]
    assert [gap.kind for gap in gaps] == ["unknown"]
    source.close()


def test_lines_come_from_the_journal_too(tmp_path: Path) -> None:
    now = time.time()
    program = fake_journalctl(tmp_path, [journal_line(f"eth{number}: renamed", now, 6) for number in range(3)])
    lines, gap = scan(places(tmp_path, program), now + 1)
    assert gap is None
    assert [(line["pattern"], line["count"], line["level"]) for line in lines] == [("eth#: renamed", 3, 6)]
    assert "--follow" not in (tmp_path / "journalctl.args").read_text()
