"""Steps 4 and 5: every rank waits, but not in the same collective, not from the same lines, or not in the same turn.

Of a loop integer locals tell who is in another turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from mltop.probes.judge.hang import thresholds as limit
from mltop.probes.judge.hang.frames import UserFrames, is_internal, place, python_frames
from mltop.probes.judge.hang.groups import BARRIERS, GENERIC, POINT_TO_POINT, axes_of, circles_of
from mltop.probes.judge.hang.job import JobView, names
from mltop.probes.judge.hang.view import RankView
from mltop.probes.judge.values import grouped, known
from mltop.probes.model import Confidence, Culprit, Frame, Verdict
from mltop.probes.model.local_names import meaning_of
from mltop.probes.model.ranks import ranks_text

Sides = list[tuple[str, list[RankView]]]
Side = TypeVar("Side")


def mismatch(job: JobView) -> Verdict | None:
    """The ranks in the rarer collective are suspects; two sides of equal size are both shown."""
    if not job.waiters or job.others:
        return None
    sides = _split(job.waiters, lambda view: view.waiting_in or "")
    if any(operation in POINT_TO_POINT for operation, _ in sides):
        return _pipeline(job, sides)
    if len(sides) == 1:
        return _different_lines(job)
    caps: tuple[Confidence, ...] = ("low",) if any(operation in GENERIC for operation, _ in sides) else ()
    return _suspect(job, sides, "in different collectives", caps)


def _pipeline(job: JobView, sides: Sides) -> Verdict:
    """Some wait for a neighbour. Those who wait for one another are named: which of them is wrong nobody can tell. Else
    the few that are apart, where all others wait in a barrier for them.
    """
    circles = circles_of(job.waiters)
    reasons: dict[int | None, str] = {}
    circling = [] if circles else ["stacks do not show who is behind"]
    for circle in circles:
        here = f"{ranks_text(circle)} wait for one another"
        circling.append(f"{here}: {', '.join(f'rank {rank} in {step}' for rank, step in circle.items())}")
        reasons.update({rank: f"in {step}; {here}" for rank, step in circle.items()})
    kept = [view for view in job.waiters if view.waiting_in in BARRIERS]
    apart = [view for view in job.waiters if view.waiting_in in POINT_TO_POINT]
    if not circles and len(apart) <= len(kept) == len(job.waiters) - len(apart) and len(axes_of(job.waiters)) < 2:
        reasons = {view.rank: f"in {view.waiting_in}, while {names(kept)} in {kept[0].waiting_in}" for view in apart}
    whom = "some for a neighbour" if len(sides) > 1 else "for a neighbour"
    evidence = [f"every rank waits, {whom} (pipeline), {job.watched}", *circling, *_describe(sides)]
    is_sure = circles and all(view.waiting_in in POINT_TO_POINT for view in job.waiters if view.rank in reasons)
    culprits = [view.culprit(reasons[view.rank], how="elsewhere") for view in job.waiters if view.rank in reasons]
    verdict = job.hang(evidence, job.confidence("medium") if is_sure else "low", culprits)
    verdict.circle = list(circles[0]) if circles else []
    return verdict


def _different_lines(job: JobView) -> Verdict | None:
    """The same operation reached on different ways through the user's code."""
    places: dict[str, tuple[str, ...]] = {}

    def way(view: RankView) -> tuple[str, ...]:
        """From the leaf to the script."""
        key = view.now.key
        if key not in places or not key:
            places[key] = tuple(place(frame) for frame in view.now.frames if not is_internal(frame))
        return places[key]

    sides = _split(job.waiters, way)
    if len(sides) == 1:
        return None
    leaves = {lines[:1] for lines, _ in sides}
    least = 1 if len(leaves) == len(sides) else None  # else the callers differ, not the line itself
    named = [(f"{views[0].waiting_in} from {' < '.join(lines[:least]) or '?'}", views) for lines, views in sides]
    return _suspect(job, named, "in one operation, but at different places of the script", ())


def _split(views: list[RankView], by: Callable[[RankView], Side]) -> list[tuple[Side, list[RankView]]]:
    """The largest side first."""
    return sorted(grouped(views, by).items(), key=lambda side: -len(side[1]))


def _describe(sides: Sides) -> list[str]:
    shown = sides[: limit.EVIDENCE_PLACES]
    lines = [f"{names(views)} in {text}" for text, views in shown]
    return lines + ([f"and {len(sides) - len(shown)} more sides"] if len(sides) > len(shown) else [])


def _suspect(job: JobView, sides: Sides, how: str, caps: tuple[Confidence, ...]) -> Verdict:
    unseen = job.roster.unseen.count + len(job.roster.silent)
    whom = "every rank that was seen" if unseen else "every rank"
    evidence = [f"{whom} waits, {how}, {job.watched}", *_describe(sides)]
    (usual, majority), *others = sides
    if len(majority) == len(others[0][1]):
        return job.hang(evidence, "low", _both_sides(sides))
    # Whoever was not seen may be on the other side, or be what all of these wait for.
    if len(majority) < limit.MAJORITY_FIRM * (len(job.waiters) + unseen):
        caps = (*caps, "low")
    axes = axes_of(job.waiters)
    if len(axes) > 1:
        caps = (*caps, "low")
        if len(job.waiters) - len(majority) > 1:
            groups = f"groups of several kinds ({', '.join(sorted(axes))})"
            return job.hang(
                [*evidence, f"{groups} may wait in different places: nobody is named"], job.confidence(*caps)
            )
    most = f"while {names(majority)} in {usual}"
    culprits = [view.culprit(f"in {text}, {most}", how="elsewhere") for text, views in others for view in views]
    return job.hang(evidence, job.confidence("medium", *caps), culprits)


