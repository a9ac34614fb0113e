"""Are copies between host memory and GPUs, and from GPU to GPU, slow, and which link it is.

Why those between host and GPU are: the PCIe link under load, memory on another socket, what GPUs share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from mltop.probes.judge.probes.compare import COPY_WAYS, copies_key
from mltop.probes.judge.probes.copies_peers import judge_peers
from mltop.probes.judge.probes.devices import (
    Rated,
    alike,
    compared,
    device_name,
    devices_name,
    doubt,
    first_sentences,
    suspect,
    unknown_past,
)
from mltop.probes.judge.probes.hardware.links import host_copy, uses_pcie
from mltop.probes.judge.probes.hardware.peaks import Expected
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.probe import CopiesResult, PastResult, ProbeVerdict
from mltop.probes.model.units import percent_span_words, percent_words, rate_words, span

_RESEAT = "reseat the card, check slot, riser and BIOS settings; lspci -vv shows LnkSta and LnkCap"


@dataclass(frozen=True)
class PcieState:
    """The state of a link while it copied. None: unknown."""

    gen: int | None = None
    width: int | None = None

    @property
    def known(self) -> bool:
        return self.gen is not None and self.width is not None

    def __str__(self) -> str:
        return f"gen {'?' if self.gen is None else self.gen} x{'?' if self.width is None else self.width}"

    def is_below(self, other: PcieState) -> bool:
        return (self.gen or 0) < (other.gen or 0) or (self.width or 0) < (other.width or 0)


def under_load(result: CopiesResult) -> PcieState:
    """The best that was seen during the copies of one GPU alone."""
    gens, widths = (known(getattr(phase, name) for phase in result.phases) for name in ("pcie_gen", "pcie_width"))
    return PcieState(max(gens, default=None), max(widths, default=None))


def degraded(result: CopiesResult) -> str:
    """``PCIe gen 3 x8 instead of gen 5 x16``; "" for a link at its best, an unknown one, or one that is not used."""
    state, most = under_load(result), _best(result)
    comparable = state.known and most.known and uses_pcie(result.name, result.pci_device)
    return f"PCIe {state} instead of {most}" if comparable and state.is_below(most) else ""


def built_so(results: Sequence[CopiesResult]) -> list[CopiesResult]:
    """The GPUs whose link is below its best exactly as that of all others of the model: no fault of one."""
    models = grouped(results, lambda result: result.name).values()
    alike = (members for members in models if len(members) > 1 and len(set(map(degraded, members))) == 1)
    return [result for members in alike for result in members if degraded(result)]


def reason(result: CopiesResult, others: Sequence[CopiesResult], together_only: bool) -> tuple[str, str]:
    """(why, what to do) of a GPU that is slow. ``others``: of the same model."""
    low = degraded(result)
    if low:
        return low, _RESEAT
    pcie, usual = under_load(result), _usual(others)
    if pcie.known and usual.known and uses_pcie(result.name, result.pci_device) and pcie.is_below(usual):
        return f"PCIe {pcie} (others {usual})", _RESEAT
    if result.near is False and any(other.near for other in others):
        where = "" if result.numa_node is None else f" {result.numa_node}"
        why = f"its host memory was not at its NUMA node{where}, whose CPUs mltop may not use"
        return why, "let the probe use all CPUs (cpuset, Slurm's binding)"
    numa = _numa(result, others)
    if together_only:
        shared = numa or "a PCIe switch or a socket's memory"
        return f"what it shares with other GPUs is slow ({shared})", "lspci -tv and numactl -H show what they share"
    state = f", its link is at its best ({pcie})" if pcie.known and _best(result).known else ""
    why = f"nothing that was measured shows why{state}{f' ({numa})' if numa else ''}"
    return why, "mltop check for PCIe errors (AER, replays), IOMMU and the switch above it; then reseat it"


def _best(result: CopiesResult) -> PcieState:
    """What GPU and slot could do."""
    return PcieState(result.pcie_gen_max, result.pcie_width_max)


def _usual(others: Sequence[CopiesResult]) -> PcieState:
    """What most others have."""
    states = [state for state in map(under_load, others) if state.known]
    most = max(states, key=states.count, default=PcieState())
    return most if 2 * states.count(most) > len(states) else PcieState()


def _numa(result: CopiesResult, others: Sequence[CopiesResult]) -> str:
    """``NUMA node 1`` where GPUs of the same computer are spread over several."""
    nodes = {other.numa_node for other in others if other.node == result.node} | {result.numa_node}
    return f"NUMA node {result.numa_node}" if result.numa_node is not None and len(nodes - {None}) > 1 else ""


_ALONE = ("to_device", "to_host")
ONE_SIDED = 0.75  # of the other direction: both use the same lanes
_REPLACE = "check PCIe errors (mltop check), reseat it, run it again to confirm"
_DAMAGED = "what is copied to it and back arrives damaged"


@dataclass
class RatedGpu:
    """One GPU: its rates by way, and the reason when it is accused. ``slow``: the ways that are."""

    result: CopiesResult
    rates: dict[str, Rated[CopiesResult]] = field(default_factory=dict)
    why: str = ""
    action: str = ""

    @property
    def slow(self) -> list[str]:
        return [way for way in COPY_WAYS if way in self.rates and self.rates[way].slow]

    @property
    def worst(self) -> float:
        return max((self.rates[way].slower for way in self.slow), default=0.0)


def judge_copies(results: Sequence[CopiesResult], past: Sequence[PastResult] = ()) -> ProbeVerdict:
    """One sentence, who is accused and why, and the rest as details."""
    gpus = _rated(results, past)
    by_design = built_so(results)
    fit = set(map(id, by_design))
    for gpu in gpus:
        if gpu.slow or (degraded(gpu.result) and id(gpu.result) not in fit):
            like = [other for other in results if other.name == gpu.result.name and other is not gpu.result]
            gpu.why, gpu.action = reason(gpu.result, like, bool(gpu.slow) and not set(_ALONE) & set(gpu.slow))
    peers = judge_peers(results)
    accused = sorted((gpu for gpu in gpus if gpu.why), key=lambda gpu: -gpu.worst)
    damaging = [result for result in results if result.intact is False]
    parts = [f"{device_name(result)}: {_DAMAGED}" for result in damaging]
    parts += _headlines(gpus)
    parts += first_sentences(
        [f"{device_name(gpu.result)} {'is ' if gpu.slow else ''}{_sentence(gpu)}" for gpu in accused]
    )
    parts += [peers.text] if peers.text else []
    suspects = [suspect(result, _DAMAGED, f"{device_name(result)}: {_REPLACE}") for result in damaging]
    suspects += [suspect(gpu.result, _sentence(gpu), f"{device_name(gpu.result)}: {gpu.action}") for gpu in accused]
    details = [*_details(gpus, by_design), *peers.details]
    return ProbeVerdict("; ".join(parts) or "nothing was measured", [*suspects, *peers.suspects], details)


def _rated(results: Sequence[CopiesResult], past: Sequence[PastResult]) -> list[RatedGpu]:
    gpus = {id(result): RatedGpu(result) for result in results}
    on_node = Counter(result.node for result in results)

    def alike_by(way: str, result: CopiesResult) -> tuple[object, ...]:
        """While all copy it matters how many do. Memory that is not beside the GPU is slower everywhere."""
        return (result.name, result.size_bytes, result.near, None if way in _ALONE else on_node[result.node])

    for way in COPY_WAYS:
        past_key = partial(copies_key, way=way)
        for rated in compared(results, attrgetter(f"{way}_bytes_per_s"), partial(alike_by, way), past_key, past):
            gpus[id(rated.result)].rates[way] = rated
    return list(gpus.values())


def _sentence(gpu: RatedGpu) -> str:
    """``75 % slower than its peers (13.0 GB/s against 51.6 GB/s) both ways: PCIe gen 4 x8 instead of gen 5 x16``"""
    if not gpu.slow:
        return f"copies over {gpu.why}"
    alone = [way for way in gpu.slow if way in _ALONE]
    ways = alone or gpu.slow
    worst = max(ways, key=lambda way: gpu.rates[way].slower)
    where = "both ways" if len(ways) == len(_ALONE) else f"{COPY_WAYS[ways[0]]} only"
    where += "" if alone else ", and only while all GPUs copy"
    return f"{gpu.rates[worst].against()} {where}: {gpu.why}"


def _headlines(gpus: Sequence[RatedGpu]) -> Iterator[str]:
    """``8 GPUs alike at 51.3 GB/s to the GPU and 50.1 GB/s to the host``, for each model."""
    models = grouped(gpus, lambda gpu: gpu.result.name)
    for model, members in models.items():
        rest = [gpu for gpu in members if not gpu.why]
        texts: list[str] = []
        for way in _ALONE:
            beside = [gpu.rates[way] for gpu in rest if way in gpu.rates]
            if beside and texts:
                texts.append(f"{span((rated.rate for rated in beside), rate_words)} {COPY_WAYS[way]}")
            elif beside:
                texts.append(f"{alike(beside, [gpu.result for gpu in members], rate_words)} {COPY_WAYS[way]}")
        if texts:
            alone = unknown_past(next(iter(rest[0].rates.values()))) if len(members) == 1 else ""
            yield f"{f'{model}: ' if len(models) > 1 and model else ''}{' and '.join(texts)}{alone}"


def _details(gpus: Sequence[RatedGpu], by_design: Sequence[CopiesResult]) -> Iterator[str]:
    for words, alike_ones in sorted(grouped(by_design, degraded).items()):
        yield f"{devices_name(alike_ones)}: {words}, all alike: the machine may be built or set so"
    for gpu in gpus:
        yield from _one_sided(gpu)
    far = [gpu.result for gpu in gpus if gpu.result.near is False]
    if far:
        yield f"{devices_name(far)}: host memory was on another NUMA node, mltop may not use the CPUs beside"
    yield from _against_table(gpus)


def _one_sided(gpu: RatedGpu) -> Iterator[str]:
    """Where nobody is there to compare it with, the two directions are compared with each other."""
    rates = {way: gpu.rates[way] for way in _ALONE if way in gpu.rates}
    if len(rates) < 2 or any(rated.peers.slow is not None for rated in rates.values()):
        return
    slow, fast = sorted(rates, key=lambda way: rates[way].rate)
    share = rates[slow].rate / rates[fast].rate if rates[fast].rate else 1.0
    if share < ONE_SIDED:
        text = f"{COPY_WAYS[slow]} only {percent_words(share)} of {COPY_WAYS[fast]}"
        yield f"{device_name(gpu.result)}: {text}, with the same lanes"


def _against_table(gpus: Sequence[RatedGpu]) -> Iterator[str]:
    """What good machines reach with this link, for information."""
    rates_beside: dict[tuple[str, Expected], list[float]] = {}
    for gpu in gpus:
        state = under_load(gpu.result)
        for way in _ALONE:
            rated = gpu.rates.get(way)
            good = host_copy(gpu.result.name, gpu.result.pci_device, way, state.gen, state.width)
            if rated is not None and good is not None:
                rates_beside.setdefault((way, good), []).append(rated.rate)
    for (way, good), rates in rates_beside.items():
        share = percent_span_words(rate / good.bytes_per_s for rate in rates)
        of = f"{share} of {rate_words(good.bytes_per_s)} ({good.source})"
        note = doubt(rates, good.bytes_per_s, good.certain, "the CPU, its memory and IOMMU settings")
        yield f"{COPY_WAYS[way]} {span(rates, rate_words)}, {of}{note}"
