"""The slice `screen` of `bash tests/gpu` over fakes: the real screen in a real terminal, a job of the fake torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.scripts import python_script
from tests.hardware.slices import screen
from tests.hardware.slices.screen import Measured, checks_of, left_by
from tests.once import once
from tests.system.hardware.faults.screen import FAULTS
from tests.system.hardware.hardware_lies import differing, put_in_record
from tests.system.hardware.hardware_runs import Done, run

# An mltop that shows nothing, and ends as a crash does.
BROKEN = "print('\\x1b[?1049h\\x1b[?25l', end='', flush=True)\nraise SystemExit(70)\n"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return once(
        tmp_path_factory,
        "screen",
        lambda folder: run(GpuMachine(folder, ranks=False), "--only", "screen", processes=True),
    )


def test_the_whole_command_agrees(done: Done) -> None:
    assert done.code == 0 and done.names("agrees") == set(screen.CHECKS), done.report
    pictures = done.directory / "screen"
    names = {path.stem for path in pictures.glob("*.svg")}
    assert len(names) == len(screen.PANES) and names == {path.stem for path in pictures.glob("*.txt")}
    main = (pictures / "1-main-120x40.txt").read_text()
    assert "H100" in main and "job_child.py" in main
    assert (pictures / "1-main-120x40.svg").read_text().startswith("<svg")
    assert b"\x1b[?1049h" in (pictures / "raw").read_bytes()


def test_one_lie_makes_one_check_differ(done: Done) -> None:
    saved = next(done.directory.glob("fixtures/*/screen.json")).read_text()
    others = {}
    for name, fault in FAULTS.items():
        bent = json.loads(saved)
        for lie in fault.lies:
            put_in_record(bent, lie)
        found = differing(checks_of(msgspec.convert(bent, Measured)))
        if found != {name} | fault.also:
            others[name] = found
    assert others == {}


def test_a_screen_that_does_not_start_differs(tmp_path: Path) -> None:
    """It has ended before anything is sent to it, and leaves the terminal as no shell wants it."""
    broken = python_script(tmp_path / "bin/mltop", BROKEN)
    machine = GpuMachine(tmp_path / "machine", ranks=False)
    done = run(machine, "--only", "screen", env={"MLTOP": str(broken)}, processes=True)
    assert done.names("differs") == set(screen.CHECKS), done.report
    assert (done.check("quits")["ours"], done.check("starts")["ours"]) == (70, None)
    assert done.check("restores the terminal")["ours"] == ["mode 1049 on", "mode 25 off"]


def test_what_is_set_back_is_not_left() -> None:
    raw = b"\x1b[?1049h\x1b[?1000;1006h\x1b[?25l\x1b[>1u text \x1b[?1000;1006l\x1b[<u\x1b[?25h\x1b[?1049l"
    assert left_by(raw, True) == []
    assert left_by(raw.removesuffix(b"\x1b[?1049l"), False) == ["mode 1049 on", "raw mode"]
    assert left_by(raw.replace(b"\x1b[<u", b""), True) == ["kitty's keys"]
    assert asdict(Measured(0, "H100", 1))["left"] is None
