"""What tests of the hub share: opening one, waiting for a node's state, finding its processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil

from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.pacing import Limits
from tests.waiting import wait_until

DEADLINE_S = 60.0


@contextlib.contextmanager
def opened(*channels: Channel, limits: Limits | None = None, interval_s: float = 0.1, **more: Any) -> Iterator[Hub]:
    hub = Hub(channels, interval_s, limits, **more)
    hub.start()
    try:
        yield hub
    finally:
        hub.close()


def patient(**fields: Any) -> Limits:
    """Limits that no program misses, however loaded the machine is: a test sets the one it waits for by ``set_limits``,
    when what must not be hit by it has started. Who is lost stays so until ``hub.retry()``, if not given otherwise.
    """
    return replace(
        Limits(), **{"hello_s": DEADLINE_S, "silence_s": DEADLINE_S, "ping_s": 0.1, "retry_first_s": 600.0, **fields}
    )


def set_limits(limits: Limits, **times_s: float) -> None:
    """Of a hub that runs: it looks at ``hello_s`` and ``silence_s`` a few times a second."""
    for name, value in times_s.items():
        object.__setattr__(limits, name, value)


def state(hub: Hub, node: str = "n1") -> str:
    return hub.node(node).state.state


def await_state(hub: Hub, wanted: str, node: str = "n1") -> str:
    """The reason of the state, once it is reached."""
    wait_until(lambda: state(hub, node) == wanted, DEADLINE_S, f"{node} {wanted}")
    return hub.node(node).state.reason


def await_reason(hub: Hub, part: str, node: str = "n1") -> str:
    """The state that has ``part`` in its reason, once it is there."""
    wait_until(lambda: part in hub.node(node).state.reason, DEADLINE_S, f"{node}: {part!r}")
    return state(hub, node)


def child_pids() -> set[int]:
    """Of this process: tests in parallel have processes of their own."""
    return {child.pid for child in psutil.Process().children()}
