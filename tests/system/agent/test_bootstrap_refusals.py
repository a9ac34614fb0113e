"""A bundle that arrives damaged, or is another than the announced one, is refused and leaves nothing behind."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from mltop.probes.agent.protocol import Request
from mltop.probes.reach.bundle import opening
from tests.bootstrapping import Bootstrapped, bundle_sha256, command, environment, file_here, running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def tampered() -> dict[str, str]:
    """The bundle with other bytes inside, sent as the real one."""
    whole = file_here().args
    content = zlib.decompress(base64.b64decode(whole["data"]), 31)
    return {**whole, "data": packed(content + b"x")}


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, wbits=31)).decode()


SENT: dict[str, Callable[[], dict[str, str]]] = {
    "tampered": tampered,
    "empty": lambda: {"data": packed(b"")},
    "no base64": lambda: {"data": "no base64 at all"},
    "no gzip": lambda: {"data": "AAAA"},
    "no data": lambda: {"sha256": bundle_sha256()},
    "cut": lambda: {**file_here().args, "data": file_here().args["data"][:4000]},
    "a bomb": lambda: {"data": packed(b"0" * 80_000_000)},
}


@pytest.mark.parametrize("what", SENT)
def test_a_bundle_that_is_not_the_announced_one_is_refused(what: str, home: Path) -> None:
    with running(command(), environment(home)) as node:
        refusal = node.boot(lambda boot: Request("file", op="bundle", args=SENT[what]()))
        assert refusal.kind == "error"
        assert refusal.id == 0
        assert refusal.error.startswith("the agent's files arrived damaged: ")
        assert_ended_without_remains(node, home)


def test_a_frame_that_lost_bytes_is_refused(home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        node.send_frame(file_here(), share=0.5)
        node.send(b"\n")
        assert node.next("error").error.startswith("a frame arrived damaged: ")
        assert_ended_without_remains(node, home)


def assert_ended_without_remains(node: Bootstrapped, home: Path) -> None:
    assert node.wait() == 98
    assert node.process.stdout.read() == b""  # one error frame and nothing after it
    assert node.errors() == ""
    assert os.listdir(home / ".cache/mltop") == []
