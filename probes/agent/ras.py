"""The operation "ras": one question to NCCL's RAS of a job that has ranks here, if it is their job that answers.

What it can do to a job is told where it is asked for (`mltop stacks --help`); whoever sends this has looked at the job
first (probes/judge/evidence/ras.py). Here is what only the node knows: where RAS listens, and who shares its port.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from mltop.probes.agent.programs import Unavailable
from mltop.probes.collect.ranks.live_environ import live_variables
from mltop.probes.collect.records.ras_client import Address, NoAnswer, address_of, ask_ras
from mltop.probes.collect.stacks.process import read_facts
from mltop.probes.collect.sysfile import read_link
from mltop.probes.model import RankSample
from mltop.probes.model.units import counted
from mltop.probes.system import paths

PAUSE_S = 25.0  # between two questions at one address: the asker keeps 30
_SETTINGS = ("NCCL_RAS_ENABLE", "NCCL_RAS_ADDR")
_asked_at: dict[Address, float] = {}
_lock = threading.Lock()


def ask_nccl(args: dict[str, Any], ranks: Sequence[RankSample]) -> dict[str, Any]:
    """``args["pids"]``: of the job's ranks here. The answer, and the pids that these ranks have in their own eyes.

    Raises Unavailable, which says why it is not asked or did not answer.
    """
    wanted = args.get("pids")
    own = [rank for rank in ranks if isinstance(wanted, list) and rank.pid in wanted]
    if not own:
        raise Unavailable("the ranks are not there any more")
    address = _address(own[0].pid)
    sharing = {rank.job_key for rank in ranks if rank.uid == own[0].uid and _address_known(rank.pid) == address}
    if len(sharing) > 1:
        raise Unavailable(f"{counted(len(sharing), 'job')} of this user share RAS's port here: another may be asked")
    _note(address)
    try:
        answer = ask_ras(address)
    except NoAnswer as why:
        raise Unavailable(f"NCCL's RAS cannot be used: {why}") from None
    inner = {rank.pid: read_facts(rank.pid).inner_pid or rank.pid for rank in own}
    if not {pid for _, pid in answer.places} & set(inner.values()):
        raise Unavailable("another job answers at RAS's port")
    return {"answer": asdict(answer), "inner_pids": [[pid, own] for pid, own in inner.items()]}


def _note(address: Address) -> None:
    with _lock:
        since = time.monotonic() - _asked_at.get(address, float("-inf"))
        if since < PAUSE_S:
            raise Unavailable(f"RAS was asked {since:.0f} s ago, and every question is a risk")
        _asked_at[address] = time.monotonic()


def _address(pid: int) -> Address:
    """Where the RAS of this rank listens. Raises Unavailable."""
    if read_link(paths.proc(pid, "ns", "net")) != read_link(paths.proc("self", "ns", "net")):
        raise Unavailable("the rank has a network of its own (a container), in which its RAS listens")
    settings = live_variables(pid, _SETTINGS)
    if settings.get("NCCL_RAS_ENABLE") == "0":
        raise Unavailable("the job has turned RAS off (NCCL_RAS_ENABLE=0)")
    address = address_of(settings.get("NCCL_RAS_ADDR", ""))
    if address is None:
        raise Unavailable("its NCCL_RAS_ADDR is no address")
    return address


def _address_known(pid: int) -> Address | None:
    with suppress(Unavailable):
        return _address(pid)
    return None
