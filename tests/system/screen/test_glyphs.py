"""Which characters a program may draw is what its terminal can show."""

import os
import subprocess
import sys

import pytest

from tests.documents import ROOT


@pytest.mark.parametrize(("encoding", "expected"), [("ascii", "- _ ==== ?"), ("utf-8", "– ▁ ━━━━ é")])
def test_a_program_on_a_terminal_without_utf8_draws_ascii(encoding, expected):
    """The set is chosen once per process, so a process of its own is asked."""
    code = (
        "from mltop.probes.model import units; from mltop.tui.render import glyphs, cells\n"
        "print(ascii(' '.join([cells.printable(units.UNKNOWN), glyphs.height(0), glyphs.bar(1, 4),"
        " cells.clip('\\xe9', 1)])))"
    )
    env = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT / ".dev")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii(expected)
