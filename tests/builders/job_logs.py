"""GENERATED logs of dead NCCL jobs, for machines without GPUs: the shapes that torch, NCCL, torchrun, Slurm and Ray write,
of several releases, and what happens to them on the way (prefixes, interleaving, wrapping, colours, cuts, clocks apart).

No real job wrote these: they follow the sources and public threads. Nothing here knows how they are read.
"""

from __future__ import annotations

import gzip
import json
import lzma
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

START = 1_762_160_400.0  # 2025-11-03 09:00:00 UTC
PER_NODE = 8
TIMEOUT_S = 600.0


@dataclass
class Truth:
    """``ranks``: who failed first, empty: nobody can be named; ``nodes``: where a node is; ``ended``: how else."""

    ranks: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()
    ended: str = ""  # "well", "outside"


@dataclass
class Said:
    """One line: who, when, on which stream. ``raw``: without the rank that torch puts in front."""

    rank: int
    at: float
    text: str
    stream: str = "stderr"
    raw: bool = False
    order: int = 0


@dataclass
class Story:
    """What the ranks of one job say, before any file has it."""

    world: int
    rng: random.Random
    version: str  # "2.3", "2.7", "2.13"
    truth: Truth = field(default_factory=Truth)
    lines: list[Said] = field(default_factory=list)
    exits: dict[int, tuple[float, int]] = field(default_factory=dict)
    slurm: list[tuple[float, str]] = field(default_factory=list)
    errors: dict[int, tuple[float, str]] = field(default_factory=dict)
    attempts: list[Story] = field(default_factory=list)  # those before it
    local_size: int = PER_NODE
    skews: dict[str, float] = field(default_factory=dict)  # of each node's clock

    def say(self, rank: int, at: float, text: str, stream: str = "stderr", raw: bool = False) -> None:
        for line in text.split("\n"):
            self.lines.append(Said(rank, at, line, stream, raw, len(self.lines)))

    def node(self, rank: int) -> str:
        return f"n{rank // self.local_size + 1:03d}"

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(map(self.node, range(self.world))))

    def skew(self, rank: int) -> float:
        return self.skews.get(self.node(rank), 0.0)

    def ip(self, rank: int) -> str:
        return f"10.0.{rank // self.local_size // 250}.{rank // self.local_size % 250 + 1}"

    def pid(self, rank: int) -> int:
        return 4000 + rank * 7 % 30011


def c10(severity: str, at: float) -> str:
    local = time.localtime(at)
    return f"[{severity}{local.tm_mon}{local.tm_mday:02d} {time.strftime('%H:%M:%S', local)}.{int(at % 1 * 1e9):09d} "


