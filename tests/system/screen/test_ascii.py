"""Where the terminal takes ASCII alone, no byte above 127 reaches it, whichever pane is opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.terminal import Terminal
from tests.waiting import wait_until

# Keys, and what stands on the screen then, or no more ("-"): every pane, what opens over it, and what changes how it is
# drawn. No Esc: what follows it too soon would be one key with it. A shell is asked for by name: where the cursor is
# depends on what the demo has come to.
TOUR = (
    *(("mmvvo", "1 main"), ("2", "2 node"), ("TTn", "2 node"), ("3", "3 ranks"), ("sS", "3 ranks"), ("\r", "Esc back")),
    *(("4", "4 stacks"), ("5", "5 links"), ("6", "6 events"), ("7", "7 probes"), ("8", "> incidents"), ("?", "Panes")),
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
        (":shell sim001\r", "sim001 is simulated"),
    ),
    *(("&", "not bound"), ("t", "4 stacks"), ("1", "1 main")),
)


def test_a_language_of_ascii_asks_for_it(tmp_path: Path) -> None:
    assert drawn_in([], {"LC_ALL": "", "LANG": "C", "LC_CTYPE": ""}, "1", TOUR[:3], tmp_path) == ""


@pytest.mark.parametrize(("nodes", "words", "environ"), [("1", [], {"LC_ALL": "C"}), ("5", ["--ascii"], {})])
def test_every_pane_is_drawn_in_ascii(nodes: str, words: list[str], environ: dict[str, str], tmp_path: Path) -> None:
    assert drawn_in(words, environ, nodes, TOUR, tmp_path) == ""


def drawn_in(
    words: Sequence[str], environ: Mapping[str, str], nodes: str, tour: Sequence[tuple[str, str]], folder: Path
) -> str:
    """What is written about the first byte that is not ASCII; "" where there is none."""
    argv = [sys.executable, "-m", "mltop", *words, "demo", "--nodes", nodes]
    state = {"MLTOP_STATE_DIR": str(folder), "PYTHONIOENCODING": ""}
    with Terminal(argv, 100, 30, env={**state, **environ}, cwd=str(folder)) as terminal:
        terminal.wait_for("q quit")
        for keys, stands in tour:
            terminal.send(keys)
            if stands.startswith("-"):
                terminal.wait_for_no(stands[1:])
            else:
                terminal.wait_for(stands)
        drawn = bytes(terminal.raw)
        terminal.send("\x03")
        terminal.wait()
    first = next((at for at, byte in enumerate(drawn) if byte > 127), None)
    return "" if first is None else repr(drawn[max(0, first - 60) :][:120])


def test_without_that_it_is_drawn_as_it_is(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mltop", "demo"]
    with Terminal(argv, 100, 30, env={"MLTOP_STATE_DIR": str(tmp_path), "LANG": os.environ["LC_ALL"]}) as terminal:
        terminal.wait_for("q quit")
        wait_until(lambda: any(byte > 127 for byte in terminal.raw), what="a glyph that is not ASCII")
        terminal.send("\x03")
        terminal.wait()
