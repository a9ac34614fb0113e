"""What the user has chosen on the screen: what was answered with "always", theme, order and columns of tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.tui.state import BadState, exclusive, read_state, state_file, write_state

FILE = "choices.json"
MOST_BYTES = 1 << 16


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


def read_choices() -> Choices:
    """Nothing is chosen where there is no such file. Raises BadState."""
    import msgspec

    path = state_file(FILE)
    data = read_state(path, MOST_BYTES)
    if data is None:
        return Choices()
    try:
        return msgspec.json.decode(data, type=Choices)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadState(f"{path}: is not what mltop wrote (move it away to begin a new one)") from None


def change_choices(change: Callable[[Choices], Choices]) -> None:
    """Read, change and write them while no other mltop does. Raises BadState."""
    path = state_file(FILE)
    with exclusive(path):
        write_state(path, json.dumps(asdict(change(read_choices()))) + "\n")
