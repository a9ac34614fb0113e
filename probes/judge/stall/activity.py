"""What one rank, and one GPU, did between two samples. Called for every rank of every sample: kept short and flat."""

from __future__ import annotations

from typing import NamedTuple

from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.model import GpuSample, MigInstance, RankSample
from mltop.probes.model.news.judged import RankMotion
from mltop.probes.model.sample import is_same_start

# What a rank did.
# SPUN: its main thread had a core, and nothing else of it moved; THREADS: others of its threads had one, or called.
STILL, SPUN, THREADS, WORKED = 0, 1, 2, 3
# What a GPU did. RESIDENT: a kernel was there all the time and did nothing; COPIED: only memory or links moved.
UNREAD, IDLE, RESIDENT, COPIED, COMPUTED = 0, 1, 2, 3, 4
# Independent signals, as bits: those of a rank that were read and stand still.
MAIN, CALLS, CPU, GPU, TRAFFIC = 1, 2, 4, 8, 16
_MPI_LAUNCHERS = ("mpirun", "srun")
_WITHOUT_MPI = {"torch", "jaxlib"}  # gloo and NCCL do what shows from outside
MOST_MODELS = 64  # names are whatever a driver says
POLLS = 32  # no signal: its main thread wakes up regularly and does nothing


class _Calls(NamedTuple):
    """Reads and writes of all threads, and at least so many of the main one."""

    all: int
    own: float


