"""The hub's deadlines and counts in one place; tests shorten them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Times in seconds.

    ``connecting``, ``per_gate``: channels between start and hello at once, in all and behind one jump host; one that
    takes longer than ``slot_s`` gives its place to the next. ``spawns_per_turn``: processes started between two looks
    at what arrived. ``hello_s``: from the last sign of progress to the agent's hello. ``silence_s``: without any frame
    the link counts as dead. ``ping_s``: between two pings. ``settled_s``: a channel that lived so long starts its
    backoff anew. ``end_grace_s``: from closing a process's stdin to killing it.
    """

    connecting: int = 32
    per_gate: int = 8
    slot_s: float = 2.0
    spawns_per_turn: int = 2
    hello_s: float = 15.0
    silence_s: float = 20.0
    ping_s: float = 5.0
    retry_first_s: float = 1.0
    retry_most_s: float = 60.0
    settled_s: float = 30.0
    end_grace_s: float = 1.0
