"""Which rank or node is to blame when a round fails: from what every rank was doing to sentences. Pure functions.

One dead or stopped rank makes all others wait, or lose their connections: those are its victims and are not named.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mltop.probes.active import endings
from mltop.probes.active.all_reduce.connections import named

STRONG = ("died", "killed", "stopped", "stuck")
# What gloo, NCCL and torch's store say when another rank is gone or late.
LOST = (
    *("connection closed", "connection reset", "reset by peer", "connection refused", "socket is not connected"),
    *("connectfullmesh", "broken pipe", "timed out", "timeout", "failed to recv"),
    *("remote process exited", "ncclremoteerror", "nccl communicator was aborted"),
)

_NETWORK_FIX = (
    "look at the network between these nodes: a firewall that takes away open connections, a link that went down, a"
    " full or broken switch"
)


@dataclass
class RankState:
    """``rank``: of all ranks; ``kind``: absent (its node has not begun the round) | waits | done | died | killed
    (SIGKILL) | stopped (state T) | stuck (state D) | aborted | raised (an exception of its own) | disconnected
    (because of others).
    ``begun``: steps begun in this round, the same order in all ranks; ``in_stage`` of them in ``stage``.
    """

    rank: int
    node: str
    kind: str
    stage: str = ""
    begun: int = 0
    in_stage: int = 0
    why: str = ""


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


def death(status: int, output: str) -> tuple[str, str]:
    """The kind (died, killed, aborted, disconnected) and the words. ``status``: of waitpid(2)."""
    words = endings.last_words(output)
    number = status & 0x7F
    if number == signal.SIGABRT:
        # gloo's own threads end the process when a peer is gone.
        kind = "disconnected" if is_lost(words) else "aborted"
        return kind, "died: aborted (SIGABRT)" + (f": {words}" if words else "")
    if number:
        kind, how = ("killed", "killed") if number == signal.SIGKILL else ("died", "ended")
        return kind, f"died: {how} ({endings.signal_name(number)})"
    return "died", f"died: ended with exit code {status >> 8}" + (f": {words}" if words else "")


def is_lost(text: str) -> bool:
    """Is this what a library says when the fault is another rank's?"""
    return any(words in text.lower() for words in LOST)


def _of(state: RankState, stage: str) -> Cause:
    fix = ""
    if state.kind == "killed":
        fix = "if nobody killed it: the kernel's log tells whether memory ran out (dmesg | grep -i 'out of memory')"
    elif state.kind == "stuck":
        fix = "the kernel's log tells more (dmesg); such a process ends only when the driver or file system answers"
    return Cause(state.node, state.rank, state.stage or stage, state.why, fix)


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
    nodes = named(sorted({state.node for state in lost or states}))
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
