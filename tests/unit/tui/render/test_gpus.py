"""The GPU table: what it says of activity, throttling, memory and links, and what it keeps in 80 columns."""

from __future__ import annotations

import pytest

from mltop.probes.model import (
    Ecc,
    GpuProcess,
    GpuSample,
    MigInstance,
    NodeState,
    Nvlink,
    NvlinkLink,
    Pcie,
    RankSample,
    Remap,
    RemapBanks,
    Sample,
)
from mltop.probes.reach.view import NodeView
from mltop.tui.filters import FIELDS, Subject
from mltop.tui.render.cells import Cell, Column, Row, columns_line, header_line, layout, plain, unknown_columns
from mltop.tui.render.gpus.table import (
    GPU_COLUMNS,
    GpuLine,
    errors_cell,
    flags_cell,
    gpu_columns,
    gpu_row,
    gpu_value,
    link_row,
    memory_text,
    mig_row,
    nvlink_cell,
    pcie_cell,
    spins,
)
from mltop.tui.render.gpus.throttle import gpu_throttle_cell

GIB = 2**30
RANK = RankSample(4711, rank=3, gpus=[0], state="S", user="anna", command="python train.py")


def gpu(index: int = 0, **fields: object) -> GpuSample:
    known: dict[str, object] = {
        "busy": 0.97,
        "sm_active": 0.74,
        "tensor_active": 0.46,
        "dram_active": 0.55,
        "activity_source": "gpm",
        "memory_used_bytes": 74 * GIB,
        "memory_total_bytes": 80 * GIB,
        "temperature_c": 64.0,
        "memory_temperature_c": 71.0,
        "power_w": 652.0,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "throttle_reasons": [],
        "processes": [],
        "pcie": Pcie(5, 5, 16, 16, 0, 1.0e9, 0.2e9),
        "nvlink": Nvlink([NvlinkLink(link, True) for link in range(18)], 1.2e11, 1.2e11),
    }
    return GpuSample(index, **{**known, **fields})


def drawn(rows: list[Row], columns: tuple[Column, ...], width: int) -> tuple[str, list[str]]:
    shown = layout(columns, width, unknown_columns(columns, rows))
    return plain(header_line(columns, shown)), [plain(columns_line(columns, row, shown)) for row in rows]


def titles(gpus: list[GpuSample], width: int) -> list[str]:
    return drawn([gpu_row(one, [RANK]) for one in gpus], gpu_columns(gpus), width)[0].split()


def cell(one: GpuSample, key: str) -> Cell:
    return gpu_row(one, []).cells[[column.key for column in GPU_COLUMNS].index(key)]


def test_80_columns_hold_the_essentials_and_the_users() -> None:
    header, (line,) = drawn([gpu_row(gpu(), [RANK])], GPU_COLUMNS, 80)
    assert len(line) == 80
    assert header.split() == [
        "GPU",
        "BUSY",
        "SM",
        "TC",
        "DRAM",
        "MHZ/MAX",
        "TEMP",
        "PWR/LIM",
        "MEMORY",
        "THROTTLE",
        "RANK",
        "PID",
    ]
    assert line.split() == ["0", "97%", "74%", "46%", "55%", "1755/1980", "64C", "652/700W", "74/80G", "3", "4711"]


@pytest.mark.parametrize(
    ("width", "more"),
    [
        (120, {"HBM", "NVLINK", "PCIE"}),
        (200, {"HBM", "NVLINK", "PCIE", "USER", "STATE", "MODEL", "TREND"}),
    ],
)
def test_wider_terminals_show_more(width: int, more: set[str]) -> None:
    assert more <= set(titles([gpu()], width))


def test_an_alarm_of_the_memory_is_worth_more_than_a_pid_and_an_old_repair_is_not() -> None:
    alarm, old = gpu(remap=Remap(pending=True)), gpu(remap=Remap(corrected=1))
    assert {"FLAGS", "SM", "TC"} <= set(titles([alarm], 80))
    assert "FLAGS" not in titles([old], 80) and "DRAM" in titles([old], 80)
    assert "FLAGS" in titles([old], 140) and "FLAGS" not in titles([gpu()], 200)


def test_where_activity_is_unknown_the_gauge_of_gpu_util_is_called_coarse() -> None:
    unknown = gpu(sm_active=None, tensor_active=None, dram_active=None, activity_source=None)
    for width in (80, 120):
        header, (line,) = drawn([gpu_row(unknown, [RANK])], gpu_columns([unknown]), width)
        assert header.split()[:3] == ["GPU", "BUSY", "coarse"] and "SM" in header
        assert "–" in line.split()
    assert "coarse" not in titles([unknown, gpu(1)], 200), "of one GPU at least it is known"


