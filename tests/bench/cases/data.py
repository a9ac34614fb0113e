"""The cases: which jobs are started, what is wrong with them, and what is to be said of them. One row each."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
JOBS = HERE / "jobs"
TRAIN = HERE.parents[1] / "system" / "cases" / "train.py"

Truth = Literal["hang", "crash", "straggler", "healthy"]
Group = Literal["reproductions", "frameworks", "crashes", "several", "healthy"]

WATCH_S = 100.0
WATCH_LONG_S = 340.0  # mltop asks later where a rank may be at work, or none was ever seen to be

CAUSES = {
    "kill": r"SIGKILL|killed",
    "oom": r"memory|OOM",
    "segfault": r"SIGSEGV|[Ss]eg",
    "exception": r"code 1|ValueError",
    "disk": r"code 1|[Nn]o space|full",
}

TORCHRUN = ("{bin}/torchrun", "--nproc-per-node={ranks}", "--master-port={port}")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "{ranks}")
MPIRUN_TORCH = (*MPIRUN, "-x", "MASTER_ADDR=127.0.0.1", "-x", "MASTER_PORT={port}", "{python}")


@dataclass(frozen=True)
class Launch:
    """One job. ``words`` may name {python}, {bin} (the folder of python), {jobs}, {directory}, {ranks}, {rank}, {port}.

    ``bare``: the numbers of the ranks that are each started by themselves, with torch's variables in their environment;
    (): the command starts them.
    """

    words: tuple[str, ...]
    ranks: int
    mode: str = ""
    bare: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """``culprit``: the rank with the fault. ``fault``: "FILE MARKER", where it stands, the line of the file that ends
    with "# FAULT MARKER"; "": nowhere in particular (it left something out). ``outside``: ranks in another process
    namespace, which mltop does not see. ``packages``: modules that the jobs' Python needs, ``programs`` likewise.
    ``steps`` that are done before: who is stuck must have been seen at work. ``settle_s``: from the moment of the
    fault until stacks are taken; ``nobody`` of the ranks that mltop sees is at fault: the right answer is that the job
    is stuck, and names none. ``apart``: in namespaces of its own, beside other cases. Crashes are not: the kernel's
    process events, and pids in its log, are those of the machine's first ones. ``cause``: what the
    headline is to say, a regular expression. ``no_job``: none is left, or there never was one.
    """

    name: str
    group: Group
    framework: str
    truth: Truth
    jobs: tuple[Launch, ...]
    culprit: int = 2
    fault: str = ""
    outside: Launch | None = None
    packages: tuple[str, ...] = ("torch",)
    programs: tuple[str, ...] = ()
    steps: int = 150
    settle_s: float = 8.0
    watch_s: float = WATCH_S
    apart: bool = True
    wants: tuple[str, ...] = ()
    nobody: bool = False
    cause: str = ""
    no_job: bool = False

    @property
    def ranks(self) -> int:
        return sum(job.ranks for job in self.jobs if not job.bare) + sum(len(job.bare) for job in self.jobs)


@dataclass(frozen=True)
class Place:
    function: str
    file: str
    lines: tuple[int, ...]


@cache
def place(fault: str) -> Place | None:
    """Where the marked line stands, and the lines of the same statement; None where the case has no such line."""
    if not fault:
        return None
    name, marker = fault.split()
    path = TRAIN if name == TRAIN.name else JOBS / name
    source = path.read_text()
    (number,) = (at for at, line in enumerate(source.splitlines(), 1) if line.endswith(f"# FAULT {marker}"))
    inside = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.lineno <= number <= (node.end_lineno or 0)
    ]
    return Place(inside[-1], name, (number - 1, number))


def _bare(script: str, ranks: int, mode: str, *words: str) -> Launch:
    return Launch(("{python}", "{jobs}/" + script, *words), ranks, mode, tuple(range(ranks)))


def _reproduction(
    letter: str, case: str, *, truth: Truth = "hang", marked: bool = True, watch_s: float = WATCH_S
) -> Case:
    words = ("{python}", str(TRAIN), case, "{directory}", "2")
    launch = Launch(words, 4, case, tuple(range(4)))
    fault = f"train.py {case}" if marked else ""
    name, group, framework = f"{letter} {case}", "reproductions", "torch, bare"
    return Case(name, group, framework, truth, (launch,), fault=fault, watch_s=watch_s)


def names_its_rank(words: tuple[str, ...]) -> bool:
    """Started once per rank, which needs no variable of torch."""
    return any("{rank}" in word for word in words)


def _framework(
    name: str, words: tuple[str, ...], *modes: str, ranks: int = 3, packages: tuple[str, ...] = (), **more: object
) -> list[Case]:
    """A case for each mode; "loader" and "storage" are marked lines, "skip" leaves a collective out."""
    script = next(word.partition("/")[2] for word in words if word.startswith("{jobs}/"))
    bare = tuple(range(ranks)) if names_its_rank(words) else ()
    files = {"loader": script if script in ("mpi_plain.py", "jax_cpu.py") else "rows.py", "storage": script}
    return [
        Case(
            f"{name} {mode}",
            "frameworks",
            name,
            "healthy" if mode == "healthy" else "hang",
            (Launch(words, ranks, mode, bare),),
            fault=f"{files[mode]} {mode}" if mode in files else "",
            packages=packages or ("torch",),
            **more,  # type: ignore[arg-type]
        )
        for mode in modes
    ]


ALL = ("loader", "skip", "healthy")

FRAMEWORKS = [
    *_framework("torchrun", (*TORCHRUN, "{jobs}/ddp.py"), *ALL),
    *_framework("mp.spawn", ("{python}", "{jobs}/mp_spawn.py", "{ranks}", "{port}"), *ALL),
    *_framework("HF Trainer", (*TORCHRUN, "{jobs}/hf_trainer.py"), *ALL, packages=("transformers", "accelerate")),
    *_framework(
        "accelerate",
        (
            *("{bin}/accelerate", "launch", "--multi_gpu", "--num_machines=1", "--num_processes={ranks}"),
            *("--mixed_precision=no", "--dynamo_backend=no", "--main_process_port={port}", "{jobs}/accelerated.py"),
        ),
        *ALL,
        packages=("accelerate",),
    ),
    *_framework("Lightning", ("{python}", "{jobs}/lightning_own.py", "{ranks}", "ddp"), *ALL, packages=("lightning",)),
    *_framework(
        "Lightning spawn",
        ("{python}", "{jobs}/lightning_own.py", "{ranks}", "ddp_spawn"),
        "loader",
        packages=("lightning",),
    ),
    *_framework("FSDP2", (*TORCHRUN, "{jobs}/fsdp2.py"), *ALL),
    *_framework("DCP", (*TORCHRUN, "{jobs}/dcp.py"), "storage", "healthy"),
    *_framework(
        "DeepSpeed",
        ("{bin}/deepspeed", "--num_gpus={ranks}", "--master_port={port}", "{jobs}/deepspeed_zero.py"),
        *ALL,
        packages=("deepspeed",),
    ),
    *_framework("Ray Train", ("{python}", "{jobs}/ray_train.py", "{ranks}"), *ALL, packages=("ray",)),
    *_framework("mpirun torch", (*MPIRUN_TORCH, "{jobs}/ddp.py"), *ALL, programs=("mpirun",)),
    *_framework(
        "mpi4py",
        (*MPIRUN, "{python}", "{jobs}/mpi_plain.py"),
        *ALL,
        packages=("mpi4py",),
        programs=("mpirun",),
        watch_s=WATCH_LONG_S,
    ),
    *_framework(
        "JAX",
        (
            *("env", "JAX_PROCESS_ID={rank}", "JAX_NUM_PROCESSES={ranks}"),
            *("JAX_COORDINATOR_ADDRESS=127.0.0.1:{port}", "{python}", "{jobs}/jax_cpu.py"),
        ),
        *ALL,
        packages=("jax",),
    ),
    *_framework(
        "JAX by argv",
        (
            *("{python}", "{jobs}/jax_cpu.py", "--process_id={rank}", "--num_processes={ranks}"),
            "--coordinator_address=127.0.0.1:{port}",
        ),
        "loader",
        packages=("jax",),
    ),
]


def _crash(mode: str, framework: str, launch: Launch) -> Case:
    return Case(
        f"{mode} {framework}",
        "crashes",
        framework,
        "crash",
        (launch,),
        fault=f"crash.py {mode}",
        steps=60,
        settle_s=4.0,
        watch_s=40.0,
        apart=False,
        wants={"oom": ("cgroup",), "disk": ("small_disk",)}.get(mode, ()),
        cause=CAUSES[mode],
    )


def _crashes(mode: str) -> list[Case]:
    return [
        _crash(mode, "torchrun", Launch((*TORCHRUN, "{jobs}/crash.py"), 3, mode)),
        _crash(mode, "mp.spawn", Launch(("{python}", "{jobs}/crash.py", "{ranks}", "{port}"), 3, mode)),
        _crash(mode, "bare", _bare("crash.py", 3, mode)),
    ]


def _healthy(mode: str, *, settle_s: float = 20.0, watch_s: float = 75.0) -> Case:
    return Case(
        f"healthy {mode}",
        "healthy",
        "torchrun",
        "healthy",
        (Launch((*TORCHRUN, "{jobs}/healthy.py"), 3, mode),),
        culprit=-1,
        settle_s=settle_s,
        watch_s=watch_s,
        no_job=mode == "finished",
    )


CASES: tuple[Case, ...] = (
    _reproduction("a", "sleep_in_dataset"),
    _reproduction("a2", "slow_validation"),
    _reproduction("b", "mismatch"),
    Case(
        "c gone",
        "reproductions",
        "torch, bare",
        "crash",
        (_bare("crash.py", 4, "kill"),),
        settle_s=4.0,
        watch_s=40.0,
        cause=CAUSES["kill"],
    ),
    Case("d sigstop", "reproductions", "torch, bare", "hang", (_bare("ddp.py", 4, "stop"),)),
    _reproduction("e", "worker_deadlock"),
    _reproduction("f", "endless_loop", watch_s=WATCH_LONG_S),
    _reproduction("g", "fifo_read"),
    _reproduction("g2", "uninterruptible"),
    _reproduction("h", "skewed_steps", marked=False),
    _reproduction("i", "healthy_slow", truth="healthy", marked=False),
    _reproduction("j", "straggler", truth="straggler", marked=False),
    *FRAMEWORKS,
    *(case for mode in ("kill", "oom", "segfault", "exception", "disk") for case in _crashes(mode)),
    Case(
        "stale lock",
        "several",
        "torchrun",
        "hang",
        (Launch((*TORCHRUN, "{jobs}/polls.py"), 3),),
        fault="polls.py polls",
        nobody=True,
    ),
    Case(
        "two jobs",
        "several",
        "torchrun",
        "hang",
        (
            Launch((*TORCHRUN, "{jobs}/ddp.py"), 3, "loader"),
            Launch((*TORCHRUN, "--rdzv-id=well", "{jobs}/ddp.py"), 2, ""),
        ),
        fault="rows.py loader",
    ),
    Case(
        "half, culprit seen",
        "several",
        "torch, bare",
        "hang",
        (Launch(("{python}", "{jobs}/ddp.py"), 4, "loader", (2, 3)),),
        fault="rows.py loader",
        outside=Launch(("{python}", "{jobs}/ddp.py"), 4, "loader", (0, 1)),
    ),
    Case(
        "half, culprit elsewhere",
        "several",
        "torch, bare",
        "hang",
        (Launch(("{python}", "{jobs}/ddp.py"), 4, "loader", (0, 1)),),
        fault="rows.py loader",
        outside=Launch(("{python}", "{jobs}/ddp.py"), 4, "loader", (2, 3)),
        nobody=True,
    ),
    _healthy("init"),
    _healthy("compile"),
    _healthy("evaluate"),
    _healthy("save"),
    _healthy("checkpoint", settle_s=45.0, watch_s=110.0),
    _healthy("accumulate"),
    _healthy("slow", watch_s=120.0),
    _healthy("finished", settle_s=6.0, watch_s=30.0),
    Case(
        "healthy notebook",
        "healthy",
        "python",
        "healthy",
        (Launch(("{python}", "{jobs}/notebook.py"), 1),),
        culprit=-1,
        no_job=True,
    ),
)
BY_NAME = {case.name: case for case in CASES}
