"""Every field that an expression may name: what it is, in which unit, and where it is read. None is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from mltop.probes.model import GpuSample, HostSample, RankSample
from mltop.tui.filters import kinds
from mltop.tui.filters.kinds import Kind
from mltop.tui.filters.problem import FilterProblem
from mltop.tui.filters.subject import Subject
from mltop.tui.render.gpus import throttle_cell
from mltop.tui.render.units import known

Value = float | str | list[int] | list[str] | None
Get = Callable[[Subject], Value]


@dataclass(frozen=True)
class Field:
    """``of``: node, gpu, rank or finding: what the value belongs to. A sequence of values matches by any of them."""

    name: str
    of: str
    kind: Kind
    meaning: str
    get: Get

    @property
    def needs_gpus(self) -> bool:
        return self.of == "gpu" or self.name == "pid"

    @property
    def needs_ranks(self) -> bool:
        return self.of == "rank"


def field_named(name: str) -> Field:
    """The field of this name or alias, case ignored; raises FilterProblem with the nearest name."""
    wanted = name.casefold()
    wanted = ALIASES.get(wanted, wanted)
    if wanted in FIELDS:
        return FIELDS[wanted]
    near = get_close_matches(wanted, [*FIELDS, *ALIASES], n=1, cutoff=0.5)
    hint = f"{near[0]}?" if near else "? lists them"
    raise FilterProblem(f"no field {name!r}: {hint}")


def _host(get: Callable[[HostSample], Value]) -> Get:
    return lambda subject: None if subject.view.sample is None else get(subject.view.sample.host)


def _gpu(get: Callable[[GpuSample], Value]) -> Get:
    return lambda subject: None if subject.gpu is None else get(subject.gpu)


def _rank(get: Callable[[RankSample], Value]) -> Get:
    return lambda subject: None if subject.rank is None else get(subject.rank)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _count_of(name: str) -> Get:
    return lambda subject: None if subject.view.sample is None else len(getattr(subject.view.sample, name))


def _pids(subject: Subject) -> Value:
    """The rank's process; of a GPU without ranks, whatever process holds it."""
    if subject.rank is not None:
        return subject.rank.pid
    if subject.gpu is None or subject.gpu.processes is None:
        return None
    return [process.pid for process in subject.gpu.processes]


def _severity(subject: Subject) -> Value:
    """The worst finding's; 0 ("none") without one."""
    order = kinds.SEVERITY.words
    return max((order.get(finding.severity, 0.0) for finding in subject.findings), default=0.0)


def _findings(subject: Subject) -> Value:
    return [text for finding in subject.findings for text in (finding.id, f"{finding.subject} {finding.message}")]


def _throttle(reasons: Sequence[str] | None) -> Value:
    """The reasons and their badges on the screen; "none" when nothing slows the GPU down."""
    if reasons is None:
        return None
    found = [*reasons, *throttle_cell(reasons).text.split()]
    return found if set(reasons) - {"gpu_idle"} else [*found, "none"]


def _activity(gpu: GpuSample) -> float | None:
    return gpu.busy if gpu.sm_active is None else gpu.sm_active


def _host_memory(host: HostSample) -> float | None:
    share_free = _share(host.memory_available_bytes, host.memory_total_bytes)
    return None if share_free is None else 1.0 - share_free


