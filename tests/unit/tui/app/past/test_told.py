"""What was told comes back for its time, samples of nodes in trouble whole; what is not kept is unknown."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest

from mltop.probes.judge.health.rule import Expectations
from mltop.probes.judge.states import states_of
from mltop.probes.model import (
    Finding,
    GpuSample,
    HostSample,
    Incident,
    JobMotion,
    JobReport,
    KernelEvent,
    NodeState,
    RankDeath,
    RankSample,
    Sample,
    StackClass,
    StackDigest,
    Verdict,
)
from mltop.probes.reach.view import FleetView, NodeView, Received
from mltop.probes.record import StoredSamples, recording
from mltop.probes.record.decoding import BadRecording, decode_head
from mltop.tui.app.feed import Picture
from mltop.tui.app.judging import HealthWatch
from mltop.tui.app.past.past import Past
from mltop.tui.app.past.recorded import RecordedPast
from mltop.tui.app.past.told import MOST_TOLD
from mltop.tui.app.past.wholes import LAST_ONES, TROUBLED_EVERY_S, Wholes
from tests.builders import fault_recordings as faults

T0 = 1_763_640_000.0
HOT = Finding("gpu.hot", "critical", "n1", "GPU 0", "too hot", since=T0 + 10)
MILD = Finding("gpu.mild", "info", "n2", "GPU 1", "mild", since=T0 + 5)


def sample(at: float, node: str = "n1", **fields: object) -> Sample:
    gpus = [
        GpuSample(0, uuid="GPU-0", sm_clock_mhz=int(1000 + at), power_w=500.0, power_limit_w=700.0, fp16_active=0.5),
        GpuSample(1, state="lost", error="fell off the bus"),
    ]
    ranks = [RankSample(77, rank=3, job="j", voluntary_switches=int(at), cpu_fraction=0.5, command="train.py")]
    host = HostSample(cpu_fraction=0.25, memory_total_bytes=1 << 40, load_1m=3.0, kernel="6.1")
    return Sample(node, T0 + at, gpus=gpus, ranks=ranks, host=host, **fields)


def received(one: Sample) -> Received:
    return Received(one)


def picture(at: float, *findings: Finding, nodes: tuple[str, ...] = ("n1", "n2"), **told: object) -> Picture:
    views = tuple(NodeView(NodeState(node, "live"), received(sample(at, node))) for node in nodes)
    return Picture(FleetView(T0 + at, views), findings, **told)  # type: ignore[arg-type]


def fed(*pictures: Picture) -> Past:
    past = Past()
    for one in pictures:
        past.see(one)
    return past


def test_findings_hold_from_when_they_were_told_to_when_they_were_not() -> None:
    past = fed(*(picture(at, *((HOT,) if 15 <= at < 20 else ()), MILD) for at in range(40)))
    assert past.picture(T0 + 9).findings == (MILD,)
    assert past.picture(T0 + 10).findings == (HOT, MILD), "the gravest first"
    assert past.picture(T0 + 19.5).findings == (HOT, MILD)
    assert past.picture(T0 + 20).findings == (MILD,)
    assert past.began == T0


def test_what_is_told_in_other_words_is_told_in_its_own() -> None:
    later = replace(HOT, message="still too hot")
    past = fed(*(picture(at, HOT if at < 70 else later) for at in range(90)))
    assert past.picture(T0 + 15).findings[0].message == "too hot"
    assert past.picture(T0 + 75).findings[0].message == "still too hot"


def test_what_is_over_is_over_from_its_end_on() -> None:
    over = replace(HOT, until=T0 + 20)
    past = fed(picture(0), picture(21, ended=(over,)), picture(30, ended=(over,)))
    assert past.picture(T0 + 19).ended == () and past.picture(T0 + 22).ended == (over,)


def test_incidents_and_motions_are_those_of_then() -> None:
    incident = Incident("a", "hang", "critical", "it hangs", job="j", since=T0 + 10)
    moving, still = (
        JobMotion("j", 1, phase="moving", at=T0),
        JobMotion("j", 1, phase="stalled", since=T0 + 10, at=T0 + 20),
    )
    past = fed(
        *(picture(at, motions=(moving,)) for at in range(20)),
        *(picture(at, incidents=(incident,), motions=(still,)) for at in range(20, 40)),
    )
    then = past.picture(T0 + 9)
    assert then.incidents == () and [motion.phase for motion in then.motions] == ["moving"]
    stopped = past.picture(T0 + 12)
    assert stopped.incidents == (incident,), "told later, but it held then"
    assert [motion.phase for motion in stopped.motions] == ["stalled"]
    now = past.picture(T0 + 30)
    assert now.incidents == (incident,) and now.motions[0].still_s == pytest.approx(20.0)
    assert [happening.text for _, happening in past.events()] == ["it hangs"]


def test_events_come_with_their_time() -> None:
    event = KernelEvent(T0 + 12, "xid", "0000:18:00.0", 79, "Xid 79")
    past = fed(*(picture(at, events=(("n1", event),) if at >= 13 else ()) for at in range(30)))
    assert past.picture(T0 + 11).events == () and past.picture(T0 + 12).events == (("n1", event),)
    assert [(at, one.kind) for at, one in past.events()] == [(T0 + 12, "XID 79")]


def test_a_node_that_was_lost_then_is_lost_then() -> None:
    def gone(at: float) -> Picture:
        state = NodeState("n1", "lost", "ssh: reset", age_s=at - 9)
        return replace(picture(at), view=FleetView(T0 + at, (NodeView(state, received(sample(9))),)))

    past = fed(*(picture(at, nodes=("n1",)) for at in range(10)), *(gone(at) for at in range(10, 30)))
    assert past.picture(T0 + 5).view.nodes[0].state.state == "live"
    lost = past.picture(T0 + 25).view.nodes[0]
    assert lost.state.state == "lost" and lost.state.reason == "ssh: reset"
    assert lost.state.age_s == pytest.approx(16.0) and lost.newest is not None


def test_a_moment_without_a_whole_sample_has_what_is_kept_and_the_rest_is_unknown() -> None:
    past = fed(*(picture(at) for at in range(100)))
    node = past.picture(T0 + 80).view.nodes[0]
    then = node.sample
    assert then is not None
    gpu = then.gpus[0]
    assert (gpu.sm_clock_mhz, gpu.power_w, gpu.uuid, gpu.power_limit_w) == (1080, 500.0, "GPU-0", 700.0)
    assert gpu.fp16_active is None, "not kept, so not known"
    assert then.gpus[1].state == "lost" and then.gpus[1].sm_clock_mhz is None
    rank = then.ranks[0]
    assert (rank.pid, rank.rank, rank.job, rank.command) == (77, 3, "j", "train.py")
    assert rank.voluntary_switches is None and rank.cpu_fraction is None
    assert then.host.cpu_fraction == 0.25 and then.host.load_1m is None and then.host.kernel == "6.1"
    assert {gap.source for gap in then.gaps if gap.why.startswith("not kept: ")} == {"gpu", "host", "links", "ranks"}
    assert node.gpus[0].sm_clock_mhz == 1080 and node.gpus[1].state == "lost"
    assert node.ranks[0].pid == 77


def test_a_node_in_trouble_is_kept_whole() -> None:
    past = fed(*(picture(at, *((HOT,) if at >= 10 else ())) for at in range(100)))
    kept = [
        at for at in range(12, 100) if (then := past.picture(T0 + at).view.nodes[0].sample) and then.gpus[0].fp16_active
    ]
    assert len(kept) == 88, "of every moment there is one of at most ten seconds before"
    then = past.picture(T0 + 57).view.nodes[0].sample
    assert then is not None and then.gpus[0].sm_clock_mhz == 1057, "values of the second"
    assert T0 + 57 - TROUBLED_EVERY_S <= T0 + then.ranks[0].voluntary_switches <= T0 + 57  # type: ignore[operator]
    other = past.picture(T0 + 57).view.nodes[1].sample
    assert other is not None and other.gpus[0].fp16_active is None


def test_of_a_node_that_gets_into_trouble_whole_samples_of_before_are_kept() -> None:
    past = fed(*(picture(at, *((HOT,) if at >= 200 else ())) for at in range(260)))
    before, other = ([one.at - T0 for one in past._wholes._nodes[node].kept] for node in ("n1", "n2"))
    assert len([at for at in before if 60 <= at < 200]) >= 4, before
    assert len(other) <= LAST_ONES, "of a node that is well the last few"
    then = past.picture(T0 + 187).view.nodes[0].sample
    assert then is not None and then.gpus[0].fp16_active == 0.5, "all of a sample of seconds before"
    assert then.gpus[0].sm_clock_mhz == 1187, "values of the second"


def test_the_bound_holds_where_each_node_has_one_large_sample() -> None:
    wholes = Wholes(most_bytes=60_000, most_at_once=100)
    for at in range(8):
        ids = random.Random(at).randbytes(10_000).hex()  # nothing that could be packed
        view = NodeView(NodeState(f"n{at}", "live"), received(sample(at, f"n{at}", boot_id=ids)))
        wholes.feed([view], {f"n{at}": "trouble"}, T0 + at)
        assert wholes.size_bytes <= 60_000
    assert wholes.nearest("n7", T0 + 10) is not None


def test_a_node_whose_clock_leaps_takes_no_turns_of_others_and_keeps_its_own() -> None:
    wholes = Wholes(most_at_once=1)
    leaps = (1e6, 2e6, 3e6, 4e6, 5e6)
    for at in range(200):
        liar = leaps[at] if at < len(leaps) else float(at)
        views = [
            NodeView(NodeState(node, "live"), received(sample(told, node)))
            for node, told in (("liar", liar), *((f"n{number}", float(at)) for number in range(4)))
        ]
        wholes.feed(views, dict.fromkeys([view.node for view in views], "trouble"), T0 + at)
    own = wholes.nearest("liar", T0 + 200)
    assert own is not None and own.at > T0 + 180, "it is kept on, though its clock went back"
    for number in range(4):
        whole = wholes.nearest(f"n{number}", T0 + 200)
        assert whole is not None and whole.at > T0 + 180


def test_a_moment_that_was_not_judged_then_is_not_fine() -> None:
    past = fed(*(picture(at, not_judged=frozenset({"n2"} if at < 20 else ())) for at in range(40)))
    assert past.picture(T0 + 10).not_judged == {"n2"} and past.picture(T0 + 25).not_judged == frozenset()


def test_a_moment_of_which_something_was_forgotten_is_not_fine() -> None:
    past = Past()
    most = MOST_TOLD // 100
    for at in range(most + 50):  # a hundred others each second
        past.see(picture(at, *[replace(HOT, subject=f"{at} {number}") for number in range(100)]))
    forgotten = T0 + 50
    assert past.picture(forgotten - 1).not_judged == {"n1", "n2"}
    assert past.picture(forgotten + 2).not_judged == frozenset()


def test_a_death_without_a_time_was_when_it_was_seen_first() -> None:
    def dying(at: float) -> Sample:
        return sample(at, deaths=[RankDeath(7, 1, "j")] if at >= 20 else [])

    watch = HealthWatch(time.monotonic)
    seen: list[tuple[str, object]] = []
    for at in (10, 20, 30):
        view = FleetView(T0 + at, (NodeView(NodeState("n1", "live"), received(dying(at))),))
        watch.findings(view)
        seen = list(watch.events)
    assert [event.at for _, event in seen] == [T0 + 20]  # type: ignore[attr-defined]
    past = fed(*(picture(at, events=tuple(seen) if at >= 20 else ()) for at in range(40)))  # type: ignore[arg-type]
    assert past.picture(T0 + 19).events == () and past.picture(T0 + 21).events == tuple(seen)
    recorded = RecordedPast(stored([dying(float(at)) for at in range(40)]))
    recorded.judge(threading.Event(), lambda: None, Expectations())
    assert recorded.picture(T0 + 19).events == ()
    assert [event.at for _, event in recorded.picture(T0 + 30).events] == [T0 + 20]


def test_states_are_made_with_the_stacks_of_then() -> None:
    motion = JobMotion("j", 1, phase="stalled", since=T0 + 10, at=T0 + 20)
    digest = StackDigest(0, 77, waiting_in="all_reduce", taken_at=T0 + 30)
    waits = StackClass([0, 1], 2, "all_reduce")
    report = JobReport("j", 2, Verdict("hang"), [waits], [digest], uid=1)
    past = fed(*(picture(at, motions=(motion,), reports=(report,) if at >= 30 else ()) for at in range(20, 60)))
    rank = RankSample(77, rank=1, job="j", uid=1)
    assert past.picture(T0 + 25).states.rank("n1", rank).state == "stalled"
    assert past.picture(T0 + 40).states.rank("n1", rank).state == "waits"
    undated = replace(report, digests=[replace(digest, taken_at=None)])
    assert states_of([motion], [], [undated]).rank("n1", rank).state == "stalled", "nobody knows when these were taken"


def test_nothing_is_known_of_before_the_beginning() -> None:
    past = fed(picture(50), picture(51))
    node = past.picture(T0 + 10).view.nodes[0]
    assert node.sample is None and node.state.state == "connecting"
    assert Past().picture(T0).view.nodes == () and Past().events() == []


def test_whole_samples_stay_within_their_bound() -> None:
    wholes = Wholes(most_bytes=150_000, most_at_once=100)
    nodes = [f"n{number}" for number in range(8)]
    for at in range(0, 4000, 5):
        views = [
            NodeView(NodeState(node, "live"), received(sample(at, node, boot_id=f"{at * 7919}"))) for node in nodes
        ]
        wholes.feed(views, dict.fromkeys(nodes, "trouble"), T0 + at)
        assert wholes.size_bytes <= 150_000
    first = wholes.nearest("n3", T0 + 100)
    last = wholes.nearest("n3", T0 + 4000)
    assert first is not None and last is not None and last.at > T0 + 3900, "old ones are fewer, none goes altogether"


# Recordings.


def stored(samples: list[Sample]) -> StoredSamples:
    content = StoredSamples()
    for line in recording(samples).splitlines()[1:]:
        content.add(decode_head(line, "here"), line, "here")
    return content


def test_a_recording_is_there_as_it_was_and_judged_on_the_way() -> None:
    made = faults.recording(faults.hangs(3), nodes=2, lasts_s=120.0)
    past = RecordedPast(stored(made))
    node = past.picture(made[20].sampled_at).view.nodes[0]
    assert node.sample is not None and node.sample.gpus == made[20].gpus and node.state.state == "live"
    assert past.picture(past.newest_at).not_judged == {"n0", "n1"} and past.events() == []
    told: list[float] = []
    past.judge(threading.Event(), lambda: told.append(past.judged_share), Expectations())
    assert told == sorted(told) and len(told) > 10
    before, after = past.picture(faults.BROKE_AT - 10), past.picture(past.newest_at)
    assert not before.incidents and not before.not_judged
    assert [incident.kind for incident in after.incidents] == ["hang"]
    assert any(happening.kind == "CRIT" for _, happening in past.events())
    track = past.track("n0", 0, past.newest_at)
    assert track is not None and track.sm_active[-1] is not None


def test_a_node_that_falls_silent_in_a_recording_is_stale_then() -> None:
    silent_at, stale_at = faults.BEGAN_AT + 20.0, faults.BROKE_AT - 10.0
    made = [one for one in faults.recording(nodes=2, lasts_s=0.0) if one.node == "n0" or one.sampled_at < silent_at]
    past = RecordedPast(stored(made))
    states = [past.picture(at).view.nodes[1].state.state for at in (silent_at - 10.0, stale_at)]
    assert states == ["live", "stale"]
    past.judge(threading.Event(), lambda: None, Expectations())
    assert [one.id for one in past.picture(stale_at).findings if one.node == "n1"] == ["node.stale"]


def test_a_judge_that_is_stopped_stops() -> None:
    past = RecordedPast(stored(faults.recording(nodes=1, lasts_s=0.0)))
    stopped = threading.Event()
    past.judge(stopped, stopped.set, Expectations())
    assert past.judged_share < 0.5


def test_a_sample_that_cannot_be_read_costs_itself() -> None:
    made = faults.recording(nodes=1, lasts_s=0.0)[:30]
    lines = recording(made).splitlines()[1:]
    lines[10] = lines[10].replace(b'"gpus":[{', b'"gpus":[7,{', 1)
    content = StoredSamples()
    for line in lines:
        content.add(decode_head(line, "here"), line, "here")
    past = RecordedPast(content)
    node = past.picture(made[10].sampled_at).view.nodes[0]
    assert node.sample is None and "not readable" in node.state.reason
    past.judge(threading.Event(), lambda: None, Expectations())
    bad, good = (past.picture(made[at].sampled_at).view.nodes[0] for at in (10, 11))
    assert len(past.unreadable) == 1 and bad.sample is None and bad.state.state == "stale"
    assert good.sample is not None and good.sample.gpus == made[11].gpus and good.sampled_at == made[11].sampled_at
    assert [gpu.sm_active for gpu in good.gpus] == pytest.approx([gpu.sm_active for gpu in made[11].gpus], rel=2e-3)


def test_a_recording_of_nothing_is_refused() -> None:
    with pytest.raises(BadRecording, match="no samples"):
        RecordedPast(StoredSamples())


def test_nodes_without_samples_keep_the_state_of_the_capture() -> None:
    states = [NodeState("n0", "live"), NodeState("n9", "refused", "login")]
    past = RecordedPast(stored(faults.recording(nodes=1, lasts_s=0.0)[:5]), states)
    view = past.picture(past.newest_at).view
    assert [(node.node, node.state.state) for node in view.nodes] == [("n0", "live"), ("n9", "refused")]