def traceback(frames: list[tuple[str, int, str]], last: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, line, function in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {function}_call(batch)"]
    return "\n".join([*lines, last])


LIB = "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


class Words:
    """torch's lines of one release."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def _group(self, rank: int, group: tuple[str, str, int] | None) -> str:
        guid, name, own = group or ("0", "default_pg", rank)
        if self.story.version == "2.3":
            return f"[PG {guid if guid.isdigit() else 1} Rank {own}] "
        return f"[PG ID {guid} PG GUID {guid}({name}) Rank {own}] "

    def timeout(
        self, rank: int, at: float, seq: int, op: str, numel: int, group: tuple[str, str, int] | None = None
    ) -> None:
        ran = int(TIMEOUT_S * 1000) + self.story.rng.randint(3, 90)
        head = f"{c10('E', at + self.story.skew(rank))}ProcessGroupNCCL.cpp:{self.story.rng.choice([563, 607, 632, 683])}] {self._group(rank, group)}"
        work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)={int(TIMEOUT_S * 1000)})"
        self.story.say(
            rank,
            at,
            f"{head}Watchdog caught collective operation timeout: {work} ran for {ran} milliseconds before timing out.",
        )

    def triple(
        self, rank: int, at: float, seq: int, enq: int, done: int, group: tuple[str, str, int] | None = None
    ) -> None:
        head = f"{c10('E', at + self.story.skew(rank))}ProcessGroupNCCL.cpp:{self.story.rng.choice([1785, 2268])}] {self._group(rank, group)}"
        if self.story.version == "2.3":
            self.story.say(
                rank,
                at,
                f"{head}Timeout at NCCL work: {seq}, last enqueued NCCL work: {enq}, last completed NCCL work: {done}.",
            )
            return
        started = f" last started work: {seq} (ALLREDUCE)," if self.story.version == "2.13" else ""
        self.story.say(
            rank, at, f"{head} failure detected by watchdog at work sequence id: {seq} PG status: "
            f"last enqueued work: {enq},{started} last completed work: {done}",
        )  # fmt: skip

    def dump(self, rank: int, at: float, source: int, enq: int, done: int) -> None:
        head = f"{c10('E', at + self.story.skew(rank))}ProcessGroupNCCL.cpp:1683] {self._group(rank, None)}"
        if self.story.version == "2.3":
            self.story.say(
                rank, at, f"{head}Received a global timeout from another rank and will start to dump the debug info. "
                f"Last enqueued NCCL work: {enq}, last completed NCCL work: {done}.",
            )  # fmt: skip
            return
        self.story.say(rank, at - 0.002, f"{c10('E', at + self.story.skew(rank))}ProcessGroupNCCL.cpp:1743] {self._group(rank, None)}"
                       "Observed flight recorder dump signal from another rank via TCPStore.")  # fmt: skip
        self.story.say(
            rank, at, f"{head}Received a dump signal due to a collective timeout from  rank {source} and we will try our "
            f"best to dump the debug info. Last enqueued NCCL work: {enq}, last completed NCCL work: {done}.This is most "
            "likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of collectives "
            "is not same for all ranks or the scheduled collective, for some reason, didn't run.",
        )  # fmt: skip

    def aborts(self, rank: int, at: float, group: tuple[str, str, int] | None = None) -> None:
        head = f"{c10('E', at + self.story.skew(rank))}ProcessGroupNCCL.cpp:681] {self._group(rank, group)}"
        self.story.say(rank, at, f"{head}Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
                       "kernels, subsequent GPU operations might run on corrupted/incomplete data.")  # fmt: skip
        self.story.say(rank, at, f"{head}To avoid data inconsistency, we are taking the entire process down.")
        self.story.say(rank, at, f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {self._group(rank, group)}"
                       "Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout", raw=True)  # fmt: skip
        self.story.exits.setdefault(rank, (at, -6))

    def nccl_error(self, rank: int, at: float) -> None:
        code = self.story.rng.choice(["ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
                                      "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."])  # fmt: skip
        frames = [("/job/train.py", 212, "train"), (LIB, 2806, "all_reduce")]
        error = f"torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, unhandled system error, NCCL version 2.27.3\n{code}"
        self.story.say(rank, at - 0.01, f"{self.story.node(rank)}:{self.story.pid(rank)}:{self.story.pid(rank) + 300} [{rank % self.story.local_size}] "
                       f"misc/socket.cc:484 NCCL WARN socketProgress: Connection closed by remote peer {self.story.node(0)}<43210>", raw=True)  # fmt: skip
        self.story.say(rank, at, traceback(frames, error))
        self.story.errors.setdefault(rank, (at, error.partition("\n")[0]))
        self.story.exits.setdefault(rank, (at, 1))


# What happened. Each fills a story, and says what is true.


def _steps(story: Story, until: float, every: float = 30.0) -> None:
    """Progress that some of the ranks print, as it is usual."""
    who = story.rng.choice([[0], [story.world - 1], list(range(story.world))])
    for rank in who:
        at, step = START + 60, 1
        while at < until:
            story.say(
                rank,
                at,
                f"iteration {step:8d}/   50000 | consumed samples: {step * 512} | lm loss: {3 / step + 1:.6E} |",
                "stdout",
                raw=True,
            )
            at, step = at + every, step + 1
    for rank in range(story.world):
        story.say(rank, START + rank * 0.001, f"NCCL version 2.27.3+cuda12.9 rank {rank} ready", "stdout", raw=True)


def own_exception(story: Story) -> None:
    words, rng = Words(story), story.rng
    culprit, at = rng.randrange(story.world), START + 900 + rng.random() * 500
    _steps(story, at)
    last = rng.choice([
        "ValueError: expected input batch of 8 columns, got 7", "RuntimeError: shape '[8, 128]' is invalid for input of size 1000",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-0042.bin'", "OSError: [Errno 28] No space left on device",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.1 GiB",
        "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: \"https://s3.local/bucket/x\"",
        "AssertionError: loss is nan at step 31", "KeyError: 'attention_mask'",
    ])  # fmt: skip
    story.say(culprit, at, traceback([("/job/train.py", 88, "main"), ("/job/data.py", 31, "collate")], last))
    story.errors[culprit], story.exits[culprit] = (at, last), (at + 1, 1)
    _fall(story, words, culprit, at)
    story.truth = Truth(frozenset({culprit}))


def _fall(story: Story, words: Words, culprit: int, at: float) -> None:
    """How the others end after one is gone: by losing connections at once, or by waiting."""
    others = [rank for rank in range(story.world) if rank != culprit]
    if story.rng.random() < 0.6:
        for rank in others:
            words.nccl_error(rank, at + 1.2 + story.rng.random() * 4)
        return
    seq = story.rng.randint(40, 4000)
    ends = at + TIMEOUT_S + 2
    for rank in others:
        mine = ends + story.rng.random() * 3
        words.timeout(rank, mine, seq, "ALLREDUCE", 4096)
        words.triple(rank, mine + 0.001, seq, seq + 2, seq - 1)
        words.aborts(rank, mine + 62)


def killed(story: Story) -> None:
    words, rng = Words(story), story.rng
    culprit, at = rng.randrange(story.world), START + 900 + rng.random() * 500
    _steps(story, at)
    story.exits[culprit] = (at, rng.choice([-9, -9, -11, -7]))
    if story.exits[culprit][1] == -9 and rng.random() < 0.5:
        story.slurm.append(
            (
                at,
                f"slurmstepd: error: Detected 1 oom_kill event in StepId={7000 + culprit}.0. Some of the step tasks have been OOM Killed.",
            )
        )
    if story.exits[culprit][1] == -11 and rng.random() < 0.5:
        story.say(culprit, at, "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f1a2b3c4d5e (most recent call first):\n"
                  '  File "/job/model.py", line 77, in forward\n  File "/job/train.py", line 40, in main', raw=True)  # fmt: skip
    for rank in range(story.world):
        if rank != culprit:
            words.nccl_error(rank, at + 1.5 + rng.random() * 3)
            story.exits[rank] = (at + 4, -15)
    story.truth = Truth(frozenset({culprit}))


def never_entered(story: Story, how_many: int = 1) -> None:
    words, rng = Words(story), story.rng
    culprits = set(rng.sample(range(story.world), min(how_many, max(1, story.world // 4))))
    seq, begin = rng.randint(40, 4000), START + 900 + rng.random() * 300
    _steps(story, begin)
    for rank in range(story.world):
        at = begin + TIMEOUT_S + rng.random() * 5
        if rank in culprits:
            if story.version != "2.13" or rng.random() < 0.9:
                words.dump(
                    rank,
                    begin + TIMEOUT_S + 7,
                    next(r for r in range(story.world) if r not in culprits),
                    seq - 1,
                    seq - 1,
                )
            continue
        words.timeout(rank, at, seq, "ALLREDUCE", 8192)
        words.triple(rank, at + 0.001, seq, seq + rng.randint(0, 3), seq - 1)
        words.aborts(rank, at + 63)
    for rank in culprits:
        story.exits[rank] = (begin + TIMEOUT_S + 90, -15)
    story.truth = Truth(frozenset(culprits))


def never_entered_some(story: Story) -> None:
    never_entered(story, how_many=story.rng.randint(2, 4))


def silent(story: Story) -> None:
    """The culprit writes nothing more: its process is stopped, its heartbeat thread too."""
    words, rng = Words(story), story.rng
    culprit, seq, begin = rng.randrange(story.world), rng.randint(40, 4000), START + 900.0
    _steps(story, begin)
    for rank in range(story.world):
        if rank != culprit:
            at = begin + TIMEOUT_S + rng.random() * 4
            words.timeout(rank, at, seq, "_ALLGATHER_BASE", 1 << 20)
            if story.version != "2.3":
                words.triple(rank, at, seq, seq, seq - 1)
            words.aborts(rank, at + 61)
    story.exits[culprit] = (begin + TIMEOUT_S + 70, -15)
    story.truth = Truth(frozenset({culprit}))


def mismatch(story: Story) -> None:
    words, rng = Words(story), story.rng
    culprit, seq, begin = rng.randrange(story.world), rng.randint(40, 4000), START + 1000.0
    _steps(story, begin)
    other_op = rng.random() < 0.5
    for rank in range(story.world):
        at = begin + TIMEOUT_S + rng.random() * 2
        op = "BROADCAST" if rank == culprit and other_op else "ALLREDUCE"
        numel = 4096 if rank != culprit else 4096 if other_op else 4097
        words.timeout(rank, at, seq, op, numel)
        words.triple(rank, at, seq, seq + 1, seq - 1)
        words.aborts(rank, at + 61)
    story.truth = Truth(frozenset({culprit}) if story.world > 2 else frozenset())


def below_the_host(story: Story) -> None:
    words, rng = Words(story), story.rng
    seq, begin = rng.randint(40, 4000), START + 1000.0
    _steps(story, begin)
    for rank in range(story.world):
        at = begin + TIMEOUT_S + rng.random()
        words.timeout(rank, at, seq, "ALLREDUCE", 1 << 22)
        words.triple(rank, at, seq, seq + 1, seq - 1)
        words.aborts(rank, at + 61)
    story.truth = Truth()


def time_limit(story: Story) -> None:
    _steps(story, START + 3000)
    at = START + 3600
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
    story.slurm.append(
        (at, f"slurmstepd: error: *** STEP 7000.0 ON {story.node(0)} CANCELLED AT {stamp} DUE TO TIME LIMIT ***")
    )
    story.slurm.append((at + 1, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."))
    for rank in range(story.world):
        story.exits[rank] = (at + 1, -15)
    story.truth = Truth(ended="outside")


def ended_well(story: Story) -> None:
    _steps(story, START + 3000)
    for rank in range(story.world):
        story.say(rank, START + 3001, "WARNING: error_if_nonfinite is deprecated, no errors so far", "stderr", raw=True)
        story.say(rank, START + 3002, "training done, saving", "stdout", raw=True)
    story.truth = Truth(ended="well")


def alike(story: Story) -> None:
    last = "omegaconf.errors.ConfigAttributeError: Missing key optimiser"
    for rank in range(story.world):
        at = START + 40 + story.rng.random() * 0.5
        story.say(rank, at, traceback([("/job/train.py", 12, "main")], last))
        story.errors[rank], story.exits[rank] = (at, last), (at + 1, 1)
    story.truth = Truth()  # the program's, which is the same on all of them


def barrier(story: Story) -> None:
    rng = story.rng
    culprit, at = rng.randrange(1, story.world), START + 700.0
    _steps(story, at)
    error = f"RuntimeError: [Rank 0]: Rank {culprit} failed to pass monitoredBarrier in 60000 ms"
    story.say(
        0,
        at,
        f"{c10('E', at + story.skew(0))}ProcessGroupGloo.cpp:67] [Rank 0]: Rank {culprit} failed to pass monitoredBarrier in 60000 ms",
    )
    story.say(0, at, traceback([("/job/train.py", 30, "main"), (LIB, 4000, "monitored_barrier")], error))
    story.errors[0], story.exits[0] = (at, error), (at, 1)
    for rank in range(1, story.world):
        if rank == culprit:
            story.exits[rank] = (at + 2, -15)
            continue
        text = f"RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
        story.say(rank, at + 0.1, traceback([("/job/train.py", 30, "main"), (LIB, 4000, "monitored_barrier")], text))
        story.errors[rank], story.exits[rank] = (at, text), (at + 1, 1)
    story.truth = Truth(frozenset({culprit}))


def device_assert(story: Story) -> None:
    words, rng = Words(story), story.rng
    culprit, at = rng.randrange(story.world), START + 1200.0
    _steps(story, at)
    for thread in range(rng.randint(1, 40)):
        story.say(culprit, at, f"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: operator(): block: [{thread},0,0], thread: [{thread},0,0] "
                  'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.', raw=True)  # fmt: skip
    last = "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
    story.say(culprit, at + 0.2, traceback([("/job/model.py", 61, "forward")], last))
    story.errors[culprit], story.exits[culprit] = (at + 0.2, last.partition("\n")[0]), (at + 1, 1)
    _fall(story, words, culprit, at + 0.3)
    story.truth = Truth(frozenset({culprit}))


def sub_group(story: Story) -> None:
    """A rank that never comes to a collective of its tensor-parallel group; the others wait later in the default one."""
    words, rng = Words(story), story.rng
    size = 4 if story.world >= 8 else 2
    culprit = rng.randrange(story.world)
    first = culprit // size * size
    seq, begin = rng.randint(40, 4000), START + 900.0
    _steps(story, begin)
    name = f"mesh_tp_{first // size}"
    for rank in range(story.world):
        in_group = first <= rank < first + size
        group = (str(10 + first // size), name, rank - first) if in_group else None
        if rank == culprit:
            words.dump(rank, begin + TIMEOUT_S + 8, first if first != culprit else first + 1, 500, 500)
        elif in_group:
            at = begin + TIMEOUT_S + rng.random()
            words.timeout(rank, at, seq, "ALLREDUCE", 2048, group)
            words.triple(rank, at, seq, seq, seq - 1, group)
            words.aborts(rank, at + 61, group)
        else:
            words.dump(rank, begin + TIMEOUT_S + 8, first if first != culprit else first + 1, 501, 500)
            words.timeout(rank, begin + 4 + TIMEOUT_S + rng.random(), 501, "ALLREDUCE", 64)
            words.triple(rank, begin + 4 + TIMEOUT_S + 1, 501, 501, 500)
    story.truth = Truth(frozenset({culprit}))


def network(story: Story) -> None:
    words, rng = Words(story), story.rng
    bad = rng.randrange(story.world) // story.local_size * story.local_size
    at = START + 1500.0
    _steps(story, at)
    for rank in range(story.world):
        own = rank // story.local_size * story.local_size == bad
        peer = story.ip(bad) if not own else story.ip((bad + story.local_size) % story.world)
        if story.world <= story.local_size:
            peer = story.ip(rank)
        shape = rng.choice([
            "with error 12, opcode 0, len 0, vendor err 129 (Recv)",
            "with status=12 opcode=32 len=0 vendor err 129 (Recv) localGid ::ffff:10.0.0.1 hca mlx5_1",
            "with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send hca mlx5_3",
        ])  # fmt: skip
        if own and rng.random() < 0.8:
            story.exits[rank] = (at + 6, -15)
            continue
        story.say(rank, at + rng.random(), f"{story.node(rank)}:{story.pid(rank)}:{story.pid(rank) + 9} [{rank % 8}] transport/net_ib.cc:1300 NCCL WARN NET/IB: "
                  f"Got completion from peer {peer}<45678> {shape}", raw=True)  # fmt: skip
        words.nccl_error(rank, at + 2 + rng.random())
    story.truth = Truth(nodes=frozenset({story.node(bad), story.ip(bad)}))


def retried_before(story: Story) -> None:
    """Hostile: one rank logged an exception that it survived, long before another got stuck."""
    decoy = story.rng.randrange(story.world)
    story.say(
        decoy,
        START + 500,
        traceback(
            [("/job/data.py", 90, "fetch")],
            "ConnectionError: HTTPSConnectionPool(host='s3.local', port=443): Max retries exceeded",
        ),
    )
    for step in range(17, 20):
        story.say(decoy, START + 510 + step, f"iteration {step}/ 50000 | lm loss: 2.0 |", raw=True)
    never_entered(story)


def fails_afterwards(story: Story) -> None:
    """Hostile: victims raise errors of their own while they are torn down."""
    never_entered(story)
    for rank in story.rng.sample(range(story.world), max(1, story.world // 3)):
        if rank not in story.truth.ranks:
            at = START + 900 + 300 + TIMEOUT_S + 70
            story.say(
                rank,
                at,
                traceback(
                    [("/job/train.py", 300, "finish")], "AttributeError: 'NoneType' object has no attribute 'shutdown'"
                ),
            )


def second_attempt(story: Story) -> None:
    """A first attempt with the cause, and a second one that finds only closed connections."""
    before = Story(story.world, story.rng, story.version, skews=story.skews)
    own_exception(before)
    story.attempts.append(before)
    for rank in range(story.world):
        Words(story).nccl_error(rank, START + 4000 + story.rng.random())
    story.truth = before.truth


STORIES: dict[str, Callable[[Story], None]] = {
    function.__name__: function
    for function in (
        own_exception, killed, never_entered, never_entered_some, silent, mismatch, below_the_host, time_limit, ended_well,
        alike, barrier, device_assert, sub_group, network, retried_before, fails_afterwards, second_attempt,
    )
}  # fmt: skip


# What launchers and servers other than torchrun add. None of it names who it was, but NVRx's monitors.


def _lose(story: Story, culprit: int, at: float) -> None:
    for rank in range(story.world):
        if rank != culprit:
            Words(story).nccl_error(rank, at + 1.2 + story.rng.random() * 4)
    story.exits.clear()  # there is no table


def _raised_or_killed(story: Story, at: float) -> tuple[int, int]:
    """Who, and its exit code."""
    culprit, is_killed = story.rng.randrange(story.world), story.rng.random() < 0.3
    _steps(story, at)
    if not is_killed:
        last = story.rng.choice(
            ["ValueError: bad batch", "KeyError: 'labels'", "OSError: [Errno 5] Input/output error"]
        )
        story.say(culprit, at, traceback([("/job/train.py", 88, "main"), ("/job/data.py", 31, "collate")], last))
    _lose(story, culprit, at)
    story.truth = Truth(frozenset({culprit}))
    return culprit, -9 if is_killed else 1


def deepspeed(story: Story) -> None:
    """The command that is printed is the last launched child's, whoever failed."""
    at = START + 900 + story.rng.random() * 100
    _, code = _raised_or_killed(story, at)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at + 9))
    for rank in range(story.world):
        line = (
            f"[{stamp},{rank % 1000:03d}] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {story.pid(rank)}"
        )
        story.slurm.append((at + 9, line))
    command = f"['/usr/bin/python', '-u', 'train.py', '--local_rank={min(story.world, story.local_size) - 1}']"
    line = f"[{stamp},999] [ERROR] [launch.py:325:sigkill_handler] {command} exits with return code = {code}"
    story.slurm.append((at + 9, line))


