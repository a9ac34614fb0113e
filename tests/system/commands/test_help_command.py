"""`mltop help [TOPIC]` as a user meets it: in a terminal, in a pipe, in ASCII. From the wheel: tests/matrix."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from mltop.tui.commands.help import topics
from tests.terminal import Terminal

MLTOP = [sys.executable, "-m", "mltop"]
TOPICS = topics()


def mltop(*args: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    wanted = {**os.environ, **(env or {})}
    done = subprocess.run([*MLTOP, *args], capture_output=True, text=True, timeout=60, check=False, env=wanted)
    return done.returncode, done.stdout, done.stderr


def shown(*args: str, **env: str) -> tuple[str, bytes]:
    """What a terminal of 80 columns shows, and the bytes that it got."""
    with Terminal([*MLTOP, *args], columns=80, lines=200, env=env) as terminal:
        assert terminal.wait(60) == 0
        return terminal.text(), bytes(terminal.raw)


def test_the_list_has_each_topics_title() -> None:
    code, out, err = mltop("help")
    assert (code, err) == (0, "")
    assert [line.split(maxsplit=1) for line in out.splitlines()] == [
        [name, text.splitlines()[0].removeprefix("# ")] for name, text in TOPICS.items()
    ]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("topic", TOPICS)
def test_a_pipe_gets_the_text_as_it_is_written(topic: str) -> None:
    assert mltop("help", topic) == (0, TOPICS[topic], "")


@pytest.mark.parametrize("topic", ["exit-codes", "security"])
def test_a_terminal_gets_it_drawn(topic: str) -> None:
    text, raw = shown("help", topic)
    title = TOPICS[topic].splitlines()[0].removeprefix("# ")
    assert text.splitlines()[0] == title
    assert not any(mark in text for mark in ("`", "**", "|---", "## "))
    assert b"\x1b[36m" in raw  # code has a colour
    assert b"\x1b]8" not in raw  # no links that a terminal opens


def test_no_color_and_ascii_hold() -> None:
    _, raw = shown("help", "keys", NO_COLOR="1")
    assert not any(b"\x1b[%dm" % colour in raw for colour in range(30, 38))
    _, raw = shown("help", "keys", "--ascii")
    assert raw.isascii()
    assert mltop("--ascii", "help", "keys")[1].isascii()
    assert mltop("help", "keys", env={"LANG": "C", "LC_ALL": "C"})[1].isascii()


@pytest.mark.parametrize("command", ["probe", "lemon", "doctor", "help"])
def test_a_command_without_a_topic_shows_its_help(command: str) -> None:
    assert command not in TOPICS
    assert mltop("help", command) == mltop(command, "--help")


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("hangs", "did you mean hang? "), ("secruity", "did you mean security? "), ("@lab", ""), ("../README", "")],
)
def test_an_unknown_topic_is_one_line(typed: str, suggested: str) -> None:
    line = f"mltop: help {typed}: no such topic ({suggested}mltop help lists them)\n"
    assert mltop("help", typed) == (2, "", line)


def test_what_is_typed_is_not_obeyed_by_the_terminal() -> None:
    code, out, err = mltop("help", "\x1b[2J\nmltop: all is well")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.rstrip("\n").isprintable()


@pytest.mark.parametrize("args", [["help", "keys", "config"], ["help", "--json"]])
def test_what_it_does_not_take(args: list[str]) -> None:
    code, out, err = mltop(*args)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
