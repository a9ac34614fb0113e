"""The terminal's title says what line 1 says, unless the configuration is against it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from mltop.probes.record.recordings import recording
from mltop.tui.app.app import MOST_TITLE
from tests.spoiled import NASTY
from tests.terminal import Terminal
from tests.tui.fake_views import fleet
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


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_node_writes_no_more_into_the_title_than_words(locale: str, tmp_path: Path) -> None:
    """Where the terminal takes ASCII alone, a byte of another letter may be a control character to it."""
    named = {"node001": f"a{NASTY[:-1]}{'ś' * 180}", "node002": "b"}
    samples = [node.sample for tick in range(5) for node in fleet(tick, 4).nodes if node.sample is not None]
    for sample in samples:
        sample.node = named.get(sample.node, f"c{'ś' * 200}{sample.node}")
    path = tmp_path / "recording.jsonl"
    path.write_bytes(recording(samples))
    env = {"MLTOP_STATE_DIR": str(tmp_path), "LC_ALL": locale, "PYTHONIOENCODING": ""}
    argv = [sys.executable, "-m", "mltop", "--recording", str(path)]
    with Terminal(argv, 100, 30, env=env, cwd=str(tmp_path)) as terminal:
        terminal.wait_for("q quit")
        wait_until(lambda: b"CRIT" in titles(terminal)[-1], 60.0, "what is wrong in the title")
        terminal.send("q")
        terminal.wait()
        for title in titles(terminal):
            assert title.decode().isprintable() and len(title.decode()) <= MOST_TITLE
            assert title.isascii() or locale != "C"


def titles(terminal: Terminal) -> list[bytes]:
    return re.findall(rb"\x1b\]2;([^\x07]*)\x07", bytes(terminal.raw)) or [b""]
