"""Which files are of one job: several may lie in one folder, and one may lie in several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from mltop.probes.judge.values import Joined, grouped, known
from mltop.probes.model.evidence.logs import LogFile

NUMBERS = re.compile(r"\d+")
_ENDINGS = re.compile(r"\.(?:log|out|err|txt|stdout|stderr|gz|bz2|xz|zst)$")
_STREAMS = re.compile(r"(?:^|[._-])(?:stdout|stderr|out|err|log)(?=[._-]|$)", re.IGNORECASE)
OF_WATCHDOGS = ("collective_timeout", "counters", "aborted")
_RUN_ID = re.compile(r"(.+)_[a-z0-9_]{8}$")


@dataclass
class JobFiles:
    """``name``: Slurm's number or torchrun's run id where one is told, else the folder or file."""

    name: str
    files: list[LogFile] = field(default_factory=list)


def jobs_of(files: Sequence[LogFile]) -> list[JobFiles]:
    """The files of each job together; files that say nothing of whose they are go by their folder."""
    joined = _Joined()
    _join_told(files, joined)
    without_run = (index for index, file in enumerate(files) if not file.run)
    for indexes in grouped(without_run, lambda index: _folder(files[index].path)).values():
        _join_folder(files, indexes, joined)
    _join_runs(files, joined)
    _join_launchers(files, joined)
    _join_single(files, joined)
    jobs = ([files[index] for index in indexes] for indexes in grouped(range(len(files)), joined.top).values())
    return [JobFiles(_name(job), job) for job in jobs]


_Joined = Joined[int]  # indexes of files


def _join_told(files: Sequence[LogFile], joined: _Joined) -> None:
    """By torchrun's folder, whose name is in the launcher's output too, and by Slurm's number."""
    by_name: dict[str, list[int]] = {}
    for index, file in enumerate(files):
        names = {file.run, f"job {file.slurm_job}" if file.slurm_job else "", *file.mentions} - {""}
        for name in names:
            by_name.setdefault(name, []).append(index)
    for indexes in by_name.values():
        joined.join(indexes)


def ranks_in(file: LogFile) -> frozenset[int]:
    ranks = {speaker.rank for speaker in file.speakers} | {file.rank}
    ranks |= {event.rank for event in file.events if event.kind == "exit"}
    if file.local_rank is not None:
        ranks |= default_group_ranks(file)
    return frozenset(known(ranks))


def default_group_ranks(file: LogFile) -> set[int | None]:
    """What its watchdogs call themselves in the group of all ranks."""
    return {event.group_rank for event in file.events if event.kind in OF_WATCHDOGS and not event.group}


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _stem(file: LogFile) -> str:
    """Its name without what tells stdout from stderr."""
    name = file.path.rpartition("/")[2]
    while _ENDINGS.search(name):
        name = _ENDINGS.sub("", name)
    return _STREAMS.sub("", name) or name


def _join_folder(files: Sequence[LogFile], indexes: list[int], joined: _Joined) -> None:
    """All of a folder, unless the same ranks speak in several: then only those that belong to each other."""
    for twins in grouped(indexes, lambda index: _stem(files[index])).values():
        joined.join(twins)
    sets = grouped(indexes, joined.top).values()
    seen = [_Seen(members[0], [files[index] for index in members]) for members in sets]
    jobs = {files[index].slurm_job for index in indexes} - {""}
    # Not where one repeats the other.
    if len(jobs) < 2 and not any(one.lines.isdisjoint(other.lines) for one, other in _with_a_rank_in_common(seen)):
        joined.join(indexes)
        return
    for alike in grouped(seen, lambda each: NUMBERS.sub("#", _stem(files[each.index]))).values():
        if _are_apart([{rank for _, rank in each.ranks} for each in alike]) and not any(
            files[each.index].slurm_job for each in alike
        ):
            joined.join(each.index for each in alike)


