"""Lines around the tables of a probe: headline, verdict, failures, command, history, curve, squares."""

from __future__ import annotations

import shlex
import time

import pytest

from mltop.probes.investigate.probing.board import Board
from mltop.probes.investigate.probing.report import Measured, judged
from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
from mltop.probes.model.probe import (
    DEVICE_RESULTS,
    CollectiveResult,
    CopiesResult,
    PairResult,
    PastResult,
    PeerCopy,
    ProbeFailure,
    ProbeReport,
    ProbeVerdict,
    RankArrival,
    Suspect,
)
from mltop.probes.model.probe_kinds import PROBE_OF
from mltop.tui.render.cells import Cell, line_width, plain, row_of
from mltop.tui.render.probes.collectives import (
    ArrivalLine,
    by_lag,
    curve_lines,
    pair_lines,
    pair_matrix,
    peer_matrix,
    round_steps,
)
from mltop.tui.render.probes.kinds import KINDS, TABLES, takes_text, title_of, where_text
from mltop.tui.render.probes.summary import (
    command_lines,
    failure_lines,
    headline,
    history_lines,
    shell_lines,
    split_verdict,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("wanted", "title"),
    [
        (ProbeWanted("matmul", dtype="fp8"), "matmul fp8"),
        (ProbeWanted("all-reduce", collective="all-to-all", sweep=True), "all-to-all, sweep"),
        (ProbeWanted("pairs", round_robin=True), "pairs, round robin"),
        (ProbeWanted("copies", force=True), "copies, forced"),
    ],
)
def test_titles(wanted: ProbeWanted, title: str) -> None:
    assert title_of(wanted) == title


def test_every_kind_has_its_rows() -> None:
    assert KINDS.keys() == PROBE_OF.keys()
    assert DEVICE_RESULTS.keys() == {kind for kind, row in PROBE_OF.items() if row.one_gpu} <= TABLES.keys()
    assert all(judged(ProbeWanted(kind), Measured(Board(kind), None, [], [], [])).verdict.text for kind in PROBE_OF)
    for kind, result in DEVICE_RESULTS.items():
        of = result("n1", uuid="GPU-1")
        assert [of.key(what).split(" ")[0] for what in of.KEPT] == [kind] * len(of.KEPT) != []
        assert all(hasattr(of, name) for name in of.KEPT.values())


def test_where() -> None:
    assert where_text(ProbeWanted("matmul", ("n1",), ("3",))) == "n1 GPU 3"
    assert where_text(ProbeWanted("matmul", ("n1", "n2"))) == "2 nodes"
    assert where_text(ProbeWanted("matmul"), ["n1"]) == "n1"
    assert where_text(ProbeWanted("matmul")) == "all nodes"


def test_how_long() -> None:
    assert takes_text(ProbeWanted("matmul"), 1) == "about 20s"
    assert takes_text(ProbeWanted("matmul"), 3) == "about 20s, on all of them at once"
    assert takes_text(ProbeWanted("all-reduce", sweep=True), 3) == "about 1m00s"
    assert takes_text(ProbeWanted("all-reduce"), 65) == "about 1m00s"
    assert takes_text(ProbeWanted("pairs", round_robin=True), 255) == "about 13m15s", "an odd number: a round each"


def test_the_headline_keeps_what_matters_most_at_any_width() -> None:
    progress = ProbeProgress(ProbeWanted("matmul"), "running", "burst", 3.21, 120.0)
    assert plain(headline(progress, False, 80)[0]) == (
        "matmul bf16  on all nodes  running  3.2 s of 120 s at most  Esc cancels"
    )
    assert plain(headline(progress, True, 80)[0]).startswith("matmul bf16  on all nodes  cancelling")
    assert plain(headline(progress, False, 24)[0]) == "matmul bf16  running"
    assert plain(headline(progress, False, 80)[1]) == "burst"


