"""Whether what is wrong on a node caused what a job lost there. That both are so at one time is not enough.

A rule says whether its finding can do such a thing (``Rule.explains_ranks``). Here is asked whether it did: it is about
those who hold the job up, fits what they do (no cable makes a rank stand in its data set), is grave enough and began
in time.
"""

from __future__ import annotations

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.relations import STOPS, is_named
from mltop.probes.judge.health.rule import Rule
from mltop.probes.judge.incidents.loss import Loss
from mltop.probes.judge.incidents.scene import JobScene, Place
from mltop.probes.model import Finding
from mltop.probes.model.vocabulary import CulpritKind

LATE_S = 120.0  # a cause may be seen so long after what it did: rules hold before they fire
EARLY_S = 600.0  # what came so long before a standstill whose beginning was seen did not cause it
# What is not grave must have come so shortly before; what was over for longer did not cause a standstill.
CLOSE_S = 60.0
OOM_CLOSE_S = 5.0

# That a node does not answer is found by no rule of health; as far as anybody can tell, its ranks have stopped.
LOST = Rule("node.lost", "critical", 0.0, "", lambda _: (), explains_ranks=STOPS)
BY_ID = {rule.id: rule for rule in (*ALL_RULES, LOST)}

_GPU, _STORAGE, _MEMORY = ("gpu", "nvml", "pcie"), ("fs", "disk"), ("mem",)
_ANY: tuple[str, ...] = ()
# By what the one who holds a job up does: subjects of rules (the beginning of their ids) that can make a rank do so. A
# rank that took another branch, or was stopped, has no hardware to blame.
_FITTING: dict[CulpritKind, tuple[str, ...] | None] = {
    "stands": (*_GPU, *_STORAGE, *_MEMORY, "cpu", "job"),
    "computes": (*_MEMORY, "cpu", "job"),
    "polls": _STORAGE,
    "kernel": (*_GPU, *_STORAGE, *_MEMORY, "cpu"),
    "elsewhere": None,
    "behind": None,
    "stopped": None,
    "traced": None,
    "left": None,
}


def caused(finding: Finding, rule: Rule, job: JobScene, loss: Loss, befalls: tuple[str, ...]) -> bool:
    """Whether a finding of one of the job's nodes is a cause of the loss. ``befalls``: ids of what befell its ranks."""
    if not any(is_named(each, rule.explains_ranks) for each in befalls) or not _fits(finding, loss):
        return False
    touched = touched_by(finding, rule, job)
    if not touched or not _about_culprits(touched, loss):
        return False
    since, until = job.time_of(finding)
    until = since if rule.at_once else until
    if finding.id == LOST.id and None not in (since, loss.since) and not _is_close(since, loss):
        return False  # the job went on although we lost its node
    return _in_time(since, until, job, loss) and _grave_enough(finding, rule, since, loss)


def follows(finding: Finding, rule: Rule, job: JobScene, loss: Loss, befalls: tuple[str, ...]) -> bool:
    """Whether it comes of the loss: it began with it, or later, and is about the job's ranks."""
    if not any(is_named(each, rule.follows_ranks) for each in befalls):
        return False
    begun, since = job.time_of(finding)[0], loss.since
    return (begun is None or since is None or begun > since - LATE_S) and bool(touched_by(finding, rule, job))


def came_before(finding: Finding, job: JobScene, loss: Loss) -> bool:
    """Of what may be either: a program's fault that the driver reports kills it, and a killed program is reported."""
    begun = job.time_of(finding)[0]
    return begun is not None and loss.since is not None and begun < loss.since


def touched_by(finding: Finding, rule: Rule, job: JobScene) -> list[Place]:
    """The job's ranks that a finding of their node is about, dead ones too."""
    here = job.by_node.get(finding.node, [])
    if finding.ranks and finding.job_key in (None, job.key):
        numbers = set(finding.ranks)
        return [place for place in here if place.rank in numbers]
    if finding.gpus:
        return [place for place in here if set(place.gpus) & set(finding.gpus)]
    if finding.pid is not None:
        return [place for place in here if finding.pid in (place.pid, *place.children)]
    if rule.alike == "rule":  # about processes, and none of them is named
        return [place for place in here if place.rank in _killed(job, finding)]
    return here


def _killed(job: JobScene, finding: Finding) -> set[int | None]:
    """Ranks that the kernel killed at that time."""
    close = (
        death
        for death in job.deaths
        if death.report.how in ("oom", "unknown") or (death.report.how == "signal" and death.report.code == 9)
    )
    at = job.time_of(finding)[0]
    return {death.rank for death in close if at is not None and abs((death.report.at or at) - at) <= OOM_CLOSE_S}


def _fits(finding: Finding, loss: Loss) -> bool:
    subject = finding.id.partition(".")[0]
    for culprit in loss.culprits:
        fitting = _FITTING.get(culprit.how, _ANY)
        if fitting is None or (fitting and subject not in fitting):
            return False
    return True


def _about_culprits(touched: list[Place], loss: Loss) -> bool:
    """Where none is named, anything of the job."""
    if not loss.culprits:
        return True
    numbers = {culprit.rank for culprit in loss.culprits if culprit.rank is not None}
    nodes = {culprit.node for culprit in loss.culprits if culprit.rank is None}
    return any(place.rank in numbers or place.node in nodes for place in touched)


def _in_time(since: float | None, until: float | None, job: JobScene, loss: Loss) -> bool:
    if loss.since is None:
        return until is None
    if since is not None and since > loss.since + LATE_S:
        return False
    if not (loss.began and loss.stops):
        return True
    if since is not None and max(since, job.began_at or since) < loss.since - EARLY_S:
        return False  # the job got on with it, whether it is over by now or not
    over_s = (
        CLOSE_S if loss.kind == "hang" or loss.ended is not None else EARLY_S
    )  # a watchdog ends what stood for long
    return until is None or until >= loss.since - over_s


def _grave_enough(finding: Finding, rule: Rule, since: float | None, loss: Loss) -> bool:
    """What stops a job is critical, or came just before it to the very GPU or process."""
    if finding.severity == "critical":
        return True
    if not loss.stops:
        return finding.severity == "warning" and (bool(loss.culprits) or not loss.began or _is_close(since, loss))
    exact = bool(finding.gpus or finding.pid is not None or finding.ranks) and rule.id.startswith(("gpu.xid", "mem."))
    return exact and bool(loss.culprits) and _is_close(since, loss)


def _is_close(since: float | None, loss: Loss) -> bool:
    if since is None or loss.since is None:
        return False
    return -CLOSE_S <= since - loss.since <= LATE_S
