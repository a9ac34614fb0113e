"""What is wrong, a line each: a critical one is never cut, no line is wider than the screen, who is not named twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltop.probes.judge.states import JobStates, States
from mltop.probes.model import Culprit, Finding, Gap, Incident, NodePhase, NodeState, Suffers
from mltop.probes.model.incident import Doing
from mltop.probes.model.ranks import Ranges
from mltop.probes.model.sample import PlacedJob
from mltop.probes.model.units import clock_time
from mltop.probes.model.vocabulary import IncidentKind, Severity
from mltop.probes.reach.view import NodeView
from mltop.tui.render.cells import Cell, line_width, plain
from mltop.tui.render.findings import folded_names, state_findings
from mltop.tui.render.story import (
    FOLD_FROM,
    Line,
    Scope,
    Story,
    height_of,
    lines_of,
    stories_of,
    story_of_gap,
)

NOW, SINCE = 1_763_640_390.0, 1_763_640_000.0
CULPRIT = Culprit(229, "sim030", 42, "reads", "read_shard (data.py:53)", gpu=5, how="stands")
WAITING = States({PlacedJob("run", 5, ""): JobStates(Doing("waits"), {0: Doing("waits", SINCE, "all_reduce")})})
ONE, FLEET = Scope(one=True), Scope({"sim030.example.org": "sim030"})


def incident(kind: IncidentKind = "hang", severity: Severity = "critical", **fields: object) -> Incident:
    made = Incident(
        "i1", kind, severity, "rank 229 never came", job="run", uid=5, since=SINCE, culprits=[CULPRIT],
        suffers=Suffers(Ranges.of(range(456)), 456, 6.12, Ranges.of(range(456)), "all_reduce"),
        action="check the mount of /data",
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def finding(
    node: str = "sim021", severity: Severity = "critical", message: str = "PSU brake", **fields: object
) -> Finding:
    made = Finding("gpu.brake", severity, node, "GPU 1", message, "check the PSU", since=SINCE + 260)
    return replace(made, **fields)  # type: ignore[arg-type]


def text_of(told: Story) -> str:
    return plain([*told.what, Cell("; "), *told.more])


def drawn(told: list[Story], width: int = 120, room: int = 40) -> list[str]:
    return [plain(line.cells) for line in lines_of(told, NOW, width, room)]


def keys(lines: list[Line]) -> list[str | None]:
    return [line.key for line in lines]


def test_a_hang_says_who_stands_where_who_waits_what_was_lost_and_what_to_do() -> None:
    (told,) = stories_of([incident()], [], FLEET)
    assert (told.mark, told.who, told.word) == (Cell("■", "crit"), "rank 229", Cell("HUNG", "crit"))
    assert plain(told.what) == "sim030 GPU 5, pid 42, stuck in read_shard (data.py:53)"
    assert Cell("stuck", "crit") in told.what
    assert plain(told.more) == (f"ranks 0-228,230-455 wait in all_reduce since {clock_time(SINCE)}; 6.1 GPU-hours lost")
    assert Cell("wait in all_reduce", "waits") in told.more
    assert told.action == "check the mount of /data" and told.key == "i1"
    (alone,) = stories_of([incident(suffers=Suffers(waiting=Ranges.of([1, 2])))], [], ONE)
    assert plain(alone.what).startswith("GPU 5, pid 42, stuck"), "on one node it need not be named"
    assert Cell("wait", "waits") in alone.more, "in what is not known"


def test_of_a_crash_is_told_who_died_and_how_then_who_went_down_with_it_and_who_waits() -> None:
    dead = [Culprit(3, "sim030", 42, "exited with code 1", "no process", True, 3, "dead")]
    suffers = Suffers(Ranges.of(range(8)), 8, ended=Ranges.of(range(8)))
    (gone,) = stories_of([incident("crash", culprits=dead, suffers=suffers)], [], ONE)
    assert text_of(gone) == "GPU 3, pid 42, died: exited with code 1; ranks 0-2,4-7 went down with it"
    assert Cell("died", "crit") in gone.what and gone.who == "rank 3"
    suffers = Suffers(Ranges.of(range(8)), 8, waiting=Ranges.of([0, 1]), ended=Ranges.of([3, 4]))
    (left,) = stories_of(
        [incident(culprits=dead, suffers=suffers, causes=[finding(message="it fell off the bus")])], [], ONE
    )
    since = clock_time(SINCE)
    assert plain(left.more) == f"cause: it fell off the bus; rank 4 went down with it; ranks 0-1 wait since {since}"
    (nobody,) = stories_of([incident("crash", culprits=[], headline="the job has died", suffers=suffers)], [], ONE)
    assert text_of(nobody) == "the job has died; ", "what the headline says is said once"
    (stood,) = stories_of([incident("crash", headline="rank 229 stood until the job died")], [], ONE)
    assert plain(stood.what) == "rank 229 stood until the job died", "no process stands any more"


@pytest.mark.parametrize(
    ("kind", "severity", "mark", "word"),
    [
        ("hang", "critical", Cell("■", "crit"), Cell("HUNG", "crit")),
        ("crash", "critical", Cell("■", "crit"), Cell("DIED", "crit")),
        ("straggler", "warning", Cell("▲", "warn"), Cell("SLOW", "warn")),
        ("slow", "critical", Cell("▲", "crit"), Cell("SLOW", "crit")),
        ("starved", "warning", Cell("▲", "warn"), Cell("STARVED", "warn")),
    ],
)
def test_mark_and_word_say_what_became_of_the_job(
    kind: IncidentKind, severity: Severity, mark: Cell, word: Cell
) -> None:
    (told,) = stories_of([incident(kind, severity)], [], FLEET)
    assert (told.mark, told.word) == (mark, word)
    assert told.critical == (severity == "critical"), "whatever becomes of the job"


@pytest.mark.parametrize(
    ("culprits", "who", "what"),
    [
        ([CULPRIT, replace(CULPRIT, rank=230)], "ranks 229-230", "sim030 GPU 5, pid 42, stuck in read_shard"),
        ([replace(CULPRIT, rank=None)], "sim030", "sim030 GPU 5, pid 42, stuck in"),
        (
            [replace(CULPRIT, how="dead", reason="was killed", where="")],
            "rank 229",
            "sim030 GPU 5, pid 42, died: was killed",
        ),
        ([replace(CULPRIT, in_reason=True)], "rank 229", "sim030 GPU 5, pid 42, reads"),
        ([replace(CULPRIT, child_pid=77, gpu=None)], "rank 229", "sim030, pid 77, stuck in"),
        ([], "run", "rank 229 never came"),
        ([Culprit(None, "nfs1", None, "does not answer", "", True)], "nfs1", "rank 229 never came"),
    ],
)
def test_who_it_is(culprits: list[Culprit], who: str, what: str) -> None:
    (told,) = stories_of([incident(culprits=culprits)], [], FLEET)
    assert told.who == who and plain(told.what).startswith(what)


def test_what_is_in_an_incident_is_not_told_twice() -> None:
    cause, effect, other = finding(), finding(message="a symptom", id="x"), finding("n9", id="y", message="other")
    explained = finding(id="z", message="explained")
    of_job = incident(causes=[replace(cause, explains=[explained])], effects=[effect])
    told = stories_of([of_job], [of_job.causes[0], effect, explained, other], FLEET)
    assert told[0].key == "i1" and len(told) == 2
    assert told[1].nodes == ("n9",)


def test_an_incident_of_a_node_is_told_by_its_cause() -> None:
    cause = finding()
    of_node = incident("node", job="", culprits=[], causes=[cause], id="n1")
    (told,) = stories_of([of_node], [cause], FLEET)
    assert (told.key, told.who, told.word.text, told.action) == ("n1", "sim021", "CRIT", "check the PSU")
    assert plain(told.what) == "PSU brake" and told.since == SINCE


def test_what_is_over_or_only_worth_knowing_is_not_told() -> None:
    quiet = [finding(severity="info"), finding(until=NOW)]
    assert stories_of([incident(until=NOW), incident("stopped", "info")], quiet, FLEET) == []


def test_only_what_is_about_the_nodes_that_are_asked_for() -> None:
    told = stories_of([incident()], [finding("n1"), finding("n2")], FLEET, ["n2"])
    assert [one.nodes for one in told] == [("n2",)]
    assert len(stories_of([incident()], [finding("n1")], FLEET, ["sim030"])) == 1


def test_one_problem_of_many_nodes_is_one_line() -> None:
    findings = [finding(f"n{at:02d}") for at in range(12)]
    (told,) = stories_of([], findings, FLEET)
    assert len(told.findings) == 12 and "n[00-11]" in told.who + plain(told.what)


@pytest.mark.parametrize("count", [3, 20])
def test_an_incident_of_many_nodes_names_all_of_them(count: int) -> None:
    lost = [finding(f"n{at:02d}", id="node.lost", message="lost: gone") for at in range(count)]
    complaint = finding("n90", id="node.peer", message="a peer is gone")
    of_all = incident("node", job="", culprits=[], causes=lost[:1], effects=[*lost[1:], lost[1], complaint], id="n1")
    told = stories_of([of_all], [*lost, complaint], FLEET)
    assert [node for one in told for node in one.nodes] == [one.node for one in lost]
    assert len(told) == (1 if count == 20 else 3)
    if count == 20:
        assert told[0].who.startswith("n[00-19]") and "20 nodes" in plain(told[0].what)


def test_on_one_node_the_subject_stands_before_the_sentence() -> None:
    (told,) = stories_of([], [finding(message="GPU 1 runs hot")], ONE)
    assert (told.who, plain(told.what)) == ("GPU 1", "runs hot")
    others = [finding(message="GPU 12 runs hot"), finding(message="GPU 1 ", subject="GPU 2")]
    assert [plain(one.what) for one in stories_of([], others, ONE)] == ["GPU 12 runs hot", "GPU 1 "]


def test_a_line_has_mark_who_what_action_and_at_its_end_the_word_and_age() -> None:
    told = stories_of([incident()], [finding()], FLEET)
    first, second, last = drawn(told, 120)
    assert first.startswith("■ rank 229  sim030 GPU 5, pid 42, stuck in read_shard (data.py:53)")
    assert first.endswith("HUNG  6m30s") and len(first) == 120
    assert second.strip().startswith("ranks 0-228,230-455 wait in all_reduce since")
    assert second.index("ranks") == first.index("sim030") == 12, "text hangs under its own first word"
    assert "→ check the mount of /data" in second
    assert last.startswith("▲ sim021    PSU brake  → check the PSU") and last.endswith("CRIT  2m10s")
    assert drawn(told, 16)[0] == "■ rank 229  HUNG"
    narrow = drawn(told, 80)
    assert narrow[0].index("sim030") == 12 and narrow[-1].endswith("CRIT  2m10s")
    assert drawn(told, 60)[0].endswith("HUNG  6m") and drawn(told, 36)[0].endswith("HUNG")


def test_on_one_line_where_it_is_stuck_goes_before_its_node_and_pid() -> None:
    (line,) = drawn(stories_of([incident()], [], FLEET), 56, 1)
    assert "stuck in read_shard (data.py:53)" in line and "pid" not in line


def test_text_gives_way_before_a_problem_does() -> None:
    told = stories_of([incident()], [finding(f"n{at}", message=f"fault {'abcdef'[at]}") for at in range(4)], FLEET)
    assert height_of(told, NOW, 80) > len(told)
    tight = lines_of(told, NOW, 80, len(told))
    assert keys(tight) == [one.key for one in told]
    assert all("…" not in plain(line.cells) for line in tight)
    roomy = lines_of(told, NOW, 80, height_of(told, NOW, 80))
    assert len(roomy) == height_of(told, NOW, 80)
    more = lines_of(told, NOW, 80, len(told) + 1)
    assert len(more) <= len(told) + 1 and keys(more)[0] == told[0].key


def test_those_that_are_not_shown_are_counted() -> None:
    told = stories_of([], [finding(f"n{at}", "critical" if at % 2 else "warning", f"x{at}y") for at in range(5)], FLEET)
    found = lines_of(told, NOW, 80, 3)
    assert plain(found[-1].cells) == "  3 WARN more: 8 lists all" and keys(found)[-1] is None
    assert [line.cells[0].style for line in found[:2]] == ["crit", "crit"]
    found = lines_of(told, NOW, 80, 2)
    assert keys(found) == [one.key for one in told if one.critical], "a line that counts takes none from a critical one"
    found = lines_of(told, NOW, 80, 1)
    assert keys(found) == [next(one.key for one in told if one.critical)], (
        "a single line is better used for the gravest"
    )
    assert lines_of(told, NOW, 80, 0) == lines_of([], NOW, 80, 5) == []


WORDS = st.text("abc de fg", min_size=1, max_size=70)
TOLD = st.builds(
    Story,
    key=st.uuids().map(str),
    mark=st.just(Cell("▲", "warn")),
    who=st.text("n0123 ,-", min_size=1, max_size=30),
    what=WORDS.map(lambda text: (Cell(text),)),
    word=st.sampled_from([Cell("CRIT", "crit"), Cell("WARN", "warn"), Cell("STARVED", "warn"), Cell("HUNG", "crit")]),
    more=st.one_of(st.just(()), WORDS.map(lambda text: (Cell(text, "waits"),))),
    action=st.one_of(st.just(""), WORDS, st.just("日本語の長い説明")),
    since=st.one_of(st.none(), st.floats(NOW - 1e7, NOW + 60)),
)


@given(st.lists(TOLD, max_size=12), st.integers(16, 200), st.integers(0, 20))
def test_no_line_is_wider_than_the_screen_and_no_critical_one_is_cut(told: list[Story], width: int, room: int) -> None:
    found = lines_of(told, NOW, width, room)
    assert len(found) <= room
    for line in found:
        assert line_width(line.cells) <= width, plain(line.cells)
    shown = set(keys(found))
    critical = [one.key for one in told if one.critical]
    assert len(shown.intersection(critical)) >= min(len(critical), max(1, room - (len(critical) > room))) or room == 0
    if len(told) <= room:
        assert shown == {one.key for one in told}
    order = [key for key in dict.fromkeys(keys(found)) if key is not None]
    assert order == [one.key for one in told if one.key in shown], "in their own order"
    whole = lines_of(told, NOW, width, height_of(told, NOW, width))
    assert len(whole) == height_of(told, NOW, width)


def test_what_cannot_be_read_is_told_with_what_would_help() -> None:
    told = story_of_gap("NVML", Gap("nvml", "the driver is not loaded", "modprobe nvidia"))
    (line,) = drawn([told])
    assert line.startswith("? NVML      the driver is not loaded  → modprobe nvidia") and not told.critical


def test_where_line_1_says_why_a_part_cannot_be_read_only_what_helps_is_said_below() -> None:
    gap = Gap("nvml", "the driver is not loaded", "modprobe nvidia")
    shown = drawn([story_of_gap("GPUs", gap, alone=True)], 80, 9)
    assert [line.rstrip() for line in shown] == ["? GPUs    → modprobe nvidia"]


# What several nodes share.


def away(name: str, state: NodePhase, reason: str = "") -> NodeView:
    return NodeView(NodeState.because(name, state, reason))


def test_nodes_that_are_lost_for_one_reason_are_one_story() -> None:
    views = [away(f"node{number:02d}", "lost", "ssh: timed out") for number in range(1, 13)]
    told = stories_of([], [*state_findings(views, 100.0), finding("node20")], FLEET)
    assert [(one.who, plain(one.what)) for one in told] == [
        ("node[01-12]", "12 nodes: lost: ssh: timed out"),
        ("node20", "PSU brake"),
    ]
    assert told[0].key.partition("/")[0] == "node01" and len(told[0].nodes) == 12
    views = [away(f"n{n:02d}", "lost", f"Connection closed by 10.0.0.{n} port 22") for n in range(9)]
    views += [away("m1", "lost", "no route to host"), away("m2", "connecting")]
    told = stories_of([], state_findings(views, 100.0), FLEET)
    assert [len(one.nodes) for one in told] == [9, 1], "whatever address ssh names; who still connects is no problem"


def test_messages_that_differ_in_figures_fold_and_few_do_not() -> None:
    findings = [finding(f"n{at}", message=f"GPU 0 hot, {60 + at} C") for at in range(FOLD_FROM)]
    (one,) = stories_of([], findings, FLEET)
    assert plain(one.what) == f"{FOLD_FROM} nodes: GPU 0 hot, 60 C (this on n0)"
    assert len({one.key for one in stories_of([], findings[1:], FLEET)}) == FOLD_FROM - 1


@pytest.mark.parametrize(
    ("rule", "subject", "action"),
    [
        ("job.numa", "rank {}", "bind it"),
        ("cpu.dstate", "pid {}", ""),
        ("fabric.state", "GPU {}", ""),
        ("efa", "rdmap{}s27", ""),
        ("gpu.persistence", "GPU {}", "sudo nvidia-smi -i {} -pm 1"),
    ],
)
def test_what_differs_only_in_its_subject_folds(rule: str, subject: str, action: str) -> None:
    findings = [
        Finding(rule, "warning", f"n{node:02d}", subject.format(node), "so", action.format(node)) for node in range(24)
    ]
    assert [len(one.nodes) for one in stories_of([], findings, FLEET)] == [24]


def test_different_filesystems_are_different_problems() -> None:
    findings = [
        Finding("fs.full", "warning", f"n{node:02d}", mount, f"{mount} is full")
        for node in range(8)
        for mount in ("/ckpt", "/scratch")
    ]
    assert [len(one.nodes) for one in stories_of([], findings, FLEET)] == [8, 8]


def test_names_fold_whatever_they_are() -> None:
    assert folded_names(("n1", "n2", "n10")) == "n[1-2,10]"
    assert "@x" in folded_names(("@x", "y"))


def test_a_finding_without_a_name_or_a_message_has_its_rule() -> None:
    hot = Finding("gpu.x", "critical", "n1", "gpu 3", "hot [red]", "cool it", since=1.0, folded=["a", "b"])
    (one,) = stories_of([], [hot], FLEET)
    assert (one.who, plain(one.what), one.key, one.since) == ("n1", "hot [red] (+2 findings)", "n1/gpu.x/gpu 3", 1.0)
    assert one.headline == "n1: hot [red] (+2 findings)"
    for scope in (FLEET, ONE):
        (one,) = stories_of([], [Finding("some.id", "warning", "", "", "")], scope)
        assert (one.who, plain(one.what)) == ("–", "some.id")
