"""Single lines that tell of an end, as a table: an expression, and what it gives. Sources: c10d, gloo, NCCL, torchrun,
Slurm and the kernel, of several releases each; none of them promises its wording, so fields are looked for loosely.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

from mltop.probes.model.evidence.logs import EventKind

Fields = dict[str, Any]  # of LogEvent


@dataclass(frozen=True)
class Anchor:
    """``holds``: words without which the expression need not be tried."""

    holds: str
    expression: re.Pattern[str]
    kind: EventKind
    fields: Callable[[re.Match[str]], Fields] = lambda _: {}


def _anchor(
    holds: str, expression: str, kind: EventKind, fields: Callable[[re.Match[str]], Fields] | None = None
) -> Anchor:
    # A terminal that wrapped a line may have put blanks anywhere: where ours has one, any number may stand.
    loose = re.compile(expression.replace(" ", r"\s*"))
    return Anchor(holds, loose, kind, fields or (lambda _: {}))


def _timeout(match: re.Match[str]) -> Fields:
    sequence, op, numel_in, numel_out, _, ran = match.groups()
    sizes = (int(numel_in), int(numel_out)) if numel_in and numel_out else None
    return {"sequence": int(sequence), "op": op, "sizes": sizes, "ran_s": int(ran) / 1000 if ran else None}


def _triple(match: re.Match[str]) -> Fields:
    sequence, enqueued, started, op, completed = match.groups()
    counts = {"enqueued": int(enqueued), "completed": int(completed), "started": int(started) if started else None}
    return {"sequence": int(sequence), "op": op or "", **counts}


def _older_triple(match: re.Match[str]) -> Fields:
    return {"sequence": int(match[1]), "enqueued": int(match[2]), "completed": int(match[3])}


def _dump(match: re.Match[str]) -> Fields:
    source = match["source"] if "source" in match.re.groupindex else None
    named = (int(source),) if source and int(source) >= 0 else ()
    return {"enqueued": int(match["enq"]), "completed": int(match["done"]), "named": named}


_MOST_NAMED = 4096


def numbers(text: str) -> tuple[int, ...]:
    """ "1, 2" or "0-2,5"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,8})(?: ?- ?(\d{1,8}))?", text):
        found += range(int(first), min(int(last or first), int(first) + _MOST_NAMED) + 1)
    return tuple(found[:_MOST_NAMED])


def _peer(match: re.Match[str]) -> Fields:
    return {"peer": match["peer"], "device": match["hca"] or "", "code": int(match["a"] or match["b"] or match["c"])}


def _gone(match: re.Match[str]) -> Fields:
    return {"peer": match[1] or ""}


def _tasks_of_jax(match: re.Match[str]) -> Fields:
    return {"named": numbers(", ".join(re.findall(r"task:(\d{1,8})", match[1])))}


def _fingerprints(match: re.Match[str]) -> Fields:
    """``op`` and ``device``: what the first and the second of them run."""
    one, of_one, other, of_other = match.groups()
    return {"named": (int(one), int(other)), "op": _VARIES.sub("", of_one), "device": _VARIES.sub("", of_other)}


_VARIES = re.compile(r"Tensor(?:Dtypes|DeviceTypes)=.*|\s+")


def _of_mpi(match: re.Match[str]) -> Fields:
    code = match["signal"]
    how = {"how": "signal", "code": int(code)} if code else {"how": "exit", "code": int(match["code"] or 1)}
    return {"rank": int(match["rank"]), "named": (int(match["rank"]),), "node": match["node"] or "", **how}


def _of_composer(match: re.Match[str]) -> Fields:
    code, pid = int(match["code"]), match["pid"]
    how = "exit" if code >= 0 else "stopped" if code == -15 else "signal"
    return {"rank": int(match["rank"]), "pid": int(pid) if pid else None, "how": how, "code": abs(code)}


def _lost(match: re.Match[str]) -> Fields:
    """``process``: its name, whose number is a rank where its engine counts so."""
    found = match.groupdict()
    pid, rank = found.get("pid"), found.get("rank")
    told = {"node": found.get("node") or "", "process": found.get("process") or "", "pid": int(pid) if pid else None}
    return {**told, "rank": int(rank) if rank else None, "by_launcher": True}


