"""Computed wrong: what the bitwise checks of a GEMM say. A passed check is no proof of health, and is not called so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mltop.probes.judge.probes.devices import devices_name, suspect
from mltop.probes.judge.values import grouped
from mltop.probes.model.probe import MatmulResult, Suspect
from mltop.probes.model.units import digits

REPLACE = "take it out of service, run it again to confirm, then dcgmi diag -r 3"
_AGAIN = "run the probe again to confirm before accusing it"
MAJORITY_AT_LEAST = 3  # devices that were compared: of two nobody knows which is right


def corrupt(results: Sequence[MatmulResult]) -> list[Suspect]:
    """Devices that gave different bits for the same work within one process: strong evidence."""
    suspects = []
    for result in results:
        if result.corrupt_iterations:
            checked = f"{result.corrupt_iterations} of {result.checked_iterations} checked iterations gave other bits"
            suspects.append(suspect(result, f"gave wrong results: {checked}", REPLACE))
        elif result.upload_intact is False:
            suspects.append(suspect(result, "got inputs with other bits than were sent to it", REPLACE))
    return suspects


def unlike(results: Sequence[MatmulResult]) -> tuple[list[Suspect], list[str]]:
    """Devices whose checksum differs from that of most of their equals, and what else to say about checksums.

    The same bits may be expected of equal model, multiprocessors, versions, shape and type only (cuBLAS: results are
    reproducible for one version, architecture and number of multiprocessors).
    """
    comparable = (result for result in results if result.checksum and not result.corrupt_iterations)
    suspects, notes = [], []
    for group in grouped(comparable, _same_bits).values():
        counts = Counter(result.checksum for result in group)
        if len(counts) < 2:
            continue
        usual, most = counts.most_common(1)[0]
        if len(group) < MAJORITY_AT_LEAST or 2 * most <= len(group):
            unsettled = "gave different results for equal work, and no majority tells which is right"
            notes.append(f"{devices_name(group)} {unsettled}: {_AGAIN}")
            continue
        reason = f"gave another result than {most} equal devices: rerun to confirm"
        suspects += [suspect(result, reason, _AGAIN) for result in group if result.checksum != usual]
    return suspects, notes


def clean_text(results: Sequence[MatmulResult]) -> str:
    """``no error in 12.3 PFLOP``; "" when nothing was checked or something was wrong."""
    checked = sum(result.checked_pflop for result in results)
    wrong = any(result.corrupt_iterations or result.upload_intact is False for result in results)
    if wrong or not any(result.checked_iterations for result in results):
        return ""
    scale, unit = (1.0, "PFLOP") if checked >= 0.1 else (1e3, "TFLOP") if checked >= 1e-4 else (1e6, "GFLOP")
    return f"no error in {digits(scale * checked)} {unit}"


def _same_bits(result: MatmulResult) -> tuple[object, ...]:
    device = (result.kind, result.name, result.multiprocessors, result.threads)
    library = (tuple(sorted(result.versions.items())), result.code_path)
    return (*device, *library, result.dtype, tuple(result.shape), tuple(result.sustained_shape))
