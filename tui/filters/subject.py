"""What an expression is asked about: a node, or one of its GPUs, ranks or findings together with that node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mltop.probes.model import Finding, GpuSample, RankSample
from mltop.probes.reach.view import NodeView


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
