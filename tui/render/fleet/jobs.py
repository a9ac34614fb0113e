"""The nodes of a fleet by job, the gravest job first, inside it by name; and what each job does, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.judge.states import JobStates, States
from mltop.probes.model import JobKey
from mltop.probes.model.incident import Doing
from mltop.probes.model.units import counted, seconds
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell
from mltop.tui.render.fleet.heat import natural
from mltop.tui.render.ranks import ORDER_OF_STATES
from mltop.tui.render.states import DOING, PERHAPS_STALLED

NO_JOB = "no job"


@dataclass(frozen=True)
class Group:
    """``about``: how many nodes, and what its ranks do; ``still``: how the job stands, and since when. ``job``: None of
    nodes without one, and of all nodes.
    """

    title: str
    about: tuple[Cell, ...]
    nodes: tuple[NodeView, ...]
    job: JobKey | None = None
    still: Doing | None = None

    @property
    def still_since(self) -> float | None:
        """Unix s."""
        return self.still.since if self.still is not None else None


Key = tuple[str, "int | None", str]  # job, uid, place


_UNHEARD: Key = ("", None, "?")  # nodes that have not answered yet


class Grouping:
    """Remembers the order of the groups while nodes, jobs and states are the same."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[float, Key | None]] = {}  # by node: of which sample, and its job

    def of(self, views: Sequence[NodeView], states: States, now: float | None = None) -> list[Group]:
        """``now``: unix s, for how long a job that may have stalled makes no progress."""
        by_job: dict[Key | None, list[NodeView]] = {}
        for view in views:
            by_job.setdefault(self._job(view, states) if view.newest is not None else _UNHEARD, []).append(view)
        named = sorted(by_job.items(), key=lambda pair: _gravest_first(pair[0], states))
        return [_group(key, nodes, states, now) for key, nodes in named]

    def all_by_name(self, views: Sequence[NodeView]) -> Group:
        return Group("", (), _in_order(views))

    def standing(self, view: NodeView, states: States) -> JobStates | None:
        """What the job of a node does, where it stands still."""
        key = self._job(view, states)
        known = _states(key, states) if key is not None else None
        return known if known is not None and (known.stands or known.gpus) else None

    def _job(self, view: NodeView, states: States) -> Key | None:
        """The job of the node's ranks; where there are several, of most."""
        ranks, sampled_at = view.ranks, view.sampled_at
        if not ranks or sampled_at is None:
            return None
        before = self._jobs.get(view.node)
        if before is not None and before[0] == sampled_at:
            return before[1]
        first, last = ranks[0], ranks[-1]
        job, uid = first.job, first.uid
        if (last.job, last.uid) != (job, uid):
            (job, uid), _ = Counter((rank.job, rank.uid) for rank in ranks).most_common(1)[0]
        place = view.node if states.is_placed(view.node, job, uid) else ""
        self._jobs[view.node] = sampled_at, (job, uid, place)
        return job, uid, place


def _in_order(views: Sequence[NodeView]) -> tuple[NodeView, ...]:
    return tuple(sorted(views, key=lambda view: natural(view.node)))


def _states(key: Key | None, states: States) -> JobStates | None:
    return states.job(key[2], key[0], key[1]) if key is not None else None


def _gravest_first(key: Key | None, states: States) -> tuple[int, object]:
    if key is None or key == _UNHEARD:
        return len(ORDER_OF_STATES) + (key is not None), natural("")
    known = _states(key, states)
    state = "unknown" if known is None else "stands" if known.processes or known.gpus else known.usual.state
    return ORDER_OF_STATES.index(state), natural(key[0])


def _group(key: Key | None, views: Sequence[NodeView], states: States, now: float | None) -> Group:
    nodes = Cell(f"{counted(len(views), 'node')}  ", "dim")
    if key is None or key == _UNHEARD:
        return Group(NO_JOB if key is None else "no answer", (nodes,), _in_order(views))
    ranks = sum(len(view.ranks) for view in views)
    known = _states(key, states)
    still = known.usual if known is not None and known.stands else None
    about = (nodes, *_perhaps_stalled(still, now), *_doing(ranks, known))
    return Group(key[0] or "job", about, _in_order(views), JobKey(key[0], key[1]), still)


def _perhaps_stalled(still: Doing | None, now: float | None) -> tuple[Cell, ...]:
    """ "STALLED? 12s", as line 1 says it: no incident does yet."""
    if still is None or still.state != "quiet":
        return ()
    age = f" {seconds(float(int(max(0.0, now - still.since))))}" if now is not None and still.since is not None else ""
    return (Cell(f"{PERHAPS_STALLED}{age}  ", "warn"),)


def _doing(ranks: int, known: JobStates | None) -> tuple[Cell, ...]:
    """ "455 ranks wait, 1 stuck"."""
    if known is None:
        return (Cell(counted(ranks, "rank"), "dim"),)
    word, style = _PLURALS.get(known.usual.state, DOING[known.usual.state])
    accused = Counter(doing.state for doing in {**known.ranks}.values() if doing.state in ("stands", "alone", "ended"))
    others = max(0, ranks - sum(accused.values()))
    cells = [Cell(f"{counted(others, 'rank')} {word}", style or "dim")]
    for state, count in accused.items():
        cells += [Cell(", "), Cell(f"{count} {DOING[state][0]}", DOING[state][1])]
    return tuple(cells)


# What several ranks do.
_PLURALS = {
    "works": ("work", "dim"),
    "waits": ("wait", "waits"),
    "stalled": ("are stuck", "waits"),
    "quiet": ("make no progress", "warn"),
    "starting": ("start", "dim"),
    "unknown": ("", "dim"),
}