def lightning(story: Story) -> None:
    """The first process of each node watches those that it started, and numbers them within the node."""
    at = START + 900 + story.rng.random() * 100
    culprit, code = _raised_or_killed(story, at)
    local = culprit % story.local_size
    if local:
        story.say(
            culprit - local,
            at + 8,
            f"[rank: {local}] Child process with PID {story.pid(culprit)} terminated with code {code}."
            " Forcefully terminating all other processes to avoid zombies 🧟",
            raw=True,
        )


def accelerate(story: Story) -> None:
    at = START + 900 + story.rng.random() * 100
    _raised_or_killed(story, at)
    command = "['torchrun', '--nproc_per_node', '8', 'train.py']"
    error = f"subprocess.CalledProcessError: Command '{command}' returned non-zero exit status 1."
    frames = [
        ("/opt/conda/bin/accelerate", 8, "<module>"),
        ("/opt/conda/lib/python3.11/site-packages/accelerate/commands/launch.py", 941, "multi_gpu_launcher"),
    ]
    story.slurm += [(at + 9, line) for line in traceback(frames, error).split("\n")]


def nvrx(story: Story) -> None:
    """A monitor of each rank: that of the culprit complains first, those of the ranks that wait for it perhaps, later."""
    rng, begin = story.rng, START + 900.0
    culprit = rng.randrange(story.world)
    _steps(story, begin)
    words = rng.choice([
        "[Cycle 0] Did not get subsequent heartbeat. Waited {0:.2f} seconds.",
        "Section 'step' has been open for {0:.2f} seconds. Timeout is 300 seconds.",
        "[Cycle 0] Did not get initial heartbeat. Waited {0:.2f} seconds.",
    ])  # fmt: skip
    others = [rank for rank in range(story.world) if rank != culprit] if rng.random() < 0.5 else []
    for rank in (culprit, *others):
        at = begin + 300 + (20 + rng.random() * 10 if rank != culprit else 0)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at + story.skew(rank)))
        monitor = f"[RankMonServer{story.pid(rank) + 1}@{story.node(rank)}:{rank}]"
        story.say(rank, at, f"{monitor} {stamp},{rng.randrange(1000):03d} WARNING {words.format(300.2)}", raw=True)
    story.truth = Truth(frozenset({culprit}))


