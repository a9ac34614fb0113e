"""Channels that behave well and badly: small Python programs that speak the agent's frames. Linux only."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from mltop.probes.reach.channel import Channel
from tests.spoiled import NASTY

_SPEAK = """
import base64, sys, threading, json, time, os
sys.path[:0] = {path!r}
from mltop.probes.agent.protocol import *
from mltop.probes.model.gpu import *
from mltop.probes.model.news.row import pack_row, row_of
from mltop.probes.model.sample import *
from mltop.probes.model.verdict import *
from mltop.probes.version import __version__
lock = threading.Lock()
def say(m):
    with lock:
        sys.stdout.buffer.write(encode(m)); sys.stdout.buffer.flush()
def hello(node="n1"): say(Message("hello", node=node, hello=Hello(__version__, 1, os.getpid(), "3", "host", "m1")))
def both(sample):
    lanes = base64.b64encode(pack_row(row_of(sample))).decode()
    row = Message("row", node=sample.node, row=Row(sample.sampled_at, lanes))
    return Message("sample", node=sample.node, sample=sample), row
def sample(node="n1"):
    for message in both(Sample(node, time.time())): say(message)
def boot(cached=False, node="n1"):
    say(Message("boot", node=node, boot=Boot("m1", "3 at /usr/bin/python3", "/c", cached)))
def beat(*nodes):
    def run():
        while True:
            for node in nodes or ("n1",): sample(node)
            time.sleep(0.05)
    threading.Thread(target=run, daemon=True).start()
def requests():
    for line in sys.stdin.buffer:
        request = decode_request(line.rstrip(b"\\n"))
        if request is not None: yield request
def hang():
    while sys.stdin.buffer.read1(65536): pass
"""
# What `stacks`, `echo`, `silence` and anything else are answered with.
ANSWERS = """
for request in requests():
    node = request.node or "n1"
    if request.kind != "request": continue
    if request.op == "stacks":
        say(Message("part", node=node, id=request.id, expected=1))
        say(Message("part", node=node, id=request.id, stacks=RankStacks(1, 0, digests=[StackDigest(0, 1)])))
        say(Message("done", node=node, id=request.id, data=request.args))
    elif request.op == "echo": say(Message("done", node=node, id=request.id, data=request.args))
    elif request.op != "silence": say(Message("error", node=node, id=request.id, error="unknown"))
"""
# What operations are answered with, where a terminal would obey the answer.
_NASTY_ANSWERS = {
    "doctor": {"checks": [{name: f"{name}{NASTY}" for name in ("name", "state", "why", "fix")}]},
    "kernel_lines": {
        "lines": [{"pattern": f"x{NASTY}", "level": 3, "count": 1, "first_at": 5.0, "example": f"x 1{NASTY}"}],
        "gap": {name: f"{name}{NASTY}" for name in ("what", "why", "fix")},
    },
    "signal": {"results": [{"pid": 5, "outcome": "denied", "state": NASTY, "why": f"eve{NASTY}"}]},
    "signal_facts": {"facts": [{"pid": 5, "caught": [f"USR1{NASTY}"], "core_pattern": f"/x{NASTY}{'y' * 5000}"}]},
    "diagnose": {"results": [{"test": f"memory{NASTY}", "status": "fail", "gpus": [0, 1], "text": f"bad{NASTY}"}]},
    "log_tail": {"tails": [{"file": f"/out{NASTY}", "lines": [f"step 5{NASTY}"] * 3, "why": NASTY}]},
}
_HOSTILE = f"""
answers, others = {_NASTY_ANSWERS!a}, { ({f"a{NASTY}": [{"b": f"c{NASTY}"}]})!a}
hello(); beat()
for request in requests():
    if request.kind != "request": continue
    data = answers.get(request.op, others)
    say(Message("part", node="n1", id=request.id, data=data))
    say(Message("done", node="n1", id=request.id, data=data))
"""


def program(code: str, *nodes: str, **fields: object) -> Channel:
    """``code`` with everything above at hand; it carries ``nodes``."""
    path = [entry for entry in sys.path if entry]
    channel = Channel((sys.executable, "-c", _SPEAK.format(path=path) + code), nodes or ("n1",))
    return replace(channel, **fields)  # type: ignore[arg-type]


def well_behaved(extra: str = "", node: str = "n1", **fields: object) -> Channel:
    """Hello, 20 samples a second, answers; ``extra`` runs before all of that."""
    return program(f"{extra}\nhello()\nbeat()\n{ANSWERS}", node, **fields)


def hostile() -> Channel:
    """Its agent answers every operation, a part and the end, with what a terminal would obey."""
    return program(_HOSTILE)


def once_then(directory: Path, first: str) -> str:
    """``first`` in the first process that runs this, nothing in the later ones."""
    mark = directory / "ran-before"
    return f"import pathlib\np = pathlib.Path({str(mark)!r})\nif not p.exists():\n    p.touch()\n    {first}\n"
