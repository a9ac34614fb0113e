"""The kernel log as it is read every second: new, partial, overwritten, flooded, unreadable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.kernel_log import KernelLogSource, with_nvml_events
from mltop.probes.collect.kernel_log.readers import LogFiles
from mltop.probes.collect.kernel_log.source import LOST_SAID_S
from mltop.probes.model import MAX_KERNEL_EVENTS, Gap, KernelEvent
from tests.fakes.kmsg import BOOT_AT, FakeKmsg

XID_79 = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name=python3, MMU Fault"
QUIET = "mlx5_core 0000:5c:00.0: firmware version: 28.39.1002"
NOW = BOOT_AT + 100.0


@pytest.fixture
def kmsg(tmp_path: Path) -> Iterator[FakeKmsg]:
    made = FakeKmsg(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[FakeKmsg]:
    made = FakeKmsg(tmp_path, fifo=True)
    yield made
    made.close()


def source_of(kmsg: FakeKmsg) -> KernelLogSource:
    return KernelLogSource(kmsg.places())


def read_all(source: KernelLogSource, now: float = NOW) -> tuple[list[KernelEvent], list[Gap]]:
    """Until its history is read."""
    deadline = time.monotonic() + 20
    while True:
        events, gaps = source.read(now)
        if not any(gap.kind == "starting" for gap in gaps):
            return events, gaps
        assert time.monotonic() < deadline, gaps


def codes(events: list[KernelEvent]) -> list[int | None]:
    return [event.code for event in events]


def test_records_become_events_with_the_time_of_the_boot_added(kmsg: FakeKmsg) -> None:
    kmsg.write(QUIET, 1.0)
    kmsg.write(XID_79, 12.345678, fields=("SUBSYSTEM=pci", "DEVICE=+pci:0000:05:00.0"))
    kmsg.write(XID_31, 13.0)
    events, gaps = read_all(source_of(kmsg))
    assert codes(events) == [79, 31]
    assert events[0].at == pytest.approx(BOOT_AT + 12.345678, abs=1e-6)
    assert events[0].source == "kmsg"
    assert gaps == []


def test_a_line_that_arrives_in_two_parts_is_one_event(kmsg: FakeKmsg) -> None:
    source = source_of(kmsg)
    assert read_all(source) == ([], [])
    whole = kmsg.record(XID_79)
    kmsg.write_raw(whole[:40])
    assert source.read(NOW)[0] == []
    kmsg.write_raw(whole[40:])
    assert codes(source.read(NOW)[0]) == [79]
    assert codes(source.read(NOW)[0]) == [79]


def test_the_last_line_of_a_copied_log_needs_no_line_break(kmsg: FakeKmsg) -> None:
    kmsg.write_raw(kmsg.record(XID_79)[:-1])
    source = source_of(kmsg)
    source.read(NOW)
    assert codes(source.read(NOW)[0]) == [79]
    assert codes(source.read(NOW)[0]) == [79]


def test_a_fifo_that_says_nothing_is_not_waited_for(fifo: FakeKmsg) -> None:
    source = source_of(fifo)
    assert source.read(NOW) == ([], [])
    fifo.write(XID_79)
    assert codes(source.read(NOW)[0]) == [79]


def test_overwritten_lines_are_said_for_an_hour(kmsg: FakeKmsg) -> None:
    kmsg.write(XID_31)
    source = source_of(kmsg)
    assert read_all(source)[1] == []
    kmsg.seq += 500
    kmsg.write(XID_79)
    events, gaps = source.read(NOW)
    assert codes(events) == [31, 79]
    assert [(gap.what, gap.why[:12], gap.kind) for gap in gaps] == [("kernel_log.lost", "500 lines of", "unknown")]
    assert [gap.what for gap in source.read(NOW + LOST_SAID_S - 1)[1]] == ["kernel_log.lost"]
    assert source.read(NOW + LOST_SAID_S + 1)[1] == []


@pytest.mark.parametrize(("hours", "expected"), [(2, ["kernel_log_history"]), (30, [])])
def test_a_ring_that_does_not_reach_back_a_day_says_so(tmp_path: Path, hours: int, expected: list[str]) -> None:
    kmsg = FakeKmsg(tmp_path, seq=90_000)
    kmsg.write(QUIET, 3600.0)
    _, gaps = read_all(source_of(kmsg), BOOT_AT + 3600 + hours * 3600)
    assert [gap.what for gap in gaps] == expected


def test_garbage_between_lines_costs_only_itself(kmsg: FakeKmsg) -> None:
    kmsg.write(XID_31)
    kmsg.write_raw(os.urandom(200_000).replace(b"\n", b" ") + b"\n")
    kmsg.write_raw(b'\xff\xfe\x00\n,,,;\n9\n-1,x,y,-;z\n6,1\n\n[\n[ 12.\n<999999999999999999999>\n{"\n')
    kmsg.write(XID_79)
    events, _ = read_all(source_of(kmsg))
    assert codes(events) == [31, 79]


def test_what_is_older_than_a_day_is_not_kept(kmsg: FakeKmsg) -> None:
    kmsg.write(XID_31, 10.0)
    kmsg.write(XID_79, 3610.0)
    source = source_of(kmsg)
    day = 24 * 3600.0
    assert codes(read_all(source, BOOT_AT + 20)[0]) == [31, 79]
    assert codes(source.read(BOOT_AT + day + 20)[0]) == [79]
    assert codes(source_of(kmsg).read(BOOT_AT + day + 20)[0]) == [79]


LIMITED = "pci {bus}: 63.012 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:1a:01.0"


def test_what_is_said_when_the_machine_starts_is_kept_while_it_runs(kmsg: FakeKmsg) -> None:
    for at, bus in enumerate(("0000:1b:00.0", "0000:43:00.0", "0000:1b:00.0")):
        kmsg.write(LIMITED.format(bus=bus), 3.0 + at)
    source = source_of(kmsg)
    week = 7 * 24 * 3600.0
    for reader in (source, source, source_of(kmsg)):
        events, _ = read_all(reader, BOOT_AT + week)
        assert [(event.kind, event.subject) for event in events] == [
            ("pcie_limited", "0000:43:00.0"),
            ("pcie_limited", "0000:1b:00.0"),
        ]


def test_what_is_kept_for_ever_never_pushes_out_what_happens(kmsg: FakeKmsg) -> None:
    for number in range(300):
        kmsg.write(LIMITED.format(bus=f"0000:{number % 256:02x}:{number // 256:02x}.0"), 3.0)
    for number in range(90):
        kmsg.write(f"mlx5_core 0000:5c:00.0 ens{number}f0np0: Link down", 4.0)
    events, _ = read_all(source_of(kmsg), BOOT_AT + 10)
    assert sum(event.kind == "pcie_limited" for event in events) == MAX_KERNEL_EVENTS - 68
    assert sum(event.kind == "link" for event in events) == 68


def test_of_what_repeats_eight_are_kept_and_they_are_the_newest(kmsg: FakeKmsg) -> None:
    for second in range(30):
        kmsg.write(XID_31, float(second))
    kmsg.write(XID_79, 31.0)
    events, _ = read_all(source_of(kmsg))
    assert [round(event.at - BOOT_AT) for event in events] == [*range(22, 30), 31]


def test_flapping_links_do_not_push_out_the_one_xid(kmsg: FakeKmsg) -> None:
    kmsg.write(XID_79, 1.0)
    for number in range(400):
        kmsg.write(f"mlx5_core 0000:5c:00.0 ens{number}f0np0: Link down", 2.0 + number)
    events, _ = read_all(source_of(kmsg), BOOT_AT + 500)
    assert len(events) == MAX_KERNEL_EVENTS
    assert codes(events)[0] == 79
    assert events[-1].subject == "ens399f0np0"


def test_the_two_lines_of_a_kill_are_one_event(kmsg: FakeKmsg) -> None:
    for pid in (41, 42):
        kmsg.write(
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/job_7,task_memcg=/slurm/job_7/s0,"
            f"task=pt_data,pid={pid},uid=0"
        )
        kmsg.write(f"Memory cgroup out of memory: Killed process {pid} (pt_data) total-vm:16kB, anon-rss:8kB")
    events, _ = read_all(source_of(kmsg))
    assert [event.pid for event in events] == [41, 42]
    assert events[0].text.startswith("Memory cgroup out of memory: Killed process 41 (pt_data) total-vm:16kB")
    assert "oom_memcg=/slurm/job_7" in events[0].text


@pytest.mark.parametrize("as_one_record", [True, False])
def test_a_lost_gpu_that_is_told_over_three_lines(kmsg: FakeKmsg, as_one_record: bool) -> None:
    told = (
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    for text in ("\n".join(told),) if as_one_record else told:
        kmsg.write(text, 5.0)
    kmsg.write("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", 6.0)
    events, _ = read_all(source_of(kmsg))
    assert [(event.kind, event.subject, round(event.at - BOOT_AT)) for event in events] == [
        ("off_bus", "0000:18:00.0", 5)
    ]


def test_a_flood_is_read_in_parts_and_kept_in_bounds(kmsg: FakeKmsg) -> None:
    quiet, xid = f"{QUIET}{' ' * 40}\n".encode(), f"{XID_31}\n".encode()
    kmsg.write_raw(b"".join(b"6,%d,1000000,-;%s" % (seq, quiet) for seq in range(50_000)))
    kmsg.write_raw(b"".join(b"4,%d,%d,-;%s" % (seq, 20_000_000 + seq, xid) for seq in range(50_000, 53_000)))
    kmsg.seq = 53_000
    kmsg.write(XID_79, 30.0)
    source = source_of(kmsg)
    events, gaps = source.read(NOW)
    assert [gap.kind for gap in gaps] == ["starting"], "5 MB are not read at once"
    events, gaps = read_all(source)
    assert codes(events) == [31] * 8 + [79]
    assert gaps == []


def test_dev_null_in_place_of_the_log_is_said(tmp_path: Path) -> None:
    events, gaps = KernelLogSource(LogFiles("/dev/null", "", str(tmp_path / "kern.log"))).read(NOW)
    assert events == []
    assert [(gap.what, gap.kind) for gap in gaps] == [("kernel_log", "unknown")]
    assert "/dev/null: is not the kernel's log (a container?)" in gaps[0].why
    assert "Xid history before start unknown" in gaps[0].why
    assert "--device /dev/kmsg" in gaps[0].fix


def test_nothing_is_read_after_close(kmsg: FakeKmsg) -> None:
    kmsg.write(XID_79)
    source = source_of(kmsg)
    read_all(source)
    source.close()
    source.close()
    assert codes(source.read(NOW)[0]) == [79]


def test_this_machines_own_log_is_read_or_said_to_be_unreadable() -> None:
    source = KernelLogSource()
    events, gaps = source.read(time.time())
    source.close()
    assert all(event.at <= time.time() for event in events)
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        assert [gap.what for gap in gaps] == ["kernel_log"]
    else:
        assert not [gap for gap in gaps if gap.what == "kernel_log" and gap.kind == "unknown"]


def test_a_copied_tree_has_its_own_log_and_boot_time(tmp_path: Path) -> None:
    for directory in ("dev", "proc"):
        (tmp_path / directory).mkdir()
    booted = round(time.time()) - 1000
    (tmp_path / "proc/stat").write_text(f"cpu 1 2 3 4\nbtime {booted}\n")
    (tmp_path / "dev/kmsg").write_text(f"[   12.500000] {XID_79}\n")
    code = (
        "import json, time\n"
        "from mltop.probes.collect.kernel_log import KernelLogSource, kernel_lines\n"
        "events, gaps = KernelLogSource().read(time.time())\n"
        "print(json.dumps([[vars(one) for one in events], [vars(one) for one in gaps], kernel_lines()]))\n"
    )
    environ = {**os.environ, "MLTOP_SYSROOT": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    events, gaps, listed = json.loads(done.stdout)
    assert [(event["code"], event["at"]) for event in events] == [(79, booted + 12.5)]
    assert gaps == [] and listed["gap"] is None
    assert [line["count"] for line in listed["lines"]] == [1]


def nvml(code: int, at: float, gpu: str = "00000000:05:00.0") -> KernelEvent:
    return KernelEvent(at, "xid", gpu, code, source="nvml")


@pytest.mark.parametrize(
    ("event", "is_added"),
    [
        (nvml(79, 104.9), False),
        (nvml(79, 105.1), True),
        (nvml(119, 100.0), True),
        (nvml(79, 100.0, "00000000:06:00.0"), True),
        (nvml(79, 100.0, "00000001:05:00.0"), True),
    ],
)
def test_nvml_events_that_the_log_has_are_not_told_twice(event: KernelEvent, is_added: bool) -> None:
    log = [KernelEvent(100.0, "xid", "0000:05:00", 79), KernelEvent(104.0, "nfs", "a")]
    merged = with_nvml_events(log, [event])
    assert (event in merged) is is_added
    assert [one.at for one in merged] == sorted(one.at for one in merged)
    assert len(log) == 2


def test_nvml_events_do_not_burst_the_bound() -> None:
    log = [KernelEvent(float(at), "link", f"eth{at}") for at in range(MAX_KERNEL_EVENTS)]
    merged = with_nvml_events(log, [nvml(79, 3.5), nvml(48, 4.5)])
    assert len(merged) == MAX_KERNEL_EVENTS
    assert {79, 48} <= {event.code for event in merged}