def test_a_verdict_is_split_between_sentences() -> None:
    verdict = ProbeVerdict("GPU 3 is slow", [Suspect("n1", "hot", 3, action="cool it")], ["all others are alike"])
    above, left = split_verdict(verdict, 60, 3)
    assert [plain(line) for line in above] == ["1 SUSPECT  GPU 3 is slow", "  • n1 GPU 3: hot", "    do: cool it"]
    assert [plain(line) for line in left] == ["The verdict, continued", "  • all others are alike"]
    above, left = split_verdict(ProbeVerdict("a long sentence " * 9), 60, 2)
    assert len(above) == 2 and plain(left[0]) == "The verdict, continued"
    assert split_verdict(ProbeVerdict("all alike"), 60, 2)[1] == []
    told = ProbeVerdict("all alike", details=["GPU 0 was not measured: in use"])
    assert len(split_verdict(told, 60, 9, [ProbeFailure("n1", "in use", 0)])[0]) == 1, "it stands below"
    assert plain(split_verdict(ProbeVerdict("all alike"), 60, 2)[0][0]) == "VERDICT  all alike"


def test_failures_of_one_reason_are_one_line_and_what_was_left_out_comes_last() -> None:
    failures = [ProbeFailure("n1", "in use by ada", gpu, refused=True, stage="gate") for gpu in (0, 1, 2, 5)] + [
        ProbeFailure(f"n{at}", "no Python with torch", stage="start python", fix="--python") for at in (7, 8)
    ]
    lines = [plain(line) for line in failure_lines(failures, 80)]
    assert lines == [
        "Not measured",
        "  FAILED n[7-8]: start python: no Python with torch",
        "    do: --python",
        "  LEFT OUT n1 GPU 0-2,5: in use by ada",
    ]
    assert failure_lines([], 80) == []
    used = [
        ProbeFailure("n1", f"in use by ada: t.py (pid {pid})", pid - 80, code="in_use", who="ada: t.py", pids=[pid])
        for pid in (80, 81, 82)
    ]
    assert plain(failure_lines(used, 80)[1]) == "  FAILED n1 GPU 0-2: in use by ada: t.py (pids 80-82)"


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_command_stays_one_command_however_it_is_broken(width: int) -> None:
    command = "NCCL_DEBUG=INFO torchrun --nnodes=2 --rdzv-endpoint=10.0.0.1:29400 'my bench.py' --sizes 1,2,3"
    lines = shell_lines(command, width)
    assert all(len(line) <= max(width, 40) for line in lines)
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
    assert command_lines(ProbeReport("pairs", 0.0), width) == []


def past(value: float, at: float, key: str = "matmul bf16 burst", **versions: str) -> PastResult:
    return PastResult("GPU-1", key, value, at, versions)


def test_history() -> None:
    results = [past(700 + at, 1_763_640_000.0 + 86400 * at, torch="2.5") for at in range(5)]
    results.append(past(53e9, 1_763_640_000.0, "copies to_device 268435456"))
    lines = [plain(line) for line in history_lines("n1 GPU 1", results, "matmul", 100)]
    assert lines[0] == "Earlier  n1 GPU 1"
    first, last = (time.strftime("%Y-%m-%d", time.localtime(results[at].at)) for at in (0, 4))
    assert "median 702T" in lines[1] and "700T to 704T" in lines[1] and f"5 from {first} to {last}" in lines[1]
    assert "704T" in lines[2] and "torch 2.5" in lines[2], "the newest first"
    lines = [plain(line) for line in history_lines("n1 GPU 1", results, "copies", 100)]
    assert "to_device 256M" in lines[1] and "53.0G/s" in lines[1]
    assert history_lines("n1 GPU 1", results, "memory", 100) == []


def collective(size: int, busbw: float | None, expected: float | None = None) -> CollectiveResult:
    arrivals = [RankArrival(rank, "n1", rank, 0.03, 0.0001 * rank) for rank in range(3)]
    arrivals[1] = RankArrival(1, "n1", 1, 0.001, 0.029, 0.002)
    return CollectiveResult(
        "all-reduce", "nccl", size, 3, ["n1"], 20, 0.03, 0.029, 0.031, None, busbw, 0, arrivals, "NCCL", expected
    )


def cells_of(table: str, item: object) -> tuple[Cell, ...]:
    return row_of(TABLES[table].columns, item, "").cells


