"""What is read from every GPU at every poll, with seven calls in the usual case: the rows of FAST, memory, throttle
time and NVLink's traffic.
"""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import Any

from mltop.probes.collect.nvml import codes
from mltop.probes.collect.nvml.calls import NvmlError, UnreadError
from mltop.probes.collect.nvml.codes import Problem, Reason, implausible, unsupported
from mltop.probes.collect.nvml.device import ASK_AGAIN_S, Device, Reading, Structure, not_blank
from mltop.probes.collect.nvml.fields import ALL_LINKS, FieldRequest, FieldValues, Meter, counters
from mltop.probes.collect.nvml.readers import nvlink
from mltop.probes.collect.nvml.readers.table import FAST, fields_of, read_rows
from mltop.probes.collect.sysfile import number_after, read_known
from mltop.probes.model.nvml_fields import GAIN_FACTOR, GAIN_SLACK_S, NEWER, throttle_ns_fields
from mltop.probes.system import paths

SAME_MEMORY = 0.001  # of the total: no two memories are so equal
UNIFIED_MEMORY = unsupported("the GPU has no memory of its own: it shares the host's (unified memory)")
UNKNOWN_NUMBERS = Problem("which fields of NVML are these counters depends on the driver's version, which is not known")
_MEMORY = Structure("nvmlDeviceGetMemoryInfo_v2", "c_nvmlMemory_v2_t", "nvmlMemory_v2")


class Batch:
    """The batch of one GPU and what is kept of its traffic. Whether it has NVLinks is known before the first read."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._request: FieldRequest | None = None

    def request(self, device: Device) -> FieldRequest:
        if self._request is None:
            entries = [(field, 0) for field in (*fields_of(FAST), *throttle_ns_fields(device.numbering))]
            if device.state(nvlink.Links).count:
                entries += [(field, ALL_LINKS) for field in nvlink.TRAFFIC_FIELDS]
            self._request = FieldRequest(entries)
        return self._request


def read_fast(device: Device) -> Reading:
    """The fast tier."""
    state, links = device.state(Batch), device.state(nvlink.Links)
    batch = state.request(device).read(device)
    at_s = time.monotonic()
    reading = read_rows(FAST, device, batch)
    reading.attempt(("memory_used_bytes", "memory_total_bytes"), partial(read_memory, device))
    reading.attempt(("throttle_ns",), partial(read_throttle_ns, device, batch, reading))
    if links.count:
        links.counts_traffic = nvlink.read_traffic(state.meter, batch, at_s, reading)
    return reading


def read_memory(device: Device) -> dict[str, Any]:
    """Without what the driver reserves for itself (which version 1 of the call counts as used).

    GPUs with memory of their own support it: integrated ones (GB10, Thor, Orin) have none to report, or report the
    host's (XuehaiPan/nvitop#208).
    """
    try:
        memory = _MEMORY.read(device)
    except NvmlError as failure:
        if failure.code == codes.NOT_SUPPORTED:
            raise UnreadError(UNIFIED_MEMORY) from None
        raise
    if abs(memory.total - host_memory_bytes()) <= SAME_MEMORY * memory.total:
        raise UnreadError(UNIFIED_MEMORY)
    return {
        "memory_used_bytes": not_blank("used memory", memory.used),
        "memory_total_bytes": not_blank("total memory", memory.total),
    }


@lru_cache(maxsize=1)
def host_memory_bytes() -> int:
    """0 where it is not known."""
    return 1024 * (number_after(read_known(paths.proc("meminfo")) or b"", b"MemTotal:") or 0)


class Throttle:
    """What is kept about one GPU's counters of throttle time."""

    def __init__(self) -> None:
        self.meter = Meter()
        # By reason, monotonic s: what it counted when it was first trusted; until when it is not trusted, and why.
        self._since: dict[str, tuple[int, float]] = {}
        self._doubted: dict[str, tuple[float, Problem]] = {}

    def timed(self, counts_ns: dict[str, int], reading: Reading) -> dict[str, Any]:
        """``throttle_ns`` and ``throttle_share``, of the time since the read before, by reason, 0..1."""
        at_s = time.monotonic()
        share: dict[str, float] = {}
        pending: dict[str, Reason] = {}
        for reason, nanoseconds in list(counts_ns.items()):
            self._doubt(reason, nanoseconds, at_s)
            until_s, problem = self._doubted.get(reason, (0.0, None))
            if problem is not None and at_s < until_s:
                del counts_ns[reason]
                reading.problems[f"throttle_ns.{reason}"] = problem
                continue
            try:
                share[reason] = min(1.0, self.meter.per_s(reason, nanoseconds, at_s) / 1e9)
            except UnreadError as error:
                pending[reason] = error.reason
        if counts_ns and not share:  # one problem instead of one for each
            reading.problems["throttle_share"] = next(iter(pending.values()))
        else:
            reading.problems.update({f"throttle_share.{reason}": problem for reason, problem in pending.items()})
        return {"throttle_ns": counts_ns, "throttle_share": share}

    def _doubt(self, reason: str, nanoseconds: int, at_s: float) -> None:
        """Stop trusting a counter that has gained more than time has passed since it was first trusted."""
        first_ns, since_s = self._since.setdefault(reason, (nanoseconds, at_s))
        if nanoseconds < first_ns:
            self._since[reason] = (nanoseconds, at_s)  # it started anew
            return
        gain_s, passed_s = (nanoseconds - first_ns) / 1e9, at_s - since_s
        if gain_s > GAIN_FACTOR * passed_s + GAIN_SLACK_S:
            why = f"the driver answered {nanoseconds} ns, {gain_s:.1f} s more than {passed_s:.1f} s before"
            self._doubted[reason] = (at_s + ASK_AGAIN_S, implausible(f"{why}, which is not a time"))
            del self._since[reason]


def read_throttle_ns(device: Device, batch: FieldValues, reading: Reading) -> dict[str, Any]:
    """Nanoseconds since the driver was loaded; a problem for each reason that is unknown."""
    fields = throttle_ns_fields(device.numbering)
    counts_ns = counters(batch, "throttle_ns", fields, reading)
    if counts_ns:
        unknown = set(NEWER) - set(fields.values())
        reading.problems.update({f"throttle_ns.{reason}": UNKNOWN_NUMBERS for reason in unknown})
    return device.state(Throttle).timed(counts_ns, reading)
