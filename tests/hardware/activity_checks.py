"""What GPM must say of known loads, beside what NVML says itself: how the slice `activity` judges."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.judge.probes.hardware.peaks import peak_of, peak_tflops
from mltop.probes.model import Gap
from tests.hardware.checks import Check, Told, compare, not_tried, within
from tests.hardware.loads import LoadKind

# Of a GpuSample the field, of nvml.h the metric's number.
METRICS = {"sm_active": 2, "tensor_active": 5, "dram_active": 10, "sm_occupancy": 3, "fp32_active": 12}
MAIN = ("sm_active", "tensor_active", "dram_active")
PCIE_RX, PCIE_TX = "pcie.rx_bytes_per_s", "pcie.tx_bytes_per_s"
SLOW = ("sm_occupancy", "fp32_active", PCIE_RX, PCIE_TX)  # mltop renews them every eight samples
LOADS: dict[LoadKind, str] = {
    "idle": "a CUDA context and no work",
    "spin": "a kernel of one thread that does nothing",
    "host": "copies from pinned memory of the host",
    "copy": "copies within the GPU's memory",
    "memory": "a kernel that adds 1 to 256 million numbers",
    "fp32": "fp32 GEMMs without TF32",
    "bursts": "bf16 GEMMs with the GPU idle for half of the time",
    "bf16": "bf16 GEMMs",
}
LONG: tuple[LoadKind, ...] = ("host", "memory", "fp32", "bf16")  # for what is renewed slowly
# By load: between what a metric must lie. A copy within the GPU may be made by SMs or by a copy engine.
BANDS: dict[tuple[LoadKind, str], tuple[float, float]] = {
    ("idle", "sm_active"): (0, 0.02),
    ("idle", "tensor_active"): (0, 0.02),
    ("idle", "dram_active"): (0, 0.03),
    ("idle", "busy"): (0, 0.05),
    ("spin", "sm_active"): (0, 0.06),
    ("spin", "tensor_active"): (0, 0.02),
    ("spin", "dram_active"): (0, 0.05),
    ("spin", "busy"): (0.9, 1),
    ("host", "sm_active"): (0, 0.1),
    ("host", "tensor_active"): (0, 0.02),
    ("copy", "tensor_active"): (0, 0.02),
    ("copy", "dram_active"): (0.5, 1),
    ("memory", "sm_active"): (0.7, 1),
    ("memory", "tensor_active"): (0, 0.02),
    ("memory", "dram_active"): (0.6, 1),
    ("memory", "sm_occupancy"): (0.2, 1),
    ("fp32", "sm_active"): (0.8, 1),
    ("fp32", "tensor_active"): (0, 0.05),
    ("fp32", "dram_active"): (0, 0.6),
    ("fp32", "fp32_active"): (0.4, 1),
    ("bursts", "sm_active"): (0.25, 0.75),
    ("bursts", "tensor_active"): (0.15, 0.75),
    ("bf16", "sm_active"): (0.8, 1),
    ("bf16", "tensor_active"): (0.4, 1),
    ("bf16", "dram_active"): (0, 0.7),
    ("bf16", "sm_occupancy"): (0.02, 0.7),
    ("bf16", "fp32_active"): (0, 0.4),
    ("bf16", "busy"): (0.9, 1),
}


@dataclass(frozen=True)
class Relation:
    """``how``: "over" is the first minus the second, "to" the first divided by it. Each: load, metric."""

    name: str
    first: tuple[LoadKind, str]
    how: str
    second: tuple[LoadKind, str]
    low: float
    high: float


RELATIONS = (
    Relation("tensor_active: bf16 over fp32", ("bf16", "tensor_active"), "over", ("fp32", "tensor_active"), 0.35, 1),
    Relation("dram_active: copy over bf16", ("copy", "dram_active"), "over", ("bf16", "dram_active"), 0.15, 1),
    Relation("dram_active: memory over fp32", ("memory", "dram_active"), "over", ("fp32", "dram_active"), 0.3, 1),
    Relation("sm_active: bursts to bf16", ("bursts", "sm_active"), "to", ("bf16", "sm_active"), 0.35, 0.65),
    Relation("tensor_active: bursts to bf16", ("bursts", "tensor_active"), "to", ("bf16", "tensor_active"), 0.3, 0.7),
    Relation("sm_occupancy: memory over bf16", ("memory", "sm_occupancy"), "over", ("bf16", "sm_occupancy"), 0.05, 1),
    Relation("spin: busy over sm_active", ("spin", "busy"), "over", ("spin", "sm_active"), 0.85, 1),
)
COPIED, MULTIPLIED, FROM_HOST = (
    "dram_active of the bytes copied",
    "tensor_active of the GEMM's rate",
    f"{PCIE_RX} (host)",
)
SMI_METRICS = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
OTHERS = "as an ordinary user"
CHECKS: tuple[str, ...] = (
    "gpm",
    *(f"{metric} ({load})" for load, metric in BANDS),
    *(f"busy ({load}, nvidia-smi)" for load in LOADS),
    *(relation.name for relation in RELATIONS),
    COPIED,
    MULTIPLIED,
    FROM_HOST,
    *(f"{metric} (NVML)" for metric in METRICS),
    *(f"{metric} (nvidia-smi dmon)" for metric in SMI_METRICS),
    f"gpm {OTHERS}",
    *(f"{metric} {OTHERS}" for metric in MAIN),
)
_C2C = re.compile(r"\bG[BH]\d")  # "NVIDIA GB200", "NVIDIA GH200 480GB": a Grace beside it, with a link of its own
ABSOLUTE, RELATIVE = 0.05, 0.15  # two averages of one steady load over two spans of time
BUSY_SLACK = {"bursts": 0.35}
BUSY_SLACK_ELSE = 0.15


@dataclass
class Nvml:
    """NVML's answers to GPM calls of our own: its return codes, None when nothing was said. ``why``: then."""

    support_code: int | None = None
    supported: bool | None = None
    sample_code: int | None = None
    why: str = "not asked"

    @property
    def state(self) -> str:
        if self.support_code is None:
            return ""
        if self.supported is False or self.support_code in codes.UNSUPPORTED:
            return "not supported"
        if self.support_code not in (0, codes.NO_PERMISSION):
            return f"NVML error {self.support_code}"
        if self.sample_code is None:
            return ""
        told = {0: "told", codes.NO_PERMISSION: "no permission"}
        return told.get(self.sample_code, _failed(self.sample_code))


