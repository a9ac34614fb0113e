"""The operations "probe" and "probe_tell": facts from the newest samples, then ``active.supervise`` does the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Callable, Protocol

from mltop.probes.active.asked import Asked, asked_from
from mltop.probes.active.devices import CPU
from mltop.probes.active.environment import JobProcess, NotTaken, job_process
from mltop.probes.active.supervise import Facts, Supervisor
from mltop.probes.agent.files import Unavailable
from mltop.probes.agent.holders import holders_of, other_probes
from mltop.probes.model import RankSample, Sample
from mltop.probes.model.probe import ProbeEvent

FRESH_S = 10.0  # samples are not older than this
STARTS_WITHIN_S = 20.0  # NVML of eight GPUs without persistence mode takes that long
LISTED_S = 6.0  # the process lists of GPUs are read every five seconds
_MOST_JOBS = 8


class Samples(Protocol):
    """Where the newest samples come from (``recent.RecentSamples.wait``)."""

    def __call__(
        self,
        after_s: float,
        timeout_s: float,
        cancelled: threading.Event,
        suits: Callable[[list[Sample]], bool] = ...,
    ) -> list[Sample]: ...


class Probing:
    """The probes of one agent. Raises Unavailable for what cannot even be begun."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._supervisor = Supervisor()

    def probe(self, args: Mapping[str, Any], emit: Callable[[ProbeEvent], None], cancelled: threading.Event) -> None:
        """One probe, until it is over or ``cancelled``: then nothing of it is left."""
        try:
            asked = asked_from(args)
        except ValueError as error:
            raise Unavailable(str(error)) from error
        self._supervisor.run(asked, lambda: self._facts(asked, cancelled), emit, cancelled)

    def tell(self, args: Mapping[str, Any]) -> None:
        line = args.get("line")
        if not isinstance(line, dict):
            raise Unavailable("probe_tell needs an object as its line")
        why = self._supervisor.tell(str(args.get("key", "")), line)
        if why:
            raise Unavailable(why)

    def _facts(self, asked: Asked, cancelled: threading.Event) -> Facts | None:
        ended = self._supervisor.ended()
        after_s = max([time.monotonic() - FRESH_S, *ended.values()])
        samples = self._samples(after_s, STARTS_WITHIN_S, cancelled, _has_gpus)
        if self._unseen(samples, ended):  # what has just ended leaves the list soon
            samples = self._samples(after_s, LISTED_S, cancelled, lambda newer: not self._unseen(newer, ended))
        if cancelled.is_set():
            return None
        if not samples:
            raise Unavailable("this node has not been sampled yet", "try again")
        newest = samples[-1]
        jobs, not_taken = _jobs(newest.ranks)
        return Facts(
            node=newest.node,
            samples=samples,
            holders=holders_of(newest.gpus, newest.ranks, asked.key, ended),
            other_probes=other_probes(asked.key) if CPU in asked.gpus or not newest.gpus else [],
            jobs=jobs,
            not_taken=not_taken,
        )

    def _unseen(self, samples: list[Sample], ended: Mapping[int, float]) -> bool:
        newest = samples[-1:]
        holders = [holders_of(sample.gpus, (), "", ended) for sample in newest]
        return any(not one.is_visible for found in holders for one in found.values())


def _has_gpus(samples: list[Sample]) -> bool:
    """NVML has started before the first of them."""
    gaps = [gap for sample in samples for gap in sample.gaps]
    return not any(gap.kind == "starting" and gap.what.startswith("nvml") for gap in gaps)


def _jobs(ranks: list[RankSample]) -> tuple[list[JobProcess], list[NotTaken]]:
    """One process of each job, all of whose processes have the same Python; and of each of which none may be used."""
    found: dict[tuple[int | None, str], JobProcess] = {}
    not_taken: dict[tuple[int | None, str], NotTaken] = {}
    for rank in ranks:
        job = (rank.uid, rank.job)
        if rank.state != "Z" and job not in found and len(found) < _MOST_JOBS:
            process = job_process(rank.pid)
            if isinstance(process, JobProcess):
                found[job] = process
            elif process is not None:
                not_taken.setdefault(job, process)
    return list(found.values()), [one for job, one in not_taken.items() if job not in found]
