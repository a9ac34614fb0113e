"""A simulated fleet's one job, before and after one of its ranks hangs, and its nodes: their samples as JSON text.

What does not change is encoded once and spliced with what does: hundreds of nodes are one cheap process.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mltop.probes.agent.light import light_fields
from mltop.probes.demo.gpus import IDLE, TRAINING, UPTIME_S, activity_of, move, sample_of, shape_of
from mltop.probes.demo.machine import MOVING, host_of, is_moving, kernel_events, links_of, moving, pci_devices
from mltop.probes.model import Frame, GpuProcess, GpuSample, RankSample, RankStacks, StackDigest, to_json

JOB = "simulated"
FIRST_PID = 5_000_000  # above the kernel's largest pid (2^22), so that no real process can be meant
STEP_S = 0.8
SWITCHES_PER_S, READS_PER_S, WRITES_PER_S = 45.0, 160.0, 12.0
RAN_S = 3600.0  # how long the job had been running when the simulation starts


@dataclass(frozen=True)
class SimulatedJob:
    """``ranks_per_node`` ranks on each of ``nodes``; rank ``culprit`` stops at ``hung_at`` (unix s)."""

    nodes: tuple[str, ...]
    ranks_per_node: int
    culprit: int
    started_at: float
    hung_at: float

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    def progress_s(self, now: float) -> float:
        """Seconds of progress made at ``now``: stands still from the hang on."""
        return min(now, self.hung_at) - self.started_at

    def hung(self, now: float) -> bool:
        return now >= self.hung_at


def rank_sample(job: SimulatedJob, rank: int, now: float) -> RankSample:
    local = rank % job.ranks_per_node
    return RankSample(
        pid=FIRST_PID + rank,
        rank=rank,
        local_rank=local,
        world_size=job.world_size,
        local_world_size=job.ranks_per_node,
        job=JOB,
        master_address=job.nodes[0],
        launcher="srun",
        user="demo",
        command="python train.py --config 70b.yaml (SIMULATED)",
        python="/opt/train/bin/python3.11",
        started_at=job.started_at,
        gpus=[local],
        rss_bytes=9_400_000_000 + 3_000_000 * local,
        cpus_allowed=f"{local * 12}-{local * 12 + 11}",
        numa_nodes="0" if local < job.ranks_per_node / 2 else "1",
        **moving_counters(job, rank, now),
    )


def moving_counters(job: SimulatedJob, rank: int, now: float) -> dict[str, Any]:
    """The fields of a RankSample that change, ranks a little apart from each other."""
    progress_s = job.progress_s(now) + rank % 7
    return {
        "state": "S",
        "cpu_fraction": 0.01 if job.hung(now) else 0.62,
        "voluntary_switches": int(progress_s * SWITCHES_PER_S),
        "read_syscalls": int(progress_s * READS_PER_S),
        "write_syscalls": int(progress_s * WRITES_PER_S),
    }


def rank_stacks(job: SimulatedJob, rank: int, now: float) -> RankStacks:
    """What py-spy would show of this rank at ``now``, digested."""
    node = job.nodes[rank // job.ranks_per_node]
    sample = rank_sample(job, rank, now)
    frames, waiting_in = stack_of(job, rank, now)
    digest = StackDigest(
        rank=rank,
        pid=sample.pid,
        state="S",
        frames=frames,
        waiting_in=waiting_in,
        key=key_of(frames),
        node=node,
        job=JOB,
        taken_at=now,
    )
    return RankStacks(
        pid=sample.pid,
        rank=rank,
        job=JOB,
        node=node,
        taken_at=now,
        took_s=0.02,
        before=sample,
        after=replace(sample),
        digests=[digest],
    )


def stack_of(job: SimulatedJob, rank: int, now: float) -> tuple[list[Frame], str | None]:
    """Leaf-first frames and the collective waited in. Names and lines are those of torch 2.6."""
    step = int(job.progress_s(now) / STEP_S)
    train = Frame("train", "job/train.py", 0, {"step": step})
    base = [Frame("main", "job/train.py", 214), Frame("<module>", "job/train.py", 231)]
    if job.hung(now) and rank == job.culprit:
        return [*_LOADING, replace(train, line=148), *base], None
    computing = not job.hung(now) and (int(now / STEP_S * 4) + rank * 5) % 4 > 0
    if computing:
        return [*_COMPUTING, replace(train, line=151), *base], None
    return [*_WAITING, replace(train, line=156), *base], "all_reduce"


def key_of(frames: list[Frame]) -> str:
    """Equal for equal frames whatever their integer locals."""
    text = "\n".join(f"{frame.function} {frame.file}:{frame.line}" for frame in frames)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_C10D = "torch/distributed/distributed_c10d.py"
_LOADER = "torch/utils/data/dataloader.py"
_WAITING = [Frame("all_reduce", _C10D, 2808), Frame("all_reduce_grads", "job/train.py", 97)]
_COMPUTING = [
    Frame("Linear.forward", "torch/nn/modules/linear.py", 125),
    Frame("Block.forward", "job/model.py", 71),
    Frame("Transformer.forward", "job/model.py", 118),
]
_LOADING = [
    Frame("ShardDataset.__getitem__", "job/data.py", 53),
    Frame("_MapDatasetFetcher.fetch", "torch/utils/data/_utils/fetch.py", 54),
    Frame("_SingleProcessDataLoaderIter._next_data", _LOADER, 764),
    Frame("_BaseDataLoaderIter.__next__", _LOADER, 708),
]


LOST_GPU = 3
BRAKED_CLOCK_MHZ = 420
_MOVING_NAMES = frozenset(move(shape_of(0, 0, False), 0.0, IDLE, 0.0))
_HOST_NAMES = frozenset(
    ("uptime_s", "cpu_fraction", "load_1m", "network_rx_bytes_per_s", "network_tx_bytes_per_s"),
)
_COUNTER_NAMES = frozenset(("state", "cpu_fraction", "voluntary_switches", "read_syscalls", "write_syscalls"))


@dataclass(frozen=True)
class SimulatedNode:
    """``ranks`` of ``job`` run here, one per GPU from GPU 0; none on a spare node.

    ``lost_gpu``: GPU 3 fell off the bus. ``braked``: the power supply asserts the power brake on every GPU.
    ``faulty``: an InfiniBand port is down, a disk is nearly full, and there was an Xid 94 about an hour ago.
    What no sample shows: ``slow_gpu`` computes slowly, with ``slow_nic`` the way to other nodes is slow.
    """

    name: str
    number: int
    gpus: int
    interval_s: float
    job: SimulatedJob
    ranks: range
    began_at: float
    lost_gpu: bool = False
    braked: bool = False
    faulty: bool = False
    slow_gpu: int | None = None
    slow_nic: bool = False

    def __hash__(self) -> int:
        return self.number

    def sample_json(self, now: float) -> bytes:
        """The JSON of this node's whole Sample at ``now`` (unix s)."""
        links = _fixed_links(self) % self._traffic(now)
        rest = f',"links":{links},"pci":{_fixed_pci(self)},"kernel_events":{_fixed_events(self)}'
        return self._json(now, False, rest)

    def light_json(self, now: float) -> bytes:
        """The same without what the whole one before it has told (agent/light.py)."""
        return self._json(now, True)

    def _json(self, now: float, light: bool, rest: str = "") -> bytes:
        gpus = ",".join(self._gpu_json(index, now, light) for index in range(self.gpus))
        fixed_ranks = (_fixed_rank(self, rank, light) for rank in self.ranks)
        ranks = ",".join(
            splice(fixed, moving_counters(self.job, rank, now)) for rank, fixed in zip(self.ranks, fixed_ranks)
        )
        head = splice(_fixed_head(self), {"sampled_at": round(now, 3)})[:-1]
        host = splice(_fixed_host(self, light), self._host(now))
        return f'{head},"gpus":[{gpus}],"ranks":[{ranks}],"host":{host}{rest}}}'.encode()

    def _traffic(self, now: float) -> tuple[int, ...]:
        """What goes into the text of ``_fixed_links``."""
        training = bool(self.ranks) and not self.job.hung(now)
        trained_s = self.job.progress_s(now) if self.ranks else 0.0
        running_s = now - self.job.started_at
        values = (moving(running_s, trained_s, training, port).values() for port in _moving_ports(self))
        return tuple(value for port in values for value in port)

    def _gpu_json(self, index: int, now: float, light: bool) -> str:
        if self.lost_gpu and index == LOST_GPU:
            return _lost_gpu(self, light)
        zero = self.began_at - UPTIME_S
        hung = self.job.hung_at - zero
        culprit = index < len(self.ranks) and self.ranks[index] == self.job.culprit
        activity = activity_of(now - zero, index < len(self.ranks), hung, culprit)
        moving = move(shape_of(self.number, index, False), now - zero, activity, hung)
        if self.braked:
            moving.update(braked(now - zero))
        moving["last_seen_at"] = round(now, 3)
        return splice(_fixed_gpu(self, index, activity == TRAINING, light), moving)

    def _host(self, now: float) -> dict[str, object]:
        load = 0.02 if not self.ranks or self.job.hung(now) else 0.31
        wave = 1 + 0.1 * math.sin(now / 9 + self.number)
        return {
            "uptime_s": round(now - self.began_at + UPTIME_S, 1),
            "cpu_fraction": round(load * wave, 3),
            "load_1m": round(96 * load * wave, 2),
            "network_rx_bytes_per_s": round(load * 4e8 * wave),
            "network_tx_bytes_per_s": round(load * 3e7 * wave),
        }


