"""What a simulated node has for probes: its devices, who uses them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mltop.probes.active.gate import Holder
from mltop.probes.demo.curves import MEMORY_TOTAL_BYTES
from mltop.probes.demo.gpus import NAME
from mltop.probes.model.probe import ProbeDevice

PYTHON, TORCH, CUDA = "/opt/train/bin/python3.11", "2.9.1+cu129", "12.9"
VERSIONS = {"torch": TORCH, "cuda": CUDA, "driver": "570.124.06", "cublas": "12.9.1"}
MULTIPROCESSORS = 132
INTERFACE = "bond0"


@dataclass(frozen=True)
class ProbeMachine:
    """``number`` is the seed of the node's GPUs. ``owners``: GPU -> whose process uses it.

    ``braked``: the power supply holds every GPU's clock down. ``slow_gpu`` computes slowly at its full clock, for no
    reason that it tells. ``hot_gpu`` is badly cooled. ``slow_nic``: traffic to other nodes is slow.
    """

    name: str
    number: int
    gpus: int = 8
    owners: dict[int, Holder] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    braked: bool = False
    slow_gpu: int | None = None
    hot_gpu: int | None = None
    slow_nic: bool = False

    @property
    def address(self) -> str:
        return f"10.0.{self.number // 250}.{self.number % 250 + 1}"

    def uuid(self, index: int) -> str:
        """As in the node's samples."""
        return f"GPU-SIMULATED-{self.number:04d}-{index:02d}"

    def chosen(self, wanted: Sequence[str]) -> tuple[list[int], list[str]]:
        """Indexes of the GPUs named by index or UUID (of none named: all), and the names that none has."""
        known = {name: index for index in range(self.gpus) for name in (str(index), self.uuid(index))}
        unknown = [name for name in wanted if name not in known]
        return sorted({known[name] for name in wanted if name in known}) if wanted else list(range(self.gpus)), unknown

    def usable(self, wanted: Sequence[str], force: bool) -> list[int]:
        return [index for index in self.chosen(wanted)[0] if not self.refusal(index, force)[0]]

    def refusal(self, index: int, force: bool) -> tuple[str, str]:
        """Why this GPU is not measured and what would help, as an agent says it; ("", "") when it can be."""
        if index in self.lost:
            return f"GPU {index} is lost: it fell off the bus", "reboot the node"
        owner = self.owners.get(index)
        if owner is not None and not force:
            return f"GPU {index} is in use by {owner}", "wait until it is free, or --force"
        return "", ""

    def device(self, index: int) -> ProbeDevice:
        return ProbeDevice(self.uuid(index), index, NAME, "gpu", "2330", MEMORY_TOTAL_BYTES)

    def devices_data(self, indexes: Sequence[int]) -> dict[str, Any]:
        """Of the event "devices"."""
        return {
            "simulated": True,
            "python": PYTHON,
            "torch": TORCH,
            "cuda": CUDA,
            "hip": "",
            "devices": [asdict(self.device(index)) for index in indexes],
        }
