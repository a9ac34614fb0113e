"""The driver gone, upgraded or denied while mltop watches; a GPU that needs a reset: from NVML to what is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.nvml.faults import permission_fix
from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.rule import Expectations
from mltop.probes.model import Finding, Gap, GpuSample, Sample, Unknown
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import Start, fake_here, starter, states, tick, tick_until

COUNT = 8


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, COUNT)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    yield from starter(fake)


class Watch:
    """A source and the rules over what it says, sample by sample."""

    def __init__(self, source: NvmlSource, asked: Expectations | None = None) -> None:
        self.source = source
        self.health = Health(asked or Expectations(), eager=True)
        self.newest = Sample("n1", time.time())

    def until(self, *wanted: str) -> list[GpuSample]:
        """Until the GPUs' states are these; every sample on the way is judged."""

        def judge(answer: tuple[list[GpuSample], list[Gap]]) -> bool:
            self.newest = Sample("n1", time.time(), gpus=answer[0], gaps=answer[1])
            self.health.see(self.newest)
            return states(answer) == list(wanted)

        return tick_until(self.source, judge, f"{wanted}")[0]

    def findings(self) -> list[Finding]:
        return [finding for finding in self.health.findings() if finding.severity != "info"]

    def unknowns(self) -> list[Unknown]:
        """Of the GPUs: nothing else is looked at here."""
        return [one for one in self.health.unknowns() if one.what.partition(".")[0] in ("gpu", "nvml")]


OK = ("ok",) * COUNT
ERROR = ("error",) * COUNT


@pytest.mark.parametrize(
    ("code", "fault", "message", "action"),
    [
        (9, "driver_not_loaded", "The NVIDIA driver is not loaded", "sudo modprobe nvidia"),
        (18, "driver_mismatch", "The driver was upgraded while the old one is loaded", "reboot, or end all"),
        (16, "needs_reset", "NVML cannot be used: a GPU needs a reset", "sudo nvidia-smi -r"),
        (15, "lost", "NVML cannot be used: a GPU has fallen off the bus", "reboot the node"),
        (999, "blocked", "NVML cannot be used (NVML error 999", "dmesg"),
    ],
)
def test_a_driver_that_goes_while_we_watch_is_one_line(
    fake: FakeNvml, start: Start, code: int, fault: str, message: str, action: str
) -> None:
    """With the command that helps; the GPUs keep who they are and say why they have no values."""
    watch = Watch(start(init_retry_first_s=0.2, init_retry_s=0.2))
    before = watch.until(*OK)
    fake.set("call.*", f"error {code}")
    fake.write()
    gpus = watch.until(*ERROR)
    assert {gpu.error_code for gpu in gpus} == {fault}
    assert [gpu.uuid for gpu in gpus] == [gpu.uuid for gpu in before]
    (gap,) = [gap for gap in watch.newest.gaps if gap.what == "nvml"]
    assert gap.code == fault
    (finding,) = watch.findings()
    assert (finding.id, finding.severity, finding.subject) == ("gpu.driver", "critical", "driver")
    assert message in finding.message and action in finding.action
    fake.unset("call.*")
    fake.write()
    assert [gpu.error_code for gpu in watch.until(*OK)] == [""] * COUNT
    assert watch.findings()[0].until is not None, "it has ended"


def test_a_driver_that_is_reloaded_at_once_says_nothing(fake: FakeNvml, start: Start) -> None:
    watch = Watch(start())
    watch.until(*OK)
    fake.set("call.nvmlDeviceGetCount", "error 9 until init")
    fake.set("gpu.*.power_mw", 99_000)
    fake.write()
    while watch.until(*OK)[0].power_w != 99:
        pass
    assert watch.findings() == []


