"""`python -m mltop.probes.demo.node --node NAME`: this machine's real agent, with the demo job.

Ranks, stacks and host are real; only the GPUs are made up.
"""

from __future__ import annotations

import argparse
import platform
import sys

from mltop.probes.agent.loop import Agent, exit_now
from mltop.probes.demo.gpus import SimulatedGpus
from mltop.probes.demo.job import DemoJob

USE_TORCH = {"auto": None, "yes": True, "no": False}


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    job = DemoJob(options.ranks, options.culprit, USE_TORCH[options.torch], healthy_s=options.healthy)
    try:
        job.start()
        gpus = SimulatedGpus(
            options.gpus, job.on_gpus, job.hung_since, culprit_gpu=options.culprit, problem=job.problem
        )
        code = Agent(options.node, gpus, options.interval).run()
        if job.problem():
            print(job.problem(), file=sys.stderr, flush=True)  # noqa: T201 - the caller keeps an agent's last words
    finally:
        job.close()
    exit_now(code)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mltop-demo-node", description=__doc__)
    parser.add_argument("--node", default=platform.node())
    parser.add_argument("--gpus", type=int, default=8, metavar="N")
    parser.add_argument("--ranks", type=int, default=4, metavar="N")
    parser.add_argument("--culprit", type=int, default=2, metavar="RANK")
    parser.add_argument("--torch", choices=sorted(USE_TORCH), default="auto")
    parser.add_argument("--healthy", type=float, default=2.0, metavar="S", help="seconds until the culprit hangs")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S")
    options = parser.parse_args(argv)
    if not 0 <= options.culprit < options.ranks:
        parser.error(f"--culprit {options.culprit} is not one of {options.ranks} ranks")
    return options


if __name__ == "__main__":
    main()
