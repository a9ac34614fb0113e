"""Every claim about the shape of lines, answers and dumps that the readers of logs and records rest on, in one place.

Sources: NCCL's and torch's sources of several releases, and logs that were posted; none of it was seen on a GPU of
ours. Names of groups are what a reader takes from the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# waiter: the rank that times out in an all-reduce. absent: the one that never enters it. any: whichever rank.
Place = Literal["waiter", "absent", "any"]


@dataclass(frozen=True)
class Anchor:
    """``near``: a word of the line, by which one that looks otherwise now is found."""

    name: str
    pattern: str
    place: Place
    near: str

    def find(self, text: str) -> re.Match[str] | None:
        return re.search(self.pattern, text, re.MULTILINE)

    def nearest(self, text: str) -> str | None:
        return next((line.strip() for line in text.splitlines() if self.near in line), None)


# With NCCL_DEBUG=INFO.
NCCL = (
    Anchor("NCCL prefix", r"(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<device>\d+)\] NCCL INFO ", "any", "NCCL"),
    Anchor("NCCL version", r"NCCL version (?P<version>\d+\.\d+\.\d+)", "any", "version"),
    Anchor(
        "NCCL init",
        r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) n[Rr]anks (?P<size>\d+) .*cudaDev (?P<device>\d+) .*"
        r"commId (?P<hash>0x[0-9a-f]+) .*Init COMPLETE",
        "any",
        "Init COMPLETE",
    ),
)
# Of torch, when a collective on NCCL times out.
WATCHDOG = (
    Anchor(
        "torch prefix",
        r"\[rank(?P<rank>\d+)\]:\[(?P<severity>[IWEF])(?P<date>\d{3,4}) (?P<time>\d\d:\d\d:\d\d\.\d+) "
        r"(?P<file>[\w.]+):(?P<line>\d+)\] \[PG ID (?P<pg>\d+) PG GUID (?P<guid>\S+) Rank (?P<pg_rank>\d+)\]",
        "waiter",
        "ProcessGroupNCCL.cpp",
    ),
    Anchor(
        "watchdog timeout",
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+), "
        r"NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+), Timeout\(ms\)=(?P<timeout_ms>\d+)\) "
        r"ran for (?P<ran_ms>\d+) milli",
        "waiter",
        "Watchdog caught",
    ),
    Anchor(
        "PG status",
        r"failure detected by watchdog at work sequence id: (?P<seq>\d+) PG status: "
        r"last enqueued work: (?P<enqueued>-?\d+),(?: last started work: -?\d+(?: \(\w+\))?,)? "
        r"last completed work: (?P<completed>-?\d+)",
        "waiter",
        "detected by watchdog",
    ),
    Anchor("first to dump", r"First PG on this rank to signal dumping", "waiter", "signal dumping"),
    Anchor("stack of the collective", r"Stack trace of the failed collective", "waiter", "failed collective"),
    Anchor("dump seen", r"Observed flight recorder dump signal from another rank", "absent", "dump signal from"),
    Anchor(
        "dump signal",
        r"Received a dump signal due to a collective timeout from\s+(?:this local rank|rank (?P<from>-?\d+)).*"
        r"Last enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: (?P<completed>-?\d+)",
        "absent",
        "a dump signal",
    ),
)
GLOO = (Anchor("gloo timeout", r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send)", "waiter", "Timed out"),)

# Of a flight recorder's dump, schema 2.x; gloo's has fewer.
DUMP_KEYS = frozenset({"version", "entries", "pg_config", "pg_status"})
PG_STATUS_KEYS = frozenset({"last_enqueued_collective", "last_started_collective", "last_completed_collective"})
ENTRY_KEYS = frozenset(
    {
        *("record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "is_p2p"),
        *("profiling_name", "time_created_ns", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes"),
        *("state", "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms"),
    }
)
ENTRY_STATES = ("scheduled", "started", "completed")

# Of an answer to STATUS in JSON (NCCL 2.28.7 and newer), and of its text before that.
RAS_KEYS = frozenset({"nccl_version", "communicators_count", "communicators", "ras"})
COMMUNICATOR_KEYS = frozenset({"hash", "secondary_hash", "size", "ranks_count", "missing_ranks_count", "ranks"})
RANK_KEYS = frozenset({"rank", "host", "pid", "cuda_dev", "nvml_dev", "status", "collective_counts"})
RAS_TEXT = Anchor("RAS text", r"Group\s+.*Comms\s+.*Nodes\s+.*Ranks", "any", "Group")
