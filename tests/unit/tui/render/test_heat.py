"""The heatmap without a screen: levels, status, order, places, lines, legends, folded problems."""

from __future__ import annotations

import itertools

import pytest

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.model import Finding, GpuSample, NodeState, Sample
from mltop.probes.reach.view import NodeView
from mltop.tui.render import findings as findings_of_screen
from mltop.tui.render.cells import line_width, plain
from mltop.tui.render.findings import FOLD_FROM, fleet_problems, folded_names, problems_of
from mltop.tui.render.fleet.heat import (
    BETTER_FOR_S,
    FINE,
    LEVELS,
    LOST,
    MARK,
    METRICS,
    SIGNS,
    UNKNOWN_CODE,
    Heats,
    WorstFirst,
    activity_source,
    by_name,
    level,
    natural,
    next_metric,
    troubles,
)
from mltop.tui.render.fleet.map import (
    CELLS,
    DENSITIES,
    GROUPED,
    NAME_MOST,
    NAMED,
    Legend,
    counts,
    fitting,
    line_cells,
    list_legend,
    make_grid,
    map_legend,
    node_lines,
    short_names,
)
from mltop.tui.render.fleet.nodes import metric_glyphs

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


def legend(heats, metric, width):
    return map_legend(Legend(heats, metric, "GPU-Util", marked=2), CELLS, width)


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
    assert len(set(SIGNS)) == len(SIGNS) == LEVELS + 3
    assert MARK not in SIGNS


# Nodes


def test_what_is_unknown_is_not_the_lowest_level_and_not_fine():
    heat = heats_of([view("n1", *busy(0.0, None, 1.0))])[0]
    assert list(heat.codes) == [0, UNKNOWN_CODE, LEVELS - 1]
    assert heat.styles == ("ok", "dim", "ok")
    assert (heat.cell, heat.cell_style) == (SIGNS[UNKNOWN_CODE], "dim"), "what is not known may be the worst"


def test_a_lost_gpu_makes_its_node_critical_before_any_rule_says_so():
    gpus = [*busy(1.0), GpuSample(1, state="lost"), GpuSample(2, state="error")]
    heat = heats_of([view("n1", *gpus)])[0]
    assert heat.status == "crit" and heat.cell == SIGNS[LOST]
    assert heat.styles == ("ok", "crit", "crit")


def test_findings_colour_the_gpus_they_are_about():
    findings = [finding("n1", "GPU 1", "warning"), finding("n1", "GPU 1"), finding("n1", "GPU 2", "info")]
    heat = heats_of([view("n1", *busy(1.0, 1.0, 1.0))], findings=findings)[0]
    assert heat.styles == ("ok", "crit", "ok") and heat.status == "crit"
    heat = heats_of([view("n1", *busy(1.0, 1.0))], findings=[finding("n1", "all 2 GPUs", "warning")])[0]
    assert heat.styles == ("warn", "warn") and heat.status == "warn"
    heat = heats_of([view("n1", *busy(1.0, 1.0))], findings=[finding("n1", "NVML")])[0]
    assert heat.styles == ("ok", "ok") and heat.status == "crit", "the machine's own problem colours the node"


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
    assert heat.styles == ("dim", "ok")


def test_a_new_sample_of_the_same_levels_shows_what_else_has_changed():
    heats = Heats(ACTIVITY)
    fine = heats.of(view("n1", *busy(0.1, 0.9)))
    filtered = heats.of(view("n1", *busy(0.1, 0.9)), FINE, lambda _, gpu: gpu.index == 1)
    assert filtered.styles == ("dim", "ok")
    assert heats.of(view("n1", *busy(0.1, 0.9))) == fine
    hot = troubles([finding("n1", "GPU 1")])["n1"]
    assert heats.of(view("n1", *busy(0.1, 0.9)), hot).styles == ("ok", "crit")
    swapped = [GpuSample(1, busy=0.1), GpuSample(0, busy=0.9)]
    assert heats.of(view("n1", *swapped), hot).styles == ("crit", "ok"), "the same levels, other GPUs"
    assert heats.of(view("n1", *busy(0.1, 0.9), state="lost"), hot).codes == b""
    assert heats.of(view("n1", *busy(0.1, 0.9))) == fine


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
    assert by_name(names) == ["10.0.0.9", "10.0.0.10", "m2", "n1", "n9", "n10"]
    assert natural("7") < natural("x")


