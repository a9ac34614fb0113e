"""Where the terminal takes ASCII alone, no byte above 127 reaches it, whichever pane is opened."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.terminal import Terminal
from tests.waiting import wait_until

# Keys, and what stands on the screen then, or no more ("-"): every pane, what opens over it, and what changes how it is
# drawn. No Esc: what follows it too soon would be one key with it. A shell is asked for by name: where the cursor is
# depends on what the demo has come to.
HERE = os.uname().nodename.partition(".")[0]
TOUR = (
    *(("mmvvo", "1 main"), ("2", "2 node"), ("TTn", "2 node"), ("3", "3 ranks"), ("sS", "3 ranks"), ("\r", "Esc back")),
    *(("4", "4 stacks"), ("5", "5 links"), ("6", "6 events"), ("7", "7 probes"), ("8", "8 incidents"), ("?", "Panes")),
    *(
        ("G", "severity"),
        (":", "all training"),
        ("n", ":n"),
        ("\x7f\x7f", "severity"),
        ("1", "1 main"),
        ("/x", "Esc clears"),
    ),
    *(
        ("\x7f\r", "[ ] time"),
        ("D", "Slurm"),
        ("q", "-Slurm"),
        (f":shell {HERE}\r", "open a shell"),
        ("n", "-open a shell"),
    ),
    *(("&", "not bound"), ("t", "4 stacks"), ("1", "1 main")),
)
ASKED = (
    (["--ascii"], {}),
    ([], {"LC_ALL": "C"}),
    ([], {"LC_ALL": "", "LANG": "C", "LC_CTYPE": ""}),
)


@pytest.mark.parametrize(("words", "environ"), ASKED, ids=str)
@pytest.mark.parametrize("nodes", ["1", "5"])
def test_every_pane_is_drawn_in_ascii(words: list[str], environ: dict[str, str], nodes: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mltop", *words, "demo", "--nodes", nodes]
    state = {"MLTOP_STATE_DIR": str(tmp_path), "PYTHONIOENCODING": ""}
    with Terminal(argv, 100, 30, env={**state, **environ}, cwd=str(tmp_path)) as terminal:
        terminal.wait_for("q quit")
        for keys, words in TOUR:
            terminal.send(keys)
            if words.startswith("-"):
                terminal.wait_for_no(words[1:])
            else:
                terminal.wait_for(words)
        drawn = bytes(terminal.raw)
        terminal.send("\x03")
        terminal.wait()
    above = sorted({byte for byte in drawn if byte > 127})
    assert above == [], drawn[max(0, drawn.find(bytes(above[:1])) - 60) :][:120]


def test_without_that_it_is_drawn_as_it_is(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mltop", "demo"]
    with Terminal(argv, 100, 30, env={"MLTOP_STATE_DIR": str(tmp_path), "LANG": os.environ["LC_ALL"]}) as terminal:
        terminal.wait_for("q quit")
        wait_until(lambda: any(byte > 127 for byte in terminal.raw), 30.0, "a glyph that is not ASCII")
        terminal.send("\x03")
        terminal.wait()
