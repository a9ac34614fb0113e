"""Which of a rank's processes are its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from mltop.probes.collect.stacks.dump import children_of, waits_for_child
from mltop.probes.system import paths
from tests.fakes.proctree import ProcTree


@pytest.mark.parametrize(
    "module",
    [
        "multiprocessing.resource_tracker",
        "multiprocess.resource_tracker",
        "loky.backend.resource_tracker",
        "joblib.externals.loky.backend.resource_tracker",
    ],
)
def test_what_looks_after_workers_is_none(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SYSROOT", str(tmp_path))
    tree = ProcTree(tmp_path)
    tree.python(20, "train.py")
    tree.python(50, "-c", f"from {module} import main; main(11, False)", ppid=20)
    tree.python(51, "-m", "worker", ppid=20)
    assert children_of(20, [50, 51]).python == [51]


@pytest.mark.parametrize("package", ["loky", "joblib/externals/loky"])
def test_a_job_of_loky_is_waited_for(package: str) -> None:
    thread = {
        "frames": [
            {
                "name": "wait",
                "filename": f"/venv/lib/python3.11/site-packages/{package}/process_executor.py",
                "line": 3,
            },
            {"name": "train", "filename": "/home/ada/train.py", "line": 9},
        ]
    }
    assert waits_for_child(thread)
