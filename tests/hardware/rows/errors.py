"""Errors of memory and what is repaired."""

from __future__ import annotations

from tests.hardware.asked import Asked, query, xml
from tests.hardware.checks import Told
from tests.hardware.rows.row import Row, flag, number

ECC = (
    Row("ecc.enabled", "nvidia-smi ecc.mode.current", query("ecc.mode.current", convert=flag)),
    Row("ecc.enabled_pending", "nvidia-smi ecc.mode.pending", query("ecc.mode.pending", convert=flag)),
    *(
        Row(
            f"ecc.{kind}_{since}",
            f"nvidia-smi ecc.errors.{kind}.{since}.total",
            query(f"ecc.errors.{kind}.{since}.total", convert=number),
            "moves",
        )
        for kind in ("corrected", "uncorrected")
        for since in ("volatile", "aggregate")
    ),
    Row(
        "ecc.sram_uncorrected_aggregate",
        "nvidia-smi ecc.errors.uncorrected.aggregate.sram",
        query("ecc.errors.uncorrected.aggregate.sram", convert=number),
        "moves",
    ),
    Row(
        "ecc.sram_threshold_exceeded",
        "nvidia-smi -q sram_threshold_exceeded",
        xml("ecc_errors/aggregate/sram_threshold_exceeded", convert=flag),
    ),
)


def either_pending(asked: Asked, index: int) -> Told:
    found = [xml(f"ecc_errors/{what}_repair_pending", convert=flag)(asked, index) for what in ("channel", "tpc")]
    missing = next((one for one in found if one.value is None), None)
    return missing or Told(any(one.value for one in found))


_RETIRED = [query(f"retired_pages.{kind}.count", convert=number) for kind in ("single_bit_ecc", "double_bit")]


def both_retired(asked: Asked, index: int) -> Told:
    found = [read(asked, index) for read in _RETIRED]
    missing = next((one for one in found if one.value is None), None)
    return missing or Told(sum(one.value for one in found))


REPAIR = (
    Row("remap.corrected", "nvidia-smi -q remapped_row_corr", xml("remapped_rows/remapped_row_corr", convert=number)),
    Row("remap.uncorrected", "nvidia-smi -q remapped_row_unc", xml("remapped_rows/remapped_row_unc", convert=number)),
    Row("remap.pending", "nvidia-smi -q remapped_row_pending", xml("remapped_rows/remapped_row_pending", convert=flag)),
    Row("remap.failed", "nvidia-smi -q remapped_row_failure", xml("remapped_rows/remapped_row_failure", convert=flag)),
    Row("remap.repair_pending", "nvidia-smi -q channel and tpc_repair_pending", either_pending),
    *(
        Row(
            f"remap.banks.{name}",
            f"nvidia-smi -q row_remapper_histogram_{name}",
            xml(f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}", convert=number),
            unit="banks",
        )
        for name in ("max", "high", "partial", "low", "none")
    ),
    Row(
        "retired_pages_double_bit",
        "nvidia-smi retired_pages.double_bit.count",
        query("retired_pages.double_bit.count", convert=number),
    ),
    Row(
        "retired_pages",
        "nvidia-smi retired_pages.single_bit_ecc.count and .double_bit.count",
        both_retired,
    ),
    Row("retired_pages_pending", "nvidia-smi retired_pages.pending", query("retired_pages.pending", convert=flag)),
)