_SIGNALS_OF_SRUN = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}


def _lightnings_child(match: re.Match[str]) -> Fields:
    """It tells the first that ended, and kills the others. Its number is one within the node."""
    code = int(match[3])
    how = "signal" if code < 0 else "exit"
    told = {"rank": None, "group_rank": int(match[1]), "pid": int(match[2]), "how": how, "code": abs(code)}
    return {**told, "is_first": True, "by_launcher": True}


def _task(match: re.Match[str]) -> Fields:
    node, tasks, said = match["node"], match["tasks"], match["said"]
    word = said.strip()
    for name, number in _SIGNALS_OF_SRUN.items():
        if word.startswith(name):
            return {"node": node, "named": numbers(tasks), "how": "signal", "code": number}
    if word.startswith("Out Of Memory"):
        return {"node": node, "named": numbers(tasks), "how": "oom", "code": 9}
    if word.startswith("Aborted"):
        return {"node": node, "named": numbers(tasks), "how": "signal", "code": 6}
    code = re.search(r"exit code (\d{1,3})", word)
    if code:
        return {"node": node, "named": numbers(tasks), "how": "exit", "code": int(code[1])}
    return {"node": node, "named": numbers(tasks), "how": "stopped", "code": 15}


_FATAL = {
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}

ANCHORS: tuple[Anchor, ...] = (
    _anchor(
        "caught collective op",
        r"caught collective operation timeout: ?WorkNCCL\(SeqNum=(\d+), ?OpType=(\w+)(?:, ?NumelIn=(\d+), ?NumelOut"
        r"=(\d+))?(?:, ?\w[\w ]*=[^,()]*)*?, ?Timeout\(ms\)=(\d+)\)(?: ran for (\d+) milli)?",
        "collective_timeout",
        _timeout,
    ),
    _anchor(
        "PG status",
        r"at work sequence id: (\d+) PG status: last enqueued work: (-?\d+),(?: last started work: (-?\d+)"
        r"(?: \((\w+)\))?,)? last completed work: (-?\d+)",
        "counters",
        _triple,
    ),
    _anchor(
        "last enqueued NCCL work",
        r"(?:by watchdog at work|Timeout at NCCL work): (\d+), last enqueued NCCL work: (-?\d+), "
        r"last completed NCCL work: (-?\d+)",
        "counters",
        _older_triple,
    ),
    _anchor(
        "dump signal",
        r"Received a dump signal due to a collective timeout from (?:this local rank|rank (?P<source>-?\d+))"
        r".{0,200}?Last enqueued NCCL work: (?P<enq>-?\d+), last completed NCCL work: (?P<done>-?\d+)",
        "dump_signal",
        _dump,
    ),
    _anchor(
        "Received a global timeout",
        r"Received a global timeout from another rank.{0,120}?"
        r"Last enqueued NCCL work: (?P<enq>-?\d+), last completed NCCL work: (?P<done>-?\d+)",
        "dump_signal",
        _dump,
    ),
    _anchor("signal dumping", r"First PG on this rank to signal dumping", "first_to_dump"),
    _anchor(
        "watchdog got stuck",
        r"watchdog got stuck for (\d+) seconds",
        "stuck_watchdog",
        lambda m: {"ran_s": float(m[1])},
    ),
    _anchor("acquire GIL", r"Could not acquire GIL within \d+ ms on exit", "gil_held"),
    _anchor(
        "remote error detected",
        r"remote error detected from rank: (\d+)",
        "remote_named",
        lambda m: {"named": (int(m[1]),)},
    ),
    _anchor(
        "to pass monitoredBarrier",
        r"Ranks? (\d[\d, ]*) failed to pass monitoredBarrier in (\d+) ms",
        "barrier_named",
        lambda m: {"named": numbers(m[1]), "ran_s": int(m[2]) / 1000},
    ),
    _anchor(
        "ranks",
        r"ranks \[([\d, ]+)\] are the lagging ranks",
        "desync_named",
        lambda m: {"named": numbers(m[1])},
    ),
    _anchor(
        "join collective",
        r"\[(\d+)\] finished collective #(\d+), but didn't join collective #(\d+)",
        "desync_named",
        lambda m: {"named": (int(m[1]),), "sequence": int(m[3])},
    ),
    _anchor(
        "heartbeat",
        r"Did not get (?:initial|subsequent) heartbeat\. Waited ([\d.]+) seconds",
        "heartbeat_named",
        lambda m: {"ran_s": float(m[1])},
    ),
    _anchor(
        "has been open for",
        r"Section '?([\w.-]+)'? has been open for ([\d.]+) seconds\. Timeout is",
        "heartbeat_named",
        lambda m: {"op": m[1], "ran_s": float(m[2])},
    ),
    _anchor(
        "waiting",
        r"Timed out waiting (\d+) ?ms for (send|recv)",
        "gloo_timeout",
        lambda m: {"ran_s": int(m[1]) / 1000, "op": m[2]},
    ),
    _anchor(
        "Got completion",
        r"Got completion from peer (?P<peer>[\w.:\[\]-]+?)<\d+>.{0,60}?(?:error (?P<a>\d+)|"
        r"status=(?:(?P<b>\d+)|\w+\((?P<c>\d+)\)))(?:.{0,300}?hca (?P<hca>[\w.-]+))?",
        "network",
        _peer,
    ),
    _anchor(
        "onnection closed by",
        r"Connection closed by (?:remote )?peer \[?([\w.:-]+?)(?:\]:\d+|<\d+>)",
        "peer_lost",
        _gone,
    ),
    _anchor("Read error", r"Read error \[([\w.:-]+)\]:\d+: Connection reset by peer", "peer_lost", _gone),
    _anchor("onnectFullMesh failed", r"connectFullMesh failed", "peer_lost"),
    _anchor(
        "NCCL WARN Call to",
        r"NCCL WARN Call to .{0,80}?(?:failed|returned).{0,40}?Connection (?:refused|reset)",
        "peer_lost",
    ),
    _anchor(
        "async", r"NET/IBP? ?: ([\w.-]+):\d+.{0,20}? async .{0,10}?(?:fatal )?event", "port", lambda m: {"device": m[1]}
    ),
    _anchor(
        "atchdog thread terminated",
        r"\[Rank (\d+)\] (?:NCCL |Process group )?watchdog thread terminated with exception: (?:\[Rank \d+\] )?CUDA error: (\w.{0,80})",
        "exception",
        lambda m: {"rank": int(m[1]), "device": "GPU"},
    ),
    _anchor("taking the entire process down", r"taking the entire process down", "aborted"),
    _anchor("watchdog thread terminated", r"[Ww]atchdog thread terminated with exception", "aborted"),
    _anchor("communicator was aborted", r"NCCL communicator was aborted", "aborted"),
    _anchor("Terminating the process after", r"Terminating the process after attempting to dump", "aborted"),
    _anchor('"should dump" flag', r'Failed to check the "should dump" flag on TCPStore', "store"),
    _anchor(
        "Assertion",
        r"\.(?:cu|cuh|cpp|h):\d+:.{0,300}?block: \[[\d,]+\], thread: \[[\d,]+\] Assertion .{0,300}? failed",
        "device_assert",
    ),
    _anchor(
        "Fatal Python error",
        r"Fatal Python error: (Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception)",
        "fatal_signal",
        lambda m: {"how": "signal", "code": _FATAL[m[1]]},
    ),
    # UCX's handler, of MPI and of NCCL's plugins.
    _anchor(
        "Caught signal",
        r"\[(?P<node>[\w.-]+):(?P<pid>\d+)\s*:\d+:\s*\d+\] Caught signal (?P<code>\d{1,2}) ",
        "fatal_signal",
        lambda m: {"node": m["node"], "pid": int(m["pid"]), "how": "signal", "code": int(m["code"])},
    ),
    _anchor(
        "Child process with PID",
        r"\[rank: (\d+)\] Child process with PID (\d+) terminated with code (-?\d+)",
        "exit",
        _lightnings_child,
    ),
    _anchor(
        "srun: error: ", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\- ]+): (?P<said>.+)", "died", _task
    ),
    _anchor("oom", r"Detected \d+ oom[_-]kill event", "oom_kill", lambda _: {"how": "oom", "code": 9}),
    _anchor(
        "Out of memory: Killed process",
        r"Out of memory: Killed process (\d+)",
        "oom_kill",
        lambda m: {"how": "oom", "code": 9, "pid": int(m[1])},
    ),
    _anchor(
        "Killed process",
        r"Memory cgroup out of memory: Killed process (\d+)",
        "oom_kill",
        lambda m: {"how": "oom", "code": 9, "pid": int(m[1])},
    ),
    _anchor(  # 45 is written for a process that is gone
        "NVRM: Xid",
        r"NVRM: Xid \((?:PCI:)?([\da-fA-F:.]+)\): (?!45\b)(\d+)(?:, pid='?(\d+))?",
        "xid",
        lambda m: {"device": m[1], "code": int(m[2]), "pid": int(m[3]) if m[3] else None},
    ),
    _anchor(
        "CANCELLED AT",
        r"\*\*\* (?:STEP|JOB) ([\w.+]+) ON ([\w.-]+) CANCELLED AT \S+ DUE TO TIME LIMIT",
        "time_limit",
        lambda m: {"node": m[2]},
    ),
    _anchor(
        "CANCELLED AT",
        r"\*\*\* (?:STEP|JOB) ([\w.+]+) ON ([\w.-]+) CANCELLED AT \S+ DUE TO PREEMPTION",
        "preempted",
        lambda m: {"node": m[2]},
    ),
    _anchor(
        "CANCELLED AT", r"\*\*\* (?:STEP|JOB) ([\w.+]+) ON ([\w.-]+) CANCELLED AT \S+ DUE TO NODE FAIL", "node_failure"
    ),
    _anchor(
        "CANCELLED AT",
        r"\*\*\* (?:STEP|JOB) ([\w.+]+) ON ([\w.-]+) CANCELLED AT \S+(?! ?DUE)",
        "cancelled",
        lambda m: {"node": m[2]},
    ),
    _anchor("Node failure", r"error: Node failure on ([\w.-]+)", "node_failure", lambda m: {"node": m[1]}),
    # Ray's raylet (src/ray/core_worker: "worker died" details); vLLM v1/executor/multiproc_executor.py and
    # v1/engine/core_client.py.
    _anchor(
        "Worker PID: ",
        r"orker died or was killed .{0,600}?Worker IP address: (?P<node>[\w.:-]+) .{0,40}?Worker PID: (?P<pid>\d+)",
        "worker_lost",
        _lost,
    ),
    _anchor("died unexpectedly", r"Worker proc (?P<process>\w+-(?P<rank>\d+)) died unexpectedly", "worker_lost", _lost),
    _anchor("died unexpectedly", r"RayWorkerProc rank=\[(?P<rank>\d+)\] died unexpectedly", "worker_lost", _lost),
    _anchor("died unexpectedly", r"ngine core proc(?:ess)? (?P<process>\w+) died unexpectedly", "worker_lost", _lost),
    _anchor("died, exit code", r"Worker (?P<process>\w+) pid (?P<pid>\d+) died, exit code", "worker_lost", _lost),
    _anchor(
        "died with exit code", r"Process (?P<process>\w+) \(PID: (?P<pid>\d+)\) died with exit code", "worker_lost", _lost
    ),
    # SGLang's engine, of a scheduler's process
    _anchor("unexpectedly failed with", r"Child process unexpectedly failed with .{0,40}?pid=(?P<pid>\d+)", "worker_lost", _lost),
    _anchor(  # ray/exceptions.py
        "actor died",
        r"actor died .{0,300}?\bpid: (?P<pid>\d+) .{0,120}?\bip: (?P<node>[\w.:-]+)",
        "worker_lost",
        _lost,
    ),
    _anchor(  # ray/train/_internal/backend_executor.py
        "world_rank=",
        r"\bip=(?P<node>[\w.:-]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+)",
        "member",
        _lost,
    ),
    # Open MPI (orte, prte) and MPICH's hydra.
    _anchor(
        "noticed that process rank",
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on "
        r"signal (?P<signal>\d+)(?P<code>)",
        "worker_lost",
        _of_mpi,
    ),
    _anchor(
        "was invoked on rank",
        r"MPI_A(?:BORT|bort)(?:\(\))? was invoked on rank (?P<rank>\d+)(?P<node>)(?P<signal>)"
        r"(?:.{0,80}?errorcode (?P<code>\d+))?",
        "worker_lost",
        _of_mpi,
    ),
    _anchor(
        "exiting improperly",
        r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) exiting improperly(?P<signal>)(?P<code>)",
        "worker_lost",
        _of_mpi,
    ),
    # Open MPI's and Horovod's "The first process to do so was:"
    _anchor(
        "Process name: ",
        r"Process name: (?:\[\[\d+,\d+\],)?(?P<rank>\d+)\]?(?P<node>)(?P<signal>)(?P<code>)$",
        "worker_lost",
        _of_mpi,
    ),
    _anchor(
        "(rank ",
        r"Abort\((?P<code>\d+)\) on node \d+ \(rank (?P<rank>\d+) in comm \d+\): application called(?P<node>)(?P<signal>)",
        "worker_lost",
        _of_mpi,
    ),
    _anchor("RUNNING AT", r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<node>[\w.-]+)", "worker_lost", _lost),
    # Megatron core/rerun_state_machine.py, also where it goes on
    _anchor(
        "Unexpected result",
        r"Unexpected result \w+ on rank (\d+) at iteration",
        "exception",
        lambda m: {"rank": int(m[1])},
    ),
    # Kubernetes: kubectl get pods, describe
    _anchor(
        "OOMKilled",
        r"(?<![\w.-])(?P<node>[a-z\d][\w.-]{0,80}) \d{1,4}/\d{1,4} OOMKilled",
        "oom_kill",
        lambda m: {"how": "oom", "code": 9, "node": m["node"]},
    ),
    # torch's flight recorder analyzer and StoreCollectives; Ray Train v2 collective; NVRx attribution and inprocess
    _anchor(
        "issing ranks",
        r"issing ranks(?: are)?: ?\{?(\d[\d, ]*)",
        "barrier_named",
        lambda m: {"named": numbers(m[1])},
    ),
    _anchor(
        "have not called it",
        r"following ranks have not called it: \[(\d[\d, ]*)",
        "barrier_named",
        lambda m: {"named": numbers(m[1])},
    ),
    _anchor(
        "Unhealthy ranks", r"Unhealthy ranks \w+: \[(\d[\d, ]*)", "remote_named", lambda m: {"named": numbers(m[1])}
    ),
    _anchor(
        "affecting ranks",
        r"Interruption\.(?:UNRESPONSIVE|TERMINATED|(?:BASE_)?EXCEPTION) affecting ranks (\d[\d, ]*)",
        "remote_named",
        lambda m: {"named": numbers(m[1])},
    ),
    # Ascend's HCCL, whose heartbeats tell which device is gone
    _anchor(
        "crimer rank",
        r"crimer rank \[(?P<node>[\w.:]+)/(?P<process>\d+)\]",
        "worker_lost",
        lambda m: {"node": m["node"], "process": f"device {m['process']} of {m['node']}", "by_launcher": True},
    ),
    _anchor(
        "Cluster Exception Location",
        r"Cluster Exception Location\[IP/ID\]:\[(?P<node>[\w.:]+)/(?P<process>\d+)\]",
        "worker_lost",
        lambda m: {"node": m["node"], "process": f"device {m['process']} of {m['node']}", "by_launcher": True},
    ),
    # SGLang managers/scheduler.py
    _anchor(
        "atchdog timeout", r"atchdog timeout \(self\.watchdog_timeout=(\d+)", "stuck_watchdog", lambda m: {"ran_s": float(m[1])}
    ),
    # JAX's and TensorFlow's coordination service (tsl/distributed_runtime/coordination)
    _anchor("imed out task names", r"imed out task names:((?: ?/job:\w+/replica:\d+/task:\d+,?)+)", "barrier_named", _tasks_of_jax),
    _anchor(
        "are unhealthy", r"tasks are unhealthy .{0,40}?:((?: ?/job:\w+/replica:\d+/task:\d+,?)+)", "heartbeat_named", _tasks_of_jax
    ),
    _anchor(
        "heartbeat timeout",
        r"ask /job:\w+/replica:\d+/task:(\d+) heartbeat timeout",
        "heartbeat_named",
        lambda m: {"named": (int(m[1]),)},
    ),
    _anchor("Terminating process because", r"Terminating process because the (?:coordinator|JAX|leader)", "aborted"),
    _anchor(  # torch/csrc/distributed/c10d/reducer.cpp
        "has inconsistent",
        r"Rank (\d+) has (\d+ params), while rank (\d+) has inconsistent ([1-9]\d* params)",
        "mismatch",
        _fingerprints,
    ),
    _anchor(
        "is running collective",
        r"Rank (\d+) is running collective: CollectiveFingerPrint\((.{1,600}?)\)\)?,? but "
        r"Rank (\d+) is running collective: CollectiveFingerPrint\((.{1,600}?)\)(?:\)|\.|$)",
        "mismatch",
        _fingerprints,
    ),
    _anchor("signal", r"Received (?:Signals\.SIG)?(?:SIGINT|2) death signal", "interrupted"),
    _anchor("signal", r"Received (?:Signals\.SIG)?(?:SIGTERM|15|SIGHUP|1) death signal", "terminated"),
    _anchor(
        "closing signal", r"Sending process (\d+) closing signal (SIG\w+)", "terminated", lambda m: {"pid": int(m[1])}
    ),
    _anchor(
        "failed (exitcode",
        r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)",
        "agent_failed",
        lambda m: {"code": int(m[1]), "pid": int(m[3]), "named": (int(m[2]),)},
    ),
    # Composer's launcher (composer/cli/launcher.py) and others that say so.
    _anchor(
        "with exit code",
        r"\b[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?crashed with exit code (?P<code>-?\d+)",
        "exit",
        lambda m: {**_of_composer(m), "is_first": True},
    ),
    _anchor(
        "exited with code",
        r"\b[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?exited with code (?P<code>-?\d+)",
        "exit",
        _of_composer,
    ),
    # DeepSpeed's launcher, of whichever child ended first; the command it prints is the last one's that it started.
    _anchor(
        "exits with return code",
        r"exits with return code = (-?\d+)",
        "launcher_failed",
        lambda m: {"code": int(m[1])},
    ),
    _anchor(
        "nranks", r"\brank (\d+) nranks (\d+)", "world", lambda m: {"group_rank": int(m[1]), "sequence": int(m[2])}
    ),
    # What launchers and frameworks say of how many ranks there are: DeepSpeed, Megatron, Lightning.
    _anchor("dist_world_size=", r"\bdist_world_size=(\d+)", "world", lambda m: {"sequence": int(m[1])}),
    _anchor("using world size:", r"using world size: (\d+)", "world", lambda m: {"sequence": int(m[1])}),
    _anchor("MEMBER:", r"GLOBAL_RANK: \d+, MEMBER: \d+/(\d+)", "world", lambda m: {"sequence": int(m[1])}),
)
THINNED = re.compile(r"\[repeated \d+x across cluster\]")
_GROUP = re.compile(
    r"\[PG(?: ID)? (?P<id>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))?(?: ?\((?P<name>[^()\]]{0,80})\))? Rank (?P<rank>\d+)\]"
)
_OLD_RANK = re.compile(r"\[Rank (\d+)\]")


def events_in(text: str) -> Iterator[tuple[Anchor, Fields, bool]]:
    """Each anchor once, in the order of the table; of Slurm's cancellations the most exact one. Last: whether it ends
    where the text does: a line that was wrapped or cut off there may have lost the end of a number.
    """
    ended = False
    for anchor in ANCHORS:
        if anchor.holds not in text or (ended and anchor.holds == "CANCELLED AT"):
            continue
        match = anchor.expression.search(text)
        fields = None if match is None else _plausible(anchor, match)
        if match is not None and fields is not None:
            ended = ended or anchor.holds == "CANCELLED AT"
            yield anchor, fields, match.end() >= len(text.rstrip())


def _plausible(anchor: Anchor, match: re.Match[str]) -> Fields | None:
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
