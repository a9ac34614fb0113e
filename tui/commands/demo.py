"""`mltop demo`: the real screen over a real CPU job that hangs, with simulated GPUs; `--nodes N` adds simulated nodes.

The job's processes are children of the demo's agent, which ends with this process, however it ends.
"""

from __future__ import annotations

import platform

from mltop.probes.investigate.session import LiveSession
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.targets import TargetOptions, check_numbers
from mltop.probes.system.spawn import python_command
from mltop.tui.commands.live import verdict_text
from mltop.tui.commands.screen import require_terminal, show
from mltop.tui.config.settings import Config

GPUS_PER_NODE = 8
SPARES = 6  # simulated nodes without a job, as probes need them; at most a third of all


def run(options: TargetOptions, node_count: int, config: Config) -> int:
    check_numbers(options)
    require_terminal()
    session = LiveSession("demo", demo_channels(node_count, options.interval_s), options.interval_s, verdict_text)
    return show(session, config, options.read_only)


def demo_channels(node_count: int, interval_s: float) -> list[Channel]:
    """Channels to this machine with the job, and to one process that speaks for all simulated nodes."""
    here = platform.node() or "localhost"
    common = ("--gpus", str(GPUS_PER_NODE), "--interval", str(interval_s))
    alike = ("--fleet", str(node_count - 1), "--spares", str(SPARES))  # both speak of one and the same fleet
    first = Channel(tuple(python_command("mltop.probes.demo.node", "--node", here, *common, *alike)), (here,))
    if node_count == 1:
        return [first]
    count = node_count - 1
    nodes = tuple(f"sim{number:03d}" for number in range(2, node_count + 1))
    fleet = python_command(
        "mltop.probes.demo.fleet", "--nodes", str(count), "--first", "2", *common, "--spares", str(SPARES)
    )
    return [first, Channel(tuple(fleet), nodes)]
