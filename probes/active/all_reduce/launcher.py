"""The all-reduce probe's process on a node: meets the others, has torch imported once, runs rounds of ranks.

It never imports torch and never waits without a deadline: whatever happens to torch, gloo or NCCL, it can say so.
Everything it started dies with it, and it ends with its stdin.
"""

from __future__ import annotations

import os
import sys
import time

from mltop.probes.active import child
from mltop.probes.active.all_reduce.importer import fork_importer
from mltop.probes.active.all_reduce.listening import (
    LOOPBACK,
    Address,
    Sockets,
    chosen,
    listen,
    listen_alone,
    local_addresses,
)
from mltop.probes.active.all_reduce.options import Options, options_of
from mltop.probes.active.all_reduce.rank import Progress
from mltop.probes.model.probe import ProbeEvent


def main() -> None:
    """Exit code 0 after "end", 1 when the node took no part, 2 for a bad order. Reasons are events."""
    began = time.monotonic()
    try:
        options = options_of(child.read_order())
    except (ValueError, TypeError, KeyError) as error:
        child.say(ProbeEvent("refused", stage="listen", why=str(error)))
        sys.exit(2)
    child.stage("listen")
    progress = Progress(options.ranks)
    # Forked first, before any thread and any socket: torch takes longest, and the ranks are forked from it.
    importer = fork_importer(progress)
    try:
        sockets = _open_sockets(options)
    except OSError as error:
        child.failed(f"cannot listen: {error}", stage="listen")
        sys.exit(1)
    if options.leader:
        port = sockets.meeting.getsockname()[1] if sockets.meeting is not None else 0
        addresses = [vars(sockets.address)] if sockets.meeting is not None else []
        child.say(ProbeEvent("listening", data={"port": port, "addresses": addresses}))

    # Imported while the other process imports torch. No bytecode of ours: this Python is not ours.
    sys.dont_write_bytecode = True
    import asyncio

    from mltop.probes.active.all_reduce import node
    from mltop.probes.active.all_reduce.ranks import Importer

    async def run() -> int:
        return await node.run(options, progress, Importer(*importer), sockets, began)

    code = asyncio.run(run())
    # At once: the thread that reads stdin would hold up an orderly exit.
    os._exit(code)


def _open_sockets(options: Options) -> Sockets:
    """Where the others come to: nothing is opened for nobody, and nothing but loopback for this node's own ranks."""
    if not options.leader:
        return Sockets(Address("", ""))
    if len(options.nodes) == 1:
        address, store = listen_alone()
        return Sockets(Address(address, LOOPBACK), store=store)
    address_here = chosen(os.environ, options.backend, options.node, local_addresses())
    return Sockets(address_here, listen(address_here.address), listen(address_here.address))
