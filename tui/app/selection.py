"""The nodes that the user has marked, and which nodes a key's action goes to: the one looked at, those, or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.model.gpu import IN_USE_BUSY, IN_USE_BYTES
from mltop.probes.model.probe_kinds import PROBE_OF
from mltop.probes.model.units import counted
from mltop.probes.model.vocabulary import ProbeKind
from mltop.probes.reach.view import FleetView


@dataclass(frozen=True)
class Looked:
    """The one thing that the user looks at, wherever: a node, one of its GPUs, or a process. "", None and 0: none."""

    node: str = ""
    gpu: int | None = None
    pid: int = 0


class Selection(set[str]):
    """The marked nodes; those that are gone are simply left out. Lives in the UI loop only."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted(self))

    def unmark(self) -> bool:
        """Unmark all nodes; False where none was marked."""
        had_some = bool(self)
        self.clear()
        return had_some


TRIED_AGAIN = ("lost", "refused")


@dataclass(frozen=True)
class Scope:
    """The nodes of an action, none means all. ``words`` describe them, "" when all is what anybody expects."""

    nodes: tuple[str, ...] = ()
    words: str = ""


def dump_scope(view: FleetView, selection: Selection, filtered: bool) -> Scope:
    """The marked nodes that are still watched. A filter hides rows, it does not narrow a dump, and ``words`` say so."""
    watched = [node.node for node in view.nodes]
    marked = tuple(node for node in watched if node in selection)
    if marked and len(marked) < len(watched):
        return Scope(marked, f"of {counted(len(marked), 'marked node')}")
    everything = f"of all {len(watched)} nodes" if len(watched) > 1 and (filtered or marked) else ""
    return Scope((), everything)


def retry_scope(view: FleetView, selection: Selection) -> Scope:
    """The marked nodes, or all, as far as they are lost or refused; where there are none, ``words`` say so."""
    marked = [node for node in view.nodes if node.node in selection]
    failed = tuple(node.node for node in marked or view.nodes if node.state.state in TRIED_AGAIN)
    if failed:
        return Scope(failed, f"trying {counted(len(failed), 'node')} again: {first_of(failed)}")
    return Scope((), f"no {'marked ' if marked else ''}node is lost or refused: nothing to try again")


@dataclass(frozen=True)
class ProbeScope:
    """Where a probe would run. ``nodes``, ``gpus``: none means all, as in ProbeWanted.

    ``names``: of the nodes that it means now; ``seen_gpus``, ``in_use``: of their GPUs; ``silent``: nodes that do not
    answer; ``unseen``: of which no sample came yet, so that their GPUs are not counted.
    """

    words: str
    names: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    seen_gpus: int = 0
    in_use: int = 0
    silent: tuple[str, ...] = ()
    unseen: int = 0


def probe_scope(
    view: FleetView, selection: Selection, kind: ProbeKind, node: str = "", gpu: int | None = None
) -> ProbeScope:
    """``node`` and ``gpu``: what the user looks at; pairs are measured of the marked nodes, or all, all the same."""
    watched = {each.node: each for each in view.nodes}
    marked = tuple(name for name in watched if name in selection)
    only: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    if node in watched and PROBE_OF[kind].least_nodes == 1:
        only, words = (node,), node
        if gpu is not None and PROBE_OF[kind].one_gpu:
            gpus, words = (str(gpu),), f"GPU {gpu} of {node}"
    elif marked:
        only, words = marked, f"{counted(len(marked), 'marked node')}: {first_of(marked)}"
    else:
        names = tuple(watched)
        words = names[0] if len(names) == 1 else f"all {len(names)} nodes: {first_of(names)}"
    views = [watched[name] for name in only] or view.nodes
    seen_gpus = [seen for each in views for seen in each.gpus if not gpus or str(seen.index) in gpus]
    # Decided as the nodes do before they start a probe, as far as it can be seen from here.
    in_use = [(seen.busy or 0.0) > IN_USE_BUSY or (seen.memory_used_bytes or 0) > IN_USE_BYTES for seen in seen_gpus]
    return ProbeScope(
        words,
        names=tuple(each.node for each in views),
        nodes=only if len(only) < len(watched) else (),
        gpus=gpus,
        seen_gpus=len(seen_gpus),
        in_use=sum(in_use),
        silent=tuple(each.node for each in views if each.state.state not in ("live", "stale")),
        unseen=sum(each.newest is None for each in views),
    )


def first_of(names: Sequence[str], most: int = 3) -> str:
    """ "n1, n2, n3 and 4 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