def _are_apart(ranks: Iterable[Set[int]]) -> bool:
    """Whether any rank is told of, and none of them twice."""
    counts = Counter(rank for each in ranks for rank in each)
    return bool(counts) and max(counts.values()) == 1


def _with_a_rank_in_common(seen: Sequence[_Seen]) -> Iterator[tuple[_Seen, _Seen]]:
    """Neighbours among those in which a rank is: of ten thousand files not all pairs."""
    by_rank: dict[tuple[str, int], _Seen] = {}
    for group in seen:
        for key in group.ranks:
            if key in by_rank:
                yield by_rank[key], group
            by_rank[key] = group


class _Seen:
    """Files that are one: which ranks speak in them, or are spoken of by a launcher, and lines with their stamps."""

    def __init__(self, index: int, files: Sequence[LogFile]) -> None:
        self.index = index
        events = [event for file in files for event in file.events]
        speaking = {speaker.rank for file in files for speaker in file.speakers} | {file.rank for file in files}
        told = {event.rank for event in events if event.kind == "exit"}
        self.ranks = {*(("speaks", rank) for rank in known(speaking)), *(("told", rank) for rank in known(told))}
        self.lines = {event.text for event in events if event.is_dated and not event.by_launcher}


def _join_runs(files: Sequence[LogFile], joined: _Joined) -> None:
    """torchrun's folders of one run, side by side or each in its node's folder, are the agents of one job, unless a
    rank is in two of them.
    """
    by_parent: dict[tuple[str, str], dict[int, set[int]]] = {}
    for index, file in enumerate(files):
        if file.run:
            run_id = _RUN_ID.match(file.run)
            key = (_folder(file.run_parent), run_id[1] if run_id else file.run)
            by_parent.setdefault(key, {}).setdefault(joined.top(index), set()).update(ranks_in(file))
    for tops in by_parent.values():
        if all(tops.values()) and _are_apart(tops.values()):
            joined.join(tops)


def _join_launchers(files: Sequence[LogFile], joined: _Joined) -> None:
    """What a launcher printed lies beside or above its folder of logs; of several nobody knows whose it is. Where
    ranks speak in it, it must repeat a line of theirs.
    """
    parents: dict[str, set[int]] = {}
    for index, file in enumerate(files):
        if file.run:
            parents.setdefault(file.run_parent, set()).add(joined.top(index))
    runs = {file.run for file in files if file.run}
    lines = {event.text for file in files if file.run for event in file.events}
    for index, file in enumerate(files):
        speaks = any(speaker.rank is not None for speaker in file.speakers)
        is_other = speaks and not any(event.text in lines for event in file.events)
        if file.run or is_other or file.slurm_job or file.mentions & runs:
            continue
        folder = f"{_folder(file.path)}/"
        near = {joined.top(top) for parent, tops in parents.items() if f"{parent}/".startswith(folder) for top in tops}
        if len(near) == 1:
            joined.join([*near, index])


def _join_single(files: Sequence[LogFile], joined: _Joined) -> None:
    """What no rank speaks in belongs to the only job there is."""
    tops = {joined.top(index) for index, file in enumerate(files) if ranks_in(file) or file.run}
    if len(tops) == 1:
        jobs = {"", *(file.slurm_job for index, file in enumerate(files) if joined.top(index) in tops)}
        joined.join([*tops, *(index for index, file in enumerate(files) if file.slurm_job in jobs)])


def _name(files: Sequence[LogFile]) -> str:
    for file in files:
        if file.slurm_job:
            return file.slurm_job
    mentioned = sorted({name[4:] for file in files for name in file.mentions if name.startswith("job ")})
    if len(mentioned) == 1:
        return mentioned[0]
    for file in files:
        run_id = _RUN_ID.match(file.run)
        if run_id is not None:
            return run_id[1] if run_id[1] != "none" else file.run
    if len(files) == 1:
        return files[0].path.rpartition("/")[2]
    folder = _folder(files[0].path)
    return folder.rpartition("/")[2] or folder or files[0].path
