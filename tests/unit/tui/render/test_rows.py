"""GPUs, ranks, nodes and findings as rows: normal, unknown everywhere, lost, dead, huge and negative."""

import time

import pytest

from mltop.probes.model import (
    Finding,
    Gap,
    GpuProcess,
    GpuSample,
    Incident,
    NodeState,
    Pcie,
    RankSample,
    Sample,
)
from mltop.probes.model.incident import Doing
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import EitherCell, aged, columns_line, header_line, layout, plain, unknown_columns
from mltop.tui.render.earlier import EarlierRank
from mltop.tui.render.findings import (
    merged_gaps,
    worst,
)
from mltop.tui.render.fleet.nodes import NODE_COLUMNS, node_row
from mltop.tui.render.gpus.table import GPU_COLUMNS, GpuLine, gpu_row, throttle_cell
from mltop.tui.render.links import LINK_COLUMNS, PCI_COLUMNS
from mltop.tui.render.ranks import RANK_COLUMNS, RankLine, rank_columns, rank_row, short_command
from mltop.tui.render.story import Scope, stories_of

GIB = 2**30


def gpu(index=0, **fields):
    normal = {
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "00000000:19:00.0",
        "busy": 0.97,
        "memory_used_bytes": 74 * GIB,
        "memory_total_bytes": 80 * GIB,
        "temperature_c": 64.0,
        "power_w": 652.0,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "throttle_reasons": [],
        "processes": [],
    }
    return GpuSample(index, **{**normal, **fields})


def rank(number=3, **fields):
    normal = {
        "pid": 4711 + (number or 0),
        "rank": number,
        "gpus": [0],
        "state": "S",
        "user": "anna",
        "command": "python train.py",
        "job": "77",
        "launcher": "torchrun",
        "started_at": 5.0,
        "cpu_fraction": 1.02,
        "rss_bytes": 12 * GIB,
    }
    return RankSample(**{**normal, **fields})


def cells_of(columns, row):
    assert len(row.cells) == len(columns)
    return {column.key: cell for column, cell in zip(columns, row.cells, strict=True)}


def drawn(columns, row, width):
    return plain(columns_line(columns, row, layout(columns, width, unknown_columns(columns, [row]))))


# GPUs


def test_a_gpu_that_works():
    line = GpuLine(gpu(), [rank()], doing=Doing("works"))
    cells = cells_of(GPU_COLUMNS, gpu_row(line))
    text = {key: cell.text.strip() for key, cell in cells.items()}
    assert text["busy"] == "97%"
    assert text["clock"] == "1.75"
    assert text["temperature"] == "64C"
    assert text["power"] == "652/700W"
    assert text["memory"] == "74/80G"
    assert text["throttle"] == text["mark"] == ""
    assert (text["rank"], text["pid"], text["state"], text["user"]) == ("3", "4714", "works", "anna")
    assert text["name"] == "H100 80GB HBM3"
    assert {cell.style for cell in cells.values()} <= {"", "dim"}


@pytest.mark.parametrize("width", [120, 200])
def test_wider_terminals_show_more(width):
    narrow, wide = (drawn(GPU_COLUMNS, gpu_row(GpuLine(gpu(), [rank()])), cells) for cells in (width - 40, width))
    assert len(wide.split()) > len(narrow.split())


def test_a_gpu_of_which_nothing_is_known():
    cells = cells_of(GPU_COLUMNS, gpu_row(GpuLine(GpuSample(4))))
    assert cells["gpu"].text == "4"
    for key in ("busy", "clock", "temperature", "power", "memory", "throttle", "pid", "name", "bus", "sm"):
        assert cells[key].text == "–", key
    assert cells["state"].text == "–" and cells["graph"].text == ""
    assert not any(char.isdigit() for key, cell in cells.items() if key != "gpu" for char in cell.text)


def test_columns_of_what_not_every_gpu_has_are_left_out_until_something_fills_them():
    rows = [gpu_row(GpuLine(gpu(index))) for index in range(8)]
    hidden = {GPU_COLUMNS[index].key for index in unknown_columns(GPU_COLUMNS, rows)}
    assert hidden == {"hbm", "margin", "flags", "nvlink", "pcie", "clocks", "held"}, (
        "activity is not: that it is unknown is shown"
    )
    rows[5] = gpu_row(GpuLine(gpu(5, sm_active=0.61, pcie=Pcie(gen=5, width=16))))
    assert {GPU_COLUMNS[index].key for index in unknown_columns(GPU_COLUMNS, rows)} == hidden - {"pcie"}
    assert cells_of(GPU_COLUMNS, rows[5])["pcie"].text == "5x16"


