"""A real gloo job whose collective times out while mltop watches it: logs, deaths and stacks agree on who it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.terminal import Terminal
from tests.waiting import wait_until

TIMEOUT_S, CULPRIT = 20, 1
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


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """Three ranks, each writes to a file of its own."""
    (tmp_path / "train.py").write_text(TRAIN)
    port = free_port()
    (tmp_path / "name").write_text(f"127.0.0.1:{port}")
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
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


def test_the_first_line_of_a_timeout_has_the_job_captured_and_names_who_is_waited_for(job: Path) -> None:
    captures = job / "captures"
    argv = [sys.executable, "-m", "mltop", "--capture-on-hang", str(captures)]
    with Terminal(argv, env={"XDG_STATE_HOME": str(job / "state")}) as terminal:
        terminal.wait_for("works", 60)
        (job / "hang").touch()
        wait_until((job / "hung").exists, 60, "the hang")
        (manifest,) = wait_until(lambda: list(captures.glob("*/manifest.json")), 120, "a capture")
        written = wait_until(lambda: complete(manifest.parent / "incidents.json"), 120, "its end")
        (incident,) = [one for one in written if one["job"] == (job / "name").read_text()]
        assert [culprit["rank"] for culprit in incident["culprits"]] == [CULPRIT]
        assert "train.py" in incident["culprits"][0]["where"]
        said = [line["text"] for line in incident["evidence"] if line["source"] == "log"]
        assert said and all(f"Timed out waiting {TIMEOUT_S}000ms" in text for text in said)
        terminal.wait_for(f"rank {CULPRIT}", 60)


def complete(path: Path) -> list[dict[str, Any]]:
    """What a capture has written whole."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return found
