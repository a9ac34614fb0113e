"""Processes on GPUs: dead ones that hold memory, live ones that do nothing with it, memory held by none.

After a job (`mltop check` in an epilog) nothing may be left: whatever holds memory of an idle GPU is a warning at once,
since the next job will miss that memory. On the screen an idle notebook is an info after a minute, and only memory of
dead processes is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mltop.probes.judge.health.moment import Moment
from mltop.probes.judge.health.names import listed, named_gpus, numbered
from mltop.probes.judge.health.relations import RANK_ENDED, SLOWS
from mltop.probes.judge.health.rule import HOLD, LIMIT, Hit, Limit, device_rule
from mltop.probes.judge.values import known
from mltop.probes.model import GpuProcess, GpuSample, MigInstance, Sample
from mltop.probes.model.gpu import IDLE_SM, IN_USE_BUSY
from mltop.probes.model.sample import unplaced
from mltop.probes.model.units import duration_words, percent_words, size_words
from mltop.probes.model.verdict import gpu_name

NAMED = 3  # in one line; all are in its evidence
# As the kernel cuts names: 15 characters. What serves everybody is root's; a user's own MPS daemon is a part of a job.
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "dcgm")
_OF_X = ("Xorg", "Xwayland", "Xvfb", "mutter", "sddm", "gdm", "lightdm")
DISPLAYS = (*_OF_X, "gnome-shell", "kwin_", "plasmashell", "weston")


@device_rule("gpu.orphan", "warning", hold_s=10.0, eager=False, remedy="reset")(
    meaning="a process has died and its GPU memory is not freed",
    threshold="a process that NVML lists is a zombie, or is gone (seen in the machine's first PID namespace, or of one "
    f"that was seen before), for {HOLD}*",
    source="/proc/PID/stat, kill(2); nvmlDeviceGetComputeRunningProcesses",
    action="end its parent process; if the memory stays: reset the GPU",
    needs=("gpu.*.processes", "gpu processes", "ranks"),
    explains=("gpu.ghost_mem",),
    explains_ranks=(RANK_ENDED, *SLOWS),
    follows_ranks=(RANK_ENDED,),
)
def orphan(moment: Moment) -> Iterator[Hit]:
    for gpu, name in named_gpus(moment):
        dead = _dead(gpu, moment.now)
        if dead:
            yield _of_dead(gpu, name, dead, moment.now)


@device_rule("gpu.idle_memory", "info", hold_s=60.0)(
    meaning="a process that is no rank, a notebook perhaps, holds memory on a GPU that does nothing",
    threshold=f"as gpu.leftover's live ones, for {HOLD}*; not in `mltop check`, which has gpu.leftover",
    source="/proc/PID/{stat,status}; NVML's process lists; SM activity, GPU-Util",
    action="ask its owner whether it is still needed",
    needs=("gpu.*.processes", "gpu.*.busy", "ranks"),
)
def idle_memory(moment: Moment) -> Iterator[Hit]:
    if not moment.expectations.vacated:
        yield from _live_hits(moment)


@device_rule("gpu.leftover", "warning")(
    meaning="a process that belongs to no job holds memory on a GPU that does nothing: the next job will miss it",
    threshold="`mltop check` only, at once: on a GPU with less than half of one multiprocessor* active and BUSY ≤ "
    f"{percent_words(IN_USE_BUSY)} (0, where activity is not known) a process with memory that is no rank, nor started "
    "by one, nor of the user of a rank there; no graphics, display server or service of root (MPS, DCGM, persistence), "
    "no probe of mltop; info: of another PID namespace, where fewer ranks use the GPU; dead ones on any GPU",
    source="/proc/PID/{stat,status}; NVML's process lists; SM activity, GPU-Util",
    action="end what is left of the job; if the memory stays: reset the GPU",
    needs=("gpu.*.processes", "gpu.*.busy", "gpu processes", "ranks"),
    explains=("gpu.orphan", "gpu.ghost_mem"),
    explains_ranks=(RANK_ENDED,),
    follows_ranks=(RANK_ENDED,),
)
def leftover(moment: Moment) -> Iterator[Hit]:
    if moment.expectations.vacated:
        yield from orphan.hits(moment)
        yield from _live_hits(moment)


def _dead(gpu: GpuSample, now: Sample) -> list[GpuProcess]:
    """Zombies, and pids that NVML lists and that are gone. A rank's state is known for longer than its process."""
    zombies = {rank.pid for rank in now.ranks if rank.state == "Z"}
    return [process for process in gpu.processes or () if process.is_dead or process.pid in zombies]


