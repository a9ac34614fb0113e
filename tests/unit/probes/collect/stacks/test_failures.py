import os

import pytest

from mltop.probes.collect.stacks import find_py_spy, pyspy
from mltop.probes.collect.stacks.process import ProcessFacts, SourceLines

NO_EXECUTABLE = "Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n"


def facts(state="S", **known):
    return ProcessFacts(pid=2**30, state=state, uid=os.geteuid(), **known)


@pytest.mark.parametrize(
    ("stderr", "known", "says"),
    [
        (NO_EXECUTABLE + "    0: No such file or directory (os error 2)", facts(""), "the process is gone"),
        (NO_EXECUTABLE + "    0: No such file or directory (os error 2)", facts("Z"), "zombie"),
        ("Error: Failed to find python version from target process", facts(), "not a Python process"),
        ("Error: Unsupported version of Python: 3.16.1", facts(), "py-spy on this node cannot read Python 3.16"),
        ("Error: x\n\nCaused by:\n    0: Bad address (os error 14)", facts(), "not a Python process"),
        (NO_EXECUTABLE + "    0: Permission denied (os error 13)", facts(), "permission denied"),
        (
            "Error: Failed to suspend process\n  1: EPERM",
            facts(tracer_pid=1),
            "already traced by 1 ",
        ),
        ("Error: unexpected waitpid result", facts("T"), "stopped by a signal"),
        (
            "Error: Failed to suspend process",
            facts("D", wchan="nfs_wait"),
            "uninterruptible in the kernel in nfs_wait",
        ),
        (
            "Error: Failed to get stack traces\n\nCaused by:\n 0: a\n 1: last\n\nStack backtrace:\n 0: x",
            facts(),
            "py-spy failed: Failed to get stack traces: last",
        ),
        ("", facts(), "py-spy failed: it printed nothing"),
    ],
)
def test_every_failure_has_plain_words(stderr, known, says):
    assert pyspy.classify(stderr, known).error.startswith(says)


def test_deadline_names_the_limit_or_the_kernel():
    assert pyspy.deadline(facts("S"), 3.0).error == "py-spy did not finish within 3 s and was ended"
    assert "state D" in pyspy.deadline(facts("D"), 3.0).error


@pytest.fixture
def no_py_spy_variable(monkeypatch):
    monkeypatch.delenv("MLTOP_PY_SPY", raising=False)


def test_py_spy_is_found_beside_this_python(no_py_spy_variable):
    found = find_py_spy()
    assert found is not None
    assert os.access(found, os.X_OK)


def test_the_variable_decides_alone(monkeypatch, tmp_path):
    own = tmp_path / "py-spy"
    own.write_text("#!/bin/sh\n")
    monkeypatch.setenv("MLTOP_PY_SPY", str(own))
    assert find_py_spy() is None  # not executable, and nothing else is taken in its place
    own.chmod(0o755)
    assert find_py_spy() == str(own)


def test_source_lines_are_read_as_the_process_sees_them(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("first\nwork.wait()\n")
    lines = SourceLines()
    assert lines.line(os.getpid(), str(script), 2) == "work.wait()"
    assert lines.line(os.getpid(), str(script), 3) is None
    assert lines.line(os.getpid(), str(tmp_path / "missing.py"), 1) is None
    assert lines.line(os.getpid(), "<string>", 1) is None
    script.unlink()
    assert lines.line(os.getpid(), str(script), 1) == "first"  # once read, not read again


def test_a_fifo_as_source_file_is_not_opened(tmp_path):
    fifo = tmp_path / "train.py"
    os.mkfifo(fifo)
    assert SourceLines(deadline_s=5.0).line(os.getpid(), str(fifo), 1) is None
