"""Native frames of single ranks, where Python ends in a call that says nothing: one rank for all that stand there.

``loss.backward()`` computes, or waits for the gradients of others; ``loss.item()`` waits for whatever the GPU does.
What is below tells it, at the price of a second of CPU, a pause of 20 ms and 100 to 300 MB for as long on that node.
So few ranks of a whole job are asked, between two rounds, which do not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mltop.probes.judge.hang.frames import in_backward, user_frame
from mltop.probes.model import JobKey, JobReport, RankStacks, StackDigest
from mltop.probes.reach.hub import Hub
from mltop.probes.reach.requests import Pending

MOST_OF_A_JOB = 4  # classes
MOST = 16
TRIES = 3  # per class: each of another rank, while there are some
DEADLINE_S = 6.0  # of py-spy, for libraries that nobody has looked at yet
_ENGINES = (
    *("torch/", "jax/", "jaxlib/", "mpi4py/", "cupy/", "tensorflow/", "paddle/", "transformer_engine/", "flash_attn/"),
    *("deepspeed/", "megatron/", "horovod/", "apex/", "numba/", "triton/"),
)
# Of these Python tells what they wait for.
_TELLING = ("torch/utils/", "torch/distributed/elastic/", "torch/multiprocessing/", "torch/_inductor/")


class _Class(NamedTuple):
    """Who stands in the same place, in the user's own line or in a library; whoever runs there and whoever sleeps there
    are two.
    """

    job: JobKey
    key: str
    runs: bool
    user: bool


def in_doubt(digests: Sequence[StackDigest]) -> StackDigest | None:
    """Which of a rank's digests (the main thread's first) leaves open what the rank is in: another thread's, where that
    one is in autograd and so trains. None: nothing is open, or nobody can tell.
    """
    main = digests[0]
    if main.child_of is not None or any(digest.waiting_in for digest in digests):
        return None
    own = (digest for digest in digests if digest.child_of is None)
    asked = next((digest for digest in own if in_backward(digest)), main)
    return asked if _tells_nothing(asked) else None


def _tells_nothing(digest: StackDigest) -> bool:
    leaf = next(iter(digest.frames), None)
    if leaf is None or leaf.native or digest.state not in ("R", "S") or digest.acquires:
        return False
    return user_frame(digest.frames) is leaf or (leaf.file.startswith(_ENGINES) and not leaf.file.startswith(_TELLING))


class Proofs:
    """Of one dump. ``ask`` after a round was judged, ``take`` whenever there is time."""

    def __init__(self, hub: Hub, ints: bool) -> None:
        self._hub = hub
        self._ints = ints
        self._pending: dict[_Class, Pending] = {}
        self._tried: dict[_Class, list[tuple[str, int]]] = {}
        self._proven: set[_Class] = set()

    def ask(self, dumps: Iterable[RankStacks], reports: Iterable[JobReport]) -> None:
        """Has a rank of each class looked at that is in doubt. ``dumps``: of the last round.

        In doubt are jobs that do not move and of whose verdict one is not sure yet.
        """
        verdicts = [(JobKey(report.job, report.uid), report.verdict) for report in reports if not report.error]
        unsure = {
            job for job, told in verdicts if told.kind not in ("moving", "straggler") and told.confidence != "high"
        }
        classes: dict[_Class, list[RankStacks]] = {}
        for stacks in dumps if unsure else ():
            job = JobKey(stacks.job, stacks.uid)
            digest = in_doubt(stacks.digests) if job in unsure and stacks.digests else None
            if digest is not None:
                found = _Class(job, digest.key, digest.state == "R", digest.frames[0].user)
                classes.setdefault(found, []).append(stacks)
        for found, alike in sorted(classes.items(), key=lambda made: (made[0].user, -len(made[1]))):
            self._ask_one(found, alike)

    def _ask_one(self, found: _Class, alike: Sequence[RankStacks]) -> None:
        tried = self._tried.get(found, [])
        of_job = sum(other.job == found.job for other in self._tried)
        if not tried and (of_job >= MOST_OF_A_JOB or len(self._tried) >= MOST):
            return
        if found in self._pending or found in self._proven or len(tried) >= TRIES:
            return
        rank = next((stacks for stacks in alike if (stacks.node, stacks.pid) not in tried), alike[0])
        self._tried[found] = [*tried, (rank.node, rank.pid)]
        args: dict[str, object] = {"native": True, "ints": self._ints}
        args.update(pids=[rank.pid], deadline_s=DEADLINE_S)
        self._pending[found] = self._hub.request("stacks", args, (rank.node,))

    def take(self, take: Callable[[RankStacks, int], None]) -> None:
        """Gives ``take`` what has come; never waits. A rank that could not be read so is left out: it has been read."""
        for found, pending in [*self._pending.items()]:
            for answer in pending.answers(0.0):
                stacks = answer.message.stacks
                if stacks is not None and any(frame.native for digest in stacks.digests for frame in digest.frames):
                    take(stacks, answer.size_bytes)
                    self._proven.add(found)
            if not pending.open_nodes:
                del self._pending[found]

    def cancel(self) -> None:
        """Ends what is still asked for."""
        for pending in self._pending.values():
            pending.cancel()
