"""`mltop explain` as a user meets it: exit codes, JSON, what is printed, what is refused."""

from __future__ import annotations

import io
import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mltop.probes.investigate.explain import Reading
from mltop.probes.investigate.explain import explain as investigated
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app import output
from mltop.tui.commands import explain
from tests.builders.job_logs import case, write

CRASH = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/a.py", line 1, in f\n[rank{0}]: {1}\n'
LOST = "torch.distributed.DistBackendError: NCCL error in: x, connection closed"


def job(folder: Path, *errors: str) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, error in enumerate(errors):
        (folder / f"rank_{rank}.log").write_text("step 1\n" + (CRASH.format(rank, error) if error else ""))
    return folder


def run(*paths: Path | str, capsys: pytest.CaptureFixture[str], **more: bool) -> tuple[int, str]:
    code = explain.run(TargetOptions(), paths=list(map(str, paths)), as_json=more.pop("as_json", False), **more)
    output.flush()
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("errors", "code", "words"),
    [
        (("", "ValueError: no", ""), 1, "rank 1 failed first: ValueError: no, in f (/a.py:1)"),
        ((LOST, LOST, LOST), 3, "cannot tell who failed first"),
        (("", "", ""), 3, "cannot tell what became of it: neither a failure nor a good end is in these files"),
    ],
)
def test_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], errors: tuple[str, ...], code: int, words: str
) -> None:
    told, text = run(job(tmp_path / "logs", *errors), capsys=capsys)
    assert told == code
    assert words in " ".join(text.split())


def test_stopped_from_outside_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs", "", "")
    (folder / "slurm.err").write_text(
        "slurmstepd: error: *** JOB 9 ON n7 CANCELLED AT 2026-11-03T10:00:00 DUE TO TIME LIMIT ***\n"
    )
    code, text = run(folder, capsys=capsys)
    assert code == 0
    assert "stopped from outside: Slurm's time limit ended it" in " ".join(text.split())


def test_json_is_as_it_is_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs", LOST, "ValueError: no", LOST)
    code, text = run(folder, as_json=True, capsys=capsys)
    told = json.loads(text)
    assert code == told["exit"] == 1
    assert told["schema"] == 1
    assert told["coverage"] == 1.0
    assert sorted(file["file"] for file in told["files"]) == [str(folder / f"rank_{rank}.log") for rank in range(3)]
    (of_job,) = told["jobs"]
    assert [culprit["rank"] for culprit in of_job["incident"]["culprits"]] == [1]
    assert of_job["incident"]["kind"] == "crash"
    assert of_job["incident"]["evidence"][0]["where"] == f"{folder}/rank_1.log:4"
    assert [end["rank"] for end in of_job["ranks"]] == [0, 1, 2]
    first = of_job["ranks"][0]
    assert {"rank", "node", "death", "enqueued", "completed", "last_line_at", "file"} <= first.keys()
    assert first["death"]["how"] == "exit"


def test_several_jobs_have_the_gravest_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path / "a", "", "ValueError: no")
    job(tmp_path / "b", LOST, LOST)
    code, text = run(tmp_path, capsys=capsys)
    assert code == 3
    assert text.count("job ") >= 2


def test_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(CRASH.format(rank, LOST) for rank in (0, 2)) + CRASH.format(1, "ValueError: no")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, told = run("-", capsys=capsys)
    assert code == 1
    assert "rank 1" in told


@pytest.mark.parametrize("what", ["no paths", "missing", "binary", "empty folder", "nodes"])
def test_bad_usage_is_one_sentence(tmp_path: Path, what: str) -> None:
    (tmp_path / "binary.log").write_bytes(b"\0" * 5000)
    (tmp_path / "empty").mkdir()
    paths = {
        "missing": ["nowhere"],
        "binary": [str(tmp_path / "binary.log")],
        "empty folder": [str(tmp_path / "empty")],
    }
    options = TargetOptions(nodes=("n1",)) if what == "nodes" else TargetOptions()
    with pytest.raises(UsageProblem):
        explain.run(options, paths=paths.get(what, []), as_json=False)


def test_nothing_secret_and_no_escape_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(
        tmp_path / "logs", "", "ValueError: HF_TOKEN=hf_abcdefghijABCDEFGHIJ1234 \x1b[2J\x1b]0;owned\x07 is wrong"
    )
    for as_json in (False, True):
        _, text = run(folder, as_json=as_json, capsys=capsys)
        assert "hf_abcdefghij" not in text
        assert "\x1b]" not in text
        assert "owned" not in text


def test_interrupted_it_says_what_it_knows(tmp_path: Path) -> None:
    folder = job(tmp_path / "logs", LOST, "ValueError: no", LOST, "")

    def interrupt(reading: Reading) -> None:
        if reading.files_done == 3:
            raise KeyboardInterrupt

    found = investigated([str(folder)], interrupt)
    assert not found.is_whole
    (told,) = found.jobs
    assert told.incident is not None
    assert [culprit.rank for culprit in told.incident.culprits] == [1]


@pytest.mark.parametrize(
    ("job_id", "words"), [("x", "is not a Slurm job id"), ("7", "Slurm's sacct is not on this machine")]
)
def test_a_job_that_slurm_cannot_be_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str, words: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageProblem, match=words):
        explain.run(TargetOptions(job=job_id), paths=[], as_json=False)


def test_a_rank_that_cannot_be_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [CRASH.format(99999999, "ValueError: no"), "n7:1:2 [0] NCCL INFO comm rank 0 nranks 99999999\n"]
    (tmp_path / "a.log").write_text("".join(lines))
    code, text = run(tmp_path / "a.log", as_json=True, capsys=capsys)
    assert code in (1, 3)
    assert len(json.loads(text)["jobs"][0]["ranks"]) <= 1 << 17


def test_bent_logs_are_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logs with bytes changed, doubled and left out."""
    rng = random.Random(7)
    for number in range(15):
        folder = tmp_path / str(number)
        write(replace(case(number), packed=""), folder)
        for path in folder.rglob("*"):
            data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
            for _ in range(20 if data else 0):
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(4)))
            if path.is_file():
                path.write_bytes(bytes(data))
        code, text = run(folder, as_json=True, capsys=capsys)
        assert code in (0, 1, 3)
        json.loads(text)
