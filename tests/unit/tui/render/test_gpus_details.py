"""The GPU pane's text: every field in its group, what is unknown says why there, counters say how they grew."""

from __future__ import annotations

import copy

import pytest

from mltop.probes.demo.gpus import simulate
from mltop.probes.model import Gap, GpuProcess, GpuSample, KernelEvent, MigInstance, NvlinkLink, RankSample, Sample
from mltop.tui.app.navigation import gpu_location, gpu_of_row
from mltop.tui.render.cells import line_width, plain
from mltop.tui.render.gpus.details import Block, Fact, GpuGaps, block_lines, blocks_of
from mltop.tui.screens.gpu.screen import (
    Baseline,
    Baselines,
    details,
    event_lines,
    link_lines,
    process_lines,
)

NO_GAPS = GpuGaps([], 3)


def simulated() -> GpuSample:
    return simulate(100.0, 4, 1, [(4711, 3)], None)[3]


def facts(gpu: GpuSample, gaps: GpuGaps = NO_GAPS, first: GpuSample | None = None) -> dict[str, dict[str, Fact]]:
    return {block.title: {fact.label.strip(): fact for fact in block.facts} for block in blocks_of(gpu, gaps, first)}


def test_of_a_healthy_gpu_everything_is_known() -> None:
    found = facts(simulated())
    unknown = {label for block in found.values() for label, fact in block.items() if fact.text == "–"}
    assert unknown == {"last seen"}
    assert found["ACTIVITY"]["source"].text == "GPM"
    assert found["THROTTLED BY, OF 10 MIN"]["SM clock"].text == "1980/1980MHz"
    assert found["HEAT AND POWER"]["slows at"].text == "87C" and found["HEAT AND POWER"]["HBM"].text.endswith("/95C")
    assert found["MEMORY AND LINKS"]["PCIe"].text == found["PCIe"]["could be"].text == "Gen5 x16"
    assert found["MEMORY AND LINKS"]["NVLink"].text == "18/18"
    assert found["board"]["serial"].text.startswith("SIMULATED")
    styles = {fact.style for block in found.values() for fact in block.values()}
    assert styles <= {"", "dim"}, "nothing of it is an alarm"


def test_of_a_gpu_of_which_nothing_is_known_nothing_is_a_number() -> None:
    found = facts(GpuSample(3))
    texts = [fact.text for block in found.values() for fact in block.values()]
    assert texts and set(texts) == {"–"}


@pytest.mark.parametrize(
    ("what", "group", "label"),
    [
        ("gpu.3.ecc", "MEMORY AND LINKS", "corrected"),
        ("gpu.3.ecc.sram_uncorrected_aggregate", "MEMORY AND LINKS", ""),
        ("gpu.*.{ecc,fabric}", "NVLink and fabric", "fabric"),
        ("gpu.*.activity", "pipes and clocks", "FP32 pipe"),
        ("gpu.3.sm_active", "ACTIVITY", "SM active"),
        ("gpu.3.pcie", "PCIe", "replays"),
        ("gpu.3.throttle_reasons", "THROTTLED BY, OF 10 MIN", "now"),
        ("gpu.3", "power", "default limit"),
        ("gpu.2.ecc", "MEMORY AND LINKS", ""),
        ("gpu.33.ecc", "MEMORY AND LINKS", ""),
        ("nvml", "MEMORY AND LINKS", ""),
    ],
)
def test_what_is_unknown_says_why_in_its_place(what: str, group: str, label: str) -> None:
    found = facts(GpuSample(3), GpuGaps([Gap(what, "because")], 3))
    said = {name for name, fact in found[group].items() if fact.why == "because"}
    assert (label in said) if label else "corrected" not in said


def test_reasons_stand_in_place_and_all_of_them_below() -> None:
    sample = Sample("n1", 100.0, gpus=[GpuSample(3)])
    sample.gaps = [Gap("gpu.3.ecc", "needs root", "sudo mltop"), Gap("gpu.1.ecc", "other", ""), Gap("host.x", "else")]
    text = "\n".join(plain(line) for line in details(sample, sample.gpus[0], Baseline(100.0, sample.gpus[0]), 120))
    assert "– needs root" in text and "not known of this GPU" in text
    assert "GAP  gpu.3.ecc: needs root – sudo mltop" in text
    assert "other" not in text and "else" not in text


