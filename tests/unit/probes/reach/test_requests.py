"""Answers of nodes: nothing that came is left unread, whenever its reader looks."""

from __future__ import annotations

from mltop.probes.agent.protocol import Message
from mltop.probes.reach.requests import Pending


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
