"""Why copies between host and GPU are slow: the PCIe link under load, memory on another socket, what GPUs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mltop.probes.judge.active.links import uses_pcie
from mltop.probes.model.probe import CopiesResult

_RESEAT = "reseat the card, check slot, riser and BIOS settings; lspci -vv shows LnkSta and LnkCap"


@dataclass(frozen=True)
class PcieState:
    """Of a link while it copied. None: unknown."""

    gen: int | None = None
    width: int | None = None

    @property
    def known(self) -> bool:
        return self.gen is not None and self.width is not None

    def __str__(self) -> str:
        return f"gen {'?' if self.gen is None else self.gen} x{'?' if self.width is None else self.width}"


def under_load(result: CopiesResult) -> PcieState:
    """The best that was seen during the copies of one GPU alone."""
    gens = [phase.pcie_gen for phase in result.phases if phase.pcie_gen is not None]
    widths = [phase.pcie_width for phase in result.phases if phase.pcie_width is not None]
    return PcieState(max(gens, default=None), max(widths, default=None))


def degraded(result: CopiesResult) -> str:
    """``PCIe gen 3 x8 instead of gen 5 x16``; "" for a link at its best, an unknown one, or one that is not used."""
    state, most = under_load(result), PcieState(result.pcie_gen_max, result.pcie_width_max)
    if not state.known or not most.known or not uses_pcie(result.name, result.pci_device):
        return ""
    below = (state.gen or 0) < (most.gen or 0) or (state.width or 0) < (most.width or 0)
    return f"PCIe {state} instead of {most}" if below else ""


def built_so(results: Sequence[CopiesResult]) -> set[int]:
    """Places of GPUs whose link is below its best exactly as that of all others of the model: no fault of one."""
    models: dict[str, list[int]] = {}
    for place, result in enumerate(results):
        models.setdefault(result.name, []).append(place)
    found: set[int] = set()
    for places in models.values():
        words = {degraded(results[place]) for place in places}
        if len(places) > 1 and len(words) == 1 and words != {""}:
            found.update(places)
    return found


def reason(result: CopiesResult, others: Sequence[CopiesResult], together_only: bool) -> tuple[str, str]:
    """(why, what to do) of a GPU that is slow. ``others``: of the same model."""
    low = degraded(result)
    if low:
        return low, _RESEAT
    mine = under_load(result)
    usual = _usual(others)
    if mine.known and usual.known and uses_pcie(result.name, result.pci_device) and _lower(mine, usual):
        return f"PCIe {mine} (others {usual})", _RESEAT
    if result.near is False and any(one.near for one in others):
        where = "" if result.numa_node is None else f" {result.numa_node}"
        return (
            f"its host memory was not at its NUMA node{where}, whose CPUs mltop may not use",
            "let the probe use all CPUs (cpuset, Slurm's binding)",
        )
    numa = _numa(result, others)
    if together_only:
        shared = numa or "a PCIe switch or a socket's memory"
        return f"what it shares with other GPUs is slow ({shared})", "lspci -tv and numactl -H show what they share"
    state = f", its link is at its best ({mine})" if mine.known and low == "" and _has_most(result) else ""
    return (
        f"nothing that was measured shows why{state}{f' ({numa})' if numa else ''}",
        "mltop check for PCIe errors (AER, replays), IOMMU and the switch above it; then reseat it",
    )


def _has_most(result: CopiesResult) -> bool:
    return result.pcie_gen_max is not None and result.pcie_width_max is not None


def _usual(others: Sequence[CopiesResult]) -> PcieState:
    """What most others have."""
    states = [state for state in map(under_load, others) if state.known]
    most = max(states, key=states.count, default=PcieState())
    return most if 2 * states.count(most) > len(states) else PcieState()


def _lower(one: PcieState, other: PcieState) -> bool:
    return (one.gen or 0) < (other.gen or 0) or (one.width or 0) < (other.width or 0)


def _numa(result: CopiesResult, others: Sequence[CopiesResult]) -> str:
    """``NUMA node 1`` where GPUs of the same computer are spread over several."""
    nodes = {one.numa_node for one in others if one.node == result.node} | {result.numa_node}
    return f"NUMA node {result.numa_node}" if result.numa_node is not None and len(nodes - {None}) > 1 else ""
