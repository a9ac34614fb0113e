"""Time until all hosts of a fleet are live, against real `pdsh -w … hostname` on the same hosts in the same run.

Both ends of every connection are on this machine, so the time of what runs on the hosts (sshd, Python, the agent's
imports) adds up here, while on a fleet it passes in parallel: therefore also pdsh starting the same agent, and the CPU
time of the login node's side alone. Needs root or user namespaces (tests/hosts).
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from tests.bench.table import Goal, print_table
from tests.bootstrapping import installed
from tests.hosts.cluster import REPOSITORY, Hosts

ROUNDS = 5
AGENT = installed("--text", "--op", "doctor", one_shot=True)[2].replace("%", "%%")
PDSH = ["pdsh", "-R", "ssh", "-w"]


def main(quick: bool = False, full: bool = False) -> None:
    for count in (4,) if quick else (16, 64) if full else (16,):
        with Hosts(count) as hosts:
            print_table(f"connecting {count} hosts", rows(hosts, 1 if quick else ROUNDS))


@dataclass(frozen=True)
class Run:
    """One connect to all hosts: seconds to the last answer, to the last first sample, and of CPU on the login node."""

    answered_s: float
    live_s: float
    cpu_s: float


def rows(hosts: Hosts, rounds: int) -> list[tuple[str, float, Goal | None]]:
    """The first connect sends the bundle; afterwards all are measured in turn, so that all see the same machine."""
    first = mltop(hosts)
    names, agents, ours = [], [], []
    for _ in range(rounds):
        names.append(pdsh(hosts, "hostname"))
        ours.append(mltop(hosts))
        agents.append(pdsh(hosts, AGENT))
    hostname_s, agent_s = median(names, "answered_s"), median(agents, "answered_s")
    answered_s, live_s = median(ours, "answered_s"), median(ours, "live_s")
    return [
        ("pdsh hostname, s", hostname_s, None),
        ("pdsh, the same agent started once, s", agent_s, None),
        ("mltop, to the last agent's hello, s", answered_s, None),
        ("mltop, to the last first sample, s", live_s, None),
        ("mltop, the first time (bundle sent), s", first.live_s, None),
        ("all live / pdsh hostname", live_s / hostname_s, Goal(at_most=1.5)),
        ("all live / pdsh, the same agent", live_s / agent_s, None),
        ("CPU of pdsh hostname and its ssh, s", median(names, "cpu_s"), None),
        ("CPU of mltop and its ssh, s", median(ours, "cpu_s"), None),
    ]


def median(runs: list[Run], field: str) -> float:
    return statistics.median(getattr(run, field) for run in runs)


def pdsh(hosts: Hosts, command: str) -> Run:
    started, cpu_s = time.monotonic(), children_cpu_s()
    done = hosts.login.run([*PDSH, hosts.pattern, command])
    took_s = time.monotonic() - started
    answered = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert answered == set(hosts.names), done.stderr
    hosts.wait_clean()
    return Run(took_s, took_s, children_cpu_s() - cpu_s)


def mltop(hosts: Hosts) -> Run:
    """Times count from before Python starts."""
    started, cpu_s = time.monotonic(), children_cpu_s()
    watch = hosts.login.start(
        [sys.executable, "-m", "tests.hosts.watch", hosts.pattern, "--first-live"],
        env=hosts.mltop_environment(),
        cwd=str(REPOSITORY),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    said = watch.communicate(timeout=120)[0]
    assert watch.returncode == 0
    last = json.loads(said.splitlines()[-1])
    hosts.wait_clean()
    return Run(last["all_hello_at"] - started, last["all_live_at"] - started, children_cpu_s() - cpu_s)


def children_cpu_s() -> float:
    """Of everything that was started on the login node and has ended; the hosts' own processes are not ours."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main("--quick" in sys.argv, "--full" in sys.argv)
