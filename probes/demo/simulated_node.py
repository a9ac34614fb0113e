"""One node of a simulated fleet: its samples as JSON text.

What does not change is encoded once and spliced with what does: hundreds of nodes are one cheap process.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mltop.probes.agent.light import light_fields
from mltop.probes.demo.curves import TRAINING, Moving, move
from mltop.probes.demo.gpus import UPTIME_S, activity_of, sample_of, shape_of
from mltop.probes.demo.machine import host_of, kernel_events, pci_devices
from mltop.probes.demo.network import MOVING, is_moving, links_of, moving
from mltop.probes.demo.simulated_job import FIRST_PID, SimulatedJob, moving_counters, rank_sample
from mltop.probes.model import GpuProcess, GpuSample, to_json

LOST_GPU = 3
BRAKED_CLOCK_MHZ = 420
_MOVING_NAMES = frozenset(Moving.__dataclass_fields__)
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
        moving = dict(vars(move(shape_of(self.number, index, False), now - zero, activity, hung)))
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
    moving = move(shape_of(node.number, index, False), 0.0, TRAINING if pids else "idle", 0.0)
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
    whole = sample_of(LOST_GPU, node.number, [], move(shape_of(node.number, LOST_GPU, False), 0.0, "idle", 0.0), False)
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