def _live_hits(moment: Moment) -> Iterator[Hit]:
    now = moment.now
    ranks = {pid for rank in now.ranks for pid in (rank.pid, *rank.children)}
    for gpu, name in named_gpus(moment):
        dead = {process.pid for process in _dead(gpu, now)}
        # What a job starts beside its ranks (a server of rollouts, a monitor) belongs to it.
        users = {rank.user for rank in now.ranks if gpu.index in rank.gpus} - {""}
        others = (process for process in gpu.processes or () if process.pid not in ranks | dead)
        strangers = [process for process in others if process.user not in users and _may_be_left(process, gpu)]
        idle = (process for process in strangers if _does_nothing(gpu, process))
        # Also in the sample before, as far as that tells: a check is a look of a few seconds.
        before = moment.gpu_before(gpu) if strangers else None
        left = [process for process in idle if before is None or _does_nothing(before, process) is not False]
        here = [process for process in left if process.absent != "elsewhere"]
        if here:
            yield _of_live(gpu, here, now)
        apart = [process for process in left if process in unplaced(gpu, now.ranks)]
        if apart:
            # NVML names them by pids that our /proc does not have: they may be ours, or a stranger's, or have ended.
            pids = [str(process.pid) for process in apart]
            whose = f"its owner is unknown, the pids ({listed(pids, NAMED)}) are of another PID namespace"
            message = f"{name} is idle and {_memory(apart) or 'some'} of its memory is taken: {whose}"
            action = f"outside of this container: ps -o pid,ppid,user,etime,args -p {','.join(pids)}"
            yield Hit(name, message, severity="info", action=action, key="apart")


def _may_be_left(process: GpuProcess, gpu: GpuSample) -> bool:
    """No display, no service, no probe of ours; nor one of whom it is not known whether it is a rank."""
    if process.memory_bytes == 0 or process.probe or process.absent in ("hidden", "closed"):
        return False
    if process.kind == "graphics" or process.name.startswith(DISPLAYS):
        return False
    return gpu.state == "ok" and not (process.user in ("root", "") and process.name.startswith(SERVICES))


def _does_nothing(gpu: GpuSample, process: GpuProcess) -> bool | None:
    """Of a GPU in MIG mode the instance that the process runs in; None when it is not known."""
    instance = _instance_of(gpu, process)
    if instance is not None:
        return None if instance.sm_active is None else instance.sm_active < IDLE_SM
    if gpu.sm_active is not None:
        return gpu.sm_active < IDLE_SM and (gpu.busy or 0.0) <= IN_USE_BUSY
    return None if gpu.busy is None else gpu.busy == 0


def _instance_of(gpu: GpuSample, process: GpuProcess) -> MigInstance | None:
    return next((each for each in gpu.mig_instances if each.gpu_instance == process.gpu_instance), None)


def _of_dead(gpu: GpuSample, name: str, dead: Sequence[GpuProcess], now: Sample) -> Hit:
    """A zombie holds memory until its parent collects it; for what is gone altogether only the driver can."""
    one, reset = len(dead) == 1, f"sudo nvidia-smi -r -i {gpu.index}"
    who = "Dead process holds" if one else f"{len(dead)} dead processes hold"
    names = [_named(process, now) for process in dead if process.name]
    message = f"{who} {_memory(dead) or 'memory'} on {name}" + (f": {listed(names, NAMED)}" if names else "")
    parents = sorted({pid for pid in known(process.ppid for process in dead if process.absent != "ended") if pid > 1})
    action = ""
    if gpu.remap.failed:
        action = "take the node out of the pool: no reset repairs this GPU"
    elif parents:
        whose = "its parent" if one else "the parents"
        action = f"sudo kill {' '.join(map(str, parents))} ({whose}); if the memory stays: {reset}"
    elif all(process.state or process.absent for process in dead):
        action = f"sudo fuser -v /dev/nvidia{gpu.index}; if nobody holds it: {reset}"
    return Hit(name, message, tuple(_evidence(process, now) for process in dead), action=action, key="dead")


