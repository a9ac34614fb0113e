"""The printed report: the same rows on a console of any width, no markup, no colours when asked."""

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from mltop.probes.model import (
    Culprit,
    Finding,
    Frame,
    Gap,
    GpuSample,
    JobReport,
    NodeState,
    RankSample,
    Sample,
    StackClass,
    StackDigest,
    Verdict,
    Waiting,
)
from mltop.probes.model.ranks import Ranges
from mltop.tui.report import MOST_UNREADABLE, print_doctor, print_reports, print_snapshot

NASTY = "[red]x[/red] [/dev/nvidia0] :smile: \x1b[31m日本"


LONG_FIX = "sudo mltop; in a container: start it with --privileged, or --cap-add SYS_ADMIN where that suffices"


def console(width=80, **options):
    return Console(file=io.StringIO(), width=width, **options)


def printed(console):
    return console.file.getvalue()


def sample(**fields):
    gpus = [GpuSample(0, busy=0.5, name="NVIDIA H100"), GpuSample(1, state="lost", error=NASTY)]
    normal = {
        "gpus": gpus,
        "ranks": [RankSample(4711, 0, gpus=[0], state="S", command=NASTY)],
        "gaps": [Gap("kernel_log", NASTY, LONG_FIX)],
    }
    return Sample("n1", 1000.0, **{**normal, **fields})


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_a_snapshot_prints_what_machines_say_as_it_is(width):
    out = console(width)
    print_snapshot([sample()], [Finding("f", "critical", "n1", "gpu 1", NASTY)], [NodeState("n1", "live")], out)
    text = printed(out)
    assert "\x1b" not in text
    assert "😄" not in text
    assert "[red]x[/red]" in text
    assert "LOST" in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_processes_of_no_job_stand_below_the_ranks():
    out = console(120)
    print_snapshot([sample(unassigned=[RankSample(99, state="S", command=NASTY)])], [], [NodeState("n1", "live")], out)
    text = printed(out)
    assert text.index("4711") < text.index("Python processes of no job") < text.index("   99 ")
    assert "\x1b" not in text
    out = console(120)
    print_snapshot([sample(ranks=[], unassigned=[RankSample(99)])], [], [NodeState("n1", "live")], out)
    assert "no training ranks found" in printed(out)
    assert "Python processes of no job" in printed(out)


def test_a_fix_stays_on_one_line_so_that_it_can_be_copied():
    out = console(40)
    print_snapshot([sample()], [], [NodeState("n1", "live")], out)
    assert any(line.endswith(LONG_FIX) for line in printed(out).splitlines())


def test_simulated_gpus_say_so():
    out = console()
    print_snapshot([sample(simulated=True)], [], [NodeState("n1", "live")], out)
    assert "GPUs (SIMULATED)" in printed(out)
    assert "SIMULATED" in printed(out).splitlines()[0]


def test_several_nodes_and_one_that_did_not_answer():
    out = console(100)
    nodes = [NodeState("n1", "live", age_s=0.1), NodeState("n2", "refused", "Permission denied (publickey)")]
    print_snapshot([sample()], [], nodes, out)
    assert "refused" in printed(out)
    assert "Permission denied (publickey)" in printed(out)


def test_nothing_at_all():
    out = console()
    print_snapshot([], [], [NodeState("n1", "lost", "no route to host")], out)
    assert "no route to host" in printed(out)
    assert "ranks unknown: no sample" in printed(out)


@pytest.mark.parametrize("count", [1, 6])
def test_ranks_that_could_not_be_read_are_unknown(count):
    names = [f"n{number}" for number in range(count)]
    unread = [Sample(name, 1.0, gaps=[Gap("ranks", "/proc cannot be listed", code="unread")]) for name in names]
    out = console()
    print_snapshot(unread, [], [NodeState(name, "live") for name in names], out)
    print_reports([], [], out, samples=unread)
    assert printed(out).count("ranks unknown: /proc cannot be listed\n") == 2
    assert "no training ranks" not in printed(out)
    other_users = Gap("ranks", "1 Python process of root cannot be read", code="no_permission")
    out = console()
    print_reports([], [], out, samples=[Sample("n1", 1.0, gaps=[other_users])])
    assert printed(out).startswith("no training ranks found")


