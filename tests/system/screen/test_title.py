"""The terminal's title says what line 1 says, unless the configuration is against it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.terminal import Terminal
from tests.waiting import wait_until

DEMO = [sys.executable, "-m", "mltop", "demo"]


def test_the_title_says_what_line_1_says(tmp_path: Path) -> None:
    env = {"MLTOP_STATE_DIR": str(tmp_path), "LANG": os.environ["LC_ALL"]}
    with Terminal(DEMO, 100, 30, env=env, cwd=str(tmp_path)) as terminal:
        terminal.wait_for("q quit")

        def same() -> bool:
            """Of a node that is known by now: mark and word of both."""
            line, title = terminal.text().splitlines()[0].split(), terminal.screen.title.split()
            return title[:1] == ["mltop:"] and title[1:3] == line[:2] and len(title[1]) == 1

        wait_until(same, 60.0, "the title that says what line 1 says")
        terminal.send("\x03")
        terminal.wait()


def test_the_configuration_keeps_the_title_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mltop").mkdir()
    (tmp_path / "mltop/config.toml").write_text("terminal_title = false\n")
    env = {"MLTOP_STATE_DIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with Terminal(DEMO, 100, 30, env=env, cwd=str(tmp_path)) as terminal:
        terminal.wait_for("q quit")
        terminal.send("3")
        terminal.wait_for("3 ranks")
        terminal.send("\x03")
        terminal.wait()
        assert b"\x1b]2;" not in terminal.raw
