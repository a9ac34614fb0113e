"""Single lines that report an end: which rows of the tables a line has, and of which process group it is.

A row has an expression, and the fields that it gives an event. None of the programs promises its wording, so fields are
looked for loosely.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mltop.probes.model.evidence.logs import EventKind

Fields = dict[str, Any]  # of LogEvent
Read = Callable[["re.Match[str]"], Fields]

MOST_NAMED = 4096
# As the C library and the shell call them.
SIGNALS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Aborted": 6,
}
_SIGNAL_NUMBERS = {each.name[len("SIG") :]: int(each) for each in signal.Signals} | {
    name.replace(" ", ""): number for name, number in SIGNALS.items()
}


@dataclass(frozen=True)
class Row:
    """``holds``: words without which the expression need not be tried."""

    holds: str
    expression: re.Pattern[str]
    kind: EventKind
    read: Read
    fixed: Fields

    def fields(self, match: re.Match[str]) -> Fields:
        """Raises ValueError, OverflowError: thousands of digits, several points."""
        return {**self.fixed, **self.read(match)}


def row(expression: str, kind: EventKind, read: Read | None = None, /, **fixed: Any) -> Row:
    """``expression``: what stands between "`" are the words that a line must have, as they are. Without ``read`` its
    groups are the fields of their names. ``fixed``: fields that it always has. Of rows with the same words the first
    that matches counts.
    """
    before, words, after = expression.split("`")
    # A terminal that wrapped a line may have put blanks anywhere: where ours has one, any number may stand.
    found = re.compile(f"{before}{words}{after}".replace(" ", r"\s*"))
    return Row(re.sub(r"\\(\W)", r"\1", words), found, kind, read or by_name, fixed)


def numbers(text: str) -> tuple[int, ...]:
    """ "1, 2" or "0-2,5"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,8})(?: ?- ?(\d{1,8}))?", text):
        found += range(int(first), min(int(last or first), int(first) + MOST_NAMED) + 1)
    return tuple(found[:MOST_NAMED])


def ended_with(code: int) -> Fields:
    """A code as Popen returns it: a negative one is a signal, SIGTERM that of a launcher that ends the others."""
    how = "exit" if code >= 0 else "stopped" if code == -signal.SIGTERM else "signal"
    return {"how": how, "code": abs(code)}


_READERS: dict[str, Callable[[str], Fields]] = {
    "named": lambda text: {"named": numbers(text)},
    "tasks": lambda text: {"named": numbers(", ".join(re.findall(r"task:(\d{1,8})", text)))},  # JAX's
    "sizes": lambda text: {"sizes": tuple(map(int, re.findall(r"\d+", text)))},
    "ran_s": lambda text: {"ran_s": float(text)},
    "ran_ms": lambda text: {"ran_s": int(text) / 1000},
    "exitcode": lambda text: ended_with(int(text)),
    "signal": lambda text: {"how": "signal", "code": _SIGNAL_NUMBERS.get("".join(text.split()))},
}
_NUMBERS = ("rank", "pid", "code", "sequence", "enqueued", "started", "completed", "group_rank", "attempt")


def by_name(match: re.Match[str]) -> Fields:
    """The groups that matched, as numbers where they are some. A digit at a name's end tells alternatives apart."""
    found: Fields = {}
    for group, value in match.groupdict().items():
        name = group.rstrip("123")
        if value is not None and name in _READERS:
            found.update(_READERS[name](value))
        elif value is not None:
            found[name] = int(value) if name in _NUMBERS else value
    return found


# What others write of ranks: launchers (torchrun, DeepSpeed, Composer, Lightning, MPI, srun), supervisors (Ray, vLLM,
# SGLang, Kubernetes), coordinators (JAX, NVRx, Ascend), Slurm and the kernel. Sources: torch elastic/multiprocessing
# and elastic/agent, deepspeed launcher/launch.py, composer cli/launcher.py, lightning subprocess_script.py, Open MPI
# and PRRTE help-*.txt, MPICH pmiserv_cb.c and ch4_globals.c, Slurm launch.c and slurmstepd/req.c, Ray exceptions.py
# and train/_internal, vLLM v1/executor and v1/engine (0.8 to 0.11), SGLang engine.py, XLA coordination_service.cc,
# NVRx rank_monitor_server.py.


