"""GPM through the reader process over the fake library: what the units of each GPU do, and why it is unknown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.probes.collect.dcgm import DcgmSource, Patience, without_filled
from mltop.probes.collect.nvml.source import NvmlSource
from mltop.probes.model import Gap
from tests import nvml_sources
from tests.fakes.dcgm_exporter import PROFILING, FakeExporter, gpu_lines
from tests.fakes.nvml.counts import calls_on_gpu, read_counts
from tests.fakes.nvml.readers import start as start_readers
from tests.fakes.nvml.scenario import FakeNvml
from tests.nvml_sources import Answer, Start, fake_here, starter
from tests.waiting import wait_until

# GPM's metric ids by field (nvml.h).
IDS = {
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
    "fp16_active": 13,
}
MIB = 2**20
GPM_FUNCTIONS = ("QueryDeviceSupport", "SampleAlloc", "SampleFree", "SampleGet", "MigSampleGet", "MetricsGet")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    return fake_here(tmp_path, monkeypatch, 2)


@pytest.fixture
def start(fake: FakeNvml) -> Iterator[Start]:
    yield from starter(fake)
    misuse = {name: count for name, count in read_counts(fake.counts_path).items() if name.startswith("misuse")}
    assert not misuse, "samples are taken by one thread, more than 100 ms apart"


def tick_until(source: NvmlSource, wanted: Callable[[Answer], object], what: str, timeout_s: float = 30) -> Answer:
    """Ticks until an answer with GPUs is as wanted."""
    return nvml_sources.tick_until(source, lambda answer: answer[0] and wanted(answer), what, timeout_s)


def all_known(answer: Answer) -> bool:
    return all(getattr(gpu, field) is not None for gpu in answer[0] for field in IDS)


def about(answer: Answer, field: str) -> list[Gap]:
    """Gaps that name a field, alone or among others."""
    return [
        gap for gap in answer[1] if field in gap.what.replace("{", ",").replace("}", ",").replace(".", ",").split(",")
    ]


def says(text: str) -> Callable[[Answer], object]:
    return lambda answer: any(text in gap.why for gap in answer[1])


def test_every_value_of_the_scenario_arrives(fake: FakeNvml, start: Start) -> None:
    for number, metric in enumerate(IDS.values()):
        fake.set(f"gpu.1.gpm.{metric}", f"{10.25 + number}")
    for metric, mib_per_s in {20: 1500, 21: 2500, 60: 300_000, 61: 400_000}.items():
        fake.set(f"gpu.1.gpm.{metric}", str(mib_per_s))
    without_nvlink_counters(fake)
    answer = tick_until(start(), lambda answer: all_known(answer) and answer[0][1].nvlink.rx_bytes_per_s, "all values")
    idle, busy = answer[0]
    found = [getattr(busy, field) for field in IDS]
    assert found == pytest.approx([(10.25 + number) / 100 for number in range(len(IDS))])
    assert [getattr(idle, field) for field in IDS] == [0.0] * len(IDS)
    assert (idle.activity_source, busy.activity_source) == ("gpm", "gpm")
    assert (busy.pcie.tx_bytes_per_s, busy.pcie.rx_bytes_per_s) == pytest.approx((1500 * MIB, 2500 * MIB))
    assert (busy.nvlink.rx_bytes_per_s, busy.nvlink.tx_bytes_per_s) == pytest.approx((300_000 * MIB, 400_000 * MIB))
    assert not [gap for field in IDS for gap in about(answer, field)]


def without_nvlink_counters(fake: FakeNvml) -> None:
    for field in (138, 139, 202, 204):
        fake.set(f"gpu.*.field.{field}", "unsupported")


def test_nvlink_traffic_by_its_own_counters_where_they_work(fake: FakeNvml, start: Start) -> None:
    """They are a second fresh, GPM's averages eight. GPM is not even asked: here that would cost the GPU."""
    for metric in (60, 61):
        fake.set(f"gpu.*.gpm.{metric}", "error 15")
    fake.set("gpu.1.gpm.21", "2500")
    answer = tick_until(start(), lambda answer: all_known(answer) and answer[0][1].pcie.rx_bytes_per_s, "all values")
    assert [(gpu.state, gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s) for gpu in answer[0]] == [
        ("ok", 0.0, 0.0)
    ] * 2
    assert not about(answer, "rx_bytes_per_s")


