"""What happens to training jobs and their ranks, for every rule about them."""

from __future__ import annotations

from tests.driven.node import GIB, Node
from tests.driven.scene import Scene

PARTNERS = {"odd": ("odd", "odd-2")}  # nodes of one job
PLACES = {"odd": {"world": 16}, "odd-2": {"job": "odd", "first": 8, "world": 16}}
SPINNING = {"busy_percent": 100, "power_mw": 180_000, "power_average_mw": 180_000, "sm_clock_mhz": 1980}
IDLE = {"busy_percent": 0, "power_mw": 90_000, "power_average_mw": 90_000}
WORKING = {"busy_percent": 99, "power_mw": 560_000, "power_average_mw": 560_000}


def all_spin(node: Node) -> None:
    node.set_gpus(range(8), **SPINNING)


def _one_stays_behind(node: Node) -> None:
    all_spin(node)
    node.set_gpu(5, **IDLE)


def _wait_for_data(node: Node, seconds: float, turn: int) -> None:
    """All GPUs are idle in every third turn, tasks wait for disks."""
    if seconds < 0:
        return
    node.set_gpus(range(8), **(WORKING if turn % 3 else IDLE))
    node.nvml.write()
    node.pressure("io", 60.0, 30.0)


def _pause_in_turn(node: Node, seconds: float, turn: int) -> None:
    """Of three ranks each is alone with its core for a turn, one after the other."""
    if seconds < 0:
        return
    node.set_gpus(range(8), **WORKING)
    node.set_gpu(turn % 3, **IDLE)
    node.nvml.write()
    for rank in range(8):
        process = node.proc.processes[node.pid(rank)]
        ticks = int(150 * seconds)
        node.proc.change(process.pid, cpu_ticks=ticks, user_ticks=ticks)


def _grow(node: Node, seconds: float, _turn: int) -> None:
    """Two ranks keep 15 GiB more each second."""
    for rank in range(2):
        kib = int((20 * GIB + max(0.0, seconds) * 15 * GIB) / 1024)
        node.proc.change(node.pid(rank), rss_kib=kib)


def _logs_a_timeout(node: Node) -> None:
    pid = node.pid(2)
    log = node.proc.root.parent / "rank-2.out"
    log.write_text(
        "step 9\nRuntimeError: [gloo/transport/tcp/pair.cc:1] Timed out waiting 30000ms for recv operation\n"
    )
    standard = node.proc.root / str(pid) / "fd" / "1"
    standard.unlink(missing_ok=True)
    standard.symlink_to(log)


def _debugs(node: Node) -> None:
    environ = {**node.proc.processes[node.pid(0)].environ, "CUDA_LAUNCH_BLOCKING": "1"}
    node.proc.exec(node.pid(0), "/venv/bin/python", "train.py", environ=environ)


def _starts_otherwise(node: Node) -> None:
    environ = {**node.proc.processes[node.pid(7)].environ, "NCCL_ALGO": "Ring"}
    node.proc.exec(node.pid(7), "/venv/bin/python", "train.py", environ=environ)


def _has_loaded_another_nccl(node: Node) -> None:
    """Each rank sees a root of its own, as in a container; a fresh program is looked at at once."""
    for rank, version in ((3, "2.27.5"), (4, "2.26.2")):
        own, pid = node.proc.root.parent / f"image-{rank}", node.pid(rank)
        site = "/venv/lib/python3.11/site-packages"
        (own / site.strip("/") / f"nvidia_nccl_cu12-{version}.dist-info").mkdir(parents=True)
        node.proc.change(pid, libraries=(f"{site}/nvidia/nccl/lib/libnccl.so.2",))
        (node.proc.root / str(pid) / "root").symlink_to(own)
        node.proc.exec(pid, "/venv/bin/python", "train.py", environ=node.proc.processes[pid].environ)


def _takes_anothers_gpu(node: Node) -> None:
    node.set_gpu(6, processes="")
    users = [(node.pid(rank), 30 * GIB, "compute") for rank in (5, 6)]
    node.set_gpu(5, processes=users)


def _shares_a_core(node: Node) -> None:
    for rank in range(2):
        node.allow_cpus(rank, "5")


def _has_many_workers(node: Node) -> None:
    """24 each, on the cores of one socket."""
    for rank in range(8):
        node.allow_cpus(rank, "0-55")
        for worker in range(24):
            node.proc.fork(node.pid(rank), 10_000 + 100 * rank + worker)


NOTEBOOK_PID = 90_000


def _leaves_a_notebook(node: Node) -> None:
    """Rank 3 ends; a process of another user keeps 30 GiB of its GPU, which is idle."""
    node.proc.remove(node.pid(3))
    node.proc.add(NOTEBOOK_PID, argv=["jupyter-lab"], comm="jupyter-lab", exe="/usr/bin/jupyter-lab", uid=1234)
    node.set_gpu(3, processes=[(NOTEBOOK_PID, 30 * GIB, "compute")], memory_used_bytes=30 * GIB, **IDLE)


RANKS = (
    Scene("job.affinity", "lost", "ranks 0 and 1 are pinned to core 5", _shares_a_core),
    Scene("job.numa", "heat", "rank 6 is pinned to the other socket", lambda node: node.allow_cpus(6, "0-55")),
    Scene("job.threads", "stuck", "200 processes on the 56 cores of a socket", _has_many_workers, apart_s=10),
    Scene(
        "job.mem_growth",
        "numa",
        "ranks 0 and 1 keep 15 GiB more each second",
        lambda node: None,
        apart_s=100,
        moves=_grow,
    ),
    Scene("job.bad_env", "lost", "rank 0 runs with CUDA_LAUNCH_BLOCKING=1", _debugs),
    Scene("job.log", "heat", "the log of rank 2 says that a receive timed out", _logs_a_timeout),
    Scene("gpu.orphan", "heat", "rank 4 dies, its memory stays", lambda node: node.proc.die(node.pid(4))),
    Scene("gpu.idle_memory", "numa", "a notebook holds 30 GiB of an idle GPU", _leaves_a_notebook, apart_s=10),
    Scene("gpu.leftover", "numa", "the same, in an epilog", lambda node: None, apart_s=2, vacated=True),
    Scene(
        "gpu.ghost_mem",
        "lost",
        "GPU 3 has 70 GiB in use and no process",
        lambda node: node.set_gpu(3, processes=""),
        apart_s=10,
    ),
)
JOBS = (
    Scene("job.hang", "hang", "8 GPUs at 100 % and 180 W, no traffic", all_spin, apart_s=20),
    Scene("job.odd_rank", "odd", "rank 5 of 16 is idle, all others spin", _one_stays_behind, apart_s=20),
    Scene(
        "job.straggler",
        "straggler",
        "GPU 2 works at 1400 MHz (with gpu.clock.low_busy)",
        lambda node: None,
        apart_s=60,
    ),
    Scene(
        "job.starved",
        "starved",
        "the GPUs wait for data again and again",
        lambda node: None,
        apart_s=20,
        moves=_wait_for_data,
    ),
    Scene("job.settings", "hang", "rank 7 is started again with NCCL_ALGO=Ring", _starts_otherwise),
    Scene("job.versions", "hang", "rank 4 is started again with another NCCL than rank 3", _has_loaded_another_nccl),
    Scene("job.devices", "hang", "rank 6 takes GPU 5", _takes_anothers_gpu),
    Scene("job.gc", "pauses", "one rank after the other pauses", lambda node: None, apart_s=20, moves=_pause_in_turn),
)
SCENES = (*RANKS, *JOBS)
