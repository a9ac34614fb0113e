"""A rank: forked from a process that has torch imported, it waits for rounds and measures in them.

Its channel carries JSON lines. From the launcher: rounds (``Round``'s fields). To the launcher:
    {"up": pid}   {"stage", "deadline_s"}   {"times": RankTimes}   {"done": round}
    {"left_out": why, "stage", "refused"}
    {"raised": why, "stage", "connection": was it lost because of another rank?}
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from mltop.probes.active.all_reduce.causes import is_lost
from mltop.probes.active.all_reduce.collectives import (
    Collective,
    Conditions,
    OwnWork,
    Unsupported,
    measure,
    stage_of,
    too_big_for_gpu,
)
from mltop.probes.active.device import CpuTimer, CudaTimer
from mltop.probes.model.probe import RankTimes
from mltop.probes.model.probe_kinds import COLLECTIVES
from mltop.probes.model.units import size_words

_SLOT = struct.Struct("=qq")


class Progress:
    """How far each rank of this node has come, in memory that the ranks and their launcher share: made before the first
    fork, one slot per rank.

    A rank cannot tell what it waits for while it waits: the launcher reads its two numbers when a deadline passes.
    """

    def __init__(self, ranks: int) -> None:
        self._memory = mmap.mmap(-1, max(1, ranks) * _SLOT.size)

    def clear(self, slot: int) -> None:
        _SLOT.pack_into(self._memory, slot * _SLOT.size, 0, 0)

    def begin_stage(self, slot: int) -> None:
        begun, _ = self.read(slot)
        _SLOT.pack_into(self._memory, slot * _SLOT.size, begun + 1, 0)

    def begin(self, slot: int) -> None:
        """One more collective is begun."""
        begun, in_stage = self.read(slot)
        _SLOT.pack_into(self._memory, slot * _SLOT.size, begun + 1, in_stage + 1)

    def read(self, slot: int) -> tuple[int, int]:
        """Steps begun in this round, and how many of them in this stage."""
        begun, in_stage = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
        return begun, in_stage


# init_process_group(device_id=...) hangs in these (pytorch#153960).
DEVICE_ID_HANGS = ((2, 6, 0), (2, 7, 1))
GRACE_S = 30.0  # the library's own timeouts: after the launcher's, which name the rank


@dataclass
class Setup:
    """What a rank is, for its whole life. ``uuid``: of the device, "cpu" for the processors."""

    local: int
    node: str
    backend: str
    store_host: str
    store_port: int
    uuid: str = "cpu"
    gpu: int | None = None
    connect_s: float = 10.0
    delay_s: float = 0.0


@dataclass
class Round:
    """``rank``: within the group of ``ranks``; ``prefix``: of the group's keys in the store.

    ``too_big``: size -> why this node refuses it. ``deadlines_s``: of "init" and of "measure" (each size).
    """

    round: int
    group: int
    rank: int
    ranks: int
    prefix: str
    collectives: list[str]
    sizes_bytes: list[int]
    budget_s: float
    work: bool = False
    too_big: dict[str, str] = field(default_factory=dict)
    deadlines_s: dict[str, float] = field(default_factory=dict)


def prepare() -> None:
    """In the process that forks the ranks: what each of them would otherwise do for the first time. No threads."""
    import torch

    torch.set_num_threads(1)
    Collective("all-reduce", 4096, 0, 1, torch.device("cpu")).fill()


def serve(channel: socket.socket, progress: Progress, fields: Mapping[str, Any]) -> None:
    """Until the launcher closes the channel, or kills us after a failed round. ``fields``: of the Setup."""
    setup = Setup(**fields)
    opened = []
    for stage, opening in (("device", _open_device), ("join", _open_store)):
        try:
            opened.append(opening(setup))
        except (RuntimeError, OSError) as error:
            _say(channel, _raised(error, stage))
            return
    rank = _Rank(channel, progress, setup, *opened)
    with channel.makefile("r", encoding="utf-8") as lines:
        _say(channel, {"up": os.getpid()})
        for line in lines:
            if not rank.obey(Round(**json.loads(line))):
                return


def _open_device(setup: Setup) -> Any:
    import torch

    if setup.backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(0)  # the only one that CUDA_VISIBLE_DEVICES leaves
    torch.zeros(1, device="cuda")  # makes the context, which takes seconds
    return torch.device("cuda", 0)


def _open_store(setup: Setup) -> Any:
    import torch.distributed as dist

    limit = timedelta(seconds=setup.connect_s)
    return dist.TCPStore(setup.store_host, setup.store_port, None, False, limit, wait_for_workers=False)


class _Rank:
    def __init__(self, channel: socket.socket, progress: Progress, setup: Setup, device: Any, store: Any) -> None:
        self._channel = channel
        self._progress = progress
        self._setup = setup
        self._device, self._store = device, store
        self._stage = "join"

    def obey(self, task: Round) -> bool:
        """One round. False when it failed: then this process is of no more use."""
        try:
            self._run(task)
        except Exception as error:  # noqa: BLE001 - told to the launcher, whatever it is
            traceback.print_exc()
            _say(self._channel, _raised(error, self._stage))
            return False
        self._say({"done": task.round})
        return True

    def _run(self, task: Round) -> None:
        import torch.distributed as dist

        self._progress.clear(self._setup.local)
        self._begin("init", task.deadlines_s["init"])
        self._init(task)
        refused = self._agree_on_sizes(task)
        work = OwnWork(self._device) if task.work else None
        if work is not None:
            work()  # the first one loads kernels and makes a workspace: not within a timed loop
        for collective in task.collectives:
            for size_bytes in task.sizes_bytes:
                if size_bytes in refused:
                    continue
                self._measure(task, collective, size_bytes, work)
        if self._device.type == "cuda":
            dist.barrier(device_ids=[0])  # or one rank's communicator is destroyed while another's still works
        dist.destroy_process_group()

    def _init(self, task: Round) -> None:
        import torch
        import torch.distributed as dist

        longest_s = max(task.deadlines_s.values()) + GRACE_S
        options: dict[str, Any] = {}
        if self._device.type == "cuda" and takes_device_id(str(torch.__version__)):
            options["device_id"] = self._device
        dist.init_process_group(
            self._setup.backend,
            store=dist.PrefixStore(task.prefix, self._store),
            rank=task.rank,
            world_size=task.ranks,
            timeout=timedelta(seconds=longest_s),
            **options,
        )

    def _agree_on_sizes(self, task: Round) -> list[int]:
        """The sizes that do not fit on any one node are left out by all. It is also the first contact of all ranks."""
        import torch
        import torch.distributed as dist

        too_big = {int(size): why for size, why in task.too_big.items()}
        if self._device.type == "cuda":
            too_big = too_big_for_gpu(task.sizes_bytes, torch.cuda.mem_get_info()[0])
        flags = [int(size in too_big) for size in task.sizes_bytes]
        refusals = torch.tensor(flags or [0], dtype=torch.int32, device=self._device)
        self._count()
        dist.all_reduce(refusals, dist.ReduceOp.MAX)
        refused = [size for size, flag in zip(task.sizes_bytes, refusals.tolist()) if flag]
        for size in refused:
            if size in too_big and self._setup.local == 0:
                stage = stage_of(COLLECTIVES[0], size)
                self._say({"left_out": too_big[size], "stage": stage, "refused": True})
        return refused

    def _measure(self, task: Round, collective: str, size_bytes: int, work: OwnWork | None) -> None:
        import torch

        deadline_s = task.deadlines_s["measure"]
        self._begin(stage_of(collective, size_bytes), deadline_s)
        under = Conditions(
            budget_s=task.budget_s,
            deadline_s=deadline_s,
            agree=self._agree,
            begin=self._count,
            timer=partial(CudaTimer, torch) if self._device.type == "cuda" else CpuTimer,
            delay_s=self._setup.delay_s,
            work=work,
        )
        try:
            subject = Collective(collective, size_bytes, task.rank, task.ranks, self._device)
            measured = measure(subject, size_bytes, under)
        except Unsupported as why:
            self._leave_out(task, str(why), refused=True)
            return
        if measured.left_out_s is not None:
            took = f"one {collective} of {size_words(size_bytes)} took {measured.left_out_s:.1f} s"
            self._leave_out(task, f"{took}: too few would fit into {deadline_s:.0f} s", refused=False)
            return
        times = RankTimes(
            task.round,
            task.group,
            collective,
            size_bytes,
            task.rank,
            task.ranks,
            self._setup.node,
            self._setup.gpu,
            self._setup.uuid,
            [round(time_s, 9) for time_s in measured.times_s],
            None if measured.work_s is None else round(measured.work_s, 9),
            measured.wrong,
        )
        self._say({"times": asdict(times)})

    def _leave_out(self, task: Round, why: str, refused: bool) -> None:
        """All ranks of the group do alike; one tells it."""
        if task.rank == 0:
            self._say({"left_out": why, "stage": self._stage, "refused": refused})

    def _agree(self, number: int) -> int:
        import torch
        import torch.distributed as dist

        self._count()
        told = torch.tensor([number], dtype=torch.int64, device=self._device)
        dist.broadcast(told, 0)
        return int(told.item())

    def _begin(self, stage: str, deadline_s: float) -> None:
        self._stage = stage
        self._progress.begin_stage(self._setup.local)
        self._say({"stage": stage, "deadline_s": deadline_s})

    def _count(self) -> None:
        self._progress.begin(self._setup.local)

    def _say(self, message: dict[str, Any]) -> None:
        _say(self._channel, message)


def _raised(error: BaseException, stage: str) -> dict[str, Any]:
    why = first_line(str(error)) or type(error).__name__
    return {"raised": why, "stage": stage, "connection": is_lost(str(error))}


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


_NCCL_REASON = "Last error:"  # ProcessGroupNCCL's messages end with it and ncclGetLastError()


def takes_device_id(version: str) -> bool:
    """From 2.3 on init_process_group(device_id=...) connects at once; some versions hang with it."""
    number = tuple(int(part) for part in version.partition("+")[0].split(".")[:3] if part.isdigit())
    after, before = DEVICE_ID_HANGS
    return number >= (2, 3) and not after < number < before


def first_line(text: str) -> str:
    """Of NCCL's errors the reason, which comes last; without the source position that gloo puts before its own."""
    reason = text.rpartition(_NCCL_REASON)[2].strip() if _NCCL_REASON in text else ""
    if reason and "Unknown NCCL Error" not in reason:
        text = f"NCCL: {reason}"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    position, bracket, rest = line.partition("] ")
    return rest if bracket and position.startswith("[") and rest else line
