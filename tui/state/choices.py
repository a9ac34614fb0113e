"""What the user has chosen on the screen: what was answered with "always", theme, order and columns of tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mltop.tui.state import JsonFile


@dataclass(frozen=True)
class Chosen:
    """``over``: what the configuration file said of it when it was chosen, None: nothing."""

    value: Any
    over: Any = None


@dataclass(frozen=True)
class Choices:
    """``dump_stalled``: the stacks of a job that stands still are dumped without a question. ``screen``: by the keys of
    the configuration ("theme", "sort.gpus").
    """

    dump_stalled: bool = False
    screen: dict[str, Chosen] = field(default_factory=dict)


CHOICES = JsonFile("choices.json", "what mltop wrote", Choices(), 1 << 16)