@dataclass
class Under:
    """What was told under one load. ``samples``: all of mltop's; ``series``: of them what counts, by field. ``why``: it
    was not put on the GPU.
    """

    why: str = ""
    series: dict[str, list[float]] = field(default_factory=dict)
    gaps: dict[str, dict[str, Any]] = field(default_factory=dict)  # by field, a Gap
    nvml: dict[str, list[float]] = field(default_factory=dict)  # by field, as fractions
    smi_busy: float | None = None
    smi_gpm: dict[str, list[float]] = field(default_factory=dict)
    smi_why: str = "not asked"
    gpu_rate: float | None = None  # FLOP or bytes a second
    is_long: bool = False  # long enough for what is renewed slowly
    is_settled: bool = False  # and for GPU-Util, which is of up to a second
    samples: list[dict[str, float | None]] = field(default_factory=list)

    def value(self, name: str) -> float | None:
        found = self.series.get(name)
        return statistics.median(found) if found else None

    def gap(self, name: str) -> Gap | None:
        return Gap(**self.gaps[name]) if name in self.gaps else None


@dataclass
class View:
    """How GPM stands for one user: ``source`` is mltop's ``activity_source``, ``gap`` why it has no SM activity."""

    source: str | None = None
    gap: dict[str, Any] | None = None
    nvml: Nvml = field(default_factory=Nvml)
    why: str = ""  # it was not looked at

    @property
    def state(self) -> str:
        if self.source is not None:
            return "told" if self.source == "gpm" else f"told by {self.source}"
        if self.gap is None:
            return "no value, and no reason"
        if self.gap.get("kind") == "unsupported":
            return "not supported"
        if self.gap.get("code") == "no_permission":
            return "no permission"
        failed = re.search(r"NVML error (\d+)", self.gap["why"])
        return f"NVML error {failed[1]}" if failed else str(self.gap["why"])


@dataclass
class Activity:
    """One GPU. ``memory_bytes_per_s``: the most its memory could do, by NVML's bus width and clock. ``as_whom``: with
    which rights.
    """

    index: int
    name: str
    own: View = field(default_factory=View)
    other: View = field(default_factory=lambda: View(why="not tried"))
    loads: dict[str, Under] = field(default_factory=dict)
    other_under: Under = field(default_factory=Under)
    memory_bytes_per_s: float | None = None
    as_whom: str = ""

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Activity:
        """From its record (dataclasses.asdict, as JSON)."""
        found = cls(**saved)
        found.own, found.other = (
            View(**{**one, "nvml": Nvml(**one["nvml"])}) for one in (saved["own"], saved["other"])
        )
        found.loads = {kind: Under(**one) for kind, one in saved["loads"].items()}
        found.other_under = Under(**saved["other_under"])
        return found

    def under(self, load: str) -> Under:
        return self.loads.get(load) or Under("this load was not put on the GPU")


