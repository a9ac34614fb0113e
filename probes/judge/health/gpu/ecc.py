"""GPU memory: ECC errors, remapped rows, retired pages.

Aggregate counters are a board's whole life: what they held when we first looked is no news. The exceptions are rules
about the life itself (SRAM errors, remapped rows, retired pages).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mltop.probes.judge.health.moment import HOUR_S, WEEK_S, Moment
from mltop.probes.judge.health.names import gpu_key, named_gpus
from mltop.probes.judge.health.relations import MEMORY_ERRORS, STOPS
from mltop.probes.judge.health.rule import LIMIT, Hit, Limit, OfGpus, device_rule, gpu_fault
from mltop.probes.judge.health.trails import Counted
from mltop.probes.model import Ecc, Sample
from mltop.probes.model.units import counted
from mltop.probes.model.vocabulary import Severity

RETIRED_PAGES = 63
DOUBLE_BIT_PAGES, MORE_IN_A_WEEK = 15, 2
# Cards that are sold with ECC switched off.
_OFF_AS_SOLD = ("GeForce", "RTX")

CORRECTED, CORRECTED_VOLATILE, DOUBLE_BIT = "ecc.corrected", "ecc.corrected_volatile", "pages.double_bit"
_rma_rule = partial(device_rule, action="take the node out of the pool; return the GPU (RMA)", remedy="replace")
_WITH_ITS_XIDS = ("gpu.xid.warn", "gpu.recovery")


def counters(sample: Sample) -> Iterator[Counted]:
    for gpu in sample.gpus:
        count, counter = _corrected(gpu.ecc)
        if count is not None:
            yield gpu_key(gpu), counter, count
        if gpu.retired_pages_double_bit is not None:
            yield gpu_key(gpu), DOUBLE_BIT, gpu.retired_pages_double_bit


def _corrected(ecc: Ecc) -> tuple[int | None, str]:
    """Over the board's life; since the reset where that is not known."""
    if ecc.corrected_aggregate is not None:
        return ecc.corrected_aggregate, CORRECTED
    return ecc.corrected_volatile, CORRECTED_VOLATILE


dbe_volatile = gpu_fault("gpu.ecc.dbe_volatile", "critical", remedy="reset")(
    meaning="data in GPU memory were lost since the last reset",
    threshold="> 0 since the reset",
    source="nvmlDeviceGetTotalEccErrors(uncorrected, volatile)",
    action="end its job and reset it; check row remapping",
    precedence=MEMORY_ERRORS,
    explains=("gpu.remap.pending", "gpu.remap.banks", "gpu.pages.retired", *_WITH_ITS_XIDS),
)(
    OfGpus(
        ("ecc.uncorrected_volatile", "{gpu}: {value} since its last reset"),
        action="end its job, then: sudo nvidia-smi -r -i {index}; check row remapping",
        noun="uncorrectable memory error",
    )
)
sram_threshold = _rma_rule("gpu.ecc.sram_threshold", "critical")(
    meaning="the GPU's caches have had so many errors that NVIDIA takes it back",
    threshold="bThresholdExceeded",
    source="nvmlDeviceGetSramEccErrorStatus (root)",
    precedence=MEMORY_ERRORS,
    explains=("gpu.ecc.sram_aggregate",),
)(OfGpus(("ecc.sram_threshold_exceeded", "{gpu}: SRAM errors passed NVIDIA's RMA limit")))


@device_rule("gpu.ecc.sram_aggregate", "warning", remedy="watch")(
    meaning="uncorrectable errors in the GPU's caches over its life",
    threshold=f"1 to {LIMIT}: info; > {LIMIT}: warning",
    limit=Limit(4, unit="errors over its life"),
    source="nvmlDeviceGetSramEccErrorStatus, else SRAM counters",
    action="a candidate for RMA: watch it",
    needs=("gpu.*.ecc.sram_uncorrected_aggregate",),
)
def sram_aggregate(moment: Moment, limit: float) -> Iterator[Hit]:
    for gpu, name in named_gpus(moment):
        count = gpu.ecc.sram_uncorrected_aggregate
        if count:
            text = f"{name}: {counted(count, 'lifetime SRAM error')}"
            if count > limit:
                yield Hit(name, text)
            else:
                action = f"none; more than {limit:g} make it a candidate for RMA"
                yield Hit(name, text, severity="info", action=action)


@device_rule("gpu.ecc.sbe_rate", "warning", eager=False, remedy="watch")(
    meaning="the GPU corrects more and more memory errors",
    threshold=f"> {LIMIT}* in the last hour; Xid 92 is reported by gpu.xid.warn",
    limit=Limit(100, unit="errors per hour"),
    source="nvmlDeviceGetTotalEccErrors(corrected, aggregate), growth only",
    action="watch it; when the node is free: dcgmi diag -r 3",
    needs=("gpu.*.ecc.corrected_aggregate | gpu.*.ecc.corrected_volatile",),
    grows=("gpus",),
)
def sbe_rate(moment: Moment, limit: float) -> Iterator[Hit]:
    for gpu, name in named_gpus(moment):
        count, counter = _corrected(gpu.ecc)
        if count is None or count <= limit:
            continue
        grown = moment.trails.increase(gpu_key(gpu), counter, HOUR_S)
        if grown.amount > limit:
            text = f"Correctable errors climbing on {name}: {grown.amount:.0f} in {max(1.0, grown.over_s / 60):.0f} min"
            yield Hit(name, text, (f"{count} {'over its life' if counter == CORRECTED else 'since its reset'}",))


