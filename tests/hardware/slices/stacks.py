"""`mltop stacks` beside jobs on a GPU: one that trains, and some that hang where this slice knows.

What is seen of them from outside (power, activity, CPU time, switches) must be on the side of mltop's thresholds that
they are of (signals.py). A hang in NCCL: two ranks on two GPUs, or on one, which NCCL allows to ranks that say they are
on different hosts (NCCL_HOSTID).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mltop.probes.model import Frame
from tests.hardware import program, signals
from tests.hardware.checks import Check, NotTriedError, Told, compare, not_tried, within
from tests.hardware.context import Context
from tests.hardware.jobs import READY_S, TWO_HOSTS, Backend, Case, Job, longest_gap_s
from tests.hardware.loads import Load, free_gpus
from tests.hardware.ours import Mltop
from tests.hardware.signals import Signals, State, Watcher, no_others

SHORT_S = 120.0  # with less time than this everything is shorter
DUMP_S = 90.0
GOES_ON_S = 10.0
NCCL_READY_S = 90.0
# README: "stops each process for a few milliseconds"; with --native the stack below Python is unwound meanwhile.
PAUSE_S, NATIVE_PAUSE_S = 0.010, 0.050
NATIVE = "healthy (--native)"  # a look of its own at the same job
HEALTHY = ("kind", "pause", "goes on", "pause (--native)", "goes on (--native)", "native frames")


@dataclass(frozen=True)
class Hang:
    """What is known of a job that hangs. ``kinds``: of verdicts that are right. ``place``: the function in which the
    culprit is, without one the rank or its worker. ``waits_in``: in mltop's words; "" where no rank waits for another.
    """

    backend: Backend
    ranks: int
    place: str
    waits_in: str = ""
    kinds: tuple[str, ...] = ("hang",)
    watched: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        return ("kind", "culprits", "place", *(("waits in",) if self.waits_in else ()))


# A rank alone accuses nobody, and nobody waits for its data loader: that may be unclear, but it does not move.
SYNCHRONIZE = "cuda.synchronize"
HANGS: dict[Case, Hang] = {
    "dataloader": Hang("", 1, "read_blocked", kinds=("hang", "suspect", "unclear"), watched=True),
    "collective": Hang("nccl", 2, "never_enters", SYNCHRONIZE, watched=True),  # it keeps the GPU busy, as the next
    "kernel": Hang("", 1, "synchronize", SYNCHRONIZE, watched=True),
    "stream": Hang("", 1, "synchronize", SYNCHRONIZE),
    "item": Hang("", 1, "take_value", SYNCHRONIZE),
    "alone": Hang("nccl", 1, "synchronize", SYNCHRONIZE),
    "gloo": Hang("gloo", 2, "never_enters", "all_reduce"),
}
CHECKS: tuple[str, ...] = (
    *(f"healthy: {name}" for name in HEALTHY),
    *(f"{case}: {name}" for case, hang in HANGS.items() for name in hang.checks),
    *signals.CHECKS,
)


@dataclass(frozen=True)
class Pace:
    """``rounds``: of a dump of stuck jobs; None: as many as mltop takes."""

    settle_s: float = 2.0
    window_s: float = 6.0
    rounds: int | None = None

    @classmethod
    def of(cls, context: Context) -> Pace:
        return cls() if context.left_s() >= SHORT_S else cls(0.3, 0.5, 5)


@dataclass
class Look:
    """What `mltop stacks` said of one job. ``pause_s``: the longest time between two of its steps meanwhile, and
    ``usual_s`` for as long before; ``goes_on``: it made steps afterwards.
    """

    job: dict[str, Any]
    pause_s: float | None = None
    usual_s: float | None = None
    goes_on: bool | None = None


@dataclass
class Found:
    """``why``: of a state that could not be had. ``looks``: by state; "healthy (--native)" is one, too."""

    index: int
    known: dict[str, Signals] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Found:
        known = {state: Signals.of(one) for state, one in data["known"].items()}
        looks = {state: Look(**one) for state, one in data["looks"].items()}
        return cls(data["index"], known, looks, data["why"])

    @property
    def spinning(self) -> State:
        return "collective" if "collective" in self.known else "kernel"


def run(context: Context) -> Iterator[Check]:
    free, _ = free_gpus(context)
    with Mltop() as mltop:
        found = Found(free[0]["index"])
        stage = Stage(context, Watcher(mltop, found.index), free, found, Pace.of(context))
        no_others(stage.watcher)
        try:
            stage.healthy()
            yield from healthy_checks(found)
            context.record_json("stacks.json", found.to_json())
            stage.hangs()
            yield from hang_checks(found)
            context.record_json("stacks.json", found.to_json())
            stage.measure_load("idle")
            stage.measure_load("gemm")
            yield from signals.checks_of(found.known, found.spinning, found.index)
        finally:
            context.record_json("stacks.json", found.to_json())


@dataclass
class Stage:
    """What all parts of a run share."""

    context: Context
    watcher: Watcher
    free: list[dict[str, Any]]
    found: Found
    pace: Pace

    @property
    def uuid(self) -> str:
        uuid: str = self.free[0]["uuid"]
        return uuid

    def healthy(self) -> None:
        try:
            with Job(self.context, "healthy", [self.uuid]) as job:
                self.found.known["healthy"] = self.watcher.watch(job.pids, self.pace.settle_s, self.pace.window_s)
                self.found.looks["healthy"] = self.dump_healthy(job)
                self.found.looks[NATIVE] = self.dump_healthy(job, "--native")
        except NotTriedError as error:
            self.found.why["healthy"] = str(error)

    def dump_healthy(self, job: Job, *words: str) -> Look:
        rounds = () if self.pace.rounds is None else ("--samples", "2")
        said = self.dump(*words, *rounds)
        until = time.monotonic() + GOES_ON_S
        while not (goes_on := any(at > said.ended_s for at in job.steps())) and time.monotonic() < until:
            job.check_alive()
            time.sleep(0.05)
        steps, long_s = job.steps(), said.ended_s - said.began_s
        usual_s = longest_gap_s(steps, said.began_s - long_s, said.began_s)
        return Look(of_job(said.data, job), longest_gap_s(steps, said.began_s, said.ended_s), usual_s, goes_on)

    def hangs(self) -> None:
        """All of them at once before one dump; signals one by one, while the job is the newest."""
        jobs: dict[str, Job] = {}
        with ExitStack() as stack:
            for case, hang in HANGS.items():
                try:
                    jobs[case] = stack.enter_context(self.job(case, hang))
                    if hang.watched:
                        signals = self.watcher.watch(jobs[case].pids, self.pace.settle_s, self.pace.window_s)
                        self.found.known[case] = signals
                except NotTriedError as error:
                    self.found.why[case] = str(error)
            if jobs:
                self.dump_hangs(jobs)

    def dump_hangs(self, jobs: dict[str, Job]) -> None:
        rounds = () if self.pace.rounds is None else ("--samples", str(self.pace.rounds))
        try:
            said = self.dump(*rounds)
        except NotTriedError as error:
            self.found.why.update(dict.fromkeys(jobs, str(error)))
            return
        for case, job in jobs.items():
            try:
                job.check_alive()
                self.found.looks[case] = Look(of_job(said.data, job))
            except NotTriedError as error:
                self.found.why[case] = str(error)

    def job(self, case: Case, hang: Hang) -> Job:
        """NCCL's two ranks on two GPUs, where there are two: gloo's need not be."""
        two = hang.backend == "nccl" and hang.ranks == 2
        if two and len(self.free) > 1:
            return Job(self.context, case, [gpu["uuid"] for gpu in self.free[:2]], "nccl", ready_s=NCCL_READY_S)
        settings = TWO_HOSTS if two else {}
        ready_s = NCCL_READY_S if hang.backend == "nccl" else READY_S
        return Job(self.context, case, [self.uuid] * hang.ranks, hang.backend, settings, ready_s=ready_s)

    def dump(self, *words: str) -> program.Said:
        """NotTriedError also where no mltop can be started: signals need none."""
        words = ("stacks", "--via", "local", "--json", *words)
        return program.say_json(self.context, *words, timeout_s=min(DUMP_S, self.context.left_s()))

    def measure_load(self, kind: State) -> None:
        try:
            with Load(self.context, "bf16" if kind == "gemm" else "idle", self.uuid):
                self.found.known[kind] = self.watcher.watch([], self.pace.settle_s, self.pace.window_s)
        except NotTriedError as error:
            self.found.why[kind] = str(error)


def of_job(data: dict[str, Any], job: Job) -> dict[str, Any]:
    """The report of our ranks. NotTriedError when mltop has none, or may not look into them."""
    for report in data["jobs"]:
        digests = [one for one in report["digests"] if {one["pid"], one["child_of"]} & set(job.pids)]
        if not digests:
            continue
        refused = next((one for one in digests if is_refused(one)), None)
        if refused is not None:
            raise NotTriedError(f"{refused['error']} ({refused['fix']})")
        return {"verdict": report["verdict"], "classes": report["classes"], "digests": digests}
    raise NotTriedError(f"mltop stacks lists no job with the ranks of {job.case}")


def is_refused(digest: dict[str, Any]) -> bool:
    """No py-spy, or nobody may look into this process."""
    return bool(digest["error"]) and (
        digest["error"].startswith("permission denied") or digest["fix"] == "pip install py-spy"
    )


def checks_of(found: Found) -> Iterator[Check]:
    yield from healthy_checks(found)
    yield from hang_checks(found)
    yield from signals.checks_of(found.known, found.spinning, found.index)


def healthy_checks(found: Found) -> Iterator[Check]:
    plain, native = found.looks.get("healthy"), found.looks.get(NATIVE)
    if plain is None:
        yield from _not_had(found, "healthy", HEALTHY[:3])
    else:
        yield _truth(found, "healthy: kind", plain.job["verdict"]["kind"], "moving")
        yield pause(found, "healthy: pause", plain, PAUSE_S)
        yield _truth(found, "healthy: goes on", plain.goes_on, True)
    if native is None:
        yield from _not_had(found, "healthy", HEALTHY[3:])
        return
    yield pause(found, "healthy: pause (--native)", native, NATIVE_PAUSE_S)
    yield _truth(found, "healthy: goes on (--native)", native.goes_on, True)
    errors = [one["error"] for one in native.job["digests"] if one["error"]]
    below = any(frame.native for frame in _frames(native.job))
    check = _truth(found, "healthy: native frames", below, True)
    yield replace(check, why="; ".join(errors)) if not below else check


def pause(found: Found, name: str, look: Look, most_s: float) -> Check:
    """What a dump adds to the longest time between two steps."""
    if look.pause_s is None or look.usual_s is None:
        return not_tried(name, "too few steps to see a pause", gpu=found.index)
    added_ms = 1000 * max(0.0, look.pause_s - look.usual_s)
    why = f"between two steps {1000 * look.pause_s:.1f} ms at most, {1000 * look.usual_s:.1f} ms before the dump"
    source = "README" if most_s == PAUSE_S else "expected"
    return within(name, added_ms, 0, 1000 * most_s, why, "ms", gpu=found.index, source=source)


def hang_checks(found: Found) -> Iterator[Check]:
    for case, hang in HANGS.items():
        look = found.looks.get(case)
        if look is None:
            yield from _not_had(found, case, hang.checks)
        else:
            yield from _of_hang(found, case, hang, look.job)


def _of_hang(found: Found, case: Case, hang: Hang, job: dict[str, Any]) -> Iterator[Check]:
    verdict = job["verdict"]
    kind = "agrees" if verdict["kind"] in hang.kinds else "differs"
    details = {"gpu": found.index, "source": "truth"}
    yield Check(f"{case}: kind", kind, verdict["kind"], " or ".join(hang.kinds), _says(verdict), "", details)
    culprits = [one["rank"] for one in verdict["culprits"]]
    yield _truth(found, f"{case}: culprits", culprits, [1] if hang.ranks == 2 else [])
    yield _truth(found, f"{case}: place", _place(hang, job), hang.place)
    if hang.waits_in:
        waiting = [str(one["where"]).partition(",")[0] for one in verdict["waiting"]]
        yield _truth(found, f"{case}: waits in", waiting[0] if waiting else None, hang.waits_in)


def _says(verdict: dict[str, Any]) -> str:
    return "; ".join([f"confidence {verdict['confidence']}", *verdict["evidence"]])


def _place(hang: Hang, job: dict[str, Any]) -> str | None:
    """The function: of who is accused as the verdict has it; of a rank alone, or its worker, the leaf of its stack."""
    if hang.ranks == 2:
        culprits = job["verdict"]["culprits"]
        return culprits[0]["where"].partition(" ")[0] if culprits else None
    workers = [one for one in job["digests"] if one["child_of"] is not None]
    frames = (workers or job["digests"])[0]["frames"] if job["digests"] else []
    return str(frames[0]["function"]).rpartition(".")[2] if frames else None


def _truth(found: Found, name: str, ours: Any, truth: Any) -> Check:
    return compare(name, ours, Told(truth), gpu=found.index, source="truth")


def _not_had(found: Found, case: str, names: tuple[str, ...]) -> Iterator[Check]:
    why = found.why.get(case, "it was not come to")
    yield from (not_tried(f"{case}: {name}", why, gpu=found.index) for name in names)


def _frames(job: dict[str, Any]) -> list[Frame]:
    """Of all threads: the main one may be in Python at this moment, the others wait below it."""
    told = (one for digest in job["digests"] for one in digest["frames"])
    return [Frame(one["function"], one["file"], one["line"]) for one in told]
