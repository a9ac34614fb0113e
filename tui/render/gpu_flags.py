"""What a GPU's memory has behind it, as flags: nothing where all is well."""

from __future__ import annotations

from mltop.probes.model import GpuSample
from mltop.tui.render.cells import Cell
from mltop.tui.render.units import count


def flags(gpu: GpuSample) -> list[tuple[str, str]]:
    """(text, style), the gravest first: "remap failed", "ecc 2", "remap!", "row 512", "corr 12k"."""
    ecc, remap = gpu.ecc, gpu.remap
    found: list[tuple[str, str]] = []
    if remap.failed:
        found.append(("remap failed", "crit"))
    if ecc.sram_threshold_exceeded:
        found.append(("sram!", "crit"))
    if ecc.uncorrected_volatile:
        found.append((f"ecc {count(ecc.uncorrected_volatile)}", "crit"))
    if gpu.recovery_action not in (None, "none"):
        found.append((f"wants {(gpu.recovery_action or '').replace('_', ' ')}", "crit"))
    if remap.pending or remap.repair_pending or gpu.retired_pages_pending:
        found.append(("remap!", "warn"))
    if remap.banks.none:
        found.append((f"bank {count(remap.banks.none)}", "warn"))
    rows = (remap.uncorrected or 0) + (remap.corrected or 0)
    if rows:
        found.append((f"row {count(rows)}", ""))
    if gpu.retired_pages:
        found.append((f"page {count(gpu.retired_pages)}", ""))
    if ecc.corrected_volatile:
        found.append((f"corr {count(ecc.corrected_volatile)}", ""))
    return found


def flags_cell(gpu: GpuSample) -> Cell:
    """All flags in the style of the gravest; blank: none."""
    found = flags(gpu)
    return Cell(" ".join(text for text, _ in found), found[0][1] if found else "")
