"""The GPU table: what it says of activity, throttling, memory and links, and what it keeps in 80 columns."""

from __future__ import annotations

import re

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
from mltop.probes.model.incident import Doing
from mltop.probes.model.vocabulary import WorkState
from mltop.probes.reach.view import NodeView
from mltop.tui.filters import FIELDS, Subject
from mltop.tui.render.cells import (
    Cell,
    Column,
    MeteredCell,
    Row,
    columns_line,
    header_line,
    layout,
    plain,
    unknown_columns,
)
from mltop.tui.render.gpus.table import (
    GPU_COLUMNS,
    GpuLine,
    errors_cell,
    flags_cell,
    free_row,
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
    return drawn([gpu_row(GpuLine(one, [RANK])) for one in gpus], gpu_columns(gpus, width), width)[0].split()


def cell(one: GpuSample, key: str) -> Cell:
    return row_cell(GpuLine(one), key)


def row_cell(line: GpuLine, key: str) -> Cell:
    return gpu_row(line).cells[[column.key for column in GPU_COLUMNS].index(key)]


def test_80_columns_hold_the_essentials() -> None:
    header, (line,) = drawn([gpu_row(GpuLine(gpu(), [RANK], doing=Doing("works")))], gpu_columns([gpu()]), 80)
    assert len(line) == 80
    assert " ".join(header.split()) == "GPU SM last 10 min TC DRAM POWER TEMP MEMORY RANK STATE"
    assert line.split() == ["0", "74%", "46%", "55%", "652/700W", "64C", "74/80G", "3", "works"]


@pytest.mark.parametrize(
    ("width", "more"),
    [
        (120, {"GHZ", "NVLINK"}),
        (200, {"GHZ", "NVLINK", "HBM", "PCIE", "THROTTLED", "BUSY", "PID"}),
    ],
)
def test_wider_terminals_show_more(width: int, more: set[str]) -> None:
    assert more <= set(titles([gpu()], width))
    assert not more & set(titles([gpu()], 80))


@pytest.mark.parametrize(("width", "graph"), [(80, 12), (109, 12), (110, 21), (159, 21), (160, 52), (200, 52)])
def test_a_wider_screen_has_a_wider_graph(width: int, graph: int) -> None:
    columns = gpu_columns([gpu()], width)
    shown = dict(layout(columns, width, unknown_columns(columns, [gpu_row(GpuLine(gpu()))])))
    assert shown[[column.key for column in columns].index("graph")] >= graph


def test_an_alarm_of_the_memory_is_worth_more_than_activity_of_parts_and_an_old_repair_is_not() -> None:
    alarm, old = gpu(remap=Remap(pending=True)), gpu(remap=Remap(corrected=1))
    assert {"FLAGS", "SM"} <= set(titles([alarm], 80))
    assert "FLAGS" not in titles([old], 80) and "DRAM" in titles([old], 80)
    assert "FLAGS" in titles([old], 240) and "FLAGS" not in titles([gpu()], 240)


def test_where_only_gpu_util_is_known_it_stands_in_the_place_of_activity() -> None:
    unknown = gpu(sm_active=None, tensor_active=None, dram_active=None, activity_source=None)
    for width in (80, 120):
        header, (line,) = drawn([gpu_row(GpuLine(unknown, [RANK]))], gpu_columns([unknown], width), width)
        assert header.split()[:3] == ["GPU", "BUSY", "busy,"] and "SM" not in header
        assert line.split()[:2] == ["0", "97%"]
    assert "SM" in titles([unknown, gpu(1)], 80), "of one GPU at least it is known"


@pytest.mark.parametrize(
    ("mark", "text", "style"),
    [("", "", ""), ("warn", "▲", "warn"), ("crit", "▲", "crit"), ("stands", "■", "crit")],
)
def test_what_is_wrong_has_a_mark_in_the_gutter(mark: str, text: str, style: str) -> None:
    row = gpu_row(GpuLine(gpu(), mark=mark))
    assert row.cells[0] == Cell(text, style)
    _, (line,) = drawn([row], GPU_COLUMNS, 80)
    assert line.startswith(f"{text or ' '}  0"), "no gap behind it: the index has its own"


@pytest.mark.parametrize(
    ("doing", "text", "narrow", "style"),
    [
        (Doing("works"), "works", "works", ""),
        (Doing("waits", 10.0, "all_reduce"), "waits 6m28s", "waits 6m", "waits"),
        (Doing("waits", 380.0), "waits 18s", "waits 18s", "waits"),
        (Doing("stands", 10.0), "stuck 6m28s", "stuck 6m", "crit"),
        (Doing("alone", 10.0), "computes alone 6m28s", "alone 6m", "warn"),
        (Doing("throttled", where="hw_thermal"), "throttled", "throttled", "warn"),
        (Doing("starting", 10.0), "starting", "starting", ""),
        (Doing("idle"), "idle", "idle", "dim"),
        (Doing("unknown"), "–", "–", "dim"),
    ],
)
def test_what_it_does_in_words(doing: Doing, text: str, narrow: str, style: str) -> None:
    found = row_cell(GpuLine(gpu(), doing=doing, now=398.0), "state")
    assert (found.text, found.style) == (text, style)
    for cells, expected in ((20, text), (9, narrow)):
        line = columns_line([Column("s", "S", cells)], Row("", (found,)), [(0, cells)])
        assert plain(line) == expected.ljust(cells)
        assert {cell.style for cell in line if cell.text.strip()} == {style}


def test_the_gravest_state_sorts_first() -> None:
    states: list[WorkState] = ["works", "unknown", "waits", "stands", "throttled", "idle"]
    lines = [GpuLine(gpu(), doing=Doing(state)) for state in states]
    ordered = sorted(lines, key=lambda line: gpu_value("state", line) or 0)
    assert [line.doing.state for line in ordered] == ["stands", "throttled", "waits", "unknown", "idle", "works"]


@pytest.mark.parametrize(
    ("mhz", "reasons", "text", "style"),
    [
        (1755, [], "1.75", ""),
        (1980, ["sw_power_cap"], "1.98", ""),
        (345, ["hw_thermal"], "0.34", "warn"),
        (1200, ["gpu_idle"], "1.20", ""),
        (None, [], "–", ""),
        (1755, None, "1.75", ""),
    ],
)
def test_the_clock_is_in_ghz_and_coloured_where_it_is_held_down(
    mhz: float | None, reasons: list[str] | None, text: str, style: str
) -> None:
    found = cell(gpu(sm_clock_mhz=mhz, throttle_reasons=reasons), "clock")
    assert (found.text, found.style) == (text, style)


@pytest.mark.parametrize(
    ("fields", "styles"),
    [
        ({}, ["", "dim"]),
        ({"throttle_reasons": ["sw_power_cap"]}, ["warn", "dim"]),
        ({"throttle_reasons": ["sw_power_cap"], "sm_clock_mhz": 1980}, ["", "dim"]),  # it costs nothing
        ({"throttle_reasons": ["sw_power_cap"], "sm_clock_mhz": None}, ["", "dim"]),
    ],
)
def test_power_is_coloured_while_its_cap_lowers_the_clock(fields: dict[str, object], styles: list[str]) -> None:
    found = cell(gpu(**fields), "power")
    assert isinstance(found, MeteredCell) and found.text == "652/700W"
    assert [part.style for part in found.fitted(8)] == styles
    assert plain(found.fitted(10)) == "  652/700W" and len(plain(found.fitted(5))) == 5


def test_gpus_that_nobody_uses_are_one_row() -> None:
    free = [
        gpu(index, sm_active=0.0, power_w=watts, temperature_c=heat)
        for index, watts, heat in ((4, 66.0, 34.0), (5, 72.4, 34.2), (7, 70.0, None))
    ]
    row = free_row(free)
    _, (line,) = drawn([row], GPU_COLUMNS, 80)
    assert row.key == "4" and len(line) == 80
    assert line.rstrip() == "      4-5,7  idle, no process; 0% SM, 66-72W, 34C", "all of which, where they are many"
    _, (line,) = drawn([free_row(free[:2])], GPU_COLUMNS, 80)
    assert line.rstrip() == " 4-5  idle, no process; 0% SM, 66-72W, 34C"
    bare = free_row([GpuSample(4), GpuSample(5)])
    assert bare.banner == Cell("idle, no process", "dim"), "what is not known is not there"


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
def test_a_gpu_that_only_waits_contradicts_itself(
    busy: float | None, sm: float | None, tensor: float | None, marked: bool
) -> None:
    one = gpu(busy=busy, sm_active=sm, tensor_active=tensor)
    assert spins(one) == marked


@pytest.mark.parametrize(
    ("reasons", "shares", "text", "style"),
    [
        (None, {}, "–", ""),
        ([], {}, "", ""),
        (["sw_power_cap"], {"sw_power_cap": 1.0}, "power cap 100%", "dim"),
        (["hw_thermal", "hw_slowdown"], {"hw_thermal": 0.34}, "too hot 34%", "crit"),
        ([], {"hw_thermal": 0.34}, "too hot 34%", "crit"),  # held in between
        ([], {"hw_thermal": 0.001}, "", ""),
        (["power_brake", "sw_power_cap"], {"power_brake": 1.2}, "PSU brake 100%, power cap", "crit"),
        (["hw_slowdown"], {}, "HW slowdown", "warn"),
        (["sw_thermal"], {}, "hot", "warn"),
        (["gpu_idle"], {"low_utilization": 1.0}, "", ""),
        (None, {"hw_thermal": 0.5}, "too hot 50%", "crit"),
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
        (Nvlink([NvlinkLink(0, True), NvlinkLink(1, False)], 0.0, 0.0), "1/2 up", "crit"),
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
    assert memory_text(GpuSample(0, memory_used_bytes=used, memory_total_bytes=total)) == text
    assert memory_text(MigInstance(0, memory_used_bytes=used, memory_total_bytes=total)) == text
    _, (line,) = drawn([gpu_row(GpuLine(gpu(memory_used_bytes=used, memory_total_bytes=total)))], GPU_COLUMNS, 80)
    assert f" {text} " in line, "whole, also where it is narrow"


def test_memory_that_is_the_hosts_says_so() -> None:
    assert memory_text(GpuSample(0, unified_memory=True)) == "unified"


def test_an_instance_has_its_own_memory_activity_and_processes() -> None:
    processes = [GpuProcess(11, gpu_instance=1), GpuProcess(22, gpu_instance=2)]
    instance = MigInstance(1, name="1g.10gb", gpu_instance=2, memory_used_bytes=GIB, memory_total_bytes=10 * GIB)
    row = mig_row(gpu(3, processes=processes, mig_enabled=True), instance)
    text = {column.key: cell.text for column, cell in zip(GPU_COLUMNS, row.cells, strict=True)}
    assert row.key == "3.1"
    assert (text["gpu"], text["state"], text["memory"], text["pid"]) == ("└1", "1g.10gb", "1.0/10G", "22")
    assert (text["sm"], text["power"], text["temperature"]) == ("–", "", ""), "unknown is not: nothing to know"


def test_every_column_can_be_sorted_by_a_value() -> None:
    named = {column.key for column in GPU_COLUMNS if column.title} - {"graph"}
    one = gpu(remap=Remap(pending=True), throttle_reasons=["hw_thermal"], memory_temperature_c=70.0, name="H100")
    one.temperature_margin_c, one.pci_bus_id = 9.0, "00000000:1B:00.0"
    assert {key for key in named if gpu_value(key, GpuLine(one, [RANK])) is None} == set()
    lost = GpuSample(3, state="lost", busy=1.0)
    assert gpu_value("busy", GpuLine(lost)) is None and gpu_value("gpu", GpuLine(lost)) == 3
    assert gpu_value("throttle", GpuLine(one)) < gpu_value("throttle", GpuLine(gpu())), "the worst comes first"
    assert gpu_value("pid", GpuLine(gpu(processes=[GpuProcess(88)]))) == 88


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


@pytest.mark.parametrize("width", [80, 109, 110, 120, 200])
def test_power_and_memory_have_meters_from_110_columns(width: int) -> None:
    one = gpu(power_w=350.0, power_limit_w=700.0, memory_used_bytes=20 << 30, memory_total_bytes=80 << 30)
    _, (line,) = drawn([gpu_row(GpuLine(one, [RANK]))], gpu_columns([one], width), width)
    assert "350/700W" in line and "20/80G" in line
    meters = re.findall(r"(━+╸?)─+ +(\S+)", line)
    assert [words for _, words in meters] == (["350/700W", "20/80G"] if width >= 110 else [])
    assert not meters or len(meters[0][0]) > len(meters[1][0])


def test_what_is_not_known_has_no_meter() -> None:
    one = gpu(power_w=None, power_limit_w=700.0, memory_used_bytes=None, memory_total_bytes=80 << 30)
    _, (line,) = drawn([gpu_row(GpuLine(one, [RANK]))], gpu_columns([one], 120), 120)
    assert "─ " not in line