def test_a_lost_gpu_says_since_when_and_why():
    at = time.mktime((2026, 11, 20, 12, 41, 7, 0, 0, -1))
    lost = GpuSample(6, state="lost", error="GPU is lost", last_seen_at=at)
    row = gpu_row(GpuLine(lost, [rank(), rank(4)]))
    assert row.banner.text == "LOST since 12:41:07, rank 3,4 pid 4714+1 – GPU is lost"
    assert row.banner.style == "crit"
    assert drawn(GPU_COLUMNS, row, 80).startswith("   6  LOST since 12:41:07, rank 3,4 pid 4714+1 – GPU is lost")
    assert "LOST" in row.text


def test_a_gpu_with_an_error_and_no_reason():
    row = gpu_row(GpuLine(GpuSample(1, state="error")))
    assert row.banner.text == "ERROR – no reason given by NVML"


def test_huge_and_negative_values_keep_the_columns_in_place():
    odd = gpu(
        index=123,
        busy=9.2e18,
        memory_used_bytes=-5,
        memory_total_bytes=2**80,
        temperature_c=-40.0,
        power_w=1e9,
        power_limit_w=-1.0,
        sm_clock_mhz=10**9,
        sm_clock_max_mhz=0,
    )
    for width in (20, 80, 120, 200):
        normal, huge = (drawn(GPU_COLUMNS, gpu_row(GpuLine(one, [rank()])), width) for one in (gpu(), odd))
        assert len(huge) == len(normal)


@pytest.mark.parametrize(
    ("reasons", "text", "style"),
    [
        (None, "–", ""),
        ([], "", ""),
        (["gpu_idle"], "idle", "dim"),
        (["sw_power_cap"], "power cap", "dim"),
        (["sw_power_cap", "hw_slowdown", "hw_thermal"], "too hot, HW slowdown, power cap", "crit"),
        (["power_brake"], "PSU brake", "crit"),
        (["sw_thermal"], "hot", "warn"),
        (["gpu_idle", "sw_power_cap"], "power cap", "dim"),
        (["something_new"], "something_new", ""),
    ],
)
def test_throttle_badges(reasons, text, style):
    cell = throttle_cell(reasons)
    assert (cell.text, cell.style) == (text, style)


@pytest.mark.parametrize(
    ("fields", "style"),
    [
        ({}, ""),
        ({"temperature_margin_c": 5.0}, ""),
        ({"temperature_margin_c": 4.0}, "warn"),
        ({"temperature_margin_c": 1.0}, "warn"),
        ({"temperature_margin_c": 0.0}, "crit"),
        ({"throttle_reasons": ["sw_thermal"]}, "warn"),
        ({"throttle_reasons": ["hw_thermal"]}, "crit"),
        ({"throttle_reasons": None}, ""),
    ],
)
def test_temperature_is_coloured_by_what_the_gpu_says_of_itself(fields, style):
    assert cells_of(GPU_COLUMNS, gpu_row(GpuLine(gpu(**fields))))["temperature"].style == style


def test_who_holds_a_gpu_that_no_rank_uses():
    pid = lambda **fields: cells_of(GPU_COLUMNS, gpu_row(GpuLine(gpu(**fields))))["pid"].text  # noqa: E731
    assert pid(processes=None) == "–"
    assert pid(processes=[]) == ""
    assert pid(processes=[GpuProcess(88)]) == "88"
    assert pid(processes=[GpuProcess(88), GpuProcess(89), GpuProcess(90)]) == "88+2"


def test_simulated_gpus_say_so_and_keys_tell_nodes_apart():
    row = gpu_row(GpuLine(gpu(3), simulated=True), node="n1")
    assert "SIMULATED" in row.text
    assert row.key == "n1/3"
    assert gpu_row(GpuLine(gpu(3))).key == "3"


# Ranks


