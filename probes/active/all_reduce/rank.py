"""A rank: forked from a process that has torch imported, it waits for rounds and measures in them.

Its channel carries JSON lines: from the launcher ``NodeRound``s, to the launcher ``ProbeEvent``s. Beside those that the
launcher passes on (stage, times, refused, failed) these are
    up        it has its device and the store
    done      with the round
    raised    ``why``; {"connection": was it lost because of another rank?}

Nothing but the collective is between two readings of the clock, and there is no barrier between iterations: a rank
that comes late has the shortest time, because it waits for nobody.
"""

from __future__ import annotations

import json
import mmap
import socket
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.all_reduce import collectives
from mltop.probes.active.all_reduce.options import READY_S, Options, Round
from mltop.probes.active.device import CpuTimer, CudaTimer, Timer
from mltop.probes.active.endings import is_lost
from mltop.probes.model.probe import ProbeEvent, RankTimes
from mltop.probes.model.probe_kinds import COLLECTIVES
from mltop.probes.model.units import size_words

_NUMBER_BYTES = 8
# Above this the host waits for every collective on a GPU, so that it is known which one hangs; below, waiting would
# be part of the time.
PACED_FROM_BYTES = 1 << 24


class Progress:
    """How far each rank of this node has come, in memory that the ranks and their launcher share: made before the first
    fork, two numbers per rank.

    A rank cannot tell what it waits for while it waits: the launcher reads its numbers when a deadline passes.
    """

    def __init__(self, ranks: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 2 * _NUMBER_BYTES * max(1, ranks))).cast("q")

    def clear(self, local: int) -> None:
        self._numbers[2 * local] = self._numbers[2 * local + 1] = 0

    def begin(self, local: int, is_stage: bool = False) -> None:
        """One more step is begun: a collective, or a stage."""
        self._numbers[2 * local] += 1
        self._numbers[2 * local + 1] = 0 if is_stage else self._numbers[2 * local + 1] + 1

    def read(self, local: int) -> tuple[int, int]:
        """Steps begun in this round, and how many of them in this stage."""
        return self._numbers[2 * local], self._numbers[2 * local + 1]


# init_process_group(device_id=...) hangs in these (pytorch#153960).
DEVICE_ID_HANGS = ((2, 6, 0), (2, 7, 1))
GRACE_S = 30.0  # the library's own timeouts: after the launcher's, which name the rank


@dataclass
class Setup:
    """What a rank is, for its whole life. ``rank``: of all nodes' ranks; ``store``: host and port; ``env``: what it has
    beside the launcher's environment.
    """

    local: int
    rank: int
    options: Options
    store: tuple[str, int]
    delay_s: float
    env: dict[str, str]


@dataclass
class NodeRound(Round):
    """A round as the ranks of one node are told it. ``first``: the node's first rank within its ``group``, which has
    ``size`` ranks.

    ``too_big``: size -> why this node refuses it. ``deadlines_s``: of "init" and of "measure" (each size).
    """

    group: int
    first: int
    size: int
    too_big: dict[int, str]
    deadlines_s: dict[str, float]

    @property
    def nodes(self) -> list[str]:
        """The nodes of the group."""
        return self.groups[self.group]

    @property
    def where(self) -> dict[str, Any]:
        """What names the round in events."""
        return {"round": self.round, "group": self.group}


def prepare() -> None:
    """Does in the process that forks the ranks what each of them would do for the first time. It makes no threads."""
    import torch

    torch.set_num_threads(1)
    collectives.Collective("all-reduce", 4096, 0, 1, torch.device("cpu")).fill()