def _lightnings_child(match: re.Match[str]) -> Fields:
    """It reports the first that ended, and kills the others. Its number is one within the node."""
    fields = by_name(match)
    code = fields["code"]
    return {**fields, "rank": None, "how": "signal" if code < 0 else "exit", "code": abs(code)}


def _device(match: re.Match[str]) -> Fields:
    return {"node": match["node"], "process": f"device {match['device']} of {match['node']}"}


def _lost(expression: str, **fixed: Any) -> Row:
    """A process is gone. ``process``: its name, whose number is a rank where its engine counts so."""
    return row(expression, "worker_lost", by_launcher=True, **fixed)


_TASKS = r"(?P<tasks>(?: ?/job:\w+/replica:\d+/task:\d+,?)+)"
_SRUN = r"`srun: error: `(?P<node>[\w.-]+): tasks? (?P<named>\d[\d,-]*): "
_CANCELLED = r"\*\*\* (?:STEP|JOB) [\w.+]+\s+ON\s+(?P<node>[\w.-]+) `CANCELLED AT` \S+"
_KILLED_FOR_MEMORY: Fields = {"how": "oom", "code": 9}
LAUNCHERS: tuple[Row, ...] = (
    row(r"Did not get (?:initial|subsequent) `heartbeat`\. Waited (?P<ran_s>[\d.]+) seconds", "heartbeat_named"),
    row(r"Section '?(?P<op>[\w.-]+)'? `has been open for` (?P<ran_s>[\d.]+) seconds\. Timeout is", "heartbeat_named"),
    row(r"`Unhealthy ranks` \w+: \[(?P<named>\d[\d, ]*)", "remote_named"),
    row(
        r"Interruption\.(?:UNRESPONSIVE|TERMINATED|(?:BASE_)?EXCEPTION) `affecting ranks` (?P<named>\d[\d, ]*)",
        "remote_named",
    ),
    row(r"following ranks `have not called it`: \[(?P<named>\d[\d, ]*)", "barrier_named"),
    row(rf"`imed out task names`:{_TASKS}", "barrier_named"),
    row(rf"tasks `are unhealthy` .{{0,40}}?:{_TASKS}", "heartbeat_named"),
    row(r"`tasks are unhealthy` .{0,40}?: (?P<named>\d[\d, ]*)(?!/)", "heartbeat_named"),
    row(r"\b[Tt]ask (?:/job:\w+/replica:\d+/task:)?(?P<named>\d+) `heartbeat timeout`", "heartbeat_named"),
    row(r"task:(?P<named>\d+) unexpectedly tried to connect .{0,40}?`different incarnation`", "remote_named"),
    row(r"`from remote worker` /job:\w+/replica:\d+/task:(?P<named>\d+)", "remote_named"),
    row(r"`Terminating process because` the (?:coordinator|JAX|leader)", "aborted"),
    row(r"`crimer rank` \[(?P<node>[\w.:]+)/(?P<device>\d+)\]", "worker_lost", _device),
    row(r"`Cluster Exception Location`\[IP/ID\]:\[(?P<node>[\w.:]+)/(?P<device>\d+)\]", "worker_lost", _device),
    _lost(
        r"orker died or was killed .{0,600}?Worker IP address: (?P<node>[\w.:-]+) .{0,40}?`Worker PID: `(?P<pid>\d+)"
    ),
    _lost(r"`running low on memory`.{0,200}?\(IP: (?P<node>[\w.:]+).{0,300}?\bpid=(?P<pid>\d+)"),
    _lost(r"`actor died` .{0,300}?\bpid: (?P<pid>\d+) .{0,120}?\bip: (?P<node>[\w.:-]+)"),
    row(r"address: (?P<node>[\w.:-]+) and node name: .{0,200}?`has been marked dead`", "node_failure"),
    row(r"\brank (?P<rank>\d+) in world size (?P<sequence>\d+) `is assigned as`", "world"),
    _lost(r"Worker proc (?P<process>\w+-(?P<rank>\d+)) `died unexpectedly`"),
    _lost(r"RayWorkerProc rank=\[(?P<rank>\d+)\] `died unexpectedly`"),
    _lost(r"ngine core proc(?:ess)? (?P<process>\w+) `died unexpectedly`"),
    _lost(r"Worker (?P<process>\w+) pid (?P<pid>\d+) `died, exit code`(?!: -15\b)"),
    _lost(r"Process (?P<process>\w+) \(PID: (?P<pid>\d+)\) `died with exit code`"),
    _lost(r"Rank (?P<rank>\d+) `scheduler is dead`"),
    _lost(r"Child process `unexpectedly failed with` .{0,40}?pid=(?P<pid>\d+)"),
    _lost(
        r"`noticed that process rank` (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on "
        r"signal (?P<code>\d+)",
        how="signal",
    ),
    _lost(r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) `exiting improperly`"),
    # Open MPI's and Horovod's "The first process to do so was:"
    _lost(r"`Process name: `(?:\[\[\d+,\d+\],)?(?P<rank>\d+)\]? Exit code: (?P<code>\d+)", how="exit"),
    _lost(r"MPI_A(?:BORT|bort)(?:\(\))? `was invoked on rank` (?P<rank>\d+)"),
    # MPICH's "node" is a rank.
    _lost(r"Abort\(\d+\) on node \d+ `\(rank `(?P<rank>\d+) in comm \d+\): application called"),
    _lost(r"RANK (?P<rank>\d+) PID (?P<pid>\d+) `RUNNING AT` (?P<node>[\w.-]+)"),
    row(r"(?<![\w.-])(?P<node>[a-z\d][\w.-]{0,80}) \d{1,4}/\d{1,4} `OOMKilled`", "oom_kill", **_KILLED_FOR_MEMORY),
    row(
        r"\[rank: (?P<group_rank>\d+)\] `Child process with PID` (?P<pid>\d+) terminated with code (?P<code>-?\d+)",
        "exit",
        _lightnings_child,
        is_first=True,
        by_launcher=True,
    ),
    # SIGABRT is what a rank's own watchdog ends it with.
    row(rf"{_SRUN}(?P<signal>Aborted)", "exit"),
    row(rf"{_SRUN}(?P<signal>{'|'.join(SIGNALS)})", "died"),
    row(rf"{_SRUN}Out Of Memory", "oom_kill", **_KILLED_FOR_MEMORY),
    row(rf"{_SRUN}.{{0,80}}?exit code (?P<code>\d{{1,3}})", "exit", how="exit"),
    row(rf"{_SRUN}.", "exit", how="stopped", code=15),
    row(r"Detected \d+` oom`[_-]kill event", "oom_kill", **_KILLED_FOR_MEMORY),
    row(r"`Out of memory: Killed process` (?P<pid>\d+)", "oom_kill", **_KILLED_FOR_MEMORY),
    row(r"Memory cgroup out of memory: `Killed process` (?P<pid>\d+)", "oom_kill", **_KILLED_FOR_MEMORY),
    row(  # 45 is written for a process that is gone
        r"`NVRM: Xid` \((?:PCI:)?(?P<device>[\da-fA-F:.]+)\): (?!45\b)(?P<code>\d+)(?:, pid='?(?P<pid>\d+))?", "xid"
    ),
    row(rf"{_CANCELLED} DUE TO TIME LIMIT", "time_limit"),
    row(rf"{_CANCELLED} DUE TO PREEMPTION", "preempted"),
    row(rf"{_CANCELLED.replace('?P<node>', '?:')} DUE TO NODE FAIL", "node_failure"),  # of which node is not said
    row(rf"{_CANCELLED} DUE TO TASK FAILURE", "launcher_failed", code=1),  # one ended badly: srun ends the rest
    row(rf"{_CANCELLED}(?!\S)(?: DUE TO JOB REQUEUE|(?! ?DUE TO))", "cancelled"),
    row(
        r"[1-9]\d* Workers .{0,30}?killed `due to memory pressure` .{0,200}?IP: (?P<node>[\w.:]+)\)",
        "oom_kill",
        **_KILLED_FOR_MEMORY,
    ),
    row(
        r"(?<![\w.-])(?P<node>[a-z\d][\w.-]{0,80}) \d{1,4}/\d{1,4} `Evicted`",
        "node_failure",  # of kubectl get pods
    ),
    row(r"`Task launch for` (?:StepId=)?[\d.+]+ failed on node (?P<node>[\w.-]+): ", "node_failure"),
    row(r"`There are not enough slots` available in the system", "exception"),
    row(r"`ORTE was unable to` reliably start one or more daemons", "exception"),
    row(r"slurmstepd: `error: execve\(\): `\S", "exception"),
    row(r"`Remote daemon: `\[\[\d+,\d+\],\d+\] on node (?P<node>[\w.-]+)", "node_failure"),
    row(r"error: `Node failure` on (?P<node>[\w.-]+)", "node_failure"),
    row(r"Received (?:Signals\.SIG)?(?:SIGINT|2) `death signal`", "interrupted"),
    row(r"Received (?:Signals\.SIG)?(?:SIGTERM|15|SIGHUP|1) `death signal`", "terminated"),
    row(r"Sending process (?P<pid>\d+) `closing signal` SIG\w+", "terminated"),
    row(r"`failed \(exitcode`: (?P<code>-?\d+)\) local_rank: (?P<named>\d+) \(pid: (?P<pid>\d+)\)", "agent_failed"),
    row(
        r"\b[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?`crashed with exit code` (?P<exitcode>-?\d+)",
        "exit",
        is_first=True,
    ),
    row(r"\b[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?`exited with code` (?P<exitcode>-?\d+)", "exit"),
    # DeepSpeed's, of whichever child ended first; the command it prints is that of the last one it started.
    row(r"`exits with return code` = (?P<code>-?\d+)", "launcher_failed"),
    # What launchers and frameworks say of how many ranks there are: DeepSpeed, Megatron, Lightning.
    row(r"\b`dist_world_size=`(?P<sequence>\d+)", "world"),
    row(r"`using world size:` (?P<sequence>\d+)", "world"),
    row(r"GLOBAL_RANK: \d+, `MEMBER:` \d+/(?P<sequence>\d+)", "world"),
)


