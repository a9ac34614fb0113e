"""What to do, in words: on the screen keys, in reports commands; never the pane that one is on."""

from __future__ import annotations

import pytest

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.incidents import words
from mltop.probes.model.vocabulary import COMMANDS, Act
from mltop.tui.render.advice import advice, keys_on
from tests.builders.scenes import fleet, hang, incidents, stalled


def test_the_screen_names_the_key_where_a_report_names_the_command() -> None:
    nodes = fleet()
    (found,) = incidents(nodes, hang(3), motions=(stalled(nodes),))
    assert found.act == "stacks" and "mltop" not in found.action
    assert advice(found.act, found.action).startswith("mltop stacks; run: ssh n0 strace -p 5003; kill it")
    assert advice(found.act, found.action, keys_on("overview", dumped=False)).startswith(
        "t dumps all stacks; run: ssh n0"
    )
    assert advice(found.act, found.action, keys_on("overview", dumped=True)).startswith(
        "4 shows all stacks; run: ssh n0"
    )


@pytest.mark.parametrize(
    ("act", "pane", "dumped", "recorded", "said"),
    [
        ("stacks", "stacks", True, False, ""),
        ("stacks", "stacks", False, False, "t dumps all stacks"),
        ("node", "node", False, False, ""),
        ("node", "overview", False, False, "2 shows its node"),
        ("findings", "incidents", False, False, ""),
        ("stacks", "overview", False, True, ""),
        ("stacks", "overview", True, True, "4 shows all stacks"),
        ("probe_all_reduce", "overview", True, True, ""),
    ],
)
def test_nobody_is_sent_to_the_pane_that_he_is_on_or_to_machines_of_a_recording(
    act: Act, pane: str, dumped: bool, recorded: bool, said: str
) -> None:
    assert advice(act, "", keys_on(pane, dumped=dumped, recorded=recorded)) == said


def test_what_mltop_does_itself_is_no_words_of_a_rule_or_of_a_judge() -> None:
    """So that both renderings exist of it."""
    commands = set(COMMANDS.values())
    texts = [rule.action for rule in ALL_RULES] + list(words._DO.values())
    assert [text for text in texts if any(command in text for command in commands)] == []
    assert set(keys_on()) == set(COMMANDS)
