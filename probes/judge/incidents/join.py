"""One cause, one incident: what a job lost is joined with what is wrong on its nodes, by the relations of the rules.

Every finding but one that is only worth knowing is in one incident, as its cause or as one of its effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from mltop.probes.judge.health.folding import agreed
from mltop.probes.judge.health.names import listed
from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.health.relations import RANK_ENDED, RANK_SLOWED, RANK_STALLED, SYMPTOM, is_named
from mltop.probes.judge.health.rule import FAILED, Rule
from mltop.probes.judge.incidents import words
from mltop.probes.judge.incidents.causes import BY_ID, CLOSE_S, LOST, came_before, caused, follows, touched_by
from mltop.probes.judge.incidents.loss import Loss, died, loss_of
from mltop.probes.judge.incidents.scene import OF_STATES, JobScene, Scene
from mltop.probes.judge.values import Joined, grouped, known
from mltop.probes.model import CONFIDENCES, Confidence, Culprit, Evidence, Finding, Incident, Severity, Suffers
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.vocabulary import INCIDENT_KINDS, CulpritKind, EvidenceSource, gravity

MINORITY = 0.5  # of the ranks: a fault that more of them share accuses none of them
_BEFALLS = {
    "crash": (RANK_ENDED,),
    "stopped": (RANK_ENDED,),
    "hang": (RANK_STALLED, "job.hang", "job.odd_rank"),
    "straggler": (RANK_SLOWED, "job.straggler"),
    "starved": (RANK_SLOWED, "job.starved"),
    "slow": (RANK_SLOWED,),
    "node": (),
}
_SEVERITY: dict[str, Severity] = {"crash": "critical", "hang": "critical", "stopped": "info"}
_OF_PORTS = ("ib.", "eth.", "roce.", "pcie.")
_PEERS = frozenset(peers for rule in ALL_RULES for peers in rule.explains_peers)
_MOST_MESSAGES = 3  # of one headline
MOST_PEERS = 64  # causes: where more are broken at a time, no complaint is one's
OF_LOGS = "job.log"
_KERNEL = ("gpu.xid.", "gpu.sxid", "mem.oom", "cpu.hung", "disk.io", "ib.driver", "mem.mce")


@dataclass
class _Case:
    """A job, what it lost, and the findings that caused it or come of it."""

    job: JobScene
    loss: Loss
    causes: list[Finding] = field(default_factory=list)
    effects: list[Finding] = field(default_factory=list)

    @property
    def own(self) -> list[Finding]:
        """Findings about the job itself."""
        return [*self.loss.findings, *self.loss.others]

    @property
    def befalls(self) -> tuple[str, ...]:
        dead = (RANK_ENDED,) if self.loss.deaths is not None else ()
        stood = _BEFALLS["hang"] if self.loss.ended is not None else ()
        return (*_BEFALLS[self.loss.kind], *dead, *stood, *(finding.id for finding in self.loss.others))


def incidents_of(scene: Scene) -> list[Incident]:
    """The incidents of a moment, those that stop the most work first. Pure."""
    cases = [_Case(job, loss) for job in scene.jobs.values() if (loss := loss_of(job)) is not None]
    used: set[int] = {id(finding) for case in cases for finding in case.own}
    for case in cases:
        _find_causes(case, scene)
    used.update(id(cause) for case in cases for cause in case.causes)
    for case in cases:
        _take_effects(case, scene, used)
        _accuse_by_cause(case)
    # Jobs that suffer from one and the same fault are one incident, described by the largest.
    incidents = [_of_job(largest, others, scene) for largest, *others in _sharing_causes(cases)]
    incidents += _of_nodes(scene, used)
    return sorted(incidents, key=by_work_stopped)


def by_work_stopped(incident: Incident) -> tuple[bool, int, int, int, int, float, str]:
    """For sorting: what goes on before what is over; then by the GPUs that stand, and how grave it is.

    Of jobs the one that has waited longest comes first. Of nodes what is nearest to the hardware, and of that the
    newest: old trouble they have had all along.
    """
    stopped = incident.suffers.gpus if incident.kind in ("crash", "hang") else 0
    since = incident.since or 0.0
    return (
        incident.until is not None,
        -stopped,
        gravity(incident.severity),
        INCIDENT_KINDS.index(incident.kind),
        _nearest_to_the_hardware(incident.causes[0])[0] if incident.kind == "node" and incident.causes else 0,
        -since if incident.kind == "node" else since,
        incident.id,
    )


# What caused a job's loss.


def _on_its_nodes(case: _Case, scene: Scene) -> Iterator[tuple[Finding, Rule]]:
    for node in case.job.nodes:
        for finding in scene.nodes[node].findings if node in scene.nodes else ():
            rule = BY_ID.get(finding.id)
            if rule is not None:
                yield finding, rule


def _find_causes(case: _Case, scene: Scene) -> None:
    """On the job's nodes. What may be either and did not come before is no cause."""
    job, loss, befalls = case.job, case.loss, case.befalls
    for finding, rule in _on_its_nodes(case, scene):
        if not came_before(finding, job, loss) and follows(finding, rule, job, loss, befalls):
            continue
        if caused(finding, rule, job, loss, befalls):
            case.causes.append(finding)
    rails: dict[tuple[object, ...], list[Finding]] = {}
    for cause in case.causes:
        if rail := _of_one_rail(cause):
            rails.setdefault(rail, []).append(cause)
    for finding, _ in _on_its_nodes(case, scene):
        if any(_share_a_rail(finding, cause) for cause in rails.get(_of_one_rail(finding), ())):
            case.causes.append(finding)
    case.causes = _once(case.causes)
    case.causes.sort(key=_nearest_to_the_hardware)


