"""Ranks of one job that are not alike: other settings, other versions of libraries, other GPUs to see.

What differs by design is no difference: what each rank of a node has its own of, names of interfaces, files and hosts,
what only one rank logs or profiles. Ranks are compared within one world: a job's name may stand for several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from mltop.probes.judge.health.job.ranks import BAD_SETTINGS
from mltop.probes.judge.health.job.whole_job import JobMoment, RankFacts
from mltop.probes.judge.health.relations import RANK_ENDED, RANK_STALLED, SLOWS, STOPS
from mltop.probes.judge.health.rule import Hit, rank_rule
from mltop.probes.judge.nodes import folded
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.ranks import ranks_text
from mltop.probes.model.verdict import gpu_name
from mltop.probes.model.vocabulary import Severity

_job_rule = partial(rank_rule, needs=("ranks",), every_s=10.0, clear_s=30.0)
MOST_VALUES = 3  # that ranks have of one thing: of more, without a usual one, nobody can say which is the odd one
MOST_TOLD, MOST_EVIDENCE = 3, 16
MOST_SETTINGS = 40  # of a rank: beyond these nothing is sent, and so nothing is known to be missing
_READ_WHOLE = ("", "environment")  # how a rank was identified whose whole environment was read
# Per rank, node or site by design, and what nobody waits for.
_OWN = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "NCCL_HOSTID", "LD_PRELOAD", "CUDA_INJECTION64_PATH"),
        *("NCCL_IB_GID_INDEX", "NCCL_RAS_ADDR", "PYTHONFAULTHANDLER", "TORCH_LOGS", "TORCH_CPP_LOG_LEVEL"),
        *("TORCH_SHOW_CPP_STACKTRACES", "NVSHMEM_BOOTSTRAP_UID_SESSION_ID"),
        *(*BAD_SETTINGS, "NCCL_IB_DISABLE"),  # told by job.bad_env, with what they do
    )
)
_OWN_BEGINNINGS = ("NCCL_DEBUG", "NSIGHT_", "NVTE_DEBUG", "UCX_LOG", "UCX_STATS", "NVSHMEM_DEBUG", "NVSHMEM_INFO")
_OWN_ENDINGS = ("_FILE", "_PATH", "_DIR", "_PIPE", "_PREFIX", "_SOCKET", "_PORT")
_LISTS_OF_PORTS = ("_IFNAME", "_IB_HCA", "_NET_DEVICES", "_HCA_LIST", "_HCA_PE_MAPPING")
# Of these the ranks' speeds differ, not what they do together.
_ONLY_SPEED = ("OMP_", "MKL_", "KMP_", "OPENBLAS_", "NUMEXPR_", "GOMP_", "MALLOC_", "PYTORCH_", "PYTHON", "CUDA_MODULE")
_LABELS = {"nccl": "NCCL", "cuda": "CUDA", "python": "Python", "jax": "JAX"}


class _Odd(NamedTuple):
    """Those that have ``value`` while the others have ``usual``."""

    name: str
    value: str | None
    usual: str | None
    ranks: tuple[RankFacts, ...]


def _worlds(moment: JobMoment) -> Iterator[list[RankFacts]]:
    """Living ranks with a number that train together."""
    ranks = [facts for facts in moment.ranks if facts.rank.rank is not None and facts.rank.state != "Z"]
    of_worlds = grouped(ranks, lambda facts: (facts.rank.world_size, facts.rank.master_address))
    yield from (of_world for of_world in of_worlds.values() if len(of_world) > 1)


def _odd_ones(name: str, ranks: Sequence[RankFacts], values: Sequence[str | None]) -> Iterator[_Odd]:
    """Those that differ from the largest group (on a tie that of the lowest rank); nothing where each has its own."""
    counts = Counter(values)
    if len(counts) < 2:
        return
    usual, count = counts.most_common(1)[0]
    if 2 * count <= len(values) and len(counts) > MOST_VALUES:
        return
    of_nodes = grouped(zip(ranks, values), lambda pair: pair[0].node).values()
    if all(len({value for _, value in of_node}) == len(of_node) > 2 for of_node in of_nodes):
        return
    others = grouped(zip(ranks, values), lambda pair: pair[1])
    for value, having in others.items():
        if value != usual:
            yield _Odd(name, value, usual, tuple(facts for facts, _ in having))


def _hit(moment: JobMoment, odd: Sequence[_Odd], words: Callable[[_Odd], str], severity: Severity | None = None) -> Hit:
    """One line for all that differs: those that most of it is about are named, everything stands in the evidence."""
    by_ranks = grouped(odd, lambda one: tuple(facts.rank.rank for facts in one.ranks))
    told = [f"{_who(ones[0].ranks)}: {_some([words(one) for one in ones])}" for ones in by_ranks.values()]
    evidence = tuple(f"{_who(one.ranks)}: {words(one)}" for one in odd[:MOST_EVIDENCE])
    ranks = dict.fromkeys(known(facts.rank.rank for one in odd for facts in one.ranks))
    node = odd[0].ranks[0].node
    text = f"{moment.name}: {_some(told, '; ')}"
    return Hit(moment.name, text, evidence, severity, node=node, job=moment.key, ranks=tuple(ranks))


def _some(texts: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(texts) - MOST_TOLD} more" if len(texts) > MOST_TOLD else ""
    return between.join(texts[:MOST_TOLD]) + more


def _who(ranks: Sequence[RankFacts]) -> str:
    """``ranks 12-15 (node3)``."""
    numbers = (number for number in known(facts.rank.rank for facts in ranks) if number >= 0)
    return f"{ranks_text(numbers)} ({folded(facts.node for facts in ranks)})"


@_job_rule("job.settings", "warning")(
    meaning="ranks of one job run with different settings: they may not agree on what they do together",
    threshold="a setting that some ranks lack or have another value of; where only speed depends on it: info; not "
    "visible devices, files, logs, names of interfaces, hosts, nor what each rank has its own of",
    source="the ranks' environment",
    action="start all ranks with the same environment",
    explains_ranks=(*STOPS, *SLOWS),
)
def settings(moment: JobMoment) -> Iterator[Hit]:
    for ranks in _worlds(moment):
        kinds = {_compared(tuple(facts.rank.settings.items())) for facts in ranks}
        if len(kinds) < 2:
            continue  # the most common case
        each = [dict(kind) for kind in kinds]
        names = sorted({name for settings in each for name in settings})
        different = [name for name in names if len({settings.get(name) for settings in each}) > 1]
        odd = [one for name in different for one in _odd_settings(name, ranks)]
        if odd:
            grave = any(not one.name.startswith(_ONLY_SPEED) for one in odd)
            yield _hit(moment, odd, _setting_words, None if grave else "info")
            return


@lru_cache(maxsize=4096)
def _compared(settings: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str | None], ...]:
    """What counts of an environment."""
    counting = (one for one in settings if not one[0].startswith(_OWN_BEGINNINGS) and not one[0].endswith(_OWN_ENDINGS))
    return tuple((name, _meaning(name, value)) for name, value in counting if name not in _OWN)


def _odd_settings(name: str, ranks: Sequence[RankFacts]) -> Iterator[_Odd]:
    """That one is not set is known only where the whole environment was read."""
    values = [(facts, facts.rank.settings.get(name)) for facts in ranks]
    told = [
        (facts, value)
        for facts, value in values
        if value is not None or (facts.rank.identified_by in _READ_WHOLE and len(facts.rank.settings) < MOST_SETTINGS)
    ]
    meant = [_meaning(name, value) for _, value in told]
    raw = {_meaning(name, value): value for _, value in reversed(told)}
    for odd in _odd_ones(name, [facts for facts, _ in told], meant):
        yield odd._replace(value=raw[odd.value], usual=raw[odd.usual])


@lru_cache(maxsize=4096)
def _meaning(name: str, value: str | None) -> str | None:
    """What counts of a value: names of interfaces and cards differ between nodes, but their number should not."""
    if value is None or not name.endswith(_LISTS_OF_PORTS):
        return value
    names = value.lstrip("^=").split(",")
    how = value[: len(value) - len(value.lstrip("^="))]
    return f"{how}{len(names)}{'lo' if 'lo' in names else ''}"


def _setting_words(odd: _Odd) -> str:
    has = f"without {odd.name}" if odd.value is None else f"{odd.name}={odd.value}"
    return f"{has}, the others {'without it' if odd.usual is None else odd.usual}"


@_job_rule("job.versions", "warning")(
    meaning="ranks of one job have loaded different versions of a library",
    threshold="any that is known of several ranks",
    source="what the ranks have mapped, /proc/PID/maps",
    action="start all ranks from the same environment or image",
    explains_ranks=STOPS,
)
def versions(moment: JobMoment) -> Iterator[Hit]:
    for ranks in _worlds(moment):
        first = ranks[0].rank.versions
        if all(facts.rank.versions == first for facts in ranks):
            continue
        odd: list[_Odd] = []
        for name in sorted({name for facts in ranks for name in facts.rank.versions}):
            having = [facts for facts in ranks if name in facts.rank.versions]
            odd += _odd_ones(name, having, [facts.rank.versions[name] for facts in having])
        if odd:
            yield _hit(
                moment, odd, lambda one: f"{_LABELS.get(one.name, one.name)} {one.value}, the others {one.usual}"
            )
            return


@_job_rule("job.devices", "warning")(
    meaning="ranks of one job share a GPU, or do not see as many as the others",
    threshold="two ranks of a node on one GPU, unless they see fewer than there are ranks; another number of visible "
    "GPUs than most ranks have, unless there is one for each",
    source="NVML's process lists, CUDA_VISIBLE_DEVICES",
    action="check how the launcher gives out GPUs (LOCAL_RANK, CUDA_VISIBLE_DEVICES, --gpus-per-task)",
    explains_ranks=(RANK_ENDED, RANK_STALLED, *SLOWS),
)
def devices(moment: JobMoment) -> Iterator[Hit]:
    for ranks in _worlds(moment):
        shared = list(_shared(ranks))
        if shared:
            texts = [f"{_who(users)} share {gpu_name(gpu)}" for users, gpu in shared]
            text = f"{moment.name}: {_some(texts)}"
            numbers = known(facts.rank.rank for users, _ in shared for facts in users)
            (users, _), *_ = shared
            about = tuple(gpu_name(gpu) for one, gpu in shared if one[0].node == users[0].node)
            hit = Hit(moment.name, text, tuple(texts[:MOST_EVIDENCE]), about=about, node=users[0].node)
            yield replace(hit, job=moment.key, ranks=tuple(numbers))
            return
        told = [facts for facts in ranks if facts.visible_gpus is not None]
        odd = list(_odd_ones("visible", told, [_visible_words(facts) for facts in told]))
        if odd:
            yield _hit(moment, odd, lambda one: f"{one.value}, the others {one.usual}")
            return


def _visible_words(facts: RankFacts) -> str:
    """Nodes of one job may have different numbers of GPUs, as long as every rank has one."""
    count, ranks_here = facts.visible_gpus, facts.rank.local_world_size
    if count is None or count in (1, ranks_here):
        return "one GPU for each rank"
    return f"{count} GPUs for {ranks_here} ranks" if ranks_here else f"{count} GPUs"


def _shared(ranks: Sequence[RankFacts]) -> Iterator[tuple[list[RankFacts], int]]:
    """GPUs that are the only one of several ranks, unless these see fewer GPUs than they are: then they must share."""
    told = (facts for facts in ranks if len(facts.rank.gpus) == 1 and facts.visible_gpus is not None)
    of_gpus = grouped(told, lambda facts: (facts.node, facts.rank.gpus[0]))
    if len(of_gpus) == sum(map(len, of_gpus.values())):
        return
    on_nodes = grouped(ranks, lambda facts: facts.node)
    for (node, gpu), users in of_gpus.items():
        here = on_nodes[node]
        visible = {facts.rank.settings.get("CUDA_VISIBLE_DEVICES") for facts in here}
        must_share = len(visible) == 1 and (here[0].visible_gpus or 0) < len(here)
        if len(users) > 1 and not must_share:
            yield users, gpu