@pytest.mark.parametrize("no_color", [True, False])
def test_colours_follow_the_console(no_color):
    out = console(80, force_terminal=True, color_system="truecolor", no_color=no_color)
    print_snapshot([sample()], [], [NodeState("n1", "live")], out)
    assert ("\x1b[1;31m" in printed(out)) is not no_color
    assert "LOST" in printed(out)


@pytest.mark.parametrize("width", [30, 80, 160])
def test_reports(width):
    classes = [
        StackClass(Ranges.of([2]), 1, None, [Frame("load", "case.py", 14)]),
        StackClass(
            Ranges.of([0, 1]), 2, "all_reduce", [Frame("all_reduce", "torch/x.py", 1), Frame("main", "t.py", 2)]
        ),
    ]
    verdict = Verdict(
        "hang", [Culprit(2, "n1", 7, "is stuck", "load (case.py:14)")], [Waiting(Ranges.of([0, 1]), "all_reduce")]
    )
    digests = [StackDigest(index, index, error="gone", node="n1") for index in range(MOST_UNREADABLE + 3)]
    out = console(width)
    print_reports([JobReport("77", 3, verdict, classes, digests)], [NodeState("n9", "lost", "no route to host")], out)
    text = printed(out)
    assert text.startswith("n9 lost: no route to host\n")
    whole = " ".join(text.split())
    assert "■ rank 2 n1, pid 7," in whole and "HANG" in whole
    assert "MERGED STACKS" in text and "load" in text
    assert "and 3 more without a stack" in text
    assert "0-1" in text


def test_no_reports():
    out = console()
    print_reports([], [], out)
    assert printed(out) == "no training ranks found: nothing to dump\n"


@pytest.mark.parametrize("width", [20, 60, 80, 160])
def test_doctor_says_why_and_what_to_do(width):
    out = console(width)
    why = "kernel.yama.ptrace_scope is 1: only own children can be traced"
    print_doctor(
        [
            {"node": "n1", "name": "py-spy", "state": "ok", "why": "0.4.1", "fix": ""},
            {"node": "n1", "name": "ptrace", "state": "missing", "why": why, "fix": "sudo mltop"},
            {"name": "odd"},
        ],
        out,
    )
    text = printed(out)
    assert "    do: sudo mltop\n" in text
    assert "children can be" in " ".join(text.split()) or width < 40
    assert text.count("do:") == 1


def fleet(count, **fields):
    return [replace(sample(**fields), node=f"n{number:03d}") for number in range(1, count + 1)]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_fleet_is_one_line_per_node_with_totals_at_the_end(width):
    samples = fleet(64, gaps=[Gap("nvml.x", "too old", "update")])
    nodes = [NodeState(one.node, "live") for one in samples]
    nodes += [NodeState(f"n{number:03d}", "lost", "connection refused") for number in (70, 71, 80)]
    findings = [Finding("gpu.lost", "critical", one.node, "gpu 1", "GPU 1 is lost", "reset it") for one in samples]
    out = console(width)
    print_snapshot(samples, findings, nodes, out)
    text = printed(out)
    lines = text.splitlines()
    assert sum(line.startswith("n0") for line in lines) == 64
    assert len(lines) < 64 + 30
    assert max(map(len, lines)) <= max(width, 60)
    assert "n[070-071,080] lost: connection refused" in " ".join(text.split())
    assert text.count("    do: reset it") == 1
    assert "n[001-064]" in text
    assert "all nodes: nvml.x: too old" in " ".join(text.split())
    assert lines[-1].startswith("67 nodes")


