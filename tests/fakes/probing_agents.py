"""Nodes whose agents answer probe requests as a test says: small programs that speak the agent's frames.

``BEHAVE`` maps a node to what it does: well | no torch | silent | leaves (its launcher ends when a round is told) |
hangs in a round | garbage (its results, or what its ranks do, cannot be read) | late (a rank of it).
"""

from __future__ import annotations

from mltop.probes.reach.channel import Channel
from tests.fakes.agents import program

_ANSWER = """
BEHAVE = {behave!r}
RATE = {rates!r}
told = {{}}
asked = {{}}

def event(node, id, **fields): say(Message("part", node=node, id=id, data=fields))
def done(node, id, **fields): say(Message("done", node=node, id=id, **fields))

def begin(node, request):
    how, kind, options = BEHAVE.get(node, "well"), request.args["kind"], request.args["options"]
    asked[node] = request.id
    if how == "silent": return
    if how == "no torch":
        event(node, request.id, event="failed", stage="find python", why="no Python with torch", fix="--torch-python")
        return done(node, request.id)
    devices = [dict(uuid="cpu", name="EPYC", kind="cpu")]
    event(node, request.id, event="devices", data=dict(python="/p", torch="2.13", devices=devices))
    if kind == "matmul":
        event(node, request.id, event="stage", device="cpu", stage="burst", fraction=0.5)
        fields = dict(uuid="cpu", name="EPYC", kind="cpu", dtype="fp32", shape=[64, 64, 64], iterations=100,
                      burst_tflops=RATE.get(node, 1.0), burst_median_tflops=RATE.get(node, 1.0),
                      sustained_tflops=RATE.get(node, 1.0), checked_iterations=8, checked_pflop=0.1, code_path="MKL")
        if how == "garbage": fields["iterations"] = "many"
        event(node, request.id, event="result", device="cpu", data=fields)
        return done(node, request.id)
    assert options["leader_address"] in ("", "10.0.0.1"), options
    event(node, request.id, event="listening", data=dict(port=4711, address="10.0.0.1", ranks=1))
    event(node, request.id, event="stage", stage="join")

def tell(node, line):
    id, kind = asked[node], line["tell"]
    if kind == "reach":
        event(node, id, event="reached", data=dict(cannot=dict()))
    elif kind == "go":
        event(node, id, event="ready", data=dict(ranks=1, backend="gloo", address="10.0.0.1", import_s=1.0))
    elif kind == "round": one_round(node, line)
    elif kind == "stop" and BEHAVE.get(node) != "hangs in a round":
        where = dict(round=line["round"], group=line["group"])
        state = dict(rank=NODES.index(node), node="n0", kind="waits", stage="measure 64 KiB", begun=3, in_stage=2)
        if BEHAVE.get(node) == "late": state.update(begun=2, in_stage=1, printed="the last words")
        states = [dict(rank="first")] if BEHAVE.get(node) == "garbage" else [state]
        event(node, id, event="states", data=dict(where, states=states))
        event(node, id, event="round", data=dict(round=line["round"], failed=True))
    elif kind == "end": done(node, id)

def one_round(node, line):
    how, id = BEHAVE.get(node, "well"), asked[node]
    if how == "hangs in a round":
        return event(node, id, event="stage", rank=0, stage="measure 64 KiB")
    if how in ("garbage", "late") or "late" in BEHAVE.values():
        return event(node, id, event="trouble", data=dict(round=line["round"], group=0)) if how != "well" else None
    if how == "leaves":
        event(node, id, event="failed", rank=0, stage="init", why="died: killed (SIGKILL)")
        return done(node, id)
    for number, group in enumerate(line["groups"]):
        if node in group:
            rate = min(RATE.get(other, 1.0) for other in group)
            for size in line["sizes_bytes"]:
                times = [size / rate / 1e9] * 5
                data = dict(round=line["round"], group=number, collective=line["collectives"][0], size_bytes=size,
                            rank=group.index(node), ranks=len(group), times_s=times, wrong=0)
                event(node, id, event="times", rank=group.index(node), data=data)
    event(node, id, event="round", data=dict(round=line["round"]))

for request in requests():
    for node in ([request.node] if request.node else NODES):
        if request.kind == "cancel":
            done(node, request.id, data=dict(cancelled=True))
        elif request.op == "probe" and request.kind == "request":
            begin(node, request)
        elif request.op == "probe_tell" and request.kind == "request":
            done(node, request.id)
            tell(node, request.args["line"])
"""


def probing(*nodes: str, behave: dict[str, str] | None = None, rates: dict[str, float] | None = None) -> Channel:
    """One stream with these nodes, all live. ``rates``: TFLOPS, or GB/s of the node's network."""
    hellos = "\n".join(f"hello({node!r})" for node in nodes)
    answer = _ANSWER.format(behave=behave or {}, rates=rates or {})
    return program(f"NODES = {nodes!r}\n{hellos}\nbeat(*NODES)\n{answer}", *nodes)