def braked(t: float) -> dict[str, object]:
    """What the power brake does to a GPU, whatever runs on it."""
    return {
        "sm_clock_mhz": BRAKED_CLOCK_MHZ,
        "throttle_reasons": ["hw_slowdown", "power_brake"],
        "throttle_ns": {"power_brake": int(t * 1e9)},
        "throttle_share": {"power_brake": 1.0},
    }


def splice(fixed: str, moving: dict[str, Any]) -> str:
    """One JSON object of two: ``fixed`` is the text of the first, neither empty."""
    return fixed[:-1] + "," + json.dumps(moving, separators=(",", ":"), allow_nan=False)[1:]


def known(record: Any, light: bool = False, without: frozenset[str] = frozenset()) -> str:
    """JSON of a record's fields without those named; ``light``: as a light sample has it."""
    if light:
        fields = {name: value for name, value in light_fields(record).items() if name not in without}
        return json.dumps(fields, default=light_fields, separators=(",", ":"))
    return to_json({name: value for name, value in vars(record).items() if name not in without})


@cache
def _fixed_head(node: SimulatedNode) -> str:
    return to_json(
        {
            "node": node.name,
            "boot_id": f"simulated-{node.number}",
            "interval_s": node.interval_s,
            "simulated": True,
        }
    )


