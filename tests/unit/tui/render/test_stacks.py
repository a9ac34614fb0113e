"""Verdicts as sentences, the merged tree, classes and single stacks."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from mltop.probes.model import (
    Culprit,
    Frame,
    Gap,
    Incident,
    JobReport,
    StackClass,
    StackDigest,
    Verdict,
    Waiting,
)
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.units import clock_time
from mltop.tui.render.cells import plain
from mltop.tui.render.stacks.report import Around, ReportLines
from mltop.tui.render.stacks.verdict import headline, stack_lines

GETITEM = Frame("DS.__getitem__", "case.py", 14, {"step": 3, "index": -1})
CULPRIT = Culprit(2, "n1", 4711, "is stuck", "DS.__getitem__ (case.py:14)")


def report(kind="hang", **fields):
    return JobReport("77", 4, Verdict(kind, **fields))


def lines_of(report, width=200, **around):
    return [line.cells for line in ReportLines(0, report, Around(1000.0, **around), width).lines()]


def text_of(report, width=200, **around):
    return [plain(line).rstrip() for line in lines_of(report, width, **around)]


def told(report):
    return headline(report)


def test_a_hang_names_rank_node_pid_place_and_who_waits():
    found = report(
        culprits=[CULPRIT],
        waiting=[Waiting(Ranges.of([0, 1, 3]), "all_reduce (train.py:40)")],
        evidence=["0 switches in 5.0 s"],
        confidence="high",
        gaps=[Gap("rank 3", "permission denied", "sudo mltop stacks")],
    )
    assert told(found) == (
        "HANG  rank 2 (n1) at DS.__getitem__ (case.py:14): is stuck, 3 ranks wait in all_reduce (train.py:40)"
    )
    first, prose, gap = text_of(found)
    assert first.startswith("■ rank 2    n1, pid 4711, is stuck: DS.__getitem__ (case.py:14)  ")
    assert first.endswith("HANG  confidence high")
    assert prose.strip() == "ranks 0-1,3 wait in all_reduce (train.py:40); 0 switches in 5.0 s"
    assert gap.strip() == "not known: rank 3: permission denied (sudo mltop stacks)"
    assert lines_of(found)[0][0].style == "crit"


def test_since_when_and_what_to_do_are_the_incidents():
    hung = Incident(
        "1", "hang", "critical", "", job="77", since=0.0, culprits=[CULPRIT], action="see what it waits for"
    )
    first, *others = text_of(report(culprits=[CULPRIT]), incident=hung)
    assert f"since {clock_time(0.0)}" in first
    assert any(line.strip() == "→ see what it waits for" for line in others)


@pytest.mark.parametrize("width", range(60, 160))
def test_how_sure_the_verdict_is_stands_on_one_line(width):
    lines = text_of(report(culprits=[CULPRIT], confidence="high"), width)
    assert sum("confidence high" in line for line in lines) == 1
    assert all(len(line) <= width for line in lines)


def test_further_culprits_follow_line_by_line():
    found = report(culprits=[CULPRIT, Culprit(3, "n2", None, "gone", "no process")], confidence="medium")
    assert told(found).endswith("is stuck (and 1 more)")
    assert text_of(found)[1].split() == ["■", "rank", "3", "n2,", "gone:", "no", "process"]


def test_several_places_of_waiting():
    found = report(
        culprits=[CULPRIT],
        waiting=[Waiting(Ranges.of([0]), "barrier"), Waiting(Ranges.of([1, *range(3, 10)]), "all_reduce")],
    )
    assert "8 ranks wait in all_reduce, 1 rank waits in barrier" in told(found)
    found.verdict.waiting.append(Waiting(Ranges.of([20]), "send"))
    assert told(found).endswith("1 rank waits in barrier, 1 rank waits in send")
    found.verdict.waiting += [Waiting(Ranges.of([at]), f"place {at}") for at in range(30, 60)]
    assert len(told(found)) < 200


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("moving", "MOVING  the job makes progress; nobody is accused"),
        ("unclear", "UNCLEAR  not enough evidence to accuse anybody"),
        ("hang", "HANG  no rank can be named"),
        ("new kind", "NEW KIND  nobody is accused"),
    ],
)
def test_nobody_is_accused(kind, words):
    assert told(report(kind)) == words
    (line,) = text_of(report(kind))
    word, what = words.split("  ")
    assert what in line and line.endswith(f"{word}  confidence low")


def test_only_a_straggler_verdict_names_stragglers():
    slow = Culprit(1, "n1", 7, "9 s behind", "step (train.py:3)")
    for tell in (told, lambda found: text_of(found)[0]):
        assert "rank 1" in tell(report("straggler", stragglers=[slow]))
        assert "rank 1" not in tell(report("moving", stragglers=[slow]))


def test_a_rank_without_number_node_and_pid():
    assert told(report(culprits=[Culprit(None, "", None, "sleeps", "")])) == "HANG  the node: sleeps"


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_verdicts_fit_every_width(width):
    found = report(
        culprits=[CULPRIT] * 3,
        waiting=[Waiting(Ranges.of([0, 1, 3]), "all_reduce")],
        evidence=["x" * 300, "[red]markup[/red] \x1b[31m"],
        gaps=[Gap("a", "b " * 90, "c")],
    )
    for line in lines_of(found, width):
        assert cell_len(plain(line)) <= width
        assert plain(line).isprintable()


CLASSES = [
    StackClass(
        Ranges.of([2]),
        1,
        None,
        [GETITEM, *[Frame(f"f{i}", "torch/utils/x.py", i) for i in range(5)], Frame("main", "t.py", 9)],
    ),
    StackClass(
        Ranges.of([0, 1, 3]),
        3,
        "all_reduce",
        [
            Frame("all_reduce", "torch/distributed/distributed_c10d.py", 2500),
            Frame("train", "t.py", 41),
            Frame("main", "t.py", 9),
        ],
    ),
]


def hung_by_two():
    made = report(culprits=[replace(CULPRIT, how="stands")], waiting=[Waiting(Ranges.of([0, 1, 3]), "all_reduce")])
    made.classes = CLASSES
    return made


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_tree_has_the_culprits_branch_first_and_names_ranks_at_the_right_edge(width):
    lines = text_of(hung_by_two(), width)
    assert all(len(line) <= width for line in lines)
    at = next(at for at, line in enumerate(lines) if line.startswith(" RANKS  MERGED STACKS"))
    tree = lines[at + 1 :]
    assert tree[0].startswith("     4  main  t.py:9")
    stands = next(at for at, line in enumerate(tree) if "DS.__getitem__" in line)
    waits = next(at for at, line in enumerate(tree) if "all_reduce" in line)
    assert stands < waits and tree[stands].startswith("■"), "whoever holds the others up comes first"
    assert tree[0].endswith("0-3") or width < 80


def test_own_frames_stand_out_and_those_of_libraries_are_dim():
    lines = lines_of(hung_by_two(), 120)
    frame = {cell.text: cell.style for line in lines for cell in line if cell.text in ("main", "train", "f3")}
    assert frame == {"main": "title", "train": "title", "f3": "dim"}


def test_deep_recursion_stays_on_the_screen():
    deep = StackClass(Ranges.of([0]), 1, None, [Frame(f"f{i}", "user/t.py", i) for i in range(400)])
    found = report("moving")
    for classes in ([deep], [deep, StackClass(Ranges.of([1]), 1, None, deep.frames[:-1])]):
        found.classes = classes
        assert all(len(line) <= 80 for line in text_of(found, 80))


def test_a_stack_with_integer_locals():
    digest = StackDigest(
        2,
        4711,
        node="n1",
        state="S",
        wchan="hrtimer_nanosleep",
        samples=3,
        frames=[GETITEM, Frame("main", "case.py", 60)],
    )
    assert [plain(line) for line in stack_lines(digest, 120)] == [
        "rank 2 on n1 pid 4711  MainThread  S sleeping  kernel: hrtimer_nanosleep  same in 3 dumps",
        "  > DS.__getitem__  case.py:14  index=-1 step=3",
        "    main  case.py:60",
    ]


def test_a_stack_that_could_not_be_read_says_why_and_what_to_do():
    digest = StackDigest(None, 12, error="permission denied", fix="sudo mltop stacks", child_of=11, state="Z")
    assert [plain(line) for line in stack_lines(digest, 120)] == [
        "rank ? pid 12 (child of 11)  MainThread  Z zombie",
        "  no stack: permission denied",
        "  do: sudo mltop stacks",
    ]
    assert "reason is not known" in plain(stack_lines(StackDigest(0, 1), 80)[1])
