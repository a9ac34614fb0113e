"""What of a sample goes out every second, and what only with the whole one every five seconds ("slow" frames).

Ports, NVLinks one by one, error counters, identities: three quarters of a sample hardly ever change. The agent sends a
whole sample now and then (``WholeSamples``), in between light ones; the hub completes these (``complete``).
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from mltop.probes.model import GpuSample, HostSample, Nvlink, Pcie, RankSample, Sample
from mltop.probes.model.sample import Reads

EVERY_S = 4.5  # five seconds at one sample per second, with room for its jitter

# Fields that only whole samples have. What is listed nowhere goes out every second.
SLOW_SAMPLE = ("links", "pci", "kernel_events", "counters_read_at")
SLOW_HOST = (
    "hostname",
    "kernel",
    "filesystems",
    "cgroups",
    "services",
    "modules",
    "governor",
    "clocksource",
    "nvidia_driver",
    "lustre_health",
    "is_virtual",
    "is_confined",
    # These are read every ten seconds or less often.
    "cpu_count",
    "swap_total_bytes",
    "shm_total_bytes",
    "huge_pages_total_bytes",
    "huge_pages_free_bytes",
    "memory_errors_corrected",
    "memory_errors_uncorrected",
    "open_files",
    "open_files_max",
    "ptrace_scope",
    "clock_synchronized",
    "clock_error_s",
)
SLOW_GPU = (
    "name",
    "pci_bus_id",
    "power_limit_default_w",
    "memory_clock_max_mhz",
    "temperature_slowdown_c",
    "memory_temperature_max_c",
    "ecc",
    "remap",
    "retired_pages",
    "retired_pages_double_bit",
    "retired_pages_pending",
    "recovery_action",
    "fabric",
    "mig_enabled",
    "mig_pending",
    "persistence",
    "compute_mode",
    "performance_state",
    "driver",
    "cuda",
    "gsp_firmware",
    "vbios",
    "serial",
    "processes",
)
SLOW_PCIE = ("gen_max", "width_max", "replay_count", "errors")
SLOW_NVLINK = ("links",)
SLOW_RANK = (
    "local_rank",
    "local_world_size",
    "master_address",
    "launcher",
    "user",
    "command",
    "python",
    "cpus_allowed",
    "numa_nodes",
    "memlock_limit_bytes",
    "open_files",
    "open_files_limit",
    "cgroup",
    "settings",
)
_SLOW: dict[type, frozenset[str]] = {
    Sample: frozenset(SLOW_SAMPLE),
    HostSample: frozenset(SLOW_HOST),
    GpuSample: frozenset(SLOW_GPU),
    Pcie: frozenset(SLOW_PCIE),
    Nvlink: frozenset(SLOW_NVLINK),
    RankSample: frozenset(SLOW_RANK),
}
_NOTHING: frozenset[str] = frozenset()
_told: dict[type, tuple[tuple[str, Any], ...]] = {}


def light_fields(record: Any) -> dict[str, Any]:
    """What goes out of a record: no slow field, and none that holds its default, which every decoder knows."""
    kind = type(record)
    told = _told.get(kind)
    if told is None:
        told = _told[kind] = _names_and_defaults(kind)
    values = vars(record)
    return {name: value for name, default in told if (value := values[name]) != default}


def _names_and_defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """Of all fields that are not slow; ``...``, which equals no value, for those without a default."""
    slow = _SLOW.get(kind, _NOTHING)
    return tuple((item.name, _default(item)) for item in fields(kind) if item.name not in slow)


def _default(item: Field[Any]) -> Any:
    """Records as defaults differ from any value: their own fields are left out instead."""
    if item.default is not MISSING:
        return item.default
    made = item.default_factory() if item.default_factory is not MISSING else ...
    return ... if is_dataclass(made) else made


def complete(sample: Sample, whole: Sample) -> None:
    """Fill in what a light sample leaves to the whole one before it. What both share is not to be changed."""
    _take(sample, whole, SLOW_SAMPLE)
    _take(sample.host, whole.host, SLOW_HOST)
    gpus = {gpu.index: gpu for gpu in whole.gpus}
    for gpu in sample.gpus:
        known = gpus.get(gpu.index)
        if known is not None and known.uuid == gpu.uuid:
            _complete_gpu(gpu, known)
    ranks = {rank.pid: rank for rank in whole.ranks}
    for rank in sample.ranks:
        if rank.pid in ranks:
            _take(rank, ranks[rank.pid], SLOW_RANK)


def _complete_gpu(gpu: GpuSample, known: GpuSample) -> None:
    _take(gpu, known, SLOW_GPU)
    _take(gpu.pcie, known.pcie, SLOW_PCIE)
    _take(gpu.nvlink, known.nvlink, SLOW_NVLINK)


def _take(record: Any, known: Any, names: tuple[str, ...]) -> None:
    fields = vars(record)
    for name in names:
        fields[name] = getattr(known, name)


class WholeSamples:
    """Sent every five seconds, and at once when something that matters is not as in the last one."""

    def __init__(self) -> None:
        self._reads = Reads()
        self._sent_at = float("-inf")
        self._sent: object = None

    def is_due(self, sample: Sample) -> bool:
        """Whether to send this one whole; then it counts as sent."""
        self._reads.see(sample)
        # That all counters were read a second time: somebody may wait to see whether they grow.
        all_twice = all(map(self._reads.twice, sample.counters_read_at))
        matters = (all_twice, *_what_matters(sample))
        if matters == self._sent and 0 <= sample.sampled_at - self._sent_at < EVERY_S:
            return False
        self._sent_at, self._sent = sample.sampled_at, matters
        return True


def _what_matters(sample: Sample) -> tuple[object, ...]:
    newest = sample.kernel_events[-1].at if sample.kernel_events else None
    return (
        len(sample.kernel_events),
        newest,
        [(link.device, link.port, link.state, link.error) for link in sample.links],
        len(sample.pci),
        [(gpu.uuid, gpu.state, gpu.recovery_action, gpu.mig_enabled) for gpu in sample.gpus],
        [gpu.remap for gpu in sample.gpus],
        [gpu.ecc.uncorrected_volatile for gpu in sample.gpus],
        [rank.pid for rank in sample.ranks],
        [(gap.what, gap.kind) for gap in sample.gaps],
    )