def checks_of(found: Activity) -> Iterator[Check]:
    yield of_view(found, "gpm", found.own)
    for load in LOADS:
        yield from of_load(found, load)
    yield from of_all(found)


def of_view(found: Activity, name: str, view: View) -> Check:
    """mltop says that there is GPM, or why not, as NVML itself does to this user."""
    details: dict[str, Any] = {"gpu": found.index, "source": "NVML directly"}
    if view.why or not view.nvml.state:
        return not_tried(name, view.why or f"NVML was not asked directly: {view.nvml.why}", **details)
    ours = view.state
    if ours.startswith("told by") and view.nvml.state != "told":
        return not_tried(name, f"mltop has it {ours.removeprefix('told ')}; NVML says {view.nvml.state}", **details)
    whom = found.as_whom if view is found.own else ""
    return replace(compare(name, ours, Told(view.nvml.state), **details), why=whom)


def of_load(found: Activity, load: LoadKind) -> Iterator[Check]:
    for (kind, metric), (low, high) in BANDS.items():
        if kind == load:
            yield band(found, load, metric, low, high)
    yield busy(found, load)


def band(found: Activity, load: LoadKind, metric: str, low: float, high: float) -> Check:
    name, under = f"{metric} ({load})", found.under(load)
    ours = under.value(metric)
    why = "" if ours is not None else missing(found, load, metric)
    if metric == "busy" and not (under.is_settled or under.why):
        why = "the load ran for less than GPU-Util is an average of: give it more --minutes"
    if why:
        return not_tried(name, why, gpu=found.index)
    gap = under.gap(metric)
    said = LOADS[load] + (f"; mltop: {gap.why}" if ours is None and gap is not None else "")
    return within(name, ours, low, high, said, gpu=found.index)


def missing(found: Activity, load: LoadKind, metric: str) -> str:
    """Why mltop has no value, "" when it should have one: somebody else has, or nothing says why not."""
    under = found.under(load)
    gap = under.gap(metric)
    if under.why:
        return under.why
    if metric in SLOW and not under.is_long:
        return "the load ran for less than mltop takes to renew this: give it more --minutes"
    if gap is None or under.nvml.get(metric):
        return ""
    return f"mltop: {gap.why}" + (f" ({gap.fix})" if gap.fix else "")


def busy(found: Activity, load: LoadKind) -> Check:
    """mltop's GPU-Util beside nvidia-smi's, which was asked right after it."""
    under, name = found.under(load), f"busy ({load}, nvidia-smi)"
    if under.why:
        return not_tried(name, under.why, gpu=found.index)
    theirs = Told(under.smi_busy) if under.smi_busy is not None else Told(why=under.smi_why)
    slack, source = BUSY_SLACK.get(load, BUSY_SLACK_ELSE), "nvidia-smi utilization.gpu"
    return compare(name, under.value("busy"), theirs, slack, "", under.gap("busy"), gpu=found.index, source=source)


def of_all(found: Activity) -> Iterator[Check]:
    yield from (related(found, relation) for relation in RELATIONS)
    yield of_rate(found, COPIED, "copy", "dram_active", found.memory_bytes_per_s, (0.8, 1.3))
    yield of_rate(found, MULTIPLIED, "bf16", "tensor_active", _peak_flops(found), (0.75, 1.3))
    yield from_host(found)
    yield from (against_nvml(found, metric) for metric in METRICS)
    yield from (against_smi(found, metric) for metric in SMI_METRICS)
    yield of_view(found, f"gpm {OTHERS}", found.other)
    yield from (as_other(found, metric) for metric in MAIN)


def related(found: Activity, relation: Relation) -> Check:
    values = []
    for load, metric in (relation.first, relation.second):
        value = found.under(load).value(metric)
        if value is None:
            why = missing(found, load, metric) or f"mltop tells no {metric} under {load}"
            return not_tried(relation.name, why, gpu=found.index)
        values.append(value)
    if "busy" in (relation.first[1], relation.second[1]) and not found.under(relation.first[0]).is_settled:
        return not_tried(relation.name, "the load ran for less than GPU-Util is an average of", gpu=found.index)
    first, second = values
    if relation.how == "to" and second <= 0:
        return not_tried(relation.name, f"{relation.second[1]} is 0 under {relation.second[0]}", gpu=found.index)
    ours = first - second if relation.how == "over" else first / second
    what = "less" if relation.how == "over" else "divided by"
    return within(relation.name, ours, relation.low, relation.high, f"{first:.3f} {what} {second:.3f}", gpu=found.index)