_ALL: tuple[Field, ...] = (
    Field("node", "node", kinds.TEXT, "the node's name; also gpu[01-16]", lambda s: s.view.node),
    Field("state", "node", kinds.STATE, "of the connection to it", lambda s: s.view.state.state),
    Field("reason", "node", kinds.TEXT, "why it is not live", lambda s: s.view.state.reason or None),
    Field("age", "node", kinds.SECONDS, "since its newest sample", lambda s: s.view.state.age_s),
    Field("gpus", "node", kinds.COUNT, "how many GPUs it has", _count_of("gpus")),
    Field("ranks", "node", kinds.COUNT, "how many ranks run there", _count_of("ranks")),
    Field("cpu", "node", kinds.SHARE, "of all its cores, in use", _host(lambda host: host.cpu_fraction)),
    Field("load", "node", kinds.NUMBER, "its load over 1 minute", _host(lambda host: host.load_1m)),
    Field("host_mem", "node", kinds.SHARE, "of its memory, in use", _host(_host_memory)),
    Field("gpu", "gpu", kinds.COUNT, "the GPU's index", _gpu(lambda gpu: gpu.index)),
    Field("model", "gpu", kinds.TEXT, "its product name", _gpu(lambda gpu: gpu.name)),
    Field("lost", "gpu", kinds.YES_NO, "it does not answer", _gpu(lambda gpu: float(gpu.state != "ok"))),
    Field("busy", "gpu", kinds.SHARE, "NVML's GPU-Util", _gpu(lambda gpu: gpu.busy)),
    Field("sm", "gpu", kinds.SHARE, "SMs that were active", _gpu(lambda gpu: gpu.sm_active)),
    Field("tensor", "gpu", kinds.SHARE, "tensor cores active", _gpu(lambda gpu: gpu.tensor_active)),
    Field("dram", "gpu", kinds.SHARE, "memory interface active", _gpu(lambda gpu: gpu.dram_active)),
    Field("activity", "gpu", kinds.SHARE, "sm, or busy where sm is unknown", _gpu(_activity)),
    Field(
        "memory",
        "gpu",
        kinds.SHARE,
        "of its memory, in use",
        _gpu(lambda gpu: _share(gpu.memory_used_bytes, gpu.memory_total_bytes)),
    ),
    Field("mem_used", "gpu", kinds.BYTES, "memory in use", _gpu(lambda gpu: gpu.memory_used_bytes)),
    Field("temp", "gpu", kinds.CELSIUS, "temperature", _gpu(lambda gpu: gpu.temperature_c)),
    Field("power", "gpu", kinds.WATTS, "what it draws", _gpu(lambda gpu: gpu.power_w)),
    Field(
        "clock",
        "gpu",
        kinds.SHARE,
        "SM clock, of its maximum",
        _gpu(lambda gpu: _share(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)),
    ),
    Field("mhz", "gpu", kinds.MEGAHERTZ, "SM clock", _gpu(lambda gpu: gpu.sm_clock_mhz)),
    Field(
        "throttle",
        "gpu",
        kinds.TEXT,
        "why it is slowed down: hw_thermal, …, none",
        _gpu(lambda gpu: _throttle(gpu.throttle_reasons)),
    ),
    Field("ecc", "gpu", kinds.COUNT, "uncorrected errors since reset", _gpu(lambda gpu: gpu.ecc.uncorrected_volatile)),
    Field("rank", "rank", kinds.COUNT, "the rank's number", _rank(lambda rank: rank.rank)),
    Field("job", "rank", kinds.TEXT, "its job", _rank(lambda rank: rank.job or None)),
    Field("user", "rank", kinds.TEXT, "whose process it is", _rank(lambda rank: rank.user or None)),
    Field("pid", "rank", kinds.COUNT, "its process, or one that holds the GPU", _pids),
    Field("command", "rank", kinds.TEXT, "its command line", _rank(lambda rank: rank.command or None)),
    Field("rank_state", "rank", kinds.TEXT, "R S D T Z as the kernel says", _rank(lambda rank: rank.state or None)),
    Field("rank_cpu", "rank", kinds.CORES, "CPU that it uses", _rank(lambda rank: rank.cpu_fraction)),
    Field("rss", "rank", kinds.BYTES, "its resident memory", _rank(lambda rank: rank.rss_bytes)),
    Field("severity", "finding", kinds.SEVERITY, "of the worst finding", _severity),
    Field("finding", "finding", kinds.TEXT, "a finding's id or text", _findings),
)

FIELDS: dict[str, Field] = {field.name: field for field in _ALL}

ALIASES = {
    "temperature": "temp",
    "util": "busy",
    "sm_active": "sm",
    "tc": "tensor",
    "mem": "memory",
    "watts": "power",
    "host": "node",
    "sev": "severity",
    "cmd": "command",
}


def is_known(value: Value) -> bool:
    """Whether there is something to compare; NaN is unknown, an empty list is known."""
    return known(value) if isinstance(value, (int, float)) else value is not None


def has_no_rank(field: Field, subject: Subject) -> bool:
    """Whether a field of ranks has no value because it is known that no rank is there.

    Processes that could not be read may be ranks, except on a GPU that no process holds.
    """
    sample, gpu = subject.view.sample, subject.gpu
    if sample is None or subject.rank is not None or field.of != "rank" or field.needs_gpus:
        return False
    return (gpu is not None and gpu.processes == []) or not any(gap.what == "ranks" for gap in sample.gaps)


def value_of(field: Field, subject: Subject) -> Any:
    """The field's value, None when unknown."""
    value = field.get(subject)
    return value if is_known(value) else None
