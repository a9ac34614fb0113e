"""`python -m mltop.probes.agent --node NAME --interval S`: the agent with NVML."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys

from mltop.probes.agent.caller import Terms
from mltop.probes.agent.protocol import Wire
from mltop.probes.system import as_root
from mltop.probes.system.paths import trim_memory


def main(argv: list[str] | None = None, received: bytes = b"") -> None:
    """``received``: what stage 1 read from stdin beyond its own part."""
    try:
        as_root.clean_here()
        run(parse(argv), received)
    except (RuntimeError, OSError, MemoryError) as error:
        from mltop.probes.system.limits import limit_words

        if words := limit_words(error):
            sys.exit(words)  # the last line is shown as the reason
        raise


def run(options: argparse.Namespace, received: bytes) -> None:
    wire = Wire(options.node, options.text, options.frame_bytes)
    if options.op:
        from mltop.probes.agent.loop import exit_now
        from mltop.probes.agent.one_shot import answer

        exit_now(answer(options.op, json.loads(options.args), wire))
    from mltop.probes.agent.loop import Agent, exit_now
    from mltop.probes.collect.nvml.source import NvmlSource

    agent = Agent(
        options.node,
        NvmlSource(),
        options.interval,
        wire=wire,
        terms=Terms(not options.unattended, options.silence, received),
        thresholds=json.loads(options.thresholds),
    )
    trim_memory()
    exit_now(agent.run())


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mltop-agent", description="Samples of this machine as frames on stdout.")
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME") or platform.node())
    parser.add_argument("--interval", type=float, default=1.0, metavar="S")
    parser.add_argument("--silence", type=float, default=0.0, metavar="S", help="end after so long without a word")
    parser.add_argument("--unattended", action="store_true", help="stdin is not the caller; its end means nothing")
    parser.add_argument("--text", action="store_true", help="no NUL bytes in frames")
    parser.add_argument("--frame-bytes", type=int, default=0, metavar="N", help="no line longer than this; 0: any")
    parser.add_argument("--read-only", action="store_true", help="keep nothing on this machine")
    parser.add_argument("--thresholds", default="{}", metavar="JSON", help="of health rules, by their ids")
    parser.add_argument("--op", default="", help="answer one request and end")
    parser.add_argument("--args", default="{}", metavar="JSON", help="of that request")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