def _take_effects(case: _Case, scene: Scene, used: set[int]) -> None:
    """What comes of the loss itself, and what is explained by what is known of it. Nobody's cause is an effect."""
    for finding, rule in _on_its_nodes(case, scene):
        if id(finding) not in used and follows(finding, rule, case.job, case.loss, case.befalls):
            used.add(id(finding))
            case.effects.append(finding)
    for finding in case.own:
        _take_symptoms(finding, case, scene, used)
    complaints = [finding for finding, _ in _on_its_nodes(case, scene) if finding.id in _PEERS]
    for finding in case.causes if complaints else ():
        _take_peers(finding, complaints, case, used)
    for server in dict.fromkeys(cause.server for cause in case.causes if cause.server):
        effects = [each for each in scene.of_servers[server] if id(each) not in used and each.until is None]
        used.update(map(id, effects))
        case.effects += effects
    case.effects = [*case.own, *case.effects]


def _take_symptoms(finding: Finding, case: _Case, scene: Scene, used: set[int]) -> None:
    """What a finding about the job explains on the job's nodes."""
    rule = BY_ID.get(finding.id)
    patterns = (*rule.explains, *rule.explains_node) if rule is not None else ()
    if not patterns:
        return
    nodes = [finding.node] if finding.node in scene.nodes else case.job.nodes
    for node in nodes:
        for other in scene.nodes[node].findings if node in scene.nodes else ():
            if id(other) not in used and is_named(other.id, patterns):
                used.add(id(other))
                case.effects.append(other)


def _take_peers(finding: Finding, complaints: Sequence[Finding], case: _Case, used: set[int]) -> None:
    """What other nodes of the job complain of because of it."""
    if not BY_ID[finding.id].explains_peers:
        return
    for other in complaints:
        if id(other) not in used and _is_peers_complaint(other, finding):
            used.add(id(other))
            case.effects.append(other)


def _is_peers_complaint(finding: Finding, cause: Finding) -> bool:
    """Of another node, on the same rail where the cause is about a port."""
    if finding.node == cause.node or not is_named(finding.id, BY_ID[cause.id].explains_peers):
        return False
    ports = {cause.subject, *cause.about}
    return bool(ports & {finding.subject, *finding.about}) or not cause.id.startswith(_OF_PORTS)


def _nearest_to_the_hardware(finding: Finding) -> tuple[int, int, float]:
    """What no rule found (a node that does not answer, a rule that failed) comes last."""
    precedence = BY_ID[finding.id].precedence if finding.id in BY_ID else SYMPTOM + 1
    return precedence, gravity(finding.severity), finding.since or 0.0


