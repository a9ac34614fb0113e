"""Streams that take nothing (closed, full disk, a reader that has left), and users without a home: one line, a code."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mltop.probes.model import Gap, RankSample, Sample
from mltop.probes.record import recording
from tests.others import AS_NOBODY_KNOWN, without_home
from tests.terminal import Terminal

MLTOP = [sys.executable, "-m", "mltop"]
FINE, USAGE, UNKNOWN, OUTPUT, LEFT = 0, 2, 3, 74, 141
# What each prints, and with which code it ends, where nothing is in the way.
COMMANDS = {
    "--help": FINE,
    "--version": FINE,
    "check --help": FINE,
    "help": FINE,
    "help hang": FINE,
    "snapshot --recording R": FINE,
    "snapshot --json --recording R": FINE,
    "check --recording R": UNKNOWN,
    "check --json --recording R": UNKNOWN,
    "stacks --recording R": FINE,
    "stacks --json --recording R": FINE,
    "snapshot --via local --timeout 20": FINE,
    "doctor --json --timeout 20": None,
    "kernel --json --timeout 20": None,
    "lemon": FINE,
    "probe all-reduce --script": FINE,
    "probe matmul --json --timeout 1": None,
}
# These print nothing: wherever their output goes, they do what they are for.
QUIET = {"lemon add GPU-2 fans": FINE, "lemon remove GPU-1": FINE}
# What is written is written by one place (tui/app/output.py), whatever a stream refuses: of the commands that ask this
# machine, and of those that have nothing to say there, one of a kind is tried in each way, and all of them in one.
LIVE = [command for command in COMMANDS if "timeout" in command]
ONE_OF_A_KIND = {"closed": LIVE[0], "left": LIVE[1]}
NOTHING_TO_SAY = ("lemon add GPU-2 fans", "", "snapshot --recording /nowhere")
REFUSED = {"": USAGE, "demo": USAGE, "frobnicate": USAGE, "snapshot --recording /nowhere": USAGE, "probe pairs": USAGE}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A recording ``R`` to look at and a list with one entry."""
    ranks = [RankSample(7, rank=0, world_size=2, job="j", state="S", command="train.py")]
    gaps = [Gap("kernel_log", "needs root", "sudo mltop")]
    (tmp_path / "R").write_bytes(recording([Sample("h1", float(at), ranks=ranks, gaps=gaps) for at in range(3)]))
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "lemons.json").write_text('{"lemons": [{"gpu": "GPU-1", "note": "Xid 79"}]}')
    return folder


def run(command: str, state: Path, out: str = "", err: str = "") -> tuple[int, str, str]:
    """Exit code, output, error output. ``out``, ``err``: closed | full | left, "" for a pipe that is read.

    Every other command runs with Python's streams unbuffered: what cannot be written is known at another moment then;
    and every third one on a terminal that knows ASCII alone, for which click takes other ways.
    """
    shell = 'exec "$@"' + _redirection(1, out) + _redirection(2, err)
    gone = _left_by_its_reader() if "left" in (out, err) else -1
    try:
        done = subprocess.run(
            ["sh", "-c", shell, "sh", *MLTOP, *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=gone if out == "left" else subprocess.PIPE,
            stderr=gone if err == "left" else subprocess.PIPE,
            timeout=120,
            cwd=state.parent,
            env={
                **os.environ,
                "MLTOP_STATE_DIR": str(state),
                "PYTHONUNBUFFERED": "1" if len(command) % 2 else "",
                "PYTHONIOENCODING": "ascii" if len(command) % 3 == 0 else "utf-8",
            },
            check=False,
        )
    finally:
        if gone >= 0:
            os.close(gone)
    return done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode()


def _redirection(fd: int, where: str) -> str:
    return {"closed": f" {fd}>&-", "full": f" {fd}>/dev/full"}.get(where, "")


def _left_by_its_reader() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def told(err: str) -> list[str]:
    lines = err.splitlines()
    assert [line for line in lines if not line.startswith("mltop: ") or "please report" in line] == []
    return lines


@pytest.mark.parametrize(
    ("out", "code", "said"),
    [
        ("closed", OUTPUT, "mltop: output: standard output is closed"),
        ("full", OUTPUT, "mltop: output: No space left on device"),
        ("left", LEFT, None),
    ],
)
def test_an_output_that_takes_nothing_ends_every_command_with_one_line(
    state: Path, out: str, code: int, said: str | None
) -> None:
    commands = [command for command in COMMANDS if command not in LIVE or ONE_OF_A_KIND.get(out, command) == command]
    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(commands, pool.map(lambda command: run(command, state, out=out), commands), strict=True))
    for command, (ended, _, err) in found.items():
        lines = told(err)
        assert (command, ended) == (command, code)
        assert (lines[-1] if said else None) == said, command
        assert len([line for line in lines if "output:" in line]) == (said is not None)


@pytest.mark.parametrize("stream", ["out", "err"])
@pytest.mark.parametrize("where", ["closed", "full", "left"])
def test_what_prints_nothing_there_is_not_disturbed(state: Path, stream: str, where: str) -> None:
    for command, code in {**QUIET, **REFUSED}.items():
        if where != "closed" and command not in NOTHING_TO_SAY:
            continue
        ended, out, err = run(command, state, **{stream: where})
        assert (command, ended) == (command, code)
        assert out == ""
        assert len(told(err)) == (command in REFUSED and stream == "out")
    assert "GPU-2" in run("lemon", state)[1]


