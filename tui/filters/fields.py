"""What an expression may ask, of a node or one of its GPUs, ranks or findings: every field, and where it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from mltop.probes.model import Finding, GpuSample, HostSample, RankSample
from mltop.probes.model.units import known
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Column
from mltop.tui.render.findings import Happening
from mltop.tui.render.fleet.heat import activity, clock, memory, ratio
from mltop.tui.render.gpus.table import GPU_COLUMNS, GpuLine
from mltop.tui.render.gpus.throttle import BADGES
from mltop.tui.render.ranks import RANK_COLUMNS, RankLine
from mltop.tui.render.units import COUNT, NUMBER, SECONDS, SEVERITY, SHARE, STATE, TEXT, YES_NO, FilterProblem, Unit


class Subject(NamedTuple):
    """What is asked. ``findings`` are those of the subject alone: of the GPU when ``gpu`` is set, else of the node.

    ``text`` is what plain words look for; made from the rest where it is None. ``happening``: of lines of events.
    """

    view: NodeView
    gpu: GpuSample | None = None
    rank: RankSample | None = None
    findings: Sequence[Finding] = ()
    text: str | None = None
    happening: Happening | None = None


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
    """The findings of a node that are about this GPU, or about all of them."""
    return [finding for finding in findings if finding.gpu == gpu.index or finding.is_of_all_gpus]


def users_of(view: NodeView, gpu: GpuSample) -> list[RankSample]:
    """The ranks that use a GPU."""
    return [rank for rank in view.sample.ranks if gpu.index in rank.gpus] if view.sample is not None else []


def gpus_of(view: NodeView, rank: RankSample) -> list[GpuSample]:
    """The GPUs that a rank uses. GPUs come in the order of their indexes, unless some are hidden."""
    gpus = view.sample.gpus if view.sample is not None else []
    if all(index < len(gpus) and gpus[index].index == index for index in rank.gpus):
        return [gpus[index] for index in rank.gpus]
    return [gpu for gpu in gpus if gpu.index in rank.gpus]


def gpu_bytes_of(view: NodeView, rank: RankSample) -> int | None:
    """GPU memory that a rank's process holds, on all its GPUs; None where NVML does not say."""
    held = [size for gpu in gpus_of(view, rank) if (size := held_by(view, gpu, rank)) is not None]
    return sum(held) if held else None


def held_by(view: NodeView, gpu: GpuSample, rank: RankSample) -> int | None:
    """Memory of one GPU that a rank's process holds. In a container, where NVML names it by another pid, it is the only
    process on the GPU that only this rank uses.
    """
    listed = gpu.processes or []
    if len(listed) == 1 and listed[0].absent == "elsewhere" and len(users_of(view, gpu)) == 1:
        return listed[0].memory_bytes
    return next((process.memory_bytes for process in listed if process.pid == rank.pid), None)


def parts_of(subject: Subject, gpus: bool, ranks: bool) -> Iterable[Subject]:
    """A row once with each of its parts, as far as ``gpus`` and ``ranks`` ask for them; alone when it has none.

    A GPU comes with each of its ranks, a rank with each of its GPUs; a node with each GPU and its ranks, and with each
    rank that has no GPU.
    """
    if subject.gpu is not None:
        users = users_of(subject.view, subject.gpu) if ranks else []
        return [subject._replace(rank=rank) for rank in users] or (subject,)
    if subject.rank is not None:
        used = gpus_of(subject.view, subject.rank) if gpus else []
        return [subject._replace(gpu=gpu) for gpu in used] or (subject,)
    return _parts_of_node(subject, gpus, ranks)


def _parts_of_node(subject: Subject, gpus: bool, ranks: bool) -> Iterator[Subject]:
    sample, alone = subject.view.sample, True
    if sample is not None and gpus:
        for gpu in sample.gpus:
            alone = False
            yield from parts_of(subject._replace(gpu=gpu), gpus, ranks)
    if sample is not None and ranks:
        for rank in sample.ranks:
            if not gpus or not gpus_of(subject.view, rank):
                alone = False
                yield subject._replace(rank=rank)
    if alone:
        yield subject


Value = float | str | list[int] | list[str] | None
Get = Callable[[Subject], Value]


@dataclass(frozen=True)
class Field:
    """``of``: node, gpu, rank or finding: what the value belongs to. A sequence of values matches by any of them."""

    name: str
    of: str
    unit: Unit
    meaning: str
    get: Get

    @property
    def needs_gpus(self) -> bool:
        return self.of == "gpu" or self.name == "pid"


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
    order = SEVERITY.words
    if subject.happening is not None:
        return order.get(subject.happening.severity, 0.0)
    return max((order.get(finding.severity, 0.0) for finding in subject.findings), default=0.0)


