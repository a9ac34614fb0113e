"""What GPUs can do by their vendors, and what others have measured on them: one row for each model that we know.

Which row a GPU is, and what it can do at the clock and with the multiprocessors that it has. A test calculates every
vendor figure again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

# Of rows, as they name them. General knowledge is not used to accuse.
SOURCES = {
    "V": "the vendor's data sheet, dense figures",
    "B": "the ml-engineering book (2026)",
    "D": "NVIDIA DCGM 4.6 (SKU tables, device ids)",
    "AG": "Azure's AI-benchmarking-guide",
    "AZ, GC": "health checks of Azure and Google",
    "CW": "coreweave's nccl-tests",
    "NV": "NVIDIA at GTC 2024 and 2025",
    "P": "pci.ids",
    "K": "general knowledge, not checked against a document",
}


@dataclass(frozen=True)
class Expected:
    """What hardware should give, whose figure that is, and whether it may be relied on.

    ``certain`` False: an estimate, or measured under conditions that may not be these: it accuses nobody."""

    bytes_per_s: float
    source: str
    certain: bool = True


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
    direction (AMD: xGMI). ``host_link``: pcie | c2c | xgmi. ``mamf_tflops``: mamf-finder's; ``best_shapes``: of them.
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


COPY_SOURCE = SOURCES["AG"]  # of copy_bytes_per_s
GB = 1 << 30
MB = 1 << 20
TB_PER_S = 1e12
GB_PER_S = 1e9


def _rates(bf16: int, fp32: int, *more: str) -> dict[str, int]:
    """FLOP per clock and multiprocessor: half the width, twice the rate. ``more``: fp8, fp4."""
    rates = {"fp32": fp32, "tf32": bf16 // 2, "bf16": bf16, "fp16": bf16, "fp8": 2 * bf16, "fp4": 4 * bf16}
    return {dtype: rate for dtype, rate in rates.items() if dtype not in ("fp8", "fp4") or dtype in more}


def _tflops(fp32: float, tf32: float, bf16: float, fp8: float = 0.0, fp4: float = 0.0) -> dict[str, float]:
    rates = {"fp32": fp32, "tf32": tf32, "bf16": bf16, "fp16": bf16, "fp8": fp8, "fp4": fp4}
    return {dtype: rate for dtype, rate in rates.items() if rate}


def _mamf(**best: tuple[float, Shape]) -> dict[str, Any]:
    """``_mamf(bf16=(TFLOP/s, shape))``"""
    return {
        "mamf_tflops": {dtype: rate for dtype, (rate, _) in best.items()},
        "best_shapes": {dtype: shape for dtype, (_, shape) in best.items()},
    }


def _row(shared: Mapping[str, Any], name: str, pattern: str, ids: str, **own: Any) -> Peak:
    """``ids`` with blanks between; GB, MB and TB/s as vendors give them; ``copy``: TB/s lowest, highest."""
    values = {**shared, **own, "doubts": {**shared.get("doubts", {}), **own.get("doubts", {})}}
    memory_gb, l2_mb, copy = values.pop("gb"), values.pop("l2_mb", None), values.pop("copy", None)
    nvlink, floor = values.pop("nvlink", None), values.pop("floor", None)
    return Peak(
        name=name,
        pattern=pattern,
        ids=tuple(ids.split()),
        memory_bytes=None if memory_gb is None else memory_gb * GB,
        memory_bytes_per_s=values.pop("tb_per_s") * TB_PER_S,
        l2_bytes=None if l2_mb is None else l2_mb * MB,
        nvlink_bytes_per_s=None if nvlink is None else nvlink * GB_PER_S,
        copy_bytes_per_s=None if copy is None else (copy[0] * TB_PER_S, copy[1] * TB_PER_S),
        copy_floor_bytes_per_s=None if floor is None else floor * TB_PER_S,
        **values,
    )


_AMPERE = _rates(2048, 128)
_GA102 = _rates(1024, 256)
_ADA = _rates(1024, 256, "fp8")
_GEFORCE = {"fp32": 256, "tf32": 256, "bf16": 512, "fp16": 512, "fp8": 1024}  # half rate with fp32 accumulation
_HOPPER = _rates(4096, 256, "fp8")
_BLACKWELL = _rates(8192, 256, "fp8", "fp4")

# fmt: off
_VOLTA: dict[str, Any] = {
    "sms": 80, "flop_per_clock": {"fp32": 128, "fp16": 1024}, "gb": None, "tb_per_s": 0.90, "l2_mb": 6,
    "doubts": {"memory_bytes": "16 or 32 GB"}, "certain": False,
}
_A100: dict[str, Any] = {
    "sms": 108, "flop_per_clock": _AMPERE, "boost_mhz": 1410, "tflops": _tflops(19.5, 156, 312), "l2_mb": 40,
    "source": "V, B; ids: D, P",
}
_A100_SXM = {**_A100, "power_w": 400, "nvlink": 300, **_mamf(bf16=(271.2, (1024, 10240, 5120)))}
_A100_PCIE = {**_A100, **_mamf(bf16=(252.9, (2048, 5120, 6144)))}
_CARD: dict[str, Any] = {"sms": 84, "flop_per_clock": _GA102, "gb": 48, "power_w": 300, "l2_mb": 6, "certain": False}
_GEFORCE_FP16 = {"tflops.fp16": "with fp32 accumulation; twice as much with fp16 accumulation"}
_PRO_6000: dict[str, Any] = {
    "sms": 188, "flop_per_clock": _ADA | {"fp4": 4096}, "gb": 96, "l2_mb": 128, "certain": False,
    "source": "K, from V's fp32 and fp4 figures; bf16 and fp8 follow by the formula",
}
_PRO_FULL: dict[str, Any] = {
    **_PRO_6000, "boost_mhz": 2617, "tflops": _tflops(125, 252, 504, 1007, 2000), "power_w": 600,
    "doubts": {"tflops.fp32": "V rounds 126 to 125", "tflops.fp4": "V rounds 2015 to 2000 (4000 with sparsity)"},
}
_GH100: dict[str, Any] = {
    "sms": 132, "flop_per_clock": _HOPPER, "boost_mhz": 1830, "clocks_mhz": {"fp32": 1980},
    "tflops": _tflops(67, 494.5, 989, 1979), "nvlink": 450, "l2_mb": 50,
}
_NVL: dict[str, Any] = {
    "sms": 132, "flop_per_clock": _HOPPER, "boost_mhz": 1545, "clocks_mhz": {"fp32": 1785},
    "tflops": _tflops(60, 418, 835, 1671), "l2_mb": 50, "doubts": {"tflops.fp32": "V rounds 60.3 to 60"},
    "certain": False,
}
_L2_60 = {"l2_bytes": "data sheet 50 MB, a driver reported 60"}
_GRACE: dict[str, Any] = {
    **_GH100, "power_w": 900, "host_link": "c2c", "doubts": {"power_w": "at most 900 W with the CPU", **_L2_60},
}
_NVLINK_5: dict[str, Any] = {"flop_per_clock": _BLACKWELL, "nvlink": 900, "tb_per_s": 8.0}
_FP32_80 = {"tflops.fp32": "80 needs 2112 MHz, above the driver's highest clock"}
_ULTRA = {"tflops.fp8": "B's figure; Blackwell Ultra has little int8, and fp8 was not checked"}
_MI300: dict[str, Any] = {
    "sms": 304, "flop_per_clock": {"fp32": 256, "tf32": 1024, "bf16": 2048, "fp16": 2048, "fp8": 4096},
    "boost_mhz": 2100, "tflops": _tflops(163.4, 653.7, 1307.4, 2614.9), "l2_mb": 256, "nvlink": 448, "source": "V, B",
    "doubts": {
        "l2_bytes": "the last level cache (Infinity Cache), not L2",
        "mamf.bf16": "PYTORCH_TUNABLEOP_ENABLED=1; software alone moved MI300X from 450 to 750",
    },
}

PEAKS: tuple[Peak, ...] = (
    _row(_VOLTA, "V100 SXM2", r"(Tesla )?V100-SXM2-(16|32)GB", "1db1 1db5",
         boost_mhz=1530, tflops={"fp32": 15.7, "fp16": 125}, power_w=300, nvlink=150, source="K; ids: D, P"),
    _row(_VOLTA, "V100 PCIe", r"(Tesla )?V100-PCIE-(16|32)GB", "1db4 1db6",
         boost_mhz=1370, tflops={"fp32": 14.0, "fp16": 112}, power_w=250,
         source="K (the clock follows from 112 TFLOPS; 1380 is also quoted); ids: P"),
    _row(_A100_SXM, "A100 SXM 40GB", r"A100-SXM4-40GB", "20b0", gb=40, tb_per_s=1.555),
    _row(_A100_SXM, "A100 SXM 80GB", r"A100-SXM4-80GB", "20b2", gb=80, tb_per_s=2.039,
         copy=(1.61, 1.75), floor=1.17, source="V, B; ids: D, P; copy: AG, floor: D"),
    _row(_A100_PCIE, "A100 PCIe 40GB", r"A100-PCIE-40GB", "20f1 20b1", gb=40, tb_per_s=1.555, power_w=250),
    _row(_A100_PCIE, "A100 PCIe 80GB", r"A100 80GB PCIe", "20b5", gb=80, tb_per_s=1.935, power_w=300),
    _row(_CARD, "A40", r"A40", "2235", boost_mhz=1740, tflops=_tflops(37.4, 74.8, 149.7), tb_per_s=0.696,
         source="K; ids: D, P"),
    _row(_CARD, "RTX A6000", r"RTX A6000", "2230", boost_mhz=1800, tflops=_tflops(38.7, 77.4, 154.8), tb_per_s=0.768,
         source="K; ids: D, P"),
    _row({}, "L4", r"L4", "27b8", sms=58, flop_per_clock=_ADA, boost_mhz=2040, tflops=_tflops(30.3, 60, 121, 242),
         gb=24, tb_per_s=0.30, power_w=72, l2_mb=48, source="K; ids: D, P",
         doubts={"tflops.tf32": "V rounds 60.6 to 60 (120 with sparsity)"}, certain=False),
    _row({}, "L40S", r"L40S", "26b9", sms=142, flop_per_clock=_ADA, boost_mhz=2490,
         clocks_mhz={"fp32": 2520, "tf32": 2520, "fp8": 2520}, tflops=_tflops(91.6, 183, 362, 733),
         gb=48, tb_per_s=0.864, power_w=350, l2_mb=96, source="V, B; ids: D",
         doubts={"boost_mhz": "V's bf16 is that of 2490 MHz, its other figures are those of 2520 MHz"}),
    _row({}, "RTX 4090", r"GeForce RTX 4090", "2684", sms=128, flop_per_clock=_GEFORCE, boost_mhz=2520,
         tflops=_tflops(82.6, 82.6, 165.2, 330.3), gb=24, tb_per_s=1.01, power_w=450, l2_mb=72, source="K; ids: P",
         doubts=_GEFORCE_FP16, certain=False),
    _row({}, "RTX 5090", r"GeForce RTX 5090", "", sms=170, flop_per_clock=_GEFORCE | {"fp4": 4096}, boost_mhz=2407,
         tflops=_tflops(104.8, 104.8, 209.5, 419, 1676), gb=32, tb_per_s=1.79, power_w=575, l2_mb=96, source="K",
         mamf_tflops={"bf16": 224}, certain=False,
         doubts={**_GEFORCE_FP16, "mamf.bf16": "a blog's torch.matmul (main-horse); boards clock above 2407 MHz"}),
    _row(_PRO_FULL, "RTX PRO 6000 Workstation", r"RTX PRO 6000 Blackwell Workstation Edition", "", tb_per_s=1.79),
    _row(_PRO_6000, "RTX PRO 6000 Max-Q", r"RTX PRO 6000 Blackwell Max-Q Workstation Edition", "2bb4",
         boost_mhz=None, tflops={}, tb_per_s=1.79, power_w=300,
         doubts={"tflops": "those of the 600 W card do not hold at 300 W, its own are not known to us"}),
    _row(_PRO_FULL, "RTX PRO 6000 Server", r"RTX PRO 6000 Blackwell Server Edition", "2bb5", tb_per_s=1.6,
         doubts={"boost_mhz": "the workstation card's"}),
    _row({}, "H100 PCIe", r"H100 PCIe", "2331", sms=114, flop_per_clock=_HOPPER, boost_mhz=1620,
         clocks_mhz={"fp32": 1755}, tflops=_tflops(51, 378, 756, 1513), gb=80, tb_per_s=2.0, power_w=350, l2_mb=50,
         source="V, B; ids: D, P"),
    _row(_GH100, "H100 SXM", r"H100 80GB HBM3", "2330", gb=80, tb_per_s=3.35, power_w=700,
         copy=(2.90, 3.18), floor=1.91, source="V, B; ids: D, P; copy: AG, floor: D",
         **_mamf(bf16=(794.5, (2048, 2048, 13312)), fp8=(1402.6, (1024, 9216, 14336)))),
    _row(_NVL, "H100 NVL", r"H100 NVL", "2321", gb=94, tb_per_s=3.9, power_w=400, source="K; ids: D",
         doubts={"power_w": "350 to 400"}),
    _row(_GH100, "H200 SXM", r"H200", "2335", gb=141, tb_per_s=4.8, power_w=700, copy=(4.01, 4.48),
         source="V, B; ids: D; copy: AG (D's floor is a slip in the unit, left out)",
         **_mamf(bf16=(794.5, (2048, 2048, 13312)), fp8=(1453.4, (1280, 4096, 12032))),
         doubts={"mamf.bf16": "H100's: B says that H200 is the same", **_L2_60}),
    _row(_NVL, "H200 NVL", r"H200 NVL", "233b", gb=141, tb_per_s=4.8, power_w=600, doubts=_L2_60,
         source="K (H100 NVL's arithmetic); ids: D"),
    _row(_GRACE, "GH200 96GB", r"GH200 (120GB|480GB)", "2342", gb=96, tb_per_s=4.0, source="V, B; ids: D"),
    _row(_GRACE, "GH200 144GB", r"GH200 144G( HBM3e)?", "2348", gb=141, tb_per_s=4.8, source="V, B (900 W)",
         **_mamf(bf16=(828.6, (1024, 15360, 4096)), fp8=(1535.0, (1024, 14336, 14336))),
         doubts={"ids": "2348 is inferred"}),
    _row(_NVLINK_5, "B200", r"B200", "2901", sms=148, boost_mhz=1856, tflops=_tflops(80, 1125, 2250, 4500, 9000),
         gb=180, power_w=1000, l2_mb=126, floor=4.07, source="V, B; ids: D; floor: D",
         **_mamf(bf16=(1745.0, (1792, 16128, 3072)), fp8=(3432.5, (15360, 4096, 3072))),
         doubts={**_FP32_80, "memory_bytes_per_s": "sources disagree",
                 "power_w": "DGX B200 is delivered with a set-point of 700 W: the enforced limit counts"}),
    _row(_NVLINK_5, "GB200", r"GB200", "2941", sms=148, boost_mhz=2062, tflops=_tflops(80, 1250, 2500, 5000, 10000),
         gb=186, power_w=1200, l2_mb=126, host_link="c2c", source="V, B",
         **_mamf(bf16=(1822.0, (4096, 9728, 2048)), fp8=(3615.6, (19456, 5120, 1536))),
         doubts={**_FP32_80, "ids": "2941 is inferred", "tflops.bf16": "sources disagree"}, certain=False),
    _row(_NVLINK_5, "B300", r"B300( SXM6)?( AC)?", "3182", sms=None, boost_mhz=None,
         tflops=_tflops(80, 1125, 2250, 4500), gb=270, power_w=1100, floor=4.62, source="B; ids: D; floor: D",
         **_mamf(bf16=(1769.0, (12288, 18432, 1024)), fp8=(3353.3, (3072, 6144, 7168))), certain=False,
         doubts={**_ULTRA, "sms": "148 to 160 by source: the device's own count is taken",
                 "tflops.fp4": "12600 to 15000 by source: left out", "memory_bytes": "270 to 288 GB by source",
                 "power_w": "1000 to 1300 W by source"}),
    _row(_NVLINK_5, "GB300", r"GB300", "31c2", sms=None, boost_mhz=None,
         tflops=_tflops(80, 1250, 2500, 5000, 15000), gb=279, power_w=1400, host_link="c2c", source="B; ids: D",
         certain=False, doubts={**_ULTRA, "sms": "at most 160: the device's own count is taken",
                                "memory_bytes": "279 to 288 GB by source"}),
    _row({}, "MI250X (one of two dies)", r"MI250X", "7408", sms=110, boost_mhz=1700,
         flop_per_clock={"fp32": 128, "bf16": 1024, "fp16": 1024},
         tflops={"fp32": 23.95, "bf16": 191.5, "fp16": 191.5}, gb=64, tb_per_s=1.64, power_w=560, nvlink=350,
         host_link="xgmi", source="V halved, B; ids: P",
         doubts={"power_w": "of both dies", "host_link": "PCIe outside of machines with optimised EPYC"}),
    _row(_MI300, "MI300X", r"MI300X( OAM)?( VF)?", "", gb=192, tb_per_s=5.3, power_w=750,
         **_mamf(bf16=(668.4, (10240, 15360, 8192)))),
    _row(_MI300, "MI325X", r"MI325X( OAM)?( VF)?", "", gb=256, tb_per_s=6.0, power_w=1000,
         **_mamf(bf16=(784.9, (13312, 10240, 8192)))),
    _row({}, "MI355X", r"MI355X( OAM)?( VF)?", "", sms=256, boost_mhz=2400,
         flop_per_clock={"fp32": 256, "bf16": 4096, "fp16": 4096, "fp8": 8192, "fp4": 16384},
         tflops={"fp32": 157.3, "bf16": 2517, "fp16": 2517, "fp8": 5000, "fp4": 10100}, gb=288, tb_per_s=8.0,
         power_w=1400, l2_mb=256, nvlink=535.5, source="V, B", **_mamf(bf16=(1565.0, (12288, 8192, 8192))),
         doubts={"tflops.fp8": "V rounds 5033 to 5000", "l2_bytes": "the last level cache (Infinity Cache), not L2",
                 "mamf.bf16": "B quotes it as 68 % of an older 2300"}),
)
# fmt: on


_VENDOR = re.compile(r"^(NVIDIA|AMD)\s+(Instinct\s+)?")
_MIG = re.compile(r"\s+MIG\s+\d+(c\.\d+)?g\..*$")  # torch names a slice "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
_NVML_ID = re.compile(r"(?:0x)?([0-9a-f]{4})(?:10de|1002)")  # device and vendor in one number
_ID = re.compile(r"(?:0x)?([0-9a-f]{1,4})")
_BY_ID = {number: peak for peak in PEAKS for number in peak.ids}


@lru_cache(maxsize=256)
def peak_of(name: str, pci_device: str = "") -> Peak | None:
    """The row of a GPU, by its PCI device id ("2330") or else by its product name (or the row's); None if unknown.

    The id is stronger. A name of a row that does not have the id gives that row, uncertain: it may be a variant.
    """
    number = _number(pci_device)
    if number in _BY_ID:
        return _BY_ID[number]
    plain = _MIG.sub("", _VENDOR.sub("", name.strip()))
    row = next((peak for peak in PEAKS if plain == peak.name or re.fullmatch(peak.pattern, plain)), None)
    if row is None or not number or not row.ids:
        return row
    doubts = {**row.doubts, "ids": f"PCI device id {number} is not known for this model"}
    return replace(row, doubts=doubts, certain=False)


def peak_tflops(peak: Peak, dtype: str, multiprocessors: int | None, clock_mhz: float | None) -> float | None:
    """TFLOP/s at this clock with so many multiprocessors (as the device says: boards and MIG slices differ).

    None for them: the table's. None for a dtype that the row does not have, and where a number is missing.
    """
    rate = peak.flop_per_clock.get(dtype)
    count = multiprocessors or peak.sms
    clock = clock_mhz or peak.clock_mhz(dtype)
    return count * rate * clock * 1e6 / 1e12 if rate and count and clock else None


def _number(pci_device: str) -> str:
    text = pci_device.strip().lower()
    match = _NVML_ID.fullmatch(text) or _ID.fullmatch(text)
    return match[1].zfill(4) if match is not None else ""
