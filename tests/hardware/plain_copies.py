"""Copies in plain torch, in any Python that has it: `plain_copies.py ORDER`, JSON lines on stdout.

ORDER (JSON): ``size_bytes`` by what is copied ("memory": within GPU 0, "host": each way through pinned memory, "peer":
GPU 0 to GPU 1), ``seconds`` of each, ``cpus``: beside GPU 0, [] for any. A stage is told before it begins; rates are
bytes/s by the host's own clock, each byte counted once. Nothing here is mltop's. Ends when its input ends.
"""

import json
import os
import select
import sys
import time

BATCH = 5


def say(**told):
    print(json.dumps(told), flush=True)


def end_with_input():
    if select.select([0], [], [], 0)[0] and not os.read(0, 4096):
        raise SystemExit(1)


def rate(torch, name, source, target, seconds):
    """Of copies one after the other, all of them done when the clock is read."""
    gpus = range(torch.cuda.device_count())

    def copies():
        end_with_input()
        for _ in range(BATCH):
            target.copy_(source, non_blocking=True)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)

    say(event="stage", name=name)
    copies()
    done, began_s = 0, time.perf_counter()
    while not done or time.perf_counter() - began_s < seconds:
        copies()
        done += BATCH
    took_s = time.perf_counter() - began_s
    say(event="rate", name=name, bytes_per_s=done * source.numel() * source.element_size() / took_s)


def beside(cpus):
    """This process only runs on those of them that it may; pinned memory is then allocated beside them."""
    own = os.sched_getaffinity(0) & set(cpus)
    if own:
        os.sched_setaffinity(0, own)


def buffer(torch, size_bytes, **where):
    return torch.zeros(size_bytes // 4, dtype=torch.float32, **where)


def main(order):
    beside(order["cpus"])
    import torch

    torch.cuda.init()
    sizes, seconds = order["size_bytes"], order["seconds"]
    say(event="ready", pid=os.getpid())
    if "memory" in sizes:
        buffers = [buffer(torch, sizes["memory"], device="cuda:0") for _ in range(2)]
        rate(torch, "memory", *buffers, seconds)
        del buffers
    if "host" in sizes:
        device = buffer(torch, sizes["host"], device="cuda:0")
        host = buffer(torch, sizes["host"], pin_memory=True)
        rate(torch, "to_device", host, device, seconds)
        rate(torch, "to_host", device, host, seconds)
    if "peer" in sizes:
        say(event="direct", value=bool(torch.cuda.can_device_access_peer(0, 1)))
        buffers = [buffer(torch, sizes["peer"], device=f"cuda:{number}") for number in range(2)]
        rate(torch, "peer", *buffers, seconds)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
