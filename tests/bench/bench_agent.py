"""The agent with all collectors on, on a fake 8 x H100 node at 1 Hz, and nvitop on the same fake library; how soon its
first sample is there, and how soon the commands answer that look once.

CPU is a share of one core over the measured seconds, children included. PSS counts pages that processes share once.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mltop.tui.commands.rules import READ_TWICE_S
from mltop.tui.commands.snapshot import FIRST_LOOK_S
from tests.bench import goals
from tests.bench.table import Goal, print_table
from tests.cpu import children_of, cpu_s, pss_mib, rss_mib
from tests.fakes.machine import FakeMachine
from tests.fakes.nvml.counts import per_gpu
from tests.processes import command_of
from tests.terminal import Terminal
from tests.waiting import wait_until

GPUS = 8
SETTLE_S = 8.0  # first looks at everything are over


@dataclass
class Cost:
    """Over ``wall_s``: ``parts`` is CPU by process (its command's last words)."""

    cpu: float
    calls: float
    rss_mib: float
    pss_mib: float
    parts: dict[str, float]


def main(quick: bool = False) -> None:
    seconds = 1.0 if quick else 30.0
    with tempfile.TemporaryDirectory() as name:
        machine = FakeMachine(Path(name))
        with agent(machine) as (pid, _):
            cost = measure(machine, pid, seconds, 1.0 if quick else SETTLE_S)
            collectors = collector_costs(machine)
        rival = nvitop(machine, seconds)
    rows: list[tuple[str, float, Goal | None]] = [
        ("agent: CPU, % of a core", 100 * cost.cpu, Goal(at_most=goals.AGENT_CPU_PERCENT)),
        *((f"  of it {part}", 100 * share, None) for part, share in cost.parts.items()),
        ("agent: NVML calls per GPU and second", cost.calls, Goal(at_most=goals.NVML_CALLS)),
        ("agent: RSS of all its processes, MiB", cost.rss_mib, None),
        ("agent: PSS of all its processes, MiB", cost.pss_mib, Goal(at_most=goals.AGENT_PSS_MIB)),
        *((f"  {what}, wall ms per sample", 1000 * cost_s, None) for what, cost_s in collectors.items()),
        ("nvitop: CPU, % of a core", 100 * rival.cpu, None),
        ("nvitop: NVML calls per GPU and second", rival.calls, None),
        ("nvitop: RSS, MiB", rival.rss_mib, None),
    ]
    print_table(f"agent with all collectors, {GPUS} fake GPUs at 1 Hz, beside nvitop", rows)
    print_table("from the start, s: medians; NVML takes 0.3 s to initialise", first_answers(1 if quick else 5))


def first_answers(rounds: int) -> list[tuple[str, float, Goal | None]]:
    """All are measured in turn, so that all see the same machine; Python alone is there to compare with."""
    answer = goals.ANSWER_S
    looks: dict[str, tuple[Callable[[FakeMachine], float], Goal | None]] = {
        "python -c pass": (lambda _: took([sys.executable, "-c", "pass"], {}), None),
        "agent: first sample with GPUs": (first_sample, Goal(at_most=goals.FIRST_SAMPLE_S)),
        "screen: first picture with a GPU's values": (first_picture, None),
        f"snapshot (rates: {FIRST_LOOK_S:g} s)": (command("snapshot"), Goal(at_most=answer + FIRST_LOOK_S)),
        "doctor": (command("doctor"), Goal(at_most=answer)),
        f"check (error counters: {READ_TWICE_S:g} s)": (command("check"), Goal(at_most=answer + READ_TWICE_S)),
    }
    with tempfile.TemporaryDirectory() as name:
        machine = FakeMachine(Path(name))
        machine.nvml.set("call.nvmlInit", "block 0.3")
        machine.nvml.write()
        seconds = [{what: look(machine) for what, (look, _) in looks.items()} for _ in range(rounds)]
    return [(what, statistics.median(one[what] for one in seconds), goal) for what, (_, goal) in looks.items()]


def command(name: str) -> Callable[[FakeMachine], float]:
    return lambda machine: took([sys.executable, "-m", "mltop", name], machine.env())


def took(argv: list[str], env: dict[str, str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, env={**os.environ, **env}, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def first_sample(machine: FakeMachine) -> float:
    began = time.monotonic()
    with agent(machine):
        frames = machine.directory / "frames"
        wait_until(lambda: b'"gpus":[{' in frames.read_bytes(), what="a sample with GPUs")
        return time.monotonic() - began


def first_picture(machine: FakeMachine) -> float:
    with Terminal([sys.executable, "-m", "mltop"], env=machine.env()) as terminal:
        terminal.wait_for("560/700W")
        return time.monotonic() - terminal.started_at


@contextmanager
def agent(machine: FakeMachine) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The agent and who reads what it says."""
    command = [sys.executable, "-m", "mltop.probes.agent", "--node", "n1", "--interval", "1"]
    env = {**machine.env(), "PYTHONDONTWRITEBYTECODE": ""}
    with open(machine.directory / "frames", "wb") as frames:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=frames, env=env)
        try:
            yield process.pid, process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(10)


def measure(machine: FakeMachine, pid: int, seconds: float, settle_s: float) -> Cost:
    time.sleep(settle_s)  # a benchmark measures time: let start-up pass
    pids = [pid, *children_of(pid)]
    before, calls, began = {one: cpu_s(one) for one in pids}, all_calls(machine), time.monotonic()
    time.sleep(seconds)
    wall_s = time.monotonic() - began
    shares = {one: (cpu_s(one) - before[one]) / wall_s for one in pids}
    return Cost(
        sum(shares.values()),
        (all_calls(machine) - calls) / GPUS / wall_s,
        sum(map(rss_mib, pids)),
        sum(map(pss_mib, pids)),
        {part_name(one): share for one, share in shares.items()},
    )


def part_name(pid: int) -> str:
    words = command_of(pid).split()
    module = next((word for word in words if word.startswith("mltop.")), words[0] if words else "?")
    return ".".join(module.split(".")[-2:])


def collector_costs(machine: FakeMachine) -> dict[str, float]:
    """By the samples' own ``cost_s``: the mean of all but the first."""
    costs: list[dict[str, float]] = []
    for line in (machine.directory / "frames").read_bytes().split(b"\n"):
        start = line.find(b"{")
        if start >= 0 and b'"kind":"sample"' in line[:40]:
            costs.append(json.loads(line[start:])["sample"]["cost_s"])
    later = costs[1:] or costs
    return {what: sum(cost.get(what, 0.0) for cost in later) / len(later) for what in (later[0] if later else {})}


def nvitop(machine: FakeMachine, seconds: float) -> Cost:
    program = Path(sys.executable).with_name("nvitop")
    env = {name: value for name, value in machine.env().items() if name != "MLTOP_SYSROOT"}
    with Terminal([str(program), "--interval", "1"], env=env, columns=160, lines=60) as terminal:
        return measure(machine, terminal.pid, seconds, min(4.0, seconds))


def all_calls(machine: FakeMachine) -> int:
    return sum(per_gpu(Path(machine.nvml.env()["MLTOP_FAKE_NVML_COUNTS"])).values())


if __name__ == "__main__":
    main("--quick" in sys.argv)
