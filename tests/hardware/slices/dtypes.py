"""Every data type of mltop's matmul probe: which it tries on this GPU against what torch can, and each rate.

What "can" means is shown, not looked up: a GPU without TF32 gives the bits of full precision, and one whose tensor
cores know no bfloat16 multiplies it no faster than float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.hardware.checks import Check, Told, compare, not_tried, ratio
from tests.hardware.context import Context
from tests.hardware.loads import free_gpu
from tests.hardware.plain import Plain, plain
from tests.hardware.probing import Answer, library_of, matmul_options, probe

DTYPES = ("fp8", "fp16", "tf32", "bf16", "fp32")  # in order of value, for short runs
OTHERS = {
    "fp64": "mltop probes no fp64: training does not use it",
    "int8": "mltop probes no int8",
    "fp4": "mltop probes no fp4",
}
USUAL = [4096, 4096, 4096]
STEADY = [8192, 8192, 8192]
# Of float32's rate: where tensor cores multiply bfloat16 it is twice (RTX 30) to sixteen times; emulated it is below.
TENSOR_CORES = 1.3
# The same shape and library minutes apart: some degrees more are some clock less at the power limit. The burst rests
# between its GEMMs and meets the limit less, but has single GEMMs of 0.1 ms, whose launch shows.
BURST_SAME, SUSTAINED_SAME = 0.05, 0.05
WARM_S, RATES_S = 1.0, 3.0
LIMIT_S = 240.0
PROBE_S, PLAIN_S = 20.0, 8.0  # of one data type: torch's import and all stages; a warm-up and both rates
CHECKS: tuple[str, ...] = tuple(f"{dtype}{what}" for dtype in DTYPES for what in ("", " (burst)", " (sustained)"))


@dataclass
class Measured:
    """One GPU; mltop's answers by data type."""

    index: int
    uuid: str
    answers: dict[str, Answer] = field(default_factory=dict)
    plain: Plain = field(default_factory=Plain)

    def result(self, dtype: str) -> dict[str, Any]:
        return self.answers[dtype].result(self.uuid) or {}


def run(context: Context) -> Iterator[Check]:
    yield from checks_of(measured(context))


def measured(context: Context) -> Measured:
    gpu = free_gpu(context)
    found = Measured(gpu["index"], gpu["uuid"])
    for dtype in DTYPES:
        if found.answers and context.left_s() < PROBE_S + PLAIN_S * (1 + len(found.answers)):
            break  # what mltop has measured is worth nothing without plain torch beside it
        found.answers[dtype] = probe(context, "matmul", [found.uuid], matmul_options(dtype))
        if found.answers[dtype].began("device") is None:  # what a GPU cannot do is told later
            found.answers[dtype].check_begun()
        free_gpu(context, found.uuid)  # until what ended has left the driver's lists
    shapes = {
        dtype: [found.result(dtype).get("shape") or USUAL, found.result(dtype).get("sustained_shape") or STEADY]
        for dtype in found.answers
    }
    libraries = {dtype: library_of(found.result(dtype)) for dtype in found.answers}
    order = {"task": "rates", "shapes": shapes, "libraries": libraries, "warm_s": WARM_S, "rates_s": RATES_S}
    found.plain = plain(context, "plain_gemm.py", order, [found.uuid], LIMIT_S)
    context.record_json("dtypes.json", asdict(found))
    return found


def checks_of(found: Measured) -> Iterator[Check]:
    for dtype in DTYPES:
        if dtype in found.answers:
            yield _tried(found, dtype)
            yield from _rates(found, dtype)
        else:
            names = (f"{dtype}{what}" for what in ("", " (burst)", " (sustained)"))
            yield from (not_tried(name, "there was no time for it: more --minutes", gpu=found.index) for name in names)
    for dtype, why in OTHERS.items():
        yield not_tried(dtype, why, gpu=found.index)


def _tried(found: Measured, dtype: str) -> Check:
    """Whether mltop has a rate against whether this GPU can."""
    can = _can(found, dtype)
    ours = found.result(dtype).get("sustained_tflops") is not None
    words = {True: "multiplies it", False: "does not"}
    theirs = Told(words[can.value], can.why) if can.value is not None else can
    check = compare(dtype, words[ours], theirs, gpu=found.index, source="plain torch")
    why = can.why if ours else f"mltop: {found.answers[dtype].why_nothing}; {can.why}"
    return Check(check.name, check.outcome, check.ours, check.theirs, why, details=check.details)


def _can(found: Measured, dtype: str) -> Told:
    said = found.plain.of("rates", dtype=dtype)
    if said is None:
        return found.plain.told("rates", "host", dtype=dtype)
    if "out of memory" in said.get("why", ""):
        return Told(why=f"plain torch: {said['why']}")
    if "why" in said:
        return Told(False, f"plain torch: {said['why']}")
    if dtype == "tf32":
        differs = found.plain.told("tf32", "differs")
        return differs if differs.value is not False else Told(False, "it gives the bits of float32")
    if dtype == "bf16":
        full = found.plain.told("rates", "host", dtype="fp32")
        if full.value is not None and said["host"] < TENSOR_CORES * full.value:
            return Told(False, f"{said['host']:.3g} TFLOPS, float32 {full.value:.3g}: that is no tensor core")
    return Told(True)


def _rates(found: Measured, dtype: str) -> Iterator[Check]:
    """Where the GPU cannot there is nothing to compare."""
    result, can = found.result(dtype), _can(found, dtype)
    rows = (
        ("burst", "burst_tflops", found.plain.mean(dtype, 0), BURST_SAME, "the same shape under the same protocol"),
        ("sustained", "sustained_tflops", found.plain.sustained(dtype), SUSTAINED_SAME, "the host's clock"),
    )
    for what, key, theirs, slack, why in rows:
        name = f"{dtype} ({what})"
        if can.value is not True:
            yield not_tried(name, can.why or f"mltop: {found.answers[dtype].why_nothing}", gpu=found.index)
            continue
        none = found.answers[dtype].why_nothing
        about = f"plain torch, {why}, ±{slack:.0%}"
        yield ratio(name, result.get(key), theirs, 1 - slack, 1 + slack, about, "TFLOPS", none, gpu=found.index)