def test_an_upgrade_that_is_seen_when_nvml_is_initialised_again(fake: FakeNvml, start: Start) -> None:
    """The calls only say that the library is not initialised: what is wrong says the initialisation."""
    watch = Watch(start(init_retry_first_s=0.2, init_retry_s=0.2))
    watch.until(*OK)
    fake.set("call.nvmlDeviceGetCount", "error 1")
    fake.set("call.nvmlInitWithFlags", "error 18")
    fake.write()
    assert {gpu.error_code for gpu in watch.until(*ERROR)} == {"driver_mismatch"}
    (finding,) = watch.findings()
    assert "NVML error 18" in finding.message


def test_a_gpu_that_needs_a_reset_is_told_so_everywhere(fake: FakeNvml, start: Start) -> None:
    watch = Watch(start())
    watch.until(*OK)
    fake.set("gpu.3.call.*", "error 16")
    fake.write()
    gpu = watch.until(*("lost" if index == 3 else "ok" for index in range(COUNT)))[3]
    assert gpu.error_code == "needs_reset"
    assert gpu.error is not None and gpu.error.startswith("GPU needs a reset (NVML error 16")
    (finding,) = watch.findings()
    assert (finding.id, finding.severity, finding.subject) == ("gpu.lost", "critical", "GPU 3")
    assert finding.message.startswith("GPU 3 needs a reset (last seen ")
    assert finding.action == "end its job, then: sudo nvidia-smi -r -i 3"
    assert "reboot" not in f"{finding.message} {finding.action}"


def test_a_lost_gpu_asks_for_no_reset(fake: FakeNvml, start: Start) -> None:
    watch = Watch(start())
    watch.until(*OK)
    fake.set("gpu.3.call.*", "error 15")
    fake.write()
    assert watch.until(*("lost" if index == 3 else "ok" for index in range(COUNT)))[3].error_code == "lost"
    (finding,) = watch.findings()
    assert finding.message.startswith("GPU 3 lost") and "reboot the node" in finding.action


@pytest.mark.parametrize(
    ("driver", "nvml", "version"), [("470.256.02", "", "470.256.02"), ("R515", "12.515.65.01", "R515")]
)
def test_a_driver_that_mltop_does_not_read_is_unknown(
    fake: FakeNvml, start: Start, driver: str, nvml: str, version: str
) -> None:
    """In one line, without a GPU: neither zeros nor GPUs that are missing."""
    fake.set("driver", driver)
    if nvml:
        fake.set("nvml", nvml)
    watch = Watch(start(), Expectations(expect_gpus=8))
    tick_until(watch.source, lambda answer: any(gap.what == "nvml" for gap in answer[1]), "the refusal")
    watch.until()
    (gap,) = [gap for gap in watch.newest.gaps if gap.what == "nvml"]
    assert gap.why == f"driver {version} is older than 525: mltop does not read it; nvidia-smi does"
    assert (gap.kind, gap.code, gap.fix) == ("unknown", "old_driver", "update the NVIDIA driver to 525 or newer")
    assert watch.findings() == []
    assert [unknown.what for unknown in watch.unknowns()] == ["nvml"]


@pytest.mark.parametrize("driver", ["525.60.13", "GRID 19.1"])
def test_the_oldest_driver_and_one_of_an_unknown_version_are_read(fake: FakeNvml, start: Start, driver: str) -> None:
    fake.set("driver", driver)
    watch = Watch(start())
    assert [gpu.driver for gpu in watch.until(*OK)] == [driver] * COUNT


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "*"])
def test_a_gpu_that_we_may_not_open_is_not_broken(fake: FakeNvml, start: Start, call: str) -> None:
    """It is unknown, with the command that would tell."""
    fake.set(f"gpu.3.call.{call}", "error 4")
    watch = Watch(start())
    gpu = watch.until(*("error" if index == 3 else "ok" for index in range(COUNT)))[3]
    assert gpu.error_code == "no_permission"
    assert watch.findings() == []
    (gap,) = [gap for gap in watch.newest.gaps if gap.code == "no_permission"]
    assert (gap.what, gap.fix) == ("gpu.3", permission_fix("nvmlInit"))
    (unknown,) = [unknown for unknown in watch.unknowns() if unknown.what == "gpu.3"]
    assert "no permission" in unknown.why and "gpu.lost" not in unknown.why


