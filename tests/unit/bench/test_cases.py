"""The table of cases: its rows fit their scripts, and what mltop says is held against them strictly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.bench import bench_cases
from tests.bench.cases.data import BY_NAME, CASES, JOBS, TRAIN, Case, place
from tests.bench.cases.judged import judge
from tests.bench.cases.stage import Seen
from tests.bench.cases.words import markdown, summary

# Issue 12, "Must show".
FRAMEWORKS = {
    *("HF Trainer", "accelerate", "Lightning", "FSDP2", "DCP", "DeepSpeed", "Ray Train", "mp.spawn"),
    *("mpirun torch", "mpi4py", "JAX", "torchrun"),
}


def culprit(rank: int | None, where: str = "f (a.py:1)", pid: int = 7) -> dict[str, Any]:
    return {"rank": rank, "node": "n", "pid": pid, "reason": "is stuck", "where": where}


def verdict(kind: str, *culprits: dict[str, Any], stragglers: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    said = {"kind": kind, "culprits": list(culprits), "stragglers": list(stragglers), "evidence": ["3 wait"]}
    return {"job": "j", "error": "", "verdict": {**said, "confidence": "high", "gaps": []}}


def seen(*jobs: dict[str, Any], **more: Any) -> Seen:
    return Seen(moment=1000.0, pid=7, stacks={"jobs": list(jobs)}, stacks_s=6.0, **more)


def told_place(case: Case) -> str:
    wanted = place(case.fault)
    assert wanted is not None
    return f"Rows.{wanted.function} (jobs/{wanted.file}:{wanted.lines[-1]})"


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_row_fits_its_script(case: Case) -> None:
    for launch in (*case.jobs, *([case.outside] if case.outside else [])):
        scripts = [word for word in launch.words if word.endswith(".py")]
        assert len(scripts) == 1
        script = TRAIN if scripts[0] == str(TRAIN) else JOBS / scripts[0].removeprefix("{jobs}/")
        assert script.is_file()
        if launch.mode and launch.mode not in ("healthy", "slow", "init", "finished", "accumulate"):
            assert any(
                f'"{launch.mode}"' in path.read_text()
                for path in (script, JOBS / "rows.py", JOBS / "ddp.py", JOBS / "crash.py")
            )
    if case.fault:
        assert place(case.fault)
    assert (case.culprit in range(max(job.ranks for job in case.jobs))) == (
        case.truth != "healthy" or case.culprit >= 0
    )


def test_every_framework_hangs_and_is_well_once() -> None:
    for framework in FRAMEWORKS:
        truths = {case.truth for case in CASES if case.framework == framework and case.group == "frameworks"}
        assert truths == {"hang", "healthy"}, framework


def test_every_crash_is_played_torn_down_and_bare() -> None:
    for mode in ("kill", "oom", "segfault", "exception", "disk"):
        assert {f"{mode} {how}" for how in ("torchrun", "mp.spawn", "bare")} <= BY_NAME.keys()


def test_packages_are_pinned() -> None:
    lines = (JOBS.parent / "requirements.txt").read_text().splitlines()
    pinned = {line.partition("=")[0].partition("[")[0] for line in lines if "==" in line and not line.startswith("#")}
    assert {package for case in CASES for package in case.packages} <= pinned


def test_the_right_rank_at_the_right_line_is_right() -> None:
    case = BY_NAME["torchrun loader"]
    row = judge(case, seen(verdict("hang", culprit(2, told_place(case)))))
    assert (row.outcome, row.place, row.ranks, row.confidence) == ("right", True, (2,), "high")


def test_another_line_is_told_apart() -> None:
    case = BY_NAME["torchrun loader"]
    assert judge(case, seen(verdict("hang", culprit(2)))).place is False


@pytest.mark.parametrize(
    ("name", "jobs", "outcome"),
    [
        ("torchrun loader", [verdict("hang", culprit(1))], "WRONG"),
        ("torchrun loader", [verdict("hang", culprit(1), culprit(2))], "WRONG"),
        ("torchrun loader", [verdict("hang")], "unnamed"),
        ("torchrun loader", [verdict("moving", culprit(2))], "unnamed"),
        ("torchrun loader", [], "unnamed"),
        ("torchrun loader", [verdict("suspect", culprit(2))], "right"),
        ("Ray Train loader", [verdict("hang", culprit(None))], "right"),  # by its pid
        ("Ray Train loader", [verdict("hang", culprit(None, pid=8))], "WRONG"),
        ("two jobs", [verdict("hang", culprit(2)), verdict("hang", culprit(1))], "WRONG"),
        ("j straggler", [verdict("straggler", stragglers=(culprit(2),))], "right"),
        ("j straggler", [verdict("straggler", stragglers=(culprit(0),))], "WRONG"),
        ("half, culprit elsewhere", [verdict("unclear")], "right"),
        ("half, culprit elsewhere", [verdict("hang", culprit(0))], "WRONG"),
        ("stale lock", [verdict("moving")], "unnamed"),
        ("stale lock", [verdict("hang")], "right"),
        ("healthy save", [verdict("moving")], "right"),
        ("healthy save", [], "unnamed"),
        ("healthy finished", [], "right"),
        ("healthy save", [verdict("suspect", culprit(0))], "suspected"),
        ("healthy save", [verdict("hang", culprit(0))], "ACCUSED"),
        ("healthy save", [verdict("hang")], "ACCUSED"),
    ],
)
def test_outcomes(name: str, jobs: list[dict[str, Any]], outcome: str) -> None:
    assert judge(BY_NAME[name], seen(*jobs)).outcome == outcome


def test_incidents_of_the_watcher_count_too() -> None:
    incident = {
        "kind": "crash",
        "headline": "rank 2 was killed by SIGKILL",
        "culprits": [culprit(2)],
        "confidence": "high",
        "first_at": 1002.5,
    }
    row = judge(BY_NAME["kill bare"], seen(incidents=[incident], quiet_at=1011.0))
    assert (row.outcome, row.incident_s, row.quiet_s) == ("right", 2.5, 11.0)
    oom = {**incident, "headline": "kernel killed python (7) for lack of memory; rank 2 died"}
    of_others = {**incident, "headline": "kernel killed python (99) for lack of memory; rank 2 died"}
    assert judge(BY_NAME["kill bare"], seen(incidents=[oom])).outcome == "WRONG"
    assert judge(BY_NAME["oom bare"], seen(incidents=[oom])).outcome == "right"
    assert judge(BY_NAME["oom bare"], seen(incidents=[of_others])).outcome == "WRONG"
    assert judge(BY_NAME["torchrun skip"], seen(incidents=[oom])).outcome == "WRONG"
    assert judge(BY_NAME["healthy save"], seen(incidents=[{**incident, "culprits": []}])).outcome == "ACCUSED"


def test_what_was_not_played_is_no_success() -> None:
    row = judge(BY_NAME["kill bare"], Seen(problem="the job ended at once"))
    assert row.outcome == "not played"
    assert "right in 0 of 0" in summary([row]) and "not played: kill bare" in summary([row])


def test_the_table_says_what_was_told() -> None:
    case = BY_NAME["torchrun loader"]
    text = markdown([judge(case, seen(verdict("hang", culprit(2, told_place(case)))))])
    assert "| torchrun loader | torchrun | 3 | rank 2 | hang rank 2 high, place right:" in text
    assert "right in 1 of 1 (100 %" in text


def test_what_was_not_watched_is_not_said_to_be_nothing() -> None:
    case = BY_NAME["torchrun loader"]
    told = {"kind": "hang", "headline": "rank 2 stands", "culprits": [culprit(2)], "confidence": "high"}
    of_outside, of_stacks = [{**told, "first_at": 1060.4}], [{**told, "first_at": 1018.0}]
    watched = judge(case, seen(watched=True, quiet_at=1010.5, incidents=of_outside, with_stacks=of_stacks))
    plain, well = judge(case, seen(verdict("hang", culprit(2)))), judge(BY_NAME["healthy save"], seen(watched=True))
    assert "| – | – | – | 6 |" in markdown([well])
    assert "| not watched | not watched | not watched | 6 |" in markdown([plain])
    assert "| 10 | 60 | 18 | 6 |" in markdown([watched])
    assert "median of each hang: stalled? 10 s (longest 10; 1 of 1), incident 60 s" in summary([watched, well])


def test_cases_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_cases.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CASES)


def test_cases_are_chosen_by_name_framework_and_group() -> None:
    assert [case.name for case in bench_cases.selected(["a"])] == ["a sleep_in_dataset"]
    assert {case.framework for case in bench_cases.selected(["Ray Train"])} == {"Ray Train"}
    assert {case.group for case in bench_cases.selected(["crashes"])} == {"crashes"}
    with pytest.raises(SystemExit, match="no such case"):
        bench_cases.selected(["nothing"])


def test_what_was_kept_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, accused in (("torchrun loader", 2), ("torchrun skip", 0)):
        folder = bench_cases.directory_of(BY_NAME[name], tmp_path)
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps(asdict(seen(verdict("hang", culprit(accused))))))
    assert bench_cases.main(["torchrun loader", "--kept", str(tmp_path)]) == 0
    table = tmp_path / "table.md"
    assert bench_cases.main(["torchrun", "--kept", str(tmp_path), "--markdown", str(table)]) == 1
    assert "wrong: 1" in capsys.readouterr().out
    assert "| torchrun skip | torchrun | 3 | rank 2 | hang rank 0 high" in table.read_text()
