"""A file that cannot be made costs the nodes that asked for it, once: the hub goes on and the next node tries again."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from mltop.probes.agent.protocol import Request
from mltop.probes.reach.uploads import Files


class Maker:
    """Fails the first time; what it made once is made no more."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *names: str) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise OSError("no space left on device")
        return Request("file", op="bundle", args={"data": "x"}) if len(names) == 2 else "hash"


@pytest.mark.parametrize("what", ["frame", "py_spy_sha256"])
def test_an_error_is_the_answer_and_is_not_kept(what: str) -> None:
    maker, posted, answers = Maker(), queue.SimpleQueue[Callable[[], None]](), list[Any]()
    files = Files(posted.put, file_for=maker, py_spy_for=maker)
    for _ in range(3):
        if what == "frame":
            files.frame("bundle", "x86_64", answers.append)
        else:
            files.py_spy_sha256("x86_64", answers.append)
        posted.get(timeout=30)()
    if what == "frame":
        assert b"cannot make bundle for x86_64: OSError: no space left on device" in answers[0]
        assert b'"data"' in answers[1]
    else:
        assert isinstance(answers[0], OSError)
        assert answers[1] == "hash"
    assert answers[2] == answers[1]
    assert maker.calls == 2
