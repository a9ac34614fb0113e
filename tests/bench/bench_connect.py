"""Time until all hosts of a fleet are live, against real `pdsh -w … hostname` on the same hosts in the same run.

Both ends of every connection are on this machine: what the hosts' sshd and agents cost counts as well. Needs root
or user namespaces (tests/hosts).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from tests.bench.table import Goal, print_table
from tests.hosts.cluster import REPOSITORY, Hosts

ROUNDS = 5
PDSH = ["pdsh", "-R", "ssh", "-w"]


def main(quick: bool = False, full: bool = False) -> None:
    for count in (16, 64) if full else (16,):
        with Hosts(count) as hosts:
            print_table(f"connecting {count} hosts", rows(hosts, 1 if quick else ROUNDS))


def rows(hosts: Hosts, rounds: int) -> list[tuple[str, float, Goal | None]]:
    """The first connect sends the bundle; afterwards both are measured in turn, so that both see the same machine."""
    first = live(hosts)
    pairs = [(pdsh(hosts), live(hosts)) for _ in range(rounds)]
    pdsh_s = statistics.median(pair[0] for pair in pairs)
    hello_s = statistics.median(pair[1][0] for pair in pairs)
    live_s = statistics.median(pair[1][1] for pair in pairs)
    return [
        ("pdsh hostname, s", pdsh_s, None),
        ("all agents answer: start to last hello, s", hello_s, None),
        ("all live: start to last first sample, s", live_s, None),
        ("all live, the first time (bundle sent), s", first[1], None),
        ("all agents answer / pdsh", hello_s / pdsh_s, Goal(at_most=1.5)),
        ("all live / pdsh", live_s / pdsh_s, Goal(at_most=1.5)),
    ]


def pdsh(hosts: Hosts) -> float:
    started = time.monotonic()
    done = hosts.login.run([*PDSH, hosts.pattern, "hostname"])
    took_s = time.monotonic() - started
    assert len(done.stdout.splitlines()) == len(hosts.names)
    hosts.wait_clean()
    return took_s


def live(hosts: Hosts) -> tuple[float, float]:
    """Seconds from starting Python to the last node's hello, and to the last node's first sample."""
    started = time.monotonic()
    watch = hosts.login.start(
        [sys.executable, "-m", "tests.hosts.watch", hosts.pattern, "--first-live"],
        env=hosts.mltop_environment(),
        cwd=str(REPOSITORY),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    said = watch.communicate(timeout=120)[0]
    lines = [json.loads(line) for line in said.splitlines()]
    last = lines[-1]
    assert watch.returncode == 0
    assert "all_live_at" in last
    hosts.wait_clean()
    return last["all_hello_at"] - started, last["all_live_at"] - started


if __name__ == "__main__":
    main("--quick" in sys.argv, "--full" in sys.argv)
