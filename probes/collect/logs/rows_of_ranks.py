"""What ranks and their libraries write: torch's c10d, gloo, NCCL, HCCL, UCX, Horovod, Megatron, Python itself.

Sources: torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, TraceUtils.h, reducer.cpp) of torch
2.0 to 2.13, third_party/gloo, nccl/src, Megatron core/rerun_state_machine.py, SGLang managers/scheduler.py.
"""

from __future__ import annotations

import re

from mltop.probes.collect.logs.rows import Fields, Row, by_name, row

_VARIES = re.compile(r"Tensor(?:Dtypes|DeviceTypes)=.*|\s+")
_FATAL = {
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}


_SIGNALS = {"SIGSEGV": 11, "SIGBUS": 7, "SIGABRT": 6, "SIGILL": 4, "SIGFPE": 8}


def _timeout(match: re.Match[str]) -> Fields:
    fields = by_name(match)
    numel_in, numel_out = fields.pop("numel_in", None), fields.pop("numel_out", None)
    return {"ran_s": None, "sizes": (int(numel_in), int(numel_out)) if numel_in and numel_out else None, **fields}


def _dump(match: re.Match[str]) -> Fields:
    fields = by_name(match)
    source = int(fields.pop("source", -1))
    return {**fields, "named": (source,) if source >= 0 else ()}


def _fingerprints(match: re.Match[str]) -> Fields:
    """``op`` and ``device``: what the first and the second of them run."""
    one, of_one, other, of_other = match.groups()
    return {"named": (int(one), int(other)), "op": _VARIES.sub("", of_one), "device": _VARIES.sub("", of_other)}