def _accuse_by_cause(case: _Case) -> None:
    """A fault that a few ranks have names them, where nothing else does; one of a file server names the server."""
    loss = case.loss
    if loss.culprits or not case.causes:
        return
    cause = case.causes[0]
    if cause.server or cause.id == LOST.id:  # nobody sees what ranks of a node do that does not answer
        loss.culprits = [Culprit(None, cause.server or cause.node, None, cause.message, "", True)]
        return
    alike = [finding for finding in case.causes if finding.id == cause.id]
    touched = list(
        dict.fromkeys(place for finding in alike for place in touched_by(finding, BY_ID[finding.id], case.job))
    )
    if 1 < len(touched) > MINORITY * max(len(case.job.places), case.job.world_size or 0):
        return
    how: CulpritKind = "stands" if loss.stops else "slow"
    dead = {(death.node, death.report.pid): death for death in (loss.deaths.all if loss.deaths is not None else ())}
    loss.culprits = [
        died(dead[place.node, place.pid]) if (place.node, place.pid) in dead else place.culprit(cause.message, how)
        for place in touched
    ]
    loss.waiting = loss.waiting.without(Ranges.of(known(place.rank for place in touched)))


# Incidents of jobs.


def _sharing_causes(cases: Sequence[_Case]) -> list[list[_Case]]:
    """Groups of which each shares a cause with another one, the largest job first."""
    joined: Joined[str] = Joined()
    for case in cases:
        joined.join(map(_name, case.causes))
    groups = grouped(cases, lambda case: joined.top(_name(case.causes[0])) if case.causes else _job_id(case.job))
    return [
        sorted(of_group, key=lambda case: (-len(case.job.gpus), -len(case.job.ranks), _job_id(case.job)))
        for of_group in groups.values()
    ]


def _of_job(case: _Case, others: Sequence[_Case], scene: Scene) -> Incident:
    """``others``: smaller jobs that suffer from the same."""
    job, loss = case.job, case.loss
    with_job, with_nodes = scene.several_jobs, len(scene.nodes) > 1
    first = case.causes[0] if case.causes else None
    more_nodes = _more_nodes(case.causes)
    if first is not None:
        text = _together([cause for cause in case.causes if cause.node == first.node], first)
        headline = words.headline_of_cause(first, job, loss, more_nodes, text, with_job=with_job, with_nodes=with_nodes)
    else:
        headline = words.headline_of_job(job, loss, with_job=with_job, with_nodes=with_nodes)
    found, known_of = _once(cause for each in (case, *others) for cause in each.causes), [*case.effects]
    known_of += [effect for each in others for effect in each.effects]
    agreed_on = agreed([*found, *known_of])
    causes, effects = agreed_on[: len(found)], agreed_on[len(found) :]
    lost = [_suffers(each.job, each.loss) for each in (case, *others)]
    act, action = words.action_of(loss, with_nodes=with_nodes)
    if causes and causes[0].severity != "info" and (causes[0].action or causes[0].act):
        act, action = causes[0].act, _action_of(causes[0], 1 + more_nodes)
    severity = "warning" if loss.kind == "stopped" and loss.ended is not None else _SEVERITY.get(loss.kind, "warning")
    gravest = min((severity, *(finding.severity for finding in causes)), key=gravity)
    return Incident(
        id=_job_id(job),
        kind=loss.kind,
        severity=gravest,
        headline=headline,
        job=job.key.name,
        uid=job.key.uid,
        since=loss.since,
        culprits=loss.culprits,
        causes=causes,
        effects=effects,
        suffers=replace(lost[0], gpus=sum(each.gpus for each in lost), gpu_hours=sum(each.gpu_hours for each in lost)),
        evidence=[
            *map(_evidence, causes),
            *loss.evidence,
            *(_evidence(effect) for effect in effects if effect.id == OF_LOGS),
            *(
                Evidence("samples", words.headline_of_job(each.job, each.loss, with_job=True, with_nodes=with_nodes))
                for each in others
            ),
        ],
        confidence=_confidence(loss, first),
        act=act,
        action=action,
        next_act=loss.next_act,
        next=loss.next,
    )


def _once(findings: Iterable[Finding]) -> list[Finding]:
    return list({id(finding): finding for finding in findings}.values())


def _suffers(job: JobScene, loss: Loss) -> Suffers:
    """All ranks of the job: who holds it up gets nothing done either."""
    ranks = Ranges.of(known(place.rank for place in job.places))
    gpus = len(job.gpus | {(each.node, each.gpu) for each in loss.culprits if each.gpu is not None})
    passed_s = max(0.0, job.at - loss.since) if loss.since is not None else 0.0
    share = 1.0
    slowdown = job.motion.slowdown if job.motion is not None else None
    if not loss.stops:
        share = slowdown.share / (1.0 + slowdown.share) if slowdown is not None and slowdown.share > 0 else 0.0
    if loss.gone:  # its GPUs are free
        passed_s = max(0.0, (loss.ended or 0.0) - (loss.since or 0.0)) if loss.ended is not None else 0.0
    ended = Ranges.of(known(death.rank for death in (loss.deaths.all if loss.deaths is not None else ())))
    waiting = Ranges() if loss.gone else loss.waiting.without(ended)
    return Suffers(ranks, gpus, gpus * passed_s * share / 3600.0, waiting, loss.waits_in, ended)


