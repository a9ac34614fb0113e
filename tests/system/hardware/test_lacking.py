"""Slices of `bash tests/gpu` on machines that are not as one would have them: short of programs, time, GPUs."""

from __future__ import annotations

import ctypes
import json
import pwd
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.model import GpuSample
from tests.fakes.gpu_machine import GpuMachine
from tests.fakes.scripts import shell_script
from tests.hardware import job_child, refusing, watching
from tests.hardware.checks import NotTriedError
from tests.hardware.context import Context, Machine, Pythons
from tests.hardware.jobs import Job
from tests.hardware.ours import Mltop
from tests.hardware.plain import SPARE_S, plain
from tests.hardware.probing import Answer, Event
from tests.hardware.ras import Answer as RasAnswer
from tests.hardware.refusing import Refused
from tests.hardware.signals import Watcher
from tests.hardware.slices import records, stacks
from tests.hardware.slices.records import Had, checks_of, why_no_timeout, without_addresses
from tests.hardware.watching import Watch
from tests.replays import on_machine
from tests.waiting import wait_until

NO_PROGRAM = "no mltop can be started here"
UUID = "GPU-5a4e0001-0000-4000-8000-000000000000"


def context(folder: Path, seconds: float = 60.0, python: str = sys.executable) -> Context:
    gpus = [{"index": 0, "uuid": UUID, "name": "NVIDIA H100", "serial": None}]
    return Context(
        folder,
        time.monotonic() + seconds,
        Pythons(sys.executable, python, no_program=NO_PROGRAM),
        Machine(gpus=gpus),
        False,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[GpuMachine]:
    found = GpuMachine(tmp_path, ranks=False)
    with on_machine(tmp_path, found.env()):
        yield found


def test_signals_need_no_program(machine: GpuMachine, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    found = stacks.Found(0)
    free = [{"index": 0, "uuid": UUID}]
    with Mltop() as mltop:
        stage = stacks.Stage(context(tmp_path), Watcher(mltop, 0), free, found, stacks.Pace(0.0, 0.1, 2))
        stage.healthy()
    assert "busy" in found.known["healthy"].gpu and found.looks == {}
    checks = {one.name: one for one in stacks.checks_of(found)}
    assert (checks["healthy: kind"].outcome, checks["healthy: kind"].why) == ("not tried", NO_PROGRAM)


def test_a_refusal_needs_no_program(tmp_path: Path) -> None:
    found = Refused(0, UUID, "a kernel runs", 1, False, Answer("matmul", 0.0))
    refusing._ask_command(context(tmp_path), UUID, found)
    assert found.no_command == NO_PROGRAM


def test_a_python_that_root_may_not_take_is_named_in_our_own_way() -> None:
    event = Event(1.0, "failed", stage="find python", why="others could change it", fix="--torch-python PATH")
    with pytest.raises(NotTriedError, match=r"others could change it .*MLTOP_GPU_PYTHON=PATH bash tests/gpu"):
        Answer("matmul", 0.0, [event]).check_begun()


def test_jobs_have_no_settings_of_their_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Which would hide what NCCL says, or launch kernels one by one."""
    names = ("NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_FR_DUMP_TEMP_FILE")
    names += ("CUDA_LAUNCH_BLOCKING", "TORCH_CPP_LOG_LEVEL", "SLURM_PROCID")
    for name in (*names, "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "/x")
    job = Job(context(tmp_path), "collective", [UUID, UUID], "nccl", {"NCCL_DEBUG": "INFO"})
    environment = job._environment(1)
    assert "/x" not in {environment.get(name) for name in names}
    assert environment["NCCL_SOCKET_IFNAME"] == environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert (environment["NCCL_DEBUG"], environment["LD_LIBRARY_PATH"], environment["RANK"]) == ("INFO", "/x", "1")


def test_jobs_let_py_spy_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY): py-spy is no parent of theirs."""
    calls: list[tuple[Any, ...]] = []

    class Libc:
        def prctl(self, *words: Any) -> None:
            calls.append(words)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Libc())
    job_child.let_py_spy_look()
    ((option, tracer, *rest),) = calls
    assert (option, tracer.value, rest) == (int.from_bytes(b"Yama", "big"), 2**64 - 1, [0, 0, 0])


def test_a_gpu_that_is_lost_meanwhile_is_told() -> None:
    class Lost:
        def poll(self) -> list[GpuSample]:
            return []

    with pytest.raises(NotTriedError, match="GPU 3 any more"):
        Watcher(Lost(), 3).watch([], 0.0, 0.01)  # type: ignore[arg-type]


def test_plain_torch_leaves_time_to_tell(tmp_path: Path) -> None:
    """It is ended before its slice is."""
    endless = shell_script(tmp_path / "python", "exec sleep 60")
    short = context(tmp_path, SPARE_S + 0.1, str(endless))
    found = plain(short, "plain_gemm.py", {}, [UUID], 120.0)
    assert found.error == "there was no time for all of it" and short.left_s() > 0


def test_an_answer_that_came_when_the_load_was_over_is_none(
    machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without persistence mode nvidia-smi may start eight GPUs first."""
    monkeypatch.setattr(watching, "SLOW_S", 0.0)
    watch = Watch(0, ["clocks.sm"])
    watch.start()
    watch.stop()
    assert not watch.rows and "when the load was over" in watch.told("clocks.sm").why


class Ended:
    """A job whose waiter has ended."""

    def __init__(self, folder: Path, stood_s: float, code: int | None) -> None:
        self.directory, self.pids = folder, [1, 2]
        self._stood_s, self._code = stood_s, code

    def stood_s(self, rank: int) -> float:
        return self._stood_s

    def wait_end(self, rank: int, seconds: float) -> int | None:
        return self._code

    def last_word(self, rank: int) -> str:
        return "CUDA error: the launch timed out and was terminated"

    def log(self, rank: int) -> Path:
        return self.directory / f"log.{rank}"


@pytest.mark.parametrize(
    ("stood_s", "code", "says"),
    [
        (4.0, -signal.SIGABRT, "launch timed out"),  # a screen's GPU ends long kernels
        (16.0, -signal.SIGSEGV, r"ended \(-11\)"),  # a question of RAS has crashed it
        (16.0, -signal.SIGABRT, ""),
        (12.0, None, "--minutes"),
        (80.0, None, ""),
    ],
)
def test_a_waiter_that_met_something_else_has_no_timeout(
    stood_s: float, code: int | None, says: str, tmp_path: Path
) -> None:
    had = Had("nccl", 15.0, logs=["", ""], why={"ras": "not asked"})
    had.why.update(why_no_timeout(Ended(tmp_path, stood_s, code), had))  # type: ignore[arg-type]
    lines = [one for one in checks_of(had) if one.name in ("line: watchdog timeout", "line: dump seen")]
    assert {one.outcome for one in lines} == {"not tried" if says else "differs"}
    if says:
        with pytest.raises(AssertionError, match=says):
            raise AssertionError(lines[0].why)


def test_what_is_saved_of_nccl_has_no_addresses(tmp_path: Path) -> None:
    lines = (
        "gpu7:12:34 [0] NCCL INFO Bootstrap: Using eth0:10.12.3.4<0>",
        "gpu7:12:34 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0> [1]ib0:fe80::9a03:9bff%ib0<0>",
        "[rank0]:[E1103 10:00:05.123456789 ProcessGroupNCCL.cpp:683] c10d::Work, NCCL version 2.27.3+cuda12.8",
    )
    (tmp_path / "log.0").write_text("\n".join(lines))
    shown = records.shown(Ended(tmp_path, 0.0, 0), 0).splitlines()  # type: ignore[arg-type]
    assert shown[0] == "host:12:34 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.1<0>"
    assert shown[1] == "host:12:34 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0> [1]ib0:2001:db8::1<0>"
    assert shown[2] == lines[2]
    told = {"host": "10.1.2.3", "timestamp": "2026-11-02 10:00:05", "nccl_version": "2.28.9", "peer": "fe80::1"}
    answer = without_addresses(RasAnswer(json.dumps(told)))
    assert json.loads(answer.text) == {**told, "host": "192.0.2.1", "peer": "2001:db8::1"}


def test_what_is_saved_tells_of_no_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    pythons = Pythons("/usr/bin/python3", "/data/x/venv/bin/python")
    text = "/data/x/venv/lib/python3.11/site-packages/torch/a.py /scratch/ada/b.py /scratch/adam /usr/lib/c.py"
    said = Context(tmp_path, 0.0, pythons, Machine(), False).scrubbed(text)
    assert said == "python/lib/python3.11/site-packages/torch/a.py /scratch/user/b.py /scratch/adam /usr/lib/c.py"


def test_the_end_of_a_job_waits_for_no_folder(tmp_path: Path) -> None:
    """What the driver holds may still write there."""
    job = Job(context(tmp_path), "healthy", [UUID])
    wait_until(job.directory.exists, what="its folder")
    job.directory.rmdir()
    job.end()
    assert not job.directory.exists()


@pytest.mark.parametrize("home", ["/", None])
def test_a_user_without_a_home_can_save(home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As uid 1234 in a container, of which no passwd knows."""
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    text = "/data/a.py https://docs"
    assert Context(tmp_path, 0.0, Pythons("", ""), Machine(), False).scrubbed(text) == text


def test_keys_that_are_missing_are_named() -> None:
    check = records.missing_keys("dump: keys", {"version": 1, "new": 2}, frozenset({"version", "entries", "pg_config"}))
    assert (check.outcome, check.ours, check.theirs) == ("differs", "all 3 keys", "all but entries, pg_config")
    assert check.details["more"] == ["new"]