def test_problems_come_first_and_connecting_nodes_stand_where_they_will_stay():
    order = WorstFirst()
    nodes = [("n1", "ok"), ("n2", "warn"), ("n3", "connecting"), ("n10", "crit"), ("n4", "ok")]
    assert order.ordered(nodes, 0.0) == [("n10", 0), ("n2", 1), ("n1", 2), ("n3", 2), ("n4", 2)]


def test_what_flaps_does_not_jump():
    order = WorstFirst()
    places = []
    for second in range(20):
        status = "warn" if second % 2 else "ok"
        placed = order.ordered([("n1", "ok"), ("n2", status)], float(second))
        places.append([name for name, _ in placed])
    assert places == [["n1", "n2"]] + [["n2", "n1"]] * 19
    settled = order.ordered([("n1", "ok"), ("n2", "ok")], 20.0)
    assert settled[0][0] == "n2"
    settled = order.ordered([("n1", "ok"), ("n2", "ok")], 20.0 + BETTER_FOR_S)
    assert settled[0][0] == "n1"


# Places


def test_the_most_detailed_grid_that_fits():
    heats = heats_of(fleet(64))
    assert fitting(heats, None, 200, 40).density == NAMED
    assert fitting(heats, None, 80, 13).density == GROUPED
    assert fitting(heats_of(fleet(512)), None, 80, 13).density == CELLS
    assert fitting(heats_of(fleet(512)), None, 200, 30).density == GROUPED
    scrolling = fitting(heats_of(fleet(1000)), None, 80, 4)
    assert scrolling.density == CELLS and len(scrolling.rows) > 4, "never several nodes in one cell"


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("width", [20, 57, 80, 120, 200])
@pytest.mark.parametrize("ranked", [False, True])
def test_every_node_stands_once_within_the_width_and_is_found_there(density, width, ranked):
    views = fleet(77)
    heats = heats_of(views)
    ranks = [0] * 3 + [1] * 9 + [2] * 65 if ranked else None
    grid = make_grid(heats, ranks, width, density)
    assert [index for first, end in grid.rows for index in range(first, end)] == list(range(77))
    if ranks is not None:
        assert all(len(set(ranks[first:end])) == 1 for first, end in grid.rows)
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


def test_lines_say_names_levels_states_marks_and_sections():
    views = [view("bad", *busy(1.0, 0.0)), view("gone", state="lost"), view("a-fine-one", *busy(0.5, None))]
    heats = heats_of(views, findings=[finding("bad", "GPU 1")])
    grid = make_grid(heats, [0, 0, 2], 60, NAMED)
    top, bottom = SIGNS[LEVELS - 1], SIGNS[0]
    assert plain(line_cells(grid, heats, 0, {"gone"})) == f"CRIT  !bad        {top}{bottom} {MARK}gone       LL"
    assert plain(line_cells(grid, heats, 1, ())) == f"fine   a-fine-one {SIGNS[4]}{SIGNS[UNKNOWN_CODE]}"
    grid = make_grid(heats, None, 60, CELLS)
    assert plain(line_cells(grid, heats, 0, {"a-fine-one"})) == f"bad        {bottom}L{MARK}"
    styles = [cell.style for cell in line_cells(grid, heats, 0, (), cursor=1)]
    assert styles == ["dim", "crit", "at-crit", "dim"]


def test_a_state_is_a_word_where_it_fits():
    heats = heats_of([view("n1", *busy(*[1.0] * 8)), view("n2", state="connecting"), view("n3", state="refused")])
    text = plain(line_cells(make_grid(heats, None, 80, GROUPED), heats, 0, ()))
    assert "connect" in text and "refused" in text


def test_nodes_that_still_connect_are_not_called_fine():
    heats = heats_of([view("n1", *busy(1.0)), view("n2", state="connecting")])
    assert make_grid(heats, [2, 2], 80, NAMED).labels[0].text.strip() == "rest"


