"""What to do about what is wrong, in words: on the screen mltop's own part of it is a key, in reports a command.

Keys in sentences are written as the user has set them (``KEYCAPS``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mltop.probes.model.vocabulary import COMMANDS, Act

# A key of each action that a sentence names; a test compares it with the bindings.
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "overview": "1",
        "node": "2",
        "ranks": "3",
        "stacks": "4",
        "events": "6",
        "probes": "7",
        "incidents": "8",
        "dump": "t",
        "matmul": "M",
        "all_reduce": "A",
        "pause": "p",
        "now": "End",
        "back": "Esc",
        "help": "?",
        "quit": "q",
        "filter": "/",
        "retry": "R",
        "log": "l",
        "open": "Enter",
        "top": "g",
        "signal": "F9",
        "unreadable": "u",
        "compare": "x",
        "ras": "i",
        "next_table": "Tab",
        "dump_once": "y",
        "always": "a",
        "no_dump": "n",
    }
)


class Keycaps:
    """By the name of the action. Whoever draws sets the user's before the first line is made."""

    def __init__(self) -> None:
        self._chosen: Mapping[str, str] = {}

    def use(self, chosen: Mapping[str, str]) -> None:
        """``chosen``: the keys that the user gives to actions, as they are written for people."""
        self._chosen = dict(chosen)

    def __getitem__(self, action: str) -> str:
        return self._chosen.get(action) or DEFAULTS[action]


KEYCAPS = Keycaps()

# What stands on the screen in place of the command: the action whose key it is, and what that does. "stacks": where a
# dump of them is not there yet.
_ON_SCREEN: Mapping[Act, tuple[str, str]] = MappingProxyType(
    {
        "stacks": ("dump", "dumps all stacks"),
        "node": ("node", "shows its node"),
        "findings": ("incidents", "lists all incidents"),
        "probe_pairs": ("all_reduce", "measures which ranks are slow"),
        "probe_all_reduce": ("all_reduce", "measures all-reduce"),
    }
)
_DUMPED: Mapping[Act, tuple[str, str]] = MappingProxyType({**_ON_SCREEN, "stacks": ("stacks", "shows all stacks")})
# The acts that only lead to a pane: on that pane they say nothing.
_LEAD_TO: Mapping[str, frozenset[Act]] = MappingProxyType(
    {"stacks": frozenset({"stacks"}), "node": frozenset({"node"}), "incidents": frozenset({"findings"})}
)
_ON_MACHINES: frozenset[Act] = frozenset({"stacks", "probe_pairs", "probe_all_reduce"})


def keys_on(pane: str = "", *, dumped: bool = False, recorded: bool = False) -> Mapping[Act, str]:
    """What is said on a pane, "": on any, with the user's keys. ``dumped``: there are stacks to be shown;
    ``recorded``: there is no machine to ask.
    """
    words = _DUMPED if dumped else _ON_SCREEN
    left_out = _LEAD_TO.get(pane, frozenset()) if pane != "stacks" or dumped else frozenset()
    if recorded:
        left_out |= _ON_MACHINES - (frozenset({"stacks"}) if dumped else frozenset())
    return {act: f"{KEYCAPS[key]} {does}" for act, (key, does) in words.items() if act not in left_out}


def advice(act: Act, action: str, words: Mapping[Act, str] = COMMANDS) -> str:
    """ "mltop stacks; run: strace -p 5", or with the key in place of the command."""
    return "; ".join(filter(None, (words.get(act, ""), action)))
