"""The memory probe's measurement without torch: a memory whose speed is known, sizes that fit, orders that do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mltop.probes
from mltop.probes.active.buffers import Options, fitting, options_of, room_on_gpu
from mltop.probes.active.device import GPU_CAP_BYTES, CpuTimer
from mltop.probes.active.transfers import WARM_COPIES, measure
from mltop.probes.model.probe import MemoryResult

MIB, GIB = 1 << 20, 1 << 30
IMPORT_PATH = str(Path(mltop.probes.__file__).parent.parent.parent)


class Took(CpuTimer):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self) -> float:
        return self._seconds


class Memory:
    """Takes ``times_s`` for its copies, the last one again and again. Nothing waits."""

    size_bytes = GIB

    def __init__(self, *times_s: float, whole: bool = True) -> None:
        self._times_s = list(times_s)
        self._whole = whole
        self.made = 0

    def start(self, count: int) -> list[Took]:
        found = []
        for _ in range(count):
            found.append(Took(self._times_s[min(self.made, len(self._times_s) - 1)]))
            self.made += 1
        return found

    def intact(self) -> bool:
        return self._whole


def measured(copied: Memory, iterations: int, told: list[float] | None = None) -> MemoryResult:
    result = MemoryResult()
    measure(copied, Options(iterations=iterations, warm_s=0), result, ([] if told is None else told).append)
    return result


def test_a_copied_byte_counts_twice() -> None:
    found = measured(Memory(0.01), 20)
    assert found.iterations == 20 and found.intact
    assert found.copy_bytes_per_s == pytest.approx(2 * GIB / 0.01)
    assert found.copy_best_bytes_per_s == pytest.approx(2 * GIB / 0.01)


def test_the_first_copies_do_not_count_and_the_mean_is_that_of_the_bytes() -> None:
    copied = Memory(*[5.0] * WARM_COPIES, *[0.02] * 10, 0.01)
    found = measured(copied, 20)
    assert found.copy_bytes_per_s == pytest.approx(20 * 2 * GIB / 0.3)
    assert found.copy_best_bytes_per_s == pytest.approx(2 * GIB / 0.01)
    assert copied.made == 20 + WARM_COPIES


def test_damage_is_told() -> None:
    assert measured(Memory(0.01, whole=False), 1).intact is False


def test_progress_reaches_the_end() -> None:
    told: list[float] = []
    measured(Memory(0.01), 12, told)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) == 3


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ({}, Options(0, 20, 0.5)),
        ({"size_bytes": MIB, "iterations": 5, "warm_s": 0}, Options(MIB, 5, 0.0)),
        ({"something": "else"}, Options()),
    ],
)
def test_options(told: dict[str, Any], options: Options) -> None:
    assert options_of(told) == options


@pytest.mark.parametrize(
    "told",
    [
        {"size_bytes": "1G"},
        {"size_bytes": -1},
        {"size_bytes": True},
        {"size_bytes": 100},
        {"iterations": 0},
        {"iterations": 1.5},
        {"iterations": 10**9},
        {"warm_s": "long"},
        {"warm_s": 100},
        {"warm_s": -1},
    ],
)
def test_wrong_options_are_refused_with_their_name(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(told))):
        options_of(told)


@pytest.mark.parametrize(
    ("wanted", "space", "buffers", "fits"),
    [
        (GIB, 4 * GIB, 2, GIB),
        (GIB, 2 * GIB, 2, GIB),
        (GIB, 2 * GIB - 1, 2, GIB // 2),
        (GIB, 100 * MIB, 2, 32 * MIB),
        (GIB, MIB, 2, 0),
        (GIB, 0, 2, 0),
        (GIB, -5, 2, 0),
        (256 * MIB, 4 * GIB, 16, 256 * MIB),
        (256 * MIB, 2 * GIB, 16, 128 * MIB),
    ],
)
def test_sizes_fit_the_room(wanted: int, space: int, buffers: int, fits: int) -> None:
    assert fitting(wanted, space, buffers) == fits


def test_a_probe_takes_four_gib_of_a_gpu_at_most() -> None:
    assert room_on_gpu(80 * GIB) < GPU_CAP_BYTES == 4 * GIB
    assert room_on_gpu(3 * GIB) < 3 * GIB
    assert fitting(GIB, room_on_gpu(80 * GIB), 2) == GIB


def ask(code: str, sysroot: Path) -> Any:
    """``paths`` reads MLTOP_SYSROOT when it is imported: a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys; sys.path.insert(0, {IMPORT_PATH!r})\n{code}"],
        env={**os.environ, "MLTOP_SYSROOT": str(sysroot)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def cache(sysroot: Path, cpu: int, **indexes: tuple[int, str, str, str]) -> None:
    """index0=(level, type, size, shared_cpu_list)"""
    for index, values in indexes.items():
        folder = sysroot / f"sys/devices/system/cpu/cpu{cpu}/cache/{index}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(f"{value}\n")


CACHES = "from mltop.probes.active import host\nprint(json.dumps(host.last_level_cache_bytes()))"


@pytest.mark.parametrize(("first", "others", "caches"), [("0-7", "8-15", 2), ("0-15", "0-15", 1)])
def test_last_level_caches_are_counted_once_for_those_who_share_one(
    tmp_path: Path, first: str, others: str, caches: int
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for cpu in cpus:
        cache(
            tmp_path,
            cpu,
            index0=(1, "Data", "48K", str(cpu)),
            index1=(1, "Instruction", "32K", str(cpu)),
            index2=(2, "Unified", "2048K", str(cpu)),
            index3=(3, "Unified", "32768K", first if cpu == cpus[0] else others),
        )
    assert ask(CACHES, tmp_path) == min(caches, len(cpus)) * 32 * MIB


def test_caches_that_nobody_tells_are_unknown(tmp_path: Path) -> None:
    assert ask(CACHES, tmp_path) is None


def test_a_quarter_of_the_hosts_available_memory(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   4194304 kB\n")
    code = "from mltop.probes.active import buffers\nprint(json.dumps(buffers.room_on_host()))"
    assert ask(code, tmp_path) == GIB
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_DATA, ({600 * MIB}, {600 * MIB}))\n{code}"
    assert ask(limited, tmp_path) == 300 * MIB


def said(order: str) -> list[dict[str, Any]]:
    """The events of a process that gets this line and then nothing more; it ends by itself or at the end of stdin."""
    code = f"import sys; sys.path.insert(0, {IMPORT_PATH!r}); from mltop.probes.active.transfers import main; main()"
    # -S: without site-packages, so without torch
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(order)
    process.stdin.flush()
    lines = process.stdout.read().splitlines()
    process.stdin.close()
    process.wait()
    assert process.stderr is not None and process.stderr.read() == ""
    return [json.loads(line) for line in lines]


def order(kind: str = "memory", devices: int = 1, of: str = "cpu", **fields: Any) -> str:
    uuid = "cpu" if of == "cpu" else "GPU-1"
    return json.dumps({"kind": kind, "node": "n1", "devices": [{"uuid": uuid, "kind": of}] * devices, **fields}) + "\n"


@pytest.mark.parametrize("kind", ["memory", "copies"])
def test_a_python_without_torch_is_a_sentence(kind: str) -> None:
    events = said(order(kind, of="gpu"))
    assert [one["event"] for one in events] == ["stage", "failed"]
    assert events[0]["stage"] == "import torch"
    assert "torch does not import: No module named 'torch'" in events[1]["why"] and events[1]["fix"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not JSON\n", "cannot be done"),
        (order(options={"iterations": 0}), "iterations is 0"),
        (order(devices=2), "one device in a process, not 2"),
        (order(devices=0), "one device in a process, not 0"),
        (order(nonsense=1), "nonsense"),
    ],
)
def test_orders_that_cannot_be_done(line: str, why: str) -> None:
    (event,) = said(line)
    assert event["event"] == "failed" and why in event["why"]


def test_copies_need_a_gpu() -> None:
    (event,) = said(order("copies"))
    assert event["event"] == "failed" and event["why"] == "no GPU here: copies need one"


def test_copies_of_mig_instances_are_refused_by_name() -> None:
    (event,) = said(order("copies", of="mig"))
    assert event["event"] == "failed" and "MIG" in event["why"] and event["device"] == "GPU-1"
