"""A node that answers everything it is asked with what a terminal would obey: none of it comes through.

Of stacks and records the texts are cleaned where they are drawn (tests/system/commands/test_hostile_text.py).
"""

from __future__ import annotations

from typing import get_args

import pytest

from mltop.probes.agent.protocol import Operation
from mltop.probes.investigate.acting import RankProcess, diagnose, log_tail, send_signal, signal_facts
from mltop.probes.model.acts import DiagResult
from tests.fakes.agents import hostile, program
from tests.hubs import DEADLINE_S, await_state, opened
from tests.spoiled import texts_of
from tests.system.reach.test_acting import done

PROCESS = RankProcess("n1", 5, 100.0, 0)


def test_no_operation_lets_through_what_a_terminal_would_obey() -> None:
    with opened(hostile()) as hub:
        await_state(hub, "live")
        for op in get_args(Operation):
            answers = list(hub.request(op, {}, ["n1"]).answers(DEADLINE_S))
            assert [answer.message.kind for answer in answers] == ["part", "done"], op
            for answer in answers:
                texts = texts_of(answer.message.data)
                assert texts and all(text.isprintable() for text in texts), op
                assert any("forged" in text for text in texts), op


def test_what_runs_hand_on_is_plain_and_short() -> None:
    with opened(hostile()) as hub:
        await_state(hub, "live")
        (result,) = done(lambda take: send_signal(hub, "TERM", [PROCESS], take)).values()
        assert result.outcome == "denied" and result.why.startswith("eve") and result.why.isprintable()
        (facts,) = done(lambda take: signal_facts(hub, [PROCESS], take)).values()
        assert facts.core_pattern.startswith("/x") and facts.core_pattern.isprintable()
        assert len(facts.core_pattern) <= 300 and all(name.isprintable() for name in facts.caught)
        tails, error = done(lambda take: log_tail(hub, PROCESS, 10, take))
        assert error == "" and texts_of([tails[0].file, tails[0].why, tails[0].lines])
        assert all(text.isprintable() for text in [tails[0].file, tails[0].why, *tails[0].lines])


def test_a_diagnosis_that_names_gpus_is_told() -> None:
    with opened(hostile()) as hub:
        await_state(hub, "live")
        results, error = done(lambda take: diagnose(hub, "n1", take))
        assert error == ""
        assert results == [DiagResult(results[0].test, "fail", [0, 1], results[0].text)]
        assert results[0].test.startswith("memory[red]x") and results[0].test.isprintable()
        assert results[0].text.startswith("bad[red]x") and results[0].text.isprintable()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("{'tails': [{'file': '/o', 'size_bytes': 10**30}]}", "it says size_bytes is a number of 31 digits"),
        ("{'tails': [{'file': '/o', 'written_at': 10**400}]}", "it says written_at is a number of 401 digits"),
    ],
)
def test_numbers_that_cannot_be_are_refused(answer: str, why: str) -> None:
    code = f"""
hello(); beat()
for request in requests():
    if request.kind == "request": say(Message("done", node="n1", id=request.id, data={answer}))
"""
    with opened(program(code)) as hub:
        await_state(hub, "live")
        assert done(lambda take: log_tail(hub, PROCESS, 10, take)) == ([], f"its answer is refused: {why}")
