"""What can be seen of a job from outside, without stopping it, and what mltop's thresholds make of it.

A threshold is right where it lies between what it is to tell apart: idle and spinning, standing still and at work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from mltop.probes.collect.ranks import RankSource
from mltop.probes.judge.hang import thresholds
from mltop.probes.judge.health.job import ranks as job_ranks
from mltop.probes.judge.health.job import whole_job as job_facts
from mltop.probes.model import GpuSample, RankSample
from mltop.probes.model.gpu import IDLE_SM
from tests.hardware.checks import Check, NotTriedError, not_tried, within
from tests.hardware.ours import Mltop

GPU_FIELDS = ("busy", "sm_active", "tensor_active", "dram_active", "power_w", "power_limit_w", "sm_clock_mhz")
# idle: a context and no kernel. gemm: bf16 GEMMs. collective: stuck in a collective, by NCCL or gloo.
State = Literal["idle", "gemm", "healthy", "kernel", "dataloader", "collective"]


@dataclass
class Rates:
    """Of one rank's main thread, ``calls`` of its process; per second. None: not known.

    Fewer than mltop takes for a movement (MOVE_COUNT) are 0: they are a DataLoader's look at its worker.
    """

    switches: float | None = None
    calls: float | None = None
    main_cpu: float | None = None
    main_calls: float | None = None

    @property
    def most(self) -> float | None:
        """What mltop takes for movement: switches, or calls. None where the main thread's calls were not recorded."""
        if self.main_calls is None:
            return None
        return max(self.main_calls, self.switches or 0.0)


