"""Records what probes of single GPUs say, for the demo to replay (probes/demo/probes/events.jsonl).

python -m tests.demo_recording healthy=NODE:GPU [slow=NODE:GPU ...] -- COMMAND THAT SPEAKS AS AGENT >> events.jsonl

The names are those of ProbeMachine.condition; each is asked for every kind of probe and data type, also where
somebody uses the GPU. One line per event: who said what, how many seconds after its process began.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from mltop.probes.model.probe_kinds import DTYPES
from mltop.probes.reach.channel import Channel
from mltop.probes.reach.hub import Hub
from tests.hubs import DEADLINE_S, await_state, opened


def main(argv: list[str]) -> None:
    asked, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    devices = [(name, *place.split(":")) for name, _, place in (word.partition("=") for word in asked)]
    with opened(Channel(tuple(command), tuple(dict.fromkeys(node for _, node, _ in devices)))) as hub:
        for condition, node, gpu in devices:
            await_state(hub, "live", node)
            for line in recorded(hub, node, int(gpu)):
                print(json.dumps({"condition": condition, **line}, separators=(",", ":")))


def recorded(hub: Hub, node: str, gpu: int) -> Iterator[dict[str, Any]]:
    for dtype in DTYPES:
        yield from events(hub, node, gpu, "matmul", dtype=dtype.name)
    yield from events(hub, node, gpu, "memory")
    yield from events(hub, node, gpu, "copies")


def events(hub: Hub, node: str, gpu: int, kind: str, **options: str) -> Iterator[dict[str, Any]]:
    """Of this GPU and of all; the others are measured beside it, as copies are between them."""
    began, uuid = 0.0, ""
    args = {"key": "recording", "kind": kind, "gpus": [], "force": True, "options": options, "total_s": 600.0}
    for answer in hub.request("probe", args, (node,)).answers(DEADLINE_S):
        event = answer.message.data
        if event.get("event") == "devices":
            uuid = next(device["uuid"] for device in event["data"]["devices"] if device["index"] == gpu)
        elif event.get("event") in ("stage", "result") and event.get("device", uuid) == uuid:
            began = began or time.monotonic()
            yield {"kind": kind, **options, "at_s": round(time.monotonic() - began, 2), "event": event}


if __name__ == "__main__":
    main(sys.argv[1:])
