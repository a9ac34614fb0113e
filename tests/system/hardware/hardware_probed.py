"""What the slices about probes measure, made up: an H100 of which mltop and plain torch say the same.

Each is made anew with every call, so that lies can be put into it.
"""

from __future__ import annotations

import json
from typing import Any

from tests.hardware.plain import Plain
from tests.hardware.probing import Answer, Event
from tests.hardware.refusing import Refused
from tests.hardware.slices import bits, copies, dtypes, probes
from tests.hardware.watching import Watched
from tests.system.hardware.faults.fault import Lie

UUID, OTHER = "GPU-5a4e0001-0000-4000-8000-000000000000", "GPU-5a4e0001-0000-4000-8000-000000000001"
SHAPE, STEADY = [2048, 2048, 13312], [8192, 8192, 8192]
BURST = {"bf16": 790.0, "fp16": 780.0, "tf32": 430.0, "fp32": 50.0, "fp8": 1400.0}
SUSTAINED = {"bf16": 650.0, "fp16": 640.0, "tf32": 400.0, "fp32": 49.0, "fp8": 1200.0}
STAGES = {"device": 5.0, "warm": 6.0, "scan": 8.0, "burst": 11.0, "sustained": 12.0, "check": 15.0}
NO_TENSOR_CORES = "NVIDIA A100 has compute capability 8.0: FP8 tensor cores came with 8.9 (Ada and Hopper)"


def answer(kind: str, *results: dict[str, Any], **stages: float) -> Answer:
    """Of the first GPU but for results that name another; ``stages``: when they began, beside STAGES."""
    times = {**STAGES, **stages}
    events = [Event(at_s, "stage", name) for name, at_s in times.items()]
    events += [Event(20.0, "result", device=UUID, data={"uuid": UUID, **result}) for result in results]
    return Answer(kind, 0.0, events, ended_s=21.0)


def matmul(dtype: str = "bf16", **more: Any) -> dict[str, Any]:
    phase = {"name": "sustained", "seconds": 3.0, "power_w": 690.0, "power_limit_w": 700.0, "sm_clock_mhz": 1400.0}
    known: dict[str, Any] = {
        "dtype": dtype,
        "shape": SHAPE,
        "iterations": 1201,
        "burst_tflops": BURST[dtype],
        "sustained_shape": STEADY,
        "sustained_tflops": SUSTAINED[dtype],
        "phases": [phase],
        "gaps": {},
        "code_path": "cuBLASLt",
        "corrupt_iterations": 0,
        "checked_iterations": 400,
        "checked_pflop": 0.5,
        "checksum": "2841d4c9fc84307f",
        "upload_intact": True,
    }
    return {**known, **more}


def watch(**row: str) -> Watched:
    return Watched([dict(row) for _ in range(5)])


def rates(dtype: str) -> dict[str, Any]:
    steady = SUSTAINED[dtype]
    return {"event": "rates", "dtype": dtype, "means": [BURST[dtype], BURST[dtype]], "host": steady, "gpu": steady}


def probes_measured() -> probes.Measured:
    row = {"clocks.sm": "1400", "power.draw.instant": "690.00", "enforced.power.limit": "700.00"}
    found = probes.Measured(0, UUID, answer("matmul", matmul()), watch(**row))
    finals = [
        {"shape": [4096, 4096, 8192], "library": "torch's choice", "tflops": 793.0},
        {"shape": SHAPE, "library": "torch's choice", "tflops": 780.0},
        {"shape": SHAPE, "library": "cublaslt", "tflops": 790.0},
    ]
    scan = {"event": "scan", "best": finals[0], "finals": finals, "shapes": 2400, "grid": 4096, "seconds": 240.0}
    found.plain = Plain([{"event": "ready"}, scan, rates("bf16")])
    return found


def refused() -> Refused:
    why = "in use by ada: python load_child.py memory (pid 4711)"
    event = Event(3.0, "refused", device=UUID, why=why, fix="wait until it is free, or --force")
    return Refused(0, UUID, "a kernel runs", 4711, True, Answer("matmul", 0.0, [event]), 3, why)


