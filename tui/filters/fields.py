"""What an expression is asked about: a node, or one of its GPUs, ranks or findings together with that node.

Every field that an expression may name: what it is, in which unit, and where it is read. None is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from mltop.probes.model import Finding, GpuSample, HostSample, RankSample
from mltop.probes.reach.view import NodeView
from mltop.tui.filters import kinds
from mltop.tui.filters.kinds import FilterProblem, Kind
from mltop.tui.render.gpus.table import throttle_cell
from mltop.tui.render.units import known


class Subject(NamedTuple):
    """``findings`` are those of the subject alone: of the GPU when ``gpu`` is set, else of the node.

    ``text`` is what plain words look for; made from the rest where it is None.
    """

    view: NodeView
    gpu: GpuSample | None = None
    rank: RankSample | None = None
    findings: Sequence[Finding] = ()
    text: str | None = None


def words_of(subject: Subject) -> str:
    """Everything that stands for the subject in text: names, states, and what is wrong."""
    view, gpu, rank = subject.view, subject.gpu, subject.rank
    parts = [view.node, view.state.state, view.state.reason]
    if gpu is not None:
        parts += [f"gpu{gpu.index}", gpu.name or "", gpu.error or "", *(gpu.throttle_reasons or ())]
    if rank is not None:
        parts += [f"rank {rank.rank}", str(rank.pid), rank.job, rank.user, rank.command]
    parts += [f"{finding.id} {finding.subject} {finding.message}" for finding in subject.findings]
    return " ".join(filter(None, parts))


def of_gpu(gpu: GpuSample, findings: Sequence[Finding]) -> list[Finding]:
    """Those of a node's findings that are about this GPU: the rules name it ``GPU 3``, or ``all 8 GPUs``."""
    name = f"GPU {gpu.index}"
    return [one for one in findings if one.subject == name or _of_all(one.subject)]


def gpu_of(finding: Finding, view: NodeView) -> GpuSample | None:
    """The GPU that a finding is about, None when it is about something else."""
    word, _, index = finding.subject.partition(" ")
    gpus = view.sample.gpus if view.sample is not None else ()
    return next((gpu for gpu in gpus if word == "GPU" and str(gpu.index) == index), None)


def users_of(view: NodeView, gpu: GpuSample) -> list[RankSample]:
    """The ranks that use a GPU."""
    return [rank for rank in view.sample.ranks if gpu.index in rank.gpus] if view.sample is not None else []


def gpus_of(view: NodeView, rank: RankSample) -> list[GpuSample]:
    """The GPUs that a rank uses. GPUs come in the order of their indexes, unless some are hidden."""
    gpus = view.sample.gpus if view.sample is not None else []
    if all(index < len(gpus) and gpus[index].index == index for index in rank.gpus):
        return [gpus[index] for index in rank.gpus]
    return [gpu for gpu in gpus if gpu.index in rank.gpus]


def with_ranks(subject: Subject) -> Iterator[Subject]:
    """A GPU once with each of its ranks, alone when it has none."""
    users = users_of(subject.view, subject.gpu) if subject.gpu is not None else []
    yield from (subject._replace(rank=rank) for rank in users)
    if not users:
        yield subject


def with_gpus(subject: Subject) -> Iterator[Subject]:
    """A rank once with each of its GPUs, alone when it has none."""
    used = gpus_of(subject.view, subject.rank) if subject.rank is not None else []
    yield from (subject._replace(gpu=gpu) for gpu in used)
    if not used:
        yield subject


def parts_of(subject: Subject, gpus: bool, ranks: bool) -> Iterator[Subject]:
    """A node once with each of its GPUs and ranks, as far as ``gpus`` and ``ranks`` ask for them.

    A GPU comes with each of its ranks; a GPU without ranks, and a rank without a GPU, come alone.
    """
    sample = subject.view.sample
    found = False
    if sample is not None and gpus:
        for gpu in sample.gpus:
            found = True
            one = subject._replace(gpu=gpu)
            yield from with_ranks(one) if ranks else (one,)
    if sample is not None and ranks:
        for rank in sample.ranks:
            if not gpus or not gpus_of(subject.view, rank):
                found = True
                yield subject._replace(rank=rank)
    if not found:
        yield subject


def _of_all(subject: str) -> bool:
    return subject.startswith("all ") and subject.endswith(" GPUs")


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
