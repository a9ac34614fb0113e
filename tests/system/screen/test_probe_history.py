"""Results of earlier probes: kept in order and within bounds, by several processes, whatever is in the file."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mltop.probes.model.probe import PastResult
from mltop.tui.state import BadState, probe_history
from mltop.tui.state.probe_history import MOST_PER_KEY, newest, read_history, remember

ROOT = str(Path(probe_history.__file__).parents[3])


def read_past(uuids: Sequence[str] | None = None, path: Path | None = None) -> list[PastResult]:
    return [result for result in read_history(path).results if uuids is None or result.uuid in uuids]


def past(at: float, uuid: str = "GPU-a", key: str = "matmul bf16", value: float = 700.0) -> PastResult:
    return PastResult(uuid, key, value, at, {"torch": "2.9", "driver": "570.124.06"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "probe-results.jsonl"


def test_nothing_measured_yet_is_no_trouble(path: Path) -> None:
    assert read_past(path=path) == []
    remember([], path)
    assert not path.exists()


def test_results_come_back_oldest_first_of_the_devices_asked_for(path: Path) -> None:
    remember([past(20.0), past(10.0, "GPU-b")], path)
    remember([past(15.0, "cpu of h1", "matmul fp32 EPYC 9654", 2.1)], path)
    assert [one.at for one in read_past(path=path)] == [10.0, 15.0, 20.0]
    assert read_past(["GPU-a"], path) == [past(20.0)]
    assert read_past(["cpu of h1", "GPU-b"], path) == [
        past(10.0, "GPU-b"),
        past(15.0, "cpu of h1", read_key(path), 2.1),
    ]
    assert read_past([], path) == [] and read_past(["GPU-none"], path) == []


def read_key(path: Path) -> str:
    return next(one.key for one in read_past(path=path) if one.uuid == "cpu of h1")


def test_the_file_is_lines_of_json_for_its_owner_alone(path: Path) -> None:
    remember([past(1.0)], path)
    header, line = path.read_text().splitlines()
    assert json.loads(header)["mltop_probe_results"] == 1
    assert json.loads(line) == {
        "uuid": "GPU-a",
        "key": "matmul bf16",
        "value": 700.0,
        "at": 1.0,
        "versions": {"torch": "2.9", "driver": "570.124.06"},
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_state_directory_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLTOP_STATE_DIR", str(tmp_path / "elsewhere"))
    remember([past(1.0)])
    assert read_past(["GPU-a"]) == [past(1.0)]
    assert (tmp_path / "elsewhere" / probe_history.FILE).is_file()


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"{",
        b"[]",
        b"3",
        b'{"uuid": "GPU-a", "key": "k", "value": "fast", "at": 1.0}',
        b'{"uuid": "GPU-a", "key": "k", "at": 1.0}',
        b'{"uuid": "GPU-a", "key": "k", "value": NaN, "at": 1.0}',
        b"[" * 100_000,
    ],
)
def test_damaged_lines_are_skipped_and_counted(path: Path, line: bytes) -> None:
    remember([past(1.0)], path)
    with path.open("ab") as file:
        file.write(line + b"\n")
    remember([past(2.0)], path)
    history = read_history(path=path)
    assert (history.results, history.damaged) == ([past(1.0), past(2.0)], 1)


def test_a_line_that_was_cut_off_costs_only_itself(path: Path) -> None:
    remember([past(1.0), past(2.0)], path)
    path.write_bytes(path.read_bytes()[:-20])
    remember([past(3.0)], path)
    history = read_history(path=path)
    assert ([one.at for one in history.results], history.damaged) == ([1.0, 3.0], 1)


def test_fields_of_newer_versions_and_files_without_a_header_are_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"uuid": "GPU-a", "key": "k", "value": 1, "at": 2, "spread": 0.01}\n')
    history = read_history(path=path)
    assert (history.results, history.damaged) == ([PastResult("GPU-a", "k", 1.0, 2.0)], 0)


def test_what_is_no_number_is_not_kept(path: Path) -> None:
    remember([past(1.0, value=float("nan")), past(2.0), past(float("inf"))], path)
    assert read_past(path=path) == [past(2.0)]


def test_only_the_newest_of_each_device_and_key_are_kept() -> None:
    results = [past(float(at), uuid, key) for at in range(80) for uuid in ("a", "b") for key in ("x", "y")]
    kept = newest([*results, past(0.5, "c")])
    assert len(kept) == 4 * MOST_PER_KEY + 1
    assert [one.at for one in kept if (one.uuid, one.key) == ("b", "x")] == [float(at) for at in range(30, 80)]
    assert [one.at for one in kept] == sorted(one.at for one in kept)
    assert past(0.5, "c") in kept


def test_the_file_stays_bounded_and_keeps_the_newest(path: Path) -> None:
    largest = 0
    for run in range(200):
        remember([past(float(run), f"GPU-{number}") for number in range(16)], path)
        largest = max(largest, path.stat().st_size)
    kept = 16 * MOST_PER_KEY * 130  # bytes of what must stay
    assert largest < 2 * kept + 300 * 1024
    newest_of_one = [one.at for one in read_past(["GPU-3"], path)]
    assert newest_of_one[-MOST_PER_KEY:] == [float(run) for run in range(150, 200)]
    assert len(newest_of_one) < 200, "written anew at least once"
    assert read_history(path=path).damaged == 0
    assert sorted(entry.name for entry in path.parent.iterdir()) == [f".{path.name}.lock", path.name]


WRITER = """
import sys
from mltop.probes.model.probe import PastResult
from mltop.tui.state.probe_history import remember
from collections.abc import Sequence
from pathlib import Path
name = sys.argv[2]
for run in range(60):
    remember([PastResult(f"GPU-{name}-{i}", "k" * 100, 1.0, float(run)) for i in range(40)], Path(sys.argv[1]))
"""


def test_several_processes_at_once_lose_nothing(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name], env={"PYTHONPATH": ROOT}) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    history = read_history(path=path)
    assert history.damaged == 0
    for name in "abc":
        runs = [one.at for one in history.results if one.uuid == f"GPU-{name}-7"]
        assert runs[-MOST_PER_KEY:] == [float(run) for run in range(10, 60)]


def test_a_lock_that_nobody_gives_back_delays_but_loses_nothing(path: Path) -> None:
    remember([past(1.0)], path)
    holder = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        remember([past(2.0)], path)
    finally:
        os.close(holder)
    assert [one.at for one in read_past(path=path)] == [1.0, 2.0]


def test_a_line_without_an_end_is_one_damaged_line(path: Path) -> None:
    remember([past(1.0)], path)
    with path.open("ab") as file:
        file.write(b"x" * 3_000_000 + b"\n")
    history = read_history(path=path)
    assert (history.results, history.damaged) == ([past(1.0)], 1)
    remember([past(2.0)], path)
    assert read_past(path=path) == [past(1.0), past(2.0)]


def test_a_place_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "probe-results.jsonl"
    for use in (lambda: read_past(path=inside), lambda: remember([past(1.0)], inside)):
        with pytest.raises(BadState, match=f"^{tmp_path / 'file'}: is a file, not a directory$"):
            use()
    for use in (lambda: read_past(path=tmp_path), lambda: remember([past(1.0)], tmp_path)):
        with pytest.raises(BadState, match=f"^{tmp_path}: is a directory, not a regular file$"):
            use()
