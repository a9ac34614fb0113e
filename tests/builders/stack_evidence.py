"""Builders for hand-made evidence: jobs of torch's call chains, dumped in several rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mltop.probes.judge.hang.evidence import JobEvidence, RankSeen
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import (
    Frame,
    HostSample,
    NodeState,
    RankSample,
    RankStacks,
    Sample,
    StackDigest,
    Verdict,
)

C10D = "torch/distributed/distributed_c10d.py"
DATALOADER = "torch/utils/data/dataloader.py"
START = 1000.0


@dataclass
class Stack:
    frames: list[Frame]
    waiting_in: str | None = None


def stack(*places: tuple[str, str, int], waiting_in: str | None = None, **ints: int) -> Stack:
    """Leaf first; ``ints`` become locals of the frame named train (or of the leaf)."""
    frames = [Frame(*place) for place in places]
    owner = next((frame for frame in frames if frame.function == "train"), frames[0])
    owner.ints.update(ints)
    return Stack(frames, waiting_in)


def main_frames(line: int = 60) -> tuple[tuple[str, str, int], ...]:
    return ("train", "job/case.py", line), ("main", "job/case.py", 80), ("<module>", "job/case.py", 90)


def all_reduce(line: int = 60, **ints: int) -> Stack:
    reduce = (("all_reduce", C10D, 2900), ("all_reduce_grads", "job/case.py", 21))
    return stack(*reduce, *main_frames(line), waiting_in="all_reduce", **ints)


def broadcast() -> Stack:
    called = (("broadcast", C10D, 2700), ("sync_metrics", "job/case.py", 33))
    return stack(*called, *main_frames(), waiting_in="broadcast")


def dataset(line: int = 14) -> Stack:
    fetch = (("fetch", "torch/utils/data/_utils/fetch.py", 54), ("_next_data", DATALOADER, 788))
    return stack(("DS.__getitem__", "job/case.py", line), *fetch, *main_frames(55))


def validation() -> Stack:
    return stack(("slow_validation", "job/case.py", 40), *main_frames(58))


def spin(turn: int) -> Stack:
    return stack(("spin_forever", "job/case.py", 44 + turn % 2), *main_frames(58), n=turn)


def loader_wait() -> Stack:
    poll = (("select", "selectors.py", 415), ("_poll", "multiprocessing/connection.py", 440))
    loader = (("_try_get_data", DATALOADER, 1310), ("_next_data", DATALOADER, 1500))
    return stack(*poll, *loader, *main_frames(55))


def worker_stuck() -> Stack:
    entry = (
        ("fetch", "torch/utils/data/_utils/fetch.py", 54),
        ("_worker_loop", "torch/utils/data/_utils/worker.py", 360),
    )
    return stack(("DS.__getitem__", "job/case.py", 14), *entry)


def worker_idle() -> Stack:
    poll = (("select", "selectors.py", 415), ("poll", "multiprocessing/connection.py", 257))
    entry = (
        ("get", "multiprocessing/queues.py", 113),
        ("_worker_loop", "torch/utils/data/_utils/worker.py", 330),
    )
    return stack(*poll, *entry)


def compute(line: int = 48, **ints: int) -> Stack:
    return stack(*main_frames(line), **ints)


StackOf = Callable[[int], Stack]
StackKey = str | Callable[[int], str]


@dataclass
class Child:
    pid: int
    stack: Stack | None
    state: str = "S"
    error: str | None = None
    wchan: str | None = None
    key: StackKey = ""  # one, or by round


@dataclass
class Thread:
    """Another thread of the rank itself."""

    name: str
    stack: Stack | StackOf
    state: str = "S"
    switches_per_s: float = 0.0
    cpu_s_per_s: float = 0.0


@dataclass
class Rank:
    """What one rank shows. ``stack``: one, or by round. Counters grow by the rates, from dump to dump.

    ``syscalls_per_s``: of the main thread; ``helpers_per_s``: those of other threads of the process.
    """

    stack: Stack | StackOf | None
    switches_per_s: float = 0.0
    syscalls_per_s: float = 0.0
    helpers_per_s: float = 0.0
    main_cpu_s_per_s: float | None = None
    state: str = "S"
    cpu: float | None = None
    node: str = "n1"
    children: list[Child] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    error: str | None = None
    fix: str = ""
    wchan: str | None = None
    gone: bool = False
    quiet_s: float | None = None
    rank: int | None = -1  # -1: its position
    local_rank: int | None = None
    dumped: bool = True

    def at(self, turn: int) -> Stack | None:
        return self.stack(turn) if callable(self.stack) else self.stack


def evidence(
    ranks: Mapping[int, Rank],
    rounds: int = 4,
    gap_s: float = 2.0,
    world_size: int | None = -1,
    local_world_size: int | None = None,
    master: str | None = "n1",
    launcher: str = "",
    nodes_missing: tuple[str, ...] = (),
    counters: bool = True,
    sees_all: bool | None = True,
) -> JobEvidence:
    """``rounds`` dumps ``gap_s`` apart of each of ``ranks`` (by rank number). ``sees_all``: no container around us."""
    size = len(ranks) if world_size == -1 else world_size
    made = JobEvidence("job-1", not_answered=[NodeState(node, "lost") for node in nodes_missing])
    host = HostSample(sees_all_processes=sees_all)
    made.samples = {rank.node: Sample(rank.node, START, host=host) for rank in ranks.values()}
    for number, rank in ranks.items():
        sample = RankSample(
            pid=4000 + number,
            rank=number if rank.rank == -1 else rank.rank,
            local_rank=rank.local_rank,
            world_size=size,
            local_world_size=local_world_size,
            job="job-1",
            master_address=master,
            launcher=launcher,
            state=rank.state,
            cpu_fraction=rank.cpu,
            wchan=rank.wchan,
        )
        made.roster.append(RankSeen(rank.node, sample, gone=rank.gone, quiet_s=rank.quiet_s))
        if rank.dumped and not rank.gone:
            made.dumps += [_dump(sample, rank, turn, gap_s, counters) for turn in range(rounds)]
    return made


def _dump(sample: RankSample, rank: Rank, turn: int, gap_s: float, counters: bool) -> RankStacks:
    seconds = turn * gap_s
    seen = RankSample(**{**vars(sample), "state": rank.state})
    if counters:
        seen.voluntary_switches = 100 + int(rank.switches_per_s * seconds)
        seen.main_syscalls = 20 + int(rank.syscalls_per_s * seconds)
        seen.read_syscalls = 50 + int((rank.syscalls_per_s + rank.helpers_per_s) * seconds)
        seen.write_syscalls = 0
        seen.main_cpu_s = None if rank.main_cpu_s_per_s is None else 7.0 + rank.main_cpu_s_per_s * seconds
    stacks = RankStacks(sample.pid, sample.rank, sample.job, rank.node, START + seconds, 0.03, seen, seen)
    stacks.digests.append(_digest(sample, rank, turn))
    for child in rank.children:
        frames, waiting = (child.stack.frames, child.stack.waiting_in) if child.stack else ([], None)
        stacks.digests.append(
            StackDigest(
                sample.rank, child.pid, state=child.state, frames=frames, waiting_in=waiting,
                child_of=sample.pid, error=child.error, wchan=child.wchan,
                program=(child.error or "").partition("not Python: ")[2], dead=_is_dead(child.error),
                key=child.key(turn) if callable(child.key) else child.key,
            )
        )  # fmt: skip
    for thread in rank.threads:
        shown = thread.stack(turn) if callable(thread.stack) else thread.stack
        stacks.digests.append(
            StackDigest(
                sample.rank,
                sample.pid,
                thread.name,
                thread.state,
                shown.frames,
                waiting_in=shown.waiting_in,
                node=rank.node,
                switches=7 + int(thread.switches_per_s * seconds),
                cpu_s=1.0 + thread.cpu_s_per_s * seconds,
            )
        )
    return stacks


def _digest(sample: RankSample, rank: Rank, turn: int) -> StackDigest:
    shown = None if rank.error else rank.at(turn)
    return StackDigest(
        rank=sample.rank,
        pid=sample.pid,
        state=rank.state,
        frames=shown.frames if shown else [],
        waiting_in=shown.waiting_in if shown else None,
        node=rank.node,
        job=sample.job,
        wchan=rank.wchan,
        error=rank.error,
        fix=rank.fix,
        dead=_is_dead(rank.error),
    )


def _is_dead(error: str | None) -> bool:
    return (error or "").startswith(("the process is gone", "zombie: "))


def waiters(*numbers: int, **more: object) -> dict[int, Rank]:
    return {number: Rank(all_reduce(), **more) for number in numbers}  # type: ignore[arg-type]


def judge_job(evidence: JobEvidence) -> Verdict:
    return report(evidence).verdict
