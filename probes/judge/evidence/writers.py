"""Who wrote which line: ranks of the whole job in place of local ones, tasks, pids and names of files; and whether the
writer went on after it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mltop.probes.judge.evidence.jobs import NUMBERS, default_group_ranks, ranks_in
from mltop.probes.judge.values import Key, known
from mltop.probes.model.evidence.logs import LogEvent, LogFile, Speaker

MOST_RANKS = 1 << 17  # a larger number is no rank, whatever a line says
_STEPS_WITHOUT_IT = 2
_MOST_TIMES, _MOST_STEPS = 10, 100_000  # a number beyond both is no later step of the same run


def restarts_in(file: LogFile) -> list[int]:
    """The lines at which torchrun's agent ends an attempt."""
    return [event.line for event in file.events if event.kind == "agent_failed"] if file.attempt is None else []


class Ranks:
    """Translates what prefixes, paths and the launcher say into ranks of the whole job."""

    def __init__(self, files: Sequence[LogFile]) -> None:
        self._offsets, self._run_nodes = _runs(files)
        self._only_run = len({file.run for file in files if file.run}) == 1
        self._by_pid, self._by_process = _by_pid(files), _by_process(files)
        self._tasks_are_ranks = _tasks_are_ranks(files)
        self._by_number = _numbered(files)
        self._firsts = _first_ranks(files)
        self._rank_nodes = _rank_nodes(files)
        self._highest = max((rank for file in files for rank in ranks_in(file) if rank < MOST_RANKS), default=-1)
        self._own = {file.path: self._rank_of(file) for file in files}
        self._restarted = {file.path: max(restarts_in(file), default=0) for file in files}
        self._only_failed = {file.path: found for file in files if (found := _only_failed(file)) is not None}
        self._by_stem = {Path(path).stem: rank for path, rank in self._own.items() if rank is not None}

    def of_file(self, file: LogFile) -> int | None:
        """The one rank whose file it is."""
        return self._own[file.path]

    def _rank_of(self, file: LogFile) -> int | None:
        if file.local_rank is not None:
            offset = self._offsets.get(file.run, 0 if self._only_run else None)
            return None if offset is None else offset + file.local_rank
        named = {speaker.rank for speaker in file.speakers if speaker.rank is not None}
        launched = (event for event in file.events if event.kind in ("exit", "agent_failed"))
        if len(named) > 1 or file.is_of_agent or any(event.group_rank is None for event in launched):
            return None
        if any(speaker.local_rank is not None or speaker.task is not None for speaker in file.speakers):
            return None
        return file.rank if file.rank is not None else self._by_number.get(file.path)

    def speaking_in(self, file: LogFile) -> frozenset[int]:
        """The ranks that have any line in it."""
        own = self.of_file(file)
        if own is not None:
            return frozenset((own,))
        found = {speaker.rank for speaker in file.speakers}
        if self._tasks_are_ranks:
            found |= {speaker.task for speaker in file.speakers}
        found |= {self._of_local(speaker, file) for speaker in file.speakers if speaker.rank is None}
        found |= {self._by_process.get(speaker.process) for speaker in file.speakers}
        return frozenset(known(found))

    def placed(self, event: LogEvent, file: LogFile) -> list[LogEvent]:
        """With its rank and node, and whether its rank went on after it; of each of several tasks that are ranks."""
        rank = event.rank
        if event.kind in ("exit", "died", "oom_kill"):
            if rank is None and len(event.named) > 1 and self._tasks_are_ranks:
                return [self._by(each, event, file) for each in event.named]
            rank = self._of_launcher(event, file)
            if rank is not None or event.named or event.group_rank is not None:
                return [self._by(rank, event, file)]
        engine = event.speaker.process
        if event.kind == "worker_lost" and engine.startswith("EngineCore_DP"):  # which counts its own workers
            rank = self._by_process.get(f"{engine} {rank}", rank if engine.endswith("_DP0") else None)
        if event.kind == "heartbeat_named" and rank is not None and not event.named:
            event = replace(event, named=(rank,))
        if event.kind == "node_failure":
            rank = None  # whoever reports it
        elif rank is None:
            rank = self._writer(event, file)
        # What a later attempt came to says nothing of this one.
        is_of_earlier = event.line <= self._restarted[file.path]
        survived = not is_of_earlier and is_outlived(event, file, is_own=self.of_file(file) is not None)
        return [self._by(rank, replace(event, survived=survived), file)]

    def _of_launcher(self, event: LogEvent, file: LogFile) -> int | None:
        """About whom a launcher speaks."""
        if event.kind == "exit" and event.group_rank is not None:
            return self._of_child(event.group_rank, event.pid, file)
        if event.rank is None and len(event.named) == 1 and self._tasks_are_ranks:
            return event.named[0]
        if event.kind == "oom_kill" and event.rank is None:
            return self._by_stem.get(event.node)  # a pod, whose log has its name
        return event.rank

    def _writer(self, event: LogEvent, file: LogFile) -> int | None:
        """Of which rank it is, the surest sign first."""
        speaker = event.speaker
        rank = self.of_file(file)
        if rank is None and speaker.task is not None and self._tasks_are_ranks:
            rank = speaker.task
        rank = self._by_process.get(speaker.process) if rank is None else rank
        pid = event.pid if event.pid is not None else speaker.pid
        if rank is None and pid is not None and event.kind != "terminated":
            rank = self._of_pid(event.node or speaker.node, pid)
        if rank is None and speaker.local_rank is not None:
            rank = self._of_local(speaker, file)
        if rank is None and event.group == "" and event.kind != "world":
            rank = event.group_rank  # of the default group's numbers, which are the job's
        if rank is None and speaker == Speaker() and event.event_class in ("root", "cascade", "timeout"):
            rank, code = self._only_failed.get(file.path, (None, ""))
            # One that a signal ended may have been aborted by its watchdog: only what fails of itself is its own then.
            return rank if code == "exit" or event.event_class == "root" else None
        return rank

    def _of_child(self, local_rank: int, pid: int | None, file: LogFile) -> int | None:
        """Of one that the node's first process started: its number is one of the job where there is only one node."""
        first = self.of_file(file)
        if first is not None:
            return first + local_rank
        rank = self._of_pid("", pid) if pid is not None else None
        if rank is not None:
            return rank
        # A second node would have as many processes as this one, which has one of that number.
        return local_rank if self._highest + 1 < 2 * (local_rank + 1) else None

    def _of_pid(self, node: str, pid: int) -> int | None:
        return self._by_pid.get((host_of(node), pid), self._by_pid.get(("", pid)))

    def _of_local(self, speaker: Speaker, file: LogFile) -> int | None:
        first = self._firsts.get((file.path, host_of(speaker.node)))
        return None if first is None or speaker.local_rank is None else first + speaker.local_rank

    def _by(self, rank: int | None, event: LogEvent, file: LogFile) -> LogEvent:
        node = event.node or self._rank_nodes.get(rank) or self._run_nodes.get(file.run, "")
        return replace(event, rank=rank, node=node)