@pytest.mark.parametrize("err", ["closed", "full", "left"])
def test_an_error_output_that_takes_nothing_changes_nothing(state: Path, err: str) -> None:
    """Also where there is something to say on it: recordings with gaps, unknown nodes."""
    (state.parent / "R").write_bytes((state.parent / "R").read_bytes()[:-10])  # "is cut off"
    commands = [command for command in COMMANDS if command not in LIVE]
    if err != "closed":
        commands = [command for command in commands if "R" in command or command == "lemon"]
    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(commands, pool.map(lambda command: run(command, state, err=err), commands), strict=True))
    for command, (ended, out, _) in found.items():
        assert (command, ended) == (command, COMMANDS[command])
        assert out, command


def test_head_and_its_like_end_a_command_quietly(state: Path) -> None:
    (state.parent / "R").write_bytes(recording([Sample(f"h{number}", 1.0) for number in range(3000)]))
    for command in ("snapshot", "snapshot --json"):
        shell = '"$@" | head -n 1; echo "${PIPESTATUS[0]}"'
        argv = ["bash", "-c", shell, "bash", *MLTOP, *command.split(), "--recording", "R"]
        done = subprocess.run(argv, cwd=state.parent, capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == ""
        assert done.stdout.splitlines()[-1] == "141" or "--json" in command


def test_a_screen_without_an_output_says_so(tmp_path: Path) -> None:
    with Terminal(["sh", "-c", f"{sys.executable} -m mltop >&- 2>{tmp_path}/err; echo RC=$?"]) as terminal:
        terminal.wait_for("RC=2")
    assert "the screen: its output is not a terminal" in (tmp_path / "err").read_text()


def test_a_capture_whose_name_cannot_be_printed_says_where_it_is(tmp_path: Path) -> None:
    argv = [*MLTOP, "capture", "--via", "local", "-o", str(tmp_path / "c"), "--timeout", "20"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >/dev/full', "sh", *argv], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == OUTPUT
    assert told(done.stderr)[-1] == f"mltop: output: No space left on device; the capture is in {tmp_path / 'c'}"


# No HOME, and a uid that passwd does not know.


def homeless(command: str, folder: Path, *, chosen: bool = False) -> tuple[int, str, str]:
    env = without_home()
    if chosen:
        env["MLTOP_STATE_DIR"] = str(folder / "state")
    argv = [*AS_NOBODY_KNOWN, *MLTOP, *command.split()]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, cwd=folder, env=env, check=False
    )
    return done.returncode, done.stdout, done.stderr


NO_HOME = "there is no home directory to remember anything in (set MLTOP_STATE_DIR)"


def test_without_a_home_every_command_works_or_says_why_not(state: Path) -> None:
    commands = {
        **{command: code for command, code in COMMANDS.items() if command != "lemon"},
        "": USAGE,
        "demo": USAGE,
        "lemon": USAGE,
        "lemon add GPU-2 fans": USAGE,
        "lemon remove GPU-1": USAGE,
        "kernel --learn --timeout 20": USAGE,
    }
    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(commands, pool.map(lambda command: homeless(command, state.parent), commands), strict=True))
    for command, (ended, _, err) in found.items():
        lines = told(err)
        assert ended == commands[command] or commands[command] is None, (command, err)
        assert [line for line in lines if NO_HOME in line] == lines[-1:] or not any(NO_HOME in line for line in lines)
        if command.startswith("lemon") or "--learn" in command:
            assert lines == [line for line in lines if line.endswith(NO_HOME)] and len(lines) == 1
    assert sorted(path.name for path in state.parent.iterdir()) == ["R", "state"], "nothing was made here"


def test_without_a_home_a_chosen_place_is_used(state: Path) -> None:
    assert homeless("lemon add GPU-2 fans", state.parent, chosen=True)[0] == FINE
    assert "GPU-2" in homeless("lemon", state.parent, chosen=True)[1]


def test_without_a_home_the_demo_s_agent_runs(tmp_path: Path) -> None:
    code = (
        "from mltop.probes.demo.node import *\n"
        "from mltop.probes.collect.ranks.access import user_name\nimport os\nprint(user_name(os.geteuid()))"
    )
    done = subprocess.run(
        [*AS_NOBODY_KNOWN, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=without_home(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "12345\n"), done.stderr


def test_nodes_that_ssh_cannot_reach_for_who_nobody_is_are_one_line_each(tmp_path: Path) -> None:
    ended, _, err = homeless("snapshot -w no-such-host.invalid --timeout 20", tmp_path)
    assert ended == UNKNOWN and len(told(err)) == 1


@pytest.mark.parametrize(("command", "words"), [("", "quit"), ("demo", "SIMULATED")])
def test_without_a_home_the_screen_is_drawn(command: str, words: str, tmp_path: Path) -> None:
    nothing = [part for name in ("HOME", "USER", "LOGNAME", "XDG_STATE_HOME") for part in ("-u", name)]
    with Terminal(["env", *nothing, *AS_NOBODY_KNOWN, *MLTOP, *command.split()]) as terminal:
        terminal.wait_for(words, 60)
        terminal.send("q")
        assert terminal.wait(60) == 0
        assert "Traceback" not in terminal.text()
    assert list(tmp_path.iterdir()) == []
