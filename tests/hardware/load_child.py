"""A known load on one GPU, in any Python with torch: `load_child.py KIND REPORT_S`, until its input ends.

Lines of JSON: {"event": "ready", …} after its first round of work, then about every REPORT_S {"event": "rate",
"per_s": …, "unit": "FLOP" or "B", "gpu_per_s": … (by the GPU's clock), "began_s", "ended_s" (CLOCK_MONOTONIC)}. Kinds:
idle (a context and nothing else), bf16, fp32 (GEMMs), copy, memory (a kernel that adds 1 to every element: as many
bytes read as written), host (from pinned memory to the GPU), spin (a kernel of one thread that waits: the GPU is "busy"
and does nothing), bursts (short bf16 GEMMs, with the GPU idle for half of the time; it tells no rate).
"""

import json
import os
import select
import sys
import time

SIDE = 8192
BYTES = 1 << 30
HOST_BYTES = 256 << 20
SPIN_CYCLES = 20_000_000  # about a hundredth of a second
BURST_SIDE, BURST_PIECES, BURST_S = 4096, 5, 0.01


def say(**told):
    print(json.dumps(told), flush=True)


def has_ended():
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


def work_of(kind, torch):
    """(what queues one piece of work, how much it is, its unit)"""
    if kind in ("bf16", "fp32", "bursts"):
        torch.backends.cuda.matmul.allow_tf32 = False
        dtype = torch.float32 if kind == "fp32" else torch.bfloat16
        side = BURST_SIDE if kind == "bursts" else SIDE
        a, b = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
        c = torch.empty(side, side, device="cuda", dtype=dtype)
        return (lambda: torch.mm(a, b, out=c)), 2 * side**3, "FLOP"
    if kind == "spin":
        return (lambda: torch.cuda._sleep(SPIN_CYCLES)), SPIN_CYCLES, "cycles"
    if kind == "host":
        pinned = torch.empty(HOST_BYTES // 4, dtype=torch.float32, pin_memory=True)
        there = torch.empty(HOST_BYTES // 4, device="cuda", dtype=torch.float32)
        return (lambda: there.copy_(pinned, non_blocking=True)), HOST_BYTES, "B"
    a, b = (torch.empty(BYTES // 4, device="cuda", dtype=torch.float32) for _ in range(2))
    if kind == "copy":
        return (lambda: b.copy_(a)), 2 * BYTES, "B"
    if kind == "memory":
        return (lambda: torch.add(a, 1.0, out=b)), 2 * BYTES, "B"
    raise SystemExit(f"no load is called {kind}")


def main(kind, report_s):
    import torch

    torch.cuda.init()
    if kind == "idle":
        torch.empty(1, device="cuda", dtype=torch.float32)
        torch.cuda.synchronize()
        say(event="ready", pid=os.getpid())
        sys.stdin.read()
        return
    work, amount, unit = work_of(kind, torch)
    work()
    torch.cuda.synchronize()
    say(event="ready", pid=os.getpid())
    if kind == "bursts":
        bursts(work, torch)
    else:
        steadily(work, amount, unit, torch, report_s)


def steadily(work, amount, unit, torch, report_s):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    done, gpu_s, began_s = 0, 0.0, time.monotonic()
    while not has_ended():
        first.record()
        for _ in range(10):
            work()
        last.record()
        torch.cuda.synchronize()
        done, gpu_s, now_s = done + 10, gpu_s + first.elapsed_time(last) / 1000, time.monotonic()
        if now_s - began_s >= report_s:
            per_s, gpu_per_s = done * amount / (now_s - began_s), done * amount / gpu_s
            say(event="rate", per_s=per_s, unit=unit, gpu_per_s=gpu_per_s, began_s=began_s, ended_s=now_s)
            done, gpu_s, began_s = 0, 0.0, now_s


def bursts(work, torch):
    """As long at work as idle, whatever the host is late with: what has had less comes next."""
    busy_s = idle_s = 0.0
    at_s = time.monotonic()
    while not has_ended():
        is_busy = busy_s <= idle_s
        if is_busy:
            end_s = at_s + BURST_S
            while time.monotonic() < end_s:
                for _ in range(BURST_PIECES):
                    work()
                torch.cuda.synchronize()
        else:
            time.sleep(BURST_S)
        now_s = time.monotonic()
        if is_busy:
            busy_s += now_s - at_s
        else:
            idle_s += now_s - at_s
        at_s = now_s


main(sys.argv[1], float(sys.argv[2]))
