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

from mltop.probes.collect.logs.rows import Fields, Row, by_name, numbers, row

_SIGNALS_OF_SRUN = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Aborted": 6,
}
_SIGTERM = 15


def _task(match: re.Match[str]) -> Fields:
    """Of srun: what it says of its tasks."""
    told: Fields = {"node": match["node"], "named": numbers(match["tasks"])}
    word = match["said"].strip()
    number = next((number for name, number in _SIGNALS_OF_SRUN.items() if word.startswith(name)), None)
    code = re.search(r"exit code (\d{1,3})", word)
    if number is not None:
        return {**told, "how": "signal", "code": number}
    if word.startswith("Out Of Memory"):
        return {**told, "how": "oom", "code": 9}
    return {**told, "how": "exit", "code": int(code[1])} if code else {**told, "how": "stopped", "code": _SIGTERM}


def _ended(match: re.Match[str]) -> Fields:
    """A code as Popen tells it: a negative one is a signal."""
    fields = by_name(match)
    code = fields["code"]
    how = "exit" if code >= 0 else "stopped" if code == -_SIGTERM else "signal"
    return {**fields, "how": how, "code": abs(code)}


def _lightnings_child(match: re.Match[str]) -> Fields:
    """It reports the first that ended, and kills the others. Its number is one within the node."""
    fields = by_name(match)
    code = fields["code"]
    return {**fields, "rank": None, "how": "signal" if code < 0 else "exit", "code": abs(code)}


def _tasks_of_jax(match: re.Match[str]) -> Fields:
    return {"named": numbers(", ".join(re.findall(r"task:(\d{1,8})", match[1])))}


def _device(match: re.Match[str]) -> Fields:
    return {"node": match["node"], "process": f"device {match['device']} of {match['node']}"}


def _lost(holds: str, expression: str, **fixed: Any) -> Row:
    """A process is gone. ``process``: its name, whose number is a rank where its engine counts so."""
    return row(holds, expression, "worker_lost", by_launcher=True, **fixed)


