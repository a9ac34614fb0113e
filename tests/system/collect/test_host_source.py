"""Host basics: the types of every field, rates between two reads, and copied trees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from mltop.probes.collect.host import HostSource
from mltop.probes.collect.host.part import Reading, Scheduled, folded
from mltop.probes.model import Gap, HostSample, to_json

RATES = {
    "ports_rx_bytes_per_s",
    "ports_tx_bytes_per_s",
    "cpu_fraction",
    "network_rx_bytes_per_s",
    "network_tx_bytes_per_s",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
}
BRACES = re.compile(r"host\.\{(.*)\}|host\.([^.]*)")


@pytest.fixture
def source() -> Iterator[HostSource]:
    opened = HostSource()
    yield opened
    opened.close()


def fields_named(gaps: list[Gap]) -> set[str]:
    """All fields that the gaps are about."""
    named: set[str] = set()
    for gap in gaps:
        match = BRACES.match(gap.what)
        assert match, gap.what
        named.update((match.group(1) or match.group(2)).split(","))
    return named


def test_the_first_sample_has_everything_but_rates_and_says_so(source: HostSource) -> None:
    sample, gaps = source.read(0.0)
    missing = {item.name for item in fields(sample) if getattr(sample, item.name) is None}
    assert missing >= RATES
    assert missing - RATES <= fields_named(gaps)
    assert {gap.what: gap.kind for gap in gaps if gap.why == "first sample: rates need two"} == {
        "host.cpu": "starting",
        "host.{network,disk}": "starting",
    }
    assert sample.hostname == os.uname().nodename and sample.kernel == os.uname().release
    assert 0 < (sample.memory_available_bytes or 0) <= (sample.memory_total_bytes or 0)
    assert (sample.cpu_count or 0) >= len(os.sched_getaffinity(0))
    assert sample.zombies is not None and sample.modules and sample.clocksource
    assert "/" in [filesystem.mount for filesystem in sample.filesystems]


def test_every_value_is_of_its_type(source: HostSource) -> None:
    source.read(0.0)
    sample, _ = source.read(61.0)
    decoded = msgspec.json.decode(to_json(sample), type=HostSample)
    assert decoded == sample
    assert sample.cpu_fraction is not None and sample.swap_in_bytes_per_s is not None


TREE = {
    "proc/2/stat": "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 1 0\n",
    "proc/sys/kernel/hostname": "gpu-17\n",
    "proc/sys/kernel/osrelease": "6.8.0-fake\n",
    "proc/uptime": "3600.50 7000.00\n",
    "proc/loadavg": "1.00 2.00 3.50 1/300 4711\n",
    "proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 50 0 50 400 0 0 0 0 0 0\n"
    "cpu1 50 0 50 400 0 0 0 0 0 0\nbtime 1700000000\n",
    "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 200 kB\nMemAvailable: 600 kB\nBuffers: 0 kB\nCached: 0 kB\n"
    "Shmem: 0 kB\nActive: 0 kB\nInactive: 0 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n",
    "proc/net/dev": "Inter-| Receive | Transmit\n face |bytes\n"
    "    lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n  eth0: 1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
    " bond0: 1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n",
    "proc/diskstats": "259 0 nvme0n1 1 0 10 1 1 0 20 1 0 1 1\n253 0 dm-0 1 0 10 1 1 0 20 1 0 1 1\n",
    "sys/class/net/eth0/device/vendor": "x",
    "sys/class/net/bond0/mtu": "1500",
    "sys/block/nvme0n1/device/model": "x",
    "sys/block/dm-0/size": "1",
    "dev/shm/x": "",
    "proc/vmstat": "nr_free_pages 1\npswpin 100\npswpout 50\noom_kill 3\n",
    "proc/self/mounts": "/dev/vda /data ext4 rw 0 0\n",
    "proc/self/cgroup": "0::/\n",
    "proc/sys/fs/file-nr": "1000\t0\t9000\n",
    "sys/class/dmi/id/sys_vendor": "Supermicro\n",
    "sys/module/nvidia/version": "570.86.15\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "data/x": "",
}
LATER = {
    "proc/stat": "cpu  150 0 150 900 0 0 0 0 0 0\n",
    "proc/net/dev": TREE["proc/net/dev"].replace("1000 1", "3000 1").replace(" 500 1", " 1500 1"),
    "proc/diskstats": TREE["proc/diskstats"].replace("0 10 1", "0 30 1").replace("0 20 1", "0 60 1"),
    "proc/vmstat": TREE["proc/vmstat"].replace("pswpin 100", "pswpin 120"),
}
PROGRAM = """
import json, sys
from pathlib import Path
from mltop.probes.collect.host import HostSource
from mltop.probes.model import to_json
later = json.loads(sys.argv[2])
source = HostSource()
reads = [source.read(10.0)]
for name, text in later.items():
    (Path(sys.argv[1]) / name).write_text(text)
