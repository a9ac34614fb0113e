"""Rank 0 is the store that all others talk to; a collective ends when all have entered it.

MLTOP_FAKE_TORCH_NCCL=refuses: as NCCL says that two ranks may not share a GPU.
"""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from typing import Any

from torch import effects

_peers: list[socket.socket] = []
_backend = ""
CONNECT_S = 30.0


def init_process_group(backend: str, timeout: Any) -> None:
    global _backend
    _backend = backend
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(address) as server:
            _peers.extend(server.accept()[0] for _ in range(size - 1))
    else:
        _peers.append(_connected(address))


def all_reduce(tensor: Any) -> None:
    if _backend == "nccl":
        if os.environ.get("MLTOP_FAKE_TORCH_NCCL") == "refuses":
            raise RuntimeError("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000")
        effects.wait_later("nccl", partial(effects.meet, _peers))
    else:
        effects.meet(_peers)


def _connected(address: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
