"""What ranks and their libraries write: torch's c10d, gloo, NCCL, HCCL, UCX, Horovod, Megatron, Python itself.

Sources: torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, TraceUtils.h, reducer.cpp) of torch
2.0 to 2.13, third_party/gloo, nccl/src, Megatron core/rerun_state_machine.py, SGLang managers/scheduler.py.
"""

from __future__ import annotations

import re

from mltop.probes.collect.logs.rows import SIGNALS, Fields, Row, row

_VARIES = re.compile(r"Tensor(?:Dtypes|DeviceTypes)=.*|\s+")
_CRASHES = "|".join(SIGNALS)


def _fingerprints(match: re.Match[str]) -> Fields:
    """``op`` and ``device``: what the first and the second of them run."""
    one, of_one, other, of_other = match.groups()
    return {"named": (int(one), int(other)), "op": _VARIES.sub("", of_one), "device": _VARIES.sub("", of_other)}


_COUNTERS = r": (?P<enqueued>-?\d+), last completed NCCL work: (?P<completed>-?\d+)"
RANKS: tuple[Row, ...] = (
    row(
        r"`caught collective op`eration timeout: ?WorkNCCL\(SeqNum=(?P<sequence>\d+), ?OpType=(?P<op>\w+)"
        r"(?:, ?(?P<sizes>NumelIn=\d+, ?NumelOut=\d+))?(?:, ?\w[\w ]*=[^,()]*)*?, ?"
        r"Timeout\(ms\)=\d+\)(?: ran for (?P<ran_ms>\d+) milli)?",
        "collective_timeout",
        ran_s=None,
    ),
    row(
        r"at work sequence id: (?P<sequence>\d+) `PG status`: last enqueued work: (?P<enqueued>-?\d+),"
        r"(?: last started work: (?P<started>-?\d+)(?: \((?P<op>\w+)\))?,)? last completed work: (?P<completed>-?\d+)",
        "counters",
    ),
    row(
        rf"(?:by watchdog at work|Timeout at NCCL work): (?P<sequence>\d+), `last enqueued NCCL work`{_COUNTERS}",
        "counters",
    ),
    row(
        r"Received a `dump signal` due to a collective timeout from (?:this local rank|rank (?:-\d+|(?P<named>\d+)))"
        rf".{{0,200}}?Last enqueued NCCL work{_COUNTERS}",
        "dump_signal",
    ),
    row(rf"`Received a global timeout` from another rank.{{0,120}}?Last enqueued NCCL work{_COUNTERS}", "dump_signal"),
    row(r"First PG on this rank to `signal dumping`", "first_to_dump"),
    row(r"`watchdog got stuck` for (?P<ran_s>\d+) seconds", "stuck_watchdog"),
    row(r"`atchdog timeout` \(self\.watchdog_timeout=(?P<ran_s>\d+)", "stuck_watchdog"),
    row(r"Could not `acquire GIL` within \d+ ms on exit", "gil_held"),
    row(r"`remote error detected` from rank: (?P<named>\d+)", "remote_named"),
    row(r"Ranks? (?P<named>\d[\d, ]*) failed `to pass monitoredBarrier` in (?P<ran_ms>\d+) ms", "barrier_named"),
    # StoreCollectives, and torch's analyzer of flight records
    row(r"`issing ranks`(?: are)?: ?\{?(?P<named>\d[\d, ]*)", "barrier_named"),
    row(r"ranks \[(?P<named>[\d, ]+)\] are the `lagging ranks`", "desync_named"),
    row(
        r"\[(?P<named>\d+)\] finished collective #\d+, but didn't `join collective` #(?P<sequence>\d+)", "desync_named"
    ),
    row(r"Timed `out waiting` (?P<ran_ms>\d+) ?ms for (?P<op>send|recv)", "gloo_timeout"),
    row(
        r"`Got completion` from peer (?P<peer>[\w.:\[\]-]+?)<\d+>.{0,60}?(?:error (?P<code1>\d+)|"
        r"status=(?:(?P<code2>\d+)|\w+\((?P<code3>\d+)\)))(?:.{0,300}?hca (?P<device>[\w.-]+))?",
        "network",
    ),
    row(r"C`onnection closed by` (?:remote )?peer \[?(?P<peer>[\w.:-]+?)(?:\]:\d+|<\d+>)", "peer_lost"),
    row(
        r"`following async exception`: NCCL error: (?:remote process exited|remote error|unhandled system error)",
        "peer_lost",
    ),
    row(r"`Read error` \[(?P<peer>[\w.:-]+)\]:\d+: Connection reset by peer", "peer_lost"),
    row(r"c`onnectFullMesh failed`", "peer_lost"),
    row(r"`NCCL WARN Call to` .{0,80}?(?:failed|returned).{0,40}?Connection (?:refused|reset)", "peer_lost"),
    row(r"`NCCL WARN Call to` ibv_(?:create|reg|alloc|open|query|get)\w* .{0,20}?failed", "exception"),
    row(r"`NET/IB`P? ?: (?P<device>[\w.-]+):\d+.{0,20}? async .{0,10}?(?:fatal )?event", "port"),
    row(
        r"(?:\[Rank (?P<rank>\d+)\]|\[PG [^\[\]]{1,120}\]) (?:NCCL |Process group )?"
        r"w`atchdog thread terminated` with exception: (?:\[Rank \d+\] )?CUDA error: \w",
        "exception",
        device="GPU",
    ),
    row(r"`taking the entire process down`", "aborted"),
    row(r"`watchdog thread terminated` with exception", "aborted"),
    row(r"NCCL `communicator was aborted`", "aborted"),
    row(r"`Terminating the process after` attempting to dump", "aborted"),
    row(r'Failed to check the `"should dump" flag` on TCPStore', "store"),
    row(
        r"Rank (\d+) `is running collective`: CollectiveFingerPrint\((.{1,600}?)\)\)?,? but "
        r"Rank (\d+) is running collective: CollectiveFingerPrint\((.{1,600}?)\)(?:\)|\.|$)",
        "mismatch",
        _fingerprints,
    ),
    # "inconsistent 0 params" is the echo of a collective that was aborted.
    row(
        r"Rank (\d+) has (\d+ params), while rank (\d+) `has inconsistent` ([1-9]\d* params)", "mismatch", _fingerprints
    ),
    row(
        r"\.(?:cu|cuh|cpp|h):\d+:.{0,300}?block: \[[\d,]+\], thread: \[[\d,]+\] `Assertion` .{0,300}? failed",
        "device_assert",
    ),
    row(rf"`Fatal Python error`: (?P<signal>{_CRASHES})", "fatal_signal"),
    # ROCm's runtime, before it aborts the process
    row(r"`HW Exception by GPU` .{0,120}?reason ?:", "exception", device="GPU"),
    row(r"Memory `access fault by GPU` \S", "exception", device="GPU"),
    # absl's handler, of JAX and Ray, and the shell's word for it
    row(r"`\*\*\* SIG`(?P<signal>SEGV|BUS|ABRT|ILL|FPE) .{0,120}?received ", "fatal_signal"),
    row(rf"^(?P<signal>{_CRASHES}) `\(core dumped\)`", "fatal_signal"),
    # MPICH, of a rank whose call failed: it speaks of the others
    row(r"Abort\(\d+\)(?: on node \d+)? `\(rank `(?P<rank>\d+) in comm \d+\): Fatal error in", "aborted"),
    # UCX's handler, of MPI and of NCCL's plugins.
    row(
        r"\[(?P<node>[\w.-]+):(?P<pid>\d+)\s*:\d+:\s*\d+\] `Caught signal` (?P<code>\d{1,2}) ",
        "fatal_signal",
        how="signal",
    ),
    # Also where the job goes on.
    row(r"`Unexpected result` \w+ on rank (?P<rank>\d+) at iteration", "exception"),
    row(r"\brank (?P<group_rank>\d+) `nranks` (?P<sequence>\d+)", "world"),
)
