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
from torch.distributed import nccl_records
from torch.distributed.nccl_records import PREFIX

_peers: list[socket.socket] = []
_backend = ""
_timeout_s = 0.0
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
    _set_pg_timeout(timeout)
    if PREFIX:
        with open(f"{PREFIX}pid{rank}", "w") as file:
            file.write(str(os.getpid()))


def _set_pg_timeout(timeout: Any) -> None:
    global _timeout_s
    _timeout_s = timeout.total_seconds()
    for peer in _peers:
        peer.settimeout(_timeout_s)


def all_reduce(tensor: Any) -> None:
    if _backend == "nccl":
        if _peers and os.environ.get("MLTOP_FAKE_TORCH_NCCL") == "refuses":
            raise RuntimeError("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000")
        if nccl_records.launched == 0:
            nccl_records.begin()
        nccl_records.launched += 1
        late = partial(nccl_records.time_out, _timeout_s)
        effects.wait_later("nccl", partial(effects.meet, _peers, late))
        return
    try:
        effects.meet(_peers)
    except TimeoutError:
        raise RuntimeError(f"Timed out waiting {1000 * _timeout_s:.0f}ms for recv operation to complete") from None


def _connected(address: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
