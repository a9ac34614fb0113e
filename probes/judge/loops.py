"""Step 5: every rank waits at the same line. Integer locals tell who is in another turn of the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mltop.probes.judge import thresholds as limit
from mltop.probes.judge.fold import ranks_text
from mltop.probes.judge.frames import UserFrames, python_frames, where
from mltop.probes.judge.job import JobView, names, waiting_lines
from mltop.probes.judge.mismatch import both_sides
from mltop.probes.judge.view import RankView
from mltop.probes.model import Confidence, Culprit, Frame, Verdict
from mltop.probes.model.local_names import meaning_of


@dataclass(frozen=True)
class Difference:
    """One local that is equal on most ranks. ``values`` by rank position; ``urgency``: lower is surer."""

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


def local_differences(job: JobView) -> list[Difference]:
    """Integer locals that are not equal on all ranks, when every rank waits at the same line."""
    return list(_differences(job.waiters)) if not job.others and len(job.waiters) > 1 else []


def by_loop_counter(job: JobView, found: list[Difference]) -> Verdict | None:
    """The ranks whose loop counter is not that of the others; None when all agree."""
    counters = [one for one in found if one.urgency < 2 and (not one.split or one.small)]
    if not counters:
        return None
    best = min(counters, key=lambda one: (one.split, one.urgency, not one.small))
    evidence = [
        f"every rank waits in {job.waiters[0].waiting_in} at the same line, and none moved {job.watched}",
        _text(best, job.waiters),
    ]
    waiting = waiting_lines(job.waiters)
    if best.split:
        return Verdict("hang", both_sides(_sides(best, job.waiters)), waiting, [], evidence, "low")
    firm = len(best.values) - len(best.odd) >= limit.MAJORITY_FIRM * len(best.values)
    cap: Confidence = "medium" if best.small and firm else "low"
    culprits = [_culprit(best, at, job.waiters[at], job.waiters) for at in best.odd]
    return Verdict("hang", culprits, waiting, [], evidence, job.confidence(cap))


def harmless(job: JobView, found: list[Difference]) -> list[str]:
    """Other locals that are odd on a minority: shown, because the reader may know what they mean."""
    odd = [one for one in found if not one.split]
    return [f"{_text(one, job.waiters)} (not a loop counter by its name)" for one in odd[:2]]


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
                made = _difference(name, stacks[0][telling[0][depth]], values, views)
                if made is not None:
                    yield made


def _difference(name: str, frame: Frame, values: list[int | None], views: list[RankView]) -> Difference | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    (usual, count), *_ = Counter(known).most_common(1)
    distinct = len(set(known))
    even = distinct == 2 and 2 * count == len(known)
    if (2 * count <= len(known) and not even) or _is_rank_like(known, views):
        return None
    return Difference(name, frame.function, known, usual, _urgency(name))


def _is_rank_like(values: list[int], views: list[RankView]) -> bool:
    samples = [view.seen.sample for view in views]
    return (
        values == [sample.rank for sample in samples]
        or values == [sample.local_rank for sample in samples]
        or values == [sample.pid for sample in samples]
    )


def _urgency(name: str) -> int:
    """0: counts steps, 1: counts something, 2: anything else."""
    return {"step": 0, "counter": 1}.get(meaning_of(name), 2)


def _text(one: Difference, views: list[RankView]) -> str:
    """``step is 5 on rank 2 and 6 on ranks 0-1,3 (in train)``."""
    by_value: dict[int, list[RankView]] = {}
    for view, value in zip(views, one.values, strict=True):
        by_value.setdefault(value, []).append(view)
    rarest = sorted(by_value.items(), key=lambda item: len(item[1]))[: limit.EVIDENCE_PLACES]
    usual = [(one.usual, by_value[one.usual])] if one.usual not in dict(rarest) else []
    parts = [f"{value} on {names(where_)}" for value, where_ in [*rarest, *usual]]
    return f"{one.name} is {' and '.join(parts)} (in {one.function})"


def _sides(one: Difference, views: list[RankView]) -> list[tuple[str, list[RankView]]]:
    sides: dict[int, list[RankView]] = {}
    for view, value in zip(views, one.values, strict=True):
        sides.setdefault(value, []).append(view)
    return [(f"turn {one.name} = {value}", here) for value, here in sorted(sides.items())]


def _culprit(one: Difference, at: int, view: RankView, views: list[RankView]) -> Culprit:
    value = one.values[at]
    usual_on = [other.rank for other, number in zip(views, one.values, strict=True) if number == one.usual]
    others = ranks_text(rank for rank in usual_on if rank is not None)
    way = "behind" if value < one.usual else "ahead of"
    reason = f"{way} the others: {one.name} is {value} here and {one.usual} on {others}"
    return Culprit(view.rank, view.node, view.pid, reason, where(view.now))
