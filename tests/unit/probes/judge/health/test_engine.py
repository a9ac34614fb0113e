"""What runs the health rules: what it remembers, compares, leaves open and forgets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from mltop.probes.judge.health.fleet import Health, JobHealth
from mltop.probes.judge.health.folding import fold_findings
from mltop.probes.judge.health.job.whole_job import JobMoment
from mltop.probes.judge.health.moment import Moment
from mltop.probes.judge.health.node import NodeJudge
from mltop.probes.judge.health.peers import PeerBook, Peers
from mltop.probes.judge.health.registry import Readers
from mltop.probes.judge.health.rule import Expectations, Hit, Rule
from mltop.probes.judge.health.trails import Series, Trails
from mltop.probes.judge.health.unknowns import touches, unknowns_of
from mltop.probes.model import Finding, Gap, GpuSample, HostSample, RankSample, Sample
from tests.builders.evaluated import evaluate


def _sample(at: float, kills: int = 0, node: str = "n1", **more: object) -> Sample:
    return Sample(node, at, host=HostSample(oom_kills=kills), **more)  # type: ignore[arg-type]


def _counters(sample: Sample) -> Iterator[tuple[str, str, float]]:
    if sample.host.oom_kills is not None:
        yield "host", "oom_kills", sample.host.oom_kills


def _trails(*values: tuple[float, int]) -> Trails:
    trails = Trails()
    for at, kills in values:
        trails.see(_sample(at, kills), [_counters], [])
    return trails


# Jobs


@pytest.mark.parametrize(("nodes", "most"), [(2, 50), (500, 11)])
def test_the_larger_the_jobs_the_less_often_all_of_them_are_judged(nodes: int, most: int) -> None:
    """Judging thousands of ranks costs as much as judging dozens of nodes, whose time it would take."""
    judged: list[float] = []

    def check(moment: JobMoment) -> Iterator[Hit]:
        judged.append(moment.at)
        yield from ()

    health = JobHealth([Rule("job.seen", "info", 0.0, "look", check)])
    for second in range(100):
        for node in range(second % 10, nodes, 10) if nodes > 10 else range(nodes):
            ranks = [RankSample(pid, 8 * node + pid, job="train", uid=1000) for pid in range(8)]
            now = Sample(f"n{node}", 1000.0 + second + node / nodes, ranks=ranks)
            health.see(now, (), now.sampled_at)
    begun = [at for at in judged if at > 1010.0]  # the first samples tell how many there are
    assert most / 2 <= len(begun) <= most, "in 90 seconds"
    assert max(after - before for before, after in pairwise(begun)) <= 11.0


# Counters


def test_a_counter_that_stood_high_before_has_not_grown() -> None:
    trails = _trails((0, 255), (10, 255))
    increase = trails.increase("host", "oom_kills", 60)
    assert (increase.amount, increase.over_s) == (0, 10)
    assert not trails.has_seen("host", "nothing such")
    assert trails.increase("host", "nothing such", 60).amount == 0


@pytest.mark.parametrize(("over_s", "amount"), [(5, 0), (15, 3), (25, 3), (31, 5), (1000, 5)])
def test_growth_is_of_the_window_asked_for(over_s: float, amount: int) -> None:
    trails = _trails((0, 10), (10, 12), (30, 15), (40, 15))
    increase = trails.increase("host", "oom_kills", over_s)
    assert increase.amount == amount


def test_a_counter_that_starts_anew_has_grown_by_what_it_shows() -> None:
    increase = _trails((0, 100), (10, 2)).increase("host", "oom_kills", 60)
    assert increase.amount == 2


def test_growth_as_a_rate() -> None:
    increase = _trails((0, 0), (30, 60)).increase("host", "oom_kills", 60)
    assert increase.per(60.0) == 120


def test_a_counter_that_changes_always_takes_bounded_memory_and_keeps_the_recent_past() -> None:
    trails = _trails(*((at, at * 7) for at in range(5000)))
    increase = trails.increase("host", "oom_kills", 60)
    assert increase.amount == 60 * 7
    whole = trails.increase("host", "oom_kills", 10_000)
    assert whole.amount == 4999 * 7


def test_of_processes_that_are_gone_nothing_is_kept() -> None:
    def switches(sample: Sample) -> Iterator[tuple[str, str, float]]:
        yield f"pid {int(sample.sampled_at)}", "switches", 1.0
        yield "host", "oom_kills", 0.0

    trails = Trails()
    for at in range(0, 7200, 100):
        trails.see(_sample(at), [switches], [])
    assert not trails.has_seen("pid 0", "switches")
    assert trails.has_seen("pid 7100", "switches")
    assert trails.has_seen("host", "oom_kills")


# Gauges


def _load(sample: Sample) -> Iterator[tuple[str, str, float, float]]:
    if sample.host.load_1m is not None:
        yield "host", "load", sample.host.load_1m, 600.0


def test_a_gauge_keeps_its_span_thinned_and_its_slope() -> None:
    trails = Trails()
    for at in range(1200):
        trails.see(Sample("n1", at, host=HostSample(load_1m=at / 100)), [], [_load])
    series = trails.series("host", "load")
    assert series is not None and len(series.values) <= 122
    assert 590 <= series.span_s <= 605 and series.values[-1] == 11.99
    slope = series.slope_per_s()
    assert slope is not None and abs(slope - 0.01) < 1e-6
    assert trails.series("host", "nothing such") is None


def test_a_series_says_how_often_something_holds() -> None:
    series = Series((0.0, 1.0, 2.0, 3.0), (0.0, 1.0, 0.0, 1.0))
    assert series.share(lambda value: value > 0.5) == 0.5
    assert Series((0.0,), (1.0,)).slope_per_s() is None


# Peers


def test_what_is_usual_needs_enough_and_a_majority() -> None:
    peers = Peers.of(
        {f"n{number}": [("driver", "H100", "570"), ("clock", "H100", 1900 + number)] for number in range(5)}
    )
    usual = peers.common("driver", "H100")
    assert usual is not None and (usual.value, usual.count, usual.of) == ("570", 5, 5)
    middle = peers.median("clock", "H100", 3)
    assert middle == 1902
    assert peers.common("driver", "B200") is None
    assert Peers.of({"a": [("d", "", 1)], "b": [("d", "", 1)]}).common("d", "") is None
    split = Peers.of({"a": [("d", "", 1)], "b": [("d", "", 2)], "c": [("d", "", 1)], "d": [("d", "", 2)]})
    assert split.common("d", "") is None


def test_one_node_that_lies_does_not_decide_what_is_usual() -> None:
    honest = {f"n{number}": [("clock", "H100", 1900.0), ("driver", "H100", "580")] * 8 for number in range(3)}
    liar = [("clock", "H100", 300.0), ("clock", "H100", "fast"), ("driver", "H100", "535"), ("driver", "H100", 5)] * 500
    peers = Peers.of({**honest, "evil": liar})
    assert peers.median("clock", "H100", 4) == 1900.0
    usual = peers.common("driver", "H100")
    assert usual is not None and (usual.value, usual.count, usual.of) == ("580", 24, 32)
    assert Peers.of({"evil": [("clock", "", "fast")] * 20}).median("clock", "", 4) is None
    large = {f"n{number}": [("port", "", 200)] * 16 for number in range(3)}  # where that is usual, all count
    assert str(Peers.of(large).common("port", "")) == "48 of 48 like nodes"


def test_each_node_counts_once_and_a_node_that_is_gone_not_at_all() -> None:
    book = PeerBook()
    for at in range(0, 60, 10):
        for node in ("a", "b", "c"):
            peers = book.take(node, [("name", "", node)], at)
    assert peers.nodes == 3
    book.forget("a")
    assert book.take("b", [("name", "", "b")], 100).nodes == 2


# Rules over one node


def _hit_when(*times: int, hold_s: float = 10.0, eager: bool = True, since: float | None = None) -> Rule:
    def check(moment: Moment) -> Iterator[Hit]:
        if int(moment.now.sampled_at) in times:
            yield Hit("host", f"at {moment.now.sampled_at:.0f}", since=since)

    return Rule("test.rule", "warning", hold_s, "act", check, eager=eager)


def _judged(rule: Rule, ats: range, eager: bool = False) -> NodeJudge:
    node = NodeJudge("n1", [rule], eager=eager)
    for at in ats:
        node.see(_sample(at))
    return node


def _firing(node: NodeJudge) -> list[Finding]:
    return [one for one in node.findings() if one.until is None]


def _ended(node: NodeJudge) -> list[tuple[float | None, float | None]]:
    return [(one.since, one.until) for one in node.findings() if one.until is not None]


def test_what_holds_from_the_first_sample_on_fires_at_once_in_a_live_view() -> None:
    assert _judged(_hit_when(*range(100)), range(1), eager=True).findings()
    assert not _judged(_hit_when(*range(100)), range(1), eager=False).findings()
    assert not _judged(_hit_when(*range(100), eager=False), range(1), eager=True).findings()
    assert not _judged(_hit_when(*range(1, 100)), range(2), eager=True).findings(), "it began under our eyes"


def test_what_fired_at_first_sight_only_ends_at_once() -> None:
    node = _judged(_hit_when(0, 1), range(3), eager=True)
    assert not _firing(node) and _ended(node) == [(0, 1)]


def test_what_has_held_bridges_pauses_of_three_holds() -> None:
    assert _judged(_hit_when(*range(11)), range(40)).findings()
    node = _judged(_hit_when(*range(11)), range(41))
    assert not _firing(node) and _ended(node) == [(0, 10)]


def test_a_rule_that_knows_since_when_does_not_wait() -> None:
    (finding,) = _judged(_hit_when(100, since=50.0), range(100, 101)).findings()
    assert finding.since == 50.0


def test_several_hits_on_one_subject_are_told_apart_by_key() -> None:
    rule = Rule("r", "info", 0.0, "", lambda moment: [Hit("GPU 0", "a", key="1"), Hit("GPU 0", "b", key="2")])
    assert [one.message for one in _judged(rule, range(1)).findings()] == ["a", "b"]


def test_a_reboot_forgets_counters_and_gpus() -> None:
    seen: list[tuple[int, Sample | None, float]] = []

    def check(moment: Moment) -> Iterator[Hit]:
        grown = moment.trails.increase("host", "oom_kills", 60)
        seen.append((len(moment.known_gpus), moment.before, grown.amount))
        yield from ()

    node = NodeJudge("n1", [Rule("r", "info", 0.0, "", check)], readers=Readers((_counters,)))
    first = _sample(0, 5, boot_id="a", gpus=[GpuSample(0)])
    node.see(first)
    node.see(_sample(1, 9, boot_id="a"))
    node.see(_sample(2, 1, boot_id="b"))
    assert seen == [(0, None, 0), (1, first, 4), (0, None, 0)]


# Fleet


def test_only_what_ended_within_the_hour_is_kept_live_and_all_of_a_recording() -> None:
    rule = _hit_when(*range(20))
    times = [*range(60), 3000, 3700]
    live = Health(rules=[rule], eager=True)
    for at in times[:-1]:
        live.see(_sample(at))
    assert [one.until for one in live.findings()] == [19]
    live.see(_sample(times[-1]))
    assert live.findings() == []
    assert len(evaluate([_sample(at) for at in times], rules=[rule])) == 1


def test_a_node_that_is_forgotten_has_no_findings() -> None:
    health = Health(rules=[_hit_when(0)], eager=True)
    health.see(_sample(0))
    assert health.of("n1")
    health.forget("n1")
    assert health.of("n1") == () and health.findings() == []


def test_what_the_user_asked_reaches_the_rules() -> None:
    def check(moment: Moment) -> Iterator[Hit]:
        if moment.expectations.expect_gpus:
            yield Hit("GPUs", str(moment.expectations.expect_gpus))

    health = Health(Expectations(expect_gpus=8), [Rule("r", "critical", 0.0, "", check)])
    health.see(_sample(0))
    assert [one.message for one in health.findings()] == ["8"]


# Folding


def _finding(rule_id: str, subject: str, since: float = 0.0, until: float | None = None) -> Finding:
    return Finding(rule_id, "warning", "n1", subject, rule_id, since=since, until=until)


def _rule(rule_id: str, **more: object) -> Rule:
    return Rule(rule_id, "warning", 0.0, "", lambda _: (), **more)  # type: ignore[arg-type]


def test_the_stronger_cause_takes_what_the_weaker_had_folded() -> None:
    rules = [
        _rule("lost", precedence=1, explains=("weak.", "strong")),
        _rule("strong", precedence=5, explains=("weak.",)),
        _rule("weak.a"),
    ]
    findings = [_finding("weak.a", "GPU 1"), _finding("strong", "GPU 1"), _finding("lost", "GPU 1")]
    (left,) = fold_findings(findings, 8, rules)
    assert left.id == "lost" and set(left.folded) == {"weak.a GPU 1", "strong GPU 1"}


def test_another_subject_or_another_time_is_not_explained() -> None:
    rules = [_rule("lost", explains=("weak",)), _rule("weak")]
    findings = [
        _finding("lost", "GPU 1", since=1000.0),
        _finding("weak", "GPU 2"),
        _finding("weak", "GPU 1", 0.0, 10.0),
    ]
    assert len(fold_findings(findings, 8, rules)) == 3


def test_a_cause_of_the_whole_node_is_one_line() -> None:
    rules = [_rule("brake", whole_node=("all {count} braked", "check the PSU"))]
    findings = [_finding("brake", f"GPU {index}", since=index) for index in range(4)]
    (one,) = fold_findings(findings, 4, rules)
    assert (one.subject, one.message, one.action, one.since) == ("all 4 GPUs", "all 4 braked", "check the PSU", 0)
    assert len(fold_findings(findings, 8, rules)) == 4


# Unknown


@pytest.mark.parametrize(
    ("what", "need", "is_so"),
    [
        ("gpu.3.ecc", "gpu.*.ecc", True),
        ("gpu.3.ecc.sram_threshold_exceeded", "gpu.*.ecc", False),
        ("gpu.*.ecc", "gpu.*.ecc.sram_threshold_exceeded", True),
        ("gpu.*.{sm_active,ecc}", "gpu.*.ecc", True),
        ("gpu.3.power_w", "gpu.*.ecc", False),
        ("gpu.3.ecc_mode", "gpu.*.ecc", False),
        ("nvml", "gpu.*.throttle_reasons", True),
        ("nvml", "links", False),
        ("host.load, host.swap", "host.swap", True),
        ("links.mlx5_0", "links", True),
        ("links.mlx5_0.counters", "links.*.counters", True),
        ("links.mlx5_0.counters", "links", False),
        ("pci.0000:9b:00.0.link", "pci.*.link", True),
        ("pci.0000:9b:00.0.aer", "pci.*.link", False),
        ("pci.0000:9b:00.0", "pci", True),
        ("pci.acs", "pci", False),
    ],
)
def test_which_gaps_keep_a_rule_from_being_judged(what: str, need: str, is_so: bool) -> None:
    assert touches(Gap(what, "why"), need) is is_so


def test_what_is_unsupported_or_only_starting_is_not_unknown() -> None:
    rules = [_rule("xid", needs=("kernel_log",)), Rule("hint", "info", 0.0, "", lambda _: (), needs=("kernel_log",))]
    gaps = [
        Gap("kernel_log", "needs root", "sudo mltop"),
        Gap("kernel_log", "not here", kind="unsupported"),
        Gap("kernel_log", "soon", kind="starting"),
        Gap("host.load", "broken"),
    ]
    (unknown,) = unknowns_of(Sample("n1", 0.0, gaps=gaps), rules)
    assert (unknown.what, unknown.why, unknown.fix, unknown.rules, unknown.severity) == (
        "kernel_log",
        "needs root",
        "sudo mltop",
        ["xid", "hint"],
        "warning",
    )
    (hint,) = unknowns_of(Sample("n1", 0.0, gaps=gaps), rules[1:])
    assert (hint.rules, hint.severity) == (["hint"], "info"), "only worth knowing"
    known, last = unknowns_of(Sample("n1", 0.0, gaps=gaps), rules, at_the_end=True)
    assert (known.why, last.why) == ("needs root", "soon"), "no sample comes after this one"