def vllm(story: Story) -> None:
    """An engine waits for its workers; one of them raised, or nobody says what it did."""
    rng, at = story.rng, START + 900.0
    bad, says = rng.randrange(story.world), rng.random() < 0.6
    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(at))
    worker = f"(Worker_TP{bad} pid={story.pid(bad)})"
    if says:
        raised = traceback(
            [("/opt/vllm/vllm/v1/executor/multiproc_executor.py", 671, "worker_busy_loop")],
            "RuntimeError: shape mismatch in rotary embedding",
        )
        for line in raised.split("\n"):
            story.say(bad, at, f"{worker} ERROR {stamp} [multiproc_executor.py:671] {line}", raw=True)
    engine = "(EngineCore_DP0 pid=3999)"
    for minute in range(1, 5):
        story.say(0, at + 60 * minute, f"{engine} INFO {stamp} [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds. "
                  "This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization).", raw=True)  # fmt: skip
    died = traceback(
        [("/opt/vllm/vllm/v1/executor/multiproc_executor.py", 243, "collective_rpc")],
        "TimeoutError: RPC call to execute_model timed out.",
    )
    for line in died.split("\n"):
        story.say(0, at + 300, f"{engine} ERROR {stamp} [core.py:710] {line}", raw=True)
    story.truth = Truth(frozenset({bad}))


