"""The sentences of a dead job: who failed first, why that cannot be told, and what would have shown it."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence

from mltop.probes.judge.deaths import ended_by
from mltop.probes.judge.evidence.blame import First
from mltop.probes.judge.evidence.scene import Attempt
from mltop.probes.judge.health.gpu.xid_catalog import HW, WARN, advice, lookup
from mltop.probes.judge.values import known
from mltop.probes.model.evidence.logs import LogEvent, Topic
from mltop.probes.model.ranks import fold, ranks_text
from mltop.probes.model.units import clock_time, counted, duration_words

_MOST_QUOTED = 160  # characters of a line in a headline
_MOST_LISTED = 40  # characters of folded ranks
RECORDER = "TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_ON_TIMEOUT=1 (before torch 2.10: TORCH_NCCL_TRACE_BUFFER_SIZE)"
PER_RANK = "torchrun --log-dir DIR --redirects 3 --tee 3: a file for each rank, and each line with its rank"
RECORD = "@record around main(): the exception of each rank, with its time, in an error file"
FAULTS = "PYTHONFAULTHANDLER=1: where in the code a signal struck"
BLOCKING = "CUDA_LAUNCH_BLOCKING=1, in a rerun only: the line at which a CUDA error arises"
UNTHINNED = "RAY_DEDUP_LOGS=0: every rank's lines"
OWN_FILES = "a log file for each rank, or each line with its rank in front"
LABELLED = "srun --label, or --output with %t: whose line it is"


def headline(attempt: Attempt, first: First) -> str:
    """One sentence that needs no other."""
    if first.is_told:
        return _told(attempt, first)
    if first.how == "stopped":
        return _stopped(attempt, first)
    return f"cannot tell who failed first: {_why_not(attempt, first)}"


def _told(attempt: Attempt, first: First) -> str:
    event = first.best
    if first.how in ("failed", "alike", "program") and event is not None:
        return _told_failed(attempt, first, event)
    is_alone = len(first.ranks) == 1
    by = f"rank {event.rank}" if event is not None and event.rank is not None else "another rank"
    did = "failed" if event is not None and event.kind in ("remote_named", "blamed") else "did not come"
    count = len({event.rank for event in attempt.of_class("timeout")} - {None, *first.ranks})
    waiters = counted(count, "rank") if count else "the others"
    went = "went away: all others lost a connection"
    if attempt.of_class("timeout"):
        went = f"did not come: all others waited in vain{_in(first)}"
    quote = _quote(first)
    says = {
        "named": f"{did}: {by} names {'it' if is_alone else 'them'}{quote}",
        "behind": f"never got to {_collective(first)}, in which {waiters} waited until it timed out",
        "differs": f"launched something else than all others as {_collective(first)}{quote}",
        "sick": f"is the only one whose own process was stuck while all waited{quote}",
        "network": f"is whom most of the others name as the end of their broken connections{quote}",
        "silent": f"{went}, {'its log ends' if is_alone else 'their logs end'} without a word",
    }
    return f"{_who(attempt, first)} {says[first.how]}"


def _told_failed(attempt: Attempt, first: First, event: LogEvent) -> str:
    if first.how == "program":
        count, failed = len(attempt.ranks), len(first.sides[0]) if first.sides else 0
        who = "several" if not failed else f"all {count} ranks" if failed == count else f"{failed} of {count} ranks"
        said = f"each {_failed(event)}" if event.kind in _BARE_ENDS else _cut(event.text)
        return f"{who} failed alike, which is no rank's fault: {said}"
    order = "" if first.how == "alike" or len(attempt.ranks) <= len(first.ranks) else " first"
    alike = ", all alike" if first.how == "alike" else ""
    return f"{_who(attempt, first)} {_failed(event, order)}{alike}{_after(attempt, first)}"


def _who(attempt: Attempt, first: First) -> str:
    if not first.ranks:
        event = first.best if first.how == "failed" else None
        pid = first.pid if event is not None else None
        where = f" on {first.nodes[0]}" if len(first.nodes) == 1 else ""
        if event is not None and event.process:
            return f"{event.process}{f' (pid {pid}{where})' if pid is not None else where}"
        if pid is not None and where:
            return f"a process (pid {pid}{where})"
        return ", ".join(first.nodes) or "the job"
    nodes = sorted({attempt.nodes[rank] for rank in first.ranks if attempt.nodes.get(rank)})
    return _ranks(first.ranks) + (f" ({', '.join(nodes)})" if 0 < len(nodes) <= 2 else "")


def _ranks(ranks: Collection[int]) -> str:
    text = ranks_text(ranks)
    return text if len(text) <= _MOST_LISTED else f"{len(ranks)} ranks ({fold(ranks)[:_MOST_LISTED]}…)"


_BARE_ENDS = ("exit", "died", "fatal_signal")


def _failed(event: LogEvent, order: str = "") -> str:
    """ "was killed by SIGSEGV first", "failed first: ValueError: …, in main (job.py:12)"."""
    if event.kind in _BARE_ENDS or (event.kind == "child_named" and event.how != "unknown"):
        is_killed = event.how == "signal"
        return f"was killed{order} by {ended_by(event.code)}" if is_killed else f"exited{order} with code {event.code}"
    place = f", in {event.place}" if event.place else ""
    return {
        "oom_kill": f"was killed{order} for want of memory",
        "xid": f"had Xid {event.code} on GPU {event.device}",
        "device_assert": f"failed{order} in a kernel on its GPU: {_cut(event.text)}",
        "node_failure": f"failed{order}, its launcher reports: {_cut(event.text)}",
        "worker_lost": f"died{order}: {_cut(event.text)}",
    }.get(event.kind, f"failed{order}: {_cut(event.text)}{place}")


def _after(attempt: Attempt, first: First) -> str:
    """What became of the others."""
    parts, seen = [], {None, *first.ranks}
    for events, did in (
        (attempt.of_class("timeout"), "waited for it in vain"),
        (attempt.of_class("cascade"), "lost their connection to it"),
        (attempt.of_kind("exit"), "were ended by the launcher"),
    ):
        ranks = {event.rank for event in events} - seen
        seen |= ranks
        parts += [f"{len(ranks)} {did}"] if ranks else []
    return f"; {', '.join(parts)}" if parts else ""


def _collective(first: First) -> str:
    number = "" if first.sequence is None else f" #{first.sequence}"
    group = f" of group {first.group}" if first.group else ""
    return f"{first.op or 'collective'}{number}{group}"


def _in(first: First) -> str:
    return f" in {_collective(first)}" if first.sequence is not None or first.op else ""


def _quote(first: First) -> str:
    return f": {_cut(first.best.text)}" if first.best is not None else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[: _MOST_QUOTED - 1]}…"


_ENDINGS = {
    "time_limit": "Slurm's time limit ended it",
    "preempted": "Slurm preempted it",
    "cancelled": "it was cancelled",
    "interrupted": "somebody interrupted it",
}


def _stopped(attempt: Attempt, first: First) -> str:
    event = first.events[0]
    how = _ENDINGS.get(event.kind, "its processes were asked to end")
    times = [each.last_at for each in attempt.presence.values() if each.last_at is not None]
    at = event.stamped_at
    quiet = at - max(times) if at is not None and times else 0.0
    stood = f"; its ranks had written nothing for {duration_words(quiet)} then" if quiet >= 600 else ""
    return f"stopped from outside: {how}{f' at {clock_time(at)}' if at is not None else ''}{stood}"


def headline_of_unseen(telling: str, is_of_training: bool) -> str:
    """Of a job of which neither a failure nor a good end is seen. ``telling``: the most severe of its last lines."""
    if not is_of_training:
        return "cannot tell: nothing in these files reads like the log of a training or serving job"
    last = f"; its most telling line: {_cut(telling)}" if telling else ""
    return f"cannot tell what became of it: neither a failure nor a good end is in these files{last}"


def _why_not(attempt: Attempt, first: First) -> str:
    stopped = [event for event in first.events if first.how != "contradicted" or event.kind == "exception"]
    names = ", ".join(dict.fromkeys(event.node if event.rank is None else f"rank {event.rank}" for event in stopped))
    sides = " and ".join(map(_ranks, first.sides[:2]))
    watching = known({event.rank for event in first.events})
    here, elsewhere = "", ""
    if attempt.world_size is None:
        here, elsewhere = " of these files", ", or at a rank that is not in them"
    lacking, no_data = "", f"a failure is reported, but not of which rank{_quote(first)}"
    if first.lacking:
        lacking = f", and of {_ranks(first.lacking)} there is too little in these files"
        no_data = f"of {_ranks(first.lacking)} too little is in these files, and all others waited{_in(first)}"
    elif first.best is None or first.best.event_class == "timeout":
        no_data = f"ranks waited{_in(first)}, and no line says for which rank"
    only_victims = "these files have only what followed from it, lost connections and exit codes"
    killed_by = _launchers_signal(first)
    if killed_by is not None:
        only_victims = f"a process was killed by {ended_by(killed_by)}, and its launcher does not say which one"
    cut = "no failure is logged, and the logs end within a line"
    if attempt.is_cut_in_traceback:
        cut = "the logs end within a traceback, so what failed is not known for sure"
    return {
        "unordered": f"{names} each failed on their own, and which was first is not known",
        "contradicted": (
            f"{names} raised an exception, and {sides} never got to {_collective(first)}: what was first is not known"
        ),
        "launched": (
            f"all {len(attempt.ranks)} ranks{here} launched {_collective(first)}: "
            f"it failed below them, on a GPU or the network{elsewhere}"
        ),
        "sides": f"{sides} are in different places at {_collective(first)}",
        "elsewhere": f"{_collective(first)} timed out, and no line names the missing rank",
        "no data": no_data,
        "only victims": f"{only_victims}{lacking}{_quote(first)}",
        "stalled": (
            f"{f'the watchdogs of {_ranks(watching)}' if watching else 'a watchdog'} report no progress: "
            f"a stall in CUDA, NCCL or Python's lock{_quote(first)}"
        ),
        "cut off": f"{cut}: truncated, or still being written",
    }.get(first.how, "no cause of its end is logged")


def _launchers_signal(first: First) -> int | None:
    """What killed a child of a launcher that names none; not the signals of a teardown or of a rank's own watchdog."""
    codes = known(event.code for event in first.events if event.kind == "launcher_failed")
    return next((-code for code in codes if code < 0 and -code not in (signal.SIGTERM, signal.SIGABRT)), None)


