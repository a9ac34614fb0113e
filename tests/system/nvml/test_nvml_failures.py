"""NVML against the fake library: GPUs that are lost, drivers that are missing, calls that never return."""

from __future__ import annotations

import ctypes.util
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.nvml.faults import permission_fix
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import Start, all_ok, child_pid, fake_here, starter, states, tick_until, whys


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 3)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    yield from starter(fake)


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("*", 15, "GPU is lost (NVML error 15: GPU is lost)"),
        ("nvmlDeviceGetUtilizationRates", 15, "GPU is lost (NVML error 15: GPU is lost)"),
        ("nvmlDeviceGetClockInfo", 16, "GPU needs a reset (NVML error 16: GPU requires restart)"),
        ("*", 999, "GPU is lost (NVML error 999: Unknown Error)"),
    ],
)
def test_a_lost_gpu_stays_listed_and_returns(fake: FakeNvml, start: Start, call: str, code: int, words: str) -> None:
    source = start()
    before = tick_until(source, all_ok, "three GPUs")[0][1]
    fake.set(f"gpu.1.call.{call}", f"error {code}")
    fake.write()
    gpus, _ = tick_until(source, lambda answer: states(answer) == ["ok", "lost", "ok"], "GPU 1 to be lost")
    lost = gpus[1]
    assert (lost.index, lost.uuid, lost.name, lost.serial) == (1, before.uuid, before.name, before.serial)
    assert lost.error == words, "when it was seen last is data: who reads it has his own clock"
    assert lost.last_seen_at is not None
    assert before.last_seen_at is not None
    assert before.last_seen_at <= lost.last_seen_at < time.time()
    assert (lost.busy, lost.power_w, lost.memory_used_bytes, lost.processes) == (None, None, None, None)
    assert gpus[0].power_w == 70
    fake.unset(f"gpu.1.call.{call}")
    fake.write()
    gpus, _ = tick_until(source, all_ok, "GPU 1 to return")
    assert gpus[1].uuid == before.uuid
    assert gpus[1].power_w == 70
    assert gpus[1].error is None


@pytest.mark.parametrize("code", [15, 999])
def test_a_gpu_that_was_lost_before_we_came(fake: FakeNvml, start: Start, code: int) -> None:
    fake.set("gpu.1.call.*", f"error {code}")
    source = start()
    gpus, _ = tick_until(source, lambda answer: len(answer[0]) == 3, "an answer")
    assert [gpu.state for gpu in gpus] == ["ok", "lost", "ok"]
    assert gpus[1].uuid is None
    assert gpus[1].last_seen_at is None
    assert "not seen since mltop started" in (gpus[1].error or "")
    fake.unset("gpu.1.call.*")
    fake.write()
    gpus, _ = tick_until(source, all_ok, "GPU 1 to appear")
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert gpus[1].uuid is not None


