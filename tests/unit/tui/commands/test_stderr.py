"""What a command says on stderr while it works."""

from __future__ import annotations

import pytest

from mltop.probes.model import NodeState
from mltop.probes.reach.view import NodeView
from mltop.tui.commands import live
from mltop.tui.commands.live import in_time


def test_nodes_that_fail_one_after_the_other_are_few_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    stderr = live.Stderr()
    states = [NodeState(f"h{number:04d}", "lost", "unknown host name") for number in range(1, 1002)]
    for number in range(0, 1001, 10):
        now += 0.18
        stderr.failures(NodeView(state) for state in states[: number + 1])
    stderr.last_failures(states)
    lines = capsys.readouterr().err.splitlines()
    assert 1 < len(lines) < 9
    assert lines[0].startswith("mltop: h[0001-")


def test_who_still_connects_at_the_end_was_not_reached() -> None:
    view = in_time(NodeView(NodeState("h1", "connecting", "starting ssh")), 3.2)
    assert view.state.reason == "not reached within 3 s (starting ssh)"
    early = in_time(NodeView(NodeState("h1", "connecting")), 0.04)
    assert early.state.reason == "not reached within 0.1 s"
    lost = NodeView(NodeState("h1", "lost", "no route"))
    assert in_time(lost, 3.2) is lost
