"""Results of the memory and copies probes as GPUs of one model give them, with the small differences of real ones."""

from __future__ import annotations

import random
from typing import Any

from mltop.probes.model.probe import CopiesResult, MemoryResult, PastResult, PeerCopy, Phase

H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
GIB = 1 << 30
VERSIONS = {"torch": "2.9.1", "cuda": "12.8", "driver": "570.86.15"}
OTHER_VERSIONS = {**VERSIONS, "driver": "550.54.15"}


class Machines:
    """``jitter``: standard deviation among healthy GPUs. Deterministic."""

    def __init__(self, seed: int = 1, jitter: float = 0.004) -> None:
        self._random = random.Random(seed)
        self._jitter = jitter

    def like(self, value: float) -> float:
        return value * (1 + self._random.gauss(0, self._jitter))

    def memory(self, gpu: int = 0, rate: float = 2.93e12, node: str = "n1", **fields: Any) -> MemoryResult:
        values: dict[str, Any] = {
            **_device(node, gpu),
            "size_bytes": GIB,
            "iterations": 20,
            "copy_bytes_per_s": self.like(rate),
            "intact": True,
        }
        return MemoryResult(**{**values, **fields})

    def copies(self, gpu: int = 0, node: str = "n1", gpus: int = 8, **fields: Any) -> CopiesResult:
        """``gen``, ``width``: of the link during the copies; ``to_device``, …: bytes/s without jitter."""
        rates = {
            f"{way}_bytes_per_s": self.like(fields.pop(way, usual))
            for way, usual in (
                ("to_device", 51.5e9),
                ("to_host", 50.3e9),
                ("to_device_together", 46.5e9),
                ("to_host_together", 45.1e9),
            )
        }
        gen, width, peer = fields.pop("gen", 5), fields.pop("width", 16), fields.pop("peer", 372e9)
        values: dict[str, Any] = {
            **_device(node, gpu),
            **rates,
            "size_bytes": 256 << 20,
            "iterations": 20,
            "intact": True,
            "phases": [Phase(name, 0.1, pcie_gen=gen, pcie_width=width) for name in ("to device", "to host")],
            "pcie_gen_max": 5,
            "pcie_width_max": 16,
            "numa_node": gpu // 4,
            "near": True,
            "peers": [PeerCopy(to, self.like(peer), True, True) for to in range(gpus) if to != gpu],
        }
        return CopiesResult(**{**values, **fields})

    def node(self, node: str = "n1", gpus: int = 8, **fields: Any) -> list[CopiesResult]:
        return [self.copies(gpu, node, gpus, **fields) for gpu in range(gpus)]


def earlier(
    uuid: str, key: str, value: float, count: int = 5, versions: dict[str, str] | None = None
) -> list[PastResult]:
    return [PastResult(uuid, key, value, float(at), versions or VERSIONS) for at in range(count)]


def uuid_of(node: str, gpu: int) -> str:
    return f"GPU-{node}-{gpu}"


def ways_of(results: list[CopiesResult], *gpus: int) -> list[PeerCopy]:
    """Copies with this GPU, or between these two, in both directions."""
    wanted = set(gpus)
    return [copy for result in results for copy in result.peers if wanted <= {result.gpu, copy.to_gpu}]


def _device(node: str, gpu: int) -> dict[str, Any]:
    return {
        "node": node,
        "gpu": gpu,
        "uuid": uuid_of(node, gpu),
        "name": H100,
        "pci_device": "2330",
        "versions": dict(VERSIONS),
    }