_TASKS = r"((?: ?/job:\w+/replica:\d+/task:\d+,?)+)"
_CANCELLED = r"\*\*\* (?:STEP|JOB) [\w.+]+ ON (?P<node>[\w.-]+) CANCELLED AT \S+"
_KILLED_FOR_MEMORY: Fields = {"how": "oom", "code": 9}
LAUNCHERS: tuple[Row, ...] = (
    row(
        "heartbeat",
        r"Did not get (?:initial|subsequent) heartbeat\. Waited (?P<ran_s>[\d.]+) seconds",
        "heartbeat_named",
    ),
    row(
        "has been open for",
        r"Section '?(?P<op>[\w.-]+)'? has been open for (?P<ran_s>[\d.]+) seconds\. Timeout is",
        "heartbeat_named",
    ),
    row("Unhealthy ranks", r"Unhealthy ranks \w+: \[(?P<named>\d[\d, ]*)", "remote_named"),
    row(
        "affecting ranks",
        r"Interruption\.(?:UNRESPONSIVE|TERMINATED|(?:BASE_)?EXCEPTION) affecting ranks (?P<named>\d[\d, ]*)",
        "remote_named",
    ),
    row("have not called it", r"following ranks have not called it: \[(?P<named>\d[\d, ]*)", "barrier_named"),
    row("imed out task names", rf"imed out task names:{_TASKS}", "barrier_named", _tasks_of_jax),
    row("are unhealthy", rf"tasks are unhealthy .{{0,40}}?:{_TASKS}", "heartbeat_named", _tasks_of_jax),
    row("tasks are unhealthy", r"tasks are unhealthy .{0,40}?: (?P<named>\d[\d, ]*)(?!/)", "heartbeat_named"),
    row(
        "heartbeat timeout",
        r"\b[Tt]ask (?:/job:\w+/replica:\d+/task:)?(?P<named>\d+) heartbeat timeout",
        "heartbeat_named",
    ),
    row("different incarnation", r"task:(?P<named>\d+) unexpectedly tried to connect", "remote_named"),
    row("from remote worker", r"from remote worker /job:\w+/replica:\d+/task:(?P<named>\d+)", "remote_named"),
    row("Terminating process because", r"Terminating process because the (?:coordinator|JAX|leader)", "aborted"),
    row("crimer rank", r"crimer rank \[(?P<node>[\w.:]+)/(?P<device>\d+)\]", "worker_lost", _device),
    row(
        "Cluster Exception Location",
        r"Cluster Exception Location\[IP/ID\]:\[(?P<node>[\w.:]+)/(?P<device>\d+)\]",
        "worker_lost",
        _device,
    ),
    _lost(
        "Worker PID: ",
        r"orker died or was killed .{0,600}?Worker IP address: (?P<node>[\w.:-]+) .{0,40}?Worker PID: (?P<pid>\d+)",
    ),
    _lost(
        "running low on memory",
        r"running low on memory.{0,200}?\(IP: (?P<node>[\w.:]+).{0,300}?\bpid=(?P<pid>\d+)",
    ),
    _lost("actor died", r"actor died .{0,300}?\bpid: (?P<pid>\d+) .{0,120}?\bip: (?P<node>[\w.:-]+)"),
    row(
        "has been marked dead",
        r"address: (?P<node>[\w.:-]+) and node name: .{0,200}?has been marked dead",
        "node_failure",
    ),
    row("is assigned as", r"\brank (?P<rank>\d+) in world size (?P<sequence>\d+) is assigned as", "member"),
    _lost("died unexpectedly", r"Worker proc (?P<process>\w+-(?P<rank>\d+)) died unexpectedly"),
    _lost("died unexpectedly", r"RayWorkerProc rank=\[(?P<rank>\d+)\] died unexpectedly"),
    _lost("died unexpectedly", r"ngine core proc(?:ess)? (?P<process>\w+) died unexpectedly"),
    _lost("died, exit code", r"Worker (?P<process>\w+) pid (?P<pid>\d+) died, exit code(?!: -15\b)"),
    _lost("died with exit code", r"Process (?P<process>\w+) \(PID: (?P<pid>\d+)\) died with exit code"),
    _lost("scheduler is dead", r"Rank (?P<rank>\d+) scheduler is dead"),
    _lost("unexpectedly failed with", r"Child process unexpectedly failed with .{0,40}?pid=(?P<pid>\d+)"),
    _lost(
        "noticed that process rank",
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on "
        r"signal (?P<code>\d+)",
        how="signal",
    ),
    _lost(
        "exiting improperly",
        r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) exiting improperly",
    ),
    # Open MPI's and Horovod's "The first process to do so was:"
    _lost(
        "Process name: ",
        r"Process name: (?:\[\[\d+,\d+\],)?(?P<rank>\d+)\]? Exit code: (?P<code>\d+)",
        how="exit",
    ),
    _lost("was invoked on rank", r"MPI_A(?:BORT|bort)(?:\(\))? was invoked on rank (?P<rank>\d+)"),
    # MPICH's "node" is a rank.
    _lost("(rank ", r"Abort\(\d+\) on node \d+ \(rank (?P<rank>\d+) in comm \d+\): application called"),
    _lost("RUNNING AT", r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<node>[\w.-]+)"),
    row(
        "OOMKilled",
        r"(?<![\w.-])(?P<node>[a-z\d][\w.-]{0,80}) \d{1,4}/\d{1,4} OOMKilled",
        "oom_kill",
        **_KILLED_FOR_MEMORY,
    ),
    row(
        "Child process with PID",
        r"\[rank: (?P<group_rank>\d+)\] Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)",
        "exit",
        _lightnings_child,
        is_first=True,
        by_launcher=True,
    ),
    row("srun: error: ", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\- ]+): (?P<said>.+)", "died", _task),
    row(" oom", r"Detected \d+ oom[_-]kill event", "oom_kill", **_KILLED_FOR_MEMORY),
    row(
        "Out of memory: Killed process",
        r"Out of memory: Killed process (?P<pid>\d+)",
        "oom_kill",
        **_KILLED_FOR_MEMORY,
    ),
    row(
        "Killed process",
        r"Memory cgroup out of memory: Killed process (?P<pid>\d+)",
        "oom_kill",
        **_KILLED_FOR_MEMORY,
    ),
    row(  # 45 is written for a process that is gone
        "NVRM: Xid",
        r"NVRM: Xid \((?:PCI:)?(?P<device>[\da-fA-F:.]+)\): (?!45\b)(?P<code>\d+)(?:, pid='?(?P<pid>\d+))?",
        "xid",
    ),
    row("CANCELLED AT", rf"{_CANCELLED} DUE TO TIME LIMIT", "time_limit"),
    row("CANCELLED AT", rf"{_CANCELLED} DUE TO PREEMPTION", "preempted"),
    row("CANCELLED AT", r"\*\*\* (?:STEP|JOB) [\w.+]+ ON [\w.-]+ CANCELLED AT \S+ DUE TO NODE FAIL", "node_failure"),
    row("CANCELLED AT", rf"{_CANCELLED}(?! ?DUE TO)", "cancelled"),
    row(
        "due to memory pressure",
        r"[1-9]\d* Workers .{0,30}?killed due to memory pressure .{0,200}?IP: (?P<node>[\w.:]+)\)",
        "oom_kill",
        **_KILLED_FOR_MEMORY,
    ),
    row("Remote daemon: ", r"Remote daemon: \[\[\d+,\d+\],\d+\] on node (?P<node>[\w.-]+)", "node_failure"),
    row("Node failure", r"error: Node failure on (?P<node>[\w.-]+)", "node_failure"),
    row("death signal", r"Received (?:Signals\.SIG)?(?:SIGINT|2) death signal", "interrupted"),
    row("death signal", r"Received (?:Signals\.SIG)?(?:SIGTERM|15|SIGHUP|1) death signal", "terminated"),
    row("closing signal", r"Sending process (?P<pid>\d+) closing signal SIG\w+", "terminated"),
    row(
        "failed (exitcode",
        r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<named>\d+) \(pid: (?P<pid>\d+)\)",
        "agent_failed",
    ),
    row(
        "crashed with exit code",
        r"\b[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?crashed with exit code (?P<code>-?\d+)",
        "exit",
        _ended,
        is_first=True,
    ),
    row(
        "exited with code",
        r"\b[Rr]ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?exited with code (?P<code>-?\d+)",
        "exit",
        _ended,
    ),
    # DeepSpeed's, of whichever child ended first; the command it prints is that of the last one it started.
    row("exits with return code", r"exits with return code = (?P<code>-?\d+)", "launcher_failed"),
    # What launchers and frameworks say of how many ranks there are: DeepSpeed, Megatron, Lightning.
    row("dist_world_size=", r"\bdist_world_size=(?P<sequence>\d+)", "world"),
    row("using world size:", r"using world size: (?P<sequence>\d+)", "world"),
    row("MEMBER:", r"GLOBAL_RANK: \d+, MEMBER: \d+/(?P<sequence>\d+)", "world"),
)
