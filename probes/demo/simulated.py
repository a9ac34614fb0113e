"""A simulated fleet's one job, before and after one of its ranks hangs, and its nodes: their samples as JSON text.

What does not change is encoded once and spliced with what does: hundreds of nodes are one cheap process.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mltop.probes.agent.light import light_fields
from mltop.probes.demo.gpus import IDLE, TRAINING, UPTIME_S, activity_of, move, sample_of, shape_of
from mltop.probes.demo.machine import (
    MOVING,
    QUIET_LOAD,
    TRAINING_LOAD,
    cpus_of,
    host_of,
    is_moving,
    kernel_events,
    links_of,
    moving_host,
    numa_of,
    pci_devices,
    traffic_of,
)
from mltop.probes.model import Frame, GpuSample, LinkSample, RankSample, RankStacks, StackDigest, to_json
from mltop.probes.model.encoding import all_fields

JOB = "llama-70b"  # as a user would call it: that it is simulated is told by a mark of its own
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
    name: str = JOB

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
        job=job.name,
        master_address=job.nodes[0],
        launcher="srun",
        user="demo",
        command="python train.py --config 70b.yaml (SIMULATED)",
        python="/opt/train/bin/python3.11",
        started_at=job.started_at,
        gpus=[local],
        rss_bytes=9_400_000_000 + 3_000_000 * local,
        cpus_allowed=cpus_of(local),
        numa_nodes=numa_of(local, job.ranks_per_node),
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
        job=job.name,
        taken_at=now,
    )
    return RankStacks(
        pid=sample.pid,
        rank=rank,
        job=job.name,
        node=node,
        taken_at=now,
        took_s=0.02,
        before=sample,
        after=replace(sample),
        digests=[digest, replace(digest, thread="Thread-2", frames=_WRITING, waiting_in=None, key=key_of(_WRITING))],
    )


# A thread that every rank has beside its main one.
_WRITING = [
    Frame("Condition.wait", "threading.py", 320),
    Frame("Queue.get", "queue.py", 171),
    Frame("_AsyncWriterThread.run", "tensorboard/summary/writer/event_file_writer.py", 244),
]


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


@dataclass
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
    _texts: dict[tuple[Any, ...], str] = field(default_factory=dict, init=False, repr=False)

    def sample_json(self, now: float) -> bytes:
        """The JSON of this node's whole Sample at ``now`` (unix s)."""
        links = self._fixed_links % self._traffic(now)
        return self._json(now, False, f',"links":{links},"pci":{self._pci},"kernel_events":{self._events}')

    def light_json(self, now: float) -> bytes:
        """The same without what the whole one before it has told (agent/light.py)."""
        return self._json(now, True)

    def _json(self, now: float, light: bool, rest: str = "") -> bytes:
        gpus = ",".join(self._gpu_json(index, now, light) for index in range(self.gpus))
        ranks = ",".join(self._rank_json(rank, now, light) for rank in self.ranks)
        head = {
            "node": self.name,
            "boot_id": f"simulated-{self.number}",
            "interval_s": self.interval_s,
            "simulated": True,
            "sampled_at": round(now, 3),
        }
        host = self._spliced(("host",), self._moving_host(now), light, lambda: host_of(self.name, self.faulty))
        return f'{json.dumps(head)[:-1]},"gpus":[{gpus}],"ranks":[{ranks}],"host":{host}{rest}}}'.encode()

    def _spliced(self, what: tuple[Any, ...], moving: dict[str, Any], light: bool, make: Callable[[], Any]) -> str:
        """One JSON object: ``moving``, and the other fields of the record that ``make`` gives, which never change and
        are encoded once for each ``what``. ``light``: as a light sample has it.
        """
        key = (*what, light)
        if key not in self._texts:
            record = make()
            fields = light_fields(record) if light else vars(record)
            fixed = {name: value for name, value in fields.items() if name not in moving}
            self._texts[key] = json.dumps(fixed, default=light_fields if light else all_fields, separators=(",", ":"))
        return self._texts[key][:-1] + "," + json.dumps(moving, separators=(",", ":"), allow_nan=False)[1:]

    def _gpu_json(self, index: int, now: float, light: bool) -> str:
        if self.lost_gpu and index == LOST_GPU:
            return self._spliced(("lost",), {"last_seen_at": self.began_at - 312.0}, light, self._lost_gpu)
        zero = self.began_at - UPTIME_S
        hung = self.job.hung_at - zero
        culprit = index < len(self.ranks) and self.ranks[index] == self.job.culprit
        activity = activity_of(now - zero, index < len(self.ranks), hung, culprit)
        moving = move(shape_of(self.number, index, False), now - zero, activity, hung)
        moving.update(braked(now - zero) if self.braked else {}, last_seen_at=round(now, 3))
        training = activity == TRAINING
        return self._spliced(("gpu", index, training), moving, light, lambda: self._gpu(index, training))

    def _rank_json(self, rank: int, now: float, light: bool) -> str:
        moving = moving_counters(self.job, rank, now)
        return self._spliced(("rank", rank), moving, light, lambda: rank_sample(self.job, rank, self.began_at))

    def _moving_host(self, now: float) -> dict[str, object]:
        load = QUIET_LOAD if not self.ranks or self.job.hung(now) else TRAINING_LOAD
        received, sent = self._ports_traffic(now)
        return {
            **moving_host(now - self.began_at + UPTIME_S, load, self.number),
            "ports_rx_bytes_per_s": received,
            "ports_tx_bytes_per_s": sent,
        }

    def _ports_traffic(self, now: float) -> tuple[int, int]:
        """Bytes per second of all ports together, received and sent."""
        per_port = len(MOVING)
        values = self._traffic(now)
        return sum(values[0::per_port]), sum(values[1::per_port])

    def _gpu(self, index: int, training: bool) -> GpuSample:
        pids = [FIRST_PID + self.ranks[index]] if index < len(self.ranks) else []
        moving = move(shape_of(self.number, index, False), 0.0, TRAINING if pids else IDLE, 0.0)
        whole = sample_of(index, self.number, pids, moving, training)
        whole.processes = [  # as /proc would say it of a rank; its parent is above every real pid, too
            replace(
                process,
                user="demo",
                name="python3.11",
                state="S",
                ppid=FIRST_PID - 1,
                started_at=self.job.started_at,
            )
            for process in whole.processes or ()
        ]
        return whole

    def _lost_gpu(self) -> GpuSample:
        whole = self._gpu(LOST_GPU, False)
        error = "NVML: GPU is lost (fell off the bus; SIMULATED)"
        return GpuSample(LOST_GPU, whole.uuid, whole.name, whole.pci_bus_id, state="lost", error=error)

    def _traffic(self, now: float) -> tuple[int, ...]:
        """What goes into the text of ``_fixed_links``."""
        training = bool(self.ranks) and not self.job.hung(now)
        trained_s = self.job.progress_s(now) if self.ranks else 0.0
        running_s = now - self.job.started_at
        ports = (port for port, link in enumerate(self._links) if is_moving(link))
        return tuple(value for port in ports for value in traffic_of(running_s, trained_s, training, port).values())

    @cached_property
    def _links(self) -> list[LinkSample]:
        return links_of(self.number, self.gpus, self.faulty)

    @cached_property
    def _fixed_links(self) -> str:
        """The ports, with a place for every value that moves, in the order of MOVING."""
        texts = []
        for link in self._links:
            text = to_json(link)
            for name in MOVING if is_moving(link) else ():
                text = re.sub(rf'"{name}":[0-9.]+', f'"{name}":%d', text)
            texts.append(text)
        return f"[{','.join(texts)}]"

    @cached_property
    def _pci(self) -> str:
        return to_json(pci_devices(self.gpus))

    @cached_property
    def _events(self) -> str:
        return to_json(kernel_events(self.began_at) if self.faulty else [])


def braked(t: float) -> dict[str, object]:
    """What the power brake does to a GPU, whatever runs on it."""
    return {
        "sm_clock_mhz": BRAKED_CLOCK_MHZ,
        "throttle_reasons": ["hw_slowdown", "power_brake"],
        "throttle_ns": {"power_brake": int(t * 1e9)},
        "throttle_share": {"power_brake": 1.0},
    }