@dataclass
class Signals:
    """``gpu``: medians by field of a GpuSample, as far as it tells them. ``ranks``: by rank."""

    gpu: dict[str, float] = field(default_factory=dict)
    ranks: dict[int, Rates] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(cls, data: dict[str, Any]) -> Signals:
        """From what ``asdict`` made of it, also through JSON."""
        ranks = {int(rank): Rates(**rates) for rank, rates in data["ranks"].items()}
        return cls(data["gpu"], ranks, data["seconds"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def power_share(self) -> float | None:
        watts, limit = self.gpu.get("power_w"), self.gpu.get("power_limit_w")
        return watts / limit if watts is not None and limit else None

    @property
    def spins(self) -> bool:
        """What mltop would say of a rank on this GPU."""
        gpu = GpuSample(0, busy=self.gpu.get("busy"), tensor_active=self.gpu.get("tensor_active"))
        gpu.power_w, gpu.power_limit_w = self.gpu.get("power_w"), self.gpu.get("power_limit_w")
        return job_facts.spins(gpu)


class Watcher:
    """Signals of this machine's ranks and one GPU, as mltop reads them."""

    def __init__(self, mltop: Mltop, index: int) -> None:
        self._mltop, self._index = mltop, index
        self._source = RankSource()

    def ranks(self) -> list[RankSample]:
        return self._source.read(time.monotonic(), {})[0]

    def watch(self, pids: list[int], settle_s: float, seconds: float) -> Signals:
        """``pids``: of the job's ranks, in their order."""
        self._mltop.poll()  # averages and GPM's samples begin before what is measured
        time.sleep(settle_s)
        self._mltop.poll()
        began_s, before = time.monotonic(), self._by_pid()
        gpus: list[GpuSample] = []
        while not gpus or time.monotonic() < began_s + seconds:
            time.sleep(min(0.5, seconds / 2))
            found = [gpu for gpu in self._mltop.poll() if gpu.index == self._index]
            if not found:
                raise NotTriedError(f"mltop does not list GPU {self._index} any more")
            gpus += found
        after, passed_s = self._by_pid(), time.monotonic() - began_s
        ranks = {
            rank: _rates(before[pid], after[pid], passed_s)
            for rank, pid in enumerate(pids)
            if pid in before and pid in after
        }
        return Signals(_medians(gpus), ranks, passed_s)

    def _by_pid(self) -> dict[int, RankSample]:
        return {rank.pid: rank for rank in self.ranks()}


def no_others(watcher: Watcher) -> None:
    """NotTriedError where somebody's ranks run: mltop stops every rank that it finds for moments. And where we would be
    taken for one, as in a pod whose variables are those of a training job.
    """
    if "RANK" in os.environ:
        raise NotTriedError("RANK is set here, so that this command looks like a rank: env -u RANK bash tests/gpu …")
    ours = set(_own_line())  # in a step of srun's we are its task, which our ranks' own variables outweigh
    found = [rank.pid for rank in watcher.ranks() if rank.state != "Z" and rank.pid not in ours]
    if found:
        shown = ", ".join(map(str, found[:8]))
        raise NotTriedError(f"training runs on this machine (pid {shown}), which mltop stacks would stop for moments")


def _own_line() -> Iterator[int]:
    """This process, its parent, and so on."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return


def _rates(before: RankSample, after: RankSample, seconds: float) -> Rates:
    def gain(name: str) -> float | None:
        old, new = getattr(before, name), getattr(after, name)
        return None if old is None or new is None else new - old

    def rate(*counts: float | None) -> float | None:
        known = [count for count in counts if count is not None]
        if not known:
            return None
        return sum(known) / seconds if sum(known) >= thresholds.MOVE_COUNT else 0.0

    cpu_s = gain("main_cpu_s")
    return Rates(
        rate(gain("voluntary_switches")),
        rate(gain("read_syscalls"), gain("write_syscalls")),
        None if cpu_s is None else cpu_s / seconds,
        rate(gain("main_syscalls")),
    )


def _medians(gpus: list[GpuSample]) -> dict[str, float]:
    known = {name: [getattr(gpu, name) for gpu in gpus if getattr(gpu, name) is not None] for name in GPU_FIELDS}
    return {name: median(values) for name, values in known.items() if values}


@dataclass(frozen=True)
class Threshold:
    """``low`` and ``high``: the states that it lies between, and ``of``: what of their GPU it is about."""

    name: str
    value: float
    of: str
    low: State | Literal["spinning"]
    high: State | Literal["spinning"]
    says: str


GPU_THRESHOLDS = (
    Threshold("IDLE_BUSY", job_ranks.IDLE_BUSY, "busy", "idle", "spinning", "below it a GPU is idle"),
    Threshold("SPINNING_BUSY", job_facts.SPINNING_BUSY, "busy", "idle", "spinning", "from it on a GPU may spin"),
    Threshold(
        "SPINNING_POWER",
        job_facts.SPINNING_POWER,
        "power_share",
        "spinning",
        "gemm",
        "of the limit: from it on it works",
    ),
    Threshold(
        "SPINNING_TENSOR", job_facts.SPINNING_TENSOR, "tensor_active", "spinning", "gemm", "from it on a GPU works"
    ),
    Threshold("IDLE_SM", IDLE_SM, "sm_active", "idle", "spinning", "below it a GPU is idle"),
)
RANK_THRESHOLDS = (
    *("MOVE_PER_S", "MOVE_PROCESS_CALLS_PER_S", "WORKING_CALLS_PER_S", "BUSY_CPU", "BUSY_MAIN_CPU"),
    "MOVE_CPU_S_PER_S",
)
SPINS = {"spins (idle)": False, "spins (spinning)": True, "spins (gemm)": False}
CHECKS: tuple[str, ...] = (*(one.name for one in GPU_THRESHOLDS), *RANK_THRESHOLDS, *SPINS)


def checks_of(known: dict[str, Signals], spinning: State, gpu: int) -> Iterator[Check]:
    """``known``: by state. ``spinning``: which of them is what the thresholds call so."""
    for one in GPU_THRESHOLDS:
        low, high = (spinning if state == "spinning" else state for state in (one.low, one.high))
        why = f"{one.says}: {one.of} {low} to {high}"
        yield _between(one.name, one.value, *(_of_gpu(known.get(state), one.of) for state in (low, high)), why, gpu)
    yield from _of_ranks(known, gpu)
    for name, truth in SPINS.items():
        inside = name.partition("(")[2][:-1]
        state = spinning if inside == "spinning" else inside
        found = known.get(state)
        if found is None or "busy" not in found.gpu:
            yield not_tried(name, f"the state {state} was not measured", gpu=gpu)
        else:
            details = {"gpu": gpu, "source": "truth", "state": state, "seen": found.gpu}
            yield Check(name, "agrees" if found.spins == truth else "differs", found.spins, truth, "", "", details)


def _of_gpu(found: Signals | None, what: str) -> float | None:
    if found is None:
        return None
    return found.power_share if what == "power_share" else found.gpu.get(what)


def _of_ranks(known: dict[str, Signals], gpu: int) -> Iterator[Check]:
    """What stands still is the stack in a worker and in a collective; what waits for a kernel may spin."""
    still = [
        rates
        for state in ("kernel", "dataloader", "collective")
        for rates in known.get(state, Signals()).ranks.values()
    ]
    asleep = known.get("dataloader", Signals()).ranks.get(0, Rates())
    waits = known.get("kernel", Signals()).ranks.get(0, Rates())
    works = known.get("healthy", Signals()).ranks.get(0, Rates())
    most_still = max((rates.most for rates in still if rates.most is not None), default=None)
    most_calls = max((rates.calls for rates in still if rates.calls is not None), default=None)
    if (works.main_cpu or 0.0) >= thresholds.BUSY_CPU and works.most is not None and works.most < thresholds.MOVE_PER_S:
        yield not_tried("MOVE_PER_S", "the main thread spins at work, too: its stacks and its GPU show that", gpu=gpu)
    else:
        moving = "switches or calls a second of the main thread, standing still to at work"
        yield _between("MOVE_PER_S", thresholds.MOVE_PER_S, most_still, works.most, moving, gpu)
    for name, value in (
        ("MOVE_PROCESS_CALLS_PER_S", thresholds.MOVE_PROCESS_CALLS_PER_S),
        ("WORKING_CALLS_PER_S", job_ranks.WORKING_CALLS_PER_S),
    ):
        calls = "calls a second of all threads, standing still to at work"
        yield _between(name, value, most_calls, works.calls, calls, gpu)
    limit = thresholds.MOVE_CPU_S_PER_S
    yield _between("MOVE_CPU_S_PER_S", limit, asleep.main_cpu, works.main_cpu, "of a core, asleep to at work", gpu)
    for name in ("BUSY_CPU", "BUSY_MAIN_CPU"):
        if waits.main_cpu is not None and waits.main_cpu < thresholds.BUSY_MAIN_CPU:
            why = f"who waits for this GPU sleeps ({waits.main_cpu:.3f} of a core) instead of spinning"
            yield not_tried(name, why, gpu=gpu)
            continue
        cores = "of a core, asleep to waiting for a kernel"
        yield _between(name, getattr(thresholds, name), asleep.main_cpu, waits.main_cpu, cores, gpu)


def _between(name: str, value: float, low: float | None, high: float | None, why: str, gpu: int) -> Check:
    if low is None or high is None:
        missing = " and ".join(part for part, known in (("the lower", low), ("the upper", high)) if known is None)
        return not_tried(name, f"{missing} end is not known here ({why})", gpu=gpu)
    return within(name, value, low, high, why, gpu=gpu, source="measured")
