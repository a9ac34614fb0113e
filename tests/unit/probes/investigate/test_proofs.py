"""Which ranks are looked at below Python between two rounds, and what becomes of it."""

from __future__ import annotations

import pytest

from mltop.probes.agent.protocol import Message
from mltop.probes.investigate.proofs import MOST_OF_A_JOB, TRIES, Proofs, in_doubt
from mltop.probes.model import Frame, JobReport, RankStacks, StackDigest, Verdict
from mltop.probes.model.vocabulary import Confidence, VerdictKind
from mltop.probes.reach.requests import Pending

BACKWARD = Frame("_engine_run_backward", "torch/autograd/graph.py", 979)
REDUCER = Frame("c10d::Reducer::finalize_backward", "torch/lib/libtorch_cpu.so", 0)
USER = Frame("train", "job/train.py", 15, user=True)


def main(*frames: Frame, **fields: object) -> StackDigest:
    return StackDigest(**{"rank": 0, "pid": 1, "state": "S", "key": "k", "frames": list(frames), **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "digests",
    [
        [main(BACKWARD, USER)],
        [main(USER)],
        [main(USER, state="R")],
        [main(Frame("train", "axolotl/train.py", 9), Frame("run", "runpy.py", 9))],  # installed: nothing is marked
        [main(Frame("block_until_ready", "jax/_src/array.py", 9), USER)],
    ],
)
def test_stacks_that_say_nothing(digests: list[StackDigest]) -> None:
    assert in_doubt(digests) is digests[0]


@pytest.mark.parametrize(
    "digests",
    [
        [main(Frame("all_reduce", "torch/distributed/distributed_c10d.py", 9), USER, waiting_in="all_reduce")],
        [main(BACKWARD, USER), main(USER, thread="Thread-3", waiting_in="all_reduce")],  # an FSDP hook
        [main(Frame("wait", "threading.py", 327), USER)],
        [main(Frame("FileBaton.wait", "torch/utils/file_baton.py", 48), USER)],
        [main(Frame("_try_get_data", "torch/utils/data/dataloader.py", 48), USER)],
        [main(USER, acquires="self.lock")],
        [main(USER, state="D")],  # py-spy must not stop it, and so reads no native frames
        [main(USER, state="T")],
        [main(REDUCER, BACKWARD, USER)],  # --native
        [main(error="the process is gone")],
    ],
)
def test_stacks_that_need_no_proof(digests: list[StackDigest]) -> None:
    assert in_doubt(digests) is None


class Nodes:
    """Takes requests in the hub's place. ``asked``: (node, pid)."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.open: dict[tuple[str, int], Pending] = {}

    def request(self, op: str, args: dict[str, object], nodes: tuple[str, ...]) -> Pending:
        assert (op, args["native"]) == ("stacks", True)
        (pid,), (node,) = args["pids"], nodes  # type: ignore[misc]
        pending = self.open[node, pid] = Pending(nodes, lambda: None)
        self.asked.append((node, pid))
        return pending

    def answer(self, process: tuple[str, int], *frames: Frame) -> None:
        node, pid = process
        stacks = RankStacks(pid, 0, "a", node, digests=[main(*frames, pid=pid)])
        self.open[process].put(node, Message("part", stacks=stacks))
        self.open[process].put(node, Message("done"))


def dump(pid: int, digest: StackDigest | None = None, job: str = "a") -> RankStacks:
    return RankStacks(pid, pid, job, f"n{pid // 4}", digests=[digest or main(BACKWARD, USER, pid=pid)], uid=0)


def report(kind: VerdictKind = "hang", confidence: Confidence = "medium", job: str = "a") -> JobReport:
    return JobReport(job, 8, Verdict(kind, confidence=confidence), uid=0)


def test_one_rank_is_asked_for_all_that_stand_where_it_does() -> None:
    nodes = Nodes()
    runs = dump(6, main(BACKWARD, USER, pid=6, state="R"))  # it may compute where the others wait
    proofs = Proofs(nodes, True)  # type: ignore[arg-type]
    proofs.ask([*map(dump, range(6)), runs], [report()])
    assert nodes.asked == [("n0", 0), ("n1", 6)]
    took: list[int] = []
    nodes.answer(("n0", 0), REDUCER, BACKWARD, USER)
    proofs.take(lambda stacks, _: took.append(stacks.pid))
    assert took == [0]
    nodes.asked.clear()
    proofs.ask(map(dump, range(6)), [report()])
    assert nodes.asked == []  # it is known


def test_of_ranks_that_train_in_a_thread_those_in_autograd_are_asked() -> None:
    """Ray's main threads all stand in one place, whatever the others of them do."""
    looks_after = Frame("Worker.main_loop", "ray/_private/worker.py", 1069)

    def worker(pid: int, *training: Frame) -> RankStacks:
        stacks = dump(pid, main(looks_after, pid=pid))
        stacks.digests.append(main(*training, pid=pid, thread="TrainingThread", key=str(training)))
        return stacks

    reads = Frame("Rows.read_remote", "job/rows.py", 31, user=True)
    nodes = Nodes()
    proofs = Proofs(nodes, True)  # type: ignore[arg-type]
    proofs.ask([worker(0, reads, USER), worker(1, BACKWARD, USER), worker(2, BACKWARD, USER)], [report()])
    assert ("n0", 1) in nodes.asked and ("n0", 2) not in nodes.asked


def test_another_rank_is_asked_where_the_first_could_not_be_read() -> None:
    nodes, took = Nodes(), []
    proofs = Proofs(nodes, True)  # type: ignore[arg-type]
    for _ in range(5):
        proofs.ask(map(dump, range(6)), [report()])
        nodes.answer(nodes.asked[-1], BACKWARD, USER)
        proofs.take(lambda stacks, _: took.append(stacks))
    assert nodes.asked == [("n0", 0), ("n0", 1), ("n0", 2)]
    assert len(nodes.asked) == TRIES
    assert took == []


def test_the_only_rank_in_a_place_is_asked_again() -> None:
    """The first look at large libraries may take too long; the next one finds them read."""
    nodes = Nodes()
    proofs = Proofs(nodes, True)  # type: ignore[arg-type]
    for _ in range(5):
        proofs.ask([dump(2)], [report()])
        nodes.answer(nodes.asked[-1], BACKWARD, USER)
        proofs.take(lambda *_: None)
    assert nodes.asked == [("n0", 2)] * TRIES


@pytest.mark.parametrize(
    "reports", [[report("moving")], [report("straggler")], [report(confidence="high")], [report(job="other")], []]
)
def test_nobody_is_stopped_for_what_is_known_or_moves(reports: list[JobReport]) -> None:
    nodes = Nodes()
    Proofs(nodes, True).ask(map(dump, range(6)), reports)  # type: ignore[arg-type]
    assert nodes.asked == []


def test_few_classes_of_a_job_are_asked_for_and_those_in_torch_first() -> None:
    nodes = Nodes()
    every = [dump(pid, main(USER, pid=pid, key=f"k{pid}")) for pid in range(40)]
    Proofs(nodes, True).ask([*every, dump(99)], [report()])  # type: ignore[arg-type]
    assert len(nodes.asked) == MOST_OF_A_JOB
    assert nodes.asked[0] == ("n24", 99)
