"""One fault for each check of the slice `records`: a text in what it had (``Had.to_json``) that is another one.

``name``: at which path of it; what stands there is changed by a regular expression, or is replaced whole.
"""

from __future__ import annotations

import json
from typing import Any

from tests.system.hardware.faults.fault import Fault, Lie


def line(path: str, pattern: str, *also: str) -> Fault:
    """Another word stands there."""
    return Fault((Lie("line", path, pattern),), frozenset(also))


def value(path: str, what: Any, *also: str) -> Fault:
    return Fault((Lie("value", path, json.dumps(what)),), frozenset(also))


FAULTS: dict[str, Fault] = {
    "line: NCCL prefix": line("nccl_log", r"NCCL INFO"),
    "line: NCCL version": line("nccl_log", r"NCCL version"),
    "line: NCCL init": line("nccl_log", r"Init COMPLETE"),
    "line: torch prefix": line("logs.0", r"PG GUID"),
    "line: watchdog timeout": line("logs.0", r"SeqNum="),
    "line: PG status": line("logs.0", r"last enqueued work"),
    "line: first to dump": line("logs.0", r"First PG"),
    "line: stack of the collective": line("logs.0", r"Stack trace"),
    "line: dump seen": line("logs.1", r"Observed"),
    "line: dump signal": line("logs.1", r"Received a dump signal"),
    "line: gloo timeout": line("logs.0", r"Timed out waiting"),
    "timeout: op and limit": line("logs.0", r"ALLREDUCE"),
    "timeout: waiter is one ahead": line("logs.1", r"NCCL work: 3"),
    "dump: plain data": value("dumps.0", "UnpicklingError: it names os.system"),
    "dump: version": value("dumps.0.version", "3.0"),
    "dump: keys": value("dumps.0.pg_config", None),
    "dump: entry keys": value("dumps.0.entries.-1.retired", None),
    "dump: pg_status keys": value("dumps.0.pg_status.0.last_started_collective", None),
    "dump: last entry": value("dumps.0.entries.-1.profiling_name", "nccl:broadcast"),
    "dump: one behind": value("dumps.1.pg_status.0.last_enqueued_collective", 4),
    "ras: answers": line("ras.0.greeting", r"SERVER PROTOCOL"),
    "ras: keys": line("ras.0.text", r"nccl_version"),
    "ras: communicator keys": line("ras.0.text", r"secondary_hash"),
    "ras: rank keys": line("ras.0.text", r"nvml_dev"),
    "ras: pids": value("pids", [1, 2]),
    "ras: one behind": line("ras.0.text", r'AllReduce": 4'),
    "ras: hash": line("ras.0.text", r"0x5a4e000100000001"),
    "ras: text": line("ras.1.text", r"Comms"),
}
