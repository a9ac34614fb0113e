"""Which node or rank is to blame when nodes cannot reach each other, or a round of collectives fails.

One dead or stopped rank makes all others wait, or lose their connections: those are its victims and are not named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.judge.nodes import folded
from mltop.probes.model.probe import RankState

STRONG = ("died", "killed", "stopped", "stuck")
ALL_PAIRS_UP_TO = 32  # nodes: 992 connections in all
# Who cannot connect to whom, and why: {from: {to: reason}}.
Unreached = Mapping[str, Mapping[str, str]]

_FIXES = {
    "killed": "if nobody killed it: the kernel's log says whether memory ran out (dmesg | grep -i 'out of memory')",
    "stuck": "the kernel's log may say more (dmesg); such a process ends only when the driver or file system answers",
}
_NETWORK_FIX = (
    "look at the network between these nodes: a firewall that takes away open connections, a link that went down, a"
    " full or broken switch"
)


@dataclass
class Cause:
    """``rank`` None: a node, or (``node`` "" as well) nobody, the network between them."""

    node: str
    rank: int | None
    stage: str
    why: str
    fix: str = ""


def causes(states: Sequence[RankState], gone: Mapping[str, str]) -> list[Cause]:
    """``states``: of all ranks of a group whose node answered; ``gone``: node -> why it did not. Never empty."""
    furthest = max(states, key=lambda state: (state.begun, state.stage), default=None)
    stage = furthest.stage if furthest is not None and furthest.stage else "init"
    blamed = [Cause(node, None, stage, why) for node, why in gone.items()]
    blamed += [_of(state, stage) for state in states if state.kind in STRONG]
    for kind in ("raised", "aborted"):
        blamed = blamed or [_of(state, stage) for state in states if state.kind == kind]
    return blamed or _behind(states) or [_network(states, stage)]


def is_clear(states: Sequence[RankState], gone: Mapping[str, str]) -> bool:
    """Whether somebody is to blame for more than being late."""
    return bool(gone) or any(state.kind in (*STRONG, "raised", "aborted") for state in states)


def _of(state: RankState, stage: str) -> Cause:
    return Cause(state.node, state.rank, state.stage or stage, state.why, _FIXES.get(state.kind, ""))


def _behind(states: Sequence[RankState]) -> list[Cause]:
    """Ranks that did not come as far as others, who wait for them."""
    running = [state for state in states if state.kind in ("waits", "absent", "disconnected")]
    furthest = max(running, key=lambda state: state.begun, default=None)
    late = [state for state in running if furthest and state.begun < furthest.begun]
    if furthest is None or not late:
        return []
    if len(late) > 1 and all(state.kind == "waits" and state.begun == furthest.begun - 1 for state in late):
        # Several ranks within one step of the others: they move, and the time was too short.
        why = f"the ranks were not done in time: they are in {step(late[0])} or the one after it, and move"
        return [Cause("", None, furthest.stage, why, "fewer ranks than cores, smaller sizes, or a longer --timeout")]
    waiting = sum(state.begun == furthest.begun for state in running)
    whom = "another rank waits" if waiting == 1 else f"{waiting} others wait"
    return [
        Cause(
            state.node,
            state.rank,
            furthest.stage,
            "its node has not begun the round"
            if state.kind == "absent"
            else f"did not come to {step(furthest)}, in which {whom} for it; it is in {step(state)}",
        )
        for state in late
    ]


def _network(states: Sequence[RankState], stage: str) -> Cause:
    lost = [state for state in states if state.kind == "disconnected"]
    nodes = folded(state.node for state in lost or states)
    if lost:
        why = f"connections were lost between ranks of {nodes}, but no rank died: {lost[0].why}"
        return Cause("", None, stage, why)
    waits = [state for state in states if state.kind == "waits"]
    where = step(waits[0]) if waits else "the round"
    why = f"no rank is behind: {len(waits)} ranks of {nodes} are in {where} and nothing arrives any more"
    return Cause("", None, stage, why, _NETWORK_FIX)


def step(state: RankState) -> str:
    """ "the 7th collective of measure 4 MiB"."""
    if state.stage in ("", "init"):
        return state.stage or "the beginning"
    number = state.in_stage
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"the {number}{ending} collective of {state.stage}" if number else f"the beginning of {state.stage}"


def targets(names: Sequence[str], own: str) -> list[str]:
    """The nodes to which ``own`` connects: all; in a big job the next, the 2nd, 4th, 8th … next, so log2 N each."""
    if len(names) <= ALL_PAIRS_UP_TO:
        return [name for name in names if name != own]
    at, count = names.index(own), len(names)
    steps = [1 << power for power in range(count.bit_length()) if 1 << power < count]
    return [names[(at + step) % count] for step in steps]


def accused(cannot: Unreached, addresses: Mapping[str, str]) -> dict[str, str]:
    """The fewest nodes that explain every failed connection (greedy), with a sentence for each.

    A single failed connection accuses the node that could not be reached.
    """
    left = {(source, target): why for source, reasons in cannot.items() for target, why in reasons.items()}
    sentences: dict[str, str] = {}
    while left:
        # The node of most failed connections; of several the one that most could not reach, then by name.
        into = Counter(target for _, target in left)
        failed = into + Counter(source for source, _ in left)
        node = min(failed, key=lambda node: (-failed[node], -into[node], node))
        explained = {pair: why for pair, why in left.items() if node in pair}
        sentences[node] = _sentence(node, explained, addresses)
        left = {pair: why for pair, why in left.items() if node not in pair}
    return sentences


def _sentence(node: str, pairs: Mapping[tuple[str, str], str], addresses: Mapping[str, str]) -> str:
    into = {source: why for (source, target), why in pairs.items() if target == node}
    out_of = {target: why for (source, target), why in pairs.items() if source == node}
    parts = []
    if into:
        where = f"{node} ({addresses.get(node, 'address unknown')})"
        parts.append(f"{folded(into)} cannot connect to {where}: {next(iter(into.values()))}")
    if out_of:
        parts.append(f"{node} cannot connect to {folded(out_of)}: {next(iter(out_of.values()))}")
    return "; ".join(parts)
