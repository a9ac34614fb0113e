"""What to do about what is wrong, in words: on the screen mltop's own part of it is a key, in reports a command."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mltop.probes.model.vocabulary import COMMANDS, Act

# What stands on the screen in place of the command. "stacks": where a dump of them is not there yet.
KEYS: Mapping[Act, str] = MappingProxyType(
    {
        "stacks": "t dumps all stacks",
        "node": "2 shows its node",
        "findings": "8 lists all that is wrong",
        "probe_pairs": "A measures which ranks are slow",
        "probe_all_reduce": "A measures all-reduce",
    }
)
_DUMPED: Mapping[Act, str] = MappingProxyType({**KEYS, "stacks": "4 shows all stacks"})
# The acts that only lead to a pane: on that pane they say nothing.
_LEAD_TO: Mapping[str, frozenset[Act]] = MappingProxyType(
    {"stacks": frozenset({"stacks"}), "node": frozenset({"node"}), "incidents": frozenset({"findings"})}
)
_ON_MACHINES: frozenset[Act] = frozenset({"stacks", "probe_pairs", "probe_all_reduce"})


def keys_on(pane: str, *, dumped: bool, recorded: bool = False) -> Mapping[Act, str]:
    """What is said on a pane. ``dumped``: there are stacks to be shown; ``recorded``: there is no machine to ask."""
    words = _DUMPED if dumped else KEYS
    left_out = _LEAD_TO.get(pane, frozenset()) if pane != "stacks" or dumped else frozenset()
    if recorded:
        left_out |= _ON_MACHINES - (frozenset({"stacks"}) if dumped else frozenset())
    return {act: text for act, text in words.items() if act not in left_out}


def advice(act: Act, action: str, words: Mapping[Act, str] = COMMANDS) -> str:
    """ "mltop stacks; strace -p 5 shows what it waits for", or with the key in place of the command."""
    return "; ".join(filter(None, (words.get(act, ""), action)))