_DUMPED = r"ast enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: (?P<completed>-?\d+)"
RANKS: tuple[Row, ...] = (
    row(
        "caught collective op",
        r"caught collective operation timeout: ?WorkNCCL\(SeqNum=(?P<sequence>\d+), ?OpType=(?P<op>\w+)"
        r"(?:, ?NumelIn=(?P<numel_in>\d+), ?NumelOut=(?P<numel_out>\d+))?(?:, ?\w[\w ]*=[^,()]*)*?, ?"
        r"Timeout\(ms\)=\d+\)(?: ran for (?P<ran_ms>\d+) milli)?",
        "collective_timeout",
        _timeout,
    ),
    row(
        "PG status",
        r"at work sequence id: (?P<sequence>\d+) PG status: last enqueued work: (?P<enqueued>-?\d+),"
        r"(?: last started work: (?P<started>-?\d+)(?: \((?P<op>\w+)\))?,)? last completed work: (?P<completed>-?\d+)",
        "counters",
    ),
    row(
        "last enqueued NCCL work",
        rf"(?:by watchdog at work|Timeout at NCCL work): (?P<sequence>\d+), l{_DUMPED}",
        "counters",
    ),
    row(
        "dump signal",
        r"Received a dump signal due to a collective timeout from (?:this local rank|rank (?P<source>-?\d+))"
        rf".{{0,200}}?L{_DUMPED}",
        "dump_signal",
        _dump,
    ),
    row(
        "Received a global timeout",
        rf"Received a global timeout from another rank.{{0,120}}?L{_DUMPED}",
        "dump_signal",
        _dump,
    ),
    row("signal dumping", r"First PG on this rank to signal dumping", "first_to_dump"),
    row("watchdog got stuck", r"watchdog got stuck for (?P<ran_s>\d+) seconds", "stuck_watchdog"),
    row("atchdog timeout", r"atchdog timeout \(self\.watchdog_timeout=(?P<ran_s>\d+)", "stuck_watchdog"),
    row("acquire GIL", r"Could not acquire GIL within \d+ ms on exit", "gil_held"),
    row("remote error detected", r"remote error detected from rank: (?P<named>\d+)", "remote_named"),
    row(
        "to pass monitoredBarrier",
        r"Ranks? (?P<named>\d[\d, ]*) failed to pass monitoredBarrier in (?P<ran_ms>\d+) ms",
        "barrier_named",
    ),
    # StoreCollectives, and torch's analyzer of flight records
    row("issing ranks", r"issing ranks(?: are)?: ?\{?(?P<named>\d[\d, ]*)", "barrier_named"),
    row("lagging ranks", r"ranks \[(?P<named>[\d, ]+)\] are the lagging ranks", "desync_named"),
    row(
        "join collective",
        r"\[(?P<named>\d+)\] finished collective #\d+, but didn't join collective #(?P<sequence>\d+)",
        "desync_named",
    ),
    row("out waiting", r"Timed out waiting (?P<ran_ms>\d+) ?ms for (?P<op>send|recv)", "gloo_timeout"),
    row(
        "Got completion",
        r"Got completion from peer (?P<peer>[\w.:\[\]-]+?)<\d+>.{0,60}?(?:error (?P<code1>\d+)|"
        r"status=(?:(?P<code2>\d+)|\w+\((?P<code3>\d+)\)))(?:.{0,300}?hca (?P<device>[\w.-]+))?",
        "network",
    ),
    row(
        "onnection closed by",
        r"Connection closed by (?:remote )?peer \[?(?P<peer>[\w.:-]+?)(?:\]:\d+|<\d+>)",
        "peer_lost",
    ),
    row("Read error", r"Read error \[(?P<peer>[\w.:-]+)\]:\d+: Connection reset by peer", "peer_lost"),
    row("onnectFullMesh failed", r"connectFullMesh failed", "peer_lost"),
    row(
        "NCCL WARN Call to",
        r"NCCL WARN Call to .{0,80}?(?:failed|returned).{0,40}?Connection (?:refused|reset)",
        "peer_lost",
    ),
    row(
        "NCCL WARN Call to",
        r"NCCL WARN Call to ibv_(?:create|reg|alloc|open|query|get)\w* .{0,20}?failed",
        "exception",
    ),
    row("NET/IB", r"NET/IBP? ?: (?P<device>[\w.-]+):\d+.{0,20}? async .{0,10}?(?:fatal )?event", "port"),
    row(
        "atchdog thread terminated",
        r"(?:\[Rank (?P<rank>\d+)\]|\[PG [^\[\]]{1,120}\]) (?:NCCL |Process group )?"
        r"watchdog thread terminated with exception: (?:\[Rank \d+\] )?CUDA error: \w",
        "exception",
        device="GPU",
    ),
    row("taking the entire process down", r"taking the entire process down", "aborted"),
    row("watchdog thread terminated", r"[Ww]atchdog thread terminated with exception", "aborted"),
    row("communicator was aborted", r"NCCL communicator was aborted", "aborted"),
    row("Terminating the process after", r"Terminating the process after attempting to dump", "aborted"),
    row('"should dump" flag', r'Failed to check the "should dump" flag on TCPStore', "store"),
    row(
        "is running collective",
        r"Rank (\d+) is running collective: CollectiveFingerPrint\((.{1,600}?)\)\)?,? but "
        r"Rank (\d+) is running collective: CollectiveFingerPrint\((.{1,600}?)\)(?:\)|\.|$)",
        "mismatch",
        _fingerprints,
    ),
    # "inconsistent 0 params" is the echo of a collective that was aborted.
    row(
        "has inconsistent",
        r"Rank (\d+) has (\d+ params), while rank (\d+) has inconsistent ([1-9]\d* params)",
        "mismatch",
        _fingerprints,
    ),
    row(
        "Assertion",
        r"\.(?:cu|cuh|cpp|h):\d+:.{0,300}?block: \[[\d,]+\], thread: \[[\d,]+\] Assertion .{0,300}? failed",
        "device_assert",
    ),
    row(
        "Fatal Python error",
        rf"Fatal Python error: ({'|'.join(_FATAL)})",
        "fatal_signal",
        lambda match: {"code": _FATAL[match[1]]},
        how="signal",
    ),
    # ROCm's runtime, before it aborts the process
    row("HW Exception by GPU", r"HW Exception by GPU .{0,120}?reason ?:", "exception", device="GPU"),
    row("access fault by GPU", r"Memory access fault by GPU \S", "exception", device="GPU"),
    # absl's handler, of JAX and Ray, and the shell's word for it
    row(
        "*** SIG",
        rf"\*\*\* (?P<signal>{'|'.join(_SIGNALS)}) .{{0,120}}?received ",
        "fatal_signal",
        lambda match: {"code": _SIGNALS[match["signal"]]},
        how="signal",
    ),
    row(
        "(core dumped)",
        rf"^({'|'.join(_FATAL)}) \(core dumped\)",
        "fatal_signal",
        lambda match: {"code": _FATAL[match[1]]},
        how="signal",
    ),
    # MPICH, of a rank whose call failed: it speaks of the others
    row("(rank ", r"Abort\(\d+\)(?: on node \d+)? \(rank (?P<rank>\d+) in comm \d+\): Fatal error in", "aborted"),
    # UCX's handler, of MPI and of NCCL's plugins.
    row(
        "Caught signal",
        r"\[(?P<node>[\w.-]+):(?P<pid>\d+)\s*:\d+:\s*\d+\] Caught signal (?P<code>\d{1,2}) ",
        "fatal_signal",
        how="signal",
    ),
    # Also where the job goes on.
    row("Unexpected result", r"Unexpected result \w+ on rank (?P<rank>\d+) at iteration", "exception"),
    row("nranks", r"\brank (?P<group_rank>\d+) nranks (?P<sequence>\d+)", "world"),
)
