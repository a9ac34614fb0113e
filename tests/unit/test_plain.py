"""Words from nodes are fit for a terminal, wherever they go."""

from __future__ import annotations

from mltop.probes.agent.protocol import Boot, Message
from mltop.probes.reach.ending import MOST_REASON, Ending
from mltop.probes.reach.pending import MOST_ERROR, Pending
from mltop.probes.reach.plain import MOST_SAID, make_plain, plain_text

NASTY = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\nline two\t\u202eend\x9b\x00"


def test_what_a_terminal_would_obey_is_gone() -> None:
    assert plain_text(NASTY) == "red line two end"
    assert plain_text("\x1b]never ended " + "x" * 100) == ""
    assert plain_text("été 中文 …") == "été 中文 …"


def test_it_is_bounded() -> None:
    long = plain_text("A" * 5_000_000)
    assert len(long) == MOST_SAID and long.endswith("A…")
    assert plain_text("A" * MOST_SAID) == "A" * MOST_SAID


def test_endings_and_answers_are() -> None:
    ending = Ending(NASTY + "A" * 5000, NASTY)
    assert ending.fix == "red line two end" and len(ending.reason) == MOST_REASON
    pending = Pending(("n1",), lambda: None)
    pending.put("n1", Message("error", error=NASTY + "A" * 5000, fix=NASTY))
    (answer,) = pending.answers(1.0)
    assert answer.message.fix == "red line two end"
    assert len(answer.message.error) == len(pending.failed["n1"]) == MOST_ERROR


def test_a_boot_frame_is() -> None:
    boot = make_plain(Boot("m1\x1b[2J", "3", notes=[NASTY] * 1000))
    assert boot.machine == "m1" and boot.notes == ["red line two end"] * 20
