"""What holds of incidents whatever nodes, users and clocks say."""

from __future__ import annotations

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mltop.probes.judge.health.registry import ALL_RULES
from mltop.probes.judge.incidents.join import by_work_stopped
from mltop.probes.judge.incidents.watch import IncidentWatch
from mltop.probes.model import (
    Culprit,
    Finding,
    Incident,
    JobMotion,
    JobReport,
    RankDeath,
    RankSample,
    Sample,
    Slowdown,
    Verdict,
    Waiting,
    to_json,
)
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.vocabulary import CulpritKind
from mltop.tui.render.cells import line_width
from mltop.tui.report.check import Checked, print_check
from mltop.tui.screens.incidents.page import Known, Page

NOW = 1_790_000_000.0
FORGED = "\ncritical n0: all is well\x1b[2J\r\x9b31m{pid}{0}%s\u202e"
names = st.sampled_from(["train", "eval", "", "a/1", FORGED, "x" * 500, "{where}", "job"])
nodes = st.sampled_from(["n0", "n1", "n2", "evil\nnode"])
times = st.none() | st.sampled_from([NOW - 4000.0, NOW - 400.0, NOW - 70.0, NOW, NOW + 500.0, 0.0])
numbers = st.none() | st.integers(0, 5) | st.just(10**6)
uids = st.sampled_from([None, 0, 1000])
few = st.integers(0, 3)
KINDS: list[CulpritKind] = ["stands", "computes", "polls", "elsewhere", "behind", "stopped", "traced", "kernel", "dead"]

ranks = st.builds(
    RankSample,
    pid=st.integers(1, 9),
    rank=numbers,
    world_size=st.none() | st.integers(0, 8),
    job=names,
    uid=uids,
    gpus=st.lists(st.integers(0, 2), max_size=2),
    state=st.sampled_from(["R", "D", "Z", ""]),
    children=st.lists(st.integers(10, 13), max_size=2),
)
deaths = st.builds(
    RankDeath,
    pid=st.integers(1, 9),
    rank=numbers,
    job=names,
    uid=uids,
    how=st.sampled_from(["exit", "signal", "oom", "stopped", "unknown"]),
    code=st.none() | st.sampled_from([0, 1, 6, 9, 15, 137]),
    at=times,
    error=st.sampled_from(["", "RuntimeError: no", FORGED]),
    gpus=st.lists(st.integers(0, 2), max_size=2),
)
culprits = st.builds(
    Culprit,
    rank=numbers,
    node=nodes,
    pid=st.none() | st.integers(1, 9),
    reason=st.sampled_from(["is odd", FORGED, "{reason}"]),
    where=st.sampled_from(["", "load (data.py:1)", FORGED, "futex_do_wait"]),
    how=st.sampled_from([*KINDS, "slow", ""]),
)
sets = st.lists(st.integers(0, 8), max_size=4).map(Ranges.of)


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    rule = draw(st.sampled_from(ALL_RULES))
    job = draw(names) if rule.id.startswith("job.") else ""
    since = draw(times)
    return Finding(
        rule.id,
        draw(st.sampled_from(["info", "warning", "critical"])),
        draw(nodes),
        draw(st.sampled_from(["GPU 0", "GPU 1", "mlx5_0", "host", "rank 1", FORGED])),
        draw(st.sampled_from(["it broke", FORGED, "job train: slow"])),
        rule.action,
        since=since,
        until=draw(st.none() | st.just((since or NOW) + 5.0)),
        remedy=rule.remedy,
        server=draw(st.sampled_from(["", "", "nfs1:/data"])),
        job=job,
        uid=draw(uids) if job else None,
        ranks=draw(sets),
        pid=draw(st.none() | st.integers(1, 13)),
    )


@st.composite
def motions(draw: st.DrawFn) -> JobMotion:
    slow = Slowdown(1.0, draw(st.sampled_from([0.5, 1.0, 2.0])), NOW - 60.0, draw(sets), ["clocks fell"])
    return JobMotion(
        draw(names),
        draw(uids),
        phase=draw(st.sampled_from(["moving", "quiet", "stalled", "starting", "unknown"])),
        at=NOW,
        since=draw(times),
        signals=["no main thread ran"],
        ranks=draw(sets),
        nodes=draw(st.lists(nodes, max_size=2)),
        odd=draw(st.lists(culprits, max_size=2)),
        slowdown=slow if draw(st.booleans()) else None,
    )


