"""The first five minutes, on every Python of this machine: the screen, its panes, the demo, every command, agents.

Nothing here uses Textual's Pilot, which starts the app in another way than a terminal does.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mltop.tui.commands.help import files, topics
from tests import pythons
from tests.documents import ROOT
from tests.terminal import Terminal
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix

TIMEOUT_S = 90.0
# Four processes, of which rank 2 stops after two seconds; no torch. They end with their stdin.
JOB = """
import sys
from mltop.probes.demo.job import DemoJob
with DemoJob(use_torch=False, healthy_s=2.0):
    print("ready", flush=True)
    sys.stdin.read()
"""
STUCK = "__getitem__"  # qualified by its class from Python 3.11 on
PANES = {"2": "via local", "3": "> ranks", "4": "> stacks", "5": "> links", "6": "> events", "7": "> probes"}
PANES |= {"8": "> incidents", "1": "SINCE"}


@pytest.fixture
def job(mltop: Path) -> Iterator[None]:
    """A hanging job of the same Python."""
    command = [mltop.with_name("python"), "-c", JOB]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.stdin.close()


def run(mltop: Path, *arguments: str, codes: tuple[int, ...] = (0,), cwd: Path | None = None) -> str:
    """What a command prints. Never a traceback, always one of ``codes``."""
    command = [str(mltop), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd, check=False)
    said = f"{' '.join(arguments)} exits with {done.returncode}:\n{done.stdout}{done.stderr}"
    assert done.returncode in codes and "Traceback" not in said and "please report" not in said, said
    return done.stdout


def leave(terminal: Terminal) -> None:
    """``q`` ends the program and leaves the terminal as it was."""
    terminal.send("q")
    assert terminal.wait(TIMEOUT_S) == 0, terminal.text()
    assert terminal.is_cooked()
    for begin, end in (
        (b"\x1b[?1049h", b"\x1b[?1049l"),
        (b"\x1b[?25l", b"\x1b[?25h"),
        (b"\x1b[?1003h", b"\x1b[?1003l"),
    ):
        assert terminal.raw.rfind(end) > terminal.raw.rfind(begin)


def test_the_pythons_that_must_be_here_are() -> None:
    assert not pythons.missing()


def test_the_wheel_has_every_topic(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for path in files().values():
            assert archive.read(f"mltop/{path.resolve().relative_to(ROOT)}") == path.read_bytes()


@pytest.mark.part("screen")
@pytest.mark.usefixtures("job")
def test_screen(mltop: Path) -> None:
    """Beside a job that hangs: every pane, help, filter, command line, a dump, sizes, the end."""
    with Terminal([str(mltop), "--via", "local"]) as terminal:
        terminal.wait_for("llama-7b", TIMEOUT_S)
        for key, words in PANES.items():
            terminal.send(key)
            terminal.wait_for(words, TIMEOUT_S)
        terminal.send("?")
        terminal.wait_for("one node in detail", TIMEOUT_S)
        terminal.send("?")
        terminal.wait_for("SINCE", TIMEOUT_S)
        terminal.send("/rank=2\r")
        terminal.wait_for("of 4 ", TIMEOUT_S)
        terminal.send("\x1b")
        terminal.wait_for_no("of 4 ", TIMEOUT_S)
        terminal.send(":links\r")
        terminal.wait_for("> links", TIMEOUT_S)
        terminal.send("1t")
        terminal.wait_for("HANG ", TIMEOUT_S)
        terminal.wait_for(STUCK, TIMEOUT_S)
        terminal.resize(40, 10)
        terminal.wait_for("■ HUNG", TIMEOUT_S)
        wait_until(lambda: max(map(len, terminal.text().splitlines())) <= 40, TIMEOUT_S, "40 columns")
        terminal.resize(120, 40)
        terminal.wait_for("MERGED STACKS", TIMEOUT_S)
        leave(terminal)


@pytest.mark.part("demo")
def test_demo(mltop: Path) -> None:
    with Terminal([str(mltop), "demo"]) as terminal:
        terminal.wait_for("shows the stacks, 8 all about the hang", TIMEOUT_S)
        text = terminal.wait_for(STUCK, TIMEOUT_S)
        assert "■ HUNG" in text and "rank 2" in text
        leave(terminal)


@pytest.mark.part("fleet")
def test_demo_fleet(mltop: Path) -> None:
    with Terminal([str(mltop), "demo", "--nodes", "8"]) as terminal:
        terminal.wait_for("sim008", TIMEOUT_S)
        terminal.send("v")
        terminal.wait_for("live", TIMEOUT_S)
        leave(terminal)


def _is_object(text: str) -> None:
    assert json.loads(text)["schema"] == 1


def _names_topics(text: str) -> None:
    assert [line.split()[0] for line in text.splitlines()] == list(topics())


def _is_text(text: str) -> None:
    assert text.strip()


# What to run, the exit codes that a healthy mltop may have on a machine with or without a GPU, and what it prints.
COMMANDS: tuple[tuple[str, tuple[int, ...], Callable[[str], None]], ...] = (
    ("--version", (0,), _is_text),
    ("--help", (0,), _is_text),
    ("help", (0,), _names_topics),
    ("help hang", (0,), _is_text),
    ("snapshot", (0,), _is_text),
    ("snapshot --json", (0,), _is_object),
    ("check --json", (0, 1, 2, 3), _is_object),
    ("doctor --json", (0, 1), _is_object),
    ("kernel", (0, 1, 3), lambda _: None),
    ("lemon", (0,), lambda _: None),
    ("config", (0,), _is_text),
    ("probe matmul --json", (3,), _is_object),  # no torch in this environment
    ("record -o out.jsonl --for 3", (0,), lambda _: None),
    ("check --recording out.jsonl --json", (0, 1, 2, 3), _is_object),
    ("capture -o cap", (0,), _is_text),
    ("explain cap --json", (0, 1, 2, 3), lambda _: None),
    ("no-such-command", (2,), lambda text: None),
)


@pytest.mark.part("commands")
@pytest.mark.usefixtures("job")
def test_commands(mltop: Path, tmp_path: Path) -> None:
    """Every command once, the right verdict from `stacks`, and the recording and the capture on the screen."""
    for words, codes, holds in COMMANDS:
        holds(run(mltop, *words.split(), codes=codes, cwd=tmp_path))
    report = json.loads(run(mltop, "stacks", "--json"))
    (job,) = report["jobs"]
    assert job["verdict"]["kind"] == "hang" and [culprit["rank"] for culprit in job["verdict"]["culprits"]] == [2]
    assert {digest["waiting_in"] for digest in job["digests"] if digest["rank"] != 2} == {"all_reduce"}
    for path in ("out.jsonl", "cap"):
        with Terminal([str(mltop), "replay", str(tmp_path / path)]) as terminal:
            terminal.wait_for("llama-7b", TIMEOUT_S)
            leave(terminal)


@pytest.mark.part("agent")
@pytest.mark.parametrize("node_python", pythons.operators((3, 9)))
def test_agent(node_python: str, installed: Callable[[str], Path]) -> None:
    """A node's Python with nothing installed runs the agent of the newest mltop here."""
    python = str(pythons.found()[node_python])
    answer = run(
        installed(pythons.operators()[-1]), "doctor", "--via", "local", "--json", "--python", python, codes=(0, 1)
    )
    found = [check["why"] for check in json.loads(answer)["checks"] if check["name"] == "python"]
    assert len(found) == 1 and found[0].startswith(f"Python {node_python}.") and python in found[0]