def reason_of(first: First, event: LogEvent | None) -> str:
    """Of one culprit."""
    if event is None or first.how in ("silent", "behind"):
        return {
            "behind": f"never launched {_collective(first)}",
            "silent": f"did not come{_in(first)}",
            "named": "did not come",
        }.get(first.how, "failed like the others")
    return _failed(event) if first.how in ("failed", "alike") else _cut(event.text)


_DO = {
    "behind": "see what that rank did instead: its log's last lines, its data, its branch in the code",
    "differs": "compare the code paths: that rank took another branch",
    "silent": "see what that rank did last: the end of its log, and its node",
    "named": "see what that rank did instead: the end of its log, and its node",
    "sick": "check its GPU and node: mltop check",
    "network": "check that host's ports and cables: mltop check",
}
_DO_KILLED = "see who killed it: dmesg and the cgroup's memory.events of its node"
_DO_CRASHED = "look for its core file, and rerun it with PYTHONFAULTHANDLER=1"
_DO_OF_GPU = "its GPU reports broken hardware: look for its Xid in the node's kernel log, and run mltop check there"
_DO_ABOUT: dict[str, str] = {
    "oom_kill": "give it more host memory, or use less: dataloader workers, pinned memory, the checkpoint's copy",
    "exit": "read what it wrote last: it ended by itself",
    "died": _DO_CRASHED,
    "fatal_signal": "look for its core file",
}
_DO_TOPIC: dict[Topic, str] = {
    "shm": "enlarge /dev/shm (docker --shm-size; in Kubernetes an emptyDir of medium Memory), and remove what dead "
    "jobs left there",
    "disk": "free space where it wrote to, or raise the quota: df -h and df -i of that path",
    "port": "see who has that port, ss -ltnp: end it, or set another MASTER_PORT",
    "gpu memory": "use less GPU memory (batch, sequence length, checkpointed activations, sharding), or see who else "
    "is on that GPU",
    "memory": _DO_ABOUT["oom_kill"],
    "ecc": "check that GPU: mltop check on its node; drain the node if it comes again",
    "device assert": "see what it asserts: mostly an index out of range, of labels, token ids or the vocabulary",
    "build": "install builds that fit each other: of torch, its extensions, CUDA, and this GPU's driver",
    "gpu fault": "see its node's dmesg for an Xid or a fault of the GPU; without one, look for the kernel in a rerun",
    "communicator": "check that each rank has a GPU and a number of its own, and that each node was started once: "
    "CUDA_VISIBLE_DEVICES, LOCAL_RANK, node rank",
    "hca": "check that network port: ibstat, ulimit -l, NCCL_IB_HCA and NCCL_IB_GID_INDEX",
    "files": "raise ulimit -n, or torch.multiprocessing.set_sharing_strategy('file_system')",
    "threads": "raise ulimit -u or the container's limit of pids, or set OMP_NUM_THREADS",
    "file system": "check the file system: dmesg of that node, and its servers",
    "name": "check that its node resolves that name: DNS, /etc/hosts",
    "checkpoint": "compare the checkpoint with the model: its configuration, vocabulary, and number of ranks",
    "module": "install it in the environment that its node uses",
    "path": "see that the path is there on each node, and who was to write it",
    "slots": "give mpirun a slot for each rank: --host NODE:8, or slots=8 in the hostfile",
}