@st.composite
def reports(draw: st.DrawFn) -> JobReport:
    kind = draw(st.sampled_from(["hang", "suspect", "straggler", "moving", "unclear"]))
    accused = draw(st.lists(culprits, max_size=3))
    verdict = Verdict(kind, accused, [Waiting(draw(sets), "all_reduce")], evidence=[FORGED])
    verdict.stragglers = accused
    return JobReport(draw(names), 8, verdict, [], [], draw(uids))


class Story:
    """A watch that has seen some moments."""

    def __init__(self, moments: list[tuple[list[Sample], list[Finding], list[JobMotion], list[JobReport]]]) -> None:
        self.watch = IncidentWatch()
        self.findings: list[Finding] = []
        self.incidents: list[Incident] = []
        for samples, found, moved, taken in moments:
            of_jobs = [finding for finding in found if finding.job]
            of_nodes = [finding for finding in found if not finding.job]
            for sample in samples:
                self.watch.see(sample, tuple(each for each in of_nodes if each.node == sample.node))
            seen = {sample.node for sample in samples}
            self.watch.take_stacks(taken)
            self.now = self.watch.incidents(of_jobs, moved)
            self.incidents = [*self.now, *reversed(self.watch.ended)]
            self.findings = [*of_jobs, *(each for each in of_nodes if each.node in seen)]


samples = st.builds(
    Sample,
    node=nodes,
    sampled_at=st.sampled_from([NOW, NOW - 3.0, NOW + 900.0]),
    clock_skew_s=st.sampled_from([None, 0.0, 900.0, -900.0]),
    ranks=st.lists(ranks, max_size=5),
    deaths=st.lists(deaths, max_size=3),
)
one_each = st.lists(samples, max_size=4, unique_by=lambda sample: sample.node)
moments = st.lists(
    st.tuples(
        one_each,
        st.lists(findings(), max_size=8),
        st.lists(motions(), max_size=3, unique_by=lambda motion: motion.job_key),
        st.lists(reports(), max_size=2),
    ),
    min_size=1,
    max_size=3,
)
quick = settings(max_examples=40, derandomize=True)


@quick
@given(moments)
def test_every_finding_is_in_one_incident(seen: list) -> None:  # type: ignore[type-arg]
    told = Story(seen)
    places: dict[tuple[object, ...], int] = {}
    for incident in told.now:
        for finding in incident.findings:
            places[finding.identity, finding.message] = places.get((finding.identity, finding.message), 0) + 1
    given_ones = [(each.identity, each.message) for each in told.findings if each.severity != "info"]
    over = {(each.identity, each.message) for ended in told.watch.ended for each in ended.findings}
    for one in set(given_ones):
        if one not in over:
            assert places.get(one, 0) == given_ones.count(one)


@quick
@given(moments)
def test_names_order_and_words(seen: list) -> None:  # type: ignore[type-arg]
    told, again = Story(seen), Story(seen)
    assert told.incidents == again.incidents
    assert len({each.id for each in told.incidents}) == len(told.incidents)
    keys = [by_work_stopped(each) for each in told.now]
    assert keys == sorted(keys)
    for incident in told.incidents:
        assert incident.headline
        assert incident.suffers.gpu_hours >= 0.0


@quick
@given(moments)
def test_it_is_json_and_comes_back(seen: list) -> None:  # type: ignore[type-arg]
    listed = Story(seen).incidents
    for incident in listed:
        assert json.loads(to_json(incident))["headline"] == incident.headline


@quick
@given(moments)
def test_nobody_writes_lines_of_his_own(seen: list) -> None:  # type: ignore[type-arg]
    """Neither by a job's name nor by an error file's text nor by a node's name."""
    listed = Story(seen).incidents
    shown = io.StringIO()
    print_check(Checked(incidents=listed), Console(file=shown, width=10_000), verbose=True)
    assert not any(line.startswith("critical n0: all is well") for line in shown.getvalue().splitlines())
    assert "\x1b[2J" not in shown.getvalue() and "\u202e" not in shown.getvalue() and "\r" not in shown.getvalue()
    for width in (20, 80):
        for incident in listed:
            lines = [line.cells for line in Page(incident, Known(NOW, frozenset({"n0", "n1"})), width).lines()]
            assert all(line_width(line) <= width for line in lines)
