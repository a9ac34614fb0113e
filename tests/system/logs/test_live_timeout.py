"""A real gloo job whose collective times out while mltop watches it: logs, deaths and stacks agree on who it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.terminal import Terminal
from tests.waiting import wait_until

TIMEOUT_S, CULPRIT = 20, 1
MOST_AFTER_S = 15.0  # two to three seconds where nothing else runs; what is left of a job on NCCL is a minute
TRAIN = f"""
import datetime, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={TIMEOUT_S}))
values = torch.ones(10)
for step in range(100_000):
    if dist.get_rank() == {CULPRIT} and os.path.exists("hang"):
        open("hung", "w").close()
        time.sleep(3600)
    dist.all_reduce(values)
    time.sleep(0.1)
"""
# A job whose processes live on after the first timeout, as they do with NCCL for a minute: what times out is its
# heartbeat, a group of its own. Only then does each rank leave its flight record, as torch's heartbeat threads do.
LIVES_ON = f"""
import datetime, logging, os, threading, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
beats = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds={TIMEOUT_S}))
rank, loading = dist.get_rank(), threading.Lock()

def beat():
    while True:
        with loading:
            pass
        try:
            dist.barrier(group=beats)
        except RuntimeError:
            logging.exception("no heartbeat")
            open("timed_out", "w").close()
            return
        time.sleep(0.5)

def record():
    while not os.path.exists("timed_out"):
        time.sleep(0.5)
    place = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank)
    with open(place + ".part", "wb") as out:
        out.write(_dump_fr_trace())
    os.rename(place + ".part", place)

def read_shard():
    with loading:
        open("hung", "w").close()
        time.sleep(3600)

threading.Thread(target=beat, daemon=True).start()
threading.Thread(target=record, daemon=True).start()
values = torch.ones(10)
dist.all_reduce(values)
_dump_fr_trace()  # the first time torch looks up its libraries' symbols, which takes a busy machine long
for step in range(100_000):
    if rank == {CULPRIT} and os.path.exists("hang"):
        read_shard()
    dist.all_reduce(values)
    time.sleep(0.1)
"""


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Three ranks, each writes to a file of its own; what they run is the fixture's parameter."""
    (tmp_path / "train.py").write_text(request.param)
    port = free_port()
    (tmp_path / "name").write_text(f"127.0.0.1:{port}")
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    shared |= {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_")}
    with ExitStack() as stack:
        for rank in range(3):
            out = stack.enter_context((tmp_path / f"rank{rank}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "train.py"],
                cwd=tmp_path,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=out,
                stderr=out,
            )
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
        yield tmp_path


def captured(job: Path, terminal: Terminal) -> dict[str, Any]:
    """The job's incident in the capture that its standing still has made."""
    captures = job / "captures"
    terminal.wait_for("works", 120)
    (job / "hang").touch()
    wait_until((job / "hung").exists, 60, "the hang")
    (manifest,) = wait_until(lambda: list(captures.glob("*/manifest.json")), 120, "a capture")
    written = wait_until(lambda: complete(manifest.parent / "incidents.json"), 120, "its end")
    (incident,) = [one for one in written if one["job"] == (job / "name").read_text()]
    assert [culprit["rank"] for culprit in incident["culprits"]] == [CULPRIT]
    assert "train.py" in incident["culprits"][0]["where"]
    return incident


@contextmanager
def watching(job: Path) -> Iterator[Terminal]:
    argv = [sys.executable, "-m", "mltop", "--capture-on-hang", str(job / "captures")]
    with Terminal(argv, env={"XDG_STATE_HOME": str(job / "state")}) as terminal:
        yield terminal


def of_source(incident: dict[str, Any], source: str) -> list[dict[str, Any]]:
    return [line for line in incident["evidence"] if line["source"] == source]


@pytest.mark.parametrize("job", [TRAIN], indirect=True, ids=["dies"])
def test_the_first_line_of_a_timeout_has_the_job_captured_and_names_who_is_waited_for(job: Path) -> None:
    with watching(job) as terminal:
        said = [line["text"] for line in of_source(captured(job, terminal), "log")]
        assert said and all(f"Timed out waiting {TIMEOUT_S}000ms" in text for text in said)
        terminal.wait_for(f"rank {CULPRIT}", 60)


@pytest.mark.parametrize("job", [LIVES_ON], indirect=True, ids=["lives on"])
def test_log_recorder_and_stacks_agree_on_who_is_waited_for(job: Path) -> None:
    with watching(job) as terminal:
        incident = captured(job, terminal)
    said = [line["text"] for line in of_source(incident, "log")]
    assert said and all(f"Timed out waiting {TIMEOUT_S}000ms" in text for text in said)
    assert any(
        f"rank {CULPRIT} not in a collective: read_shard" in line["text"] for line in of_source(incident, "stacks")
    )
    recorded = [line["text"] for line in of_source(incident, "flight_recorder")]
    assert any(text.startswith(f"rank {CULPRIT} has not entered all_reduce ") for text in recorded), incident[
        "evidence"
    ]
    assert not any("one of the two" in text for text in recorded)
    assert incident["confidence"] != "low"
    (verdict,) = (job / "captures").glob("*/verdict.json")
    (told,) = [one for one in json.loads(verdict.read_text())["jobs"] if one["job"] == incident["job"]]
    assert {(one["kind"], *one["culprits"]) for one in told["progress"]} == {("never_entered", CULPRIT)}
    first_line = (job / "timed_out").stat().st_mtime
    rounds = [one for path in (job / "captures").glob("*/stacks/*/*.json") for one in json.loads(path.read_text())]
    after_s = min(one["taken_at"] for one in rounds) - first_line
    print(f"the first stack was taken {after_s:.1f} s after the log's first line")
    assert after_s < MOST_AFTER_S


def complete(path: Path) -> list[dict[str, Any]]:
    """What a capture has written whole."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return found