reads.append(source.read(float(sys.argv[3])))
source.close()
reads[-1] = ({**vars(reads[-1][0]), "psutil": getattr(sys.modules.get("psutil"), "__file__", "")}, reads[-1][1])
print(to_json(reads))
"""


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def two_reads(root: Path, later: dict[str, str], second_at: float = 12.0, path: Path | None = None) -> Any:
    """``path``: where modules are looked for first. The last sample also tells where psutil is."""
    found = [str(path), *sys.path] if path else sys.path
    environ = {**os.environ, "MLTOP_SYSROOT": str(root), "PYTHONPATH": os.pathsep.join(found)}
    command = [sys.executable, "-c", PROGRAM, str(root), json.dumps(later), str(second_at)]
    result = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_copied_tree_gives_its_values_and_rates(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    (_first, _), (sample, gaps) = two_reads(tmp_path, LATER)
    assert [gap for gap in gaps if gap["kind"] == "unknown"] == []
    expected = {
        "hostname": "gpu-17",
        "kernel": "6.8.0-fake",
        "uptime_s": 3600.5,
        "cpu_count": 2,
        "cpu_fraction": 0.5,
        "load_1m": 1.0,
        "load_5m": 2.0,
        "load_15m": 3.5,
        "memory_total_bytes": 1000 * 1024,
        "memory_available_bytes": 600 * 1024,
        "swap_total_bytes": 100 * 1024,
        "swap_used_bytes": 40 * 1024,
        # bond0 and dm-0 repeat what eth0 and nvme0n1 carried
        "network_rx_bytes_per_s": 1000.0,
        "network_tx_bytes_per_s": 500.0,
        "disk_read_bytes_per_s": 20 * 512 / 2,
        "disk_write_bytes_per_s": 40 * 512 / 2,
    }
    assert {name: sample[name] for name in expected} == expected
    assert sample["shm_total_bytes"] > 0


@pytest.mark.parametrize("stat", ["cpu  1 2 3 4\n", "cpu\n", "cpu  a b c d e f g h i j\n", "", "\0\xff\n"])
def test_a_broken_stat_costs_the_cpu_share_only(tmp_path: Path, stat: str) -> None:
    write_tree(tmp_path, {**TREE, "proc/stat": stat})
    _, (sample, gaps) = two_reads(tmp_path, {})
    assert sample["cpu_fraction"] is None
    assert sample["memory_total_bytes"] == 1000 * 1024 and sample["network_rx_bytes_per_s"] == 0.0
    told = {gap["what"]: gap["why"] for gap in gaps if gap["kind"] == "unknown"}
    assert told.keys() == {"host.cpu", "host.cpu_count"}
    assert told["host.cpu"].startswith("cannot be read: ")


def test_numbers_that_json_does_not_have_are_unknown(tmp_path: Path) -> None:
    write_tree(tmp_path, {**TREE, "proc/uptime": "nan 1\n", "proc/loadavg": "inf 1 1\n"})
    _, (sample, gaps) = two_reads(tmp_path, LATER)
    assert sample["uptime_s"] is None and sample["load_1m"] is None
    assert {gap["what"] for gap in gaps if gap["kind"] == "unknown"} == {"host.uptime", "host.load"}


def test_a_counter_that_starts_anew_is_no_negative_rate(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    fallen = TREE["proc/net/dev"].replace("1000 1", "10 1").replace(" 500 1", " 600 1")
    _, (sample, _) = two_reads(tmp_path, {"proc/net/dev": fallen})
    assert (sample["network_rx_bytes_per_s"], sample["network_tx_bytes_per_s"]) == (0.0, 50.0)


def test_what_cannot_be_read_is_unknown_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    write_tree(tmp_path, {name: text for name, text in TREE.items() if name.startswith(("sys/class/net", "sys/block"))})
    _, (sample, gaps) = two_reads(tmp_path, {})
    known = {name for name, value in sample.items() if value not in (None, [], {})} - {"psutil"}
    assert known == {"hostname", "kernel", "pressure", "zombies"} and sample["hostname"] == sample["kernel"] == ""
    assert set(sample["pressure"].values()) == {None}
    told = {gap["what"] for gap in gaps if gap["kind"] == "unknown"}
    assert told == {
        "host.hostname",
        "host.kernel",
        "host.cpu_count",
        "host.uptime",
        "host.load",
        "host.shm",
        "host.memory",
        "host.swap",
        "host.cpu",
        "host.network",
        "host.disk",
        "host.{swap_in_bytes_per_s,swap_out_bytes_per_s,oom_kills}",
        "host.filesystems",
        "host.{open_files,open_files_max}",
        "host.modules",
        "host.clocksource",
        "host.is_virtual",
        "host.is_confined",
        "host.sees_all_processes",
    }
    assert all(gap["why"] for gap in gaps)
    absent = [gap for gap in gaps if gap["kind"] == "unsupported"]
    assert len(absent) == 1  # all in one line


def test_fields_that_are_read_seldom_stand_in_between(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    later = {
        "proc/sys/fs/file-nr": "2000 0 9000\n",
        "proc/loadavg": "9 9 9 1/1 1\n",
        "proc/vmstat": LATER["proc/vmstat"],
    }
    _, (sample, _) = two_reads(tmp_path, later)
    assert (sample["open_files"], sample["load_1m"]) == (1000, 1.0)
    # A first rate does not wait for its turn.
    assert sample["swap_in_bytes_per_s"] == 20 * os.sysconf("SC_PAGE_SIZE") / 2
    write_tree(tmp_path, TREE)
    _, (sample, _) = two_reads(tmp_path, later, 20.0)
    assert (sample["open_files"], sample["load_1m"]) == (2000, 9.0)


def test_without_psutil_its_fields_are_unknown_and_the_others_are_not(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", TREE)
    write_tree(tmp_path / "first", {"psutil/__init__.py": "raise ImportError('built for another Python')"})
    _, (sample, gaps) = two_reads(tmp_path / "tree", LATER, path=tmp_path / "first")
    lost = RATES | {"memory_total_bytes", "memory_available_bytes"}
    assert {sample[name] for name in lost} == {None}
    assert (sample["swap_used_bytes"], sample["load_1m"], sample["cpu_count"]) == (40 * 1024, 1.0, 2)
    (gap,) = [gap for gap in gaps if gap["what"] == "host"]
    assert (gap["kind"], gap["fix"]) == ("unknown", "python3 -m pip install psutil")
    assert gap["why"] == "psutil cannot be imported: built for another Python"


def test_psutil_out_of_a_zip(tmp_path: Path) -> None:
    """Its compiled part comes through memory, as where nothing may be executed."""
    folder = Path(psutil.__file__).parent
    write_tree(tmp_path / "tree", TREE)
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as bundle:
        for file in [*folder.glob("*.py"), *folder.glob("*.so")]:
            bundle.write(file, f"psutil/{file.name}")
    _, (sample, gaps) = two_reads(tmp_path / "tree", LATER, path=tmp_path / "bundle.zip")
    assert [gap for gap in gaps if gap["what"] == "host"] == []
    assert (sample["cpu_fraction"], sample["memory_total_bytes"]) == (0.5, 1000 * 1024)
    assert sample["psutil"].startswith(str(tmp_path / "bundle.zip"))


def test_memory_and_traffic_are_read_every_two_seconds(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    source = HostSource(str(tmp_path))
    later = {**LATER, "proc/meminfo": TREE["proc/meminfo"].replace("600 kB", "500 kB")}
    found = []
    try:
        for now in (10.0, 11.0, 12.0, 13.0):
            if now == 12.0:
                write_tree(tmp_path, later)
            sample, _ = source.read(now)
            found.append((sample.cpu_fraction, sample.memory_available_bytes, sample.network_rx_bytes_per_s))
    finally:
        source.close()
    kib = 1024
    # Traffic needed a second look at once; its next rate is over the real time since then.
    assert found[2:] == [(0.5, 500 * kib, 0.0), (None, 500 * kib, 2000 / 2)]
    assert [memory for _, memory, _ in found[:2]] == [600 * kib] * 2


def failing(now: float, ranks: object) -> Reading:
    raise ZeroDivisionError("odd")


def starting(now: float, ranks: object) -> Reading:
    return Reading().lack("odd", why="later", kind="starting") if now < 2 else Reading()


def test_what_only_starts_is_read_again_at_the_next_sample() -> None:
    part = Scheduled(("odd",), 5, starting)
    assert [len(part.reading(now, ()).gaps) for now in (0.0, 1.0, 2.0)] == [1, 1, 0]
    assert part.reading(2.0, ()) is part.reading(6.0, ())


def test_a_part_that_fails_costs_its_own_fields_and_is_tried_again() -> None:
    part = Scheduled(("odd",), 5, failing)
    assert part.reading(0.0, ()).gaps == [
        Gap("host.odd", "the collector failed: ZeroDivisionError: odd", "please report this")
    ]
    assert part.reading(1.0, ()) is part.reading(4.0, ())
    assert part.reading(5.0, ()) is not part.reading(10.0, ())


def test_what_a_machine_does_not_have_is_one_gap() -> None:
    kept = Gap("host.load", "broken")
    one = Gap("host.governor", "none", kind="unsupported")
    two = Gap("host.{a,b}", "neither", kind="unsupported")
    assert folded([kept, one]) == [kept, one]
    assert folded([one, kept, two]) == [
        kept,
        Gap("host.{governor,a,b}", "governor: none; a, b: neither", "", "unsupported"),
    ]