@device_rule("gpu.ecc.off", "warning", remedy="reset")(
    meaning="memory errors are not noticed, or ECC will change at the next reset",
    threshold="off, or the pending mode is another one; off on a GeForce or RTX card: info*",
    source="nvmlDeviceGetEccMode",
    action="sudo nvidia-smi -e 1, then reset the GPU",
    needs=("gpu.*.ecc.enabled",),
    whole_node=("ECC is off or about to change on all {count} GPUs", "sudo nvidia-smi -e 1, then reset the GPUs"),
)
def ecc_off(moment: Moment) -> Iterator[Hit]:
    for gpu, name in named_gpus(moment):
        now, pending = gpu.ecc.enabled, gpu.ecc.enabled_pending
        if now is not False and (pending is None or pending == now):
            continue
        if now is False and pending is not True:
            severity: Severity | None = "info" if any(word in (gpu.name or "") for word in _OFF_AS_SOLD) else None
            action = f"sudo nvidia-smi -i {gpu.index} -e 1, then reset the GPU"
            yield Hit(name, f"ECC is off on {name}", severity=severity, action=action)
        elif pending:
            yield Hit(name, f"ECC of {name} goes on at its next reset", action=f"sudo nvidia-smi -r -i {gpu.index}")
        elif now is not None:
            action = f"to keep it: sudo nvidia-smi -i {gpu.index} -e 1"
            yield Hit(name, f"ECC of {name} goes off at its next reset", action=action, remedy="none")


remap_pending = device_rule("gpu.remap.pending", "warning", remedy="reset")(
    meaning="a bad memory row (channel, TPC) is replaced at the next reset; until then the job is safe",
    threshold="pending",
    source="nvmlDeviceGetRemappedRows, nvmlDeviceGetRepairStatus",
    action="finish the job, then reset the GPU",
    precedence=MEMORY_ERRORS,
    explains=("gpu.xid.warn", "gpu.remap.banks"),
)(
    OfGpus(
        ("remap.pending", "Row remap pending on {gpu}"),
        ("remap.repair_pending", "Repair of a memory channel or TPC pending on {gpu}"),
        action="finish the job, then: sudo nvidia-smi -r -i {index}",
    )
)
remap_failed = _rma_rule("gpu.remap.failed", "critical")(
    meaning="a bad memory row could not be replaced",
    threshold="failure",
    source="nvmlDeviceGetRemappedRows",
    precedence=MEMORY_ERRORS,
    explains=("gpu.remap.pending", "gpu.remap.banks", "gpu.remap.count", *_WITH_ITS_XIDS),
    explains_ranks=STOPS,
)(OfGpus(("remap.failed", "Row remap failed on {gpu}: memory cannot be repaired")))


@device_rule("gpu.remap.banks", "warning")(
    meaning="memory banks have no or few spare rows left",
    threshold="banks with none left > 0: critical*; with few left > 0: warning*",
    source="nvmlDeviceGetRowRemapperHistogram",
    action="plan an RMA",
    needs=("gpu.*.remap.banks.none", "gpu.*.remap.banks.low"),
    explains=("gpu.remap.pending", "gpu.remap.count"),
)
def remap_banks(moment: Moment) -> Iterator[Hit]:
    for gpu, name in named_gpus(moment):
        none, low = gpu.remap.banks.none, gpu.remap.banks.low
        if none:
            text = f"{name}: {counted(none, 'memory bank')} without spare rows"
            yield Hit(name, text, (f"{low} more with few",) if low else (), "critical", remedy="replace")
        elif low:
            yield Hit(name, f"{name}: {counted(low, 'memory bank')} with few spare rows")


remap_count = _rma_rule("gpu.remap.count", "warning")(
    meaning="so many rows were replaced that the next failure is near",
    threshold=f"≥ {LIMIT} rows for uncorrectable errors",
    limit=Limit(512, unit="rows"),
    source="nvmlDeviceGetRemappedRows; DCGM health",
)(OfGpus(("remap.uncorrected", "{gpu}: {value} remapped for uncorrectable errors"), noun="row"))


@_rma_rule("gpu.pages.retired", "warning")(
    meaning="memory pages are retired (GPUs before Ampere)",
    threshold=f"pending: warning; ≥ {RETIRED_PAGES}, or > {DOUBLE_BIT_PAGES} for double bit errors and "
    f"{MORE_IN_A_WEEK} more within a week: critical",
    source="nvmlDeviceGetRetiredPages; DCGM health",
    needs=("gpu.*.retired_pages", "gpu.*.retired_pages_double_bit", "gpu.*.retired_pages_pending"),
    precedence=MEMORY_ERRORS,
    explains=("gpu.xid.warn",),
)
def pages_retired(moment: Moment) -> Iterator[Hit]:
    """Pre-Ampere boards retire pages where newer ones remap rows."""
    for gpu, name in named_gpus(moment):
        pages, double_bit = gpu.retired_pages, gpu.retired_pages_double_bit
        if pages is not None and pages >= RETIRED_PAGES:
            yield Hit(name, f"{name}: {counted(pages, 'page')} retired", severity="critical", key="retired")
        elif double_bit is not None and double_bit > DOUBLE_BIT_PAGES:
            grown = moment.trails.increase(gpu_key(gpu), DOUBLE_BIT, WEEK_S)
            if grown.amount >= MORE_IN_A_WEEK:
                text = f"{name}: {double_bit} pages retired for double bit errors, {grown.amount:.0f} of them this week"
                yield Hit(name, text, severity="critical", key="retired")
        if gpu.retired_pages_pending:
            action = f"finish the job, then: sudo nvidia-smi -r -i {gpu.index}"
            yield Hit(name, f"{name}: page retirement pending", action=action, key="pending", remedy="reset")