def requeued(story: Story) -> None:
    """Slurm's requeue appends to the same file: the first run's own failure, and a second one that ends from outside."""
    before = Story(story.world, story.rng, story.version, skews=story.skews)
    at = START + 900 + story.rng.random() * 100
    _raised_or_killed(before, at)
    story.attempts.append(before)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at + 20))
    notice = f"slurmstepd: error: *** JOB 7000 ON {story.node(0)} CANCELLED AT {stamp} DUE TO JOB REQUEUE ***"
    before.say(0, at + 20, notice, raw=True)
    for rank in range(story.world):
        story.say(rank, at + 400, f"iteration 20/ 50000 of rank {rank} | lm loss: 2.0 |", "stdout", raw=True)
        Words(story).nccl_error(rank, at + 900 + story.rng.random())
    story.exits.clear()
    story.truth = before.truth


LAUNCHED: dict[str, Callable[[Story], None]] = {
    function.__name__: function for function in (deepspeed, lightning, accelerate, nvrx, vllm, requeued)
}


# Where the lines go.


def _torch_rank(said: Said) -> str:
    return said.text if said.raw else f"[rank{said.rank}]:{'' if said.text.startswith('[') else ' '}{said.text}"


def _table(story: Story, ranks: list[int], run: str, attempt: int, with_errors: bool) -> list[str]:
    failed = sorted((story.exits[rank][0], rank) for rank in ranks if rank in story.exits)
    if not failed:
        return []
    own = [each for each in failed if story.exits[each[1]][1] not in (-15,)] or failed
    root = own[0]
    lines = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
    ]

    def entry(number: int, at: float, rank: int) -> list[str]:
        code = story.exits[rank][1]
        name = {-9: "  (SIGKILL)", -15: "  (SIGTERM)", -6: "  (SIGABRT)", -11: "  (SIGSEGV)", -7: "  (SIGBUS)"}.get(
            code, ""
        )
        rows = [
            f"[{number}]:", f"  time      : {time.strftime('%Y-%m-%d_%H:%M:%S', time.localtime(at + story.skew(rank)))}",
            f"  host      : {story.node(rank)}.cluster", f"  rank      : {rank} (local_rank: {rank % story.local_size})",
            f"  exitcode  : {code} (pid: {story.pid(rank)}){name}",
        ]  # fmt: skip
        if with_errors and rank in story.errors:
            error = story.errors[rank][1]
            rows += [f"  error_file: /logs/{run}/attempt_{attempt}/{rank % story.local_size}/error.json",
                     "  traceback : Traceback (most recent call last):", '    File "/job/train.py", line 1, in main', "      run()", f"  {error}", "  "]  # fmt: skip
        else:
            what = (
                f"Signal {-code} (SIG) received by PID {story.pid(rank)}"
                if code < 0
                else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
            )
            rows += ["  error_file: <N/A>", f"  traceback : {what}"]
        return rows

    for number, (at, rank) in enumerate((each for each in failed if each != root), 1):
        lines += entry(number, at, rank)
    return [*lines, "-" * 60, "Root Cause (first observed failure):", *entry(0, *root), "=" * 60]


