"""`python -m mltop.probes.demo.node --node NAME`: this machine's real agent, with the demo job.

The job's ranks, their stacks, the host and its ports are real. The GPUs are made up, and so is what probes measure on
them. Other people's jobs run beside a demo, also on GPUs: whoever shows the demo around, be it as root, must neither
see nor stop them, and what is known of real GPUs must not get among the made-up ones.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Callable

from mltop.probes.active.supervisor.gate import Holder
from mltop.probes.agent.loop import Agent, exit_now
from mltop.probes.agent.protocol import Request
from mltop.probes.agent.sampler import Collectors
from mltop.probes.collect.dcgm import DcgmSource
from mltop.probes.collect.host import HostSource
from mltop.probes.collect.kernel_log import KernelLogSource
from mltop.probes.collect.pci import PciSource
from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.ranks.access import user_name
from mltop.probes.demo.fleet import build, machine_of
from mltop.probes.demo.gpus import HOT_GPU, SimulatedGpus
from mltop.probes.demo.job import DemoJob
from mltop.probes.demo.probes.replay import ProbeMachine
from mltop.probes.demo.probes.requests import ProbeThread, SimulatedProbes
from mltop.probes.model import Gap, GpuSample, HostSample, KernelEvent, PciDevice, RankSample

OF_GPUS = "nvidia"  # services and modules


class HostWithoutOthers(HostSource):
    """Without the names of others' processes, and without the services of GPUs that the simulated ones do not need."""

    def read(self, now: float, ranks: Sequence[RankSample] = ()) -> tuple[HostSample, list[Gap]]:
        host, gaps = super().read(now, ranks)
        own = {pid for rank in ranks for pid in (rank.pid, *rank.children)}
        return replace(
            host,
            blocked=[process for process in host.blocked if process.pid in own],
            services={name: state for name, state in host.services.items() if not name.startswith(OF_GPUS)},
            modules={name: loaded for name, loaded in host.modules.items() if not name.startswith(OF_GPUS)},
            nvidia_driver=None,
        ), gaps


class NoDcgm(DcgmSource):
    """An exporter on this machine speaks of its real GPUs."""

    def fill(self, gpus: list[GpuSample], now: float) -> list[Gap]:  # noqa: ARG002
        return []


class NoPci(PciSource):
    def read(self, now: float) -> tuple[list[PciDevice], list[Gap]]:  # noqa: ARG002
        return [], []


class NoKernelLog(KernelLogSource):
    """Its Xids are of real GPUs, and it names the processes of others."""

    def read(self, now: float) -> tuple[list[KernelEvent], list[Gap]]:  # noqa: ARG002
        return [], []


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
        probes: SimulatedProbes,
        pids: Callable[[], list[int]],
    ) -> None:
        ranks = RankSource(only=pids)
        collectors = Collectors(NoDcgm(), HostWithoutOthers(), ranks, pci=NoPci(), kernel_log=NoKernelLog())
        super().__init__(node, gpu_source, interval_s, collectors=collectors)
        self._probe_thread = ProbeThread(probes, self._caller.send)

    def _handle(self, request: Request) -> None:
        request.node = request.node or self._node
        if request.node != self._node or not self._probe_thread.take(request):
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
        probes = SimulatedProbes(DemoMachines(options, job), options.probe_speed)
        code = DemoAgent(options.node, gpus, options.interval, probes, lambda: job.pids).run()
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
    parser.add_argument("--healthy", type=float, default=15.0, metavar="S", help="seconds until the culprit hangs")
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