@pytest.mark.parametrize(
    ("busy", "sm", "tensor", "marked"),
    [
        (1.0, 0.11, 0.0, True),
        (0.95, 0.24, 0.01, True),
        (0.94, 0.11, 0.0, False),
        (1.0, 0.30, 0.0, False),
        (1.0, 0.11, 0.10, False),  # tensor cores work: small kernels
        (1.0, 0.11, None, False),
        (1.0, None, 0.0, False),
        (None, 0.11, 0.0, False),
    ],
)
def test_a_gpu_that_only_waits_is_marked_where_it_contradicts_itself(
    busy: float | None, sm: float | None, tensor: float | None, marked: bool
) -> None:
    one = gpu(busy=busy, sm_active=sm, tensor_active=tensor)
    assert spins(one) == marked
    found = cell(one, "sm")
    assert (found.text.startswith("≠"), found.style == "accent") == (marked, marked)


@pytest.mark.parametrize(
    ("reasons", "shares", "text", "style"),
    [
        (None, {}, "–", ""),
        ([], {}, "", ""),
        (["sw_power_cap"], {"sw_power_cap": 1.0}, "PWR 100%", "dim"),
        (["hw_thermal", "hw_slowdown"], {"hw_thermal": 0.34}, "HW-TH 34%", "crit"),
        ([], {"hw_thermal": 0.34}, "HW-TH 34%", "crit"),  # held in between
        ([], {"hw_thermal": 0.001}, "", ""),
        (["power_brake", "sw_power_cap"], {"power_brake": 1.2}, "BRAKE 100% PWR", "crit"),
        (["hw_slowdown"], {}, "HW-SL", "warn"),
        (["sw_thermal"], {}, "SW-TH", "warn"),
        (["gpu_idle"], {"low_utilization": 1.0}, "idle", "dim"),
        (None, {"hw_thermal": 0.5}, "HW-TH 50%", "crit"),
        (["something_new"], {}, "something_new", ""),
    ],
)
def test_throttle_badges(reasons: list[str] | None, shares: dict[str, float], text: str, style: str) -> None:
    found = gpu_throttle_cell(gpu(throttle_reasons=reasons, throttle_share=shares))
    assert (found.text, found.style) == (text, style)


@pytest.mark.parametrize(
    ("fields", "text", "style"),
    [
        ({}, "", ""),
        ({"ecc": Ecc(True, True, 0, 0, 9, 9)}, "", ""),  # of the board's life: no alarm
        ({"ecc": Ecc(uncorrected_volatile=2)}, "ecc 2", "crit"),
        ({"ecc": Ecc(corrected_volatile=12_300)}, "corr 12.3k", ""),
        ({"ecc": Ecc(sram_threshold_exceeded=True)}, "sram!", "crit"),
        ({"remap": Remap(pending=True, uncorrected=1)}, "remap! row 1", "warn"),
        ({"remap": Remap(repair_pending=True)}, "remap!", "warn"),
        ({"remap": Remap(corrected=500, uncorrected=12)}, "row 512", ""),
        ({"remap": Remap(failed=True, pending=True)}, "remap failed remap!", "crit"),
        ({"remap": Remap(banks=RemapBanks(none=2))}, "bank 2", "warn"),
        ({"retired_pages": 7}, "page 7", ""),
        ({"recovery_action": "none"}, "", ""),
        ({"recovery_action": "gpu_reset"}, "wants gpu reset", "crit"),
    ],
)
def test_flags_only_where_there_is_something(fields: dict[str, object], text: str, style: str) -> None:
    found = flags_cell(gpu(**fields))
    assert (found.text, found.style) == (text, style)


@pytest.mark.parametrize(
    ("nvlink", "text", "style"),
    [
        (Nvlink(), "–", ""),
        (Nvlink(rx_bytes_per_s=1e9), "1.0G/s", ""),
        (Nvlink([NvlinkLink(0, True), NvlinkLink(1, True)]), "2/2", ""),
        (Nvlink([NvlinkLink(0, True), NvlinkLink(1, False)], 0.0, 0.0), "1/2 0/s", "crit"),
        (Nvlink([NvlinkLink(0), NvlinkLink(1)]), "–", ""),
        (Nvlink([NvlinkLink(0, True), NvlinkLink(1)]), "1/2", ""),  # unknown is not down
    ],
)
def test_nvlinks(nvlink: Nvlink, text: str, style: str) -> None:
    found = nvlink_cell(nvlink)
    assert (found.text, found.style) == (text, style)