def torchrun_folders(story: Story) -> Iterator[tuple[str, list[str]]]:
    with_errors = story.rng.random() < 0.6
    runs = {node: f"none_{''.join(story.rng.choices('abcdefghijklmnop0123456789_', k=8))}" for node in story.nodes}
    every = [*story.attempts, story]
    for number, told in enumerate(every):
        for rank in range(story.world):
            folder = f"logs/{runs[story.node(rank)]}/attempt_{number}/{rank % story.local_size}"
            for stream in ("stdout", "stderr"):
                yield (
                    f"{folder}/{stream}.log",
                    [_torch_rank(each) for each in told.lines if each.rank == rank and each.stream == stream],
                )
            if with_errors and rank in told.errors:
                at, error = told.errors[rank]
                message = {
                    "message": error,
                    "extraInfo": {
                        "py_callstack": 'Traceback…\n  File "/job/train.py", line 3, in main\n',
                        "timestamp": str(int(at + story.skew(rank))),
                    },
                }
                yield f"{folder}/error.json", [json.dumps({"message": message})]
    for node in story.nodes:
        ranks = [rank for rank in range(story.world) if story.node(rank) == node]
        yield f"launcher-{node}.out", _table(story, ranks, runs[node], len(every) - 1, with_errors)


def rank_files(story: Story) -> Iterator[tuple[str, list[str]]]:
    name = story.rng.choice(["rank_{0}.log", "{1}-rank{0}.out", "train.{0}.log"])
    for rank in range(story.world):
        lines = [_torch_rank(each) for told in (*story.attempts, story) for each in told.lines if each.rank == rank]
        yield name.format(rank, story.node(rank)), lines
    if story.slurm:
        yield "slurm.err", [text for _, text in story.slurm]


