"""What the health rules say to `mltop check`: of machines that it looks at, and of a recording."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from mltop.probes.investigate.capture import judged_anew
from mltop.probes.investigate.diagnosis import Diagnosis
from mltop.probes.judge.health.fleet import Health
from mltop.probes.judge.health.folding import told_of_nvml
from mltop.probes.judge.health.registry import ALL_RULES, RULES
from mltop.probes.judge.health.rule import FAILED, Expectations
from mltop.probes.judge.health.unknowns import GROWTH, alternatives, growth_unknown
from mltop.probes.model import NodeState, Sample, Unknown
from mltop.probes.model.sample import Reads
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.view import NodeView
from mltop.probes.record import StoredSamples
from mltop.tui.app.judging import take_skew
from mltop.tui.commands.live import Complete, Machines, saved, unreached
from mltop.tui.report.check import Checked

BROKEN = ("gpu.lost", "gpu.error", "gpu.missing", "gpu.xid.hw")  # such a GPU gives no values
RECORDING, LEMON_LIST = "recording", "lemon_list"  # what may be unknown and is of no node
READ_TWICE_S = 6.0  # within that a node's counters are read a second time …
GROWTH_S = 20.0  # … or within that where it is very busy


def check_allowed(words: Iterable[str]) -> None:
    """Raises UsageProblem for a word of --allow-unknown that fits nothing that a check may not know."""
    needs = chain.from_iterable((*rule.needs, *rule.decisive) for rule in ALL_RULES)
    sources = {way.source for need in needs for way in alternatives(need)}
    sources |= {GROWTH, "more", RECORDING, LEMON_LIST, *(rule.id.partition(".")[0] for rule in ALL_RULES)}
    for word in words:
        if not any(fnmatchcase(source, word.partition(".")[0]) for source in sources):
            known = ", ".join(sorted(sources))
            raise UsageProblem(f"--allow-unknown {word}", f"nothing that is checked begins so ({known})")


def live(machines: Machines, expectations: Expectations) -> Checked:
    gathered = CountersReadTwice(machines.deadline)
    views = machines.await_nodes(gathered)
    diagnosis = Diagnosis(Health(replace(expectations, vacated=True), eager=True))
    samples = sorted(chain.from_iterable(gathered.samples.values()), key=lambda sample: sample.sampled_at)
    diagnosis.health.compare(samples)
    for sample in samples:
        diagnosis.see(sample)
    diagnosis.health.settle()
    checked = judged(diagnosis, [view.state for view in views])
    checked.findings = [finding for finding in checked.findings if finding.until is None]
    checked.incidents = [incident for incident in checked.incidents if incident.until is None]
    checked.unreached = unreached(views)
    return checked


def judged(diagnosis: Diagnosis, nodes: list[NodeState]) -> Checked:
    """What the rules say, and what that comes to. A rule that failed has not judged: that is no finding here, but
    something unknown.
    """
    health = diagnosis.health
    everything = health.findings()
    findings = [finding for finding in everything if finding.id != FAILED]
    failed = [finding for finding in everything if finding.id == FAILED]
    unknowns = health.unknowns(at_the_end=True)
    without_nvml = {finding.node for finding in findings if told_of_nvml((finding,))}
    broken = [finding for finding in findings if finding.id in BROKEN and finding.severity == "critical"]
    silent = {(finding.node, f"gpu.{index}") for finding in broken for index in finding.gpus}
    silent |= {(finding.node, f"pci.{place}") for finding in broken for place in finding.about}
    for unknown in unknowns:
        is_nvml = unknown.what == "nvml" and unknown.node in without_nvml
        if is_nvml or (unknown.node, ".".join(unknown.what.split(".")[:2])) in silent:
            unknown.severity = "info"  # the finding says it, with what to do
    unjudged = [Unknown(finding.node, finding.subject, finding.message, finding.action) for finding in failed]
    return Checked(nodes, findings, [*unjudged, *unknowns], incidents=diagnosis.incidents())


class CountersReadTwice(Complete):
    """As ``Complete``, and all counters of errors were read twice: of one reading nobody can say that they do not grow.

    Keeps every sample that it has seen on the way.
    """

    def __init__(self, nvml_deadline: float) -> None:
        super().__init__(nvml_deadline)
        self.samples: dict[str, list[Sample]] = {}
        self._reads: dict[str, Reads] = {}
        self._grown_by: dict[str, float] = {}  # monotonic s: a node is not waited for any longer
        self._looked: dict[str, tuple[int, bool]] = {}  # how many kinds were read twice, and whether that was enough

    def __call__(self, view: NodeView) -> str:
        sample = view.sample
        if sample is None:
            return super().__call__(view)
        samples = self.samples.setdefault(view.node, [])
        reads = self._reads.setdefault(view.node, Reads())
        if not samples or sample.sampled_at > samples[-1].sampled_at:
            take_skew(view, sample)
            samples.append(sample)
            reads.see(sample)
        if missing := super().__call__(view):
            return missing
        if self._looked.get(view.node, (-1, False))[0] != reads.count:
            self._looked[view.node] = reads.count, not growth_unknown(sample, RULES, reads)
        now = time.monotonic()
        is_over = self._looked[view.node][1] or now > self._grown_by.setdefault(view.node, now + GROWTH_S)
        return "" if is_over else f"error counters are read twice: {READ_TWICE_S:g} s"


def recorded(path: Path, expectations: Expectations) -> Checked:
    content = saved(path)
    diagnosis = diagnosis_of(content.samples, expectations)
    checked = judged(diagnosis, content.nodes)
    if content.dumps or content.incidents:  # a capture: its stacks are judged, too, and what was told then counts
        _, _, checked.incidents = judged_anew(content, diagnosis)
    for unknown in checked.unknown:
        unknown.fix = "" if unknown.what.startswith(GROWTH) else unknown.fix  # it cannot be looked at again
    if not content.samples:
        checked.unknown.append(Unknown("", RECORDING, f"{path}: no samples in it"))
    return checked


def diagnosis_of(samples: StoredSamples, expectations: Expectations) -> Diagnosis:
    """As ``evaluated``, of samples that are too many to be held at a time."""
    alone = frozenset(node for node, own in samples.items() if len(own) == 1)
    diagnosis = Diagnosis(Health(expectations, eager=alone, keep_s=None), whole_recording=True)
    diagnosis.health.compare(samples.oldest())
    for sample in samples.by_time():
        diagnosis.see(sample)
    diagnosis.health.settle()
    return diagnosis


def changed(thresholds: Mapping[str, float]) -> list[dict[str, str]]:
    """The rules that go by the user's thresholds: what these are and what they would be, in words."""
    rules = [rule.at(thresholds) for rule in ALL_RULES]
    return [{"rule": rule.id, "threshold": rule.usual, "default": rule.others} for rule in rules if rule.others]
