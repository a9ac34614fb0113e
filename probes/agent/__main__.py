"""`python -m mltop.probes.agent --node NAME --interval S`: the agent with NVML."""

from __future__ import annotations

import argparse
import platform

from mltop.probes.agent.loop import Agent, exit_now


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="mltop-agent", description="Samples of this machine as frames on stdout.")
    parser.add_argument("--node", default=platform.node())
    parser.add_argument("--interval", type=float, default=1.0, metavar="S")
    options = parser.parse_args(argv)
    from mltop.probes.collect.nvml.source import NvmlSource

    exit_now(Agent(options.node, NvmlSource(), options.interval).run())


if __name__ == "__main__":
    main()