@cache
def _fixed_host(node: SimulatedNode, light: bool) -> str:
    return known(host_of(node.name, node.faulty), light, _HOST_NAMES)


@cache
def _fixed_links(node: SimulatedNode) -> str:
    """With a place for every value that moves, in the order of MOVING."""
    texts = []
    for link in links_of(node.number, node.gpus, node.faulty):
        text = known(link)
        for name in MOVING if is_moving(link) else ():
            text = re.sub(rf'"{name}":[0-9.]+', f'"{name}":%d', text)
        texts.append(text)
    return f"[{','.join(texts)}]"


@cache
def _moving_ports(node: SimulatedNode) -> list[int]:
    links = links_of(node.number, node.gpus, node.faulty)
    return [index for index, link in enumerate(links) if is_moving(link)]


@cache
def _fixed_pci(node: SimulatedNode) -> str:
    return to_json(pci_devices(node.gpus))


@cache
def _fixed_events(node: SimulatedNode) -> str:
    return to_json(kernel_events(node.began_at)) if node.faulty else "[]"


@cache
def _fixed_gpu(node: SimulatedNode, index: int, training: bool, light: bool) -> str:
    pids = [FIRST_PID + node.ranks[index]] if index < len(node.ranks) else []
    moving = move(shape_of(node.number, index, False), 0.0, TRAINING if pids else IDLE, 0.0)
    whole = sample_of(index, node.number, pids, moving, training)
    whole.processes = [_described(process, node) for process in whole.processes or ()]
    return known(whole, light, _MOVING_NAMES | {"last_seen_at"})


def _described(process: GpuProcess, node: SimulatedNode) -> GpuProcess:
    """As /proc would say it of a rank. Its parent is above every real pid, too."""
    parent, started_at = FIRST_PID - 1, node.job.started_at
    return replace(process, user="demo", name="python3.11", state="S", ppid=parent, started_at=started_at)


@cache
def _fixed_rank(node: SimulatedNode, rank: int, light: bool) -> str:
    return known(rank_sample(node.job, rank, node.began_at), light, _COUNTER_NAMES)


@cache
def _lost_gpu(node: SimulatedNode, light: bool) -> str:
    whole = sample_of(LOST_GPU, node.number, [], move(shape_of(node.number, LOST_GPU, False), 0.0, IDLE, 0.0), False)
    lost = GpuSample(
        index=LOST_GPU,
        uuid=whole.uuid,
        name=whole.name,
        pci_bus_id=whole.pci_bus_id,
        state="lost",
        error="NVML: GPU is lost (fell off the bus; SIMULATED)",
        last_seen_at=node.began_at - 312.0,
    )
    return known(lost, light)
