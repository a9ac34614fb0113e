"""Logs of dead jobs, each with an answer that is older than mltop's: modelled on public threads by an expert
(tests/fixtures/threads), and recorded from real launchers with what was done to the job (tests/fixtures/launchers:
``programs/`` is what ran, ``how`` in ``expect.json`` the command).

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

FOLDERS = [ROOT / "tests" / "fixtures" / name for name in ("threads", "launchers")]
_PROGRAMS = "programs"


@cache
def expected() -> dict[Path, dict[str, Any]]:
    found: dict[Path, dict[str, Any]] = {}
    for folder in FOLDERS:
        found |= {folder / name: wanted for name, wanted in json.loads((folder / "expect.json").read_text()).items()}
    return found


def test_every_one_has_an_answer() -> None:
    there = {path for folder in FOLDERS for path in folder.iterdir() if path.is_dir() and path.name != _PROGRAMS}
    assert there == expected().keys()


@pytest.mark.parametrize("case", sorted(expected()), ids=lambda case: case.name)
def test_the_experts_answer(case: Path) -> None:
    wanted = expected()[case]
    found = explain([str(case)], lambda _: None)
    incidents = [job.incident for job in found.jobs if job.incident is not None]
    culprits = [culprit for incident in incidents for culprit in incident.culprits]
    named = sorted({culprit.rank for culprit in culprits if culprit.rank is not None})
    assert named in [wanted["ranks"], *wanted.get("ranks_also", [])], [incident.headline for incident in incidents]
    assert exit_code(found) in wanted["exit"], [incident.headline for incident in incidents]
    if "node" in wanted:
        assert any(culprit.node.startswith(wanted["node"]) for culprit in culprits)
    shown = repr(found.jobs)
    assert not incidents or any(re.search(word, shown, re.IGNORECASE) for word in wanted["words"])


def test_links_out_of_the_folders_file_system_are_not_read(tmp_path: Path) -> None:
    """Reading /proc/kmsg takes lines away from others, and a file of another process is nobody's log."""
    (tmp_path / "a.log").write_text("step 1 loss 2\n")
    (tmp_path / "kernel.log").symlink_to("/proc/self/status")
    (tmp_path / "system").symlink_to("/proc/self")
    found = explain([str(tmp_path)], lambda _: None)
    assert [file.path for file in found.files] == [f"{tmp_path}/a.log"]
    assert {gap.item for gap in found.gaps} == {f"{tmp_path}/kernel.log", f"{tmp_path}/system"}
