"""The heatmap without a screen: levels, status, order, places, lines, legends, folded problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from mltop.probes.judge.states import JobStates
from mltop.probes.model import Finding, GpuSample, NodeState, RankSample, Sample
from mltop.probes.model.incident import Doing
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell, line_width, plain
from mltop.tui.render.fleet.heat import (
    FINE,
    LEVELS,
    LOST,
    MARK,
    METRICS,
    SIGNS,
    STANDS,
    STYLES_OF,
    UNKNOWN_CODE,
    WAITS,
    Heats,
    activity_source,
    level,
    natural,
    next_metric,
    troubles,
)
from mltop.tui.render.fleet.map import (
    CELLS,
    GROUPED,
    NAME_MOST,
    NAMED,
    Legend,
    Section,
    fitting,
    line_cells,
    list_legend,
    make_grid,
    map_legend,
    node_lines,
    short_names,
)
from mltop.tui.render.fleet.nodes import NODE_COLUMNS, NodeLine

DENSITIES = (NAMED, GROUPED, CELLS)
ACTIVITY, CLOCK, TEMPERATURE, POWER, MEMORY = METRICS
GIB = 2**30
CLOCK_S = itertools.count(1.0)


def view(name, *gpus, state="live", reason="", age_s=0.5):
    sample = None if state == "connecting" else Sample(name, next(CLOCK_S), gpus=list(gpus))
    return NodeView(NodeState(name, state, reason, None if state == "connecting" else age_s), sample)


def busy(*values):
    return [GpuSample(index, busy=value) for index, value in enumerate(values)]


def fleet(count, gpus=8):
    return [view(f"node{number:03d}", *busy(*[0.5] * gpus)) for number in range(1, count + 1)]


def heats_of(views, metric=ACTIVITY, findings=()):
    trouble = troubles(findings)
    made = Heats(metric)
    return [made.of(one, trouble.get(one.node, FINE)) for one in views]


def finding(node, subject="GPU 0", severity="critical", message="hot", **fields):
    return Finding("gpu.hot", severity, node, subject, message, **fields)


def legend(heats, metric, width, density=CELLS):
    return map_legend(Legend(heats, metric, "GPU-Util"), density, width)


# Levels


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, 0),
        (0.124, 0),
        (0.126, 1),
        (0.5, 4),
        (1.0, LEVELS - 1),
        (7.0, LEVELS - 1),
        (-1.0, 0),
        (None, UNKNOWN_CODE),
        (float("nan"), UNKNOWN_CODE),
        (float("inf"), UNKNOWN_CODE),
    ],
)
def test_a_share_has_one_of_eight_levels(share, expected):
    assert level(share) == expected


def test_a_value_near_a_border_does_not_flicker():
    seen = set()
    now = level(0.51)
    for share in (0.49, 0.51, 0.48, 0.52, 0.475, 0.5):
        now = level(share, now)
        seen.add(now)
    assert seen == {4}
    assert level(0.40, 4) == 3 and level(0.66, 4) == 5, "a real change is followed"
    assert level(0.0, 1) == 0 and level(1.0, LEVELS - 2) == LEVELS - 1, "both ends can be reached"
    assert level(0.5, UNKNOWN_CODE) == 4 and level(None, 4) == UNKNOWN_CODE


def test_every_level_and_sign_has_its_own_glyph():
    assert len(SIGNS) == len(STYLES_OF) == LEVELS + 5
    drawn = list(zip(SIGNS, STYLES_OF, strict=True))
    assert len(set(drawn)) == len(drawn), "of two that look alike the colour differs"
    assert len(set(SIGNS[:LEVELS])) == LEVELS - 1 and MARK not in SIGNS
    assert len(set(SIGNS[LEVELS:]) - set(SIGNS[:LEVELS])) == 5


# Nodes


def test_what_is_unknown_is_not_the_lowest_level_and_not_fine():
    heat = heats_of([view("n1", *busy(0.0, None, 1.0))])[0]
    assert list(heat.codes) == [0, UNKNOWN_CODE, LEVELS - 1]
    assert heat.styles() == ["ramp-0", "dim", f"ramp-{LEVELS - 1}"]
    assert (heat.cell, heat.cell_style) == (SIGNS[UNKNOWN_CODE], "dim"), "what is not known may be the worst"


def test_a_lost_gpu_makes_its_node_critical_before_any_rule_says_so():
    gpus = [*busy(1.0), GpuSample(1, state="lost"), GpuSample(2, state="error")]
    heat = heats_of([view("n1", *gpus)])[0]
    assert heat.status == "crit" and heat.cell == SIGNS[LOST]
    assert heat.styles() == [f"ramp-{LEVELS - 1}", "crit", "crit"]


def test_findings_mark_the_node_and_leave_the_value_its_colour():
    findings = [finding("n1", "GPU 1", "warning"), finding("n1", "GPU 1"), finding("n1", "GPU 2", "info")]
    heat = heats_of([view("n1", *busy(1.0, 0.0, 1.0))], findings=findings)[0]
    assert heat.styles() == ["ramp-7", "ramp-0", "ramp-7"] and heat.status == "crit"
    assert (heat.cell, heat.cell_style) == ("▲", "crit"), "where a node is one cell, that says it"
    heat = heats_of([view("n1", *busy(1.0, 1.0))], findings=[finding("n1", "all 2 GPUs", "warning")])[0]
    assert (heat.status, heat.cell, heat.cell_style) == ("warn", "▲", "warn")
    heat = heats_of([view("n1", *busy(1.0, 1.0))], findings=[finding("n1", "NVML")])[0]
    assert heat.status == "crit", "the machine's own problem marks the node"
    heat = heats_of([view("n1", *busy(1.0))], findings=[finding("n1", severity="info")])[0]
    assert heat.status == "ok" and heat.cell == SIGNS[LEVELS - 1], "what is only worth knowing marks nothing"


def test_troubles_name_gpus_and_all_of_them():
    findings = [finding("n1", "GPU 1", "warning"), finding("n1", "GPU 1"), finding("n1", "all 8 GPUs", "warning")]
    (one,) = troubles(findings).values()
    assert (one.node, one.all_gpus, one.gpus) == ("crit", "warn", {1: "crit"})


def test_a_finding_that_is_over_colours_nothing():
    assert troubles([finding("n1", until=5.0)]) == {}


@pytest.mark.parametrize(
    ("state", "status", "cell"),
    [("lost", "crit", "L"), ("refused", "crit", "R"), ("stale", "warn", "S"), ("connecting", "connecting", "c")],
)
def test_a_node_that_is_not_live_has_a_sign_of_its_own(state, status, cell):
    heat = heats_of([view("n1", *busy(1.0), state=state)])[0]
    assert (heat.status, heat.cell, heat.codes) == (status, cell, b"")
    assert cell not in SIGNS


def test_the_worst_gpu_stands_for_its_node():
    cold_and_hot = [GpuSample(0, temperature_c=30.0, busy=1.0), GpuSample(1, temperature_c=95.0, busy=0.0)]
    assert heats_of([view("n1", *cold_and_hot)], TEMPERATURE)[0].cell == SIGNS[LEVELS - 1]
    assert heats_of([view("n1", *cold_and_hot)], ACTIVITY)[0].cell == SIGNS[0]


def test_a_node_of_which_nothing_changed_keeps_its_object():
    heats = Heats(ACTIVITY)
    first = view("n1", *busy(0.5))
    made = heats.of(first)
    assert heats.of(first) is made
    assert heats.of(view("n1", *busy(0.51))) is made, "another sample, the same picture"
    assert heats.of(view("n1", *busy(0.9))) is not made
    heats.keep_only(())
    assert heats._heats == heats._made == {}


def test_gpus_that_a_filter_leaves_out_are_dim():
    heat = Heats(ACTIVITY).of(view("n1", *busy(0.1, 0.9)), FINE, lambda _, gpu: gpu.busy > 0.5)
    assert heat.styles() == ["dim", "ramp-7"]


def test_a_new_sample_of_the_same_levels_shows_what_else_has_changed():
    heats = Heats(ACTIVITY)
    fine = heats.of(view("n1", *busy(0.1, 0.9)))
    filtered = heats.of(view("n1", *busy(0.1, 0.9)), FINE, lambda _, gpu: gpu.index == 1)
    assert filtered.styles() == ["dim", "ramp-7"]
    assert heats.of(view("n1", *busy(0.1, 0.9))) == fine
    hot = troubles([finding("n1", "GPU 1")])["n1"]
    assert heats.of(view("n1", *busy(0.1, 0.9)), hot).status == "crit"
    assert heats.of(view("n1", *busy(0.1, 0.9), state="lost"), hot).codes == b""
    assert heats.of(view("n1", *busy(0.1, 0.9))) == fine


def hung(*culprits, usual="waits", gpus=8, held=80):
    """A node of a job that stands still: its heat, with those GPUs as culprits."""
    made = [
        GpuSample(at, busy=1.0, sm_active=0.9, memory_used_bytes=(held << 30 if at < gpus else 0)) for at in range(8)
    ]
    ranks = [RankSample(100 + at, at, job="run", gpus=[at]) for at in range(gpus)]
    node = NodeView(NodeState("n1", "live"), Sample("n1", next(CLOCK_S), gpus=made, ranks=ranks))
    states = JobStates(Doing(usual, 5.0), gpus={("n1", at): Doing("stands", 5.0) for at in culprits})
    return Heats(ACTIVITY).of(node, standing=states), node, states


def test_a_hung_job_is_a_block_and_its_culprit_stands_out():
    heat, *_ = hung(5)
    assert list(heat.codes) == [WAITS] * 5 + [STANDS] + [WAITS] * 2
    assert heat.styles() == ["graph-waits"] * 5 + ["stands"] + ["graph-waits"] * 2
    assert (heat.status, heat.cell) == ("stands", "■")
    heat, *_ = hung()
    assert (heat.status, heat.cell, heat.cell_style) == ("ok", SIGNS[WAITS], "graph-waits")


def test_gpus_of_a_hung_node_that_no_rank_uses_keep_their_value():
    heat, *_ = hung(gpus=4)
    assert set(heat.codes[:4]) == {WAITS} and set(heat.codes[4:]) == {LEVELS - 1}


def test_a_job_that_works_again_shows_how_much():
    heat, node, _ = hung(usual="works")
    assert WAITS not in heat.codes and STANDS not in heat.codes
    heats = Heats(ACTIVITY)
    assert WAITS in heats.of(node, standing=hung()[2]).codes
    assert WAITS not in heats.of(node).codes, "the same sample, another state"


def test_another_metric_shows_its_values_during_a_hang():
    _, node, states = hung(3)
    assert set(Heats(MEMORY).of(node, standing=states).codes) <= {*range(LEVELS), UNKNOWN_CODE}


def test_a_lost_gpu_of_a_hung_job_is_lost():
    made = [GpuSample(0, state="lost"), GpuSample(1, sm_active=0.0, memory_used_bytes=80 << 30)]
    ranks = [RankSample(1, 0, job="run", gpus=[0]), RankSample(2, 1, job="run", gpus=[1])]
    node = NodeView(NodeState("n1", "live"), Sample("n1", next(CLOCK_S), gpus=made, ranks=ranks))
    assert list(Heats(ACTIVITY).of(node, standing=JobStates(Doing("waits", 5.0))).codes) == [LOST, WAITS]


# Metrics


def test_metrics_have_figures_with_units_and_unknown_is_none():
    gpu = GpuSample(
        0,
        busy=0.9,
        sm_active=0.5,
        sm_clock_mhz=990,
        sm_clock_max_mhz=1980,
        temperature_c=60.0,
        power_w=350.0,
        power_limit_w=700.0,
        memory_used_bytes=40 * GIB,
        memory_total_bytes=80 * GIB,
    )
    assert [metric.share(gpu) for metric in METRICS] == [0.5] * 5
    assert [metric.text(gpu) for metric in METRICS] == ["50%", "990MHz", "60C", "350W", "40.0G"]
    assert [metric.share(GpuSample(0)) for metric in METRICS] == [None] * 5
    assert POWER.share(GpuSample(0, power_w=3.0, power_limit_w=0.0)) is None
    assert next_metric(METRICS[-1]) is METRICS[0]


def test_activity_says_where_it_comes_from():
    assert ACTIVITY.share(GpuSample(0, busy=0.9)) == 0.9
    assert ACTIVITY.share(GpuSample(0, busy=0.9, sm_active=0.0)) == 0.0, "known and zero is not unknown"
    assert activity_source([GpuSample(0, busy=0.9)]) == "GPU-Util"
    assert activity_source([GpuSample(0, busy=0.9, sm_active=0.1)]) == "SM active"
    assert activity_source([GpuSample(0, sm_active=0.1), GpuSample(1, busy=0.9)]) == "SM active or GPU-Util"
    assert activity_source([GpuSample(0)]) == ""


# Order


def test_names_with_numbers_are_in_natural_order():
    names = ["n10", "n9", "n1", "m2", "10.0.0.9", "10.0.0.10"]
    assert sorted(names, key=natural) == ["10.0.0.9", "10.0.0.10", "m2", "n1", "n9", "n10"]
    assert natural("7") < natural("x")


# Places


def test_the_most_detailed_grid_that_fits():
    heats = heats_of(fleet(64))
    assert fitting(heats, (), 200, 40).density == NAMED
    assert fitting(heats, (), 80, 13).density == GROUPED
    assert fitting(heats_of(fleet(512)), (), 80, 13).density == CELLS
    assert fitting(heats_of(fleet(512)), (), 200, 30).density == GROUPED
    scrolling = fitting(heats_of(fleet(1000)), (), 80, 4)
    assert scrolling.density == CELLS and len(scrolling.rows) > 4, "never several nodes in one cell"


@pytest.mark.parametrize("nodes", [4, 64, 512])
@pytest.mark.parametrize(("width", "height"), [(80, 13), (120, 24), (200, 40)])
@pytest.mark.parametrize("jobs", [0, 1, 3])
def test_all_nodes_stand_on_the_screen(nodes, width, height, jobs):
    heats = heats_of(fleet(nodes))
    sections = [Section(at * nodes // 4, f"train-{at}", (Cell("3 ranks work", "dim"),)) for at in range(jobs)]
    grid = fitting(heats, sections, width, height)
    assert len(grid.rows) <= height
    assert [index for first, end in grid.rows for index in range(first, end)] == list(range(nodes))
    for line in range(len(grid.rows)):
        assert line_width(line_cells(grid, heats, line, (), cursor=0)) <= width


def test_a_title_has_a_line_where_there_is_room_and_stands_before_the_first_where_not():
    heats = heats_of(fleet(16))
    sections = [Section(0, "train-70b", (Cell("8 nodes"),)), Section(8, "an-evaluation-of-it")]
    wide = fitting(heats, sections, 120, 30)
    assert plain(line_cells(wide, heats, 0, ())) == "train-70b  8 nodes" and wide.rows[0] == (0, 0)
    assert plain(line_cells(wide, heats, wide.place(8)[0] - 1, ())).startswith("an-evaluation-of-it")
    narrow = fitting(heats, sections, 80, 30)
    assert plain(line_cells(narrow, heats, 0, ())).startswith("train-70b ")
    assert plain(line_cells(narrow, heats, narrow.place(8)[0], ())).startswith("an-evaluati… ")
    tight = fitting(heats, sections, 120, 3)
    assert all(end > first for first, end in tight.rows), "titles give way before nodes do"


def test_the_cursor_steps_over_titles():
    heats = heats_of(fleet(16))
    sections = [Section(0, "a"), Section(8, "b")]
    grid = make_grid(heats, sections, 120, NAMED, headed=True)
    title = grid.place(8)[0] - 1
    assert grid.rows[title] == (8, 8) and grid.at(title, 0) is None and grid.at(0, 3) is None
    assert [grid.at(*grid.place(index)) for index in range(16)] == list(range(16))
    assert [cell for cell in line_cells(grid, heats, title, (), cursor=8) if cell.style.startswith("at-")] == []


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("width", [20, 57, 80, 120, 200])
@pytest.mark.parametrize("ranked", [False, True])
def test_every_node_stands_once_within_the_width_and_is_found_there(density, width, ranked):
    views = fleet(77)
    heats = heats_of(views)
    sections = [Section(0, "a"), Section(3, "b"), Section(12, "c")] if ranked else []
    grid = make_grid(heats, sections, width, density)
    assert [index for first, end in grid.rows for index in range(first, end)] == list(range(77))
    if sections:
        assert not any(first < start < end for first, end in grid.rows for start in (3, 12)), "a job begins a line"
    for line, (first, end) in enumerate(grid.rows):
        cells = line_cells(grid, heats, line, ())
        assert line_width(cells) <= max(width, grid.margin + grid.pitch)
        for index in range(first, end):
            assert grid.place(index) == (line, index - first)
            at = line_cells(grid, heats, line, (), cursor=index)
            x = 0
            for cell in at:
                if cell.style.startswith("at-") and cell.text.strip():
                    assert grid.column_of(x) == index - first, "a click on the node finds it"
                x += len(cell.text)
    assert grid.at(len(grid.rows) - 1, 10**6) == 76
    assert grid.at(len(grid.rows), 0) is None


def test_lines_say_names_levels_states_marks_and_jobs():
    views = [view("bad", *busy(1.0, 0.0)), view("gone", state="lost"), view("a-fine-one", *busy(0.5, None))]
    heats = heats_of(views, findings=[finding("bad", "GPU 1")])
    grid = make_grid(heats, [Section(0, "run"), Section(2, "no job")], 60, NAMED)
    top, bottom = SIGNS[LEVELS - 1], SIGNS[0]
    first = plain(line_cells(grid, heats, 0, {"gone"}))
    assert first.split() == ["run", "▲bad", f"{top}{bottom}", f"{MARK}gone", "LL"]
    assert plain(line_cells(grid, heats, 1, ())).split() == [
        "no",
        "job",
        "a-fine-one",
        f"{SIGNS[4]}{SIGNS[UNKNOWN_CODE]}",
    ]
    styles = {cell.text.strip(): cell.style for cell in line_cells(grid, heats, 0, {"gone"})}
    assert styles[MARK] == "crit", "a mark does not hide that the node is lost"
    assert styles["bad"] == "title" and styles["▲"] == "crit"
    grid = make_grid(heats, (), 60, CELLS)
    assert plain(line_cells(grid, heats, 0, {"a-fine-one"})) == f"bad        ▲L{MARK}"
    styles = [cell.style for cell in line_cells(grid, heats, 0, (), cursor=1)]
    assert styles == ["dim", "crit", "at-crit", "dim"]


def test_a_state_is_a_word_where_it_fits():
    heats = heats_of([view("n1", *busy(*[1.0] * 8)), view("n2", state="connecting"), view("n3", state="refused")])
    text = plain(line_cells(make_grid(heats, (), 80, GROUPED), heats, 0, ()))
    assert "connect" in text and "refused" in text


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (("a1.gpu.example.org", "a2.gpu.example.org"), ["a1", "a2"]),
        (("a.x.example.org", "a.y.example.org"), ["a.x", "a.y"]),
        (("example.org", "a.example.org"), ["example", "a.example"]),
        (("10.0.0.1", "10.1.0.1"), ["10.0.0.1", "10.1.0.1"]),
        (("fe80::1.x", "a.x"), ["fe80::1.x", "a.x"]),
        (("alone.example.org",), ["alone.example.org"]),
        (("a", "b.x"), ["a", "b.x"]),
        ((), []),
    ],
)
def test_names_lose_the_suffix_that_all_share(names, short):
    found = short_names(names)
    assert [found[name] for name in names] == short


def test_a_name_is_cut_to_its_end():
    long = "rack-with-a-very-long-name-0017"
    short = short_names((long, "b"))[long]
    assert len(short) == NAME_MOST and short.endswith("name-0017")


GLYPHS_OF = next(column.cell for column in NODE_COLUMNS if column.key == "gpus")


def test_the_list_shows_the_metric_of_the_map_and_says_how_many_gpus_a_bar_is():
    one = view("n1", *[GpuSample(at, busy=1.0, power_w=70.0, power_limit_w=700.0) for at in range(16)])
    for metric, glyph in ((ACTIVITY, SIGNS[LEVELS - 1]), (POWER, SIGNS[0])):
        (heat,) = heats_of([one], metric)
        assert GLYPHS_OF(NodeLine(one, heat=heat, metric=metric)).text == glyph * 8
    text = plain(list_legend(Legend([heat], POWER, sorted_by="POWER"), 200))
    assert text.startswith("power of its limit") and "1 bar = 2 GPUs" in text
    assert "sorted by POWER" in text and "worst first" not in text
    gone = view("n2", *busy(1.0), GpuSample(1, state="lost"), state="stale")
    cell = GLYPHS_OF(NodeLine(gone, heat=heats_of([gone])[0], metric=ACTIVITY))
    assert (cell.text, cell.style) == (SIGNS[LEVELS - 1] + SIGNS[LOST], "dim")


def test_the_number_of_gpus_may_differ_and_be_odd():
    views = [view("n1", *busy(*[1.0] * 16)), view("n2", *busy(0.5)), view("n3")]
    heats = heats_of(views)
    for density in DENSITIES:
        line = plain(line_cells(make_grid(heats, (), 120, density), heats, 0, ()))
        assert "no GPU" in line or density == CELLS
    assert heats[2].cell == SIGNS[UNKNOWN_CODE] and heats[2].status == "unknown"


def test_a_long_name_keeps_its_end():
    heats = heats_of([view("a-very-long-prefix-of-a-cluster-0017", *busy(1.0))])
    assert "cluster-0017" in plain(line_cells(make_grid(heats, (), 80, NAMED), heats, 0, ()))


# The lines around the map


def test_the_legend_says_metric_and_scale_and_only_what_is_on_the_screen():
    heat, *_ = hung(5)
    views = [*fleet(5), view("gone", state="lost"), view("new", state="connecting")]
    heats = heats_of(views, findings=[finding("node002", severity="warning")])
    whole = plain(legend(heats, ACTIVITY, 200))
    for words in (
        "GPU-Util",
        "0%",
        "100%",
        "▲ finding",
        "L lost node",
        "c connecting node",
        "per node 0%",
        "cell = worst GPU",
        "o by name",
    ):
        assert words in whole, words
    assert not any(word in whole for word in ("waits", "stuck", "X lost", "refused", "unknown")), whole
    hanging = plain(legend([heat], ACTIVITY, 200))
    assert "waits" in hanging and "■ stuck" in hanging and "finding" not in hanging
    assert "30C" in plain(legend(heats, TEMPERATURE, 200))
    assert "v map" in plain(list_legend(Legend(heats, ACTIVITY), 200))


def test_at_80_columns_every_letter_of_the_map_is_explained():
    states = ("live", "lost", "stale", "refused")
    made = [Heats(ACTIVITY).of(NodeView(NodeState(f"n{at}", state))) for at, state in enumerate(states)]
    text = plain(legend(made, ACTIVITY, 80))
    assert "L lost" in text and "S stale" in text and "R refused" in text
    assert "c connecting" not in text, "only what is on the screen"


@pytest.mark.parametrize("width", range(16, 200, 3))
def test_a_legend_fits_and_says_the_metric_last_of_all(width):
    heats = [*heats_of([*fleet(5), view("gone", state="lost")]), hung(5)[0]]
    for line in (legend(heats, ACTIVITY, width), list_legend(Legend(heats, ACTIVITY, "GPU-Util"), width)):
        assert line_width(line) <= width
        assert plain(line).startswith("GPU-Util")


def test_the_node_under_the_cursor_in_figures_and_why():
    gone = view("n1", *busy(0.97, None), state="stale", reason="no sample for 9 s", age_s=9.0)
    assert [plain(line) for line in node_lines(gone, ACTIVITY, 80)] == ["n1  stale 9.0s  no sample for 9 s"]
    bad = view("n2", *busy(1.0), GpuSample(1, state="lost"))
    (figures,) = (plain(line) for line in node_lines(bad, POWER, 80))
    assert figures == "n2  live 0.5s  no ranks  –  LOST"
    ranks = [RankSample(at, at, job="run") for at in (3, 4, 5, 9)]
    some = NodeView(NodeState("n3", "live", age_s=0.5), Sample("n3", 1.0, gpus=busy(1.0), ranks=ranks))
    assert plain(node_lines(some, ACTIVITY, 80)[0]) == "n3  live 0.5s  ranks 3-5,9"
    assert plain(node_lines(view("n4", state="connecting"), POWER, 80)[0]) == "n4  connecting"


@pytest.mark.parametrize(("width", "gap"), [(62, 3), (60, 2)])
def test_a_mark_is_no_cell_of_a_gpu(width, gap):
    """Apart from both nodes' cells where there is room, else outdented; the culprit's node has its mark, too."""
    heats = heats_of(fleet(20), findings=[finding("node002", severity="critical"), finding("node001")])
    heats[2], _ = replace(hung(5)[0], node="node003"), heats[2]
    grid = make_grid(heats, (), width, GROUPED, gap=gap)
    line = plain(line_cells(grid, heats, 0, ()))
    first, second, third = (
        slice(at, at + 8) for at in (grid.margin, grid.margin + 8 + gap, grid.margin + 16 + 2 * gap)
    )
    blank = " " * (gap - 2)
    assert line[: grid.margin] == f"node001 ▲{blank}" and line[first.stop : second.start] == f" ▲{blank}"
    assert line[second.stop : third.start] == f" ■{blank}" and line[third].count("■") == 1
    assert all("▲" not in line[part] for part in (first, second, third))


def test_the_scale_has_every_glyph_once_and_says_what_a_cell_is():
    scale = plain(legend(heats_of(fleet(5)), ACTIVITY, 80, NAMED))
    assert "per GPU 0% ▁▂▃▄▅▆▇ 100%" in scale
    assert plain(list_legend(Legend(heats_of(fleet(5)), ACTIVITY), 80)).count("▇") == 1


def test_who_waits_does_not_look_like_who_does_nothing():
    assert SIGNS[WAITS] == "░" and SIGNS[0] == "▁"