def test_a_waiting_gpu_says_what_contradicts() -> None:
    gpu = simulated()
    gpu.busy, gpu.sm_active, gpu.tensor_active = 1.0, 0.11, 0.0
    assert facts(gpu)["ACTIVITY"]["waiting?"].text == "busy, SM 11%"
    assert "waiting?" not in facts(simulated())["ACTIVITY"]


def test_counters_say_by_how_much_they_grew() -> None:
    first = simulated()
    now = copy.deepcopy(first)
    now.ecc.corrected_volatile = 7
    now.pcie.replay_count, now.pcie.errors = 4, {"bad_dllp": 2, "l0_to_recovery": 9}
    first.pcie.errors = {"bad_dllp": 2, "l0_to_recovery": 5}
    now.throttle_ns = {**now.throttle_ns, "hw_thermal": 12_000_000_000}
    now.throttle_share, now.throttle_reasons = {"hw_thermal": 0.34}, ["hw_thermal"]
    found = facts(now, NO_GAPS, first)
    assert found["MEMORY AND LINKS"]["corrected"].text == "7 (+7)"
    assert found["MEMORY AND LINKS"]["uncorrectable"].text == "0"
    assert found["PCIe"]["replays"].text == "4 (+4)"
    assert found["PCIe"]["l0 to recovery"].text == "9 (+4)" and found["PCIe"]["l0 to recovery"].style == "warn"
    assert found["PCIe"]["bad dllp"].text == "2" and found["PCIe"]["bad dllp"].style == ""
    assert found["throttled, in all"]["too hot"].text == "12s (+12s)"
    assert found["THROTTLED BY, OF 10 MIN"]["too hot"].text == "now"


@pytest.mark.parametrize(
    ("change", "group", "label", "text", "style"),
    [
        ({"remap.pending": True}, "spare rows", "pending", "yes: needs a reset", "warn"),
        ({"remap.failed": True}, "spare rows", "failed", "YES: replace the board", "crit"),
        ({"recovery_action": "node_reboot"}, "spare rows", "recovery action", "node reboot", "crit"),
        ({"ecc.enabled": False}, "memory errors", "ECC", "OFF, on after a reset", "warn"),
        ({"ecc.sram_threshold_exceeded": True}, "memory errors", "SRAM, ever", "0, past the RMA limit", "crit"),
        ({"fabric.problems": ["route_unhealthy"]}, "NVLink and fabric", "health", "ok, route unhealthy", "crit"),
        ({"mig_pending": True}, "board", "MIG", "off, on after a reset", ""),
        ({"power_limit_w": 500.0}, "power", "default limit", "700W", "warn"),
        ({"temperature_margin_c": 4.0}, "HEAT AND POWER", "headroom", "4C", "warn"),
        ({"retired_pages": 3}, "spare rows", "retired pages", "3", ""),
    ],
)
def test_alarms(change: dict[str, object], group: str, label: str, text: str, style: str) -> None:
    gpu = simulated()
    for path, value in change.items():
        *parents, name = path.split(".")
        setattr(getattr(gpu, parents[0]) if parents else gpu, name, value)
    fact = facts(gpu)[group][label]
    assert (fact.text, fact.style) == (text, style)


def test_instances_are_listed() -> None:
    gpu = simulated()
    gpu.mig_instances = [MigInstance(0, name="1g.10gb", sm_active=0.4, memory_used_bytes=2**30)]
    assert facts(gpu)["INSTANCES"]["0 1g.10gb"].text.endswith("SM 40% TC –")


@pytest.mark.parametrize("width", [30, 79, 80, 119, 200])
def test_blocks_fill_the_width_and_keep_their_facts(width: int) -> None:
    blocks = [Block(f"block {at}", [Fact(f"label {n}", "value " * n) for n in range(at)]) for at in range(6)]
    lines = block_lines(blocks, width)
    assert all(line_width(line) <= width for line in lines)
    text = "\n".join(plain(line) for line in lines)
    assert "block 0" not in text and all(f"block {at}" in text for at in range(1, 6))


def test_every_link_has_its_line_and_growth() -> None:
    gpu = simulated()
    first = copy.deepcopy(gpu)
    gpu.nvlink.links[7] = NvlinkLink(7, False, 4, 26.562e9, "switch", {"replay": 5, "crc": 0})
    first.nvlink.links[7].errors = {"replay": 2, "crc": 0}
    for width, panels in ((80, 1), (120, 2), (200, 3)):
        lines = link_lines(gpu, first, width)
        assert len(lines) == 1 + 18 // panels and all(line_width(line) <= width for line in lines)
        down = next(plain(line) for line in lines if "DOWN" in plain(line))
        assert "replay 5 (+3)" in down
    assert link_lines(GpuSample(0), GpuSample(0), 80) == []