def _confidence(loss: Loss, cause: Finding | None) -> Confidence:
    """A grave fault of just those whom stacks or counters name makes it surer by a step."""
    if cause is None or cause.severity != "critical" or not loss.culprits or cause.id == LOST.id:
        return loss.confidence
    return CONFIDENCES[max(0, CONFIDENCES.index(loss.confidence) - 1)]


def _evidence(finding: Finding) -> Evidence:
    source: EvidenceSource = (
        "kernel" if finding.id.startswith(_KERNEL) else "log" if finding.id == OF_LOGS else "health"
    )
    return Evidence(source, finding.message, finding.since, finding.node)


def _job_id(job: JobScene) -> str:
    uid = "" if job.key.uid is None else job.key.uid
    return f"job/{job.key.name}/{uid}" + (f"/{job.place}" if job.place else "")


# Incidents of nodes, ports and servers.


def _of_nodes(scene: Scene, used: set[int]) -> list[Incident]:
    """What no job is known to suffer from: of a file server one for all nodes, of others one each."""
    of_nodes = (finding for node in scene.nodes.values() for finding in node.findings)
    of_jobs = (finding for job in scene.jobs.values() for finding in job.findings)
    left = [
        finding
        for finding in chain(of_nodes, of_jobs)
        if id(finding) not in used and finding.severity != "info" and finding.id != FAILED
    ]
    alike = grouped(left, _one_cause)
    _join_like_ones(alike)
    _join_peers(alike, scene)
    return [_of_node(findings, scene) for findings in alike.values()]


def _join_like_ones(groups: dict[str, list[Finding]]) -> None:
    """What began within a minute of the same on another device of the node, or on the port of that name of another
    node, has one cause.
    """
    for key in (_of_one_node, _of_one_rail):
        newest: dict[tuple[object, ...], tuple[str, float]] = {}
        joint = [(name, group[0]) for name, group in groups.items() if group[0].id in BY_ID]
        for name, finding in sorted(joint, key=lambda each: each[1].since or 0.0):
            since, kind = finding.since or 0.0, key(finding)
            first, before = newest.get(kind, (name, since)) if kind else (name, since)
            if since - before > CLOSE_S:
                first = name
            newest[kind] = first, since
            if first != name:
                groups[first] += groups.pop(name)


def _of_one_node(finding: Finding) -> tuple[object, ...]:
    """() where others of the node have nothing to do with it."""
    is_joint = bool(BY_ID[finding.id].together)
    return (finding.id, finding.node, finding.key, finding.action, finding.until) if is_joint else ()


def _of_one_rail(finding: Finding) -> tuple[object, ...]:
    """Ports of one name lead to one switch; () for what is about no port."""
    rule = BY_ID.get(finding.id)
    is_joint = rule is not None and rule.together and rule.part_of == "card"
    return (finding.id, finding.subject, finding.action, finding.until is None) if is_joint else ()


def _more_nodes(causes: Sequence[Finding]) -> int:
    """Nodes that have what the first cause says, beside its own: they do not answer, or their ports share its rail."""
    alike = (cause for cause in causes if cause.id == causes[0].id == LOST.id or _share_a_rail(cause, causes[0]))
    return len({cause.node for cause in alike} - {causes[0].node}) if causes else 0


def _action_of(first: Finding, nodes: int) -> str:
    return words.action_of_rail(first) if nodes > 1 and _of_one_rail(first) else first.action


def _share_a_rail(finding: Finding, other: Finding) -> bool:
    rail = _of_one_rail(finding)
    is_close = abs((finding.since or 0.0) - (other.since or 0.0)) <= CLOSE_S
    return bool(rail) and rail == _of_one_rail(other) and is_close