def test_traffic_that_only_gpm_tells_says_when_it_comes(fake: FakeNvml, start: Start) -> None:
    without_nvlink_counters(fake)
    answer = tick_until(start(), lambda answer: answer[0], "the first answer")
    kinds = {gap.what: gap.kind for gap in about(answer, "rx_bytes_per_s")}
    assert kinds["gpu.*.pcie.rx_bytes_per_s"] == "starting"


def test_the_first_sample_says_that_it_needs_a_second(fake: FakeNvml, start: Start) -> None:
    answer = tick_until(start(), lambda answer: answer[0], "the first answer")
    gaps = about(answer, "sm_active")
    assert [(gap.what[:6], gap.kind) for gap in gaps] == [("gpu.*.", "starting")]
    assert gaps == about(answer, "fp16_active"), "one gap for all of it"
    assert [gpu.sm_active for gpu in answer[0]] == [None, None]
    assert [gpu.activity_source for gpu in answer[0]] == [None, None]


def test_new_values_replace_old_ones(fake: FakeNvml, start: Start) -> None:
    source = start()
    tick_until(source, all_known, "all values")
    for metric in IDS.values():
        fake.set(f"gpu.0.gpm.{metric}", "80")
    fake.write()

    def arrived(answer: Answer) -> bool:
        return all((getattr(answer[0][0], field) or 0) > 0.79 for field in IDS)

    tick_until(source, arrived, "the new values")


UNKNOWN = {
    "nan": "the driver answered nan %, which is not a value",
    "250": "answered 250 %, which is not a value",
    "-3": "answered -3 %, which is not a value",
    "error 3": "not supported by this GPU or driver (nvmlGpmMetricsGet 5 (tensor_active): Not Supported)",
    "error 999": "nvmlGpmMetricsGet 5 (tensor_active) failed (NVML error 999: Unknown Error)",
}


@pytest.mark.parametrize("said", UNKNOWN)
def test_one_metric_that_is_unknown_leaves_the_others(fake: FakeNvml, start: Start, said: str) -> None:
    fake.set("gpu.1.gpm.5", said)
    fake.set("gpu.1.gpm.2", "60")
    answer = tick_until(start(), lambda answer: answer[0][1].fp16_active is not None, "values")
    gpu = answer[0][1]
    assert gpu.tensor_active is None
    assert gpu.sm_active == pytest.approx(0.6)
    assert (gpu.dram_active, gpu.fp16_active, gpu.activity_source) == (0, 0, "gpm")
    (gap,) = about(answer, "tensor_active")
    assert gap.what == "gpu.1.tensor_active"
    assert UNKNOWN[said] in gap.why
    assert gap.kind == ("unsupported" if said == "error 3" else "unknown")


