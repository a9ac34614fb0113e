"""Flight records shaped as NCCL's process groups leave them (schema 2.x), made up: no GPU wrote them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from mltop.probes.collect.records.flight_recorder import parse_flight_record
from mltop.probes.model.evidence.collectives import GroupProgress

BEGAN_NS = 1_790_000_000_000_000_000
DUMPED_AFTER_S = 600.0
SECOND_NS = 1_000_000_000


def operation(
    sequence: int,
    name: str = "all_reduce",
    state: str = "completed",
    *,
    group: Sequence[str] = ("0", "default_pg"),
    pg_id: int = 0,
    size: Sequence[int] = (1024,),
    dtype: str = "Float",
    at_s: float | None = None,
    p2p: int | None = None,
    backend: str = "nccl",
) -> dict[str, Any]:
    """One entry. ``p2p``: the number of an operation of two ranks."""
    created = BEGAN_NS + int((float(sequence) if at_s is None else at_s) * SECOND_NS)
    return {
        "record_id": sequence,
        "pg_id": pg_id,
        "process_group": tuple(group),
        "collective_seq_id": sequence,
        "p2p_seq_id": p2p or 0,
        "op_id": sequence,
        "is_p2p": p2p is not None,
        "profiling_name": f"{backend}:{name}",
        "time_created_ns": created,
        "input_sizes": [list(size)],
        "input_dtypes": [dtype],
        "output_sizes": [list(size)],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
            {"name": "wrapper", "filename": "/x/site-packages/torch/distributed/c10d_logger.py", "line": 83},
            {"name": "train_step", "filename": "/home/ann/llm/train.py", "line": 40 + sequence % 7},
        ],
    }


def done_to(done: int, *waits: dict[str, Any], first: int = 1, **entry: Any) -> list[dict[str, Any]]:
    """Operations ``first`` to ``done``, which have ended, and ``waits``."""
    return [*(operation(sequence, **entry) for sequence in range(first, done + 1)), *waits]


def record(
    entries: Sequence[dict[str, Any]],
    *,
    status: Mapping[int, tuple[int, int, int]] | None = None,
    members: Mapping[str, Sequence[int]] | None = None,
    version: str = "2.10",
) -> dict[str, Any]:
    """A whole record. ``status``: by pg_id (enqueued, started, completed); ``members``: of groups by their names."""
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    descriptions = {entry["process_group"][0]: entry["process_group"][1] for entry in entries}
    return {
        "version": version,
        "comm_lib_version": "2.27.3",
        "pg_config": {
            name: {"name": name, "desc": descriptions.get(name, ""), "ranks": str(list(ranks))}
            for name, ranks in (members or {}).items()
        },
        "pg_status": {str(number): dict(zip(names, told, strict=True)) for number, told in (status or {}).items()},
        "entries": list(entries),
    }


def as_pickle(told: Mapping[str, Any]) -> bytes:
    return pickle.dumps(told, protocol=2)


def as_json(told: Mapping[str, Any]) -> bytes:
    """As torch makes JSON: no frames, no key ``entries`` without any, 0 for times that are not known."""
    quirky = {**told, "entries": [dict(entry) for entry in told["entries"]]}
    for entry in quirky["entries"]:
        del entry["frames"]
        entry["time_discovered_started_ns"] = entry["time_discovered_started_ns"] or 0
        entry["time_discovered_completed_ns"] = entry["time_discovered_completed_ns"] or 0
    quirky["pg_status"] = {
        number: {name: str(value) for name, value in status.items()} for number, status in told["pg_status"].items()
    }
    if not quirky["entries"]:
        del quirky["entries"]
    return json.dumps(quirky).encode()


def progress_of(told: Mapping[int, Mapping[str, Any]], *, at: float | None = None) -> list[GroupProgress]:
    """What the records of these ranks come to, as read from files of ``DUMPED_AFTER_S`` after the begin."""
    written_at = BEGAN_NS / 1e9 + DUMPED_AFTER_S if at is None else at
    return [
        progress
        for rank, one in told.items()
        for progress in parse_flight_record(as_pickle(one), rank=rank, at=written_at, shown=f"rank_{rank}").progress
    ]