def test_a_gpu_whose_calls_are_all_denied_while_we_watch_is_not_lost(fake: FakeNvml, start: Start) -> None:
    watch = Watch(start())
    watch.until(*OK)
    for call in ("nvmlDeviceGetHandleByIndex", "*"):
        fake.set(f"gpu.3.call.{call}", "error 4")
    fake.write()
    assert watch.until(*("error" if index == 3 else "ok" for index in range(COUNT)))[3].error_code == "no_permission"
    for _ in range(5):
        tick(watch.source)
    watch.until(*("error" if index == 3 else "ok" for index in range(COUNT)))
    assert watch.findings() == []


def test_one_call_that_is_denied_costs_its_values(fake: FakeNvml, start: Start) -> None:
    fake.set("call.nvmlDeviceGetComputeRunningProcesses", "error 4")
    watch = Watch(start())
    assert {gpu.error_code for gpu in watch.until(*OK)} == {""}
    (gap,) = [gap for gap in watch.newest.gaps if gap.code == "no_permission"]
    assert (gap.what, gap.fix) == ("gpu.*.processes", permission_fix("nvmlInit"))
    assert watch.findings() == []


def test_all_gpus_that_we_may_not_open_are_one_gap(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.*.call.nvmlDeviceGetHandleByIndex", "error 4")
    watch = Watch(start())
    assert {gpu.error_code for gpu in watch.until(*ERROR)} == {"no_permission"}
    assert [gap.what for gap in watch.newest.gaps] == ["gpu.*"]
    assert watch.findings() == [] and len(watch.unknowns()) == 1


@pytest.mark.parametrize("was_allowed", [False, True])
def test_nvml_that_we_may_not_use_is_unknown(fake: FakeNvml, start: Start, was_allowed: bool) -> None:
    if not was_allowed:
        fake.set("call.nvmlInitWithFlags", "error 4")
    watch = Watch(start(init_retry_first_s=0.2, init_retry_s=0.2))
    watch.until(*(OK if was_allowed else ()))
    if was_allowed:
        fake.set("call.*", "error 4")
        fake.write()
        watch.until(*ERROR)
    else:
        tick_until(watch.source, lambda answer: any(gap.what == "nvml" for gap in answer[1]), "the refusal")
        watch.until()
    (gap,) = [gap for gap in watch.newest.gaps if gap.code == "no_permission"]
    assert (gap.what, gap.fix) == ("nvml", permission_fix("nvmlInit"))
    assert watch.findings() == []
    assert [unknown.what for unknown in watch.unknowns()] == ["nvml"]


def test_without_the_driver_from_the_start_nobody_knows_of_gpus(fake: FakeNvml, start: Start) -> None:
    """A machine may have none; those that were asked for are missed."""
    fake.set("call.nvmlInitWithFlags", "error 9")
    watch = Watch(start(), Expectations(expect_gpus=8))
    tick_until(watch.source, lambda answer: any(gap.what == "nvml" for gap in answer[1]), "the refusal")
    watch.until()
    assert [finding.id for finding in watch.findings()] == ["gpu.missing"]


def test_a_board_that_was_changed_is_the_same_slot(fake: FakeNvml, start: Start) -> None:
    for index in range(COUNT):
        fake.set(f"gpu.{index}.uuid", f"GPU-{index}")
    watch = Watch(start(init_retry_first_s=0.2, init_retry_s=0.2))
    watch.until(*OK)
    fake.set("gpu.3.call.*", "error 15")
    fake.write()
    watch.until(*("lost" if index == 3 else "ok" for index in range(COUNT)))
    fake.unset("gpu.3.call.*")
    fake.set("gpu.3.uuid", "GPU-NEW")
    fake.write()
    gpus = watch.until(*OK)
    assert [gpu.index for gpu in gpus] == list(range(COUNT))
    assert (gpus[3].uuid, gpus[3].power_w) == ("GPU-NEW", 70)
    assert [finding.id for finding in watch.findings() if finding.until is None] == []