def test_a_section_is_named_after_the_worst_that_is_in_it_now():
    findings = [finding("bad"), finding("warm", severity="warning")]
    heats = heats_of([view(name, *busy(1.0)) for name in ("bad", "warm", "well")], findings=findings)
    bad, warm, well = heats

    def words(made, ranks):
        return [label.text.strip() for label in make_grid(made, ranks, 80, NAMED).labels]

    assert words([bad, warm, well], [0, 1, 2]) == ["CRIT", "WARN", "fine"]
    assert words([bad, well], [0, 0]) == ["CRIT"]
    assert words([warm, well], [0, 2]) == ["WARN", "fine"]
    assert words([well, well], [1, 2]) == ["eased", "fine"]


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


def test_the_list_shows_the_metric_of_the_map_and_says_how_many_gpus_a_bar_is():
    one = view("n1", *[GpuSample(at, busy=1.0, power_w=70.0, power_limit_w=700.0) for at in range(16)])
    for metric, glyph in ((ACTIVITY, SIGNS[LEVELS - 1]), (POWER, SIGNS[0])):
        (heat,) = heats_of([one], metric)
        assert metric_glyphs(one, heat, metric).text == glyph * 8
    text = plain(list_legend(Legend([heat], POWER, sorted_by="POWER"), 200))
    assert text.startswith("m power of its limit") and "1 bar = 2 GPUs" in text
    assert "sorted by POWER" in text and "worst first" not in text
    gone = view("n2", *busy(1.0), GpuSample(1, state="lost"), state="stale")
    cell = metric_glyphs(gone, heats_of([gone])[0], ACTIVITY)
    assert (cell.text, cell.style) == (SIGNS[LEVELS - 1] + SIGNS[LOST], "dim")


def test_the_number_of_gpus_may_differ_and_be_odd():
    views = [view("n1", *busy(*[1.0] * 16)), view("n2", *busy(0.5)), view("n3")]
    heats = heats_of(views)
    for density in DENSITIES:
        line = plain(line_cells(make_grid(heats, None, 120, density), heats, 0, ()))
        assert "no GPU" in line or density == CELLS
    assert heats[2].cell == SIGNS[UNKNOWN_CODE] and heats[2].status == "unknown"


def test_a_long_name_keeps_its_end():
    heats = heats_of([view("a-very-long-prefix-of-a-cluster-0017", *busy(1.0))])
    assert "cluster-0017" in plain(line_cells(make_grid(heats, None, 80, NAMED), heats, 0, ()))


# The lines around the map


def test_the_legend_says_metric_scale_and_counts_and_drops_the_rest_first():
    views = [*fleet(5), view("gone", state="lost"), view("new", state="connecting")]
    heats = heats_of(views, findings=[finding("node002", severity="warning")])
    whole = plain(legend(heats, ACTIVITY, 200))
    for words in (
        "m lowest activity (GPU-Util)",
        "0%",
        "100%",
        "! 1 node CRIT",
        "~ 1 WARN",
        "4 fine",
        "1 connecting",
        f"{MARK} marked",
        "L lost",
        "o worst first",
    ):
        assert words in whole
    narrow = plain(legend(heats, ACTIVITY, 60))
    assert len(narrow) <= 60 and "lowest activity" in narrow and "CRIT" in narrow
    assert "30C" in plain(legend(heats, TEMPERATURE, 200))
    assert "v map" in plain(list_legend(Legend(heats, ACTIVITY), 200))
    assert plain(counts({})[0][1]) == "0 fine"


def test_the_node_under_the_cursor_in_figures_and_why():
    gone = view("n1", *busy(0.97, None), state="stale", reason="no sample for 9 s", age_s=9.0)
    figures, why = (plain(line) for line in node_lines(gone, (), ACTIVITY, 80))
    assert figures == "n1  stale 9.0s  GPU-Util  97%  –"
    assert why == "no sample for 9 s"
    bad = view("n2", *busy(1.0), GpuSample(1, state="lost"))
    findings = [finding("n2", "GPU 1", "warning", "warm"), finding("n2", "GPU 1", message="GPU 1 lost")]
    figures, why = (plain(line) for line in node_lines(bad, findings, POWER, 80))
    assert figures.endswith("LOST")
    assert why == "CRIT GPU 1 lost  and 1 more"
    assert plain(node_lines(view("n3", state="connecting"), (), POWER, 80)[1]) != "no problems found"
    assert plain(node_lines(view("n4", *busy(1.0)), (), POWER, 80)[1]) == "no problems found"
    assert plain(node_lines(view("n4", *busy(1.0)), (), POWER, 80, judged=False)[1]) == "not judged yet"


