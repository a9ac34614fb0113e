"""Parts of the host that are a few files each: pressure, swapping, memory errors, huge pages, settings."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.collect.host.machine import (
    MODULES,
    SMALL_FILES,
    driver_version,
    judged,
    read_clock,
    read_governor,
    read_modules,
    read_uptime,
)
from mltop.probes.collect.host.memory import Swapping, read_huge_pages, read_memory_errors
from mltop.probes.collect.host.part import Part, Reading
from mltop.probes.collect.host.rates import PressureStall

PAGE = os.sysconf("SC_PAGE_SIZE")
LOAD, OPEN_FILES, *SINGLE_FIELDS = SMALL_FILES


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def kinds(reading: Reading) -> dict[str, str]:
    return {gap.what: gap.kind for gap in reading.gaps}


def psi(some: object, full: object) -> str:
    tail = "avg60=0.00 avg300=0.00 total=1"
    return f"some avg10={some} {tail}\nfull avg10={full} {tail}\n"


PRESSURE = {
    "proc/pressure/cpu": psi("20.50", "0.00"),
    "proc/pressure/memory": psi("1.00", "0.50"),
    "proc/pressure/io": psi("100.00", "99.99"),
}


def pressure(root: str) -> tuple[dict[str, Any], dict[str, str]]:
    reading = PressureStall(root).read(0.0, ())
    return asdict(reading.values["pressure"]) if reading.values else {}, kinds(reading)


def test_pressure_is_the_share_of_the_last_ten_seconds(tmp_path: Path) -> None:
    expected = {"cpu_some": 0.205, "memory_some": 0.01, "memory_full": 0.005, "io_some": 1.0, "io_full": 0.9999}
    assert pressure(write(tmp_path, PRESSURE)) == (pytest.approx(expected), {})


@pytest.mark.parametrize(
    "text", ["", "some avg10=nan avg60=0\n", "some avg10=", "full avg10=1.00 avg60=0.00\n", "\xff\0"]
)
def test_a_strange_pressure_file_costs_itself(tmp_path: Path, text: str) -> None:
    values, gaps = pressure(write(tmp_path, {**PRESSURE, "proc/pressure/cpu": text}))
    assert (values["cpu_some"], values["io_some"]) == (None, 1.0)
    assert gaps == {"host.pressure.cpu": "unknown"}


def test_a_kernel_without_pressure_misses_nothing(tmp_path: Path) -> None:
    assert pressure(str(tmp_path)) == ({}, {"host.pressure": "unsupported"})


def test_swapping_is_a_rate_and_kills_are_a_counter(tmp_path: Path) -> None:
    part = Swapping(write(tmp_path, {"proc/vmstat": "a 1\npswpin 100\npswpout 50\noom_kill 3\n"}))
    first = part.read(10.0, ())
    assert first.values == {"oom_kills": 3}
    assert kinds(first) == {"host.{swap_in_bytes_per_s,swap_out_bytes_per_s}": "starting"}
    write(tmp_path, {"proc/vmstat": "a 1\npswpin 110\npswpout 40\noom_kill 4\n"})
    second = part.read(15.0, ())
    assert second.values == {"oom_kills": 4, "swap_in_bytes_per_s": 2.0 * PAGE, "swap_out_bytes_per_s": 0.0}
    assert second.gaps == []


@pytest.mark.parametrize(
    ("text", "gaps"),
    [
        ("pswpin 1\npswpout 1\n", {"host.oom_kills": "unsupported"}),
        ("oom_kill 1\n", {"host.{swap_in_bytes_per_s,swap_out_bytes_per_s}": "unsupported"}),
    ],
)
def test_what_vmstat_does_not_have(tmp_path: Path, text: str, gaps: dict[str, str]) -> None:
    part = Swapping(write(tmp_path, {"proc/vmstat": text}))
    part.read(0.0, ())
    assert kinds(part.read(5.0, ())) == gaps


EDAC = "sys/devices/system/edac/mc"


@pytest.mark.parametrize(
    ("files", "values", "gaps"),
    [
        ({"mc0/ce_count": "3\n", "mc0/ue_count": "0", "mc1/ce_count": "4", "mc1/ue_count": "1"}, (7, 1), {}),
        ({"power/x": ""}, (None, None), {"host.{memory_errors_corrected,memory_errors_uncorrected}": "unsupported"}),
        ({"mc0/ce_count": "3", "mc1/ce_count": "x"}, (None, None),
         {"host.memory_errors_corrected": "unknown", "host.memory_errors_uncorrected": "unknown"}),
    ],
)  # fmt: skip
def test_memory_errors(tmp_path: Path, files: dict[str, str], values: object, gaps: dict[str, str]) -> None:
    reading = read_memory_errors(write(tmp_path, {f"{EDAC}/{name}": text for name, text in files.items()}))
    found = (reading.values.get("memory_errors_corrected"), reading.values.get("memory_errors_uncorrected"))
    assert (found, kinds(reading)) == (values, gaps)


HUGE = "sys/kernel/mm/hugepages/hugepages-"
HUGE_GAP = "host.{huge_pages_total_bytes,huge_pages_free_bytes}"


@pytest.mark.parametrize(
    ("files", "values", "gaps"),
    [
        (
            {
                f"{HUGE}2048kB/nr_hugepages": "10",
                f"{HUGE}2048kB/free_hugepages": "4",
                f"{HUGE}1048576kB/nr_hugepages": "2",
                f"{HUGE}1048576kB/free_hugepages": "2",
            },
            ((20 << 20) + (2 << 30), (8 << 20) + (2 << 30)),
            {},
        ),
        (
            {"proc/meminfo": "MemTotal: 1 kB\nHugePages_Total: 3\nHugePages_Free: 1\nHugepagesize: 2048 kB\n"},
            (6 << 20, 2 << 20),
            {},
        ),
        ({f"{HUGE}2048kB/nr_hugepages": "10"}, (None, None), {HUGE_GAP: "unknown"}),
        ({"proc/meminfo": "MemTotal: 1 kB\n"}, (None, None), {HUGE_GAP: "unsupported"}),
    ],
)
def test_huge_pages(tmp_path: Path, files: dict[str, str], values: object, gaps: dict[str, str]) -> None:
    reading = read_huge_pages(write(tmp_path, files))
    found = (reading.values.get("huge_pages_total_bytes"), reading.values.get("huge_pages_free_bytes"))
    assert (found, kinds(reading)) == (values, gaps)


@pytest.mark.parametrize(
    ("governors", "told"),
    [
        (["performance", "performance"], "performance"),
        (["performance", "powersave"], "powersave"),
        (["schedutil", "ondemand"], "ondemand"),
        (["performance", "new-one"], "new-one"),
        (["performance", ""], "performance"),
        ([""], None),
    ],
)
def test_the_governor_that_saves_most_is_told(tmp_path: Path, governors: list[str], told: str | None) -> None:
    names = [f"sys/devices/system/cpu/cpufreq/policy{n}/scaling_governor" for n in range(len(governors))]
    reading = read_governor(write(tmp_path, dict(zip(names, governors, strict=True))))
    assert reading.values.get("governor") == told
    assert kinds(reading) == ({} if told else {"host.governor": "unknown"})


def test_without_frequency_control_no_governor_is_missed(tmp_path: Path) -> None:
    assert kinds(read_governor(str(tmp_path))) == {"host.governor": "unsupported"}


def test_files_that_are_one_field_each(tmp_path: Path) -> None:
    root = str(
        write(
            tmp_path,
            {
                "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
                "proc/sys/kernel/yama/ptrace_scope": "1\n",
                "sys/fs/lustre/health_check": "NOT HEALTHY\n",
            },
        )
    )
    expected = ({"clocksource": "hpet"}, {"ptrace_scope": 1}, {"lustre_health": "NOT HEALTHY"})
    assert [file.part(root)(0.0, ()) for file in SINGLE_FIELDS] == [Reading(values) for values in expected]
    (tmp_path / "sys/fs/lustre/health_check").unlink()
    (tmp_path / "sys/devices/system/clocksource/clocksource0/current_clocksource").unlink()
    write(tmp_path, {"proc/sys/kernel/yama/ptrace_scope": "strange"})
    gaps = [kinds(file.part(root)(0.0, ())) for file in SINGLE_FIELDS]
    assert gaps == [
        {"host.clocksource": "unknown"},
        {"host.ptrace_scope": "unknown"},
        {"host.lustre_health": "unsupported"},
    ]


@pytest.mark.parametrize("text", ["", "1 2", "a b c", "1 2 3 4"])
def test_open_files(tmp_path: Path, text: str) -> None:
    part = OPEN_FILES.part(write(tmp_path, {"proc/sys/fs/file-nr": "1000\t100\t5000\n"}))
    assert part(0.0, ()).values == {"open_files": 900, "open_files_max": 5000}
    write(tmp_path, {"proc/sys/fs/file-nr": text})
    assert kinds(part(0.0, ())) == {"host.{open_files,open_files_max}": "unknown"}


CLOCK = "host.{clock_synchronized,clock_error_s}"


@pytest.mark.parametrize(
    ("status", "in_container", "values", "gaps"),
    [
        (0x2001, False, {"clock_synchronized": True, "clock_error_s": 0.0015}, {}),
        (0x2001, True, {"clock_synchronized": True, "clock_error_s": 0.0015}, {}),
        (0x40, False, {"clock_synchronized": False}, {"host.clock_error_s": "unsupported"}),
        (0x40, True, {}, {CLOCK: "unknown"}),
    ],
)
def test_what_adjtimex_says(status: int, in_container: bool, values: dict[str, Any], gaps: dict[str, str]) -> None:
    reading = judged(status, 1500, in_container)
    assert (reading.values, kinds(reading)) == (values, gaps)


def test_this_machines_clock_is_asked_and_a_copys_is_not(tmp_path: Path) -> None:
    here = read_clock("", False)
    assert here.values.get("clock_synchronized") in (True, False)
    assert kinds(read_clock(str(tmp_path), False)) == {CLOCK: "unsupported"}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 01:01:01 UTC 2025", "570.86.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x@y)", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  550.54\nGCC version: 12.3.0", "550.54"),
        ("strange", None),
        ("", None),
    ],
)
def test_driver_versions(line: str, version: str | None) -> None:
    assert driver_version(line) == version


def test_modules(tmp_path: Path) -> None:
    root = write(tmp_path, {"sys/module/nvidia/version": "570.86.15\n", "sys/module/ib_uverbs/x": ""})
    reading = read_modules(root)
    assert reading.values["modules"] == {name: name in ("nvidia", "ib_uverbs") for name in MODULES}
    assert (reading.values["nvidia_driver"], reading.gaps) == ("570.86.15", [])
    empty = read_modules(str(tmp_path / "none"))
    assert kinds(empty) == {"host.modules": "unknown", "host.nvidia_driver": "unsupported"}


@pytest.mark.parametrize(
    ("part", "field", "path"),
    [(lambda *_: read_uptime(""), "uptime_s", "/proc/uptime"), (LOAD.part(""), "load_5m", "/proc/loadavg")],
)
def test_this_machines_own(part: Part, field: str, path: str) -> None:
    told = [float(word) for word in Path(path).read_text().split()[:2]]
    assert part(0.0, ()).values[field] == pytest.approx(told[field != "uptime_s"], abs=60)