# What ranks and their libraries write: torch's c10d, gloo, NCCL, HCCL, UCX, Horovod, Megatron, Python itself. Sources:
# torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, TraceUtils.h, reducer.cpp) of torch 2.0 to
# 2.13, third_party/gloo, nccl/src, Megatron core/rerun_state_machine.py, SGLang managers/scheduler.py.

_VARIES = re.compile(r"Tensor(?:Dtypes|DeviceTypes)=.*|\s+")
_CRASHES = "|".join(SIGNALS)
# In C++ exceptions of a rank that waits for others, or whose process is ending.
_OF_A_TEARDOWN = (
    r".{0,300}?(?:\[Rank|\bPG\b|NCCL|c10d|gloo|TCPStore|[Ww]atchdog|[Cc]onnect|[Ss]ocket|[Pp]eer|[Bb]arrier"
    r"|[Bb]roken pipe|Timed out|(?<!launch)\Wtimed out|driver shutting down|EPIPE)"
)
_ABORTED: Fields = {"how": "signal", "code": 6}


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
    row(  # a terminal wrapped it within a word
        r"`caught collective op`eration timeout: ?WorkNCCL\(SeqNum=(?P<sequence>\d+), (?:OpType=(?P<op>\w+),)?"
        r"(?!.{0,200}?Timeout\(ms\))",
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
    row(r"`NCCL WARN Call to` ibv_modify_qp .{0,20}?failed .{0,20}?timed out", "peer_lost"),
    row(r"`NCCL WARN Call to` ibv_(?:create|reg|alloc|open|query|get|modify)\w* .{0,20}?failed", "exception"),
    row(r"`NCCL WARN Cuda failure` (?:\d+ )?'(?!driver shutting down)", "exception"),
    row(r"Test `CUDA failure` \S+:\d+ '", "exception"),  # nccl-tests
    row(r"`NCCL WARN Error while creating` shared memory segment", "exception"),
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
    row(r"`aborting with error : HSA_STATUS_ERROR`", "exception", device="GPU"),
    row(r"`libgomp: Thread creation failed`", "exception"),
    # C++'s, of an exception that nobody caught
    row(rf"^ `what\(\): ` (?!{_OF_A_TEARDOWN})\S", "exception"),
    # absl's handler, of JAX and Ray, and the shell's word for it
    row(r"`\*\*\* SIG`(?P<signal>SEGV|BUS|ABRT|ILL|FPE) .{0,120}?received ", "fatal_signal"),
    row(rf"^(?P<signal>{_CRASHES}) `\(core dumped\)`", "fatal_signal"),
    # glibc, which found its heap or its stack damaged, before it aborts: malloc/malloc.c, debug/stack_chk_fail.c
    row(r"`double free or` corruption", "fatal_signal", **_ABORTED),
    row(
        r"(?:free|munmap_chunk|realloc)`\(\): invalid` (?:pointer|size|next size|old size)", "fatal_signal", **_ABORTED
    ),
    row(r"`malloc\(\): `(?:corrupted|invalid|unsorted|unaligned|mismatching|memory corr)", "fatal_signal", **_ABORTED),
    row(r"`corrupted `(?:size vs\. prev_size|double-linked list)", "fatal_signal", **_ABORTED),
    row(r"`stack smashing detected`", "fatal_signal", **_ABORTED),
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


ANCHORS: tuple[Row, ...] = (*RANKS, *LAUNCHERS)
THINNED = re.compile(r"\[repeated \d+x across cluster\]")
_GROUP = re.compile(
    r"\[PG(?: ID)? (?P<id>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))?(?: ?\((?P<name>[^()\]]{0,80})\))? Rank (?P<rank>\d+)\]"
)
_OLD_RANK = re.compile(r"\[Rank (\d+)\]")


def events_in(text: str) -> Iterator[tuple[Row, Fields, bool]]:
    """Each anchor once, in the order of the table; of those with the same words the first. Last: whether it ends
    where the text does: a line that was wrapped or cut off there may have lost the end of a number.
    """
    matched = ""
    for anchor in ANCHORS:
        if anchor.holds == matched or anchor.holds not in text:
            continue
        match = anchor.expression.search(text)
        fields = None if match is None else _plausible(anchor, match)
        if match is not None and fields is not None:
            matched = anchor.holds
            yield anchor, fields, match.end() >= len(text.rstrip())


def _plausible(anchor: Row, match: re.Match[str]) -> Fields | None:
    """The fields; None where a number is none that torch or Slurm would write."""
    try:
        fields = anchor.fields(match)
    except (ValueError, OverflowError):  # thousands of digits, several points
        return None
    launched, ended = fields.get("enqueued"), fields.get("completed")
    if isinstance(launched, int) and isinstance(ended, int) and not -1 <= ended <= launched:
        fields = {**fields, "completed": None}  # torch 2.3 and 2.4 print what is in memory, before the first has ended
    figures = [value for value in fields.values() if isinstance(value, (int, float))]
    return fields if all(abs(value) < _LARGEST for value in figures) else None


_LARGEST = 1 << 62


def group_of(text: str) -> Fields:
    """The process group of a line of c10d, and the rank in it."""
    match = _GROUP.search(text)
    if match is None:
        old = _OLD_RANK.search(text)
        return {"group_rank": int(old[1])} if old else {}
    name = match["name"] or ""
    is_default = name.startswith("default") or match["guid"] == "0" or (not name and match["id"] == "0")
    key = "" if is_default else match["guid"] or f"id {match['id']}"
    return {"group": key, "group_name": name, "group_rank": int(match["rank"])}
