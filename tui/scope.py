"""Which nodes a key's action goes to: the marked ones, or all. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.reach.view import FleetView
from mltop.tui.selection import Selection

TRIED_AGAIN = ("lost", "refused")


@dataclass(frozen=True)
class Scope:
    """``nodes``: none means all. ``words``: what to say of it, "" when all is what anybody expects."""

    nodes: tuple[str, ...] = ()
    words: str = ""


def dump_scope(view: FleetView, selection: Selection, filtered: bool) -> Scope:
    """The marked nodes that are still watched; a filter hides rows, it does not narrow a dump, and that is said."""
    watched = [node.node for node in view.nodes]
    marked = tuple(node for node in watched if node in selection)
    if marked and len(marked) < len(watched):
        return Scope(marked, f"of {counted(len(marked), 'marked node')}")
    everything = f"of all {len(watched)} nodes" if len(watched) > 1 and (filtered or marked) else ""
    return Scope((), everything)


def retry_scope(view: FleetView, selection: Selection) -> Scope:
    """The marked nodes, or all, as far as they are lost or refused; nothing to try again: no nodes, and why."""
    marked = [node for node in view.nodes if node.node in selection]
    again = tuple(node.node for node in marked or view.nodes if node.state.state in TRIED_AGAIN)
    if again:
        return Scope(again, f"trying {counted(len(again), 'node')} again: {first_of(again)}")
    return Scope((), f"no {'marked ' if marked else ''}node is lost or refused: nothing to try again")


def counted(number: int, what: str) -> str:
    """ "3 marked nodes", "1 node"."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def first_of(names: Sequence[str], most: int = 3) -> str:
    """ "n1, n2, n3 and 4 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
