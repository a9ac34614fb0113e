"""The Prometheus text of dcgm-exporter: the profiling metrics in it, by GPU."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from mltop.probes.collect.dcgm.rows import Row

PREFIX = "DCGM_FI_PROF_"
# Without the prefix. The second of each pair is its name since DCGM 4.6 (dcgm_fields.h).
NAMES = {
    "SM_ACTIVE": "sm_active",
    "SM_UTIL_RATIO": "sm_active",
    "SM_OCCUPANCY": "sm_occupancy",
    "SM_OCCUPANCY_RATIO": "sm_occupancy",
    "PIPE_TENSOR_ACTIVE": "tensor_active",
    "TENSOR_UTIL_RATIO": "tensor_active",
    "DRAM_ACTIVE": "dram_active",
    "DRAM_UTIL_RATIO": "dram_active",
    "PIPE_FP64_ACTIVE": "fp64_active",
    "FP64_UTIL_RATIO": "fp64_active",
    "PIPE_FP32_ACTIVE": "fp32_active",
    "FP32_UTIL_RATIO": "fp32_active",
    "PIPE_FP16_ACTIVE": "fp16_active",
    "FP16_UTIL_RATIO": "fp16_active",
}
# Label values may hold any character, quotes and backslashes escaped.
_LINE = re.compile(
    PREFIX + r'(\w+)\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}\s+(\S+)(?:\s+(-?\d+))?\s*', re.ASCII
)  # name, labels, value, unix ms
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)


def is_of_dcgm(text: str) -> bool:
    """Whether it is dcgm-exporter that speaks, with or without profiling metrics."""
    return text.startswith("DCGM_") or "\nDCGM_" in text or "# HELP DCGM_" in text


def parse(text: str, now: float, now_s: float) -> list[Row]:
    """One row per GPU and GPU instance. ``now``: unix s, for lines that carry a time; ``now_s``: monotonic."""
    rows: dict[tuple[str, str, str, str], Row] = {}
    for name, labels, value, at in _samples(text):
        # "uuid" is the label in the exporter's old namespace (--use-old-namespace).
        uuid = labels.get("UUID") or labels.get("uuid") or ""
        key = (uuid, labels.get("pci_bus_id", ""), labels.get("gpu", ""), labels.get("GPU_I_ID", ""))
        row = rows.get(key)
        if row is None:
            row = rows[key] = Row(key[0], key[1], _number(key[2]), _number(key[3]), now_s)
        if at is not None:
            row.taken_s = min(row.taken_s, now_s - max(0.0, now - at))
        row.put(name, value)
    return list(rows.values())


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float, float | None]]:
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        found = _LINE.fullmatch(line)
        field = NAMES.get(found.group(1)) if found else None
        if found is None or field is None:
            continue
        with contextlib.suppress(ValueError):  # a line that is none
            at = found.group(4)
            yield field, dict(_LABEL.findall(found.group(2))), float(found.group(3)), int(at) / 1000 if at else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
