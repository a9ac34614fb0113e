"""Copies from GPU to GPU: is it one way between two of them, or all ways of one GPU.

Ways between GPUs are alike only where all go through NVSwitches. Elsewhere (bridges, PCIe switches, sockets) a slow way
may be how the machine is built: there it is only compared with the same way on like nodes.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mltop.probes.judge.probes.compare import PEER_GAP, Comparison, slower_than_peers
from mltop.probes.judge.probes.devices import first_sentences, listed
from mltop.probes.judge.probes.hardware.links import peer_copy
from mltop.probes.judge.values import grouped
from mltop.probes.model.probe import CopiesResult, PeerCopy, ProbeVerdict, Suspect
from mltop.probes.model.units import percent_words, rate_words

ALL = 0.75  # of a GPU's ways: then it is the GPU
_LINK = "mltop check: NVLink errors and PCIe links of both; nvidia-smi nvlink -s, nvidia-smi topo -p2p r"
_GPU = "mltop check: its NVLinks; reset the GPU, then dcgmi diag -r 3"


class Way(NamedTuple):
    """One direction between two GPUs of a node."""

    node: str
    source: int
    target: int

    @property
    def ends(self) -> tuple[int, int]:
        return self.source, self.target


class Fault(NamedTuple):
    """``slower``: 0.21 for 21 %, None where it was not measured."""

    why: str
    slower: float | None = None


Ways = dict[Way, PeerCopy]
Faults = dict[Way, Fault]


def judge_peers(results: Sequence[CopiesResult]) -> ProbeVerdict:
    nodes: dict[str, Ways] = {}
    for result in results:
        source = -1 if result.gpu is None else result.gpu
        for copy in result.peers:
            nodes.setdefault(result.node, {})[Way(result.node, source, copy.to_gpu)] = copy
    models = {result.node: result for result in results}
    uuids = {(result.node, result.gpu): result.uuid for result in results}
    elsewhere = _unlike_nodes(nodes, models)
    verdict = ProbeVerdict("")
    for node, ways in nodes.items():
        whys = {way: copy.why if copy.intact is not False else "what arrives is damaged" for way, copy in ways.items()}
        failed = {way: Fault(why) for way, why in whys.items() if why}
        faults = {**elsewhere.get(node, {}), **_unlike_in_node(ways, models[node]), **failed}
        verdict.suspects += _accused(node, ways, faults, uuids)
        verdict.details += _details(ways, faults, models[node], f"{node}: " if len(nodes) > 1 else "")
    sentences = [
        f"GPU {suspect.gpu} on {suspect.node}: {suspect.reason}"
        if suspect.gpu is not None
        else f"{suspect.node}, {suspect.reason}"
        for suspect in verdict.suspects
    ]
    verdict.text = "; ".join(first_sentences(sentences, "{} more GPUs or ways between them are slow"))
    return verdict


def _unlike_in_node(ways: Ways, result: CopiesResult) -> Faults:
    """Where all ways are built alike: slow ones, and those that go through host memory."""
    faults: Faults = {}
    if peer_copy(result.name, result.pci_device) is None:
        return faults
    direct = [way for way, copy in ways.items() if copy.direct]
    rates = {way: rate for way in direct if (rate := ways[way].bytes_per_s) is not None}
    for way, copy in ways.items():
        if copy.direct is False and 2 * len(direct) > len(ways):
            at = "" if copy.bytes_per_s is None else f" ({rate_words(copy.bytes_per_s)})"
            usual_rate = statistics.median(rates.values()) if rates else None
            slower = None if copy.bytes_per_s is None or usual_rate is None else 1 - copy.bytes_per_s / usual_rate
            faults[way] = Fault(f"through host memory{at}, others are direct", slower)
    # One bad GPU of four has half of all ways: it is found by what is usual for each GPU.
    gpus = {gpu for way in rates for gpu in way.ends}
    usual = {gpu: statistics.median(rate for way, rate in rates.items() if gpu in way.ends) for gpu in gpus}
    slow = {gpu: comparison for gpu, comparison in slower_than_peers(usual).items() if comparison.slow}
    for gpu, comparison in slow.items():
        for way, rate in rates.items():
            if gpu in way.ends and rate < (1 - PEER_GAP) * (comparison.usual or 0.0):
                faults[way] = _slower(Comparison(rate, comparison.usual), "the others of the node")
    left = {way: rate for way, rate in rates.items() if not slow.keys() & set(way.ends)}
    return faults | _slow_ways(left, "the others of the node")


def _slow_ways(rates: dict[Way, float], than: str) -> Faults:
    compared = slower_than_peers(rates).items()
    return {way: _slower(comparison, than) for way, comparison in compared if comparison.slow}


def _unlike_nodes(nodes: dict[str, Ways], models: dict[str, CopiesResult]) -> dict[str, Faults]:
    """The same way on nodes with the same GPUs and as many of them."""
    groups: dict[tuple[object, ...], dict[Way, float]] = {}
    for node, ways in nodes.items():
        for way, copy in ways.items():
            if copy.bytes_per_s is not None:
                key = (models[node].name, len(ways), way.source, way.target)
                groups.setdefault(key, {})[way] = copy.bytes_per_s
    faults: dict[str, Faults] = {}
    for rates in groups.values():
        for way, fault in _slow_ways(rates, "the same way on like nodes").items():
            faults.setdefault(way.node, {})[way] = fault
    return faults


def _accused(node: str, ways: Ways, faults: Faults, uuids: dict[tuple[str, int | None], str]) -> Iterator[Suspect]:
    """GPUs of which nearly all ways are bad, then what is left, both directions of a link as one."""
    left = dict(faults)
    while (gpu := _worst_gpu(ways, left)) is not None:
        of_gpu = {way: fault for way, fault in left.items() if gpu in way.ends}
        left = {way: fault for way, fault in left.items() if way not in of_gpu}
        reason = f"{_directions(gpu, ways, of_gpu)}: {_together(list(of_gpu.values()))}"
        yield Suspect(node, reason, gpu=gpu, uuid=uuids.get((node, gpu), ""), action=f"GPU {gpu} on {node}: {_GPU}")
    yield from _links(node, left)


def _worst_gpu(ways: Ways, left: Faults) -> int | None:
    """The GPU with most bad ways, if they are nearly all that it has in one direction, and at least two."""
    bad_ways = Counter[int]()
    for gpu in sorted({gpu for way in ways for gpu in way.ends}) if left else ():
        for direction in ([way for way in ways if way.source == gpu], [way for way in ways if way.target == gpu]):
            bad = sum(way in left for way in direction)
            bad_ways[gpu] += bad if bad >= max(2, ALL * len(direction)) else 0
    worst = max(bad_ways, key=lambda gpu: bad_ways[gpu], default=None)
    return worst if worst is not None and bad_ways[worst] else None


def _links(node: str, left: Faults) -> Iterator[Suspect]:
    for (first, second), members in sorted(grouped(left, lambda way: (min(way.ends), max(way.ends))).items()):
        name = f"GPU {members[0].source} to GPU {members[0].target}"
        if len(members) > 1:
            name = f"between GPU {first} and GPU {second}"
        why = _together([left[way] for way in members])
        yield Suspect(node, f"{name}: {why}", action=f"GPU {first} and GPU {second} on {node}: {_LINK}")


def _directions(gpu: int, ways: Ways, bad: Faults) -> str:
    """``copies with other GPUs``, ``copies to 7 of 7 other GPUs``"""
    sending, receiving = sum(way.source == gpu for way in bad), sum(way.target == gpu for way in bad)
    if sending and receiving:
        return "copies with other GPUs"
    others = sum(way.source == gpu if sending else way.target == gpu for way in ways)
    return f"copies {'to' if sending else 'from'} {max(sending, receiving)} of {others} other GPUs"


def _together(faults: Sequence[Fault]) -> str:
    """``48 % slower than …`` of the worst; texts that differ, one of each."""
    measured = [fault for fault in faults if fault.slower is not None]
    others = list(dict.fromkeys(fault.why for fault in faults if fault.slower is None))
    worst = max(measured, key=lambda fault: fault.slower or 0.0, default=None)
    return listed(others if worst is None else [worst.why, *others])


def _slower(comparison: Comparison, than: str) -> Fault:
    usual = f" ({rate_words(comparison.value)} against {rate_words(comparison.usual or 0.0)})"
    return Fault(f"{percent_words(comparison.slower)} slower than {than}{usual}", comparison.slower)


def _details(ways: Ways, faults: Faults, result: CopiesResult, on: str) -> Iterator[str]:
    rates = {way: copy.bytes_per_s for way, copy in ways.items() if copy.bytes_per_s is not None}
    if not rates:
        return
    usual = statistics.median([rate for way, rate in rates.items() if way not in faults] or rates.values())
    line = f"{on}GPU to GPU {rate_words(usual)}"
    good = peer_copy(result.name, result.pci_device)
    if good is not None:
        source = good.source if good.certain else f"{good.source}; not certain"
        line += f", {percent_words(usual / good.bytes_per_s)} of {rate_words(good.bytes_per_s)} ({source})"
    slowest = min(rates, key=lambda way: rates[way])
    if slowest not in faults and rates[slowest] < (1 - PEER_GAP) * usual:
        which = f"GPU {slowest.source} to GPU {slowest.target} at {rate_words(rates[slowest])}"
        line += f"; the slowest {which}" + ("" if good is not None else " (it may be built so)")
    yield line
    if all(copy.direct is False for copy in ways.values()):
        yield f"{on}no GPU reaches another one's memory directly: copies go through host memory"
