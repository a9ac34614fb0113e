"""What NCCL and torch's watchdog write of a collective that times out, in the shapes that their sources have.

A log, RAS on NCCL_RAS_ADDR, flight recorder dumps at TORCH_NCCL_DEBUG_INFO_TEMP_FILE. MLTOP_FAKE_TORCH_RECORDS: a list
of [text, other text] (JSON) that lines, answers and dumps are changed by.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from torch import effects

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
PREFIX = os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "")
HASH = "0x5a4e000100000001"
LOOK_S = 0.05
launched = 0
ras_answered = threading.Event()  # in JSON and in text: a real timeout leaves time for both, a busy machine may not


def bent(text: str) -> str:
    for old, new in json.loads(os.environ.get("MLTOP_FAKE_TORCH_RECORDS", "[]")):
        text = text.replace(old, new)
    return text


def say(text: str) -> None:
    print(bent(text), flush=True)


def say_nccl(text: str) -> None:
    if os.environ.get("NCCL_DEBUG") == "INFO":
        say(f"{socket.gethostname()}:{os.getpid()}:{os.getpid() + 7} [0] NCCL INFO {text}")


def say_torch(severity: str, text: str) -> None:
    place = "ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0(default_pg) Rank"
    say(f"[rank{RANK}]:[{severity}1103 10:00:05.123456789 {place} {RANK}] {text}")


def begin() -> None:
    """The communicator is made."""
    if RANK == 0:
        say("NCCL version 2.30.7+cuda12.8")
        _serve_ras()
    else:
        threading.Thread(target=_heartbeat, daemon=True).start()
    told = f"rank {RANK} nRanks {SIZE} nNodes 1 localRanks {SIZE} localRank {RANK}"
    say_nccl(f"comm 0x55d5c0 {told} cudaDev 0 nvmlDev 0 busId 1b000 commId {HASH} - Init COMPLETE")


def time_out(timeout_s: float) -> None:
    """The watchdog's, in the rank that waits: it dumps, tells the others, and ends the process."""
    ras_answered.wait()
    work = f"SeqNum={launched}, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)={1000 * timeout_s:.0f}"
    say_torch(
        "E", f"Watchdog caught collective operation timeout: WorkNCCL({work}) ran for {1000 * timeout_s:.0f} milli"
    )
    counts = f"last enqueued work: {launched}, last completed work: {launched - 1}"
    say_torch("E", f"failure detected by watchdog at work sequence id: {launched} PG status: {counts}")
    say_torch("E", "First PG on this rank to signal dumping.")
    say("Stack trace of the failed collective: \n#0 all_reduce from distributed_c10d.py:2810")
    dump("started")
    with open(f"{PREFIX}signal", "w"):
        pass
    until = time.monotonic() + 20
    while not os.path.exists(f"{PREFIX}{SIZE - 1}") and time.monotonic() < until:
        time.sleep(LOOK_S)
    sys.stdout.flush()
    effects.leave()
    os.abort()


def _heartbeat() -> None:
    while not PREFIX or not os.path.exists(f"{PREFIX}signal"):
        time.sleep(LOOK_S)
    say_torch("E", "Observed flight recorder dump signal from another rank via TCPStore.")
    counts = f"Last enqueued NCCL work: {launched}, last completed NCCL work: {launched}."
    say_torch("E", f"Received a dump signal due to a collective timeout from  rank 0 and will try our best. {counts}")
    dump("completed")


def dump(state: str) -> None:
    """Of schema 2.10; whole at once."""
    entries = [_entry(seq, "completed" if seq < launched else state) for seq in range(1, launched + 1)]
    status = {"last_enqueued_collective": launched, "last_started_collective": launched, "last_completed_collective": 3}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    found = {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {"0": status}}
    found = json.loads(bent(json.dumps(found)))
    with open(f"{PREFIX}{RANK}.writing", "wb") as file:
        pickle.dump(found, file, protocol=2)
    os.replace(f"{PREFIX}{RANK}.writing", f"{PREFIX}{RANK}")


def _entry(seq: int, state: str) -> dict[str, Any]:
    return {
        "record_id": seq - 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq,
        "p2p_seq_id": 0, "op_id": seq, "is_p2p": False, "profiling_name": "nccl:all_reduce", "time_created_ns": seq,
        "input_sizes": [[1024]], "input_dtypes": ["Float"], "output_sizes": [[1024]], "output_dtypes": ["Float"],
        "state": state, "time_discovered_started_ns": seq, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 1500,
    }  # fmt: skip


def _serve_ras() -> None:
    host, _, port = os.environ.get("NCCL_RAS_ADDR", "").partition(":")
    if not port:
        ras_answered.set()
    else:
        server = socket.create_server((host, int(port)))
        threading.Thread(target=_answer_ras, args=(server,), daemon=True).start()


def _answer_ras(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("r") as asked:
            is_json = False
            for line in asked:
                if line.startswith("CLIENT"):
                    connection.sendall(b"SERVER PROTOCOL 2\n")
                elif "STATUS" in line:
                    connection.sendall(bent(_in_json() if is_json else TEXT).encode())
                    if not is_json:
                        ras_answered.set()
                    break
                else:
                    is_json = is_json or "json" in line
                    connection.sendall(b"OK\n")


def _in_json() -> str:
    """Pids of the other ranks are not known here: a rank writes its own beside the dumps."""
    pids = [int(Path(f"{PREFIX}pid{rank}").read_text()) for rank in range(SIZE)]
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    ranks = [
        {
            "rank": rank, "host": "127.0.0.1", "pid": pid, "cuda_dev": 0, "nvml_dev": 0, "status": status,
            "collective_counts": {"Broadcast": 0, "AllReduce": launched - (rank > 0)},
        }
        for rank, pid in enumerate(pids)
    ]  # fmt: skip
    communicator = {"hash": HASH, "secondary_hash": "0x3c:0x4d", "size": SIZE, "ranks_count": SIZE}
    communicator |= {"missing_ranks_count": 0, "ranks": ranks, "missing_ranks": []}
    found = {"nccl_version": "2.30.7", "cuda_runtime_version": 12080, "cuda_driver_version": 13000}
    found |= {"communicators_count": 1, "communicators": [communicator]}
    return json.dumps(found | {"ras": {"collection_time_sec": 0.004, "timeouts_count": 0}}, indent=1)


TEXT = """NCCL version 2.30.7 compiled with CUDA 12.8
Group     Comms     Nodes     Ranks     Ranks     Ranks     Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2    RUNNING  MISMATCH
"""