def _shared(story: Story, ranks: list[int], prefix: Callable[[int], str]) -> list[str]:
    lines = []
    for told in (*story.attempts, story):
        lines += [
            f"{prefix(each.rank)}{_torch_rank(each)}"
            for each in sorted(told.lines, key=lambda said: (round(said.at, 1), said.rank, said.order))
            if each.rank in ranks
        ]
    return lines


def srun_label(story: Story) -> Iterator[tuple[str, list[str]]]:
    width = len(str(story.world - 1))
    lines = _shared(story, list(range(story.world)), lambda rank: f"{rank:>{width}}: ")
    tail = [text for _, text in story.slurm]
    signals = {-9: "Killed", -11: "Segmentation fault (core dumped)", -7: "Bus error"}
    for rank, (_, code) in sorted(story.exits.items(), key=lambda each: each[1][0]):
        word = signals.get(
            code,
            "Terminated" if code == -15 else "Aborted (core dumped)" if code == -6 else f"Exited with exit code {code}",
        )
        tail.append(f"srun: error: {story.node(rank)}: task {rank}: {word}")
    yield "slurm-7000.out", lines + tail


def tee_per_node(story: Story) -> Iterator[tuple[str, list[str]]]:
    for node in story.nodes:
        ranks = [rank for rank in range(story.world) if story.node(rank) == node]
        lines = _shared(story, ranks, lambda rank: f"[default{rank % story.local_size}]:")
        lines += [text for _, text in story.slurm] if node == story.nodes[0] else []
        yield f"job-7000-{node}.log", lines + _table(story, ranks, "none_abcdefgh", len(story.attempts), False)


def one_file(story: Story) -> Iterator[tuple[str, list[str]]]:
    lines = _shared(story, list(range(story.world)), lambda rank: "") + [text for _, text in story.slurm]
    for node in story.nodes if not story.attempts else []:
        lines += _table(
            story, [rank for rank in range(story.world) if story.node(rank) == node], "none_abcdefgh", 0, False
        )
    yield "train.log", lines


def ray(story: Story) -> Iterator[tuple[str, list[str]]]:
    lines, seen = [], {}
    for line, said in (
        (_torch_rank(each), each)
        for each in sorted(story.lines, key=lambda said: (round(said.at, 1), said.rank, said.order))
    ):
        key = "".join(letter for letter in line if not letter.isdigit())
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 1:
            lines.append(f"\x1b[36m(RayTrainWorker pid={story.pid(said.rank)}, ip={story.ip(said.rank)})\x1b[0m {line}")
        elif seen[key] == 5:
            lines.append(
                f"\x1b[36m(RayTrainWorker pid={story.pid(said.rank)}, ip={story.ip(said.rank)})\x1b[0m {line}\x1b[32m [repeated 4x across cluster]\x1b[0m"
            )
    yield "driver.log", lines


LAYOUTS = {
    function.__name__: function for function in (torchrun_folders, rank_files, srun_label, tee_per_node, one_file, ray)
}


# What happens to files on their way.


def wrapped(text: str, rng: random.Random) -> str:
    width = rng.choice([80, 100, 120])
    return "\n".join(line[at : at + width] for line in text.split("\n") for at in range(0, max(1, len(line)), width))


def interleaved(text: str, rng: random.Random) -> str:
    """Some lines lose their line break to another process's write."""
    lines = text.split("\n")
    out = []
    for line in lines:
        if out and line.startswith("[rank") and rng.random() < 0.15 and not out[-1].startswith("["):
            out[-1] += line
        else:
            out.append(line)
    return "\n".join(out)


