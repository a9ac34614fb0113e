"""Probes on the screen: progress, cancelling, results, ranks, earlier runs, sorting, filters, thousands of rows."""

from __future__ import annotations

import base64
import subprocess
import sys
from dataclasses import replace

import pytest

from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
from mltop.probes.model.probe import ProbeReport, ProbeVerdict
from tests.documents import ROOT
from tests.tui import fake_probes, fake_views
from tests.tui.fake_probes import ProbeSession
from tests.tui.opened import Opened, opened

SIZE = (120, 40)


async def start(screen: Opened, *keys: str) -> fake_probes.FakeProbe:
    await screen.press(*(keys or ("M",)), "enter")
    await screen.until(lambda: screen.session.probes, "a probe")  # type: ignore[attr-defined]
    await screen.until(lambda: screen.app.current_mode == "probes", "the probes pane")
    probe: fake_probes.FakeProbe = screen.session.probes[-1]  # type: ignore[attr-defined]
    return probe


def first_cells(screen: Opened) -> list[str]:
    """Of the rows of the table."""
    lines = screen.lines()
    top = next(y for y, line in enumerate(lines) if "AGAINST" in line)
    return [line.split()[0] for line in lines[top + 1 :] if line.strip()]


async def test_before_any_probe_it_says_what_the_keys_do() -> None:
    async with opened(ProbeSession()) as screen:
        await screen.press("7")
        text = await screen.shows("7 probes", "no probe has run yet")
        assert all(word in text for word in ("M  matmul", "A  all-reduce", "memory", "copies", "pairs"))


async def test_progress_then_results_then_the_verdict() -> None:
    async with opened(ProbeSession(), size=SIZE) as screen:
        probe = await start(screen)
        probe.advance()
        text = await screen.shows("matmul bf16  on node01  running", "2.1 s of 120 s at most", "node01: import torch")
        assert "left out: in use by ada" in text
        probe.advance()
        text = await screen.shows("sustained      ━━━━━━────────────── 30%", "716T")
        assert "VERDICT" not in text and "SUSPECT" not in text
        probe.advance()
        text = await screen.shows("done  14.2 s", "2 SUSPECTS  GPU 7 on node01 computes wrong bits")
        assert "do: check its fan" in text
        assert first_cells(screen)[:4] == ["7", "3", "0", "1"], "wrong bits first, then the slowest"
        row = next(line for line in screen.lines() if line.startswith("  3 "))
        assert row.split()[:9] == ["3", "543T", "498T", "81/75%", "-31%", "peers", "1210", "1980", "512/700W"]
        assert "91C" in row and "too hot 62%" in row and "0 in 3.1P" in row
        assert "3 of 64!" in text
        assert "LEFT OUT node01 GPU 6: in use by ada" in text


async def test_results_as_nodes_send_them_are_shown_at_once() -> None:
    """While a probe runs there is no report yet, only the results so far."""
    async with opened(ProbeSession()) as screen:
        probe = await start(screen)
        half = fake_probes.matmul_script(ProbeWanted("matmul"))[1]
        done = replace(half.devices[0], result=fake_probes.matmul_result("node01", 0, 716))
        probe.say(replace(half, devices=(done, *half.devices[1:]), report=None))
        await screen.shows("716T")


async def test_esc_cancels_once_and_what_was_measured_stays() -> None:
    async with opened(ProbeSession(), size=SIZE) as screen:
        probe = await start(screen)
        probe.advance()
        probe.advance()
        await screen.shows("716T")
        await screen.press("escape")
        await screen.shows("cancelling")
        assert probe.cancelled == 1
        await screen.press("escape")  # it is cancelled already: Esc goes back
        await screen.shows("1 main", "matmul: cancelling")
        assert probe.cancelled == 1
        probe.end_cancelled()
        await screen.shows("matmul: cancelled, 7 shows what was measured")
        await screen.press("7")
        await screen.shows("cancelled  11.4 s", "716T")


async def test_one_at_a_time() -> None:
    async with opened(ProbeSession()) as screen:
        probe = await start(screen)
        probe.advance()
        await screen.press("1", "A")
        await screen.shows("a probe runs already", "7 probes")
        assert len(screen.session.asked) == 1
        probe.finish()
        await screen.shows("SUSPECTS")
        await screen.press("A")
        await screen.shows("start a probe?")