def _of_live(gpu: GpuSample, left: Sequence[GpuProcess], now: Sample) -> Hit:
    name = idle = gpu_name(gpu.index)
    if instances := known(_instance_of(gpu, process) for process in left):
        idle = f"MIG {numbered({instance.index for instance in instances})} of {name}"
    holds = "holds" if len(left) == 1 else "hold"
    who = listed([_named(process, now) for process in left], NAMED)
    message = f"{idle} is idle, but {who} {holds} {_memory(left) or 'some'} of its memory"
    pids = " ".join(str(process.pid) for process in left)
    action = f"if nothing may run here: sudo kill {pids}"
    if now.host.sees_all_processes is False:  # NVML's pids may be the host's, and here another process's
        action = f"if nothing may run here and /proc/PID/fd shows /dev/nvidia*: kill {pids}"
    return Hit(name, message, tuple(_evidence(process, now) for process in left), action=action, key="live")


def _memory(processes: Sequence[GpuProcess]) -> str:
    """``66 GiB``; "" when it is not known."""
    sizes = known(process.memory_bytes for process in processes)
    return size_words(sum(sizes)) if sizes else ""


def _named(process: GpuProcess, now: Sample) -> str:
    """``python (pid 4242 of ada, 2 h old)``; ``pid 4242`` when no more is known."""
    parts = [f"pid {process.pid}" + (f" of {process.user}" if process.user else "")]
    if process.started_at is not None:
        parts.append(f"{duration_words(max(0.0, now.sampled_at - process.started_at))} old")
    text = ", ".join(parts)
    return f"{process.name} ({text})" if process.name else text


def _evidence(process: GpuProcess, now: Sample) -> str:
    """``state Z (zombie): python (pid 4242 of ada, 2 h old), 66 GiB, parent 4000``"""
    head = f"state {process.state}: " if process.state else ""
    if process.absent == "ended":
        head = "ended, and the driver still lists it: "
    elif process.state == "Z" or any(rank.pid == process.pid and rank.state == "Z" for rank in now.ranks):
        head = "state Z (zombie): "
    parts = [_named(process, now)]
    if process.name and process.memory_bytes is not None:
        parts.append(size_words(process.memory_bytes))
    if process.ppid is not None:
        parts.append(f"parent {process.ppid}")
    return head + ", ".join(parts)


@device_rule("gpu.ghost_mem", "warning", hold_s=30.0, remedy="reset")(
    meaning="GPU memory is taken and no process is there that uses it",
    threshold=f"> {LIMIT}* used and no process listed for {HOLD}*; not in a container, a job's cgroup or MIG mode",
    limit=Limit(500 * 1024**2, lambda size: size_words(int(size)), "bytes"),
    source="nvmlDeviceGetMemoryInfo_v2 (without the driver's reserve); process lists",
    action="sudo fuser -v /dev/nvidia*; look for containers and other users' jobs; if nobody holds it: reset the GPU",
    needs=("gpu.*.processes", "gpu.*.memory_used_bytes"),
    explains_ranks=(RANK_ENDED,),
    follows_ranks=(RANK_ENDED,),
)
def ghost_mem(moment: Moment, limit: float) -> Iterator[Hit]:
    """In a container NVML may not see the processes of others, and under MIG it may not tell whose memory it is."""
    now = moment.now
    if now.simulated or now.host.is_confined:
        return
    for gpu, name in named_gpus(moment):
        used = gpu.memory_used_bytes or 0
        if gpu.processes == [] and used > limit and gpu.state == "ok" and not gpu.mig_enabled:
            yield Hit(name, f"{size_words(used)} on {name} used by no visible process")