def coloured(text: str, rng: random.Random) -> str:
    return "\n".join(
        f"\x1b[3{rng.randrange(8)}m{line}\x1b[0m" if line and rng.random() < 0.5 else line for line in text.split("\n")
    )


def bars(text: str, rng: random.Random) -> str:
    """A progress bar before some lines, which is written over."""
    bar = "".join(f"\r{share:3d}%|{'#' * (share // 10):<10}| {share}/100" for share in range(0, 100, 10))
    return "\n".join(f"{bar}\r{line}" if rng.random() < 0.05 else line for line in text.split("\n"))


def junk(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(3):
        lines.insert(rng.randrange(len(lines)), "\x00\x07\ufffd" * 5 + "x" * rng.choice([3, 5000]))
    return "\n".join(lines)


def crlf(text: str, _rng: random.Random) -> str:
    return text.replace("\n", "\r\n")


SPOILED = {
    "plain": None,
    "wrapped": wrapped,
    "interleaved": interleaved,
    "coloured": coloured,
    "bars": bars,
    "junk": junk,
    "crlf": crlf,
}
LOSSES = ("nothing", "nothing", "nothing", "cut ends", "ranks lost", "node lost")


@dataclass(frozen=True)
class Case:
    """Which story, in which layout, spoiled how."""

    seed: int
    story: str
    layout: str
    world: int
    spoiled: str
    loss: str
    clocks_apart: bool
    packed: str


def case(seed: int) -> Case:
    rng = random.Random(seed)
    story = list(STORIES)[seed % len(STORIES)]
    layout = rng.choice(list(LAYOUTS))
    if story == "time_limit" and layout in ("torchrun_folders", "ray"):
        layout = "tee_per_node"
    if story == "second_attempt":
        layout = "torchrun_folders"
    world = rng.choice([4, 4, 8, 8, 16, 32, 64] + ([128, 512] if rng.random() < 0.3 else []))
    if story == "network":
        world = max(world, 16)  # within one node there is none
    spoiled = rng.choice(list(SPOILED))
    if spoiled == "wrapped" and layout in ("tee_per_node", "srun_label"):
        spoiled = "plain"  # these are files, no terminals
    return Case(
        seed,
        story,
        layout,
        world,
        spoiled,
        rng.choice(LOSSES),
        rng.random() < 0.4,
        rng.choice(["", "", "", "gz", "xz"]),
    )


def launched_case(seed: int) -> Case:
    """Of what launchers and servers other than torchrun add."""
    rng = random.Random(seed)
    story = list(LAUNCHED)[seed % len(LAUNCHED)]
    layout = rng.choice(["rank_files", "srun_label", "one_file", "tee_per_node"])
    if story in ("vllm", "requeued"):
        layout = "one_file"
    world = rng.choice([4, 8] if story == "vllm" else [4, 8, 16, 32, 64])
    spoiled, loss = (
        rng.choice(["plain", "plain", "interleaved", "coloured", "bars", "junk", "crlf"]),
        rng.choice(LOSSES),
    )
    return Case(seed, story, layout, world, spoiled, loss, rng.random() < 0.4, rng.choice(["", "", "gz"]))


def write(asked: Case, folder: Path) -> Truth:
    """The files of a case; what is true of them."""
    rng = random.Random(asked.seed + 1_000_003)
    story = Story(asked.world, rng, rng.choice(["2.3", "2.7", "2.13"]))
    apart = 300.0 if asked.clocks_apart else 0.2
    story.skews = {node: rng.uniform(-apart, apart) for node in story.nodes}
    (STORIES.get(asked.story) or LAUNCHED[asked.story])(story)
    files = list(LAYOUTS[asked.layout](story))
    lost = rng.choice(story.nodes) if asked.loss == "node lost" else ""
    for name, lines in files:
        if asked.loss == "ranks lost" and (name, lines) != files[0] and rng.random() < 0.15:
            continue
        if lost and asked.layout == "tee_per_node" and lost in name and len(story.nodes) > 1:
            continue
        text = "\n".join(lines) + ("\n" if lines else "")
        bend = SPOILED[asked.spoiled]
        if bend is not None and text and not name.endswith(".json"):
            text = bend(text, rng)
        if asked.loss == "cut ends" and rng.random() < 0.5 and not name.endswith(".json"):
            text = text[: rng.randrange(len(text) // 2, len(text) + 1)] if text else text
        _store(folder / name, text.encode("utf-8", "replace"), asked.packed if not name.endswith(".json") else "")
    places = {place for rank in story.truth.ranks for place in (story.node(rank), story.ip(rank))}
    return replace(story.truth, nodes=story.truth.nodes | places)


def _store(path: Path, data: bytes, packed: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed == "gz":
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, 1))
    elif packed == "xz":
        path.with_name(path.name + ".xz").write_bytes(lzma.compress(data, preset=0))
    else:
        path.write_bytes(data)
