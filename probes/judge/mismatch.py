"""Step 4: every rank waits, but not in the same collective, or not called from the same lines."""

from __future__ import annotations

from collections.abc import Callable

from mltop.probes.judge import thresholds as limit
from mltop.probes.judge.frames import is_internal, place, where
from mltop.probes.judge.job import JobView, names, waiting_lines
from mltop.probes.judge.view import BACKWARD, RankView
from mltop.probes.model import Confidence, Culprit, Verdict

POINT_TO_POINT = frozenset(
    {"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"}
)
# What is waited for cannot be told from these: they may hide the same collective.
_GENERIC = frozenset({"work.wait", "wait_tensor", "cuda.synchronize", "store.wait", BACKWARD})

Sides = list[tuple[str, list[RankView]]]


def mismatch(job: JobView) -> Verdict | None:
    """The ranks in the rarer collective are suspects; two sides of equal size are both shown."""
    if not job.waiters or job.others:
        return None
    sides = _split(job.waiters, lambda view: view.waiting_in or "")
    if len(sides) == 1:
        return _different_lines(job)
    if any(operation in POINT_TO_POINT for operation, _ in sides):
        evidence = ["every rank waits, some for a neighbour (pipeline): stacks do not tell who is behind"]
        return Verdict("hang", [], waiting_lines(job.waiters), [], evidence + _describe(sides), "low")
    caps: tuple[Confidence, ...] = ("low",) if any(operation in _GENERIC for operation, _ in sides) else ()
    return _suspect(job, sides, "in different collectives", caps)


def _different_lines(job: JobView) -> Verdict | None:
    """The same operation reached on different ways through the user's code."""
    if job.waiters[0].waiting_in in POINT_TO_POINT:
        return None
    chains: dict[str, str] = {}

    def chain(view: RankView) -> str:
        key = view.now.key
        if key not in chains or not key:
            chains[key] = " < ".join(place(frame) for frame in view.now.frames if not is_internal(frame))
        return chains[key]

    sides = _split(job.waiters, chain)
    if len(sides) == 1:
        return None
    named = [(f"{views[0].waiting_in} from {way.partition(' < ')[0] or '?'}", views) for way, views in sides]
    if len({text for text, _ in named}) < len(named):  # the callers differ, not the line itself
        named = [(f"{views[0].waiting_in} from {way}", views) for way, views in sides]
    return _suspect(job, named, "in one operation, but at different places of the script", ())


def _split(views: list[RankView], text: Callable[[RankView], str]) -> Sides:
    """Views by text, the largest side first."""
    sides: dict[str, list[RankView]] = {}
    for view in views:
        sides.setdefault(text(view), []).append(view)
    return sorted(sides.items(), key=lambda side: -len(side[1]))


def _describe(sides: Sides) -> list[str]:
    shown = sides[: limit.EVIDENCE_PLACES]
    lines = [f"{names(views)} in {text}" for text, views in shown]
    return lines + ([f"and {len(sides) - len(shown)} more sides"] if len(sides) > len(shown) else [])


def _suspect(job: JobView, sides: Sides, how: str, caps: tuple[Confidence, ...]) -> Verdict:
    evidence = [f"every rank waits, {how}, and none moved {job.watched}", *_describe(sides)]
    waiting = waiting_lines(job.waiters)
    if len(sides[0][1]) == len(sides[1][1]):
        return Verdict("hang", both_sides(sides), waiting, [], evidence, "low")
    if len(sides[0][1]) < limit.MAJORITY_FIRM * len(job.waiters):
        caps = (*caps, "low")
    most = f"while {names(sides[0][1])} in {sides[0][0]}"
    culprits = [
        Culprit(view.rank, view.node, view.pid, f"in {text}, {most}", where(view.now))
        for text, views in sides[1:]
        for view in views
    ]
    return Verdict("hang", culprits, waiting, [], evidence, job.confidence("medium", *caps))


def both_sides(sides: Sides) -> list[Culprit]:
    """Every rank of a small job, else one per side: nothing tells which side is wrong."""
    small = sum(len(views) for _, views in sides) <= limit.LISTED_RANKS
    text = "; ".join(f"{names(views)} in {what}" for what, views in sides[: limit.EVIDENCE_PLACES])
    chosen = [view for _, views in sides for view in (views if small else views[:1])]
    return [Culprit(view.rank, view.node, view.pid, f"mismatch: {text}", where(view.now)) for view in chosen]