def _together(findings: Sequence[Finding], first: Finding) -> str:
    """What is said of ``first`` and of those among ``findings`` that are like it."""
    rule, alike = BY_ID.get(first.id), [finding for finding in findings if finding.id == first.id]
    subjects = list(dict.fromkeys(finding.subject for finding in alike))
    if len(alike) < 2 or rule is None or (len(subjects) < 2 and not _of_processes(first)):
        return first.message
    if rule.together:
        messages = [finding.message for finding in alike[:_MOST_MESSAGES]]
        messages += [f"and {more} more"] if (more := len(alike) - _MOST_MESSAGES) > 0 else []
        return rule.together.format(subjects=listed(subjects), each="; ".join(messages))
    return f"{first.message}; and {len(alike) - 1} more" if _of_processes(first) else first.message


def _join_peers(groups: dict[str, list[Finding]], scene: Scene) -> None:
    """What is said of a job or port because of a fault on one of the job's nodes; what nodes say of a rail without."""
    firing = {name: group[0] for name, group in groups.items() if group[0].id in BY_ID and group[0].until is None}
    complaints = {name: complaint for name, complaint in firing.items() if complaint.id in _PEERS or complaint.job}
    causes = [(name, cause) for name, cause in firing.items() if complaints and BY_ID[cause.id].explains_peers]
    causes.sort(key=lambda each: _nearest_to_the_hardware(each[1]))
    rails: dict[tuple[str, str], str] = {}
    for name, complaint in complaints.items() if len(causes) <= MOST_PEERS else ():
        job = scene.jobs.get(scene.placed(complaint.job_key, complaint.node)) if complaint.job_key is not None else None
        fitting = [
            known_as
            for known_as, cause in causes
            if (_is_peers_complaint(complaint, cause) or is_named(complaint.id, BY_ID[cause.id].explains_ranks))
            and _nearest_to_the_hardware(cause) < _nearest_to_the_hardware(complaint)
            and (cause.node == complaint.node or scene.share_a_job(cause.node, complaint.node))
            and (job is None or touched_by(cause, BY_ID[cause.id], job))
        ]
        first = next((known_as for known_as in fitting if known_as in groups), name)
        if not fitting and complaint.id in _PEERS:
            first = rails.setdefault((complaint.id, complaint.subject), name)
            first = first if scene.share_a_job(firing[first].node, complaint.node) else name
        if first != name and len({firing[known_as].node for known_as in fitting}) <= 1:
            groups[first] += groups.pop(name)


def _one_cause(finding: Finding) -> str:
    if finding.server:
        over = "over" if finding.until is not None else ""
        return f"server/{finding.server}{over}"
    if finding.id in OF_STATES:  # what keeps many nodes from answering is one thing
        return f"{finding.id}/{finding.key}"
    name = f"{finding.id}/{finding.job or finding.node}/{finding.uid}" if _of_processes(finding) else _name(finding)
    return name + ("" if finding.until is None else f"/{finding.until}")


def _of_processes(finding: Finding) -> bool:
    """Of which a node may have a hundred with one thing the matter, as all that the kernel killed in an hour."""
    return finding.id in BY_ID and BY_ID[finding.id].alike == "rule" and not finding.server


def _name(finding: Finding) -> str:
    if finding.server:
        return f"server/{finding.server}"
    return f"{finding.id}/{finding.node}/{finding.subject}" + (f"/{finding.key}" if finding.key else "")


def _of_node(findings: list[Finding], scene: Scene) -> Incident:
    first = min(findings, key=_nearest_to_the_hardware)
    if _of_processes(first):
        first = max((each for each in findings if each.id == first.id), key=lambda finding: finding.since or 0.0)
    nodes = list(dict.fromkeys(finding.node for finding in findings if finding.id == first.id or finding.server))
    others = [finding for finding in findings if finding is not first]
    over = [finding.until for finding in findings]
    gpus = sum(len(finding.gpus) for finding in findings)
    culprit = Culprit(None, first.server or first.node, None, first.message, "", True, first.gpu)
    return Incident(
        id=_name(first),
        kind="node",
        severity=min((finding.severity for finding in findings), key=gravity),
        headline=words.headline_of_node(
            first, nodes, _together(findings, first), with_nodes=len(scene.nodes) > 1 or first.id in OF_STATES
        ),
        job=first.job,
        uid=first.uid,
        since=min(known(finding.since for finding in findings), default=None),
        until=None if None in over else max(known(over), default=None),
        culprits=[culprit],
        causes=[first],
        effects=others,
        suffers=Suffers(gpus=gpus),
        evidence=[*map(_evidence, findings), *(Evidence("health", text, None, first.node) for text in first.evidence)],
        confidence="high",
        act=first.act,
        action=_action_of(first, len(nodes)),
    )
