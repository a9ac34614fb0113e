"""What one model of GPU can do by its vendor, and what others have measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[int, int, int]  # M, N, K of a GEMM


@dataclass(frozen=True)
class Peak:
    """One row of the table. Rates are dense (no sparsity), TFLOP/s and bytes/s; a multiply-add counts 2.

    ``pattern``: regular expression of the product name as NVML or torch has it, without vendor and MIG profile.
    ``ids``: PCI device ids in hex. ``sms``: multiprocessors (AMD: compute units), None where boards differ.
    ``flop_per_clock``: per multiprocessor, by dtype. ``boost_mhz``: the clock that gives the vendor's TFLOPS;
    ``clocks_mhz``: by dtype, where the vendor took another one for it. ``memory_bytes``: as sold (GB of 2^30).
    ``copy_bytes_per_s``: lowest and highest measured in device memory, a copied byte counting twice;
    ``copy_floor_bytes_per_s``: what DCGM's diagnostic wants at least. ``nvlink_bytes_per_s``: of all links, in one
    direction (AMD: xGMI). ``host_link``: pcie | c2c | xgmi. ``best_shapes``, ``mamf_tflops``: of mamf-finder.
    ``source``: of the row; ``doubts``: by field ("tflops.fp8"), what is not known well and why. ``certain`` False: the
    row is general knowledge or its sources disagree. What is doubtful is never used to accuse.
    """

    name: str
    pattern: str
    sms: int | None
    flop_per_clock: Mapping[str, int]
    boost_mhz: float | None
    tflops: Mapping[str, float]
    memory_bytes: int | None
    memory_bytes_per_s: float | None
    power_w: float | None
    source: str
    l2_bytes: int | None = None
    ids: tuple[str, ...] = ()
    clocks_mhz: Mapping[str, float] = field(default_factory=dict)
    nvlink_bytes_per_s: float | None = None
    host_link: str = "pcie"
    best_shapes: Mapping[str, Shape] = field(default_factory=dict)
    mamf_tflops: Mapping[str, float] = field(default_factory=dict)
    copy_bytes_per_s: tuple[float, float] | None = None
    copy_floor_bytes_per_s: float | None = None
    doubts: Mapping[str, str] = field(default_factory=dict)
    certain: bool = True

    def is_sure(self, what: str) -> bool:
        """Whether a field ("memory_bytes_per_s", "tflops.bf16") may be used to say that something is slow."""
        return self.certain and what not in self.doubts

    def clock_mhz(self, dtype: str) -> float | None:
        """The clock behind the vendor's TFLOPS of this dtype."""
        return self.clocks_mhz.get(dtype, self.boost_mhz)
