"""Are copies slow: within a device's memory, and between host memory and GPUs. And the judge of each kind of device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from mltop.probes.judge.probes.copies_peers import judge_peers
from mltop.probes.judge.probes.devices import Device, DeviceJudge, Figure, Members, Reason, device_name, devices_name
from mltop.probes.judge.probes.hardware.links import host_copy, uses_pcie
from mltop.probes.judge.probes.hardware.peaks import COPY_SOURCE, peak_of
from mltop.probes.judge.probes.matmul import REPLACE, MatmulJudge
from mltop.probes.judge.probes.reasons import other_versions, throttle_of, throttle_words
from mltop.probes.judge.values import known
from mltop.probes.model.probe import COPY_WAYS, CopiesResult, MemoryResult, ProbeVerdict
from mltop.probes.model.units import percent_words, rate_words

ONE_SIDED = 0.75  # of the other direction: both use the same lanes

# Within a device's memory.

_LOOK = "nvidia-smi -q -d CLOCK,ECC,ROW_REMAPPER, mltop check; if it stays: dcgmi diag -r 3"
_LOOK_CPU = "look for other load, missing memory channels (dmidecode -t memory) and the power profile"


class MemoryJudge(DeviceJudge):
    alone: ClassVar[Mapping[str, str]] = {"copy": "within {whose} memory"}
    beside: ClassVar[str] = "{rates}, {share} of the {good} that good ones copy ({source})"
    causes: ClassVar[str] = "clocks, ECC and the driver"

    def peer_keys(self, _way: str, results: Sequence[MemoryResult]) -> Sequence[Hashable]:
        return [(result.kind, result.name, result.size_bytes, result.threads) for result in results]

    def damaged(self, results: Sequence[MemoryResult]) -> list[tuple[MemoryResult, str, str]]:
        reason = "damages what it copies within its memory: it did not arrive as it was sent"
        return [(result, reason, REPLACE) for result in results if result.is_wrong]

    def accuse(self, members: Members) -> None:
        for device in (device for device in members if device.slow):
            result: MemoryResult = device.result
            versions = other_versions(result, [other.result for other in members if other is not device])
            why, action = f"it has {versions}" if versions else "nothing that was measured shows why", _LOOK
            phase = next(filter(throttle_of, result.phases), None)
            if phase is not None and (throttle := throttle_of(phase)) is not None:
                why, action = f"held back by {throttle_words(throttle, phase)}", throttle.action
            device.reason = Reason(why, why, _LOOK_CPU if result.kind == "cpu" else action)

    def state(self, device: Device) -> tuple[str, str]:
        result: MemoryResult = device.result
        return f" ({result.code_path})" if result.kind == "cpu" and result.code_path else "", ""

    def figures(self, result: MemoryResult) -> Iterator[Figure]:
        peak = peak_of(result.name, result.pci_device) if result.kind == "gpu" else None
        if peak is not None and peak.copy_bytes_per_s is not None and result.rate is not None:
            yield Figure("copy", result.rate, peak.copy_bytes_per_s[0], COPY_SOURCE, peak.certain)

    def details(self, members: Members) -> Iterator[str]:
        rates = known(device.result.rate for device in members if device.result.kind == "gpu")
        peak = peak_of(members[0].result.name, members[0].result.pci_device)
        floor = peak.copy_floor_bytes_per_s if peak is not None else None
        below = sum(floor is not None and rate < floor for rate in rates)
        if below and floor is not None:
            yield f"{below} of {len(rates)} below the {rate_words(floor)} that DCGM's diagnostic asks of this model"


# Between host memory and GPUs.

_RESEAT = "reseat the card, check slot, riser and BIOS settings; lspci -vv shows LnkSta and LnkCap"
_ALONE = COPY_WAYS[:2]


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


class CopiesJudge(DeviceJudge):
    alone: ClassVar[Mapping[str, str]] = {"to_device": "to the GPU", "to_host": "to the host"}
    causes: ClassVar[str] = "the CPU, its memory and IOMMU settings"

    def peer_keys(self, way: str, results: Sequence[CopiesResult]) -> Sequence[Hashable]:
        """While all copy it matters how many do. Memory that is not beside the GPU is slower everywhere."""
        on_node = Counter() if way in _ALONE else Counter(result.node for result in results)
        return [(result.name, result.size_bytes, result.near, on_node[result.node]) for result in results]

    def damaged(self, results: Sequence[CopiesResult]) -> list[tuple[CopiesResult, str, str]]:
        action = "check PCIe errors (mltop check), reseat it, run it again to confirm"
        return [(result, "damages what is copied to it and back", action) for result in results if result.is_wrong]

    def accuse(self, members: Members) -> None:
        """A link below its best exactly as all others of the model is no fault of one."""
        built_so = _built_so([device.result for device in members])
        for device in members:
            low = "" if built_so else degraded(device.result)
            if device.slow:
                others = [other.result for other in members if other is not device]
                why, action = _why_slow(device.result, others, not set(_ALONE) & set(device.slow))
                device.reason = Reason(why, why, action)
            elif low:
                device.reason = Reason(low, f"it copies over {low}", _RESEAT)

    def where(self, device: Device) -> str:
        ways = [way for way in device.slow if way in _ALONE] or device.slow
        together = "" if set(ways) <= set(_ALONE) else ", and only while all GPUs copy"
        both = " both ways" if len(ways) == 2 else ""
        return (both or "".join(f" {self.alone[way.removesuffix('_together')]} only" for way in ways)) + together

    def figures(self, result: CopiesResult) -> Iterator[Figure]:
        for way in _ALONE:
            rate, good = result.figure(way), host_copy(result.name, result.pci_device, way, *(under_load(result) or ()))
            if rate is not None and good is not None:
                yield Figure(self.alone[way], rate, good.bytes_per_s, good.source, good.certain)

    def details(self, members: Members) -> Iterator[str]:
        results = [device.result for device in members]
        if words := _built_so(results):
            yield f"{devices_name(results)}: {words}, all alike: the machine may be built or set so"
        for device in members:
            # Where nobody is there to compare it with, the two directions are compared with each other.
            rates = [(device.rates[way].rate, self.alone[way]) for way in _ALONE if way in device.rates]
            if len(rates) == 2 and all(device.rates[way].peers.slow is None for way in _ALONE):
                (slow, slow_way), (fast, fast_way) = sorted(rates, key=lambda rate: rate[0])
                if slow < ONE_SIDED * fast:
                    text = f"{slow_way} only {percent_words(slow / fast)} of {fast_way}"
                    yield f"{device_name(device.result)}: {text}, with the same lanes"
        if far := [result for result in results if result.near is False]:
            yield f"{devices_name(far)}: host memory was on another NUMA node, mltop may not use the CPUs beside"

    def after(self, results: Sequence[CopiesResult], verdict: ProbeVerdict) -> Sequence[str]:
        peers = judge_peers(results)
        verdict.suspects += peers.suspects
        verdict.details += peers.details
        return [peers.text]


def _built_so(results: Sequence[CopiesResult]) -> str:
    """What is low on all of a model, of which there are several."""
    low = {degraded(result) for result in results}
    return low.pop() if len(results) > 1 and len(low) == 1 else ""


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


JUDGES: Mapping[str, DeviceJudge] = {"matmul": MatmulJudge(), "memory": MemoryJudge(), "copies": CopiesJudge()}
