"""What a GPU did during phases, measured over the fake NVML by a process that has no pynvml."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

import mltop.probes
from mltop.probes.active import nvml
from mltop.probes.active.phase_meter import still_heating
from mltop.probes.model.nvml_fields import throttle_ns_fields
from tests.fakes.nvml.counts import read_counts
from tests.fakes.nvml.scenario import FakeNvml
from tests.fakes.nvml.shapes import shape
from tests.waiting import wait_until

UUID = "GPU-5a4e0001-0000-4000-8000-{:012d}"

# One phase for each two lines of stdin: what each line says begins or ends.
METER = """
import json, sys
sys.modules["pynvml"] = None  # importing it fails
sys.path.insert(0, {path!r})
from dataclasses import asdict
from mltop.probes.active.phase_meter import PhaseMeter
from mltop.probes.model.probe import ProbeDevice
meter = PhaseMeter(ProbeDevice({uuid!r}, kind={kind!r}))
for line in sys.stdin:
    with meter.phase(line.strip()):
        print("begun", flush=True)
        sys.stdin.readline()
    print(json.dumps(dict(phase=asdict(meter.phases[-1]), gaps=meter.gaps, driver=meter.driver)), flush=True)
"""


class Meter:
    def __init__(self, env: dict[str, str], uuid: str, kind: str = "gpu") -> None:
        path = str(Path(mltop.probes.__file__).parent.parent.parent)
        code = METER.format(path=path, uuid=uuid, kind=kind)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, name: str) -> None:
        assert self._say(name) == "begun"

    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._say("end"))
        return found

    def _say(self, line: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    made = FakeNvml(tmp_path, count=2)
    shape("h100", made, count=2)
    made.set("gpu.1.sm_clock_mhz", 1500)
    made.set("gpu.1.temperature_c", 61)
    made.set("gpu.1.power_limit_mw", 500_000)
    made.set("gpu.1.energy_mj", 1_000_000)
    made.set("gpu.1.throttle_ns.sw_power_cap", 7_000_000_000)
    made.write()
    return made


@pytest.fixture
def meters() -> Iterator[list[Meter]]:
    started: list[Meter] = []
    yield started
    for meter in started:
        meter.close()


def start(meters: list[Meter], fake: FakeNvml, uuid: str) -> Meter:
    meters.append(Meter(fake.env(), uuid))
    return meters[-1]


def until_sampled(fake: FakeNvml, times: int) -> None:
    """So many samples of the clock, since the fake was made."""

    def sampled() -> bool:
        return read_counts(fake.counts_path).get("nvmlDeviceGetClockInfo", 0) >= times

    wait_until(sampled, what=f"{times} samples of the clock")


def test_a_phase_is_the_difference_of_counters_and_the_mean_of_samples(fake: FakeNvml, meters: list[Meter]) -> None:
    meter = start(meters, fake, UUID.format(1))
    meter.begin("sustained")
    until_sampled(fake, 2)
    fake.set("gpu.1.energy_mj", 1_150_000)
    fake.set("gpu.1.throttle_ns.sw_power_cap", 7_200_000_000)
    fake.set("gpu.1.sm_clock_mhz", 1300)
    fake.set("gpu.1.temperature_c", 58)
    fake.write()
    until_sampled(fake, 5)
    answer = meter.end()
    phase = answer["phase"]
    assert (phase["name"], answer["driver"], answer["gaps"]) == ("sustained", "580.95.05", {})
    assert phase["seconds"] > 0.3  # five samples
    assert phase["power_w"] * phase["seconds"] == pytest.approx(150)
    assert phase["throttle_share"]["sw_power_cap"] * phase["seconds"] == pytest.approx(0.2)
    assert phase["throttle_share"]["hw_thermal"] == 0
    assert 1300 < phase["sm_clock_mhz"] < 1500
    assert phase["temperature_c"] == 61  # the highest
    assert (phase["power_limit_w"], phase["power_limit_default_w"], phase["sm_clock_max_mhz"]) == (500, 700, 1980)


def test_a_mig_instance_has_the_clock_and_power_of_its_gpu(fake: FakeNvml, meters: list[Meter]) -> None:
    fake.set("gpu.1.mig_enabled", True)
    fake.set("gpu.1.mig.2", "3g.40gb gi=2 uuid=MIG-ours")
    fake.write()
    meter = start(meters, fake, "MIG-ours")
    meter.begin("burst")
    until_sampled(fake, 1)
    assert meter.end()["phase"]["sm_clock_mhz"] == 1500


def test_a_driver_before_525_is_not_read(fake: FakeNvml, meters: list[Meter]) -> None:
    fake.set("driver", "470.256.02")
    fake.write()
    meter = start(meters, fake, UUID.format(1))
    meter.begin("warm")
    assert meter.end()["gaps"] == {"phases": "driver 470.256.02 is older than 525: mltop does not read it"}


def test_what_a_driver_does_not_know_is_a_gap_and_the_rest_is_measured(fake: FakeNvml, meters: list[Meter]) -> None:
    shape("a100", fake, count=2, driver="535")
    fake.set("gpu.1.energy_mj", "unsupported")
    fake.write()
    meter = start(meters, fake, UUID.format(1))
    meter.begin("warm")
    until_sampled(fake, 3)
    answer = meter.end()
    assert answer["phase"]["power_w"] is None
    assert answer["phase"]["temperature_c"] == 61  # by the older call
    assert answer["phase"]["throttle_share"].keys() == set(throttle_ns_fields((535, 0)).values()) - {
        "sw_thermal",
        "hw_thermal",
        "power_brake",
    }
    assert answer["gaps"] == {"phases.power_w": "nvmlDeviceGetTotalEnergyConsumption: Not Supported (in warm)"}


@pytest.mark.parametrize("driver", ["575", "580.65", "580"])
def test_throttle_time_is_read_where_the_driver_has_it(fake: FakeNvml, meters: list[Meter], driver: str) -> None:
    """Elsewhere 575 and the first 580 have numbers of power smoothing."""
    shape("h100", fake, count=2, driver=driver)
    fake.set("gpu.1.throttle_ns.hw_thermal", 3_000_000_000)
    fake.write()
    meter = start(meters, fake, UUID.format(1))
    meter.begin("burst")
    until_sampled(fake, 2)
    fake.set("gpu.1.throttle_ns.hw_thermal", 3_100_000_000)
    fake.write()
    answer = meter.end()
    assert answer["phase"]["throttle_share"]["hw_thermal"] * answer["phase"]["seconds"] == pytest.approx(0.1)
    assert [name for name in answer["gaps"] if "throttle" in name] == []


def test_what_cannot_be_is_unknown_with_what_was_answered(fake: FakeNvml, meters: list[Meter]) -> None:
    for name, value in {"temperature_c": 255, "sm_clock_mhz": 4_000_000}.items():
        fake.set(f"gpu.1.{name}", value)
    fake.set("gpu.1.throttle_ns.sw_thermal", 0)
    fake.write()
    meter = start(meters, fake, UUID.format(1))
    meter.begin("burst")
    until_sampled(fake, 2)
    fake.set("gpu.1.throttle_ns.sw_thermal", 900_000_000_000)
    fake.write()
    answer = meter.end()
    phase, gaps = answer["phase"], answer["gaps"]
    for name, said in {
        "temperature_c": "255 °C",
        "sm_clock_mhz": "4000000 MHz",
    }.items():
        assert phase[name] is None and said in gaps[f"phases.{name}"], name
    assert "sw_thermal" not in phase["throttle_share"] and "sw_power_cap" in phase["throttle_share"]
    assert "900.0 s" in gaps["phases.throttle_share.sw_thermal"]


def test_a_phase_without_samples_says_so(fake: FakeNvml, meters: list[Meter]) -> None:
    meter = start(meters, fake, UUID.format(0))
    fake.set("gpu.0.call.nvmlDeviceGetClockInfo", "error 999")
    fake.write()
    meter.begin("burst")
    until_sampled(fake, 1)
    answer = meter.end()
    assert answer["phase"]["sm_clock_mhz"] is None
    assert answer["gaps"]["phases.sm_clock_mhz"] == "nvmlDeviceGetClockInfo: Unknown Error (in burst)"


def test_a_call_that_hangs_costs_the_phase_its_values_and_names_itself(fake: FakeNvml, meters: list[Meter]) -> None:
    fake.set("gpu.0.call.nvmlDeviceGetClockInfo", "block forever")
    fake.write()
    meter = start(meters, fake, UUID.format(0))
    meter.begin("scan")
    until_sampled(fake, 1)
    answer = meter.end()
    assert answer["phase"]["name"] == "scan" and answer["phase"]["power_w"] is None
    assert answer["gaps"] == {"phases": "NVML does not answer, stuck in nvmlDeviceGetClockInfo"}
    meter.begin("burst")
    assert meter.end()["phase"]["name"] == "burst"


@pytest.mark.parametrize(
    ("uuid", "kind", "why"),
    [
        ("GPU-none", "gpu", "nvmlDeviceGetHandleByUUID: Not Found"),
        ("MIG-none", "mig", "nvmlDeviceGetHandleByUUID: Not Found"),
        ("cpu", "cpu", "power, clock and heat are read of GPUs only"),
    ],
)
def test_a_device_that_nvml_does_not_have(fake: FakeNvml, meters: list[Meter], uuid: str, kind: str, why: str) -> None:
    meters.append(Meter(fake.env(), uuid, kind))
    meters[-1].begin("warm")
    answer = meters[-1].end()
    assert (answer["phase"]["name"], answer["gaps"]) == ("warm", {"phases": why})


def test_a_library_that_cannot_be_loaded(tmp_path: Path, meters: list[Meter]) -> None:
    (tmp_path / nvml.LIBRARY).write_text("no library")
    meters.append(Meter({"LD_LIBRARY_PATH": str(tmp_path)}, "GPU-any"))
    meters[-1].begin("warm")
    assert nvml.LIBRARY in meters[-1].end()["gaps"]["phases"]


def test_structures_are_those_of_the_passive_reader() -> None:
    assert ctypes.sizeof(nvml._FieldValue) == ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    assert ctypes.sizeof(nvml._Temperature) == ctypes.sizeof(pynvml.c_nvmlTemperature_v1_t)
    assert nvml._FieldValue.value.offset == pynvml.c_nvmlFieldValue_t.value.offset


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ([1980] * 10 + [1900] * 10, True),
        ([1980] * 20, False),
        ([1980] * 10 + [1945] * 10, False),  # 1.8 %
        ([1500] * 10 + [1980] * 10, False),  # it was still going up
        ([1980, 1500], None),
        ([], None),
    ],
)
def test_still_heating(trace: list[float], expected: bool | None) -> None:
    assert still_heating(trace) is expected
