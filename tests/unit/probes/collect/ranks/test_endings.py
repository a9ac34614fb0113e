"""What is said of an end, by all that is known of it; and what of an error file may be taken."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from mltop.probes.collect.ranks.ends.endings import Ended, LauncherEnd, death_of
from mltop.probes.collect.ranks.ends.error_file import ErrorFile, read_error_file
from mltop.probes.collect.ranks.ends.exits import exit_filter
from mltop.probes.model import KernelEvent

T = 1_800_000_000.0
KILL, TERM, SEGV, INT = 9, 15, 11, 2


def ended(status: int | None = None, at: float = T, **more: object) -> Ended:
    said_by = "" if status is None else "proc connector"
    known = {
        "status": status,
        "at": at if status is not None else None,
        "said_by": said_by,
        "started_at": T - 50,
        **more,
    }
    return Ended(7, 3, "j", 0, 5, at, **known)  # type: ignore[arg-type]


def line(kind: str, at: float = T, pid: int = 7, code: int | None = None) -> KernelEvent:
    return KernelEvent(at, kind, pid=pid, code=code)


@pytest.mark.parametrize(
    ("end", "faults", "launcher", "how", "code", "told_by"),
    [
        (ended(0), [], None, "exit", 0, "proc connector"),
        (ended(7 << 8), [], None, "exit", 7, "proc connector"),
        (ended(KILL), [], None, "signal", 9, "proc connector"),
        (ended(SEGV | 0x80), [], None, "signal", 11, "proc connector"),
        (ended(), [], None, "unknown", None, "gone"),
        (ended(), [], LauncherEnd(T), "unknown", None, "gone"),  # a job that ended well looks the same
        (ended(KILL, cgroup_killed=True), [], None, "oom", 9, "proc connector, cgroup"),
        (ended(KILL, kernel=line("oom")), [], None, "oom", 9, "proc connector, kernel log"),
        (ended(None, kernel=line("oom")), [], None, "oom", 9, "kernel log"),
        (ended(1 << 8, kernel=line("oom")), [], None, "exit", 1, "proc connector"),  # of another process of this pid
        (ended(None, kernel=line("segfault", code=8)), [], None, "signal", 8, "kernel log"),
        (ended(None, error="E: x", raised_at=T - 1), [], None, "exit", None, "error file"),
        (ended(1 << 8, error="E: x"), [], None, "exit", 1, "proc connector, error file"),
        # Asked to end: by a launcher that ends, or that goes on after another rank's fault.
        (ended(TERM), [], None, "signal", 15, "proc connector"),
        (ended(TERM), [T - 0.1], None, "stopped", 15, "proc connector, launcher"),
        (ended(TERM), [T + 0.1], None, "signal", 15, "proc connector"),
        (ended(TERM), [T - 121], None, "signal", 15, "proc connector"),
        (ended(TERM), [T - 60], None, "signal", 15, "proc connector"),  # before it began: an earlier attempt
        (ended(TERM), [], LauncherEnd(T + 20), "stopped", 15, "proc connector, launcher"),
        (ended(TERM), [], LauncherEnd(T + 61), "signal", 15, "proc connector"),
        (ended(143 << 8), [], LauncherEnd(T + 1), "stopped", 143, "proc connector, launcher"),
        (ended(130 << 8), [], None, "exit", 130, "proc connector"),
        (ended(INT), [], LauncherEnd(T - 1), "stopped", 2, "proc connector, launcher"),
        (ended(1 << 8), [], LauncherEnd(T + 1), "exit", 1, "proc connector"),  # the launcher ends of it
        # Killed: with its launcher, or by it, half a minute after it was asked.
        (ended(KILL), [], LauncherEnd(T + 0.4, 1 << 8), "signal", 9, "proc connector"),
        (ended(KILL), [], LauncherEnd(T + 0.4, KILL), "stopped", 9, "proc connector, launcher"),
        (ended(KILL), [], LauncherEnd(T - 1, TERM), "stopped", 9, "proc connector, launcher"),
        (ended(KILL), [], LauncherEnd(T + 9, KILL), "signal", 9, "proc connector"),
        (ended(KILL), [T - 0.1, T], None, "signal", 9, "proc connector"),  # two at once: nobody cleared up yet
        (ended(KILL), [T - 30, T], None, "stopped", 9, "proc connector, launcher"),
        (ended(KILL, cgroup_killed=True), [], LauncherEnd(T, KILL), "oom", 9, "proc connector, cgroup"),
        (ended(SEGV), [T - 30], LauncherEnd(T, KILL), "signal", 11, "proc connector"),
    ],
)  # fmt: skip
def test_how(
    end: Ended, faults: list[float], launcher: LauncherEnd | None, how: str, code: int | None, told_by: str
) -> None:
    death = death_of(end, faults, launcher)
    assert (death.how, death.code, death.told_by) == (how, code, told_by)
    assert (death.pid, death.rank, death.job, death.uid) == (7, 3, "j", 0)


def test_when_is_as_exact_as_it_is_known() -> None:
    assert death_of(ended(9, at=T + 0.123456), [], None).at == T + 0.123456
    gone = ended(None, at=T)
    assert death_of(gone, [], None).at == T
    gone.raised_at = T - 0.5
    assert death_of(gone, [], None).at == T - 0.5
    gone.alive_at = T - 0.2
    assert death_of(gone, [], None).at == T - 0.2  # it ended some time after its exception
    gone.kernel = line("oom", T - 0.7)
    assert death_of(gone, [], None).at == T - 0.7


def test_only_a_kernel_line_of_that_time_is_about_it() -> None:
    end = ended(9)
    assert not end.takes(line("oom", pid=8)) and not end.takes(line("oom", T - 11))
    end.threads = {8}
    assert end.takes(line("segfault", pid=8))


def test_a_core_is_told() -> None:
    assert death_of(ended(SEGV | 0x80), [], None).dumped_core is True
    assert death_of(ended(SEGV), [], None).dumped_core is False
    assert death_of(ended(), [], None).dumped_core is None


def passes(program: bytes, message: bytes) -> bool:
    """What the kernel's classic BPF does with it."""
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at, a, x = 0, 0, 0
    while True:
        operation, yes, no, k = code[at]
        at += 1
        if operation == 0x20:
            a = int.from_bytes(message[k : k + 4], "big")
        elif operation == 0x07:
            x = a
        elif operation in (0x15, 0x1D):
            at += yes if a == (k if operation == 0x15 else x) else no
        elif operation == 0x05:
            at += k
        else:
            return k != 0


