"""Processes on GPUs: dead ones that hold memory, memory held by none."""

from __future__ import annotations

from collections.abc import Iterator

from mltop.probes.judge.health.gpu_words import gigabytes, gpu_name
from mltop.probes.judge.health.rule import SYMPTOM, Hit, Moment, Rule

GHOST_BYTES = 500 * 1024**2


def orphan(moment: Moment) -> Iterator[Hit]:
    """Only ranks' states are known: a zombie that NVML still lists. Its memory stays until its parent reaps it."""
    zombies = {rank.pid: rank for rank in moment.now.ranks if rank.state == "Z"}
    if not zombies:
        return
    for gpu in moment.now.gpus:
        dead = [process for process in gpu.processes or () if process.pid in zombies]
        if not dead:
            continue
        name = gpu_name(gpu.index)
        known = [process.memory_bytes for process in dead if process.memory_bytes is not None]
        what = f"{gigabytes(sum(known))} on {name}" if known else f"memory on {name}"
        who = "Dead process holds" if len(dead) == 1 else f"{len(dead)} dead processes hold"
        pids = ", ".join(str(process.pid) for process in dead)
        yield Hit(name, f"{who} {what}", (f"state Z (zombie): pid {pids}",))


def ghost_mem(moment: Moment) -> Iterator[Hit]:
    """In a container NVML may not see the processes of others, and under MIG it may not tell whose memory it is."""
    now = moment.now
    if now.simulated or now.host.is_confined:
        return
    for gpu in now.gpus:
        used = gpu.memory_used_bytes
        if gpu.processes or gpu.processes is None or used is None or used <= GHOST_BYTES:
            continue
        if gpu.mig_enabled or gpu.state != "ok":
            continue
        name = gpu_name(gpu.index)
        yield Hit(name, f"{gigabytes(used)} on {name} used by no visible process")


RULES = (
    Rule(
        "gpu.orphan",
        "warning",
        10.0,
        "end its parent process; if the memory stays: reset the GPU",
        orphan,
        meaning="a process has died and its GPU memory is not freed",
        threshold=(
            "a training rank in state Z that NVML still lists, for 10 s*; not seen: dead processes that were no ranks, "
            "and live ones whose parent is gone"
        ),
        source="/proc/PID/stat; nvmlDeviceGetComputeRunningProcesses",
        needs=("gpu.*.processes", "ranks"),
        remedy="reset",
        eager=False,
        precedence=SYMPTOM,
        explains=("gpu.ghost_mem",),
    ),
    Rule(
        "gpu.ghost_mem",
        "warning",
        30.0,
        "sudo fuser -v /dev/nvidia*; look for containers and other users' jobs; if nobody holds it: reset the GPU",
        ghost_mem,
        meaning="GPU memory is taken and no process is there that uses it",
        threshold="> 500 MiB* used and no process listed for 30 s*; not in a container, a job's cgroup or MIG mode",
        source="nvmlDeviceGetMemoryInfo_v2 (without the driver's reserve); process lists",
        needs=("gpu.*.processes", "gpu.*.memory_used_bytes"),
        remedy="reset",
        precedence=SYMPTOM,
    ),
)