def test_errors_of_a_link_and_their_growth() -> None:
    assert errors_cell({}, {}).text == "–", "no counter could be read: that is not none"
    assert errors_cell({"replay": 0, "crc": 0}, {}).text == "none"
    old = errors_cell({"replay": 3, "crc": 0}, {})
    assert (old.text, old.style) == ("replay 3", "")
    grown = errors_cell({"replay": 12, "crc": 1}, {"replay": 3})
    assert (grown.text, grown.style) == ("replay 12 (+3), crc 1", "warn")
    assert [cell.text for cell in link_row(NvlinkLink(4, False), {}).cells] == ["4", "DOWN", "–", "–", "–", "–"]


@pytest.mark.parametrize(
    ("pcie", "text", "style"),
    [
        (Pcie(), "–", ""),
        (Pcie(5, 5, 16, 16), "5x16", ""),
        (Pcie(1, 5, 16, 16, 0, 0.0, 0.0), "1x16 0/s", ""),  # idle links run slowly
        (Pcie(5, 5, 8, 16, 0, 1e9, 2e9), "5x8! 3.0G/s", "warn"),
        (Pcie(None, None, 16), "–x16", ""),
    ],
)
def test_pcie(pcie: Pcie, text: str, style: str) -> None:
    found = pcie_cell(pcie)
    assert (found.text, found.style) == (text, style)


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [
        (int(74.6 * GIB), 80 * GIB, "74/80G"),
        (GIB // 2, 80 * GIB, "512M/80G"),
        (int(7.4 * GIB), 80 * GIB, "7.4/80G"),
        (None, None, "–"),
        (None, GIB, "–/1.0G"),
        (0, GIB, "0B/1.0G"),
    ],
)
def test_memory_in_few_letters(used: int | None, total: int | None, text: str) -> None:
    assert memory_text(used, total) == text


def test_an_instance_has_its_own_memory_activity_and_processes() -> None:
    processes = [GpuProcess(11, gpu_instance=1), GpuProcess(22, gpu_instance=2)]
    instance = MigInstance(1, name="1g.10gb", gpu_instance=2, memory_used_bytes=GIB, memory_total_bytes=10 * GIB)
    row = mig_row(gpu(3, processes=processes, mig_enabled=True), instance)
    text = {column.key: cell.text for column, cell in zip(GPU_COLUMNS, row.cells, strict=True)}
    assert row.key == "3.1"
    assert (text["gpu"], text["clock"], text["memory"], text["pid"]) == ("└1", "1g.10gb", "1.0/10G", "22")
    assert (text["sm"], text["power"], text["temperature"]) == ("–", "", ""), "unknown is not: nothing to know"


def test_every_column_can_be_sorted_by_a_value() -> None:
    named = {column.key for column in GPU_COLUMNS if column.title}
    one = gpu(remap=Remap(pending=True), throttle_reasons=["hw_thermal"], memory_temperature_c=70.0, name="H100")
    one.temperature_margin_c, one.pci_bus_id = 9.0, "00000000:1B:00.0"
    assert {key for key in named if gpu_value(key, one, [RANK]) is None} == set()
    lost = GpuSample(3, state="lost", busy=1.0)
    assert gpu_value("busy", lost, []) is None and gpu_value("gpu", lost, []) == 3
    assert gpu_value("throttle", one, []) < gpu_value("throttle", gpu(), []), "the worst comes first"
    assert gpu_value("pid", gpu(processes=[GpuProcess(88)]), []) == 88


@pytest.mark.parametrize("column", [column for column in GPU_COLUMNS if column.field], ids=lambda column: column.key)
def test_a_column_is_one_row(column: Column) -> None:
    """What a filter asks for, its unit, and what the table is sorted by are the column's own."""
    one = gpu(7, name="NVIDIA H100")
    view = NodeView(NodeState("n1", "live"), Sample("n1", 0.0, gpus=[one]))
    field = FIELDS[column.field]
    assert (field.of, field.unit, field.meaning) == ("gpu", column.unit, column.meaning)
    assert field.get(Subject(view, one)) == column.value(GpuLine(one)) is not None


def test_what_an_instance_measures_itself_stands_in_its_row() -> None:
    instance = MigInstance(0, sm_active=0.5, tensor_active=0.25, dram_active=0.75)
    cells = {column.key: found.text for column, found in zip(GPU_COLUMNS, mig_row(gpu(), instance).cells, strict=True)}
    assert (cells["sm"], cells["tensor"], cells["dram"]) == ("50%", "25%", "75%")
