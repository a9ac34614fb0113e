"""What others write of ranks: launchers (torchrun, DeepSpeed, Composer, Lightning, MPI, srun), supervisors (Ray, vLLM,
SGLang, Kubernetes), coordinators (JAX, NVRx, Ascend), Slurm and the kernel.

Sources: torch elastic/multiprocessing and elastic/agent, deepspeed launcher/launch.py, composer cli/launcher.py,
lightning subprocess_script.py, Open MPI and PRRTE help-*.txt, MPICH pmiserv_cb.c and ch4_globals.c, Slurm launch.c and
slurmstepd/req.c, Ray exceptions.py and train/_internal, vLLM v1/executor and v1/engine (0.8 to 0.11), SGLang engine.py,
XLA coordination_service.cc, NVRx rank_monitor_server.py.
"""

from __future__ import annotations

import re
from typing import Any

from mltop.probes.collect.logs.rows import SIGNALS, Fields, Row, by_name, row


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
