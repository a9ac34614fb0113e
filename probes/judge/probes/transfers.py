"""Are copies slow: within a device's memory, and between host memory and GPUs. A row of TRANSFERS for each kind.

A device is compared with its own history, then with its peers; what others have measured is told and accuses nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

from mltop.probes.judge.probes import devices
from mltop.probes.judge.probes.copies_peers import judge_peers
from mltop.probes.judge.probes.devices import Rated, device_name, devices_name
from mltop.probes.judge.probes.hardware.links import host_copy, uses_pcie
from mltop.probes.judge.probes.hardware.peaks import COPY_SOURCE, Expected, peak_of
from mltop.probes.judge.probes.matmul import REPLACE
from mltop.probes.judge.probes.reasons import other_versions, throttle_of, throttle_words
from mltop.probes.judge.values import grouped, known
from mltop.probes.model.probe import CopiesResult, MemoryResult, PastResult, ProbeVerdict
from mltop.probes.model.units import counted, percent_span_words, percent_words, rate_words, span

ONE_SIDED = 0.75  # of the other direction: both use the same lanes


@dataclass
class Device:
    """One device: its rates by way, and why it is accused, "" for one that is not. ``built_so``: what is low on all of
    its model.
    """

    result: Any
    rates: dict[str, Rated[Any]] = field(default_factory=dict)
    why: str = ""
    action: str = ""
    built_so: str = ""

    @property
    def slow(self) -> list[str]:
        """The ways that are."""
        return [way for way, rated in self.rates.items() if rated.slow]

    @property
    def worst(self) -> float:
        return max((self.rates[way].slower for way in self.slow), default=0.0)


class Transfer(NamedTuple):
    """One kind of copies. ``ways``: the rates that are judged, in words; ``alone``: those the headline names.

    ``damage``: what is said of a device whose copies are damaged, as reason, and what to do. ``alike``: equal for those
    that are compared (way, result, how many are on its node). ``accuse``: says of those of one model that are slow why.
    ``figure``: what good machines reach (way, result); ``beside``: a rate beside it; ``causes``: of a difference that
    accuses nobody.
    """

    ways: Mapping[str, str]
    alone: Sequence[str]
    damage: tuple[str, str, str]
    alike: Callable[[str, Any, int], Hashable]
    accuse: Callable[[Sequence[Device]], None]
    figure: Callable[[str, Any], Expected | None]
    beside: str
    causes: str
    details: Callable[[Sequence[Device]], Iterator[str]]


def judge_transfer(kind: Transfer, results: Sequence[Any], past: Sequence[PastResult] = ()) -> ProbeVerdict:
    """One sentence, who is accused and why, and the rest as details."""
    measured = _rated(kind, results, past)
    of_models = grouped(measured, lambda device: (device.result.kind, device.result.name))
    models = sorted(of_models.values(), key=lambda members: -len(members))
    for members in models:
        kind.accuse(members)
    peers = judge_peers([result for result in results if isinstance(result, CopiesResult)])
    accused = sorted((device for device in measured if device.why), key=lambda device: -device.worst)
    damaging = [result for result in results if result.is_wrong]
    said, reason, action = kind.damage
    parts = [device_name(result) + said for result in damaging]
    parts += known(_headline(kind, members, len(models) > 1) for members in models)
    parts += devices.first_sentences(
        [f"{device_name(one.result)} {'is ' if one.slow else ''}{_sentence(kind, one)}" for one in accused]
    )
    to_do = [(result, reason, action) for result in damaging]
    to_do += [(device.result, _sentence(kind, device), device.action) for device in accused]
    suspects = [devices.suspect(result, why, f"{device_name(result)}: {action}") for result, why, action in to_do]
    details = [*kind.details(measured), *peers.details]
    text = "; ".join(filter(None, [*parts, peers.text]))
    return ProbeVerdict(text or "nothing was measured", [*suspects, *peers.suspects], details)


def _rated(kind: Transfer, results: Sequence[Any], past: Sequence[PastResult]) -> list[Device]:
    of = {id(result): Device(result) for result in results}
    on_node = Counter(result.node for result in results)
    for way in kind.ways:

        def alike_by(result: Any, way: str = way) -> Hashable:
            return kind.alike(way, result, on_node[result.node])

        rate = attrgetter(f"{way}_bytes_per_s")
        for rated in devices.compared(results, rate, alike_by, methodcaller("key", way), past):
            of[id(rated.result)].rates[way] = rated
    return list(of.values())


def _headline(kind: Transfer, members: Sequence[Device], several: bool) -> str | None:
    """``8 GPUs alike at 51.3 GB/s to the GPU and 50.1 GB/s to the host``, of those that are not accused."""
    members = [device for device in members if device.rates]
    rest, everyone = [device for device in members if not device.why], [device.result for device in members]
    if not rest:
        return None
    first, one = everyone[0], len(everyone) == 1
    whose = "its" if one and first.kind != "cpu" else "their"
    texts: list[str] = []
    for way in kind.alone:
        rates = [device.rates[way] for device in rest if way in device.rates]
        if rates:
            figures = span((rated.rate for rated in rates), rate_words)
            figures = figures if texts or one else devices.alike(rates, everyone, rate_words)
            texts.append(f"{figures} {kind.ways[way].format(whose=whose)}")
    if not texts:
        return None
    text = f"{f'{first.name}: ' if several and first.name else ''}{f'{device_name(first)}: ' if one else ''}"
    text += " and ".join(texts)
    if one:
        text += f" ({first.code_path})" if first.kind == "cpu" and first.code_path else ""
        past = next(iter(rest[0].rates.values())).history
        text += (
            f", as in its last {counted(past.count, 'result')}"
            if past.slow is False
            else ", nothing to compare it with"
        )
    return text


def _sentence(kind: Transfer, device: Device) -> str:
    """``75 % slower than its peers (13.0 GB/s against 51.6 GB/s) both ways: PCIe gen 4 x8 instead of gen 5 x16``"""
    if not device.slow:
        return f"copies over {device.why}"
    alone = [way for way in device.slow if way in kind.alone]
    ways = alone or device.slow
    worst = max((device.rates[way] for way in ways), key=lambda rated: rated.slower)
    where = " both ways" if len(ways) == 2 else f" {kind.ways[ways[0]]} only" if len(kind.ways) > 1 else ""
    return f"{worst.against()}{where}{'' if alone else ', and only while all GPUs copy'}: {device.why}"


def _against_table(kind: Transfer, measured: Sequence[Device]) -> Iterator[str]:
    """For information."""
    rates_beside: dict[tuple[str, Expected], list[float]] = {}
    for device in measured:
        for way in kind.alone:
            good = kind.figure(way, device.result) if way in device.rates else None
            if good is not None:
                rates_beside.setdefault((way, good), []).append(device.rates[way].rate)
    for (way, good), rates in rates_beside.items():
        share = percent_span_words(rate / good.bytes_per_s for rate in rates)
        figures = {"way": kind.ways[way], "rates": span(rates, rate_words), "good": rate_words(good.bytes_per_s)}
        doubt = devices.doubt(rates, good.bytes_per_s, good.certain, kind.causes)
        yield kind.beside.format(**figures, share=share, source=good.source) + doubt


# Within a device's memory.

_LOOK = "nvidia-smi -q -d CLOCK,ECC,ROW_REMAPPER, mltop check; if it stays: dcgmi diag -r 3"
_LOOK_CPU = "look for other load, missing memory channels (dmidecode -t memory) and the power profile"


def _accuse_memory(members: Sequence[Device]) -> None:
    for device in members:
        if device.slow:
            result: MemoryResult = device.result
            versions = other_versions(result, [other.result for other in members if other is not device])
            device.why = f"it has {versions}" if versions else "nothing that was measured shows why"
            device.action = _LOOK_CPU if result.kind == "cpu" else _LOOK
            phase = next(filter(throttle_of, result.phases), None)
            if phase is not None and (throttle := throttle_of(phase)) is not None:
                device.why = f"held back by {throttle_words(throttle, phase)}"
                device.action = _LOOK_CPU if result.kind == "cpu" else throttle.action


def _usual_memory(_way: str, result: MemoryResult) -> Expected | None:
    peak = peak_of(result.name, result.pci_device) if result.kind == "gpu" else None
    copied = None if peak is None else peak.copy_bytes_per_s
    return Expected(copied[0], COPY_SOURCE, peak.certain) if peak is not None and copied is not None else None


def _memory_details(measured: Sequence[Device]) -> Iterator[str]:
    yield from _against_table(TRANSFERS["memory"], measured)
    gpus = [device for device in measured if device.result.kind == "gpu" and device.rates]
    for members in grouped(gpus, lambda device: device.result.name).values():
        peak = peak_of(members[0].result.name, members[0].result.pci_device)
        floor = peak.copy_floor_bytes_per_s if peak is not None else None
        below = sum(floor is not None and device.rates["copy"].rate < floor for device in members)
        if below and floor is not None:
            yield f"{below} of {len(members)} below the {rate_words(floor)} that DCGM's diagnostic asks of this model"


# Between host memory and GPUs.

_RESEAT = "reseat the card, check slot, riser and BIOS settings; lspci -vv shows LnkSta and LnkCap"
_DAMAGED = "what is copied to it and back arrives damaged"
_ALONE = ("to_device", "to_host")


class PcieState(NamedTuple):
    """The state of a link while it copied."""

    gen: int
    width: int

    def __str__(self) -> str:
        return f"gen {self.gen} x{self.width}"

    def is_below(self, other: PcieState) -> bool:
        return self.gen < other.gen or self.width < other.width


def under_load(result: CopiesResult) -> PcieState | None:
    """The best that was seen during the copies of one GPU alone; None: unknown."""
    gens, widths = (known(getattr(phase, name) for phase in result.phases) for name in ("pcie_gen", "pcie_width"))
    return PcieState(max(gens), max(widths)) if gens and widths else None


def degraded(result: CopiesResult) -> str:
    """``PCIe gen 3 x8 instead of gen 5 x16``; "" for a link at its best, an unknown one, or one that is not used."""
    state, most = under_load(result), _best(result)
    below = state is not None and most is not None and state.is_below(most)
    return f"PCIe {state} instead of {most}" if below and uses_pcie(result.name, result.pci_device) else ""


def _best(result: CopiesResult) -> PcieState | None:
    """What GPU and slot could do."""
    gen, width = result.pcie_gen_max, result.pcie_width_max
    return PcieState(gen, width) if gen is not None and width is not None else None


def _accuse_copies(members: Sequence[Device]) -> None:
    """A link below its best exactly as all others of the model is no fault of one."""
    low = [degraded(device.result) for device in members]
    all_alike = len(members) > 1 and len(set(low)) == 1
    for device, words in zip(members, low, strict=True):
        device.built_so = words if all_alike else ""
        if device.slow or (words and not all_alike):
            others = [other.result for other in members if other is not device]
            together_only = bool(device.slow) and not set(_ALONE) & set(device.slow)
            device.why, device.action = _why_slow(device.result, others, together_only)


def _why_slow(result: CopiesResult, others: Sequence[CopiesResult], together_only: bool) -> tuple[str, str]:
    """(why, what to do). ``others``: of the same model."""
    low = degraded(result)
    if low:
        return low, _RESEAT
    states = known(map(under_load, others))
    most = max(states, key=states.count, default=None)
    usual = most if most is not None and 2 * states.count(most) > len(states) else None
    pcie = under_load(result)
    if pcie and usual and pcie.is_below(usual) and uses_pcie(result.name, result.pci_device):
        return f"PCIe {pcie} (others {usual})", _RESEAT
    if result.near is False and any(other.near for other in others):
        where = "" if result.numa_node is None else f" {result.numa_node}"
        why = f"its host memory was not at its NUMA node{where}, whose CPUs mltop may not use"
        return why, "let the probe use all CPUs (cpuset, Slurm's binding)"
    # Where GPUs of the same computer are spread over several.
    nodes = {other.numa_node for other in others if other.node == result.node} | {result.numa_node}
    numa = f"NUMA node {result.numa_node}" if result.numa_node is not None and len(nodes - {None}) > 1 else ""
    if together_only:
        shared = numa or "a PCIe switch or a socket's memory"
        return f"what it shares with other GPUs is slow ({shared})", "lspci -tv and numactl -H show what they share"
    state = f", its link is at its best ({pcie})" if pcie and _best(result) else ""
    why = f"nothing that was measured shows why{state}{f' ({numa})' if numa else ''}"
    return why, "mltop check for PCIe errors (AER, replays), IOMMU and the switch above it; then reseat it"


def _copies_details(measured: Sequence[Device]) -> Iterator[str]:
    built_so = grouped((one for one in measured if one.built_so), lambda one: one.built_so)
    for words, alike_ones in sorted(built_so.items()):
        who = devices_name([device.result for device in alike_ones])
        yield f"{who}: {words}, all alike: the machine may be built or set so"
    kind = TRANSFERS["copies"]
    for device in measured:
        # Where nobody is there to compare it with, the two directions are compared with each other.
        rates = [(device.rates[way].rate, kind.ways[way]) for way in _ALONE if way in device.rates]
        if len(rates) == 2 and all(device.rates[way].peers.slow is None for way in _ALONE):
            (slow, slow_way), (fast, fast_way) = sorted(rates, key=lambda rate: rate[0])
            if slow < ONE_SIDED * fast:
                text = f"{slow_way} only {percent_words(slow / fast)} of {fast_way}"
                yield f"{device_name(device.result)}: {text}, with the same lanes"
    far = [device.result for device in measured if device.result.near is False]
    if far:
        yield f"{devices_name(far)}: host memory was on another NUMA node, mltop may not use the CPUs beside"
    yield from _against_table(kind, measured)


TRANSFERS = {
    "memory": Transfer(
        ways={"copy": "within {whose} memory"},
        alone=("copy",),
        damage=(" damages what it copies", "what it copied within its memory did not arrive as it was sent", REPLACE),
        alike=lambda _way, result, _: (result.kind, result.name, result.size_bytes, result.threads),
        accuse=_accuse_memory,
        figure=_usual_memory,
        beside="{rates}, {share} of the {good} that good ones copy ({source})",
        causes="clocks, ECC and the driver",
        details=_memory_details,
    ),
    "copies": Transfer(
        ways={
            "to_device": "to the GPU",
            "to_host": "to the host",
            "to_device_together": "to the GPU",
            "to_host_together": "to the host",
        },
        alone=_ALONE,
        damage=(f": {_DAMAGED}", _DAMAGED, "check PCIe errors (mltop check), reseat it, run it again to confirm"),
        # While all copy it matters how many do. Memory that is not beside the GPU is slower everywhere.
        alike=lambda way, result, on_node: (
            *(result.name, result.size_bytes, result.near),
            None if way in _ALONE else on_node,
        ),
        accuse=_accuse_copies,
        figure=lambda way, result: host_copy(result.name, result.pci_device, way, *(under_load(result) or ())),
        beside="{way} {rates}, {share} of {good} ({source})",
        causes="the CPU, its memory and IOMMU settings",
        details=_copies_details,
    ),
}
