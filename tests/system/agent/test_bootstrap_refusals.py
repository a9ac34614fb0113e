"""A bundle that arrives damaged, or is another than the announced one, is refused and leaves nothing behind."""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path

import pytest

from mltop.probes.agent.protocol import Request
from mltop.probes.reach.bundle import file_for, opening
from tests.bootstrapping import Bootstrapped, command, environment, running

BUNDLE = file_for("bundle", os.uname().machine)
SHA256 = BUNDLE.args["sha256"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def changed(data: bytes) -> Request:
    """The bundle with other bytes inside, sent as the real one."""
    content = zlib.decompress(base64.b64decode(BUNDLE.args["data"]), 31)
    packed = zlib.compress(content + data, wbits=31)
    return Request("file", op="bundle", args={**BUNDLE.args, "data": base64.b64encode(packed).decode()})


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, wbits=31)).decode()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(changed(b"x"), id="tampered"),
        pytest.param(Request("file", op="bundle", args={"data": packed(b"")}), id="empty"),
        pytest.param(Request("file", op="bundle", args={"data": "no base64 at all"}), id="no base64"),
        pytest.param(Request("file", op="bundle", args={"data": "AAAA"}), id="no gzip"),
        pytest.param(Request("file", op="bundle", args={"sha256": SHA256}), id="no data"),
        pytest.param(Request("file", op="bundle", args={**BUNDLE.args, "data": BUNDLE.args["data"][:4000]}), id="cut"),
        pytest.param(Request("file", op="bundle", args={"data": packed(b"0" * 80_000_000)}), id="a bomb"),
    ],
)
def test_a_bundle_that_is_not_the_announced_one_is_refused(sent: Request, home: Path) -> None:
    with running(command(), environment(home)) as node:
        refusal = node.boot(lambda boot: sent)
        assert refusal.kind == "error"
        assert refusal.id == 0
        assert refusal.error.startswith("the agent's files arrived damaged: ")
        assert_ended_without_remains(node, home)


def test_a_frame_that_lost_bytes_is_refused(home: Path) -> None:
    with running(command(), environment(home)) as node:
        node.send(opening())
        node.next("boot")
        node.send_frame(BUNDLE, share=0.5)
        node.send(b"\n")
        assert node.next("error").error.startswith("a frame arrived damaged: ")
        assert_ended_without_remains(node, home)


def assert_ended_without_remains(node: Bootstrapped, home: Path) -> None:
    assert node.wait() == 98
    assert node.process.stdout.read() == b""  # one error frame and nothing after it
    assert node.errors() == ""
    assert os.listdir(home / ".cache/mltop") == []