def _about(event: LogEvent) -> str:
    return (_DO_TOPIC[event.topic] if event.topic else "") or _DO_ABOUT.get(event.kind, "")


def _xid_of(first: First) -> LogEvent | None:
    """The Xid that the failure comes from, the gravest of several."""
    xids = [event for event in (*first.events[:1], *first.xids) if event.kind == "xid"]
    return min(xids, key=lambda xid: not _is_of_hardware(xid), default=None)


def _is_of_hardware(event: LogEvent | None) -> bool:
    """Whether it says that a GPU is at fault, not the program."""
    if event is not None and event.kind == "xid":
        return lookup(event.code or 0).tier in (HW, WARN)
    return event is not None and event.is_of_hardware


def action_for(first: First) -> str:
    """What to do now."""
    event, xid = first.best, _xid_of(first)
    if xid is not None:
        return f"Xid {xid.code} on GPU {xid.device}: {advice(xid.code or 0, None)}"
    if _is_of_hardware(event):
        return _DO_OF_GPU
    killed_by = _launchers_signal(first) if first.how == "only victims" else None
    if first.how in ("failed", "alike", "program") and event is not None:
        by_itself = event.how == "exit" and (event.code or 0) <= 128
        if event.kind not in ("exit", "died") or by_itself:
            return _about(event)
        killed_by = event.code
    if killed_by is None:
        of_nobody = event is not None and first.how == "no data" and event.event_class == "root"
        return _about(event) if event is not None and of_nobody else _DO.get(first.how, "")
    return _DO_KILLED if killed_by in (signal.SIGKILL, 128 + signal.SIGKILL) else _DO_CRASHED