def test_sizes_and_ranks() -> None:
    cells = [cell.text for cell in cells_of("sizes", collective(256 * MIB, 4e11, 5e11))]
    assert cells[:9] == ["256M", "30.0ms", "31.0ms", "29.0ms", "–", "400G/s", "500G/s", "80%", "none"]
    assert cells[9] == "rank 1 +29.0ms GPU 1"
    little, enough = (cells_of("sizes", collective(MIB, busbw, 5e11)) for busbw in (4e11, 4.5e11))
    assert (little[7].style, enough[7].style) == ("warn", "")
    result = collective(MIB, None)
    assert [one.rank for one in by_lag(result)] == [1, 2, 0]
    late = cells_of("ranks", ArrivalLine(by_lag(result)[0], result))
    assert [cell.text for cell in late][:4] == ["1", "n1", "1", "29.0ms"] and late[3].style == "warn"
    wrong = collective(MIB, 1e9)
    wrong.wrong = 3
    assert cells_of("sizes", wrong)[8] == Cell("3 WRONG", "crit")


def test_pairs_bad_ones_first() -> None:
    pairs = [
        PairResult(1, ["a", "b"], MIB, 4e10),
        PairResult(1, ["c", "d"], MIB, None, "no route"),
        PairResult(2, ["a", "c"], MIB, 1e10),
        PairResult(2, ["b", "d"], MIB, 4e10),
    ]
    order = pair_lines(pairs)
    assert [line.pair.nodes for line in order][:2] == [["c", "d"], ["a", "c"]]
    rows = [[cell.text for cell in cells_of("pairs", line)] for line in order]
    assert rows[0][3] == "failed" and rows[0][6] == "no route"
    assert rows[1][5] == "-75% median"
    square = [plain(line) for line in pair_matrix(pairs, 80)]
    assert square[1:] == ["a   ▇ ▃ · ", "b ▇   · ▇ ", "c ▃ ·   X ", "d · ▇ X   "]
    assert pair_matrix(pairs, 5) == [], "too wide"
    assert pair_matrix(pairs[:1], 80) == [], "two nodes are no square"


def test_copies_between_gpus() -> None:
    results = [
        CopiesResult("n1", gpu, peers=[PeerCopy(to, 4e10 if gpu + to == 2 else 3.7e11) for to in range(3) if to != gpu])
        for gpu in range(3)
    ]
    results[0].peers[1].direct = False
    lines = [plain(line) for line in peer_matrix(results, 80)]
    assert lines[2].split() == ["0", "370", "40.0h!"] and lines[3].split() == ["1", "370", "370"]
    assert peer_matrix(results, 20) == [] and peer_matrix([CopiesResult("n1", 0)], 80) == []


def test_a_curve_needs_three_sizes_and_room() -> None:
    results = [collective(MIB << 2 * step, 1e11 * step, 1.1e11 * step if step > 2 else None) for step in range(1, 6)]
    lines = curve_lines(results, 80, 14)
    text = "\n".join(map(plain, lines))
    assert text.startswith("Bus bandwidth over size  GB/s   ··· expected")
    assert all(tick in text for tick in ("4M", "16M", "64M", "256M", "1G", "  600┤"))
    assert max(map(line_width, lines)) <= 80 and len(lines) <= 14
    assert {cell.style for line in lines for cell in line} >= {"accent", "dim"}, "the curve stands out"
    assert curve_lines(results[:2], 80, 14) == []
    assert curve_lines(results, 30, 14) == [] and curve_lines(results, 80, 6) == []
    assert curve_lines([collective(MIB << step, None) for step in range(4)], 80, 14) == [], "nothing was measured"


@pytest.mark.parametrize(
    ("most", "count", "last"), [(466, 6, 500), (96, 6, 100), (1.7, 6, 2), (0.013, 3, 0.015), (0, 6, 1), (850, 3, 1000)]
)
def test_round_steps(most: float, count: int, last: float) -> None:
    steps = round_steps(most, count)
    assert steps[0] == 0 and steps[-1] == pytest.approx(last) and len(steps) <= count + 2