def test_one_gpu_may_not_be_opened(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.2.call.nvmlDeviceGetHandleByIndex", "error 4")
    gpus, _ = tick_until(start(), lambda answer: len(answer[0]) == 3, "an answer")
    assert [gpu.state for gpu in gpus] == ["ok", "ok", "error"]
    assert "no permission to open this GPU" in (gpus[2].error or "")


def test_a_gpu_whose_every_call_fails_is_in_error(fake: FakeNvml, start: Start) -> None:
    source = start()
    tick_until(source, all_ok, "three GPUs")
    fake.set("gpu.0.call.*", "error 10")
    fake.write()
    gpus, _ = tick_until(source, lambda answer: answer[0][0].state == "error", "GPU 0 in error")
    assert "Timeout" in (gpus[0].error or "")


def test_the_driver_lists_fewer_gpus(fake: FakeNvml, start: Start) -> None:
    """GPU 0 falls off the bus: the others move up in NVML's order, and keep their numbers here."""
    for index in range(3):
        fake.set(f"gpu.{index}.uuid", f"GPU-{index}")
        fake.set(f"gpu.{index}.power_mw", 100_000 + index * 1000)
    source = start()
    tick_until(source, all_ok, "three GPUs")
    for position, index in enumerate([1, 2]):
        fake.set(f"gpu.{position}.uuid", f"GPU-{index}")
        fake.set(f"gpu.{position}.power_mw", 100_000 + index * 1000)
    for key in ("uuid", "power_mw"):
        fake.unset(f"gpu.2.{key}")
    fake.set("count", 2)
    fake.write()
    gpus, _ = tick_until(source, lambda answer: states(answer) == ["lost", "ok", "ok"], "GPU 0 to vanish")
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert [gpu.uuid for gpu in gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [gpu.power_w for gpu in gpus] == [None, 101, 102]
    assert "the driver now lists 2 GPUs without it" in (gpus[0].error or "")


@pytest.mark.parametrize(
    ("code", "why", "fix"),
    [
        (9, "the NVIDIA driver is not loaded", "modprobe nvidia"),
        (4, "no permission to use the NVIDIA driver", permission_fix("nvmlInit")),
        (18, "the driver was upgraded while the old one is loaded", "reboot"),
        (999, "NVML cannot be used (NVML error 999", "dmesg"),
    ],
)
def test_a_library_that_does_not_initialise(fake: FakeNvml, start: Start, code: int, why: str, fix: str) -> None:
    fake.set("call.nvmlInitWithFlags", f"error {code}")
    source = start(init_retry_s=0.5)
    gpus, gaps = tick_until(source, lambda answer: why in whys(answer), "the reason")
    assert gpus == []
    assert [gap.what for gap in gaps] == ["nvml"]
    assert fix in gaps[0].fix
    pid = child_pid(source)
    fake.unset("call.nvmlInitWithFlags")
    fake.write()
    tick_until(source, all_ok, "the driver to be found")
    assert child_pid(source) == pid, "retried by the same process"


def test_a_driver_that_goes_away_while_we_watch(fake: FakeNvml, start: Start) -> None:
    source = start(init_retry_s=0.5)
    tick_until(source, all_ok, "three GPUs")
    fake.set("call.*", "error 18")
    fake.write()
    answer = tick_until(source, lambda answer: "upgraded" in whys(answer), "the mismatch")
    assert states(answer) == ["error"] * 3
    assert [gpu.power_w for gpu in answer[0]] == [None] * 3
    fake.unset("call.*")
    fake.write()
    tick_until(source, all_ok, "the driver to return")


def test_a_count_that_fails_for_a_moment(fake: FakeNvml, start: Start) -> None:
    source = start()
    tick_until(source, all_ok, "three GPUs")
    fake.set("call.nvmlDeviceGetCount", "error 999")
    fake.write()
    failing = tick_until(source, lambda answer: states(answer) == ["error"] * 3, "the failure")
    assert "nvmlDeviceGetCount" in whys(failing)
    failed_at = time.monotonic()
    tick_until(source, lambda answer: time.monotonic() - failed_at > 1.0, "a second of failing")
    fake.unset("call.nvmlDeviceGetCount")
    fake.write()
    tick_until(source, all_ok, "three GPUs again", timeout_s=15)


def test_a_library_that_is_broken(
    fake: FakeNvml, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library" * 100)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    answer = tick_until(start(), lambda answer: "cannot be loaded" in whys(answer), "the reason")
    assert answer[0] == []
    assert "libnvidia-ml.so.1" in whys(answer)


def elf(bits: int, machine: int) -> bytes:
    """The head of a shared library (elf.h); what follows is never looked at."""
    return b"\x7fELF" + struct.pack("<BBBBxxxxxxxxHHI", bits // 32, 1, 1, 0, 3, machine, 1) + bytes(600)


OTHER = ("aarch64", 183) if platform.machine() == "x86_64" else ("x86_64", 62)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "file too short"),
        (elf(32, 3), "libnvidia-ml.so.1 cannot be loaded: wrong ELF class: ELFCLASS32"),
        (elf(64, OTHER[1]), f"is built for {OTHER[0]}, this Python for {platform.machine()}"),
        (None, "libnvidia-ml.so.1: is a link to a file that does not exist"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_not_called_missing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    library = tmp_path / "other" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    if content is None:
        library.symlink_to("nowhere")
    else:
        library.write_bytes(content)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    answer = tick_until(start(), lambda answer: "libnvidia-ml" in whys(answer), "the reason")
    assert [gap.what for gap in answer[1]] == ["nvml"]
    assert why in whys(answer)
    assert "not found" not in whys(answer)


def test_no_driver_on_this_machine(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    if ctypes.util.find_library("nvidia-ml"):
        pytest.skip("this machine has an NVIDIA driver")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    gpus, gaps = tick_until(start(), lambda answer: "libnvidia" in whys(answer), "the reason")
    assert gpus == []
    assert [gap.why for gap in gaps] == ["no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)"]
    assert gaps[0].fix


def test_without_pynvml(fake: FakeNvml) -> None:
    """In an interpreter whose path holds nothing but this project."""
    import mltop.probes

    project = Path(mltop.probes.__file__).parent.parent.parent
    code = f"""
import sys, time
sys.path.append({str(project)!r})
from mltop.probes.collect.nvml.source import NvmlSource
source = NvmlSource()
deadline = time.monotonic() + 10
why = ""
while "nvidia-ml-py" not in why and time.monotonic() < deadline:
    source.request(time.time())
    gpus, gaps = source.collect(time.time(), 0.2)
    why = " ".join(gap.why for gap in gaps)
source.close()
print(gpus, why)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.startswith("[] the Python package nvidia-ml-py is missing"), done.stdout + done.stderr
