"""Run on the login node: opens the hub on targets and tells every change of a node's state, one JSON line each.

    python -m tests.hosts.watch "h[01-16]" --interval 2 --retry-most 5

Lines: {"at": s, "node", "state", "reason", "connect_s", "restarts"}; "at" is monotonic. ``retry NODE`` on stdin asks
again a node that refused us. Ends, with all its agents, when stdin ends. With ``--first-live`` it ends as soon as
every node has been live, after a line {"all_hello_at", "all_live_at"}.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

from mltop.probes.reach.hub import Hub
from mltop.probes.reach.pacing import Limits
from mltop.probes.reach.targets import TargetOptions, channels, resolve
from mltop.probes.reach.view import NodeView


class Teller:
    """Prints what changed since it last looked."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._told: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._all_hello_at = 0.0
        self.all_live = threading.Event()

    def tell(self) -> None:
        with self._lock:
            nodes = self._hub.view().nodes
            for view in nodes:
                # The age in a stale node's reason changes all the time.
                now = (view.state.state, "" if view.state.state == "stale" else view.state.reason)
                if self._told.get(view.node) != now:
                    self._told[view.node] = now
                    print(json.dumps(line(view)), flush=True)
            if not self._all_hello_at and all(view.connection.hello for view in nodes):
                self._all_hello_at = time.monotonic()
            if not self.all_live.is_set() and all(view.state.state == "live" for view in nodes):
                print(json.dumps({"all_hello_at": self._all_hello_at, "all_live_at": time.monotonic()}), flush=True)
                self.all_live.set()


def line(view: NodeView) -> dict[str, object]:
    return {
        "at": time.monotonic(),
        "node": view.node,
        "state": view.state.state,
        "reason": view.state.reason,
        "connect_s": view.connection.connect_s,
        "restarts": view.connection.restarts,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes")
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--via", default="")
    parser.add_argument("--retry-most", type=float, default=Limits().retry_most_s)
    parser.add_argument("--hello", type=float, default=Limits().hello_s)
    parser.add_argument("--first-live", action="store_true")
    options = parser.parse_args()
    targets = TargetOptions(nodes=(options.nodes,), interval_s=options.interval, via=options.via)
    limits = Limits(retry_most_s=options.retry_most, hello_s=options.hello)
    hub = Hub(channels(resolve(targets), targets), options.interval, limits)
    teller = Teller(hub)
    hub.subscribe(teller.tell)
    hub.start()
    try:
        if options.first_live:
            teller.all_live.wait()
        else:
            obey(hub)
    finally:
        hub.close()


def obey(hub: Hub) -> None:
    for command in sys.stdin:
        word, _, node = command.strip().partition(" ")
        if word == "retry":
            hub.retry([node])


if __name__ == "__main__":
    main()
