"""Answers of nodes: nothing that came is left unread, whenever its reader looks."""

from __future__ import annotations

from typing import Any

import pytest

from mltop.probes.agent.protocol import Message
from mltop.probes.model.receipt import MOST_SENTENCE
from mltop.probes.reach.requests import Pending
from tests.spoiled import NASTY


def pending(*nodes: str) -> Pending:
    return Pending(nodes, lambda: None)


def test_a_node_is_open_until_its_last_answer_was_read() -> None:
    asked = pending("n1", "n2")
    asked.put("n1", Message("part"))
    asked.put("n1", Message("done"))
    assert asked.open_nodes == ("n1", "n2")
    assert [answer.message.kind for answer in asked.answers(0.0)] == ["part", "done"]
    assert asked.open_nodes == ("n2",)


def test_only_who_has_not_answered_fails() -> None:
    asked = pending("n1", "n2")
    asked.put("n1", Message("done"))
    asked.fail_all("mltop is ending")
    answers = {answer.node: answer.message for answer in asked.answers(10.0)}
    assert (answers["n1"].kind, answers["n2"].error) == ("done", "mltop is ending")
    assert asked.open_nodes == ()


def answer_with(data: dict[str, Any]) -> Message:
    asked = pending("n1")
    asked.put("n1", Message("done", data=data))
    (answer,) = asked.answers(0.0)
    assert asked.open_nodes == ()
    return answer.message


def test_texts_of_an_answer_are_plain_wherever_they_are() -> None:
    made = answer_with({f"a{NASTY}": [{"why": f"x{NASTY}", "deep": [[f"y{NASTY}"]]}], "long": "z" * 1_000_000})
    assert made.kind == "done"
    (name, entries), (_, long) = made.data.items()
    texts = [name, entries[0]["why"], entries[0]["deep"][0][0]]
    assert [text[:17] for text in texts] == [f"{letter}[red]x[/red] mlt" for letter in "axy"]
    assert all(text.isprintable() for text in texts)
    assert len(long) == MOST_SENTENCE


def test_numbers_and_what_has_none_stay_as_they_are() -> None:
    data = {"results": [{"pid": 7, "gpus": [0, 1], "share": 0.5, "ended": True, "why": None}], "at": 5.0}
    assert answer_with(data).data == data


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"core_bytes": 10**30}, "it says core_bytes is a number of 31 digits"),
        ({"facts": [{"pid": -(10**30)}]}, "it says pid is a number of 31 digits"),
        ({"at": -1.0}, "it says at is -1.0"),
        ({f"\x1b[2J{NASTY}": 1e300}, "it says [red]x[/red] mltop: forged line"),
        ({"deep": nested(100_000)}, "recursion"),
    ],
    ids=["large", "small", "no time", "name", "deep"],
)
def test_an_answer_with_what_cannot_be_is_refused(data: dict[str, Any], why: str) -> None:
    message = answer_with(data)
    assert message.kind == "error" and message.error.startswith("its answer is refused: ") and why in message.error
    assert message.data == {} and message.error.isprintable()