class RankTrack(RankMotion):
    """What is remembered of one rank: its counters at the newest sample and when it last moved (unix s)."""

    def __init__(self, rank: RankSample, at: float) -> None:
        super().__init__(
            rank.pid,
            rank.rank,
            started_at=rank.started_at,
            state=rank.state,
            state_since=at,
            wchan=rank.wchan,
            level=STILL,
            gpu_state=UNREAD,
        )
        self.job, self.uid, self.is_rays = rank.job, rank.uid, rank.launcher == "ray"
        self.worked_at = self.spun_at = self.stepped_at = self.computed_at = 0.0
        self.switched = self.called = 0
        self.loads = False
        self.rate, self.steady, self.took_part = 0.0, 0, 0
        self.ran_s = 0.0
        self.cpu: float | None = None
        self.keep(rank, at)

    def keep(self, rank: RankSample, at: float) -> None:
        """Count from here on."""
        self.at = at
        self.switches, self.main_cpu_s = rank.voluntary_switches, rank.main_cpu_s
        self.reads, self.writes, self.main_calls = rank.read_syscalls, rank.write_syscalls, rank.main_syscalls
        self.gpu = rank.gpus[0] if rank.gpus else None

    def is_of(self, rank: RankSample) -> bool:
        """Whether it is the same process, and known as of the same job."""
        return self.job == rank.job and self.uid == rank.uid and self.is_same_process(rank)

    def is_same_process(self, rank: RankSample) -> bool:
        """And not one that got its pid."""
        return is_same_start(self.started_at, rank.started_at) is not False

    def look(self, rank: RankSample, at: float) -> int:
        """What it did since the last look, before ``at``, its GPU left out: one of STILL … WORKED.

        Sets ``loads``, and ``flat`` to the signals that were read and stand still. A counter that went back stood.
        """
        seconds = at - self.at
        flat, switched, called, ran_s = 0, 0, 0, None
        if rank.voluntary_switches is not None and self.switches is not None:
            switched = rank.voluntary_switches - self.switches
        if rank.main_cpu_s is not None and self.main_cpu_s is not None:
            ran_s = rank.main_cpu_s - self.main_cpu_s
        reads, writes = rank.read_syscalls, rank.write_syscalls
        calls_read = reads is not None and writes is not None and self.reads is not None and self.writes is not None
        wrote = 0
        if calls_read:
            wrote = writes - self.writes  # type: ignore[operator]
            called = reads - self.reads + wrote  # type: ignore[operator]
            if called <= limit.FLAT_LEAST + limit.FLAT_PER_S * seconds:
                flat = CALLS
        self.loads = called > limit.LOADING_READS_PER_S * seconds and called > limit.LOADING_READS_PER_WRITE * wrote
        calls = self._calls(rank, called, seconds) if calls_read else None
        level, polls = self._level(rank, switched, calls, ran_s, seconds)
        cpu, children_cpu = rank.cpu_fraction, rank.children_cpu_fraction
        of_main = 0.0 if ran_s is None else ran_s / seconds
        if children_cpu is not None and children_cpu >= limit.OTHERS_CPU:
            level = WORKED
        elif cpu is not None and level < THREADS:
            if ran_s is not None and cpu - of_main >= limit.OTHERS_CPU:
                level = THREADS
            elif cpu >= limit.OTHERS_CPU:
                level = max(level, SPUN)
            elif level == STILL:
                flat |= CPU
        if rank.state != self.state:
            self.state, self.state_since = rank.state, at
        self.wchan, self.cpu = rank.wchan, cpu
        if polls:
            flat |= MAIN | POLLS
        elif self.switches is not None and switched <= limit.SWITCHES_LEAST + limit.SWITCHES_PER_S * seconds:
            flat |= MAIN
        self.flat = flat
        self.switched, self.called, self.ran_s = switched, called, ran_s or 0.0
        self.keep(rank, at)
        return level

    def _calls(self, rank: RankSample, called: int, seconds: float) -> _Calls:
        if rank.main_syscalls is None or self.main_calls is None or self.is_rays:
            return _Calls(called, called - limit.HELPERS_CALLS_PER_S * seconds)
        return _Calls(called, rank.main_syscalls - self.main_calls)

    def settle(self, level: int, gpu: int, at: float) -> None:
        """Join ``level`` with what its GPU did: a collective that waits takes a core or two and a resident kernel."""
        if gpu >= COPIED:
            level = WORKED
            if gpu == COMPUTED:
                self.computed_at = at
        elif gpu != UNREAD:
            self.flat |= GPU
        if level in (SPUN, THREADS):
            level = STILL if gpu == RESIDENT else WORKED if level == THREADS else SPUN
        self.level, self.gpu_state = level, gpu
        if level == WORKED:
            self.worked_at = at
            if gpu == COMPUTED or not self.loads:  # a job may read its data as fast as others load libraries
                self.stepped_at = at
        elif level == SPUN:
            self.spun_at = at

    def _only_looks_after(self, rate: float, calls: _Calls | None, ran_s: float | None, seconds: float) -> bool:
        """A main thread that wakes up as regularly as a clock, costly as its look may be: what trains is another
        thread, or the GPU, which must be readable. Of Ray's workers that is known, and on a busy node no clock is
        regular.
        """
        if calls is None or ran_s is None or ran_s >= limit.STEADY_CPU * seconds:
            return False
        if self.is_rays:
            looks_after = calls.all < limit.RAYS_CALLS_PER_S * seconds
        else:
            is_steady = self.steady >= limit.STEADY_LOOKS and rate >= limit.STEADY_PER_S
            looks_after = is_steady and calls.all < limit.CALLS_BESIDE
        return looks_after and (self.gpu is None or self.gpu_state != UNREAD)

    def _level(
        self, rank: RankSample, switched: int, calls: _Calls | None, ran_s: float | None, seconds: float
    ) -> tuple[int, bool]:
        """What the main thread did, and whether it only polls."""
        rate = switched / seconds
        self.steady = self.steady + 1 if abs(rate - self.rate) <= limit.STEADY * self.rate else 0
        self.rate = rate
        if calls is not None and calls.all >= limit.CALLS_PER_S * seconds:
            if calls.own >= limit.CALLS_BESIDE:
                return WORKED, False
            runs = ran_s is None or ran_s >= limit.MAIN_CPU_LEAST * seconds
            self.took_part += runs and not self.loads
            if runs or self.took_part < limit.TAKES_PART_LOOKS:
                return THREADS, False
        if switched >= limit.SWITCHES_LEAST + limit.SWITCHES_PER_S * seconds:
            level = _awake(switched, calls, ran_s, seconds)
            if level != STILL and self._only_looks_after(rate, calls, ran_s, seconds):
                level = STILL
            # Through shared memory MPI moves data without a call: who only wakes up may be at work, as who spins may.
            may_be_in_mpi = rank.launcher in _MPI_LAUNCHERS and not _WITHOUT_MPI & rank.versions.keys()
            in_mpi = may_be_in_mpi and (ran_s or 0.0) >= limit.MAIN_CPU_LEAST * seconds
            return (SPUN, False) if level == STILL and in_mpi else (level, level == STILL)
        if ran_s is None:
            return STILL, False
        if calls is not None and calls.own >= limit.CALLS_BESIDE and ran_s >= limit.MAIN_CPU_SAVES * seconds:
            return WORKED, False
        return (SPUN if ran_s >= limit.SPINS * seconds else STILL), False