def _both_sides(sides: Sides) -> list[Culprit]:
    """Every rank of a small job, else one per side: nothing tells which side is wrong."""
    small = sum(len(views) for _, views in sides) <= limit.LISTED_RANKS
    text = "; ".join(f"{names(views)} in {what}" for what, views in sides[: limit.EVIDENCE_PLACES])
    chosen = [view for _, views in sides for view in (views if small else views[:1])]
    return [view.culprit(f"mismatch: {text}", how="elsewhere") for view in chosen]


@dataclass(frozen=True)
class Difference:
    """One local that is equal on most ranks. ``values`` by rank position; ``urgency`` 0: counts steps, 1: counts
    something, 2: anything else.
    """

    name: str
    function: str
    values: list[int]
    usual: int
    urgency: int

    @property
    def odd(self) -> list[int]:
        return [at for at, value in enumerate(self.values) if value != self.usual]

    @property
    def small(self) -> bool:
        return all(abs(value - self.usual) <= limit.SMALL_DIFFERENCE for value in self.values)

    @property
    def split(self) -> bool:
        """Two values on equally many ranks."""
        return 2 * len(self.odd) == len(self.values)

    def by_value(self, views: list[RankView]) -> dict[int, list[RankView]]:
        """``views``: the ranks, in the order of the values."""
        of_view = dict(zip(map(id, views), self.values, strict=True))
        return grouped(views, lambda view: of_view[id(view)])


def local_differences(job: JobView) -> list[Difference]:
    """Integer locals that are not equal on all ranks, when every rank waits at the same line."""
    return list(_differences(job.waiters)) if not job.others and len(job.waiters) > 1 else []


def by_loop_counter(job: JobView, differences: list[Difference]) -> Verdict | None:
    """The ranks whose loop counter is not that of the others; None when all agree."""
    counters = (local for local in differences if local.urgency < 2 and (not local.split or local.small))
    best = min(counters, key=lambda local: (local.split, local.urgency, not local.small), default=None)
    if best is None:
        return None
    stand = f"every rank waits in {job.waiters[0].waiting_in} at the same line, {job.watched}"
    evidence = [stand, _text(best, job.waiters)]
    by_value = best.by_value(job.waiters)
    if best.split:
        sides = [(f"turn {best.name} = {value}", views) for value, views in sorted(by_value.items())]
        return job.hang(evidence, "low", _both_sides(sides))
    firm = len(best.values) - len(best.odd) >= limit.MAJORITY_FIRM * len(best.values)
    others = ranks_text(known(view.rank for view in by_value[best.usual]))
    culprits = [_culprit(best, best.values[at], job.waiters[at], others) for at in best.odd]
    return job.hang(evidence, job.confidence("medium" if best.small and firm else "low"), culprits)


def harmless(job: JobView, differences: list[Difference]) -> list[str]:
    """Other locals that are odd on a minority: shown, because the reader may know what they mean."""
    odd = [difference for difference in differences if not difference.split]
    return [f"{_text(difference, job.waiters)} (not a loop counter by its name)" for difference in odd[:2]]


def _differences(views: list[RankView]) -> Iterator[Difference]:
    """Locals of the frames that all ranks share, leaf first, that are not equal everywhere."""
    stacks = [python_frames(view.now.frames) for view in views]
    users = UserFrames()
    telling = [users.indexes(view.now) for view in views]
    for depth in range(min(map(len, telling))):
        column = [frames[at[depth]].ints for frames, at in zip(stacks, telling, strict=True)]
        for name in column[0]:
            values = [ints.get(name) for ints in column]
            if len(set(values)) > 1:
                difference = _difference(name, stacks[0][telling[0][depth]], values, views)
                if difference is not None:
                    yield difference


def _difference(name: str, frame: Frame, values: list[int | None], views: list[RankView]) -> Difference | None:
    numbers = known(values)
    if len(numbers) < len(values):
        return None
    (usual, count), *_ = Counter(numbers).most_common(1)
    distinct = len(set(numbers))
    even = distinct == 2 and 2 * count == len(numbers)
    samples = [view.seen.sample for view in views]
    is_rank = any(numbers == [getattr(one, its) for one in samples] for its in ("rank", "local_rank", "pid"))
    if (2 * count <= len(numbers) and not even) or is_rank:
        return None
    urgency = {"step": 0, "counter": 1}.get(meaning_of(name), 2)
    return Difference(name, frame.function, numbers, usual, urgency)


def _text(difference: Difference, views: list[RankView]) -> str:
    """``step is 5 on rank 2 and 6 on ranks 0-1,3 (in train)``."""
    by_value = difference.by_value(views)
    rarest = sorted(by_value.items(), key=lambda item: len(item[1]))[: limit.EVIDENCE_PLACES]
    usual = [(difference.usual, by_value[difference.usual])] if difference.usual not in dict(rarest) else []
    parts = [f"{value} on {names(here)}" for value, here in [*rarest, *usual]]
    return f"{difference.name} is {' and '.join(parts)} (in {difference.function})"


def _culprit(difference: Difference, value: int, view: RankView, others: str) -> Culprit:
    way = "behind" if value < difference.usual else "ahead of"
    text = f"{way} the others: {difference.name} is {value} here and {difference.usual} on {others}"
    return view.culprit(text, how="behind")
