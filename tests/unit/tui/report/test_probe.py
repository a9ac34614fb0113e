"""What `mltop probe` prints: the verdict first, many alike as one sentence, nothing cut without a sign."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from mltop.probes.model import NodeState
from mltop.probes.model.probe import (
    CollectiveResult,
    CopiesResult,
    MatmulResult,
    MemoryResult,
    PairResult,
    PastResult,
    PeerCopy,
    Phase,
    ProbeFailure,
    ProbeReport,
    ProbeVerdict,
    RankArrival,
    Suspect,
)
from mltop.tui.report.page import span
from mltop.tui.report.probe import MOST_SUSPECTS, print_probe

H100 = "NVIDIA H100 80GB HBM3"
NASTY = "[red]x[/red] :smile: \x1b[31m日本"
LONG = "sudo nvidia-smi -i 5 --gpu-reset " + "x" * 100


def printed(report: ProbeReport, width: int = 80, nodes: tuple[NodeState, ...] = (), **options: object) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_probe(report, nodes, console, **options)
    return console.file.getvalue()


def matmul(number: int, **changes: object) -> MatmulResult:
    """GPU ``number`` of a cluster of nodes with eight each, all within two percent."""
    sustained = 665.0 + number % 14
    phase = Phase("sustained", 3.0, 695.0, 700.0, 700.0, 1410.0, 1980.0, 66.0, {"sw_power_cap": 0.97})
    made = MatmulResult(
        node=f"n{number // 8 + 1:02d}",
        gpu=number % 8,
        uuid=f"GPU-{number:04d}",
        name=H100,
        versions={"torch": "2.9.1", "driver": "570"},
        phases=[phase],
        shape=[2048, 2048, 13312],
        shapes_tried=43,
        iterations=100,
        burst_tflops=sustained + 120,
        sustained_tflops=sustained,
        sustained_efficiency=0.88,
        burst_efficiency=0.83,
        checked_iterations=100,
        checked_pflop=2.0,
        upload_intact=True,
    )
    return replace(made, **changes)


def cluster(**of_others: dict[str, object]) -> list[MatmulResult]:
    """64 GPUs; ``gN``: changes of the N-th."""
    return [matmul(number, **of_others.get(f"g{number}", {})) for number in range(64)]


def test_the_verdict_comes_first_with_who_why_and_what_to_do() -> None:
    suspect = Suspect("n02", "17 % slower than its peers", gpu=5, action=LONG)
    verdict = ProbeVerdict("63 of 64 GPUs alike", [suspect], ["the power limit holds all"])
    text = printed(ProbeReport("matmul", 0.0, 4.2, cluster(), verdict=verdict, simulated=True))
    lines = text.splitlines()
    assert lines[0] == "SIMULATED  matmul, 4.2s"
    assert lines[1] == "1 SUSPECT  63 of 64 GPUs alike"
    assert lines[2] == "  • n02 GPU 5: 17 % slower than its peers"
    assert lines[3] == f"    do: {LONG}", "in one line, to be copied"
    assert lines[4] == "  • the power limit holds all"


def test_nobody_accused() -> None:
    text = printed(ProbeReport("matmul", 0.0, results=cluster(), verdict=ProbeVerdict("64 GPUs alike")))
    assert text.startswith("matmul\nVERDICT  64 GPUs alike\n") and "SUSPECT" not in text


def test_many_alike_are_one_sentence_and_the_others_a_row_each() -> None:
    others = {
        "g13": {"sustained_tflops": 555.0},
        "g20": {"corrupt_iterations": 3},
        "g30": {"sustained_tflops": None, "burst_tflops": None},
        "g40": {"phases": [Phase("sustained", 3.0, 498.0, throttle_share={"hw_thermal": 0.4})]},
        "g50": {"upload_intact": False},
        "g60": {"still_heating": True},
    }
    verdict = ProbeVerdict("", [Suspect("n01", "named by the judge", gpu=2)])
    text = printed(ProbeReport("matmul", 0.0, results=cluster(**others), verdict=verdict))
    shown = [line.split()[0] for line in text.splitlines() if line[:1] == "n" and "/" in line[:4]]
    assert shown == ["n01/2", "n02/5", "n03/4", "n04/6", "n06/0", "n07/2", "n08/4"]
    flat = " ".join(text.split())
    assert f"and 57 GPUs alike on n[01-08] ({H100}): burst 785–798T, held 665–678T, efficiency 88%, 1410MHz" in flat
    assert "695W, 66C, at the power limit for 97%, no error in 114 PFLOP" in flat
    assert "n02/5 798T 555T" in " ".join(next(one for one in text.splitlines() if one.startswith("n02/5")).split())


def test_verbose_shows_every_device() -> None:
    report = ProbeReport("matmul", 0.0, results=cluster())
    rows = [line for line in printed(report, verbose=True).splitlines() if line.startswith("n0") and "/" in line[:4]]
    assert len(rows) == 64 and "GPUs alike" in printed(report)


def test_few_are_shown_one_by_one_and_models_apart() -> None:
    assert "alike" not in printed(ProbeReport("matmul", 0.0, results=cluster()[:8]))
    mixed = [replace(one, name="NVIDIA A100" if one.gpu == 0 else H100) for one in cluster()]
    mixed = [replace(one, sustained_tflops=250.0) if one.name == "NVIDIA A100" else one for one in mixed]
    text = " ".join(printed(ProbeReport("matmul", 0.0, results=mixed)).split())
    assert f"56 GPUs alike on n[01-08] ({H100})" in text, "A100s are not outliers among H100s"
    assert text.count("250T") == 8


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_at_any_width_what_is_left_out_is_named(width: int) -> None:
    results = [replace(one, name=NASTY, gaps={"power_w": NASTY}) for one in cluster()[:4]]
    failures = [ProbeFailure("n09", NASTY, gpu=1, stage="burst", fix=LONG)]
    verdict = ProbeVerdict(NASTY, [Suspect("n01", NASTY, gpu=1, action=LONG)], [NASTY])
    text = printed(ProbeReport("matmul", 0.0, 1.0, results, failures, verdict, [NASTY], LONG), width)
    lines = text.splitlines()
    assert "\x1b" not in text and "😄" not in text
    assert not any(line != line.rstrip() for line in lines)
    assert any(line == LONG for line in lines), "the command stays whole"
    assert width < 40 or all(len(line) <= width for line in lines if LONG not in line and "日本" not in line)
    header = next(line for line in lines if "BURST" in line)
    named = " ".join(text.split()).partition("not shown at this width: ")[2].partition(" (--json")[0].split(", ")
    for title in ("MHZ", "PWR/LIM", "TEMP", "EFF", "P5"):
        assert (title in header) != any(one.startswith(title) for one in named), title


def test_at_80_columns_everything_that_is_asked_for_stands_there() -> None:
    header = next(
        line for line in printed(ProbeReport("matmul", 0.0, results=cluster()[:2])).splitlines() if "HELD" in line
    )
    assert {"BURST", "HELD", "EFF", "MHZ", "PWR/LIM", "TEMP", "THROTTLE", "WRONG"} <= set(header.split())


def test_earlier_results_are_what_a_device_is_compared_with() -> None:
    past = [
        PastResult("GPU-0000", "matmul bf16 sustained", 700.0, float(at), {"torch": "2.9.1", "driver": "570"})
        for at in range(5)
    ]
    report = ProbeReport("matmul", 100.0, results=[matmul(0, sustained_tflops=560.0)])
    assert "-20% own" in printed(report, past=past) and " own" not in printed(report)


def test_how_it_was_measured_and_what_is_not_known() -> None:
    results = cluster()[:16]
    results[3] = replace(results[3], versions={"torch": "2.6.0"}, gaps={"power_w": "NVML: not supported"})
    text = " ".join(printed(ProbeReport("matmul", 0.0, results=results)).split())
    assert "n[01-02]: torch 2.9.1, driver 570, bf16 burst 2048x2048x13312 (best of 43 shapes)" in text
    assert "n01: torch 2.6.0" in text
    assert "n01/3: power_w is not known: NVML: not supported" in text


def test_processors_have_no_gpu() -> None:
    cpus = [replace(matmul(8 * n), gpu=None, uuid="cpu", kind="cpu", name="EPYC", phases=[]) for n in range(12)]
    assert "12 CPU nodes alike on n[01-12] (EPYC)" in " ".join(
        printed(ProbeReport("matmul", 0.0, results=cpus)).split()
    )
    lines = printed(ProbeReport("matmul", 0.0, results=cpus[:1])).splitlines()
    assert lines[2].startswith("NODE ") and lines[3].startswith("n01 ")


# Failures.


def test_failures_of_one_kind_are_one_sentence() -> None:
    refused = [
        ProbeFailure(f"n{n:02d}", f"busy: {n + gpu} %", gpu, fix="wait for it", refused=True, code="busy")
        for n in range(2, 13)
        for gpu in range(8)
    ]
    dead = ProbeFailure("n01", "died: killed (SIGKILL)", gpu=5, rank=5, stage="measure 256 MiB")
    text = printed(ProbeReport("matmul", 0.0, failures=[*refused, dead]), 100)
    after = text.partition("Not measured\n")[2].splitlines()
    assert after == [
        "  FAILED n01 GPU 5 rank 5: measure 256 MiB: died: killed (SIGKILL)",
        "  LEFT OUT 88 GPUs on n[02-12]: e.g. busy: 2 %",
        "    do: wait for it",
    ]
    verbose = printed(ProbeReport("matmul", 0.0, failures=[*refused, dead]), 100, verbose=True)
    assert verbose.count("LEFT OUT") == 88 and verbose.count("do: wait for it") == 1


def test_one_reason_on_one_node_names_its_gpus() -> None:
    failures = [ProbeFailure("n01", "no torch", gpu=gpu, fix="--python PATH") for gpu in (0, 1, 2, 5)]
    assert "  FAILED n01 GPU 0-2,5: no torch\n    do: --python PATH\n" in printed(
        ProbeReport("memory", 0.0, failures=failures)
    )


def test_nodes_that_did_not_answer_and_too_many_suspects() -> None:
    states = (NodeState("n1", "live"), NodeState("n2", "refused", "Permission denied (publickey)"))
    suspects = [Suspect(f"n{number:03d}", "slow") for number in range(30)]
    report = ProbeReport("matmul", 0.0, results=cluster()[:1], verdict=ProbeVerdict("many", suspects))
    text = printed(report, nodes=states)
    assert "n2 refused: Permission denied (publickey)" in text and "n1 " not in text
    assert text.count(": slow") == MOST_SUSPECTS and "and 10 more suspects" in text
    assert printed(report, verbose=True).count(": slow") == 30


# Memory and copies.


def test_memory_and_data_that_did_not_stay_intact() -> None:
    results = [
        MemoryResult(f"n{n:02d}", gpu, f"GPU-{n}{gpu}", H100, copy_bytes_per_s=2.9e12 + 1e9 * gpu, intact=True)
        for n in (1, 2)
        for gpu in range(8)
    ]
    results[5].intact = False
    text = printed(ProbeReport("memory", 0.0, results=results))
    assert "and 15 GPUs alike on n[01-02]" in text and "data intact" in " ".join(text.split())
    (row,) = [line for line in text.splitlines() if line.startswith("n01/5")]
    assert "DAMAGED" in row and "2905G/s" in row


def copies(node: str, gpu: int, slow_to: int | None = None) -> CopiesResult:
    peers = [PeerCopy(to, 180e9 if to == slow_to else 375e9, True) for to in range(8) if to != gpu]
    rates = {"to_device_bytes_per_s": 54e9, "to_host_bytes_per_s": 52e9}
    return CopiesResult(node, gpu, f"GPU-{node}-{gpu}", H100, size_bytes=1 << 28, peers=peers, intact=True, **rates)


def test_only_nodes_with_slow_peers_show_all_of_them() -> None:
    results = [copies(node, gpu) for node in ("n01", "n02", "n03") for gpu in range(8)]
    results[10] = copies("n02", 2, slow_to=6)
    text = printed(ProbeReport("copies", 0.0, results=results))
    assert "n02: from GPU (row) to GPU" in text and "180!" in text and "n01: from GPU" not in text
    assert "112 copies between GPUs alike on n[01,03]: 375G/s, direct" in text
    assert "to GPU 54.0G/s, to host 52.0G/s" in " ".join(text.split())
    alone = printed(ProbeReport("copies", 0.0, results=results[:8]))
    assert "n01: from GPU (row) to GPU" in alone
    assert "do not fit" in printed(ProbeReport("copies", 0.0, results=results[:8]), 40)


# Collectives and pairs.


def collective(size: int, **changes: object) -> CollectiveResult:
    arrivals = [RankArrival(rank, f"n{rank // 8 + 1:02d}", rank % 8, 2e-3, 1e-5 * rank, 4e-3) for rank in range(24)]
    arrivals[13] = RankArrival(13, "n02", 5, 1e-5, 2e-3, 6e-3)
    made = CollectiveResult(
        "all-reduce",
        "nccl",
        size,
        24,
        ["n01", "n02", "n03"],
        20,
        time_s=2.1e-3,
        p95_s=2.2e-3,
        algbw_bytes_per_s=128e9,
        busbw_bytes_per_s=245e9,
        arrivals=arrivals,
        path="NCCL",
        expected_busbw_bytes_per_s=350e9,
        expected_source="nccl-tests on 3 nodes",
    )
    return replace(made, **changes)


def test_a_collective_by_size_and_its_ranks_only_when_one_is_accused() -> None:
    results = [collective(1 << 20, expected_busbw_bytes_per_s=None, expected_source=""), collective(1 << 30, wrong=2)]
    report = ProbeReport("all-reduce", 0.0, results=results, settings=["NVLS is used"], command="torchrun x")
    text = printed(report)
    assert "all-reduce of 24 ranks on 3 nodes, n[01-03], NCCL" in text
    header = next(line for line in text.splitlines() if "BUSBW" in line)
    assert {"SIZE", "TIME", "P95", "ALGBW", "BUSBW", "WRONG"} <= set(header.split())
    (row,) = [line for line in text.splitlines() if line.lstrip().startswith("1G ")]
    assert row.split()[:8] == ["1G", "2.10ms", "2.20ms", "128G/s", "245G/s", "350G/s", "70%", "2"] and "2 WRONG" in row
    assert "expected: nccl-tests on 3 nodes" in text and "OWN WORK" not in text
    assert text.endswith("Settings\n  NVLS is used\n\nThe same without mltop\ntorchrun x\n")
    accused = replace(report, verdict=ProbeVerdict("late", [Suspect("n02", "comes late", gpu=5, rank=13)]))
    lines = printed(accused).splitlines()
    first = lines.index(next(line for line in lines if "OWN WORK" in line)) + 1
    assert lines[first].split()[:4] == ["13", "n02", "5", "2.00ms"]
    assert "and 14 more ranks, at most 140us after the first" in lines
    assert sum("6.00ms" in line or "4.00ms" in line for line in printed(accused, verbose=True).splitlines()) == 24


def test_bad_pairs_are_shown_and_good_ones_counted() -> None:
    nodes = [f"n{number:02d}" for number in range(1, 13)]
    pairs = [PairResult(1, [one, other], 256 << 20, 350e9) for one, other in zip(nodes[::2], nodes[1::2], strict=True)]
    pairs[1] = PairResult(1, ["n03", "n04"], 256 << 20, 150e9)
    pairs[2] = PairResult(1, ["n05", "n06"], 256 << 20, None, NASTY)
    pairs += [PairResult(2, ["n03", "n01"], 256 << 20, 151e9), PairResult(2, ["n04", "n02"], 256 << 20, 349e9)]
    text = printed(ProbeReport("pairs", 0.0, results=pairs))
    rows = [line.split()[:4] for line in text.splitlines() if line.startswith("    ") and "n0" in line]
    assert rows == [["1", "n05", "n06", "failed"], ["1", "n03", "n04", "150G/s"], ["2", "n03", "n01", "151G/s"]]
    assert "n05 - n06: [red]x[/red]" in text
    assert "5 of 8 pairs are good: 349–350G/s at 256M, measured in 2 rounds" in text
    assert (
        len(
            [
                line
                for line in printed(ProbeReport("pairs", 0.0, results=pairs), verbose=True).splitlines()
                if "G/s" in line
            ]
        )
        > 8
    )


def test_nothing_measured_is_said_in_the_verdict() -> None:
    text = printed(ProbeReport("all-reduce", 0.0, verdict=ProbeVerdict("nothing was measured: no torch")))
    assert text == "all-reduce\nVERDICT  nothing was measured: no torch\n"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([681.7, 655.1], "655–682T"),
        ([655.1, 655.3], "655T"),
        ([None, 12.0], "12T"),
        ([None], ""),
        ([], ""),
        ([float("nan")], ""),
    ],
)
def test_a_span_has_its_unit_once(values: list[float | None], text: str) -> None:
    assert span(values, lambda value: f"{value:.0f}T") == text


def test_a_span_keeps_units_that_differ() -> None:
    assert span([0.5, 2.0], lambda value: f"{value:.0f}T" if value > 1 else f"{value * 1000:.0f}G") == "500G–2T"


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    report = ProbeReport("matmul", 0.0, results=cluster()[:2], verdict=ProbeVerdict("x", [Suspect("n01", "slow")]))
    for wanted, has_colours in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", wanted)
        console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
        print_probe(report, [], console)
        assert ("\x1b[1;31m" in console.file.getvalue()) is has_colours
