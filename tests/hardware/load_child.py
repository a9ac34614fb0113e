"""A known load on one GPU, in any Python with torch: `load_child.py KIND`, until its input ends.

Lines of JSON: {"event": "ready", …} after its first round of work, then about twice a second {"event": "rate",
"per_s": …, "unit": "FLOP" or "B"}. Kinds: idle (a context and nothing else), bf16, fp32 (GEMMs), copy, memory (a kernel
that adds 1 to every element: as many bytes read as written).
"""

import json
import os
import select
import sys
import time

SIDE = 8192
BYTES = 1 << 30
REPORT_S = 0.5


def say(**told):
    print(json.dumps(told), flush=True)


def has_ended():
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)


def work_of(kind, torch):
    """(what queues one piece of work, how much it is, its unit)"""
    if kind in ("bf16", "fp32"):
        torch.backends.cuda.matmul.allow_tf32 = False
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=dtype) for _ in range(2))
        c = torch.empty(SIDE, SIDE, device="cuda", dtype=dtype)
        return (lambda: torch.mm(a, b, out=c)), 2 * SIDE**3, "FLOP"
    a, b = (torch.empty(BYTES // 4, device="cuda", dtype=torch.float32) for _ in range(2))
    if kind == "copy":
        return (lambda: b.copy_(a)), 2 * BYTES, "B"
    if kind == "memory":
        return (lambda: torch.add(a, 1.0, out=b)), 2 * BYTES, "B"
    raise SystemExit(f"no load is called {kind}")


def main(kind):
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
    done, began_s = 0, time.monotonic()
    while not has_ended():
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        done, now_s = done + 10, time.monotonic()
        if now_s - began_s >= REPORT_S:
            say(event="rate", per_s=done * amount / (now_s - began_s), unit=unit)
            done, began_s = 0, now_s


main(sys.argv[1])
