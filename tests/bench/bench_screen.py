"""First paint, CPU of the screen and of the agent, NVML calls: 8 fake GPUs at 1 Hz; beside other monitors; over fleets.

CPU is a share of one core over the measured seconds. The agent's figure includes its NVML child. The other monitors run
on the same fake library at the same interval: `pip install nvitop gpustat`, `apt-get install nvtop`; what is not
on PATH is left out, and said. Theirs and ours are the figures of all processes that they start.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import bench_fleet, bench_monitors
from tests.bench.table import Goal, print_table
from tests.cpu import children_of, cpu_s, rss_mib
from tests.fakes.nvml.counts import per_gpu
from tests.fakes.nvml.scenario import FakeNvml
from tests.processes import command_of
from tests.terminal import Terminal
from tests.waiting import wait_until

MLTOP = [sys.executable, "-m", "mltop"]


def main(quick: bool = False) -> None:
    with tempfile.TemporaryDirectory() as name:
        fake = FakeNvml(Path(name), count=8)
        fake.write()
        if not quick:
            first_paint(fake)  # as after an installation, compiled modules are there
        starts = [first_paint(fake) for _ in range(1 if quick else 7)]
        rows = [
            (
                "first full paint, median s",
                statistics.median(paint for paint, _ in starts),
                Goal(at_most=0.4),
            ),
            ("GPU values on the screen, median s", statistics.median(values for _, values in starts), None),
            *steady_state(fake, Path(name), 1.0 if quick else 30.0),
        ]
    print_table("screen and agent, 8 fake GPUs at 1 Hz, 120x40", rows)
    bench_monitors.main(quick)
    for nodes in () if quick else (64, 512, 1000):  # `fleet` does the same, at its own pace
        print_table(bench_fleet.title(nodes), bench_fleet.fast(nodes, 30.0, 60))
    if not quick:
        print_table("512 simulated nodes whose job hangs", bench_fleet.hung(512))


def first_paint(fake: FakeNvml) -> tuple[float, float]:
    """Seconds until the whole frame stands (its last line, the keys), and until GPU values do."""
    with Terminal(MLTOP, env=environment(fake)) as terminal:
        wait_until(lambda: "quit" in terminal.text().lower(), what="the footer")
        paint_s = time.monotonic() - terminal.started_at
        wait_until(lambda: "700W" in terminal.text(), what="GPU values")
        return paint_s, time.monotonic() - terminal.started_at


def steady_state(fake: FakeNvml, directory: Path, seconds: float) -> list[tuple[str, float, Goal | None]]:
    with Terminal(MLTOP, env=environment(fake)) as terminal:
        terminal.wait_for("700W")
        agent = wait_until(
            lambda: next((pid for pid in children_of(terminal.pid) if "mltop.probes.agent" in command_of(pid)), 0)
        )
        pids = [agent, *children_of(agent)]
        time.sleep(min(2.0, seconds))  # a benchmark measures time: let start-up pass
        before = (
            cpu_s(terminal.pid),
            sum(map(cpu_s, pids)),
            calls(fake),
            terminal.bytes_read,
            time.monotonic(),
        )
        time.sleep(seconds)
        after = (
            cpu_s(terminal.pid),
            sum(map(cpu_s, pids)),
            calls(fake),
            terminal.bytes_read,
            time.monotonic(),
        )
        present = [agent, *children_of(agent)]  # NVML's child may have been started anew
        screen_s, agent_s, nvml_calls, bytes_read, wall_s = (b - a for a, b in zip(before, after, strict=True))
        return [
            ("CPU of the screen, % of a core", 100 * screen_s / wall_s, Goal(at_most=1.0)),
            ("CPU of the agent and its NVML child, % of a core", 100 * agent_s / wall_s, Goal(at_most=0.5)),
            ("NVML calls per GPU and second", nvml_calls / 8 / wall_s, Goal(at_most=12)),
            ("bytes to the terminal, KB/s", bytes_read / 1000 / wall_s, None),
            ("RSS of the screen, MiB", rss_mib(terminal.pid), None),
            ("RSS of the agent and its NVML child, MiB", sum(map(rss_mib, present)), None),
        ]


def environment(fake: FakeNvml) -> dict[str, str]:
    return {**fake.env(), "PYTHONDONTWRITEBYTECODE": ""}


def calls(fake: FakeNvml) -> int:
    return sum(per_gpu(Path(fake.env()["MLTOP_FAKE_NVML_COUNTS"])).values())


if __name__ == "__main__":
    main("--quick" in sys.argv)
