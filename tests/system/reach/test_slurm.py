"""A real Slurm of three nodes: jobs as targets, and srun as the way to their nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.pacing import Limits
from mltop.probes.reach.targets import TargetOptions, channels, resolve
from tests.processes import name_of, own_children
from tests.slurm import Slurm, slurm_cluster
from tests.waiting import wait_until

NODES = ("gpu01", "gpu02", "gpu03")
LIMITS = Limits(silence_s=5.0, ping_s=1.0, retry_first_s=0.2, retry_most_s=2.0)
WAIT_S = 60.0
TRAIN = """\
import os, time

def waits_for_the_others():
    time.sleep(1000)

def is_stuck():
    time.sleep(1000)

(is_stuck if os.environ["SLURM_PROCID"] == "1" else waits_for_the_others)()
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster(nodes=len(NODES)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything runs as on this cluster's login node; after every test no agent and no job is left."""
    for name in [name for name in os.environ if name.startswith("SLURM") or name == "WCOLL"]:
        monkeypatch.delenv(name)
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    yield
    try:
        wait_until(lambda: not any(slurm.agents(node) for node in NODES), what="no agent on any node")
    finally:
        slurm.cancel_all()


@pytest.fixture
def job(slurm: Slurm) -> str:
    """A job on all nodes, with one task on each of them."""
    number = slurm.submit("srun /usr/bin/sleep 1000")
    slurm.wait_running(number)
    wait_until(lambda: all("/usr/bin/sleep" in str(slurm.processes(node)) for node in NODES), what="its tasks")
    return number


@contextlib.contextmanager
def opened(**options: str) -> Iterator[Hub]:
    """A hub on the targets, by srun."""
    given = TargetOptions(via="srun", interval_s=0.5, **options)
    hub = Hub(channels(resolve(given), given), given.interval_s, LIMITS)
    hub.start()
    try:
        yield hub
    finally:
        hub.close()


def states(hub: Hub) -> dict[str, str]:
    return {view.node: view.state.state for view in hub.view().nodes}


def wait_live(hub: Hub, nodes: tuple[str, ...] = NODES) -> None:
    wait_until(lambda: all(states(hub)[node] == "live" for node in nodes), WAIT_S, f"{nodes} live")


def wait_state(hub: Hub, node: str, state: str, words: str = "") -> None:
    def there() -> bool:
        now = hub.node(node).state
        return now.state == state and words in now.reason

    try:
        wait_until(there, WAIT_S, f"{node} {state} {words}")
    except AssertionError as error:
        raise AssertionError(f"{error}, it is {hub.node(node).state}") from None


ANSWERED = {"live", "stale"}  # on a busy machine the newest sample may be some seconds old


def srun_pid() -> int:
    """The srun that this process has started."""
    return next(pid for pid in own_children() if name_of(pid) == "srun")


def test_a_snapshot_of_a_job_has_every_node(slurm: Slurm, job: str) -> None:
    done = slurm.mltop("snapshot", "--job", job, "--via", "srun", "--json")
    found = json.loads(done.stdout)
    assert [node["node"] for node in found["nodes"]] == list(NODES)
    assert {node["state"] for node in found["nodes"]} <= ANSWERED
    assert [sample["node"] for sample in found["samples"]] == list(NODES)
    assert [sample["host"]["hostname"] for sample in found["samples"]] == list(NODES)
    # The agents live in the job, with its variables around them, and are no ranks of it.
    assert [sample["ranks"] for sample in found["samples"]] == [[]] * len(NODES)


def test_the_ranks_of_a_job_are_dumped_on_their_nodes(slurm: Slurm, tmp_path: Path) -> None:
    program = slurm.directory / "train.py"
    program.write_text(TRAIN)
    number = slurm.submit(f"srun {sys.executable} {program}")
    slurm.wait_running(number)
    wait_until(lambda: all(str(program) in str(slurm.processes(node)) for node in NODES), what="the ranks")
    done = slurm.mltop("stacks", "--job", number, "--via", "srun", "--samples", "1", "--json", "--timeout", "60")
    found = json.loads(done.stdout)
    assert [job["job"] for job in found["jobs"]] == [number]
    [report] = found["jobs"]
    assert report["world_size"] == len(NODES)
    assert {digest["rank"]: digest["node"] for digest in report["digests"]} == dict(enumerate(NODES))
    ranks = {cls["frames"][0]["function"]: cls["ranks"] for cls in report["classes"]}
    assert ranks == {"is_stuck": "1", "waits_for_the_others": "0,2"}
    assert found["not_answered"] == []


def test_a_probe_on_the_nodes_of_a_job_by_srun(slurm: Slurm, job: str) -> None:
    """The launchers meet over TCP, whatever brought them there."""
    args = ["--job", job, "--via", "srun", "--torch-python", sys.executable, "--sizes", "64K", "--json"]
    report = json.loads(slurm.mltop("probe", "all-reduce", *args, check=False).stdout)
    assert report["failures"] == []
    assert [(result["nodes"], result["wrong"]) for result in report["results"]] == [(list(NODES), 0)]


def test_inside_of_a_job_its_nodes_need_not_be_named(slurm: Slurm) -> None:
    number = slurm.submit(f"{sys.executable} -m mltop snapshot --json && echo finished")
    slurm.wait_ended(number)
    output = slurm.output(number)
    assert "finished" in output, output
    found = json.loads(output.splitlines()[0])
    assert [node["node"] for node in found["nodes"]] == list(NODES)
    assert {node["state"] for node in found["nodes"]} <= ANSWERED
    assert [sample["host"]["hostname"] for sample in found["samples"]] == list(NODES)


def test_the_agent_is_installed_where_it_is_missing_and_used_where_it_is_not(slurm: Slurm, job: str) -> None:
    for node in NODES:
        slurm.forget_caches(node)
    with opened(job=job) as hub:
        wait_live(hub)
        boots = {view.node: view.connection.boot for view in hub.view().nodes}
    assert [boot is not None and boot.cached for boot in boots.values()] == [False] * len(NODES)
    assert all((slurm.home_of(node) / ".cache/mltop").is_dir() for node in NODES)
    slurm.forget_caches("gpu02")
    with opened(job=job) as hub:
        wait_live(hub)
        boots = {view.node: view.connection.boot for view in hub.view().nodes}
    cached = {node: boot is not None and boot.cached for node, boot in boots.items()}
    assert cached == {"gpu01": True, "gpu02": False, "gpu03": True}


def test_when_srun_is_killed_its_agents_are_gone_at_once_and_come_back(slurm: Slurm, job: str) -> None:
    with opened(job=job) as hub:
        wait_live(hub)
        before = {node: slurm.agents(node) for node in NODES}
        assert all(before.values())
        os.kill(srun_pid(), signal.SIGKILL)

        def are_gone() -> bool:
            return not any(set(before[node]) & set(slurm.agents(node)) for node in NODES)

        wait_until(are_gone, what="the end of the agents")
        wait_live(hub)
        assert all(view.connection.restarts for view in hub.view().nodes)


def test_an_agent_that_is_killed_comes_back_and_the_others_go_on(slurm: Slurm, job: str) -> None:
    with opened(job=job) as hub:
        wait_live(hub)
        for pid in slurm.agents("gpu02"):
            slurm.on_node("gpu02", ["kill", "-9", str(pid)], check=False)
        others = {"gpu01": "live", "gpu03": "live"}
        seen: list[str] = []

        def back() -> bool:
            now = states(hub)
            seen.append(now.pop("gpu02"))
            assert now == others
            return "lost" in seen and seen[-1] == "live"

        wait_until(back, WAIT_S, "gpu02 lost and live again")


def test_a_node_whose_slurmd_hangs_does_not_keep_the_others_away(slurm: Slurm, job: str) -> None:
    slurm.signal_slurmd("gpu03", signal.SIGSTOP)
    try:
        with opened(job=job) as hub:
            wait_live(hub, NODES[:2])
            assert states(hub)["gpu03"] != "live"
            slurm.signal_slurmd("gpu03", signal.SIGCONT)
            wait_live(hub)
    finally:
        slurm.signal_slurmd("gpu03", signal.SIGCONT)


def test_py_spy_is_sent_again_to_a_node_that_is_asked_later(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")  # the agents look for an installed one first
    for node in NODES:
        slurm.forget_caches(node)
    program = slurm.directory / "train.py"
    program.write_text(TRAIN)
    number = slurm.submit(f"srun {sys.executable} {program}")
    slurm.wait_running(number)
    wait_until(lambda: all(str(program) in str(slurm.processes(node)) for node in NODES), what="the ranks")
    with opened(job=number) as hub:
        wait_live(hub)
        for node in NODES[:2]:
            answers = list(hub.request("stacks", {"ints": True}, [node]).answers(50.0))
            assert [answer.message.error for answer in answers] == [""] * len(answers)
            assert answers[-1].message.kind == "done"


def test_the_end_of_the_job_is_said(slurm: Slurm, job: str) -> None:
    with opened(job=job) as hub:
        wait_live(hub)
        slurm.cancel(job)
        for node in NODES:
            wait_state(hub, node, "refused", "the Slurm job ended")


def test_a_node_without_the_python_that_was_named_says_so(slurm: Slurm, job: str) -> None:
    for node in NODES[:2]:
        (slurm.home_of(node) / "python").symlink_to(sys.executable)
    with opened(job=job, python=str(slurm.home / "python")) as hub:
        wait_live(hub, NODES[:2])
        wait_state(hub, "gpu03", "lost", "is no Python 3.9 or newer on this node")
        wait_live(hub, NODES[:2])


def test_some_nodes_of_a_job_and_some_step(slurm: Slurm, job: str) -> None:
    with opened(job=f"{job}.batch") as hub:
        assert list(states(hub)) == ["gpu01"]
        wait_live(hub, ("gpu01",))
    assert resolve(TargetOptions(job=f"{job}.0")).nodes == NODES


def test_tasks_of_an_array_and_parts_of_a_job(slurm: Slurm) -> None:
    array = slurm.submit("sleep 1000", 1, "--array=0-1")
    slurm.wait_running(array)
    wait_until(lambda: len(resolve(TargetOptions(job=array)).nodes) == 2, what="both tasks running")
    assert len(resolve(TargetOptions(job=f"{array}_1")).nodes) == 1
    with opened(job=array) as hub:
        wait_live(hub, tuple(states(hub)))
    slurm.cancel(array)  # each task has a node's memory
    parts = slurm.run(["sbatch", "--parsable", "-N1", "-n1", ":", "-N1", "-n1", "--wrap=sleep 1000", "-o/dev/null"])
    number = parts.stdout.strip()
    slurm.wait_running(number)
    nodes = resolve(TargetOptions(job=number)).nodes
    assert len(nodes) == 2
    assert resolve(TargetOptions(job=f"{number}+1")).nodes == nodes[1:]
    with opened(job=number) as hub:
        wait_live(hub, nodes)


def test_why_a_job_has_no_nodes(slurm: Slurm, job: str) -> None:
    waiting = slurm.submit("sleep 1", len(NODES), "--exclusive")
    for number, words in (
        (waiting, "has no nodes yet, it is pending"),
        ("4711", "no such job"),
        (f"{job}.9", "no such step"),
    ):
        done = slurm.mltop("snapshot", "--job", number, check=False)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    slurm.cancel(waiting)
    with pytest.raises(UsageProblem, match="has ended, it is cancelled"):
        resolve(TargetOptions(job=waiting))
    done = slurm.mltop("snapshot", "--job", job, "-w", "other", "--via", "srun", check=False)
    assert f"other is not a node of job {job}" in done.stderr


def test_two_clusters_beside_each_other_leave_nothing(slurm: Slurm) -> None:
    with slurm_cluster(nodes=1) as other:
        number = other.submit("sleep 1000")
        other.wait_running(number)
        assert slurm.state(number) != "RUNNING"
        directory = other.directory
    assert not directory.exists()
    assert slurm.run(["pgrep", "-f", str(directory)], check=False).stdout == ""
    assert slurm.run(["sinfo", "-h", "-o", "%D %T"]).stdout.strip() == f"{len(NODES)} idle"
