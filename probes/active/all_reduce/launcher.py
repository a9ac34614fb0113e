"""The all-reduce probe's process on a node: imports torch once, meets the others by its caller, runs rounds.

It has one thread until its end, and no work of torch in it: its ranks are forked from it. What it started dies with it,
and it ends with its stdin.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from mltop.probes.active import child
from mltop.probes.active.all_reduce import listening, node
from mltop.probes.active.all_reduce.options import DEFAULTS, Options, options_of
from mltop.probes.active.all_reduce.rank import Progress, prepare
from mltop.probes.active.all_reduce.ranks import ANOTHER_PYTHON
from mltop.probes.active.torch_support import Unusable, import_torch
from mltop.probes.model.probe import ProbeEvent


def main() -> None:
    """Exit code 0 after "end", 1 when the node took no part, 2 for a bad order. Reasons are events."""
    try:
        options = options_of(child.read_order())
    except (ValueError, TypeError, KeyError) as error:
        child.say(ProbeEvent("refused", stage="listen", why=str(error)))
        sys.exit(2)
    child.stage("listen")
    try:
        own = _listen(options)
    except OSError as error:
        child.failed(f"cannot listen: {error.strerror or error}", stage="listen")
        sys.exit(1)
    address, port = own.getsockname()[:2]
    child.say(ProbeEvent("listening", data={"address": address, "port": port, "ranks": options.ranks}))
    child.stage("import torch")
    try:
        about = _torch(options.backend)
    except Unusable as error:
        child.failed(error.why, stage="import torch", fix=ANOTHER_PYTHON)
        sys.exit(1)
    gc.freeze()  # the collector would otherwise copy every page of torch into every rank
    os._exit(asyncio.run(node.run(options, Progress(options.ranks), own, about)))


def _listen(options: Options) -> socket.socket:
    """Where others reach this node; nothing but loopback for a node that measures alone. Raises OSError."""
    if options.alone:
        try:
            return listening.listen("127.0.0.1")
        except OSError:
            return listening.listen("::1")
    if options.leader_address:
        return listening.listen(listening.route_to(options.leader_address))
    here = listening.chosen(os.environ, options.backend, options.node, listening.local_addresses())
    return listening.listen(here.address)


def _torch(backend: str) -> dict[str, Any]:
    """What the ready event says of torch, which is imported. Raises Unusable."""
    os.environ.update({name: value for name, value in DEFAULTS.items() if name not in os.environ})
    began = time.monotonic()
    torch, dist = import_torch(), import_torch("torch.distributed")
    prepare()
    available, version = dist.is_available(), str(torch.__version__)
    about = {
        "python": sys.version.split()[0],
        "torch": version,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "gloo": bool(available and dist.is_gloo_available()),
        "nccl": bool(available and dist.is_nccl_available()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "import_s": round(time.monotonic() - began, 3),
    }
    if not about[backend]:
        raise Unusable(f"this torch ({version}) was built without {backend}")
    return about
