"""Signals in words: what becomes of a core, what a rank would do, what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from mltop.probes.investigate.acting import RankProcess
from mltop.probes.investigate.ras import RasPlan
from mltop.probes.model import JobKey
from mltop.probes.model.acts import SENT, SIGNALS, SignalFacts, SignalName, SignalOutcome, SignalResult
from mltop.probes.model.sample import UNLIMITED
from mltop.probes.model.text import make_plain
from mltop.tui.render.acts import (
    MENU,
    core_words,
    effect,
    menu_lines,
    question_lines,
    ras_lines,
    results_words,
)
from mltop.tui.render.cells import plain
from tests.spoiled import NASTY

GIB = 1 << 30
SYSTEMD = "|/usr/lib/systemd/systemd-coredump %P %u %g"
APPORT = "|/usr/share/apport/apport -p%p -s%s"


def facts(pattern: str | None = "core", limit: int | None = UNLIMITED, **more: object) -> SignalFacts:
    return SignalFacts(7, core_pattern=pattern, core_limit_bytes=limit, **{"core_bytes": 65 * GIB, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (facts(SYSTEMD), "a core of ~65 GiB goes to systemd-coredump"),
        (facts(SYSTEMD, 0), "no core: its limit is 0 (ulimit -c)"),
        (facts(APPORT, 0), "a core of ~65 GiB goes to apport"),
        (facts("core"), "a core of ~65 GiB goes to core in its working directory"),
        (facts("core", 0), "no core: its limit is 0 (ulimit -c)"),
        (facts("/scratch/core.%p", GIB), "a core of ~65 GiB goes to /scratch/core.%p, cut off at 1 GiB (ulimit -c)"),
        (facts("/scratch/core.%p", 99 * GIB), "a core of ~65 GiB goes to /scratch/core.%p"),
        (facts("", UNLIMITED), "no core: core_pattern is empty"),
        (facts(SYSTEMD, dumpable="no"), "no core: the process is not dumpable"),
        (facts("core", dumpable="root"), "no core: the process is not dumpable"),
        (facts(SYSTEMD, dumpable="root"), "a core of ~65 GiB goes to systemd-coredump"),
        (facts(SYSTEMD, core_bytes=None), "a core of unknown size goes to systemd-coredump"),
        (facts("core", None), "a core of ~65 GiB goes to core in its working directory"),
        (facts(None), "where its core would go is unknown: core_pattern cannot be read"),
        (facts("|"), "a core of ~65 GiB goes to | in its working directory"),
    ],
)
def test_what_becomes_of_a_core(known: SignalFacts, words: str) -> None:
    assert core_words(known) == words


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("USR1", facts(), "has no handler for it: this ends it"),
        ("USR1", facts(caught=["USR1"]), ""),
        ("TERM", facts(), ""),
        ("TERM", facts(ignored=["TERM"]), "ignores it: nothing will happen"),
        ("TERM", facts(blocked=["TERM"]), "blocks it: it may take it later, or never"),
        ("KILL", facts(ignored=["KILL"], blocked=["KILL"]), ""),
        ("ABRT", facts("core", 0), "no core: its limit is 0 (ulimit -c)"),
        ("TERM", None, "what it would do with it could not be learned"),
        ("TERM", SignalFacts(7, why="gone"), "what it would do with it could not be learned"),
    ],
)
def test_what_a_rank_would_do(name: SignalName, known: SignalFacts | None, words: str) -> None:
    assert effect(name, known) == words


def rank(number: int, node: str = "n1") -> RankProcess:
    return RankProcess(node, 100 + number, 1.0, number, "4711", "ada", "/usr/bin/python3 train.py")


def text(lines: list[list[object]]) -> str:
    return "\n".join(plain(line) for line in lines)  # type: ignore[arg-type]


def test_the_question_names_host_pid_rank_job_user_and_signal() -> None:
    asked = text(question_lines([rank(2)], {}, "KILL", 70))
    for word in ("SIGKILL", "rank 2", "pid 102", "n1", "job 4711", "user ada", "train.py"):
        assert word in asked


def test_many_are_counted_and_the_rest_told_together() -> None:
    ranks = [rank(number, f"n{number % 4}") for number in range(20)]
    asked = text(question_lines(ranks, {}, "TERM", 100))
    assert "Send SIGTERM to 20 ranks?" in asked and "and 14 more: ranks 6-19 on n[0-3], user ada" in asked
    assert len(asked.splitlines()) < 14


def test_no_text_of_a_job_hides_the_rest_of_the_question() -> None:
    """Whoever starts a job names it, and chooses the command line."""
    long = f"{NASTY}{' x' * 8000}"
    ranks = [RankProcess("n1", 100 + number, 1.0, number, f"j{long}", f"u{long}", f"c{long}") for number in range(9)]
    known = {each.key: facts(f"/c{long}") for each in ranks}
    known = {key: make_plain(each) for key, each in known.items()}
    for width in (36, 72):
        asked = question_lines(ranks, known, "ABRT", width)
        assert "a core of ~65 GiB goes to /c" in " ".join(text(asked[:4]).split())
        for lines in (asked, menu_lines(ranks, known, MENU.index("ABRT"), width)):
            assert len(lines) * width < 4000
            shown = " ".join(text(lines).split())
            assert "pid 105 on n1" in shown and "and 3 more: ranks 6-8 on n1" in shown


def test_the_user_is_told_before_what_the_user_has_written() -> None:
    asked = text(question_lines([RankProcess("n1", 7, 1.0, 0, "x, user root", "eve", "y, user root")], {}, "KILL", 200))
    assert "rank 0, pid 7 on n1: user eve, job x, user root, y, user root" in asked


def test_the_name_of_a_job_and_a_version_leave_the_question_about_ras_as_it_is() -> None:
    plan = RasPlan(JobKey(f"j{NASTY * 200}", None), "n1", 4, 1, f"2.30.7{NASTY * 200}")
    for asked in (ras_lines(plan, 72), ras_lines(replace(plan, is_old=True), 72)):
        assert len(asked) < 20 and all(plain(line).isprintable() for line in asked)
        assert "A crash ends the job." in " ".join(text(asked).split())


def test_effects_are_told_once() -> None:
    ranks = [rank(0), rank(1), rank(2)]
    known = {ranks[0].key: facts(caught=["USR1"]), ranks[1].key: facts(), ranks[2].key: facts()}
    assert "2 of 3: has no handler for it: this ends it" in text(menu_lines(ranks, known, MENU.index("USR1"), 100))


def words_of(number: int, result: SignalResult) -> str:
    return results_words("TERM", [rank(number)], {rank(number).key: result})[0]


def test_every_outcome_has_its_words() -> None:
    outcomes = get_args(SignalOutcome)
    said = {outcome: words_of(2, SignalResult(102, outcome)) for outcome in outcomes}
    assert len(set(said.values())) == len(outcomes)
    for outcome, words in said.items():
        assert words.startswith("SIGTERM to rank 2, pid 102 on n1: ")
        assert ("not sent" in words) == (outcome not in (*SENT, "unknown"))


@pytest.mark.parametrize(("state", "words"), [("D", "state D"), ("T", "(CONT)"), ("S", "it goes on")])
def test_one_that_goes_on_says_why(state: str, words: str) -> None:
    assert words in words_of(0, SignalResult(100, "sent", state))


def test_results_of_many_are_counted() -> None:
    ranks = [rank(0), rank(1), rank(2)]
    results = {each.key: SignalResult(each.pid, "ended") for each in ranks}
    results[ranks[2].key] = SignalResult(102, "gone")
    assert results_words("KILL", ranks, results) == (
        "SIGKILL to 3 ranks: 2: it ended; 1: not sent, it had ended",
        "warn",
    )


def test_the_menu_has_every_signal() -> None:
    assert sorted(MENU) == sorted(SIGNALS)
