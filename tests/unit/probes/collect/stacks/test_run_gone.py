"""Which silent nodes of a dump count as gone."""

from __future__ import annotations

import pytest

from mltop.probes.investigate.stacks import is_gone
from mltop.probes.model import NodeState


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        (NodeState("h01", "live", "", 0.4), False),
        (NodeState("h01", "stale", "no sample for 4 s", 4.0), False),
        (NodeState("h01", "stale", "no sample for 14 s", 14.0), True),
        (NodeState("h01", "lost", "connection refused", 14.0), True),
        (NodeState("h01", "refused", "login refused"), True),
        (NodeState("h01", "connecting", "starting ssh"), False),
    ],
)
def test_a_node_that_went_away_is_not_taken_for_a_slow_one(state: NodeState, gone: bool) -> None:
    assert is_gone(state) is gone