def of_rate(
    found: Activity,
    name: str,
    load: LoadKind,
    metric: str,
    most: float | None,
    factors: tuple[float, float],
    unit: str = "",
) -> Check:
    """The share of what the GPU could do at ``most``, by what the load itself has counted."""
    under = found.under(load)
    ours = under.value(metric)
    if under.why or ours is None:
        return not_tried(name, missing(found, load, metric) or f"mltop tells no {metric}", gpu=found.index)
    if under.gpu_rate is None or most is None:
        lacks = "the load told no rate" if under.gpu_rate is None else "it is not known what this GPU could do at most"
        return not_tried(name, lacks, gpu=found.index)
    share = under.gpu_rate / most
    why = f"{LOADS[load]}: {under.gpu_rate:.3g} a second" + (f" of {most:.3g}" if most != 1 else "")
    return within(name, ours, factors[0] * share, factors[1] * share, why, unit, gpu=found.index)


def from_host(found: Activity) -> Check:
    if _C2C.search(found.name):
        return not_tried(FROM_HOST, "this GPU's copies from the host go over NVLink-C2C, not PCIe", gpu=found.index)
    return of_rate(found, FROM_HOST, "host", PCIE_RX, 1.0, (0.85, 1.35), "B/s")


def _peak_flops(found: Activity) -> float | None:
    """At the clock that the GPU had under this load."""
    peak = peak_of(found.name)
    clock_mhz = found.under("bf16").value("sm_clock_mhz")
    tflops = None if peak is None or clock_mhz is None else peak_tflops(peak, "bf16", None, clock_mhz)
    return None if tflops is None else tflops * 1e12


def against_nvml(found: Activity, metric: str) -> Check:
    """Over all loads: the one where they are the furthest apart."""
    name = f"{metric} (NVML)"
    pairs = {
        load: (ours, statistics.median(under.nvml[metric]))
        for load, under in found.loads.items()
        if (ours := under.value(metric)) is not None and under.nvml.get(metric)
    }
    if not pairs:
        gap = found.own.gap["why"] if found.own.gap else ""
        state = found.own.nvml.state or found.own.nvml.why
        return not_tried(name, gap or f"there is nothing to compare; NVML, asked directly: {state}", gpu=found.index)
    apart = {load: abs(ours - theirs) / slack_of(theirs) for load, (ours, theirs) in pairs.items()}
    worst = max(pairs, key=lambda load: (apart[load], pairs[load][1]))
    ours, theirs = pairs[worst]
    check = compare(name, ours, Told(theirs), slack_of(theirs), gpu=found.index, source="NVML directly")
    check.details["loads"] = f"furthest apart of {len(pairs)} loads under {worst}"
    return check


def slack_of(value: float) -> float:
    return max(ABSOLUTE, RELATIVE * value)


def against_smi(found: Activity, metric: str) -> Check:
    """Under the bf16 GEMM. It is NVIDIA's own reading of GPM."""
    under, name = found.under("bf16"), f"{metric} (nvidia-smi dmon)"
    told = under.smi_gpm.get(metric)
    theirs = Told(statistics.median(told)) if told else Told(why=under.why or under.smi_why)
    gap = under.gap(metric)
    if under.value(metric) is None and metric in SLOW and not under.is_long:
        return not_tried(name, missing(found, "bf16", metric), gpu=found.index)
    slack = slack_of(theirs.value or 0.0)
    return compare(name, under.value(metric), theirs, slack, "", gap, gpu=found.index, source="nvidia-smi dmon")


def as_other(found: Activity, metric: str) -> Check:
    """An ordinary user's mltop beside root's, under the bf16 GEMM."""
    name, theirs = f"{metric} {OTHERS}", found.under("bf16").value(metric)
    details: dict[str, Any] = {"gpu": found.index, "source": "root's mltop"}
    if found.other.why or found.other_under.why:
        return not_tried(name, found.other.why or found.other_under.why, **details)
    ours, gap = found.other_under.value(metric), found.other_under.gap(metric)
    if ours is None and gap is not None and found.other.nvml.state not in ("told", ""):
        return not_tried(name, f"NVML tells an ordinary user nothing ({found.other.nvml.state}): {gap.why}", **details)
    told = Told(theirs, why="root's mltop tells none")
    return compare(name, ours, told, slack_of(theirs or 0.0), "", gap, **details)


def _failed(code: int) -> str:
    return "not supported" if code in codes.UNSUPPORTED else f"NVML error {code}"