def _agreed(told: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    """The numbers of those of whom only one is told: of the others nothing is known."""
    found: dict[Key, set[int]] = defaultdict(set)
    for key, number in told:
        found[key].add(number)
    return {key: next(iter(numbers)) for key, numbers in found.items() if len(numbers) == 1}


def _runs(files: Sequence[LogFile]) -> tuple[dict[str, int], dict[str, str]]:
    """Of each of torchrun's folders: its first rank, and its node."""
    firsts: list[tuple[str, int]] = []
    nodes: dict[str, str] = {}
    for file in files:
        if file.run and file.local_rank is not None:
            spoken = {speaker.rank for speaker in file.speakers} - {None} or default_group_ranks(file)
            firsts += [(file.run, rank - file.local_rank) for rank in known(spoken)]
        for event in file.events:
            if event.kind == "exit" and event.device and event.rank is not None and event.named:
                firsts.append((event.device, event.rank - event.named[0]))
                if event.node:
                    nodes[event.device] = event.node
    return _agreed(firsts), nodes


def _by_pid(files: Sequence[LogFile]) -> dict[tuple[str, int], int]:
    """The rank of a process by its node and pid, and of node "" by its pid alone."""
    told: list[tuple[int | None, int | None, str]] = []
    for file in files:
        largest = max((event.sequence or 0 for event in file.events if event.kind == "world"), default=0)
        told += [(speaker.pid, speaker.rank, speaker.node) for speaker in file.speakers]
        told += [(event.pid, event.rank, event.node) for event in file.events if event.kind == "exit"]
        worlds = (event for event in file.events if event.kind == "world" and event.sequence == largest)
        told += [(event.speaker.pid, event.group_rank, event.speaker.node) for event in worlds]  # the job's ranks
    pairs = ((pid, rank, node) for pid, rank, node in told if pid is not None and rank is not None)
    return _agreed(((place, pid), rank) for pid, rank, node in pairs for place in {"", host_of(node)})


_SGLANGS, _VLLMS = re.compile(r"(DP\d+) TP(\d+)(?: EP\d+)?"), re.compile(r"Worker_(DP\d+)_\w+")


def _by_process(files: Sequence[LogFile]) -> dict[str, int]:
    """The ranks of SGLang's schedulers, where attention splits the ranks of one model into groups ("DP1 TP2"): their
    number in the model, unless each group counts from 0. And of the workers of vLLM's engines, in order.
    """
    engines: dict[str, set[int]] = defaultdict(set)
    for speaker in (each for file in files for each in file.speakers):
        match = _VLLMS.fullmatch(speaker.process)
        if match is not None and speaker.rank is not None:
            engines[match[1]].add(speaker.rank)
    numbers = {f"EngineCore_{name} {at}": rank for name, own in engines.items() for at, rank in enumerate(sorted(own))}
    names = {speaker.process for file in files for speaker in file.speakers}
    found = [match for match in map(_SGLANGS.fullmatch, names) if match is not None]
    ranks = {match[0]: int(match[2]) for match in found}
    is_split = len({match[1] for match in found}) > 1 and len(set(ranks.values())) == len(ranks)
    return ranks if is_split else numbers


def _tasks_are_ranks(files: Sequence[LogFile]) -> bool:
    pairs = {
        (speaker.task, speaker.rank)
        for file in files
        for speaker in (*file.speakers, *(event.speaker for event in file.events))
        if speaker.rank is not None and speaker.task is not None
    }
    if pairs:
        return all(task == rank for task, rank in pairs)
    local = any(speaker.local_rank is not None for file in files for speaker in file.speakers)
    agents = any(event.kind == "agent_failed" for file in files for event in file.events)
    return not local and not agents


def _numbered(files: Sequence[LogFile]) -> dict[str, int]:
    """Files that are numbered from 0 on, one for each rank; what their lines say must not differ. Beside a pod
    "master-0" of Kubeflow's PyTorchJob worker 0 is rank 1.
    """
    groups: dict[str, dict[int, list[LogFile]]] = defaultdict(lambda: defaultdict(list))
    masters = {NUMBERS.sub("#", file.series) for file in files if file.series.endswith("master-")}
    for file in files:
        if not file.run and file.number is not None and file.rank is None and not file.is_of_agent:
            series = NUMBERS.sub("#", file.series)
            pod = f"{series.removesuffix('worker-')}master-"
            is_after_master = series.endswith("worker-") and pod in masters
            groups[pod if is_after_master else series][file.number + is_after_master].append(file)
    found: dict[str, int] = {}
    for numbered in groups.values():
        if any(len({file.series for file in each}) > 1 for each in numbered.values()):
            continue  # numbers of each node's own
        contiguous = len(numbered) > 1 and set(numbered) == set(range(len(numbered)))
        told = {
            (number, rank)
            for number, each in numbered.items()
            for file in each
            for rank in ({speaker.rank for speaker in file.speakers} - {None} or _of_nccl(file, len(numbered)))
        }
        if all(number == rank for number, rank in told) and (told or contiguous):
            found.update({file.path: number for number, each in numbered.items() for file in each})
    return found


def _of_nccl(file: LogFile, least: int) -> set[int | None]:
    """What it is called in the largest communicator that it reports, where that has as many members as the job."""
    worlds = [event for event in file.events if event.kind == "world" and event.group_rank is not None]
    largest = max((event.sequence or 0 for event in worlds), default=0)
    return {event.group_rank for event in worlds if event.sequence == largest >= least}


def _first_ranks(files: Sequence[LogFile]) -> dict[tuple[str, str], int]:
    """Of files with local ranks in front of lines: the first rank of each node there, "": of all of them."""
    told = [
        (file.path, speaker.node, speaker.rank - speaker.local_rank)
        for file in files
        for speaker in file.speakers
        if speaker.rank is not None and speaker.local_rank is not None and speaker.task is None
    ]
    told += [
        (file.path, event.node, event.rank - event.named[0])
        for file in files
        for event in file.events
        if event.kind == "exit" and event.rank is not None and len(event.named) == 1 and event.speaker.task is None
    ]
    return _agreed(((path, place), first) for path, node, first in told for place in {"", host_of(node)})


def host_of(node: str) -> str:
    """Without its domain."""
    return node if node[:1].isdigit() else node.partition(".")[0]


def _only_failed(file: LogFile) -> tuple[int, str] | None:
    """In a console without prefixes, whose lines a failure has: the only rank that its launcher saw fail, and how."""
    rows = {(event.rank, event.how) for event in file.events if event.kind == "exit" and event.code}
    failed = [(rank, how) for rank, how in rows if rank is not None and how in ("exit", "signal")]
    has_prefixes = any(speaker.rank is not None or speaker.local_rank is not None for speaker in file.speakers)
    return failed[0] if len(failed) == 1 and not has_prefixes else None


def _rank_nodes(files: Sequence[LogFile]) -> dict[int | None, str]:
    """A launcher's word counts more than a line's prefix."""
    told = [(event.rank, event.node) for file in files for event in file.events if event.kind == "exit"]
    told += [(speaker.rank, speaker.node) for file in files for speaker in file.speakers]
    return {rank: node for rank, node in reversed(told) if rank is not None and node}


def is_outlived(event: LogEvent, file: LogFile, *, is_own: bool) -> bool:
    """Whether its rank, server or job went on after it. ``is_own``: of a file of one rank."""
    ends = file.good_ends
    if event.line < ends.succeeded:
        return True
    if event.kind in ("worker_lost", "fatal_signal") or event.event_class == "cascade":
        # Processes leave one another in any order once the work is done; one request's error is not the server's.
        served = event.kind == "peer_exception" and ends.served > event.line
        is_cascade = event.event_class == "cascade"
        is_after = 0 < ((ends.trained if is_cascade else 0) or ends.latest) < event.line
        return served or is_after or (is_cascade and event.line < ends.trained)
    if event.kind not in ("exception", "barrier_named"):
        return event.survived
    if event.line < ends.trained or (event.kind == "exception" and event.line < ends.served):
        return True
    is_after = file.last_step is not None and file.last_step_line > event.line
    return (is_own or _goes_on(event, file)) if is_after else event.survived


def _goes_on(event: LogEvent, file: LogFile) -> bool:
    """Whether steps of whichever rank prove it: others go on for one or two without it, and may print them late."""
    before = event.step if file.first_step_line < event.line else file.first_step
    if before is None or len(file.last_steps) <= _STEPS_WITHOUT_IT or file.last_steps[0] <= event.line:
        return False
    return before + _STEPS_WITHOUT_IT < (file.last_step or 0) <= max(before * _MOST_TIMES, before + _MOST_STEPS)
