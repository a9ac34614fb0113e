"""`python -m mltop.probes.demo.node --node NAME`: the agent with the demo job, on a simulated machine.

The job's processes and their stacks are real. GPUs, host, ports and probe results are simulated: the demo reports
nothing about this machine. Other people's jobs may run beside a demo, also on GPUs: it must neither see nor stop them,
even as root.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import replace
from typing import Any, Callable, cast

from mltop.probes.active.supervisor.gate import Holder
from mltop.probes.agent.loop import Agent, exit_now
from mltop.probes.agent.protocol import Request
from mltop.probes.agent.sampler import Collectors
from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.ranks.access import user_name
from mltop.probes.demo.fleet import build, machine_of
from mltop.probes.demo.gpus import HOT_GPU, SEED, SimulatedGpus
from mltop.probes.demo.job import DemoJob
from mltop.probes.demo.machine import (
    QUIET_LOAD,
    TRAINING_LOAD,
    cpus_of,
    host_of,
    links_of,
    moving_host,
    numa_of,
    pci_devices,
    set_traffic,
)
from mltop.probes.demo.probes.collectives import MachineOf
from mltop.probes.demo.probes.replay import ProbeMachine
from mltop.probes.demo.probes.requests import SimulatedProbes
from mltop.probes.model import Gap, HostSample, LinkSample, RankSample
from mltop.probes.model.sample import UNLIMITED


class Simulated:
    """A collector of the simulated machine: ``make`` gives what it reads at a time, unix s. It misses nothing."""

    counters_read_at = None

    def __init__(self, make: Callable[[float], Any] = lambda _: []) -> None:
        self._make = make

    def read(self, *_: object) -> tuple[Any, list[Gap]]:
        return self._make(time.time()), []

    def fill(self, *_: object) -> list[Gap]:
        return []

    def close(self) -> None:
        """Nothing is held."""


class DemoRanks(RankSource):
    """The job's real processes, with the limits and CPUs that they would have on the simulated machine."""

    def __init__(self, only: Callable[[], list[int]], gpus: int) -> None:
        super().__init__(only=only)
        self.gpus = gpus

    def read(self, now: float, gpus_of_pid: dict[int, list[int]]) -> tuple[list[RankSample], list[Gap]]:
        ranks, _ = super().read(now, gpus_of_pid)
        for rank in ranks:
            gpu = rank.local_rank or 0
            rank.cpus_allowed, rank.numa_nodes = cpus_of(gpu), numa_of(gpu, self.gpus)
            rank.memlock_limit_bytes, rank.cgroup = UNLIMITED, None
        return ranks, []


USE_TORCH = {"auto": None, "yes": True, "no": False}
SLOW_GPU = 6  # where no node of a fleet has one


class DemoAgent(Agent):
    """The agent, but it sees only the processes of ``pids``, the ranks' as they are when it is called, and what probes
    put load on is simulated.
    """

    def __init__(
        self,
        node: str,
        gpu_source: SimulatedGpus,
        interval_s: float,
        pids: Callable[[], list[int]],
        *,
        machine_of: MachineOf,
        probe_speed: float,
    ) -> None:
        gpus, made = gpu_source.count, cast(Any, Simulated)  # in place of each collector of a machine

        def ports(now: float) -> list[LinkSample]:
            (t, hung), links = gpu_source.times(now), links_of(SEED, gpus)
            set_traffic(links, t, t if hung is None else hung, hung is None)
            return links

        def host(now: float) -> HostSample:
            t, hung = gpu_source.times(now)
            moving = moving_host(t, TRAINING_LOAD if hung is None else QUIET_LOAD, SEED, ports(now))
            return replace(host_of(node), **moving)

        collectors = Collectors(
            dcgm=made(),
            host=made(host),
            ranks=DemoRanks(pids, gpus),
            links=made(ports),
            pci=made(lambda _: pci_devices(gpus)),
            kernel_log=made(),
        )
        super().__init__(node, gpu_source, interval_s, collectors=collectors)
        self._probes = SimulatedProbes(machine_of, self._caller.send, probe_speed)

    def _handle(self, request: Request) -> None:
        request.node = request.node or self._node
        if request.node != self._node or not self._probes.take(request):
            super()._handle(request)


class DemoMachines:
    """What probes find: on this node (the job's GPUs are in use), and on the nodes of the fleet beside it."""

    def __init__(self, options: argparse.Namespace, job: DemoJob) -> None:
        self._options, self._job = options, job
        beside = build(options.fleet, 2, options.gpus, 1.0, 0.0, spares=options.spares) if options.fleet else []
        self._others = {node.name: machine_of(node) for node in beside}

    def __call__(self, name: str) -> ProbeMachine:
        if name != self._options.node:
            return self._others.get(name) or ProbeMachine(name, 0, self._options.gpus)
        alone = all(machine.slow_gpu is None for machine in self._others.values())
        user = user_name(os.geteuid())
        return ProbeMachine(
            name,
            number=0,
            gpus=self._options.gpus,
            owners={index: Holder(pid, user, "the demo's job") for pid, index in self._job.on_gpus()},
            slow_gpu=SLOW_GPU if alone and self._options.gpus > SLOW_GPU else None,
            hot_gpu=HOT_GPU,
        )


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    job = DemoJob(options.ranks, options.culprit, USE_TORCH[options.torch], healthy_s=options.healthy)
    try:
        job.start()
        gpus = SimulatedGpus(
            options.gpus, job.on_gpus, job.hung_since, culprit_gpu=options.culprit, problem=job.problem
        )
        agent = DemoAgent(
            options.node,
            gpus,
            options.interval,
            lambda: job.pids,
            machine_of=DemoMachines(options, job),
            probe_speed=options.probe_speed,
        )
        code = agent.run()
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
    parser.add_argument(
        "--healthy", type=float, default=15.0, metavar="S", help="seconds that the culprit trains before it hangs"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="S")
    parser.add_argument("--fleet", type=int, default=0, metavar="N", help="simulated nodes beside this one")
    parser.add_argument("--spares", type=int, default=1, metavar="N", help="of the fleet, as told to it")
    parser.add_argument("--probe-speed", type=float, default=1.0, metavar="X", help="for tests: probes run faster")
    options = parser.parse_args(argv)
    if not 0 <= options.culprit < options.ranks:
        parser.error(f"--culprit {options.culprit} is not one of {options.ranks} ranks")
    return options


if __name__ == "__main__":
    main()