async def test_other_panes_show_it_and_its_end() -> None:
    async with opened(ProbeSession()) as screen:
        probe = await start(screen)
        probe.advance()
        probe.advance()
        await screen.press("1")
        await screen.shows("1 main", "matmul: running  9.4 s", "2/8 measured", "Esc cancels")
        await screen.step(3)
        await screen.shows("12:00:03")
        probe.finish()
        await screen.shows("matmul: GPU 7 on node01 computes wrong bits")


async def test_a_failed_probe_says_why() -> None:
    async with opened(ProbeSession()) as screen:
        probe = await start(screen)
        failed = ProbeProgress(ProbeWanted("matmul"), "failed", "the probe failed: OSError: no space left", 1.0)
        probe.say(failed)
        await screen.shows("failed", "no space left", "no device has answered")
        await screen.press("1", "M")
        await screen.shows("start a probe?")


async def test_collectives_curve_and_ranks_by_lag() -> None:
    async with opened(ProbeSession(script=fake_probes.script_of), size=SIZE) as screen:
        probe = await start(screen, "A", "down", "right")
        probe.advance()
        probe.advance()
        await screen.shows("6 of 8 ranks joined", "import torch")
        probe.finish()
        text = await screen.shows("1 SUSPECT  rank 5", "Bus bandwidth over size", "rank 5 +30.1ms GPU 5")
        row = next(line for line in text.splitlines() if line.startswith(" 256M"))
        assert row.split()[1:10] == ["31.1ms", "37.3ms", "30.2ms", "8.63G/s", "15.1G/s", "423G/s", "4%", "none", "rank"]
        await screen.press("enter")
        text = await screen.shows("> ranks at 1M", "OWN WORK")
        table = text[text.index("OWN WORK") :].splitlines()
        assert [line.split()[0] for line in table[1:4]] == ["5", "7", "6"], "who comes last first"
        await screen.press("enter")
        await screen.shows("GPU 5")
        await screen.press("escape", "escape")
        await screen.shows("Bus bandwidth over size")


async def test_the_command_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    async with opened(ProbeSession(script=fake_probes.script_of), size=(120, 60)) as screen:
        (await start(screen, "A")).finish()
        text = await screen.shows("The same without mltop", "NVLink, ring over 24 channels")
        shown = text[text.index("torchrun") :].split("\n\n")[0].splitlines()
        assert " ".join(line.removesuffix(" \\").strip() for line in shown if line)[: len(fake_probes.COMMAND)] == (
            fake_probes.COMMAND
        )
        await screen.press("y")
        await screen.shows("copied")
        assert base64.b64encode(fake_probes.COMMAND.encode()).decode() in _written(screen)


def _written(screen: Opened) -> str:
    """What the app's clipboard holds, as it is sent to the terminal."""
    return base64.b64encode(screen.app.clipboard.encode()).decode()


async def test_pairs_are_shown_bad_ones_first_and_as_a_square() -> None:
    session = ProbeSession([fake_views.fleet(nodes=10)], script=fake_probes.script_of)
    async with opened(session, size=(120, 62)) as screen:
        (await start(screen, "A", "up", "right", "right", "right", "down", "right")).finish()
        text = await screen.shows("1 SUSPECT  node007", "Pairs that failed")
        lines = text.splitlines()
        top = next(y for y, line in enumerate(lines) if line.startswith("ROUND"))
        assert lines[top + 1].split()[1:4] == ["node002", "node005", "failed"]
        assert "node007" in lines[top + 2] and "-57% median" in lines[top + 2]
        assert "connect timed out: a firewall, or no" in lines[top + 1]
        square = next(y for y, line in enumerate(lines) if line.startswith("Pairs  "))
        assert "X" in lines[square + 2] and lines[square + 2].startswith("node002")


async def test_history_of_the_gpu_under_the_cursor() -> None:
    session = ProbeSession(past=fake_probes.past_results())
    async with opened(session, size=SIZE) as screen:
        (await start(screen)).finish()
        await screen.shows("-31% own")
        assert "Earlier" not in screen.text(), "of GPU 7 nothing is known"
        await screen.press("j")
        text = await screen.shows("Earlier  node01 GPU 3", "bf16 sustained 8192x8192x8192", "median 718T")
        assert "2025-11-14 12:00" in text and "driver 550.90.07, torch 2.5.1" in text
        assert session.past_read == 2, "before the first, and after each"


