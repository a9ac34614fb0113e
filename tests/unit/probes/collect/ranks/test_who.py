"""Who is a rank where no variable at its start says so: launchers as people use them, as process trees."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from mltop.probes.collect.ranks import RankSource
from mltop.probes.collect.ranks.procfs import SILENT_S
from mltop.probes.model import RankSample
from tests.fakes.proctree import ProcTree

TORCH = ("/v/torch/lib/libtorch_cpu.so",)
GROUP = ("pt_tcpstore_uv", "gloo_tcp_loop", "pt_gloo_runloop")
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SPAWNED = (
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4, pipe_handle=6)",
    "--multiprocessing-fork",
)


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


class Watch:
    """Reads the tree second by second."""

    def __init__(self, tree: ProcTree, gpus: dict[int, list[int]] | None = None) -> None:
        self.source, self.gpus, self.now = RankSource(str(tree.root)), gpus or {}, 0.0
        self.gaps: list[str] = []

    def after(self, seconds: int = 2) -> list[RankSample]:
        ranks: list[RankSample] = []
        for _ in range(seconds):
            ranks, gaps = self.source.read(self.now, self.gpus)
            self.gaps = [gap.why for gap in gaps]
            self.now += 1.0
        return ranks

    @property
    def unassigned(self) -> list[int]:
        return [sample.pid for sample in self.source.unassigned]


def numbers(ranks: list[RankSample]) -> list[tuple[int, int | None, int | None, int | None]]:
    return [(rank.pid, rank.rank, rank.local_rank, rank.world_size) for rank in ranks]


def torch_python(tree: ProcTree, pid: int, *argv: str, ppid: int = 1, **more: object) -> None:
    tree.python(pid, *(argv or ("train.py",)), ppid=ppid)
    tree.change(pid, **{"libraries": TORCH, "live": {}, **more})


def lightning(tree: ProcTree, node: int, count: int, world: int, live: bool = True) -> None:
    shared = {**MASTER, "NODE_RANK": str(node), "WORLD_SIZE": str(world)}
    torch_python(tree, 20)
    tree.change(20, live={**shared, "LOCAL_RANK": "0"} if live else None)
    for local in range(1, count):
        tree.python(20 + local, "train.py", ppid=20, environ={**shared, "LOCAL_RANK": str(local)})


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("node", [0, 1])
def test_lightnings_own_launcher(tree: ProcTree, node: int, live: bool) -> None:
    lightning(tree, node, 4, 8, live)
    tree.fork(20, 30, comm="pt_data_worker")
    watch = Watch(tree)
    ranks = watch.after()
    assert numbers(ranks) == [(20 + local, 4 * node + local, local, 8) for local in range(4)]
    assert {rank.launcher for rank in ranks} == {"lightning"}
    assert [rank.local_world_size for rank in ranks] == [4] * 4
    first = "live environment" if live else "parent and order"
    assert [rank.identified_by for rank in ranks] == [first, "environment", "environment", "environment"]
    assert [rank.children for rank in ranks] == [[30], [], [], []]
    assert watch.unassigned == []
    tree.remove(23)  # those that are left keep their numbers
    assert numbers(watch.after()) == [(20 + local, 4 * node + local, local, 8) for local in range(3)]


def test_ray_sets_the_rank_in_its_workers_long_after_their_start(tree: ProcTree) -> None:
    tree.add(10, argv=["/v/ray/raylet"], environ=dict(SLURM))
    for index in (0, 1):
        tree.python(20 + index, "/v/ray/workers/default_worker.py", ppid=10, environ=dict(SLURM))
    watch = Watch(tree)
    watch.after(20)
    for index in (0, 1):
        live = {**MASTER, "RANK": str(index), "WORLD_SIZE": "2", "LOCAL_RANK": str(index), "LOCAL_WORLD_SIZE": "2"}
        changes: dict[str, object] = {"libraries": TORCH, "live": live, "environ": {}, "environ_bytes": bytes(300)}
        tree.change(20 + index, argv=["ray::RayTrainWorker"], comm="ray::RayTrainWo", **changes)
    ranks = watch.after(70)
    assert numbers(ranks) == [(20, 0, 0, 2), (21, 1, 1, 2)]
    assert {(rank.launcher, rank.identified_by) for rank in ranks} == {("ray", "live environment")}
    assert watch.gaps == []


@pytest.mark.parametrize(("loads_at", "sets_after"), [(2, 5), (2, 9), (2, 14), (5, 4), (9, 3), (9, 6)])
def test_a_young_process_that_sets_its_rank_after_its_start_is_a_rank_within_seconds(
    tree: ProcTree, loads_at: int, sets_after: int
) -> None:
    """mp.spawn's ranks import torch, then set their variables, and may be dead ten seconds later."""
    watch = Watch(tree)
    watch.after(3)
    tree.python(20, "train.py")
    for index in (0, 1):
        tree.python(30 + index, *SPAWNED, ppid=20)
    watch.after(loads_at)
    for index in (0, 1):
        tree.change(30 + index, libraries=TORCH, live={})
    watch.after(sets_after)
    for index in (0, 1):
        tree.change(30 + index, live={**MASTER, "RANK": str(index), "WORLD_SIZE": "2"}, threads=GROUP)
    assert numbers(watch.after(2)) == [(30, 0, None, 2), (31, 1, None, 2)]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize("outer", [{}, SLURM, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0"}])
@pytest.mark.parametrize("starts", ["spawn", "fork"])
def test_mp_spawn_with_ranks_that_the_script_sets(tree: ProcTree, starts: str, outer: dict[str, str]) -> None:
    tree.python(20, "train.py", environ=dict(outer))
    tree.change(20, libraries=TORCH, live={})
    tree.python(29, "-c", "from multiprocessing.resource_tracker import main", ppid=20, environ=dict(outer))
    for index in (0, 1):
        if starts == "fork":
            tree.fork(20, 30 + index)
        else:
            tree.python(30 + index, *SPAWNED, ppid=20, environ=dict(outer))
        live = {**MASTER, "RANK": str(2 + index), "WORLD_SIZE": "4", "LOCAL_RANK": str(index)}
        tree.change(30 + index, libraries=TORCH, live=live, threads=GROUP)
        tree.fork(30 + index, 40 + index, threads=(), comm="pt_data_worker")
    watch = Watch(tree)
    ranks = watch.after(4)
    assert numbers(ranks) == [(30, 2, 0, 4), (31, 3, 1, 4)]
    assert {rank.identified_by for rank in ranks} == {"live environment"}
    assert [rank.children for rank in ranks] == [[40], [41]]
    assert watch.unassigned == []


@pytest.mark.parametrize("starts", ["spawn", "fork"])
def test_mp_spawn_without_any_rank_is_numbered_by_order(tree: ProcTree, starts: str) -> None:
    torch_python(tree, 20)
    tree.fork(20, 25, live={})  # a manager
    for index in range(3):
        if starts == "fork":
            tree.fork(20, 30 + index)
        else:
            tree.python(30 + index, *SPAWNED, ppid=20)
        tree.change(30 + index, libraries=TORCH, live=MASTER, threads=GROUP)
    watch = Watch(tree)
    ranks = watch.after(3)
    assert numbers(ranks) == [(30, 0, 0, 3), (31, 1, 1, 3), (32, 2, 2, 3)]
    assert {(rank.launcher, rank.identified_by, rank.job) for rank in ranks} == {
        ("multiprocessing", "parent and order", "127.0.0.1:29500")
    }
    assert watch.unassigned == []
    tree.remove(30)
    assert numbers(watch.after(3)) == [(31, 1, 1, 3), (32, 2, 2, 3)]


ALONE = {"PMIX_NAMESPACE": "1828388865", "PMIX_RANK": "0"}  # Open MPI 4


@pytest.mark.parametrize("alone", [ALONE, {**ALONE, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}])
@pytest.mark.parametrize("starts", ["spawn", "fork"])
def test_lightnings_spawn_where_mpi4py_is_installed(tree: ProcTree, starts: str, alone: dict[str, str]) -> None:
    """To ask for MPI loads it, which calls the process rank 0 of 1: its children inherit that."""
    torch_python(tree, 20)
    tree.change(20, live={**alone, "MASTER_PORT": "29500"})
    for index in range(3):
        if starts == "fork":
            tree.fork(20, 30 + index)
        else:
            tree.python(30 + index, *SPAWNED, ppid=20, environ={**alone, "MASTER_PORT": "29500"})
        tree.change(30 + index, libraries=TORCH, live={**alone, **MASTER}, threads=GROUP)
    ranks = Watch(tree).after(4)
    assert numbers(ranks) == [(30, 0, 0, 3), (31, 1, 1, 3), (32, 2, 2, 3)]
    assert {(rank.launcher, rank.job) for rank in ranks} == {("multiprocessing", "127.0.0.1:29500")}


def test_mpirun_with_one_process_is_a_job(tree: ProcTree) -> None:
    tree.python(20, "train.py", environ={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    assert numbers(Watch(tree).after()) == [(20, 0, None, 1)]


def test_all_members_of_a_group_are_found_at_once(tree: ProcTree) -> None:
    """One that ends a moment after the others were found would be nobody's end."""
    watch = Watch(tree)
    watch.after(3)
    tree.python(20, "train.py")
    for index in range(4):
        tree.python(30 + index, *SPAWNED, ppid=20)
        tree.change(30 + index, libraries=TORCH, live={})
        watch.after(3 + index)
        torch_python(tree, 50 + index)  # somebody else's
        watch.after(2)
    watch.after(45)  # they are looked into ever more seldom, each at another time
    for index in range(4):
        tree.change(30 + index, threads=GROUP)
    ranks = next(ranks for _ in range(120) if (ranks := watch.after(1)))
    assert numbers(ranks) == [(30 + index, index, index, 4) for index in range(4)]


def test_many_young_processes_do_not_hide_a_group(tree: ProcTree) -> None:
    """There is little time for looks in each second: who is likely to be a rank comes first."""
    watch = Watch(tree)
    watch.after(3)
    for pid in range(1000, 1300):
        torch_python(tree, pid, f"test_{pid}.py", libraries=())
    tree.python(20, "train.py")
    for index in range(2):
        tree.python(30 + index, *SPAWNED, ppid=20)
        tree.change(30 + index, libraries=TORCH, live={})
    watch.after(3)
    for index in range(2):
        tree.change(30 + index, threads=GROUP)
    assert numbers(watch.after(3)) == [(30, 0, 0, 2), (31, 1, 1, 2)]


def test_by_order_over_several_nodes(tree: ProcTree) -> None:
    """With srun the node's place is known, without it is not."""
    tree.python(20, "main.py", environ=dict(SLURM))
    for index in (0, 1):
        tree.python(30 + index, *SPAWNED, ppid=20, environ=dict(SLURM))
        tree.change(30 + index, libraries=TORCH, live={}, threads=GROUP)
    assert numbers(Watch(tree).after(4)) == [(30, 2, 0, 4), (31, 3, 1, 4)]


def test_by_order_on_an_unknown_node(tree: ProcTree) -> None:
    torch_python(tree, 20)
    for index in (0, 1):
        tree.python(30 + index, *SPAWNED, ppid=20)
        tree.change(30 + index, libraries=TORCH, live={"MASTER_ADDR": "node-a", "MASTER_PORT": "1"}, threads=GROUP)
    assert numbers(Watch(tree).after(3)) == [(30, None, 0, None), (31, None, 1, None)]


def test_a_script_that_sets_the_rank_before_each_start(tree: ProcTree) -> None:
    """os.environ["RANK"] = str(i); process.start(): the parent's own environment is that of its last child."""
    torch_python(tree, 20)
    tree.change(20, live={**MASTER, "RANK": "2", "WORLD_SIZE": "3"})
    for index in range(3):
        environ = {**MASTER, "RANK": str(index), "WORLD_SIZE": "3"}
        tree.python(30 + index, *SPAWNED, ppid=20, environ=environ)
    assert numbers(Watch(tree).after()) == [(30 + index, index, None, 3) for index in range(3)]


def test_a_worker_that_outlives_its_rank_is_none(tree: ProcTree) -> None:
    environ = {**MASTER, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}
    tree.python(30, *SPAWNED, ppid=1, environ=environ)
    tree.change(30, libraries=TORCH, live={})
    assert Watch(tree).after() == []


def test_ranks_by_their_arguments(tree: ProcTree) -> None:
    for rank in (0, 1):
        torch_python(tree, 20 + rank, "train.py", f"--rank={rank}", "--world-size", "2", threads=GROUP)
        tree.change(20 + rank, live=MASTER)
    torch_python(tree, 30, "tool.py", "--rank", "1", "--world-size", "2")  # in no group
    watch = Watch(tree)
    ranks = watch.after()
    assert numbers(ranks) == [(20, 0, None, 2), (21, 1, None, 2)]
    assert {rank.identified_by for rank in ranks} == {"arguments"}
    assert watch.unassigned == [30]


@pytest.mark.parametrize("above", ["/usr/lib/systemd/systemd", "/usr/bin/tini", "jupyterhub"])
def test_what_started_everything_is_no_launcher(tree: ProcTree, above: str) -> None:
    """A job below it does not make everything below it that job's."""
    if above.startswith("/"):
        tree.exec(1, above)
    else:
        tree.python(1, above)
    tree.python(20, "train.py", environ={"RANK": "0", "WORLD_SIZE": "1", **MASTER})
    torch_python(tree, 30, "serve.py")
    watch = Watch(tree)
    assert numbers(watch.after()) == [(20, 0, None, 1)]
    assert watch.unassigned == [30]


JAX = ("/v/jaxlib/xla_extension.so",)


@pytest.mark.parametrize(
    "words",
    [
        ("--process_id={0}", "--num_processes=3", "--coordinator=10.0.0.1:1234"),
        ("--process-id", "{0}", "--num-processes", "3", "--coordinator-address", "10.0.0.1:1234", "--lr=0.1"),
        ("-proc_id={0}", "-num_procs=3", "--coord_addr=10.0.0.1:1234"),
    ],
)
def test_jax_whose_command_lines_number_its_processes(tree: ProcTree, words: tuple[str, ...]) -> None:
    for rank in range(3):
        argv = [word.format(rank) for word in words]
        torch_python(tree, 20 + rank, "train.py", *argv, libraries=JAX)
    watch = Watch(tree)
    ranks = watch.after()
    assert [(rank.pid, rank.rank, rank.world_size) for rank in ranks] == [(20, 0, 3), (21, 1, 3), (22, 2, 3)]
    told = {(rank.job, rank.master_address, rank.launcher, rank.identified_by) for rank in ranks}
    assert told == {("10.0.0.1:1234", "10.0.0.1", "jax", "arguments")}
    assert watch.unassigned == []
    tree.remove(21)
    tree.remove(22)
    assert numbers(watch.after()) == [(20, 0, None, 3)]


@pytest.mark.parametrize(
    "lines",
    [
        [("0", "2", "10.0.0.1:1234"), ("1", "2", "10.0.0.1:1234")],  # bare words
        [("--seed=0", "--port=3", "10.0.0.1:1234"), ("--seed=1", "--port=3", "10.0.0.1:1234")],
        [("--process_id=3", "--num_processes=3", "--coordinator=10.0.0.1:1")],
        [("--process_id=0", "--num_processes=3")],
        [("train", "0", "3"), ("train", "1", "3")],
    ],
)
def test_numbers_that_do_not_tell_who_of_how_many_one_is(tree: ProcTree, lines: list[tuple[str, ...]]) -> None:
    for index, line in enumerate(lines):
        torch_python(tree, 20 + index, "serve.py", *line, libraries=JAX)
    watch = Watch(tree)
    assert watch.after() == []
    assert watch.unassigned == [20 + index for index in range(len(lines))]


def server(tree: ProcTree, *argv: str) -> None:
    torch_python(tree, 20, *argv)


def worker(tree: ProcTree, pid: int, title: str, ppid: int) -> None:
    torch_python(tree, pid, ppid=ppid)
    tree.change(pid, argv=[title], comm=title[:15], environ_bytes=bytes(100))


def test_vllm_with_its_server(tree: ProcTree) -> None:
    server(tree, "/v/bin/vllm", "serve", "some/model", "-tp", "2", "--pipeline-parallel-size=2", "--port", "8000")
    worker(tree, 21, "VLLM::EngineCore", 20)
    for pp in (0, 1):
        for tp in (0, 1):
            worker(tree, 30 + 2 * pp + tp, f"VLLM::Worker_PP{pp}_TP{tp}", 21)
    watch = Watch(tree)
    ranks = watch.after()
    assert numbers(ranks) == [(30 + number, number, None, 4) for number in range(4)]
    assert {(rank.launcher, rank.job, rank.identified_by) for rank in ranks} == {("vllm", "vllm:20", "title")}
    assert ranks[3].parallel == {"tp": 1, "tp_size": 2, "pp": 1, "pp_size": 2}
    assert watch.unassigned == []
    assert watch.gaps == []


def test_vllm_with_data_parallel_engines_on_one_gpu_each(tree: ProcTree) -> None:
    server(tree, "-m", "vllm.entrypoints.openai.api_server", "-dp", "2")
    for dp in (0, 1):
        worker(tree, 21 + dp, f"VLLM::EngineCore_DP{dp}", 20)
    worker(tree, 25, "VLLM::DPCoordinator", 20)
    ranks = Watch(tree).after()
    assert numbers(ranks) == [(21, 0, None, 2), (22, 1, None, 2)]
    assert ranks[1].parallel == {"dp": 1, "dp_size": 2}


def test_vllm_in_a_script_has_the_sizes_that_its_workers_fill(tree: ProcTree) -> None:
    torch_python(tree, 20, "generate.py")
    worker(tree, 21, "VLLM::EngineCore", 20)
    for tp in (0, 1, 3):
        worker(tree, 30 + tp, f"VLLM::Worker_TP{tp}", 21)
    watch = Watch(tree)
    ranks = watch.after()
    assert numbers(ranks) == [(30, 0, None, None), (31, 1, None, None), (33, 3, None, None)]  # one is missing
    worker(tree, 32, "VLLM::Worker_TP2", 21)
    assert numbers(watch.after()) == [(30 + tp, tp, None, 4) for tp in range(4)]


def test_two_servers_in_one_slurm_job_are_two(tree: ProcTree) -> None:
    """As a reward model beside what it judges: both number their workers from 0."""
    watch = Watch(tree)
    for first in (20, 40):
        torch_python(tree, first, "/v/bin/vllm", "serve", "m", "-tp", "2", live={"SLURM_JOB_ID": "7"})
        worker(tree, first + 1, "VLLM::EngineCore", first)
        for tp in (0, 1):
            worker(tree, first + 2 + tp, f"VLLM::Worker_TP{tp}", first + 1)
            tree.change(first + 2 + tp, live={"SLURM_JOB_ID": "7"})
        ranks = watch.after()
        assert [(rank.pid, rank.job) for rank in ranks if rank.pid < 40] == [(22, "7"), (23, "7")]
    assert [(rank.pid, rank.rank, rank.job) for rank in ranks[2:]] == [(42, 0, "7/vllm:40"), (43, 1, "7/vllm:40")]


def test_sglang(tree: ProcTree) -> None:
    server(tree, "-m", "sglang.launch_server", "--model-path", "m", "--tp", "2", "--pp-size", "2")
    for pp in (0, 1):
        for tp in (0, 1):
            worker(tree, 30 + 2 * pp + tp, f"sglang::scheduler_PP{pp}_TP{tp}", 20)
    worker(tree, 40, "sglang::detokenizer", 20)
    watch = Watch(tree)
    ranks = watch.after()
    assert numbers(ranks) == [(30 + number, number, None, 4) for number in range(4)]
    assert ranks[2].parallel == {"tp": 0, "tp_size": 2, "pp": 1, "pp_size": 2}
    assert watch.unassigned == []


def test_a_server_in_a_pod_or_a_slurm_task_is_its_workers(tree: ProcTree) -> None:
    tree.python(20, "/v/bin/vllm", "serve", "m", "-tp", "2", environ=dict(SLURM))
    for tp in (0, 1):
        tree.python(30 + tp, ppid=20, environ=dict(SLURM))
        tree.change(30 + tp, argv=[f"VLLM::Worker_TP{tp}"], comm="VLLM::Worker_TP")
    ranks = Watch(tree).after()
    assert numbers(ranks) == [(30, 0, None, 2), (31, 1, None, 2)]
    assert {rank.job for rank in ranks} == {"7"}


def test_megatrons_layout_is_read_from_its_arguments(tree: ProcTree) -> None:
    arguments = ("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--num-layers", "8")
    for rank in range(8):
        environ = {**MASTER, "RANK": str(rank), "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"}
        tree.python(20 + rank, "pretrain_gpt.py", *arguments, environ=environ)
    ranks = Watch(tree).after(1)
    assert ranks[5].parallel == {"tp": 1, "tp_size": 2, "pp": 1, "pp_size": 2, "dp": 0, "dp_size": 2}


# Processes of no job.


def test_a_notebook_is_listed_once_and_is_no_rank(tree: ProcTree) -> None:
    tree.python(10, "/v/bin/jupyter-lab")
    torch_python(tree, 20, "-m", "ipykernel_launcher", "-f", "k.json", ppid=10)
    for worker_pid in (30, 31):
        tree.fork(20, worker_pid)
    tree.python(40, "plain.py")
    tree.python(41, "/usr/bin/networkd-dispatcher")
    tree.change(41, libraries=TORCH)
    watch = Watch(tree, {20: [1]})
    assert watch.after() == []
    (sample,) = watch.source.unassigned
    assert (sample.pid, sample.rank, sample.job, sample.gpus, sample.children) == (20, None, "", [1], [30, 31])
    assert sample.identified_by == ""
    assert watch.gaps == []


def test_what_loads_torch_later_is_listed_then(tree: ProcTree) -> None:
    tree.python(20, "serve.py")
    watch = Watch(tree)
    watch.after(10)
    assert watch.unassigned == []
    tree.change(20, libraries=("/v/jaxlib/libjax_common.so",))
    watch.after(12)
    assert watch.unassigned == [20]
    tree.exec(20, "/bin/cat")
    tree.change(20, libraries=())
    watch.after(40)
    assert watch.unassigned == []


def test_many_of_one_user_do_not_hide_others(tree: ProcTree) -> None:
    for pid in range(100, 200):
        torch_python(tree, pid, "pool.py", uid=1000)
    torch_python(tree, 500, "notebook.py", uid=1001)
    watch = Watch(tree)
    watch.after(3)
    assert len(watch.unassigned) == 65
    assert 500 in watch.unassigned


def test_what_a_rank_started_and_what_started_it_are_not_listed(tree: ProcTree) -> None:
    torch_python(tree, 10, "/v/bin/my_launcher.py")
    environ = {**MASTER, "RANK": "0", "WORLD_SIZE": "1"}
    tree.python(20, "train.py", ppid=10, environ=environ)
    torch_python(tree, 30, "evaluate.py", ppid=20)
    torch_python(tree, 40, "-m", "logger", ppid=10)
    watch = Watch(tree)
    watch.after()
    assert watch.unassigned == []


def test_what_a_ray_driver_started_beside_the_ranks_is_not_listed(tree: ProcTree) -> None:
    torch_python(tree, 10, "driver.py")
    tree.add(11, ppid=10, argv=["/v/ray/raylet"])
    torch_python(tree, 20, ppid=11)
    live = {**MASTER, "RANK": "0", "WORLD_SIZE": "1", "ACCELERATE_TORCH_DEVICE": "cpu"}
    tree.change(20, argv=["ray::RayTrainWorker"], live=live)
    torch_python(tree, 30, ppid=11)
    tree.change(30, argv=["ray::TrainController.run"])
    watch = Watch(tree)
    (rank,) = watch.after(3)
    assert (rank.pid, rank.launcher, rank.identified_by) == (20, "ray", "live environment")
    assert watch.unassigned == []


def test_ranks_of_torchrun_are_never_looked_into(tree: ProcTree) -> None:
    environ = {**MASTER, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}
    tree.python(20, "train.py", environ=environ)
    tree.change(20, live={"RANK": "5", "WORLD_SIZE": "9"}, libraries=TORCH)
    tree.fork(20, 30)
    watch = Watch(tree)
    assert numbers(watch.after(5)) == [(20, 0, None, 1)]
    processes = watch.source._table.processes
    assert processes[20].looks == processes[30].looks == 0


def test_a_second_user_of_the_pid_is_looked_into_anew(tree: ProcTree) -> None:
    torch_python(tree, 20)
    tree.change(20, live={**MASTER, "RANK": "1", "WORLD_SIZE": "2"})
    watch = Watch(tree)
    assert numbers(watch.after()) == [(20, 1, None, 2)]
    tree.remove(20)
    tree.python(20, "other.py")
    tree.change(20, start_ticks=99_000)
    assert watch.after(3) == []
    assert watch.unassigned == []


def test_who_blocks_the_reader_costs_only_their_own(tree: ProcTree) -> None:
    """A user may make reads of their memory block; one of theirs is tried, then none, and others' are."""
    for pid in range(20, 26):
        torch_python(tree, pid, uid=1000)
        (tree.root / str(pid) / "maps").unlink()
        os.mkfifo(tree.root / str(pid) / "maps")
    torch_python(tree, 30, uid=1001, live={**MASTER, "RANK": "1", "WORLD_SIZE": "2"})
    watch = Watch(tree)
    began = time.monotonic()
    assert numbers(watch.after(12)) == [(30, 1, None, 2)]
    assert time.monotonic() - began < 2 * SILENT_S + 5
    assert [why for why in watch.gaps if "does not answer" in why]


@pytest.mark.parametrize("what", ["mem", "auxv", "maps", "task"])
def test_what_cannot_be_read_costs_only_the_rank(tree: ProcTree, what: str) -> None:
    torch_python(tree, 20, live={**MASTER, "RANK": "1", "WORLD_SIZE": "2"})
    path = tree.root / "20" / what
    if what == "task":
        shutil.rmtree(path)
    else:
        path.write_bytes(b"\xff" * 70_000)
    assert [rank.rank for rank in Watch(tree).after(3)] in ([], [1])


def test_numbers_that_no_job_has(tree: ProcTree) -> None:
    """A made up outer rank, titles and sizes beyond any: unknown, never an error."""
    tree.python(20, "main.py", environ={"RANK": "16000000", "WORLD_SIZE": "16777216"})
    for pid in (30, 31):
        tree.python(pid, *SPAWNED, ppid=20, environ={"RANK": "16000000", "WORLD_SIZE": "16777216"})
        tree.change(pid, libraries=TORCH, live={}, threads=GROUP)
    torch_python(tree, 40, "/v/bin/vllm", "serve", "-tp", "1048576", "-pp", "1048576")
    worker(tree, 41, "VLLM::Worker_PP999999_TP999999", 40)
    worker(tree, 42, "VLLM::Worker_TP99999999999", 40)
    ranks = {rank.pid: rank for rank in Watch(tree).after(4)}
    assert [(ranks[pid].rank, ranks[pid].world_size) for pid in (30, 31, 41)] == [(None, None)] * 3
    assert 42 not in ranks