def _awake(switched: int, calls: _Calls | None, ran_s: float | None, seconds: float) -> int:
    """What a main thread does that sleeps and wakes up; STILL: it only polls. Of calls that others make, few say
    nothing beside a poll that wakes up often.
    """
    if ran_s is None:
        return WORKED
    if calls is None and ran_s >= limit.MAIN_CPU_UNREAD * seconds:
        return WORKED
    is_costly = ran_s >= limit.CPU_PER_SWITCH * switched
    if calls is not None and calls.all >= limit.CALLS_BESIDE and ran_s >= limit.MAIN_CPU_LEAST * seconds:
        if calls.own >= limit.CALLS_BESIDE:
            return WORKED
        if is_costly or calls.all >= limit.CALLS_PER_SWITCH * switched:
            return THREADS
    # Who waits for a GPU may wake up often, too: what that does tells them apart.
    return THREADS if is_costly and ran_s >= limit.MAIN_CPU_WORKS * seconds else STILL


class IdlePower:
    """What a GPU of each model draws when it does nothing: the least that was seen, at most a share of its limit."""

    def __init__(self) -> None:
        self._least_w: dict[str, float] = {}

    def works_above_w(self, gpu: GpuSample, limit_w: float) -> float:
        power_w, name = gpu.power_w, gpu.name or ""
        least_w = min(self._least_w.get(name, limit_w), limit.IDLE_POWER * limit_w)
        if power_w is not None and limit.POWER_FAULTY * limit_w <= power_w < least_w:
            least_w = power_w
            if len(self._least_w) < MOST_MODELS or name in self._least_w:
                self._least_w[name] = power_w
        return least_w + limit.POWER_WORKS * (limit_w - least_w)


def gpu_state(gpu: GpuSample, idle: IdlePower, memory_before: int | None) -> int:
    """What a GPU did around a sample: one of UNREAD … COMPUTED."""
    if gpu.state != "ok":
        return UNREAD
    if gpu.mig_instances:
        return max(map(_activity, gpu.mig_instances))
    power_w, limit_w, busy = gpu.power_w, gpu.power_limit_w, gpu.busy
    state = _activity(gpu)
    if state == COMPUTED:
        return state
    if power_w is not None and limit_w:
        if power_w >= idle.works_above_w(gpu, limit_w):
            return COMPUTED
        state = IDLE
    if busy is not None:
        if limit.BUSY_IDLE < busy < limit.BUSY_RESIDENT:
            return COMPUTED
        if busy <= limit.BUSY_IDLE:
            state = IDLE
        elif state == IDLE:
            state = RESIDENT
    return COPIED if _copies(gpu, memory_before) else state


def _activity(device: GpuSample | MigInstance) -> int:
    tensor, sm, dram = device.tensor_active, device.sm_active, device.dram_active
    if tensor is None and sm is None and dram is None:
        return UNREAD
    works = (tensor or 0.0) >= limit.TENSOR_WORKS or (dram or 0.0) >= limit.DRAM_WORKS or (sm or 0.0) >= limit.SM_WORKS
    return COMPUTED if works else IDLE


def _copies(gpu: GpuSample, memory_before: int | None) -> bool:
    nvlink, pcie = gpu.nvlink, gpu.pcie
    if (nvlink.rx_bytes_per_s or 0.0) + (nvlink.tx_bytes_per_s or 0.0) >= limit.NVLINK_BYTES_PER_S:
        return True
    if (pcie.rx_bytes_per_s or 0.0) + (pcie.tx_bytes_per_s or 0.0) >= limit.PCIE_BYTES_PER_S:
        return True
    used = gpu.memory_used_bytes
    return used is not None and memory_before is not None and abs(used - memory_before) >= limit.MEMORY_BYTES
