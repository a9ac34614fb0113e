"""What the hub's thread costs with 1,000 nodes at 1 Hz: CPU, bytes, memory, latency, and stalls while it connects.

The hub runs in a process of its own (this file as a program), so its CPU time is the reader's alone. Nodes are FIFOs
that a few feeder processes write real samples of 8 GPUs into; each channel is a `cat` of one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mltop.probes.agent.protocol import MARK
from mltop.probes.demo.fleet import build
from mltop.probes.model import to_json
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub, allow_files
from mltop.probes.reach.pacing import Limits
from tests.bench.table import Goal, print_table

FEEDERS = 2
GPUS = 8
SETTLE_S = 3.0
BURST = 256
LOOKS_PER_S = 2.0


def main(quick: bool) -> None:
    nodes, seconds, started = (20, 2.0, 32) if quick else (1000, 15.0, BURST)
    for viewed in (False, True):
        found = measure(nodes, seconds, viewed)
        reader = " with a look at all nodes twice a second" if viewed else ""
        print_table(
            f"hub: {nodes} simulated streams of {GPUS} GPUs at 1 Hz{reader}",
            [
                ("reader CPU, % of a core", found["cpu_percent"], None if viewed else Goal(8.0)),
                ("samples per second", found["samples_per_s"], None),
                ("bytes per sample", found["sample_bytes"], None),
                ("RSS, MiB", found["rss_mib"], None),
                ("from a sample's writing to the listener, median ms", found["latency_ms"], None),
                ("a view of all nodes, median ms", found["view_ms"], None),
                ("close, s", found["close_s"], None),
            ],
        )
    for burst in (False, True):
        stalls = measured_by("stalls", str(started), str(int(burst)))
        how = "with setpriv (dies_with_us)" if burst else "alone"
        print_table(
            f"hub: another thread of its process while {started} channels start, {how}",
            [
                ("longest stall of a 5 ms ticker, ms", stalls["longest_ms"], Goal(20.0)),
                ("without the hub, ms", stalls["idle_ms"], None),
                ("all started after, s", stalls["started_s"], None),
            ],
        )


def measure(nodes: int, seconds: float, viewed: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory, feeding(Path(directory), nodes):
        return measured_by("read", directory, str(nodes), str(seconds), str(int(viewed)))


@contextlib.contextmanager
def feeding(directory: Path, nodes: int) -> Iterator[None]:
    for number in range(nodes):
        os.mkfifo(directory / str(number))
    share = nodes // FEEDERS
    feeders = [
        subprocess.Popen([sys.executable, "-m", __spec__.name, "feed", directory, str(first), str(first + share)])
        for first in range(0, nodes, share)
    ]
    try:
        yield
    finally:
        for feeder in feeders:
            feeder.kill()
            feeder.wait()


def measured_by(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


# Below: what runs in processes of its own.


def feed(directory: Path, first: int, last: int) -> None:
    """One sample per node and second into the FIFOs, spread over the second."""
    allow_files(last - first + 64)
    simulated = build(8, 1, GPUS, 1.0, 3600.0)
    # For writing and reading: it opens at once, and its other end may come and go.
    pipes = [os.open(directory / str(number), os.O_RDWR | os.O_NONBLOCK) for number in range(first, last)]
    bodies: dict[int, bytes] = {}
    started, turn = time.monotonic(), 0
    while True:
        for place, pipe in enumerate(pipes):
            due = started + turn + place / len(pipes)
            time.sleep(max(0.0, due - time.monotonic()))
            number = place % len(simulated)
            if place < len(simulated) or number not in bodies:
                bodies[number] = to_json(simulated[number].sample(time.time())).encode()
            sent = b'{"kind":"sample","sample":%s}' % bodies[number]
            with contextlib.suppress(BlockingIOError):  # nobody reads it yet
                os.write(pipe, MARK + b"%d %s\n" % (len(sent), sent))
        turn += 1


def read(directory: Path, nodes: int, seconds: float, viewed: bool) -> dict[str, float]:
    limits = Limits(slot_s=0.0, spawns_per_turn=8)
    channels = [
        Channel(("cat", str(directory / str(number))), (f"n{number}",), takes_requests=False, dies_with_us=False)
        for number in range(nodes)
    ]
    hub = Hub(channels, 1.0, limits)
    told: list[float] = []
    hub.subscribe(lambda: told.append(time.time()))
    hub.start()
    while any(view.sample is None for view in hub.view().nodes):
        time.sleep(0.2)
    time.sleep(SETTLE_S)
    serial, cpu, started = hub.view().serial, time.process_time(), time.monotonic()
    views: list[float] = []
    while time.monotonic() - started < seconds:
        time.sleep(1 / LOOKS_PER_S)
        if viewed:
            before = time.perf_counter()
            hub.view()
            views.append(time.perf_counter() - before)
    elapsed = time.monotonic() - started
    cpu = time.process_time() - cpu
    samples = hub.view().serial - serial
    newest = [view.row[0] for view in hub.view().nodes[:8] if view.row is not None]
    latencies = [min((at - sampled for at in told if at >= sampled), default=0.0) for sampled in newest]
    sizes = [len(to_json(simulated.sample(time.time()))) for simulated in build(8, 1, GPUS, 1.0, 3600.0)]
    closing = time.monotonic()
    hub.close()
    return {
        "cpu_percent": 100 * cpu / elapsed,
        "samples_per_s": samples / elapsed,
        "sample_bytes": sum(sizes) / len(sizes),
        "rss_mib": rss_mib(),
        "latency_ms": 1000 * median(latencies),
        "view_ms": 1000 * median(views),
        "close_s": time.monotonic() - closing,
    }


def stalls(count: int, dies_with_us: bool) -> dict[str, float]:
    """Run in a process as large as the screen's: its page tables are what fork copies."""
    import mltop.tui.app.app  # noqa: F401 - for its size

    ballast = [bytearray(os.urandom(4096)) for _ in range(15_000)]
    gaps: list[float] = []
    stopped = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not stopped.wait(0.005):
            now = time.perf_counter()
            gaps.append(now - last - 0.005)
            last = now

    threading.Thread(target=tick, daemon=True).start()
    time.sleep(2.0)
    idle = max(gaps)
    gaps.clear()
    channels = [Channel(("sleep", "60"), (f"n{n}",), dies_with_us=dies_with_us) for n in range(count)]
    hub = Hub(channels, 1.0, Limits(slot_s=0.1))
    started = time.monotonic()
    hub.start()
    while any(view.state.reason == "waiting for a slot" for view in hub.view().nodes):
        time.sleep(0.02)
    took = time.monotonic() - started
    longest = max(gaps)
    stopped.set()
    hub.close()
    del ballast
    return {"longest_ms": 1000 * longest, "idle_ms": 1000 * idle, "started_s": took}


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    what, *rest = *sys.argv[1:], ""
    if what == "feed":
        feed(Path(rest[0]), int(rest[1]), int(rest[2]))
    elif what == "read":
        print(json.dumps(read(Path(rest[0]), int(rest[1]), float(rest[2]), rest[3] == "1")))
    elif what == "stalls":
        print(json.dumps(stalls(int(rest[0]), rest[1] == "1")))
    else:
        main("--quick" in sys.argv)
