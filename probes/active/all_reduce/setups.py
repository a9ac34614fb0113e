"""What each rank of this node is given for its whole life: its device, its store, its environment."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from mltop.probes.active.all_reduce import environment
from mltop.probes.active.all_reduce.listening import interface_of, local_addresses
from mltop.probes.active.all_reduce.member import Meeting
from mltop.probes.active.all_reduce.options import IMPORT_S, PATHS, READY_S, Options
from mltop.probes.active.all_reduce.rank import Setup


@dataclass
class Setups:
    """``ranks`` and ``environments`` by local rank; ``first_rank``: of all ranks of all nodes."""

    first_rank: int
    interface: str
    inherited: dict[str, str]
    added: dict[str, str]
    ranks: list[dict[str, Any]]
    environments: list[dict[str, str]]


def setups_of(options: Options, meeting: Meeting) -> Setups:
    """Raises ValueError when MLTOP_PROBE_DELAY is not what it must be."""
    interface = interface_of(meeting.own_address, local_addresses())
    conf = environment.conf_settings() if options.backend == "nccl" else {}
    inherited = environment.inherited(os.environ, conf)
    added = environment.added(interface, options.backend, inherited)
    delays = environment.delays(os.environ.get("MLTOP_PROBE_DELAY", ""))
    first = meeting.first_rank(options.nodes, options.node)
    found = Setups(first, interface, inherited, added, [], [])
    for local in range(options.ranks):
        device = options.device(local)
        setup = Setup(
            local=local,
            node=options.node,
            backend=options.backend,
            store_host=meeting.store[0],
            store_port=meeting.store[1],
            uuid=device.uuid,
            gpu=device.index,
            connect_s=IMPORT_S + READY_S,  # our launcher's deadline comes first
            delay_s=delays.get(first + local, 0.0),
        )
        found.ranks.append(asdict(setup))
        # Each rank sees its own GPU only, as its device 0.
        visible = device.uuid if options.backend == "nccl" else ""
        found.environments.append({**added, "CUDA_VISIBLE_DEVICES": visible})
    return found


def ready_data(options: Options, meeting: Meeting, setups: Setups) -> dict[str, Any]:
    """Of the ready event."""
    return {
        "interface": setups.interface,
        "address": meeting.own_address,
        "ranks": options.ranks,
        "first_rank": setups.first_rank,
        "joined": [name for name in options.nodes if name in meeting.ranks],
        "backend": options.backend,
        "path": PATHS[options.backend],
        "inherited": setups.inherited,
        "added": setups.added,
    }
