"""What `mltop doctor` says of one node, on copied trees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
sys.path += json.loads(sys.argv[1])
from mltop.probes.collect import abilities
print(json.dumps({name: vars(getattr(abilities, name)()) for name in sys.argv[2:]}))
"""


def checks(sysroot: Path, *names: str, isolated: bool = False) -> dict[str, dict[str, str]]:
    """``isolated``: in an interpreter without installed packages."""
    path = [entry for entry in sys.path if entry and not (isolated and entry.endswith("site-packages"))]
    flags = ["-I", "-S"] if isolated else []
    done = subprocess.run(
        [sys.executable, *flags, "-c", PROGRAM, json.dumps(path), *names],
        env={**os.environ, "MLTOP_SYSROOT": str(sysroot)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def test_a_driver_that_proc_does_not_show_may_be_hidden(tmp_path: Path) -> None:
    check = checks(tmp_path, "check_driver")["check_driver"]
    assert check["state"] == "warning"
    assert check["why"].endswith(
        "/proc/driver/nvidia/version is not there: the kernel module is not loaded, or hidden from this container"
    )


def test_the_driver_version(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\nGCC version: 12\n")
    check = checks(tmp_path, "check_driver")["check_driver"]
    assert (check["state"], check["why"]) == ("ok", "NVIDIA UNIX x86_64 Kernel Module  570.86.15")


def test_torch_is_optional(tmp_path: Path) -> None:
    check = checks(tmp_path, "check_torch", isolated=True)["check_torch"]
    assert (check["state"], check["why"]) == ("ok", "not in this Python: `mltop demo` uses a stand-in job")


def test_py_spy_that_comes_over_the_connection_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLTOP_PY_SPY", raising=False)
    monkeypatch.delenv("MLTOP_CACHE", raising=False)
    assert checks(tmp_path, "no_py_spy")["no_py_spy"]["state"] == "missing"
    monkeypatch.setenv("MLTOP_CACHE", str(tmp_path))
    check = checks(tmp_path, "no_py_spy")["no_py_spy"]
    assert (check["state"], check["why"]) == ("ok", "not here yet: it is sent when stacks are first asked for")
    monkeypatch.setenv("MLTOP_PY_SPY", "/no/such/py-spy")
    assert checks(tmp_path, "no_py_spy")["no_py_spy"]["state"] == "missing"