def settings_for(attempt: Attempt, first: First) -> list[str]:
    """What would have shown more, the most useful first."""
    found = []
    timed_out = attempt.of_kind("collective_timeout")
    # Rows of torchrun's table have a local rank and a pid.
    by_torchrun = any(event.named and event.pid is not None for event in attempt.of_kind("exit", "agent_failed"))
    by_srun = any(event.named and event.pid is None for event in attempt.of_kind("exit", "died"))
    is_torchs = by_torchrun or (bool(timed_out) and not by_srun and not attempt.of_kind("worker_lost"))
    if attempt.is_thinned:
        found.append(UNTHINNED)
    unattributed = any(event.rank is None for event in attempt.of_class("root", "timeout") if event.kind != "xid")
    if (first.lacking or unattributed or first.how in ("only victims", "no data")) and first.how != "stopped":
        found.append(PER_RANK if is_torchs else LABELLED if by_srun else OWN_FILES)
    if any(event.kind == "exit" and event.how == "exit" and event.code for event in attempt.events) and (
        by_torchrun and not any(event.by_launcher for event in attempt.events)
    ):
        found.append(RECORD)
    if timed_out and first.how != "failed":
        found.append(RECORDER)
    if any(
        event.kind in ("died", "fatal_signal") or (event.kind == "exit" and event.code == 11) for event in first.events
    ):
        found.append(FAULTS)
    is_of_hardware = _is_of_hardware(_xid_of(first) or first.best)
    if not is_of_hardware and any(
        event.kind == "device_assert" or (event.kind == "exception" and event.device) for event in first.events
    ):
        found.append(BLOCKING)
    return found


def next_for(first: First, settings: Sequence[str]) -> str:
    """What would make it surer."""
    if first.lacking:
        return f"give the logs of {_ranks(first.lacking)} too"
    return f"set next time: {settings[0]}" if settings and first.confidence != "high" else ""
