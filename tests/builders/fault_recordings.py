"""A job that trains on nodes of 8 x H100, as recordings of samples: each fault breaks a thing at ``BROKE_AT``.

``recording(hangs(3), lost_gpu(3))``: every change is a function of (node's number, s since the fault, sample) that
changes the sample in place; it is asked before the fault, too, with negative times.
``judged(samples)``: the diagnosis of it as `mltop check --recording` makes it, and what was told on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mltop.probes.investigate.diagnosis import Diagnosis
from mltop.probes.judge.health.fleet import Health
from mltop.probes.model import Finding, Incident, KernelEvent, RankDeath, RankSample, Sample
from mltop.probes.model.vocabulary import DeathKind
from tests.builders.health_samples import gpu, links, node_h100, rank, xid

BEGAN_AT, BROKE_AT, EVERY_S = 100_120.0, 100_240.0, 2.0
PER_NODE = 8
ASKED_EVERY_S = 10.0
JOB = "1042"

Change = Callable[[int, float, Sample], None]


def recording(*changes: Change, nodes: int = 2, lasts_s: float = 240.0, every_s: float = EVERY_S) -> list[Sample]:
    """Samples of all nodes in the order of time; the job trains until a change says otherwise."""
    made = []
    for step in range(int((BROKE_AT - BEGAN_AT + lasts_s) / every_s)):
        for number in range(nodes):
            at = BEGAN_AT + step * every_s + number / 10
            sample = node_h100(at, node=f"n{number}")
            sample.ranks = [_of_job(each, number, nodes) for each in sample.ranks]
            for change in changes:
                change(number, at - BROKE_AT, sample)
            made.append(sample)
    return made


def _of_job(local: RankSample, node: int, nodes: int) -> RankSample:
    """Writes as much as it reads: it trains, and does not load."""
    own = rank_of(node, local.rank)
    return replace(local, rank=own, world_size=8 * nodes, uid=1000, read_syscalls=local.write_syscalls)


def rank_of(node: int, local: int | None) -> int:
    return node * PER_NODE + (local or 0)


# What the job does.


def hangs(*odd: int, state: str = "S", wchan: str = "futex_do_wait") -> Change:
    """Nothing of the job moves any more: all spin in NCCL but ``odd`` (of node 0), whose GPUs do nothing."""

    def change(node: int, after_s: float, sample: Sample) -> None:
        if after_s < 0:
            return
        for each in sample.ranks:
            here, still = (each.rank or 0) - node * PER_NODE, rank((each.rank or 0) % PER_NODE, BROKE_AT)
            each.voluntary_switches, each.read_syscalls = still.voluntary_switches, still.write_syscalls
            each.write_syscalls, each.children_cpu_fraction = still.write_syscalls, 0.0
            idle = node == 0 and here in odd
            each.main_cpu_s = BROKE_AT if idle else (each.main_cpu_s or 0.0)
            each.state, each.cpu_fraction = (state, 0.0) if idle else ("R", 1.0)
            each.wchan = wchan if idle else None
            _set_load(sample, here, "idle" if idle else "spinning")
        _stop_links(sample)

    return change


def ends(cause: Sequence[int] = (), *, takes_s: float = 4.0, launcher: str = "SIGTERM", **how: object) -> Change:
    """The ranks ``cause`` (of node 0) die, with ``how``; soon after all others are ended."""

    def change(node: int, after_s: float, sample: Sample) -> None:
        if after_s < 0:
            return
        first = {rank_of(0, local) for local in cause}
        for each in [*sample.ranks]:
            own = each.rank in first and node == 0
            if own or after_s >= takes_s:
                told = {"how": "signal", "code": 15, "told_by": "proc connector", **(how if own else {})}
                at = BROKE_AT + (0.0 if own else takes_s)
                sample.deaths.append(
                    RankDeath(each.pid, each.rank, each.job, each.uid, at=at, gpus=[*each.gpus], **told)  # type: ignore[arg-type]
                )
                sample.ranks.remove(each)
                _free(sample, each)
        if not sample.ranks:
            _stop_links(sample)

    return change


def dies(*locals_: int, how: DeathKind = "signal", code: int | None = 9, error: str = "") -> Change:
    """Ranks of node 0 are gone, the others wait for them."""
    freeze = hangs()

    def change(node: int, after_s: float, sample: Sample) -> None:
        if after_s < 0:
            return
        if node == 0:
            for each in [each for each in sample.ranks if (each.rank or 0) in locals_]:
                sample.ranks.remove(each)
                sample.deaths.append(
                    RankDeath(
                        each.pid,
                        each.rank,
                        each.job,
                        each.uid,
                        how,
                        code,
                        BROKE_AT,
                        "proc connector",
                        error,
                        gpus=[*each.gpus],
                    )
                )
                _free(sample, each)
        freeze(node, after_s, sample)

    return change


def idle(sample: Sample, of: RankSample) -> None:
    """Its GPU does nothing."""
    _set_load(sample, (of.rank or 0) % PER_NODE, "checkpoint")


def _free(sample: Sample, gone: RankSample) -> None:
    """Its GPU does nothing, and its memory is free."""
    local = (gone.rank or 0) % PER_NODE
    _set_load(sample, local, "idle")
    for each in sample.gpus:
        if each.index == local:
            each.processes, each.memory_used_bytes = [], 4 * 1024**2


def _set_load(sample: Sample, local: int, load: str) -> None:
    for index, board in enumerate(sample.gpus):
        if board.index == local:
            fresh = gpu(local, load, sample.sampled_at)
            fresh.processes, fresh.ecc, fresh.memory_used_bytes = board.processes, board.ecc, board.memory_used_bytes
            fresh.nvlink = replace(board.nvlink, tx_bytes_per_s=0.0, rx_bytes_per_s=0.0) if board.nvlink else None
            fresh.throttle_ns = board.throttle_ns
            fresh.pcie = replace(fresh.pcie, tx_bytes_per_s=0.0, rx_bytes_per_s=0.0) if fresh.pcie else None
            sample.gpus[index] = fresh


def _stop_links(sample: Sample) -> None:
    still = {each.device: each for each in links(BROKE_AT)}
    for each in sample.links:
        fixed = still.get(each.device)
        if fixed is not None:
            for name in ("port_xmit_data", "port_rcv_data", "port_xmit_wait"):
                if name in fixed.counters:
                    each.counters[name] = fixed.counters[name]
            each.rx_bytes_per_s = each.tx_bytes_per_s = 0.0


# What breaks.


def on(node: int, do: Callable[[float, Sample], None], *, delay_s: float = 0.0, until_s: float = 1e9) -> Change:
    """``do`` with what one node tells from ``delay_s`` after the fault on."""

    def change(number: int, after_s: float, sample: Sample) -> None:
        if number == node and delay_s <= after_s < until_s:
            do(after_s, sample)

    return change


def logs(code: int, local: int = 3, text: str = "", *, node: int = 0, delay_s: float = 0.0, **fields: object) -> Change:
    """The kernel's line of an Xid."""
    return on(
        node,
        lambda _, sample: sample.kernel_events.append(xid(BROKE_AT + delay_s, code, local, text, **fields)),
        delay_s=delay_s,
    )


def says(event: KernelEvent, node: int = 0) -> Change:
    return on(node, lambda _, sample: sample.kernel_events.append(event), delay_s=event.at - BROKE_AT)


# What is told.


@dataclass
class Told:
    incidents: list[Incident]
    findings: list[Finding]
    on_the_way: list[tuple[float, list[Incident]]]


def judged(samples: Iterable[Sample]) -> Told:
    ordered = list(samples)
    diagnosis = Diagnosis(Health(keep_s=None, eager=frozenset()), whole_recording=True)
    diagnosis.health.compare(_oldest(ordered))
    seen: list[tuple[float, list[Incident]]] = []
    asked = ordered[0].sampled_at
    for sample in ordered:
        diagnosis.see(sample)
        if sample.sampled_at - asked >= ASKED_EVERY_S:
            asked = sample.sampled_at
            seen.append((asked, diagnosis.incidents()))
    diagnosis.health.settle()
    return Told(diagnosis.incidents(), diagnosis.health.findings(), seen)


def _oldest(samples: Sequence[Sample]) -> Iterator[Sample]:
    named: set[str] = set()
    for sample in samples:
        if sample.node not in named:
            named.add(sample.node)
            yield sample