def dtypes_measured() -> dtypes.Measured:
    found = dtypes.Measured(0, UUID, {dtype: answer("matmul", matmul(dtype)) for dtype in dtypes.DTYPES})
    tf32 = {"event": "tf32", "differs": True, "capability": [9, 0]}
    found.plain = Plain([*(rates(dtype) for dtype in dtypes.DTYPES), tf32])
    return found


def copies_measured() -> copies.Measured:
    memory = answer("memory", {"copy_bytes_per_s": 2.9e12, "intact": True, "size_bytes": 1 << 30})
    phases = [{"name": name, "seconds": 0.1, "pcie_gen": 5, "pcie_width": 16} for name in ("to device", "to host")]
    peer = {"to_gpu": 1, "bytes_per_s": 3.8e11, "direct": True, "intact": True, "why": ""}
    result = {
        "to_device_bytes_per_s": 5.2e10,
        "to_host_bytes_per_s": 5e10,
        "intact": True,
        "phases": phases,
        "peers": [peer],
        "gaps": {},
    }
    both = answer("copies", result, {"uuid": OTHER})
    gpus = [{"index": 0, "uuid": UUID}, {"index": 1, "uuid": OTHER}]
    link = watch(**{"pcie.link.gen.gpucurrent": "5", "pcie.link.width.current": "16"})
    found = copies.Measured(gpus, "", link, memory, both)
    per_s = {"memory": 1.45e12, "to_device": 5.2e10, "to_host": 5e10, "peer": 3.8e11}
    said = [{"event": "rate", "name": name, "bytes_per_s": rate} for name, rate in per_s.items()]
    found.plain = Plain([*said, {"event": "direct", "value": True}])
    return found


def bits_measured() -> bits.Measured:
    """650 TFLOPS for 300 s are some 177,000 GEMMs."""
    checked = int(650e12 * 298 / (2 * 8192**3) / 8) + 150
    phase = {"name": "sustained", "seconds": 300.0}
    long = matmul(checked_iterations=checked, checked_pflop=24.0, phases=[phase])
    watched = watch(**{"utilization.gpu": "100", "power.draw": "690.00"})
    short = answer("matmul", matmul())
    return bits.Measured(0, UUID, 300.0, short, answer("matmul", long, check=STAGES["sustained"] + 300.4), watched)


def put(found: Any, lie: Lie) -> None:
    """Into whatever was measured, or into a refusal. ``text`` is JSON."""
    value = json.loads(lie.text)
    of, _, name = lie.name.rpartition(".")
    if lie.source == "refused":
        if lie.name == "why":
            found.answer.events[0].why = value
        else:
            setattr(found, lie.name, value)
    elif lie.source == "watch":
        for row in found.watch.rows:
            row[lie.name] = value
    elif lie.source == "events":
        next(one for one in _answer(found, of).events if one.stage == name).at_s = value
    elif lie.source == "plain":
        event, _, which = of.partition(" ")
        for one in found.plain.said:
            if one["event"] == event and which in ("", one.get("dtype"), one.get("name")):
                one[name] = value
    else:
        assert lie.source in ("result", "phase"), lie
        data = next(one.data for one in _answer(found, of).events if one.event == "result")
        if lie.source == "result" and name == "peer":
            data["peers"][0].update(value)
        elif lie.source == "result":
            data[name] = value
        for phase in data["phases"] if lie.source == "phase" else ():
            phase[name] = value


def answers(found: Any) -> list[Answer]:
    if isinstance(found, dtypes.Measured):
        return list(found.answers.values())
    return [one for one in vars(found).values() if isinstance(one, Answer)]


def _answer(found: Any, of: str) -> Answer:
    """``of``: a data type, or which of several answers; "" for the only one."""
    if isinstance(found, dtypes.Measured):
        return found.answers[of]
    if isinstance(found, copies.Measured):
        return {"memory": found.memory, "": found.copies}[of]
    if isinstance(found, bits.Measured):
        return {"short": found.short, "": found.long}[of]
    assert isinstance(found, probes.Measured) and not of
    return found.answer