def test_a_rank_with_rates():
    before = EarlierRank(4714, voluntary_switches=100, read_syscalls=10, write_syscalls=5, elapsed_s=2.0)
    now = rank(voluntary_switches=400, read_syscalls=20, write_syscalls=6)
    row = rank_row(RankLine("n1", now, before, Doing("waits", 10.0, "all_reduce"), 398.0, 63 * GIB))
    text = {key: cell.text for key, cell in cells_of(RANK_COLUMNS, row).items()}
    assert text == {
        "mark": "",
        "rank": "3",
        "node": "n1",
        "gpus": "0",
        "pid": "4714",
        "state": "waits in all_reduce",
        "process": "S sleeping",
        "gpumem": "63.0G",
        "since": "6m28s",
        "cpu": "102%",
        "rss": "12.0G",
        "switches": "150",
        "syscalls": "5.5",
        "layout": "–",
        "job": "77",
        "launcher": "torchrun",
        "user": "anna",
        "command": "python train.py",
    }
    assert row.key == "n1/4714"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"voluntary_switches": 5}),
        (EarlierRank(4714, voluntary_switches=None, elapsed_s=1), {"voluntary_switches": 5}),
        (EarlierRank(4714, voluntary_switches=5, elapsed_s=1), {"voluntary_switches": None}),
        (EarlierRank(4714, voluntary_switches=9, elapsed_s=1), {"voluntary_switches": 5}),
        (EarlierRank(4714, voluntary_switches=1, elapsed_s=0), {"voluntary_switches": 5}),
        (EarlierRank(4714, voluntary_switches=1), {"voluntary_switches": 5}),
    ],
)
def test_a_rate_that_cannot_be_known_is_not_zero(before, after):
    assert cells_of(RANK_COLUMNS, rank_row(RankLine("n1", rank(**after), before)))["switches"].text == "–"


def test_a_rank_that_stands_still_has_rate_zero():
    before = EarlierRank(4714, voluntary_switches=7, elapsed_s=1.0)
    row = rank_row(RankLine("n1", rank(voluntary_switches=7), before))
    assert cells_of(RANK_COLUMNS, row)["switches"].text == "0"


def test_a_rank_of_which_nothing_is_known():
    cells = cells_of(RANK_COLUMNS, rank_row(RankLine("n1", RankSample(12, job="run"), now=5.0)))
    unknown = {key for key, cell in cells.items() if cell.text == "–"}
    assert unknown >= {
        "state",
        "process",
        "gpumem",
        "since",
        "cpu",
        "rss",
        "switches",
        "syscalls",
        "layout",
        "launcher",
        "user",
        "command",
    }
    assert cells["rank"].text == "?"


@pytest.mark.parametrize(
    ("state", "text", "style"),
    [
        ("R", "R running", ""),
        ("D", "D disk wait", "warn"),
        ("T", "T stopped", "warn"),
        ("t", "t traced", "warn"),
        ("Z", "Z zombie", "crit"),
        ("?", "?", ""),
    ],
)
def test_states_are_words(state, text, style):
    cell = cells_of(RANK_COLUMNS, rank_row(RankLine("n1", rank(state=state))))["process"]
    assert (cell.text, cell.style) == (text, style)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_command_line_cannot_break_the_table(width):
    row = rank_row(RankLine("n1", rank(command="a\nb\x1b[31m[red]" + "日" * 200)))
    line = drawn(RANK_COLUMNS, row, width)
    assert line.isprintable()


# Nodes


def node(state="live", age_s=0.8, reason="", gpus=None, ranks=(), simulated=False):
    sample = None
    if gpus is not None:
        sample = Sample("n1", 100.0, gpus=list(gpus), ranks=list(ranks), simulated=simulated)
    return NodeView(NodeState("n1", state, reason, age_s), sample)


def test_a_live_node():
    gpus = [gpu(0, busy=0.0), gpu(1, busy=0.5), gpu(2, busy=1.0, sm_clock_mhz=495, temperature_c=71.0)]
    findings = [
        Finding("a", "warning", "n1", "gpu 1", "warm"),
        Finding("b", "critical", "n1", "gpu 2", "hot"),
        Finding("c", "critical", "n2", "gpu 2", "another node's"),
    ]
    text = {
        key: cell.text
        for key, cell in cells_of(NODE_COLUMNS, node_row(node(gpus=gpus, ranks=[rank()]), findings)).items()
    }
    assert text == {
        "node": "n1",
        "state": "live 0.8s",
        "gpus": "▁▅▇",
        "busy": "50%",
        "clock": "25%",
        "hottest": "71C",
        "power": "1956W",
        "ranks": "1",
        "worst": "CRIT hot",
    }


