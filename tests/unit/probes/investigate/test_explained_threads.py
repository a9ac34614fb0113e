"""Logs modelled on public threads (tests/fixtures/threads), each with an expert's answer that is older than mltop's.

``expect.json``: who may be named (``ranks``, or one of ``ranks_also``), words of which one must be shown, exit codes.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mltop.probes.investigate.explain import explain
from mltop.tui.commands.explain import exit_code
from tests.documents import ROOT

THREADS = ROOT / "tests" / "fixtures" / "threads"


@cache
def expected() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((THREADS / "expect.json").read_text())
    return found


def test_every_one_has_an_answer() -> None:
    assert {path.name for path in THREADS.iterdir() if path.is_dir()} == expected().keys()


@pytest.mark.parametrize("name", sorted(expected()))
def test_the_experts_answer(name: str) -> None:
    wanted = expected()[name]
    found = explain([str(THREADS / name)], lambda _: None)
    incidents = [job.incident for job in found.jobs if job.incident is not None]
    culprits = [culprit for incident in incidents for culprit in incident.culprits]
    named = sorted({culprit.rank for culprit in culprits if culprit.rank is not None})
    assert named in [wanted["ranks"], *wanted.get("ranks_also", [])], [incident.headline for incident in incidents]
    assert exit_code(found) in wanted["exit"], [incident.headline for incident in incidents]
    if "node" in wanted:
        assert any(culprit.node.startswith(wanted["node"]) for culprit in culprits)
    shown = [incident.headline for incident in incidents]
    shown += [culprit.reason for culprit in culprits]
    shown += [evidence.text for incident in incidents for evidence in incident.evidence]
    assert not incidents or any(re.search(word, text, re.IGNORECASE) for word in wanted["words"] for text in shown)


def test_links_out_of_the_folders_file_system_are_not_read(tmp_path: Path) -> None:
    """Reading /proc/kmsg takes lines away from others, and a file of another process is nobody's log."""
    (tmp_path / "a.log").write_text("step 1 loss 2\n")
    (tmp_path / "kernel.log").symlink_to("/proc/self/status")
    (tmp_path / "system").symlink_to("/proc/self")
    found = explain([str(tmp_path)], lambda _: None)
    assert [file.path for file in found.files] == [f"{tmp_path}/a.log"]
    assert {gap.item for gap in found.gaps} == {f"{tmp_path}/kernel.log", f"{tmp_path}/system"}