def _kind(subject: Subject) -> Value:
    """The word of its line."""
    return subject.happening.kind if subject.happening is not None else None


def _findings(subject: Subject) -> Value:
    return [text for finding in subject.findings for text in (finding.id, f"{finding.subject} {finding.message}")]


def _throttle(gpu: GpuSample) -> Value:
    """The reasons and their badges on the screen; "none" when nothing slows the GPU down."""
    reasons = gpu.throttle_reasons
    if reasons is None:
        return None
    names = [*reasons, *(BADGES[reason].text for reason in reasons if reason in BADGES)]
    return names if set(reasons) - {"gpu_idle"} else [*names, "none"]


def _host_memory(host: HostSample) -> float | None:
    share_free = ratio(host.memory_available_bytes, host.memory_total_bytes)
    return None if share_free is None else 1.0 - share_free


def _of_rank_line(value: Callable[[Any], Value]) -> Get:
    """What stands in a column of ranks."""

    def get(subject: Subject) -> Value:
        rank = subject.rank
        if rank is None:
            return None
        got = value(RankLine("", rank, gpu_bytes=gpu_bytes_of(subject.view, rank)))
        return None if got == "" else got  # blank text is not known

    return get


def _of_columns(columns: Sequence[Column], of: str, get: Callable[[Callable[[Any], Value]], Get]) -> list[Field]:
    """The columns that a filter may ask for."""
    return [
        Field(column.field, of, column.unit, column.meaning, get(column.value)) for column in columns if column.field
    ]


_ALL: tuple[Field, ...] = (
    Field("node", "node", TEXT, "the node's name; also gpu[01-16]", lambda s: s.view.node),
    Field("state", "node", STATE, "of the connection to it", lambda s: s.view.state.state),
    Field("reason", "node", TEXT, "why it is not live", lambda s: s.view.state.reason or None),
    Field("age", "node", SECONDS, "since its newest sample", lambda s: s.view.state.age_s),
    Field("gpus", "node", COUNT, "how many GPUs it has", _count_of("gpus")),
    Field("ranks", "node", COUNT, "how many ranks run there", _count_of("ranks")),
    Field("cpu", "node", SHARE, "of all its cores, in use", _host(lambda host: host.cpu_fraction)),
    Field("load", "node", NUMBER, "its load over 1 minute", _host(lambda host: host.load_1m)),
    Field("host_mem", "node", SHARE, "of its memory, in use", _host(_host_memory)),
    *_of_columns(GPU_COLUMNS, "gpu", lambda value: _gpu(lambda gpu: value(GpuLine(gpu)))),
    Field("lost", "gpu", YES_NO, "it does not answer", _gpu(lambda gpu: float(gpu.state != "ok"))),
    Field("activity", "gpu", SHARE, "sm, or busy where sm is unknown", _gpu(activity)),
    Field("memory", "gpu", SHARE, "of its memory, in use", _gpu(memory)),
    Field("clock", "gpu", SHARE, "SM clock, of its maximum", _gpu(clock)),
    Field("throttle", "gpu", TEXT, "why it is slowed down: hw_thermal, …, none", _gpu(_throttle)),
    Field("ecc", "gpu", COUNT, "uncorrectable errors since reset", _gpu(lambda gpu: gpu.ecc.uncorrected_volatile)),
    *_of_columns(RANK_COLUMNS, "rank", _of_rank_line),
    Field("pid", "rank", COUNT, "its process, or one that holds the GPU", _pids),
    Field("kind", "finding", TEXT, "of an event: xid 79, oom, warn, over", _kind),
    Field("severity", "finding", SEVERITY, "of the worst finding", _severity),
    Field("finding", "finding", TEXT, "a finding's id or text", _findings),
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


def has_no_rank(field: Field, subject: Subject) -> bool:
    """Whether a field of ranks has no value because it is known that no rank is there.

    Processes that could not be read may be ranks, except on a GPU that no process holds.
    """
    sample, gpu = subject.view.sample, subject.gpu
    if sample is None or subject.rank is not None or field.of != "rank" or field.needs_gpus:
        return False
    return (gpu is not None and gpu.processes == []) or not any(
        gap.source == "ranks" and not gap.fields for gap in sample.gaps
    )


def value_of(field: Field, subject: Subject) -> Any:
    """The field's value, None when unknown. An empty list is known."""
    value = field.get(subject)
    return None if isinstance(value, (int, float)) and not known(value) else value