def serve(channel: socket.socket, progress: Progress, setup: Setup) -> None:
    """Measures until the launcher closes the channel, or kills us after a failed round."""
    import torch.distributed as dist

    try:
        # Our launcher's deadline comes first.
        device, limit = _open_device(setup), timedelta(seconds=setup.options.limit_s("import torch") + READY_S)
        store = dist.TCPStore(*setup.store, None, False, limit, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        _say(channel, _raised(error))
        return
    rank = _Rank(channel, progress, setup, device, store)
    with channel.makefile("r", encoding="utf-8") as lines:
        _say(channel, ProbeEvent("up"))
        for line in lines:
            if not rank.obey(NodeRound(**json.loads(line))):
                return


def _open_device(setup: Setup) -> Any:
    import torch

    if setup.options.backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(0)  # the only one that CUDA_VISIBLE_DEVICES leaves
    torch.zeros(1, device="cuda")  # makes the context, which takes seconds
    return torch.device("cuda", 0)


class _TooSlow(Exception):
    """Too few collectives fit into the time; raised in every rank of the group."""


class _Rank:
    def __init__(self, channel: socket.socket, progress: Progress, setup: Setup, device: Any, store: Any) -> None:
        self._say = partial(_say, channel)
        self._setup, self._device, self._store = setup, device, store
        self._progress = progress
        self._stage = ""

    def obey(self, task: NodeRound) -> bool:
        """One round. False when it failed: then this process is of no more use."""
        try:
            self._run(task)
        except Exception as error:  # noqa: BLE001 - told to the launcher, whatever it is
            traceback.print_exc()
            self._say(_raised(error))
            return False
        self._say(ProbeEvent("done"))
        return True

    def _run(self, task: NodeRound) -> None:
        import torch.distributed as dist

        self._progress.clear(self._setup.local)
        self._begin("init", task.deadlines_s["init"])
        self._init(task)
        refused = self._agree_on_sizes(task)
        work = collectives.own_work(self._device) if task.work else None
        if work is not None:
            work()  # the first one loads kernels and makes a workspace: not within a timed loop
        for collective in task.collectives:
            for size_bytes in task.sizes_bytes:
                if size_bytes not in refused:
                    self._measure(task, collective, size_bytes, work)
        if self._device.type == "cuda":
            dist.barrier(device_ids=[0])  # or one rank's communicator is destroyed while another's still works
        dist.destroy_process_group()

    def _init(self, task: NodeRound) -> None:
        import torch
        import torch.distributed as dist

        longest_s = max(task.deadlines_s.values()) + GRACE_S
        options: dict[str, Any] = {}
        if self._device.type == "cuda" and takes_device_id(str(torch.__version__)):
            options["device_id"] = self._device
        dist.init_process_group(
            self._setup.options.backend,
            store=dist.PrefixStore(f"r{task.round}/g{task.group}", self._store),
            rank=task.first + self._setup.local,
            world_size=task.size,
            timeout=timedelta(seconds=longest_s),
            **options,
        )

    def _agree_on_sizes(self, task: NodeRound) -> list[int]:
        """The sizes that do not fit on any one node are left out by all. It is also the first contact of all ranks."""
        import torch
        import torch.distributed as dist

        too_big = {int(size): why for size, why in task.too_big.items()}  # JSON has made text of the sizes
        if self._device.type == "cuda":
            too_big = collectives.too_big(task.sizes_bytes, torch.cuda.mem_get_info()[0])
        flags = [int(size in too_big) for size in task.sizes_bytes]
        refusals = torch.tensor(flags or [0], dtype=torch.int32, device=self._device)
        self._count()
        dist.all_reduce(refusals, dist.ReduceOp.MAX)
        refused = [size for size, flag in zip(task.sizes_bytes, refusals.tolist()) if flag]
        for size in refused:
            if size in too_big and self._setup.local == 0:
                self._say(ProbeEvent("refused", stage=collectives.stage_of(COLLECTIVES[0], size), why=too_big[size]))
        return refused

    def _measure(self, task: NodeRound, collective: str, size_bytes: int, work: Callable[[], object] | None) -> None:
        setup, rank, deadline_s = self._setup, task.first + self._setup.local, task.deadlines_s["measure"]
        own = setup.options.device(setup.local)
        self._begin(collectives.stage_of(collective, size_bytes), deadline_s)
        try:
            made = collectives.Collective(collective, size_bytes, rank, task.size, self._device)
            times_s, work_s, wrong = self._times(made, task.budget_s, deadline_s, work)
        except (collectives.Unsupported, _TooSlow) as error:
            if rank == 0:  # all ranks of the group do alike; one reports it
                kind = "failed" if isinstance(error, _TooSlow) else "refused"
                self._say(ProbeEvent(kind, stage=self._stage, why=str(error)))
            return
        times = RankTimes(
            round=task.round,
            group=task.group,
            collective=collective,
            size_bytes=size_bytes,
            rank=rank,
            ranks=task.size,
            node=setup.options.node,
            gpu=own.index,
            uuid=own.uuid,
            times_s=[round(time_s, 9) for time_s in times_s],
            work_s=None if work_s is None else round(work_s, 9),
            wrong=wrong,
        )
        self._say(ProbeEvent("times", stage=self._stage, data=asdict(times)))

    def _times(
        self, collective: collectives.Collective, budget_s: float, deadline_s: float, work: Callable[[], object] | None
    ) -> tuple[list[float], float | None, int]:
        """The time of each collective and of the own work between two, s, and how many were wrong. Raises _TooSlow, and
        what ``Collective.run`` raises.
        """
        collective.fill()
        first_s = self._warm_up(collective, 1)
        if not self._agree(int(collectives.fits(first_s, deadline_s))):
            took = f"one {collective.name} of {size_words(collective.size_bytes)} took {first_s:.1f} s"
            raise _TooSlow(f"{took}: too few would fit into {deadline_s:.0f} s")
        typical_s = self._warm_up(collective, collectives.WARM_UPS - 1)
        timers, work_timers = [], []
        for _ in range(self._agree(collectives.iterations(typical_s, budget_s))):
            if work is not None:
                work_timers.append(self._timed(work, is_paced=False))
            if self._setup.delay_s:
                time.sleep(self._setup.delay_s)
            self._count()
            timers.append(self._timed(collective.run, collective.size_bytes >= PACED_FROM_BYTES))
        timers[-1].wait()  # the last of the stream: all are done
        work_s = statistics.median(timer.seconds() for timer in work_timers) if work_timers else None
        times_s = [timer.seconds() for timer in timers]
        collective.fill()
        self._count()
        collective.run()
        return times_s, work_s, int(collective.wrong())

    def _warm_up(self, collective: collectives.Collective, count: int) -> float:
        """The median time, s."""
        times_s = []
        for _ in range(count):
            self._count()
            times_s.append(self._timed(collective.run, is_paced=True).seconds())
        return statistics.median(times_s)

    def _timed(self, call: Callable[[], object], is_paced: bool) -> Timer:
        """A timer with the call's time, by the device's own clock: on a GPU the time on the stream, the wait for other
        ranks within. ``is_paced``: wait for it, so that it is known which one hangs.
        """
        import torch

        timer: Timer = CudaTimer(torch) if self._device.type == "cuda" else CpuTimer()
        timer.start()
        call()
        timer.stop()
        if is_paced:
            timer.wait()
        return timer

    def _agree(self, number: int) -> int:
        """The number of the group's first rank."""
        import torch
        import torch.distributed as dist

        self._count()
        shared = torch.tensor([number], dtype=torch.int64, device=self._device)
        dist.broadcast(shared, 0)
        return int(shared.item())

    def _begin(self, stage: str, deadline_s: float) -> None:
        self._stage = stage
        self._progress.begin(self._setup.local, is_stage=True)
        self._say(ProbeEvent("stage", stage=stage, deadline_s=deadline_s))

    def _count(self) -> None:
        self._progress.begin(self._setup.local)


def _raised(error: BaseException) -> ProbeEvent:
    why = first_line(str(error)) or type(error).__name__
    return ProbeEvent("raised", why=why, data={"connection": is_lost(str(error))})


def _say(channel: socket.socket, event: ProbeEvent) -> None:
    channel.sendall(child.to_line(child.fields_of(event)).encode())


_NCCL_REASON = "Last error:"  # ProcessGroupNCCL's messages end with it and ncclGetLastError()


def takes_device_id(version: str) -> bool:
    """Whether init_process_group(device_id=...) connects at once: some versions hang with it."""
    number = tuple(int(part) for part in version.partition("+")[0].split(".")[:3] if part.isdigit())
    after, before = DEVICE_ID_HANGS
    return not after < number < before


def first_line(text: str) -> str:
    """The first line, without gloo's source position; of NCCL's errors the reason, which comes last."""
    reason = text.rpartition(_NCCL_REASON)[2].strip() if _NCCL_REASON in text else ""
    if reason and "Unknown NCCL Error" not in reason:
        text = f"NCCL: {reason}"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    position, bracket, rest = line.partition("] ")
    return rest if bracket and position.startswith("[") and rest else line
