"""How each kind of probe is asked for, and how each table of results is shown: a row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.model.probe_kinds import COLLECTIVES, DTYPE_OF, MANY_NODES, PROBE_OF
from mltop.probes.model.units import seconds
from mltop.probes.model.vocabulary import ProbeKind
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, Column
from mltop.tui.render.probes import collectives, devices


class Choice(NamedTuple):
    """One line of the question: ``name`` is a field of ProbeWanted; ``options`` as they are written."""

    name: str
    label: str
    options: tuple[str, ...]

    def chosen(self, wanted: ProbeWanted) -> int:
        """Of the option that is chosen."""
        value = getattr(wanted, self.name)
        return int(value) if isinstance(value, bool) else self.options.index(value)

    def choose(self, wanted: ProbeWanted, index: int) -> ProbeWanted:
        """The probe with another option, counted round."""
        index %= len(self.options)
        value: Any = bool(index) if isinstance(getattr(wanted, self.name), bool) else self.options[index]
        return replace(wanted, **{self.name: value})


class KindView(NamedTuple):
    """``does``: what happens, a sentence or two. ``title``: of what is wanted; ``about_s``: on so many nodes, where it
    is not that of the kind. ``choices``: what the question asks beside the kind. ``key``: asks for it.
    """

    does: str
    title: Callable[[ProbeWanted], str] = lambda wanted: wanted.kind
    choices: tuple[Choice, ...] = ()
    about_s: Callable[[ProbeWanted, int], float] = lambda wanted, _: PROBE_OF[wanted.kind].about_s
    all_at_once: bool = True
    key: str = ""


SWEEP_S = 30.0  # what a dozen sizes take longer than three
ROUND_S = 3.0  # of a round robin
KINDS: dict[ProbeKind, KindView] = {
    "matmul": KindView(
        "Multiplies matrices on each GPU: with pauses, as published figures are measured, then some seconds without, at"
        " full power. Shows rate, clock, watts, throttling, and whether every result had the same bits.",
        lambda wanted: f"matmul {wanted.dtype}",
        (Choice("dtype", "type", tuple(DTYPE_OF)),),
        key=KEYCAPS["matmul"],
    ),
    "all-reduce": KindView(
        "Starts ranks on all of them and times collectives of several sizes. Shows bus bandwidth, wrong results, and"
        " which rank comes last.",
        lambda wanted: wanted.collective + ", sweep" * wanted.sweep,
        (Choice("collective", "what", COLLECTIVES), Choice("sweep", "sizes", ("3 sizes", "sweep"))),
        lambda wanted, nodes: (
            (PROBE_OF["all-reduce"].about_s + SWEEP_S * wanted.sweep) * (2 if nodes > MANY_NODES else 1)
        ),
        all_at_once=False,
        key=KEYCAPS["all_reduce"],
    ),
    "memory": KindView("Copies within the memory of each GPU. Shows its bandwidth."),
    "copies": KindView(
        "Copies between host and each GPU, alone and all at once, and between the GPUs of a node. Shows PCIe and NVLink"
        " bandwidth."
    ),
    "pairs": KindView(
        "Times all-reduce between two nodes at a time, in rounds of disjoint pairs. Shows the nodes, or the links, that"
        " are slower than the others.",
        lambda wanted: "pairs" + ", round robin" * wanted.round_robin,
        (Choice("round_robin", "looks for", ("slow nodes", "round robin")),),
        lambda wanted, nodes: (
            30 + ROUND_S * (nodes - 1 + nodes % 2) if wanted.round_robin else PROBE_OF["pairs"].about_s
        ),
        all_at_once=False,
    ),
}
_OF_KIND = Choice("kind", "probe", tuple(PROBE_OF))


def choices_of(wanted: ProbeWanted) -> list[Choice]:
    """The kind first, then what this kind asks."""
    return [_OF_KIND, *KINDS[wanted.kind].choices]


def title_of(wanted: ProbeWanted) -> str:
    """ "matmul bf16", "all-gather, sweep", "pairs, round robin"."""
    return KINDS[wanted.kind].title(wanted) + ", forced" * wanted.force


def takes_text(wanted: ProbeWanted, nodes: int) -> str:
    """ "about 20s, on all of them at once"."""
    kind = KINDS[wanted.kind]
    at_once = ", on all of them at once" if nodes > 1 and kind.all_at_once else ""
    return f"about {seconds(kind.about_s(wanted, nodes))}{at_once}"


def where_text(wanted: ProbeWanted, names: Sequence[str] = ()) -> str:
    """ "node01 GPU 3", "3 nodes", "all nodes". ``names``: of the nodes it turned out to be."""
    nodes = tuple(wanted.nodes) or tuple(names)
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else "all nodes"
    return f"{where} GPU {','.join(wanted.gpus)}" if wanted.gpus else where


Lines = list[list[Cell]]
Device = tuple[str, "int | None"]  # node and GPU, None: none of its GPUs


class Table(NamedTuple):
    """``legend``: what the columns mean, below the table. ``key``, ``about``: of an item, its row's key and the device
    that it is about. ``pictures``: of items and most (cells, lines), what else shows them. ``how``: of a result, beside
    versions, how it was measured.
    """

    columns: Sequence[Column]
    legend: str = ""
    key: Callable[[Any], str] = attrgetter("key")
    about: Callable[[Any], Device] = attrgetter("about")
    pictures: Callable[[Sequence[Any], tuple[int, int]], list[Lines]] = lambda _items, _size: []
    how: Callable[[Any], list[str]] = lambda _: []


# Of devices by the kind of probe: "stages" while ranks start, when nothing of their own is shown beside how far they
# are; of a collective's sizes, of its ranks, and of pairs of nodes.
TABLES = {
    "matmul": Table(
        devices.MATMUL,
        "BURST: FLOP/s with the cache flushed between products, at mamf-finder's shape where it has a figure."
        " HELD: without a pause, up to the power limit. EFF: share of what the SMs can do at the clock they had, for"
        " both. AGAINST: this GPU's own earlier results, the others of this run, or (table) BURST against mamf-finder's"
        " figure. WRONG: GEMMs that gave other bits than the first, of how much work. W!: the power limit was lowered.",
        how=devices.matmul_how,
    ),
    "memory": Table(
        devices.MEMORY,
        "COPY: bytes read plus bytes written, per second. AGAINST: its own earlier results, or the others of this run.",
        how=devices.copies_how,
    ),
    "copies": Table(
        devices.COPIES,
        "TO GPU, TO HOST: through pinned memory, each GPU alone; ALL: all GPUs of the node at once.",
        how=devices.copies_how,
    ),
    "stages": Table(devices.STAGES),
    "sizes": Table(
        collectives.SIZE_COLUMNS,
        "ALGBW: size / time. BUSBW: comparable between numbers of ranks (nccl-tests). SHARE: of what is expected. LAST"
        " TO COME: the rank that waits least in the collective. Enter: all ranks.",
        collectives.size_key,
        lambda result: (next(iter(result.nodes), ""), None),
        lambda results, size: [collectives.curve_lines(results, *size)],
    ),
    "ranks": Table(
        collectives.RANK_COLUMNS,
        "WAITS: median of a rank's time in the collective. LAG: how much less than the one that waits longest: who"
        " comes last waits least.",
        lambda line: str(line.arrival.rank),
        lambda line: (line.arrival.node, line.arrival.gpu),
    ),
    "pairs": Table(
        collectives.PAIR_COLUMNS,
        "AGAINST: the median of all pairs. One slow pair is a link, or one of its nodes: a node that is slow with"
        " several others is the node.",
        lambda line: f"{line.pair.round}/{'/'.join(line.pair.nodes)}",
        lambda line: (line.node(0), None),
        collectives.pair_pictures,
    ),
}