# Problems


def test_one_problem_of_many_nodes_is_one_line():
    views = [view(f"node{number:02d}", state="lost", reason="ssh: timed out") for number in range(1, 13)]
    views += [view("node20", *busy(1.0))]
    problems = fleet_problems(views, [finding("node20"), finding("elsewhere")], 100.0)
    assert len(problems) == 2
    texts = [problem.row.text for problem in problems]
    assert "node[01-12]" in texts[0] and "12 nodes: lost: ssh: timed out" in texts[0]
    assert "node20" in texts[1]
    assert problems[0].row.key.partition("/")[0] == "node01" and len(problems[0].nodes) == 12


def test_messages_that_differ_in_figures_fold_and_few_do_not():
    findings = [finding(f"n{at}", message=f"GPU 0 hot, {60 + at} C") for at in range(FOLD_FROM)]
    views = [view(f"n{at}", *busy(1.0)) for at in range(FOLD_FROM)]
    (one,) = fleet_problems(views, findings, 1.0)
    assert f"{FOLD_FROM} nodes: GPU 0 hot, 60 C (this on n0)" in one.row.text
    assert len(fleet_problems(views, findings[1:], 1.0)) == FOLD_FROM - 1
    assert len({problem.row.key for problem in fleet_problems(views, findings[1:], 1.0)}) == FOLD_FROM - 1


def test_worst_first_and_connecting_is_no_problem():
    views = [view("a", state="stale"), view("b", *busy(1.0)), view("c", state="connecting"), view("d", state="refused")]
    problems = fleet_problems(views, [finding("b", severity="info"), finding("b")], 10.0)
    assert [problem.row.cells[0].text for problem in problems] == ["CRIT", "CRIT", "WARN", "INFO"]
    assert not any("c" in problem.nodes for problem in problems)


@pytest.mark.parametrize(
    ("rule", "subject", "action"),
    [
        ("job.numa", "rank {}", "bind it"),
        ("cpu.dstate", "pid {}", ""),
        ("fabric.state", "GPU {}", ""),
        ("efa", "rdmap{}s27", ""),
        ("gpu.persistence", "GPU {}", "sudo nvidia-smi -i {} -pm 1"),
    ],
)
def test_what_differs_only_in_its_subject_folds(rule, subject, action):
    findings = [
        Finding(rule, "warning", f"n{node:02d}", subject.format(node), "so", action.format(node)) for node in range(24)
    ]
    assert [len(problem.nodes) for problem in problems_of([f.node for f in findings], findings)] == [24]


def test_what_folds_are_rules_that_there_are():
    ids = {rule.id for rule in ALL_RULES}
    assert not set(findings_of_screen._BY_ID) - ids
    prefixes = [prefix for prefix in findings_of_screen._BY_KIND if prefix != "node."]  # states of nodes: no rule
    assert all(any(rule_id.startswith(prefix) for rule_id in ids) for prefix in prefixes)


def test_different_filesystems_are_different_problems():
    findings = [
        Finding("fs.full", "warning", f"n{node:02d}", mount, f"{mount} is full")
        for node in range(8)
        for mount in ("/ckpt", "/scratch")
    ]
    assert [len(problem.nodes) for problem in problems_of([f.node for f in findings], findings)] == [8, 8]


def test_nodes_lost_for_one_reason_fold_whatever_address_ssh_names():
    nodes = [
        NodeView(NodeState.because(f"n{n:02d}", "lost", f"Connection closed by 10.0.0.{n} port 22")) for n in range(9)
    ]
    nodes += [NodeView(NodeState.because("m1", "lost", "no route to host"))]
    assert [len(problem.nodes) for problem in fleet_problems(nodes, [], 100.0)] == [9, 1]


def test_names_fold_whatever_they_are():
    assert folded_names(("n1", "n2", "n10")) == "n[1-2,10]"
    assert "@x" in folded_names(("@x", "y"))
