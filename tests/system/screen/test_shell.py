"""`!`: the screen makes room for a shell, and is there again after it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.terminal import Terminal


def test_a_shell_and_back(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "this is a shell: $*"\nread line\necho "it read $line"\nexit 3\n')
    shell.chmod(0o755)
    env = {"MLTOP_STATE_DIR": str(tmp_path), "SHELL": str(shell)}
    with Terminal([sys.executable, "-m", "mltop", "demo"], 100, 30, env=env, cwd=str(tmp_path)) as terminal:
        terminal.wait_for("q quit")
        terminal.send("!")
        terminal.wait_for("open a shell?")
        terminal.send("\r")  # means No
        terminal.wait_for_no("open a shell?")
        terminal.send("!")
        terminal.wait_for("open a shell?")
        terminal.send("y")
        terminal.wait_for("this is a shell: -l")
        terminal.send("abc\n")
        terminal.wait_for("shell -l ended with 3")
        terminal.wait_for("HOST")
        terminal.wait_for_no("this is a shell")
        terminal.send("q")
        assert terminal.wait() == 0
