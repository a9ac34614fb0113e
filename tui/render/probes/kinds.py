"""What each kind of probe is, in words: for the question before it starts, and for the pane while none has run."""

from __future__ import annotations

from collections.abc import Sequence

from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.model.probe_kinds import MANY_NODES, PROBE_OF
from mltop.probes.model.units import seconds
from mltop.probes.model.vocabulary import ProbeKind

# What happens, a sentence or two.
DOES: dict[ProbeKind, str] = {
    "matmul": "Multiplies matrices on each GPU: with pauses, as published figures are measured, then some seconds"
    " without, at full power. Shows rate, clock, watts, throttling, and whether every result had the same bits.",
    "all-reduce": "Starts ranks on all of them and times collectives of several sizes. Shows bus bandwidth, wrong"
    " results, and which rank comes last.",
    "memory": "Copies within the memory of each GPU. Shows its bandwidth.",
    "copies": "Copies between host and each GPU, alone and all at once, and between the GPUs of a node. Shows PCIe and"
    " NVLink bandwidth.",
    "pairs": "Times all-reduce between two nodes at a time, in rounds of disjoint pairs. Shows the nodes, or the links,"
    " that are slower than the others.",
}
SWEEP_S = 30.0  # what a dozen sizes take longer than three
ROUND_S = 3.0  # of a round robin


def title_of(wanted: ProbeWanted) -> str:
    """ "matmul bf16", "all-gather, sweep", "pairs, round robin"."""
    name: str = wanted.kind
    if name == "matmul":
        name = f"matmul {wanted.dtype}"
    elif name == "all-reduce":
        name = wanted.collective + (", sweep" if wanted.sweep else "")
    elif name == "pairs" and wanted.round_robin:
        name = "pairs, round robin"
    return f"{name}, forced" if wanted.force else name


def takes_text(wanted: ProbeWanted, nodes: int) -> str:
    """ "about 20s, on all of them at once"."""
    about_s = PROBE_OF[wanted.kind].about_s
    if wanted.kind == "all-reduce":
        about_s += SWEEP_S * wanted.sweep
        about_s *= 2 if nodes > MANY_NODES else 1
    if wanted.kind == "pairs":
        if wanted.round_robin:
            about_s = 30 + ROUND_S * (nodes - 1 + nodes % 2)
        return f"about {seconds(about_s)}"
    at_once = ", on all of them at once" if nodes > 1 and wanted.kind != "all-reduce" else ""
    return f"about {seconds(about_s)}{at_once}"


def where_text(wanted: ProbeWanted, names: Sequence[str] = ()) -> str:
    """ "node01 GPU 3", "3 nodes", "all nodes". ``names``: of the nodes it turned out to be."""
    nodes = tuple(wanted.nodes) or tuple(names)
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else "all nodes"
    return f"{where} GPU {','.join(wanted.gpus)}" if wanted.gpus else where


# What the columns of each table mean, below it.
LEGENDS = {
    "matmul": "BURST: FLOP/s with the cache flushed between products, at mamf-finder's shape where it has a figure."
    " HELD: without a pause, up to the power limit. EFF: share of what the SMs can do at the clock they had, for both."
    " AGAINST: this GPU's own earlier results, the others of this run, or (table) BURST against mamf-finder's figure."
    " WRONG, CHECKED: GEMMs that gave other bits than the first. W!: the power limit was lowered.",
    "memory": "COPY: bytes read plus bytes written, per second. AGAINST: its own earlier results, or the others of this"
    " run.",
    "copies": "TO GPU, TO HOST: through pinned memory, each GPU alone; ALL: all GPUs of the node at once.",
    "sizes": "ALGBW: size / time. BUSBW: comparable between numbers of ranks (nccl-tests). SHARE: of what is"
    " expected. LAST TO COME: the rank that"
    " waits least in the collective. Enter: all ranks.",
    "ranks": "WAITS: median of a rank's time in the collective. LAG: how much less than the one that waits longest: who"
    " comes last waits least.",
    "pairs": "AGAINST: the median of all pairs. One slow pair is a link, or one of its nodes: a node that is slow with"
    " several others is the node.",
}