def event(what: int, thread: int, pid: int) -> bytes:
    return struct.pack("=36xIIQii24x", what, 0, 1, thread, pid)


@pytest.mark.parametrize("count", [1, 250, 251, 2000])
def test_the_filter_passes_ends_of_first_threads_and_crashes_of_those_watched(count: int) -> None:
    watched = range(1000, 1000 + count)
    program = exit_filter(watched)
    assert len(program) // 8 < 2100  # they must fit into 20 KiB
    for pid in (watched[0], watched[-1], watched[count // 2]):
        assert passes(program, event(0x80000000, pid, pid))
        assert not passes(program, event(0x80000000, 5, pid))
        assert passes(program, event(0x40000000, 5, pid))
        assert not passes(program, event(0x00000001, pid, pid))
    for pid in (999, 1000 + count, 0):
        assert not passes(program, event(0x80000000, pid, pid))
        assert not passes(program, event(0x40000000, pid, pid))


def error_json(message: str, timestamp: str = "") -> str:
    return json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "…", "timestamp": timestamp}}})


def read(path: Path, since: float = 0.0) -> tuple[str, float | None] | None:
    error = read_error_file(ErrorFile(str(path), os.getuid(), since))
    return None if error is None else (error.text, error.at)


def written(path: Path, content: str | bytes, at: float = T) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (at, at))
    return path


def test_an_error_file_tells_the_last_line_and_when(tmp_path: Path) -> None:
    path = written(tmp_path / "error.json", error_json("[rank3]: a\n\nValueError: boom\n", str(int(T))), T + 0.25)
    assert read(path) == ("ValueError: boom", T + 0.25)  # the file's time is finer
    written(path, error_json("x", str(int(T) - 500)))
    assert read(path) == ("x", T - 500)  # it was copied
    written(path, json.dumps({"message": "only text"}))
    assert read(path) == ("only text", T)
    assert read(path, since=T + 60) is None  # of an earlier process


def test_an_error_file_takes_no_secret_along(tmp_path: Path) -> None:
    path = written(tmp_path / "e", error_json("HTTPError: https://me:hunter2@host/x token=hunter2 hf_abcdefgh12"))
    told = read(path)
    assert told is not None and "hunter2" not in told[0] and "hf_abc" not in told[0]
    told = read(written(path, error_json("x" * 100_000)))
    assert told is not None and len(told[0]) <= 300


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b'{"message": 3}', b'{"message": null}', b'{"message": {"message": []}}', b"\xff\xfe",
     b"[" * 100_000, b'{"message": "' + b"x" * 300_000 + b'"}'],
    ids=range(10),
)  # fmt: skip
def test_what_is_no_error_file(tmp_path: Path, content: bytes) -> None:
    assert read(written(tmp_path / "error.json", content)) is None


@pytest.mark.parametrize("more", ['"timestamp": 5', '"timestamp": "-1"', '"timestamp": "\\u0663"', '"a": 1'])
def test_a_strange_timestamp_is_none(tmp_path: Path, more: str) -> None:
    path = written(tmp_path / "e", '{"message": {"message": "m", "extraInfo": {' + more + "}}}")
    told = read(path)
    assert told is not None and told[0] == "m"


def test_neither_pipes_nor_devices_nor_links_nor_others_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait
    assert read(tmp_path / "pipe") is None
    assert read(Path("/dev/zero")) is None and read(tmp_path) is None and read(tmp_path / "none") is None
    real = written(tmp_path / "error.json", error_json("m"))
    (tmp_path / "link").symlink_to(real)
    assert read(tmp_path / "link") is None
    assert read(real) is not None
    assert read_error_file(ErrorFile(str(real), os.getuid() + 1, 0.0)) is None
