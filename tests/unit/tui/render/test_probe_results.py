"""Cells of results: units, comparisons, wrong bits, progress and why there is none, the order of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mltop.probes.investigate.probing.wanted import DeviceProgress, ProbeProgress, ProbeWanted
from mltop.probes.model.probe import (
    DeviceResult,
    MatmulResult,
    MemoryResult,
    PastResult,
    Phase,
    ProbeFailure,
    ProbeReport,
)
from mltop.probes.model.units import bandwidth, flops, short_time, signed_percent, size_text, work_done
from mltop.tui.render.cells import row_of
from mltop.tui.render.probes.devices import Compared, Line, banner_of, slowest_first
from mltop.tui.render.probes.kinds import TABLES
from mltop.tui.render.units import heights
from mltop.tui.screens.probes.tables import table_of


@pytest.mark.parametrize(
    ("call", "value", "text"),
    [
        (flops, None, "–"), (flops, 781.3, "781T"), (flops, 1402.4, "1402T"), (flops, 63.17, "63.2T"),
        (flops, 0.2683, "268G"), (flops, float("nan"), "–"), (flops, 0.0, "0.00G"),
        (bandwidth, 2.908e12, "2908G/s"), (bandwidth, 48.2e9, "48.2G/s"), (bandwidth, 3.2e8, "320M/s"),
        (bandwidth, 9.4e3, "9.40k/s"), (bandwidth, None, "–"), (bandwidth, 0.99996e9, "1.00G/s"),
        (size_text, 256 << 20, "256M"), (size_text, 1 << 30, "1G"), (size_text, 3 << 29, "1.5G"), (size_text, 0, "0B"),
        (short_time, 31e-6, "31us"), (short_time, 4.93e-3, "4.93ms"), (short_time, 2.41, "2.41s"),
        (short_time, None, "–"),
        (work_done, 3.14, "3.1 PFLOP"), (work_done, 0.42, "420 TFLOP"), (work_done, 2e-4, "200 GFLOP"),
        (signed_percent, -0.312, "-31%"), (signed_percent, 0.001, "0%"), (signed_percent, 0.03, "+3%"),
    ],
)  # fmt: skip
def test_units(call: object, value: float | None, text: str) -> None:
    assert call(value) == text  # type: ignore[operator]


def test_heights_show_falls_but_not_noise() -> None:
    assert min(heights([700, 705, 701])) > 0.9
    fallen = heights([700, 705, 500])
    assert fallen[2] == 0 and fallen[1] == 1
    assert heights([]) == [] and heights([0.0]) == [0.0]


def result(gpu: int = 0, tflops: float | None = 700, **fields: object) -> MatmulResult:
    made = MatmulResult("n1", gpu, f"GPU-{gpu}", "NVIDIA Foo", versions={"torch": "2.5"}, sustained_tflops=tflops)
    return replace(made, **fields)  # type: ignore[arg-type]


def cell(made: DeviceResult, column: str, kind: str = "matmul") -> tuple[str, str]:
    columns = TABLES[kind].columns
    row = row_of(columns, Line(DeviceProgress("n1", 0, result=made), "0"), "0")
    found = row.cells[[one.key for one in columns].index(column)]
    return found.text, found.style


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"checked_iterations": 64, "checked_pflop": 3.1}, ("0 in 3.1P", "")),
        ({"checked_iterations": 64, "corrupt_iterations": 3}, ("3 of 64!", "crit")),
        ({"upload_intact": False}, ("UPLOAD!", "crit")),
        ({}, ("–", "dim")),
    ],
)
def test_wrong_bits(fields: dict[str, object], shown: tuple[str, str]) -> None:
    assert cell(result(**fields), "checked") == shown


def test_load_is_that_of_the_phase_without_a_pause() -> None:
    phases = [
        Phase("burst", 9.0, 500, 700, 700, 1980, 1980, 50),
        Phase("sustained", 3.0, 499, 500, 700, 1210, 1980, 91, {"hw_thermal": 0.62, "sw_power_cap": 0.3}),
    ]
    made = result(phases=phases)
    assert (cell(made, "clock"), cell(made, "clock_max")) == (("1210", ""), ("1980", ""))
    assert cell(made, "power") == ("499/500W!", "warn"), "the limit was lowered"
    assert cell(made, "temperature")[0] == "91C"
    assert cell(made, "throttle") == ("too hot 62%", "crit"), "what is normal under load goes where there is worse"
    assert cell(result(phases=phases[:1]), "clock")[0] == "1980"
    assert cell(result(), "clock")[0] == "–" and cell(result(), "throttle")[0] == "–"
    assert cell(result(phases=[replace(phases[0], throttle_share={})]), "throttle")[0] == "", "known: nothing"


def compared(results: list[MatmulResult], past: list[PastResult]) -> list[str]:
    found = Compared(results, {"GPU-0": past}, 1000.0)
    return [against.cell.text if (against := found.of(one)) else "-" for one in results]


def earlier(value: float, at: float, torch: str = "2.5") -> PastResult:
    return PastResult("GPU-0", "matmul bf16 sustained", value, at, {"torch": torch})


def test_own_history_goes_before_peers() -> None:
    results = [result(0, 600), *(result(gpu, 700) for gpu in range(1, 5))]
    assert compared(results, []) == ["-14% peers", "0% peers", "0% peers", "0% peers", "0% peers"]
    past = [earlier(610, 1), earlier(605, 2)]
    assert compared(results, past)[0] == "-1% own"
    assert compared(results, [earlier(900, 1, torch="1.0")])[0] == "-14% peers", "other versions tell nothing"
    assert compared(results[:1], [earlier(650, 1)])[0] == "-8% own", "one is better than none"
    assert compared(results[:1], []) == ["-"]
    assert compared(results, [*past, earlier(300, 1000), earlier(300, 1000), earlier(300, 1000)])[0] == "-1% own", (
        "what this run has left itself does not count"
    )


def test_only_what_is_slow_is_coloured() -> None:
    results = [result(0, 600), result(5, 660), *(result(gpu, 700 + gpu) for gpu in range(1, 5))]
    found = Compared(results, {}, None)
    cells = [against.cell for one in results if (against := found.of(one))]
    assert [one.style for one in cells] == ["warn", "warn", "", "", "", ""]


@pytest.mark.parametrize(("shape", "said"), [([2048, 2048, 13312], "-10% table"), ([10240, 15360, 8192], None)])
def test_a_burst_of_the_published_shape_is_compared_with_the_figure_and_accuses_nobody(
    shape: list[int], said: str | None
) -> None:
    made = result(0, 500, name="NVIDIA H100 80GB HBM3", pci_device="2330", burst_tflops=715, shape=shape)
    against = Compared([made], {}, None).of(made)
    assert (against and (against.cell.text, against.cell.style)) == (said and (said, ""))


@pytest.mark.parametrize(
    ("line", "text", "style"),
    [
        (Line(DeviceProgress("n1", 0), "0"), "waits", "dim"),
        (Line(DeviceProgress("n1", 0, stage="burst"), "0"), "burst", "accent"),
        (Line(DeviceProgress("n1", 0, stage="burst", fraction=0.5), "0"), "━━━━━━━━━━────────── 50%", "accent"),
        (Line(DeviceProgress("n1", 0, problem="CUDA error"), "0"), "failed: CUDA error", "crit"),
        (Line(DeviceProgress("n1", 0, problem="in use"), "0", refused=True), "left out: in use", "warn"),
    ],
)
def test_how_far_it_is(line: Line, text: str, style: str) -> None:
    found = banner_of(line)
    assert text in found.text and found.style == style


def test_order_wrong_failed_slowest_under_way_left_out() -> None:
    lines = {
        "left out": Line(DeviceProgress("n1", 0, problem="in use"), "0", refused=True),
        "fast": Line(DeviceProgress("n1", 1, result=result(1, 700)), "1"),
        "under way": Line(DeviceProgress("n1", 2, stage="burst"), "2"),
        "failed": Line(DeviceProgress("n1", 3, problem="CUDA error"), "3"),
        "slow": Line(DeviceProgress("n1", 4, result=result(4, 400)), "4"),
        "wrong": Line(DeviceProgress("n1", 5, result=result(5, 700, corrupt_iterations=1)), "5"),
        "unknown": Line(DeviceProgress("n1", 6, result=result(6, None)), "6"),
    }
    order = sorted(lines, key=lambda key: slowest_first(lines[key]))
    assert order == ["wrong", "failed", "unknown", "slow", "fast", "under way", "left out"]


def test_rows_of_the_report_when_nobody_told_of_devices() -> None:
    made = [MemoryResult("n1", 0, "GPU-0", copy_bytes_per_s=2.9e12), MemoryResult("n2", 0, "GPU-9")]
    report = ProbeReport("memory", 0.0, results=list(made))
    table = table_of(ProbeProgress(ProbeWanted("memory"), "done", report=report), {})
    rows = [table.make(at) for at in range(len(table.keys))]
    assert [row.cells[0].text for row in rows] == ["n2/0", "n1/0"], "what is not known comes before the fastest"
    assert table.columns[0].title == "NODE/GPU" and list(map(table.about, table.keys)) == [("n2", 0), ("n1", 0)]


def test_refused_is_told_from_failed() -> None:
    devices = tuple(DeviceProgress("n1", gpu, f"GPU-{gpu}", problem="why") for gpu in range(2))
    failures = (ProbeFailure("n1", "why", 0, refused=True), ProbeFailure("n1", "why", 1))
    progress = ProbeProgress(ProbeWanted("matmul"), "running", devices=devices, failures=failures)
    table = table_of(progress, {})
    banners = [row.banner.text for row in map(table.make, range(2)) if row.banner]
    assert banners == ["failed: why", "left out: why"]