@pytest.mark.parametrize(
    ("state", "age_s", "text", "style"),
    [
        ("connecting", None, "connecting", "accent"),
        ("stale", 12.0, "stale 12s", "warn"),
        ("lost", 200.0, "lost 3m20s", "crit"),
        ("refused", None, "refused", "crit"),
    ],
)
def test_a_node_that_is_not_live_says_so_and_why(state, age_s, text, style):
    cells = cells_of(NODE_COLUMNS, node_row(node(state, age_s, "no route to host")))
    assert (cells["state"].text, cells["state"].style) == (text, style)
    assert (cells["worst"].text, cells["worst"].style) == ("no route to host", style)
    assert cells["ranks"].text == cells["power"].text == cells["gpus"].text == "–"


def test_what_a_lost_node_said_last_is_dim():
    cells = cells_of(NODE_COLUMNS, node_row(node("lost", 200.0, "", [gpu()])))
    assert {cells[key].style for key in ("gpus", "busy", "power", "ranks")} == {"dim"}


def test_power_that_not_all_gpus_report_is_a_least():
    power = lambda *gpus: cells_of(NODE_COLUMNS, node_row(node(gpus=gpus)))["power"].text  # noqa: E731
    assert power(gpu(0), gpu(1)) == "1304W"
    assert power(gpu(0), gpu(1, power_w=None)) == "≥652W"
    assert power(gpu(0, power_w=None)) == "–"


def test_what_was_true_once_is_dim():
    for row in (
        gpu_row(GpuLine(gpu(throttle_reasons=["hw_thermal"]), [rank(state="D")], mark="crit")),
        gpu_row(GpuLine(GpuSample(1, state="lost"))),
    ):
        old = aged(row)
        assert {cell.style for cell in old.cells} == {"dim"} and old.text == row.text
        assert old.banner is None or old.banner.style == "dim"


@pytest.mark.parametrize(
    ("nodes", "width", "shown", "hidden"),
    [
        (1, 80, ["job"], ["node", "user", "command"]),
        (2, 80, ["job", "node"], ["user", "command"]),
        (1, 120, ["job", "user", "command"], ["node"]),
        (2, 120, ["job", "node"], []),
        (1, 200, ["job", "node", "user", "command", "launcher"], []),
    ],
)
def test_the_job_tells_ranks_of_several_jobs_apart(nodes, width, shown, hidden):
    ranks = [rank(job="run-of-somebody:29501"), rank(job="other")]
    columns = rank_columns(ranks, nodes)
    found = {columns[index].key for index, _ in layout(columns, width)}
    assert found >= set(shown) and not found & set(hidden)
    row = rank_row(RankLine("n1", ranks[0]), columns)
    assert ":29501" in plain(columns_line(columns, row, layout(columns, width)))
    known = tuple(column for column in RANK_COLUMNS if column.key != "layout")
    assert [column.key for column in columns] == [column.key for column in known], "the cells stay in place"
    alone = rank_columns(ranks[:1], nodes)
    assert [column.key for column in alone] == [column.key for column in known]
    named = "node" in {alone[index].key for index, _ in layout(alone, width)}
    assert named == (nodes > 1) or width == 200, "one node needs no name"


def test_the_layout_is_shown_where_it_is_known():
    ranks = [rank(parallel={"tp": 1, "tp_size": 4, "pp": 0, "pp_size": 2}), rank()]
    columns = rank_columns(ranks, 1)
    assert [cells_of(columns, rank_row(RankLine("n1", one), columns))["layout"].text for one in ranks] == [
        "tp1 pp0",
        "–",
    ]


def test_a_process_of_no_job_is_no_rank_whose_number_is_lost():
    notebook, dead = rank(rank=None, job=""), rank(rank=None, job="run", state="Z")
    assert {"rank", "job"}.isdisjoint(column.key for column in rank_columns([notebook], 1))
    columns = rank_columns([notebook, dead], 1)
    assert [column.priority for column in columns if column.key == "job"] == [1]
    cells = [cells_of(columns, rank_row(RankLine("n1", one), columns)) for one in (notebook, dead)]
    assert [(cell["rank"].text, cell["job"].text) for cell in cells] == [("-", "no job"), ("?", "run")]


def test_lost_and_unknown_gpus_are_not_idle():
    cell = cells_of(NODE_COLUMNS, node_row(node(gpus=[gpu(0), GpuSample(1, state="lost"), gpu(2, busy=None)])))["gpus"]
    assert (cell.text, cell.style) == ("▇X·", "crit")


