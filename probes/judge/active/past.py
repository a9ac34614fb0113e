"""What of a report is worth keeping, and under which name it is found again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mltop.probes.judge.active.nodes import folded
from mltop.probes.model.probe import (
    CollectiveResult,
    CopiesResult,
    DeviceResult,
    MatmulResult,
    MemoryResult,
    PastResult,
    ProbeReport,
)

_COPIES = ("to_device", "to_host", "to_device_together", "to_host_together")


def past_of(report: ProbeReport) -> list[PastResult]:
    """Every value that later runs compare themselves with; nothing of a simulation, of pairs, or of corrupt results.

    ``at`` is the report's start (unix s).
    """
    if report.simulated:
        return []
    found: list[PastResult] = []
    for result in report.results:
        if isinstance(result, MatmulResult):
            found += _kept(report, result, _of_matmul(result))
        elif isinstance(result, (MemoryResult, CopiesResult)) and result.intact is False:
            continue
        elif isinstance(result, MemoryResult):
            found += _kept(report, result, [(memory_key(result), result.copy_bytes_per_s)])
        elif isinstance(result, CopiesResult):
            rates = ((way, getattr(result, f"{way}_bytes_per_s")) for way in _COPIES)
            found += _kept(report, result, [(copies_key(result, way), rate) for way, rate in rates])
        elif isinstance(result, CollectiveResult) and result.busbw_bytes_per_s is not None and not result.wrong:
            key, busbw = collective_key(result), result.busbw_bytes_per_s
            found.append(PastResult(group_subject(result), key, busbw, report.started_at))
    return found


def subject(result: DeviceResult) -> str:
    """``PastResult.uuid`` of a device: its UUID; processors have none and are those of their node."""
    return result.uuid if result.kind != "cpu" and result.uuid not in ("", "cpu") else cpu_subject(result.node)


def cpu_subject(node: str) -> str:
    """``PastResult.uuid`` of a node's processors."""
    return f"cpu of {node}"


def group_subject(result: CollectiveResult) -> str:
    """``PastResult.uuid`` of a collective: the nodes that took part."""
    return f"nodes {folded(result.nodes, 10_000)}"


def matmul_key(result: MatmulResult, what: str) -> str:
    """``matmul bf16 sustained 8192x8192x8192``, ``matmul bf16 burst``: the burst's shape is the best one found.

    On processors the threads belong to it.
    """
    shape = "x".join(map(str, result.sustained_shape)) if what == "sustained" else ""
    threads = f"{result.threads} threads" if result.kind == "cpu" and result.threads else ""
    return " ".join(filter(None, ("matmul", result.dtype, what, shape, threads)))


def memory_key(result: MemoryResult) -> str:
    """On processors the threads belong to it."""
    threads = f" {result.threads} threads" if result.kind == "cpu" and result.threads else ""
    return f"memory copy {result.size_bytes}{threads}"


def copies_key(result: CopiesResult, way: str) -> str:
    """``way``: to_device, to_host, to_device_together, to_host_together."""
    return f"copies {way} {result.size_bytes}"


def collective_key(result: CollectiveResult) -> str:
    return f"{result.collective} {result.backend} {result.size_bytes} ranks {result.ranks}"


def _of_matmul(result: MatmulResult) -> Iterator[tuple[str, float | None]]:
    if result.corrupt_iterations or result.upload_intact is False:
        return
    yield matmul_key(result, "sustained"), result.sustained_tflops
    yield matmul_key(result, "burst"), result.burst_tflops


def _kept(
    report: ProbeReport, result: DeviceResult, values: Iterable[tuple[str, float | None]]
) -> Iterator[PastResult]:
    for key, value in values:
        if value is not None and value > 0:
            yield PastResult(subject(result), key, value, report.started_at, dict(result.versions))
