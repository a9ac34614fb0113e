"""What leaves for the terminal outside of the screen: clean lines, also where something fails that nobody expected."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mltop.tui.app import output
from tests.spoiled import NASTY


def program(code: str, **env: str) -> tuple[int, list[str], list[str]]:
    """Exit code and lines of a program that prints as `mltop` does."""
    begin = "from mltop.tui.app import output; output.open_streams(); output.one_line_for_crashes()\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{begin}NASTY = {NASTY!r}\n{code}"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
        timeout=60,
        check=False,
    )
    out, err = (text.decode(env.get("PYTHONIOENCODING", "utf-8")) for text in (done.stdout, done.stderr))
    for line in [*out.splitlines(), *err.splitlines()]:
        assert line.isprintable() and not line.startswith("mltop: forged"), line
    return done.returncode, out.splitlines(), err.splitlines()


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError(NASTY)",
        "import threading as t\nthread = t.Thread(target=lambda: {}[NASTY], name=NASTY)\nthread.start(); thread.join()",
        "class Odd:\n    def __del__(self):\n        raise ValueError(NASTY)\nOdd()",
    ],
)
def test_what_python_would_print_of_an_error_is_one_line(code: str) -> None:
    _, out, err = program(code)
    assert out == [] and len(err) == 1
    assert err[0].startswith("mltop: ") and "please report" in err[0]


def test_every_way_to_print_cleans() -> None:
    ours = "ours\\ntwo\\x1b[2J"
    code = f"output.put(NASTY); output.say(NASTY); output.put_lines('{ours}')"
    _, out, err = program(code)
    assert out[0].startswith("[red]x[/red] mltop: forged line") and out[1:] == ["ours", "two"]
    assert err[0].startswith("mltop: [red]x[/red] mltop: forged line")


def test_the_line_that_is_written_over_has_no_sequence_but_ours(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_over(NASTY, 20)
    output.write_over("", 0)
    assert capsys.readouterr().err == "\r\x1b[K[red]x[/red] mltop:\r\x1b[K"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_a_stream_cannot_encode_is_no_error(encoding: str) -> None:
    code, out, _ = program("output.put('日本 é'); output.put_json({'a': '日本'})", PYTHONIOENCODING=encoding)
    assert code == 0 and json.loads(out[1]) == {"a": "日本"}


def test_json_has_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    output.put_json(
        {"text": NASTY, "nothing": float("nan"), "deep": [float("inf"), {"more": "\ud83d"}], "del": "\x7f\x9b"}
    )
    printed = capsys.readouterr().out
    assert printed.isascii() and printed.rstrip("\n").isprintable()
    found = json.loads(printed)
    assert found["text"] == NASTY.replace("\udcff", "\ufffd")
    assert (found["nothing"], found["deep"]) == (None, [None, {"more": "\ufffd"}])


def test_an_error_that_nobody_expected_has_an_exit_code_of_its_own() -> None:
    """click asks for a word that is not there."""
    done = subprocess.run(
        [sys.executable, "-m", "mltop"],
        env={**os.environ, "_MLTOP_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 70 and line.startswith("mltop: KeyError: 'COMP_WORDS'") and "please report" in line