def test_more_than_eight_gpus_share_glyphs_and_the_least_busy_shows():
    gpus = [gpu(index, busy=0.0 if index == 5 else 1.0) for index in range(16)]
    assert cells_of(NODE_COLUMNS, node_row(node(gpus=gpus)))["gpus"].text == "▇▇▁▇▇▇▇▇"
    gpus[5].state = "lost"
    assert cells_of(NODE_COLUMNS, node_row(node(gpus=gpus)))["gpus"].text == "▇▇X▇▇▇▇▇"


def test_a_node_without_gpus():
    cells = cells_of(NODE_COLUMNS, node_row(node(gpus=[])))
    assert (cells["gpus"].text, cells["ranks"].text) == ("–", "0")


# Findings and gaps


def test_the_worst_finding():
    findings = [Finding(str(i), severity, "n", "", "") for i, severity in enumerate(("info", "info", "warning"))]
    assert worst(findings).id == "2"
    assert worst([]) is None


def test_gaps_with_one_reason_are_one():
    gaps = [Gap(f"gpu.{index}.power_w", "Not Supported") for index in (0, 1, 2, 5)]
    gaps += [Gap("gpu.0.ecc", "Not Supported"), Gap("kernel_log", "needs root", "sudo journalctl -k -b")]
    assert merged_gaps(gaps) == [
        Gap("gpu.0-2,5.power_w, gpu.0.ecc", "Not Supported"),
        Gap("kernel_log", "needs root", "sudo journalctl -k -b"),
    ]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/opt/venv/bin/python3 -u /home/me/train.py --data /mnt/x", "python3 -u train.py --data /mnt/x"),
        ("python train.py", "python train.py"),
        ("", ""),
        ("/", "/"),
    ],
)
def test_the_folders_of_program_and_script_are_left_out(command, shown):
    assert short_command(command) == shown


@pytest.mark.parametrize(
    ("command", "width", "shown"),
    [
        ("/usr/bin/python3 -u /job/train.py --lr 1", 40, "python3 -u train.py --lr 1"),
        ("/usr/bin/python3 -u /job/train.py --lr 1", 14, "train.py --lr…"),
        ("python -m torch.distributed.run x.py", 14, "-m torch.dist…"),
        ("/opt/serve --port 80", 10, "serve --p…"),
        ("python3", 14, "python3"),
        ("", 14, "–"),
    ],
)
def test_a_command_that_is_too_long_is_told_by_its_script(command: str, width: int, shown: str) -> None:
    column = next(column for column in RANK_COLUMNS if column.key == "command")
    cell = column.cell(RankLine("n1", RankSample(1, command=command), None))
    assert isinstance(cell, EitherCell)
    assert plain(cell.fitted(width)).rstrip() == shown


@pytest.mark.parametrize("columns", [GPU_COLUMNS, RANK_COLUMNS, NODE_COLUMNS, LINK_COLUMNS, PCI_COLUMNS])
def test_an_arrow_eats_no_title(columns):
    """At any width, whichever of the columns that are shown is the sorted one."""
    for width in range(40, 201, 8):
        shown = layout(columns, width)
        plainly = plain(header_line(columns, shown)).split()
        for index, _ in shown:
            for reverse in (False, True):
                header = plain(header_line(columns, shown, (columns[index].key, reverse)))
                assert header.replace("▲", " ").replace("▼", " ").split() == plainly, (width, header)
                title = columns[index].title
                assert not title or ("▼" if reverse else "▲") in header, (width, title)


def test_of_equal_gravity_what_is_of_a_job_comes_first_whatever_its_node_is_called():
    """And what is graver before that: no name of a node decides."""
    scope, job = Scope(), Finding("job.slow", "warning", "z9", "job a", "job a is slow", job="a", since=1.0)
    disk = Finding("fs.full", "warning", "a1", "/data", "/data is full", since=2.0)
    lost = Finding("gpu.lost", "critical", "m5", "GPU 3", "GPU 3 lost", since=3.0)
    of_job = Incident("j", "slow", "warning", "job a is slow", job="a", since=1.0, effects=[job])
    for findings in ([job, disk, lost], [lost, disk, job], [disk, job, lost]):
        told = stories_of([of_job], findings, scope)
        assert told[0].key == "j", "what a job suffers from"
        assert [one.nodes for one in told[1:]] == [("m5",), ("a1",)], "then the gravest"
        alone = stories_of([], findings, scope)
        assert alone[0].nodes == ("m5",)