def test_processes_and_ranks_are_one_list() -> None:
    gpu = GpuSample(3, processes=[GpuProcess(11, 2**30), GpuProcess(12, None, "mps", 5)])
    ranks = [RankSample(11, rank=7, gpus=[3], state="D", user="ada", command="python a.py"), RankSample(99, gpus=[1])]
    lines = [plain(line).split() for line in process_lines(gpu, ranks, NO_GAPS, 120)]
    assert lines[0][:4] == ["PID", "RANK", "MEMORY", "KIND"]
    assert lines[1] == ["11", "7", "1.0G", "compute", "D", "disk", "wait", "ada", "python", "a.py"]
    assert lines[2] == ["12", "–", "mps", "5"] and len(lines) == 3
    assert plain(process_lines(GpuSample(3, processes=[]), [], NO_GAPS, 80)[0]) == "no process holds this GPU"
    why = GpuGaps([Gap("gpu.3.processes", "needs root")], 3)
    assert plain(process_lines(GpuSample(3), [], why, 80)[0]) == "processes – needs root"


def test_the_kernel_log_of_this_gpu_alone_newest_first() -> None:
    gpu = GpuSample(3, pci_bus_id="00000000:1B:00.0")
    events = [
        KernelEvent(100.0, "xid", "0000:1b:00", 31, "page fault"),
        KernelEvent(200.0, "xid", "0000:1b:00.0", 94, "contained"),
        KernelEvent(300.0, "xid", "0000:33:00", 79, "another"),
        KernelEvent(400.0, "oom", "python", None, "killed"),
    ]
    text = [plain(line) for line in event_lines(events, gpu, 80)]
    assert [line.split()[1:3] for line in text] == [["Xid", "94"], ["Xid", "31"]]
    assert not event_lines(events, GpuSample(3), 80)


def test_counters_are_watched_anew_for_another_board_or_an_earlier_time() -> None:
    baselines = Baselines()
    board, other = GpuSample(3, uuid="a"), GpuSample(3, uuid="b")
    assert baselines.of("n1", board, 10.0) == Baseline(10.0, board)
    assert baselines.of("n1", GpuSample(3, uuid="a"), 20.0).gpu is board
    assert baselines.of("n2", board, 30.0).at == 30.0
    assert baselines.of("n1", other, 40.0).gpu is other
    assert baselines.of("n1", other, 5.0).at == 5.0


def test_places_of_gpus_differ() -> None:
    assert gpu_location("n1", 3).title == "gpu 3" and gpu_location("n1", 3) != gpu_location("n1", 4)
    assert (gpu_of_row("3"), gpu_of_row("12.0")) == (3, 12)


def test_what_is_no_rank_is_told_by_what_the_kernel_says() -> None:
    processes = [
        GpuProcess(20, 2**30, user="ada", name="python3", state="S", ppid=10, started_at=1000.0),
        GpuProcess(21, user="ada", name="python3", state="Z", ppid=10, started_at=1000.0),
        GpuProcess(22, user="ada", name="python3", ppid=10, started_at=1000.0, absent="ended"),
        GpuProcess(23, absent="elsewhere"),
        GpuProcess(24, absent="hidden"),
        GpuProcess(25, user="root", name="python3", state="R", probe="matmul"),
    ]
    lines = process_lines(GpuSample(3, processes=processes), [], NO_GAPS, 140, 8200.0)
    assert plain(lines[0]).split() == ["PID", "RANK", "MEMORY", "KIND", "STATE", "USER", "AGE", "PARENT", "COMMAND"]
    found = {plain(line).split()[0]: (plain(line).split()[3:], line) for line in lines[1:]}
    assert found["20"][0] == ["S", "sleeping", "ada", "2h00m", "10", "python3"]
    assert found["21"][0] == ["Z", "zombie", "ada", "2h00m", "10", "python3"]
    assert found["22"][0] == ["ended", "ada", "2h00m", "10", "python3"]
    assert found["23"][0] == ["not", "here"] and found["24"][0] == ["hidden"]
    assert found["25"][0] == ["R", "running", "root", "matmul", "probe", "of", "mltop"]
    assert [any(cell.style == "crit" for cell in found[pid][1]) for pid in ("20", "21", "22")] == [False, True, True]