def test_a_fleet_says_which_ranks_of_a_job_it_has_not_seen():
    samples = [
        replace(sample(), node=f"n{number}", ranks=[RankSample(9, number, world_size=8, job="77")])
        for number in range(6)
    ]
    out = console(100)
    print_snapshot(samples, [], [NodeState(one.node, "live") for one in samples], out)
    assert "77: 6 ranks of world size 8 on n[0-5]" in printed(out)
    assert "not seen: ranks 6-7" in printed(out)


@pytest.mark.parametrize("width", [80, 120])
def test_nodes_that_did_not_answer_are_said_once(width):
    gaps = [Gap("node.h[1-300]", "lost: no route; their ranks are unknown"), Gap("rank.8-9", "not seen")]
    report = JobReport("77", 3, Verdict("unclear", gaps=gaps))
    out = console(width)
    print_reports([report], [NodeState(f"h{number}", "lost", "no route") for number in range(1, 301)], out)
    text = printed(out)
    assert text.splitlines()[0] == "300 nodes: h[1-300] lost: no route"
    assert text.count("no route") == 1
    assert "rank.8-9" in text
    assert max(map(len, text.splitlines())) <= width


def test_doctor_folds_nodes_and_puts_what_is_missing_first():
    def check(node, name, state, why, fix=""):
        return {"node": node, "name": name, "state": state, "why": why, "fix": fix}

    rows = [
        check("(this machine)", "terminal", "ok", "fine"),
        *(
            check(f"h{number:02d}", "connection", "ok", f"ssh, connected in 0.{number:02d} s")
            for number in range(1, 17)
        ),
        *(
            check(f"h{number:02d}", "py-spy", "missing", f"not on h{number:02d}", "pip install py-spy")
            for number in (3, 9)
        ),
        check("h11", "py-spy", "missing", "not on h11", "other"),
    ]
    out = console(100)
    print_doctor(rows, out)
    lines = printed(out).splitlines()
    assert lines[1].split()[:3] == ["h[03,09]", "py-spy", "missing"]
    assert lines[1].endswith("not on the node")
    assert lines[2] == "    do: pip install py-spy"
    assert lines[3].endswith("not on h11")
    assert any(" ".join(line.split()) == "h[01-16] connection ok ssh, connected in 0.01-0.16 s" for line in lines)


def test_no_node_answered_is_not_a_job_without_ranks():
    silent = [NodeState("h1", "lost", "no route"), NodeState("h2", "connecting", "starting ssh")]
    out = console()
    print_reports([], silent, out, silent)
    assert printed(out).endswith("no node answered: nothing could be dumped\n")
    out = console()
    print_reports([], silent[:1], out, silent)
    assert printed(out).endswith("no training ranks found: nothing to dump on the nodes that answered\n")


def test_what_is_unknown_of_a_node_that_answered_stays():
    gaps = [Gap("node.h2", "is the same machine as h1"), Gap("node.h3", "lost; its ranks are unknown")]
    states = [NodeState("h1", "live"), NodeState("h2", "live"), NodeState("h3", "lost")]
    out = console()
    print_reports([JobReport("77", 3, Verdict("unclear", gaps=gaps))], states[2:], out, states)
    assert "node.h2" in printed(out)
    assert "node.h3" not in printed(out)


def test_a_header_without_any_sample_shows_the_time():
    out = console(120)
    print_snapshot([], [], [NodeState("n1", "lost", "no route")], out)
    assert time.strftime("%H:%M", time.localtime(0)) + ":00" not in printed(out).splitlines()[0]


def test_a_fix_for_several_nodes_names_one_that_can_be_typed():
    rows = [
        {"node": node, "name": "connection", "state": "missing", "why": "refused", "fix": f"ssh {node} once by hand"}
        for node in ("h01", "h02", "h03")
    ]
    out = console()
    print_doctor([*rows, {**rows[0], "name": "other", "fix": "the same everywhere"}], out)
    assert "h[01-03]" in printed(out)
    assert "    do: e.g. ssh h01 once by hand\n" in printed(out)
    assert "    do: the same everywhere\n" in printed(out)
