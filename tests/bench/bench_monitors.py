"""mltop beside nvitop, nvtop and gpustat, in one run: each alone on 8 fake GPUs at 1 Hz in a 120x40 terminal.

Quiet: nothing changes but the time. Busy: load, power, clocks, temperature and memory of every GPU change every second.
"""

from __future__ import annotations

import random
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.raw_terminal import RawTerminal
from tests.bench.table import Goal, print_matrix
from tests.cpu import children_of, family_cpu_s, pss_mib
from tests.fakes.nvml.scenario import FakeNvml

START_S, SETTLED_S = 10.0, 8.0
HEAT_C = 47
VALUES = re.compile(rf"(?<![:\d]){HEAT_C}(?![:\d])")  # whatever stands behind it
QUIET_BYTES_PER_S = 300.0


@dataclass(frozen=True)
class Monitor:
    """``keys``: that change what is shown, there and back again; none: it takes none."""

    name: str
    argv: list[str]
    keys: tuple[str, ...] = ()


@dataclass
class Measured:
    cpu_percent: list[float | None] = field(default_factory=lambda: [None, None])  # quiet, busy
    bytes_per_s: list[float | None] = field(default_factory=lambda: [None, None])
    pss_mib: float | None = None
    first_values_s: float | None = None
    key_ms: float | None = None


MONITORS = (
    Monitor("mltop", [sys.executable, "-m", "mltop"], ("\x1b[B", "\x1b[A")),
    Monitor("nvitop", ["nvitop", "--interval", "1"], ("h", "q")),
    Monitor("nvtop", ["nvtop", "-d", "10"], ("\x1bOQ", "\x1b")),
    Monitor("gpustat", ["gpustat", "-i", "1"]),
)


def main(quick: bool = False) -> None:
    seconds, keys = (1.0, 3) if quick else (30.0, 30)
    found = [monitor for monitor in MONITORS if shutil.which(monitor.argv[0])]
    with tempfile.TemporaryDirectory() as name:
        fake = FakeNvml(Path(name), count=8)
        fake.set("gpu.*.temperature_c", HEAT_C)
        fake.write()
        measured = [measure(monitor, fake, seconds, keys) for monitor in found]
    nvitop = {monitor.name: one for monitor, one in zip(found, measured, strict=True)}.get("nvitop")

    def row(
        title: str, of: Callable[[Measured], float | None], goal: Goal | None = None
    ) -> tuple[str, list[float | None], Goal | None]:
        return title, [of(one) for one in measured], goal

    def against(value: float | None, times: float = 1.0) -> Goal | None:
        return Goal(at_most=round(times * value, 2)) if value is not None else None

    print_matrix(
        "beside other monitors, 8 fake GPUs at 1 Hz, 120x40, all processes of each",
        [monitor.name for monitor in found],
        [
            row(
                "CPU, quiet node, % of a core",
                lambda one: one.cpu_percent[0],
                against(nvitop and nvitop.cpu_percent[0]),
            ),
            row(
                "CPU, busy node, % of a core", lambda one: one.cpu_percent[1], against(nvitop and nvitop.cpu_percent[1])
            ),
            row("PSS, MiB", lambda one: one.pss_mib, against(nvitop and nvitop.pss_mib, 2.0)),
            row("bytes/s, quiet node", lambda one: one.bytes_per_s[0], Goal(at_most=QUIET_BYTES_PER_S)),
            row("bytes/s, busy node", lambda one: one.bytes_per_s[1]),
            row("first values, s", lambda one: one.first_values_s),
            row("key to output, median ms", lambda one: one.key_ms),
        ],
    )
    if missing := [monitor.name for monitor in MONITORS if monitor not in found]:
        print(f"  not on PATH: {', '.join(missing)} (pip install nvitop gpustat; apt-get install nvtop)")


def measure(monitor: Monitor, fake: FakeNvml, seconds: float, keys: int) -> Measured:
    found = Measured()
    with RawTerminal(monitor.argv, env=fake.env()) as terminal:
        found.first_values_s = first_values_s(terminal, min(START_S, 3 * seconds))
        assert not terminal.ended, terminal.text()
        time.sleep(min(SETTLED_S, seconds))  # a benchmark measures time: let start-up pass
        for number, node in enumerate((quiet, busy)):
            with node(fake):
                time.sleep(min(2.0, seconds))
                before = family_cpu_s(terminal.pid), terminal.bytes_read, time.monotonic()
                time.sleep(seconds)
                after = family_cpu_s(terminal.pid), terminal.bytes_read, time.monotonic()
            cpu, written, wall_s = (b - a for a, b in zip(before, after, strict=True))
            found.cpu_percent[number], found.bytes_per_s[number] = 100 * cpu / wall_s, written / wall_s
        found.pss_mib = sum(map(pss_mib, [terminal.pid, *children_of(terminal.pid)]))
        if monitor.keys:
            found.key_ms = key_ms(terminal, monitor.keys, keys)
    return found


def first_values_s(terminal: RawTerminal, most_s: float) -> float | None:
    """Seconds from the start until a GPU's temperature is shown; None where the emulator cannot read that."""
    while not terminal.ended and time.monotonic() < terminal.started_at + most_s:
        if VALUES.search(terminal.text()):
            return time.monotonic() - terminal.started_at
        time.sleep(0.02)
    return None


def key_ms(terminal: RawTerminal, keys: tuple[str, ...], count: int) -> float:
    """Median ms from a key to the first output after it, at odd moments of the second."""
    dice = random.Random(1)
    waits = []
    for turn in range(count):
        time.sleep(dice.uniform(0.3, 0.8))
        read = terminal.bytes_read
        at = terminal.send(keys[turn % len(keys)])
        deadline = at + 2.0
        while terminal.bytes_read == read and time.monotonic() < deadline:
            time.sleep(0.0005)
        waits.append(time.monotonic() - at)
    return 1000 * statistics.median(waits)


@contextmanager
def quiet(_: FakeNvml) -> Iterator[None]:
    yield


@contextmanager
def busy(fake: FakeNvml) -> Iterator[None]:
    """A job of which every value changes every second."""
    over, dice = threading.Event(), random.Random(1)

    def change() -> None:
        while not over.wait(1.0):
            for gpu in range(8):
                fake.set(f"gpu.{gpu}.busy_percent", dice.randint(60, 100))
                fake.set(f"gpu.{gpu}.power_mw", dice.randint(400_000, 690_000))
                fake.set(f"gpu.{gpu}.temperature_c", dice.randint(55, 75))
                fake.set(f"gpu.{gpu}.memory_used_bytes", dice.randint(60, 79) << 30)
            fake.write()

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    try:
        yield
    finally:
        over.set()
        changing.join()
        for gpu in range(8):
            fake.unset_all(f"gpu.{gpu}.")
        fake.write()


if __name__ == "__main__":
    main("--quick" in sys.argv)