async def test_earlier_runs_of_this_session() -> None:
    async with opened(ProbeSession(script=fake_probes.script_of), size=SIZE) as screen:
        (await start(screen)).finish()
        await screen.shows("SUSPECTS")
        await screen.press("A", "enter")
        await screen.until(lambda: len(screen.session.probes) == 2, "the second probe")
        screen.session.probes[1].finish()
        await screen.shows("1 SUSPECT  rank 5", "run 2 of 2")
        await screen.press("less_than_sign")
        await screen.shows("matmul bf16", "run 1 of 2", "2 SUSPECTS")
        await screen.press("less_than_sign")
        await screen.shows("run 1 of 2")
        await screen.press("greater_than_sign")
        await screen.shows("1 SUSPECT  rank 5")


async def test_sort_reverse_and_filters() -> None:
    async with opened(ProbeSession(), size=SIZE) as screen:
        (await start(screen)).finish()
        await screen.shows("SUSPECTS")
        await screen.press("s")
        assert first_cells(screen)[:8] == list("01234567"), "by GPU"
        await screen.press("s")
        assert first_cells(screen)[:3] == ["7", "5", "4"], "by burst, the largest first"
        await screen.press("S")
        assert first_cells(screen)[:2] == ["3", "0"]
        await screen.press("slash", *"hot", "enter")
        await screen.shows("shows 1 of 8")
        await screen.press("escape", "slash", *"temp>85", "enter")
        await screen.shows("shows 1 of 8")
        assert first_cells(screen)[0] == "3", "fields are asked of the newest sample"


async def test_enter_opens_the_gpu() -> None:
    async with opened(ProbeSession()) as screen:
        (await start(screen)).finish()
        await screen.shows("SUSPECTS")
        await screen.press("enter")
        await screen.shows("GPU 7")
        await screen.press("escape")
        await screen.shows("SUSPECTS")


async def test_thousands_of_rows_scroll_and_sort() -> None:
    session = ProbeSession([fake_views.fleet(nodes=4)], script=fake_probes.big_script)
    async with opened(session) as screen:
        (await start(screen)).finish()
        await screen.shows("node300/4", "on 512 nodes")
        assert first_cells(screen)[0] == "node300/4"
        await screen.press("G")
        await screen.shows("724T")
        await screen.press("s", "g")
        await screen.shows("node001/0")
        assert first_cells(screen)[:2] == ["node001/0", "node001/1"]
        table = screen.app.pane.tables()[0]
        assert table.row_count == 4096


async def test_marks_go_to_the_nodes_of_rows() -> None:
    session = ProbeSession([fake_views.fleet(nodes=10)], script=fake_probes.script_of)
    async with opened(session, size=SIZE) as screen:
        (await start(screen, "A", "up", "right", "right", "right")).finish()
        await screen.shows("1 SUSPECT")
        await screen.press("space")
        assert screen.app.selection.nodes == ("node002",)


async def test_simulated_results_say_so() -> None:
    async with opened(ProbeSession()) as screen:
        probe = await start(screen)
        report = ProbeReport("matmul", 0.0, verdict=ProbeVerdict("all alike"), simulated=True)
        probe.say(ProbeProgress(ProbeWanted("matmul"), "done", report=report))
        await screen.shows("SIMULATED  matmul bf16")


async def test_late_progress_of_a_run_that_is_over_is_dropped() -> None:
    async with opened(ProbeSession(), size=SIZE) as screen:
        probe = await start(screen)
        probe.finish()
        await screen.shows("SUSPECTS")
        probe.say(ProbeProgress(ProbeWanted("matmul"), "running", "a ghost"))
        await screen.pilot.pause(0.05)
        assert "a ghost" not in screen.text() and "SUSPECTS" in screen.text()


def test_the_start_imports_nothing_of_it() -> None:
    heavy = [
        "plotext", "mltop.tui.screens.probes.screen", "mltop.tui.screens.probes.question", "mltop.probes.model.probe",
        "mltop.tui.render.probes.devices", "mltop.probes.judge.probes.compare",
        "mltop.probes.judge.probes.hardware.peaks",
    ]  # fmt: skip
    start = "import sys, mltop.tui.app.app, mltop.tui.screens.node.screen, mltop.tui.screens.overview.fleet"
    code = f"{start}; print([name for name in {heavy} if name in sys.modules])"
    code += "; import mltop.tui.screens.probes.screen; print('plotext' in sys.modules)"
    paths = {"PYTHONPATH": str(ROOT / ".dev"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]