def test_a_little_over_a_hundred_percent_is_all(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.*.gpm.2", "100.7")
    answer = tick_until(start(), all_known, "values")
    assert [gpu.sm_active for gpu in answer[0]] == [1.0, 1.0]


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_permission_is_a_state_that_comes_back(fake: FakeNvml, start: Start, call: str) -> None:
    source = start()
    tick_until(source, all_known, "all values")
    fake.set(f"gpu.*.call.{call}", "error 4")
    fake.write()
    answer = tick_until(source, lambda answer: not any(gpu.activity_source for gpu in answer[0]), "the refusal")
    (gap,) = about(answer, "sm_active")
    assert gap.why == f"no permission for {call} (Insufficient Permissions)"
    assert "--privileged" in gap.fix
    assert "SYS_ADMIN" in gap.fix
    assert [gpu.sm_active for gpu in answer[0]] == [None, None]
    assert [gpu.state for gpu in answer[0]] == ["ok", "ok"]
    assert answer[0][0].power_w is not None
    pcie = [gap for gap in about(answer, "rx_bytes_per_s") if ".pcie." in gap.what]
    assert [(one.why, one.fix) for one in pcie] == [(gap.why, gap.fix)], "a permission is missing, not GPM"
    asked, since_s = read_counts(fake.counts_path)[call], time.monotonic()
    tick_until(source, lambda _: time.monotonic() - since_s > 1.0, "a second without permission")
    assert read_counts(fake.counts_path)[call] <= asked + 2, "a refusal is not repeated at every poll"
    fake.unset(f"gpu.*.call.{call}")
    fake.write()
    answer = tick_until(source, all_known, "the values to return")
    assert not about(answer, "sm_active")


@pytest.mark.parametrize("call", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_call_that_never_returns_is_named(fake: FakeNvml, start: Start, call: str) -> None:
    fake.set(f"gpu.1.call.{call}", "block forever")
    answer = tick_until_any(start(0.5, 1.0), says("stuck in"), "the call to be named")
    assert says(f"stuck in {call} on GPU 1")(answer)


def tick_until_any(source: NvmlSource, wanted: Callable[[Answer], object], what: str) -> Answer:
    """As ``tick_until``, also while no GPU was read yet."""

    def step() -> Answer | None:
        source.request(time.time())
        answer = source.collect(time.time(), 0.05)
        return answer if wanted(answer) else None

    return wait_until(step, 30, what)


def test_a_lost_gpu_starts_anew_when_it_returns(fake: FakeNvml, start: Start) -> None:
    fake.set("gpu.1.gpm.2", "50")
    source = start()
    tick_until(source, all_known, "all values")
    allocated = read_counts(fake.counts_path)["nvmlGpmSampleAlloc"]
    fake.set("gpu.1.call.*", "error 15")
    fake.write()
    answer = tick_until(source, lambda answer: answer[0][1].state == "lost", "GPU 1 to be lost")
    assert (answer[0][1].sm_active, answer[0][1].activity_source) == (None, None)
    wait_until(lambda: read_counts(fake.counts_path).get("nvmlGpmSampleFree") == allocated // 2, what="its samples")
    before = calls_on_gpu(fake.counts_path, 1).get("nvmlGpmSampleGet")
    tick_until(source, lambda answer: answer[0][0].sm_active is not None, "GPU 0 to go on")
    assert calls_on_gpu(fake.counts_path, 1).get("nvmlGpmSampleGet") == before
    fake.unset("gpu.1.call.*")
    fake.write()
    answer = tick_until(source, lambda answer: answer[0][1].sm_active is not None, "GPU 1 to return")
    assert answer[0][1].sm_active == pytest.approx(0.5)


def test_gpus_that_change_places_do_not_mix_their_samples(fake: FakeNvml, start: Start) -> None:
    """The fake ends a process that computes a metric from samples of two GPUs."""
    fake.set("count", 3)
    for index in range(3):
        fake.set(f"gpu.{index}.uuid", f"GPU-{index}")
        fake.set(f"gpu.{index}.gpm.2", str(10 * index))
    source = start()
    tick_until(source, lambda answer: len(answer[0]) == 3 and all_known(answer), "all values")
    time.sleep(0.11)  # the fake counts by place: an agent's next poll does not come sooner than NVML allows either
    for position, index in enumerate([1, 2]):
        fake.set(f"gpu.{position}.uuid", f"GPU-{index}")
        fake.set(f"gpu.{position}.gpm.2", str(10 * index))
    for key in ("uuid", "gpm.2"):
        fake.unset(f"gpu.2.{key}")
    fake.set("count", 2)
    fake.write()

    def moved(answer: Answer) -> bool:
        values = [gpu.sm_active for gpu in answer[0]]
        return values[0] is None and None not in values[1:]

    answer = tick_until(source, moved, "the GPUs at their new places")
    assert [gpu.uuid for gpu in answer[0]] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [gpu.sm_active for gpu in answer[0][1:]] == pytest.approx([0.1, 0.2])
    assert "died" not in str(answer[1])
    assert read_counts(fake.counts_path)["nvmlGpmSampleFree"] >= 2 * 2, "those of the GPUs that were here before"


def test_a_driver_without_gpm(fake: FakeNvml, start: Start) -> None:
    for function in GPM_FUNCTIONS:
        fake.set(f"call.nvmlGpm{function}", "missing")
    answer = tick_until(start(), lambda answer: answer[0][0].power_w is not None, "an answer")
    (gap,) = about(answer, "sm_active")
    assert "nvmlGpmQueryDeviceSupport: Function Not Found" in gap.why
    assert gap.kind == "unsupported"
    assert [gpu.sm_active for gpu in answer[0]] == [None, None]


def test_a_gpu_before_hopper_is_measured_by_dcgm(
    fake: FakeNvml, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake.set("gpu.0.gpm_supported", False)
    fake.set("gpu.0.name", "NVIDIA A100-SXM4-80GB")
    fake.set("gpu.1.gpm.2", "30")
    source = start()
    answer = tick_until(source, lambda answer: answer[0][1].fp16_active is not None, "GPM of the other GPU")
    (gap,) = about(answer, "sm_active")
    assert gap.why == "GPM needs Hopper or newer: GPU-Util only says that a kernel was resident"
    assert gap.kind == "unsupported"
    assert answer[0][0].activity_source is None
    assert "nvmlGpmSampleGet" not in calls_on_gpu(fake.counts_path, 0)
    values = {field: (number + 1) / 10 for number, field in enumerate(PROFILING)}
    with FakeExporter(gpu_lines(values, gpu="0", UUID=answer[0][0].uuid or "")) as exporter:
        dcgm = DcgmSource(exporter.url, Patience(grace_s=0.0))
        try:

            def filled(answer: Answer) -> bool:
                gaps = dcgm.fill(answer[0], time.time())
                answer[1][:] = without_filled(answer[1], answer[0]) + gaps
                return answer[0][0].activity_source == "dcgm"

            answer = tick_until(source, filled, "DCGM's values")
        finally:
            dcgm.close()
    assert {field: getattr(answer[0][0], field) for field in values} == values
    assert (answer[0][1].activity_source, answer[0][1].sm_active) == ("gpm", pytest.approx(0.3))
    assert not about(answer, "sm_active")


# How long two reads are apart is not the machine's business; samples are taken by real time, which the fake looks at.
CLOCK = """
import time
now_s = [time.monotonic()]
time.monotonic = lambda: now_s[0]
def wait(seconds):
    time.sleep(seconds)
    now_s[0] += seconds
"""


def test_four_calls_per_gpu_and_poll_and_none_for_polls_that_come_too_soon(fake: FakeNvml) -> None:
    fake.write()
    with start_readers(fake, "reader = ActivityReader(calls)", "first = device(0)", CLOCK) as child:
        child("read(reader, first)")
        calls, polls, values = [], 24, []
        for _ in range(polls):
            before = gpm_calls(fake)
            child("wait(0.115)")
            values.append(child("read(reader, first)")["values"])
            calls.append(gpm_calls(fake) - before)
            assert child("read(reader, first)")["values"] == values[-1]
        metrics = len(IDS) + 4  # and PCIe's and NVLink's traffic
        assert (calls[0], max(calls[1:])) == (1 + metrics, 4), "the second poll, and all after it"
        # SM, tensor and DRAM in three polls of four; each of the others at least once in eight.
        counts = read_counts(fake.counts_path)
        assert counts["nvmlGpmMetricsGet"] + counts["nvmlGpmSampleGet"] == 1 + sum(calls)
        assert counts["nvmlGpmSampleGet"] == 2 + (polls - 1) - (polls - 1) // 4, "three polls of four take one"
        assert not [name for name in counts if name.startswith("misuse")]
        child("first.release()")
        counts = read_counts(fake.counts_path)
        assert counts["nvmlGpmSampleAlloc"] == counts["nvmlGpmSampleFree"] <= 5


def gpm_calls(fake: FakeNvml) -> int:
    return sum(count for name, count in calls_on_gpu(fake.counts_path, 0).items() if name.startswith("nvmlGpm"))


def test_a_slow_metric_is_the_average_since_its_last_turn(fake: FakeNvml) -> None:
    """Occupancy has its turn at every eighth poll: what happened in between is not missed."""
    fake.set("gpu.0.gpm.3", "0")
    fake.write()
    with start_readers(fake, "reader = ActivityReader(calls)", "first = device(0)") as child:

        def poll(times: int) -> list[float | None]:
            found = []
            for _ in range(times):
                child("__import__('time').sleep(0.115)")
                found.append(child("read(reader, first)")["values"].get("sm_occupancy"))
            return found

        poll(3)  # all had their first turn
        fake.set("gpu.0.gpm.3", "100")
        fake.write()
        poll(1)  # of the eight, one sample interval or two at 100 %
        fake.set("gpu.0.gpm.3", "0")
        fake.write()
        values = [value for value in poll(8) if value]
        assert values
        assert 0.02 < values[0] < 0.7
