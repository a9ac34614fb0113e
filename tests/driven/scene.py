"""What one rule is driven by: a change to a fake machine that an agent is watching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.driven.node import Node


@dataclass(frozen=True)
class Scene:
    """``on``: the node; ``words``: what happens to it; ``act`` does that, once.

    ``moves`` is called again and again from the start on, with the seconds since ``act`` and the node's turn
    (negative seconds before it). ``apart_s``: for what takes minutes the samples are judged a second time, as if they
    had come so many seconds apart; 1: as they came, the rule fires while the test looks on. ``vacated``: they are
    judged as `mltop check` does it after a job.
    """

    rule: str
    on: str
    words: str
    act: Callable[[Node], object]
    apart_s: int = 1
    vacated: bool = False
    moves: Callable[[Node, float, int], object] | None = None
