"""What `mltop doctor` says of one node: how it was reached, its clock, its agent, NVML, and what the agent found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from mltop.probes.agent.protocol import VERSION
from mltop.probes.investigate.advice import is_known
from mltop.probes.investigate.patience import FAILED
from mltop.probes.judge.health.gpu_words import plural
from mltop.probes.model import Sample
from mltop.probes.reach.ending import reason_and_fix
from mltop.probes.reach.view import Connection, NodeView
from mltop.probes.version import __version__

Check: TypeAlias = dict[str, str]

SKEW_S = 1.0  # more between two clocks puts events of several nodes into the wrong order
SLOW_S = 5.0  # to connect: half of what ssh is given
MOST_NOTES = 3
MOST_CHECKS = 256  # of one agent, which knows of some ten


def check(name: str, state: str, why: str, fix: str = "") -> Check:
    """``state``: ok | info | warning | missing; ``fix``: a command or ""."""
    return {"name": name, "state": state, "why": why, "fix": fix}


def checks_of(data: Mapping[str, object]) -> list[Check] | str:
    """What an agent answered, or why it is no answer."""
    told = data.get("checks")
    if not isinstance(told, list) or len(told) > MOST_CHECKS:
        return "its answer cannot be read"
    found: list[Check] = []
    for one in told:
        words = {name: one.get(name) for name in ("name", "state", "why", "fix")} if isinstance(one, dict) else {}
        if not words or not all(isinstance(word, str) for word in words.values()):
            return "its answer cannot be read"
        found.append({name: str(word) for name, word in words.items()})
    return found


def node_checks(view: NodeView, answers: Mapping[str, list[Check] | str]) -> list[Check]:
    """``answers``: what the agents found, or why they did not say, by node; none for nodes that were not asked."""
    if view.sample is None:
        return [reach_check(view)]
    answer = answers.get(view.node, "was not asked")
    abilities = answer if isinstance(answer, list) else [check("agent's checks", "missing", answer)]
    return [
        reach_check(view),
        *cache_checks(view.connection),
        *version_checks(view.connection),
        *clock_checks(view.connection),
        nvml_check(view.sample),
        # Only the demo needs torch, and only where mltop is installed.
        *(found for found in abilities if found.get("name") != "torch" or view.connection.boot is None),
    ]


def reach_check(view: NodeView) -> Check:
    state, connection = view.state, view.connection
    if view.sample is None or state.state not in ("live", "stale"):
        why, fix = reason_and_fix(state.reason) if state.state in FAILED else (state.reason, "")
        if not is_known(fix):  # words of the node, or of its login, that only look like one
            why, fix = state.reason, ""
        return check("connection", "missing", f"{state.state}: {why}" if why else state.state, fix)
    via = "a local agent" if connection.via == "local" else connection.via
    took_s = connection.connect_s
    why = via if took_s is None else f"{via}, connected in {took_s:.2f} s"
    if connection.restarts:
        why += f", reconnected {connection.restarts} times"
    if state.state == "stale":
        return check("connection", "warning", f"{why}; {state.reason}")
    if took_s is not None and took_s > SLOW_S:
        return check("connection", "warning", f"{why}: slow (name service, home directory or start-up files?)")
    return check("connection", "warning" if connection.restarts else "ok", why)


def cache_checks(connection: Connection) -> list[Check]:
    """Where the agent installed itself; nothing where it did not have to."""
    boot = connection.boot
    if boot is None:
        return []
    tried = "; ".join(boot.notes[:MOST_NOTES])
    if not boot.root:
        why = "in memory only, sent again at every connection" + (f": {tried}" if tried else "")
        return [check("agent cache", "warning", why, "make one of ~/.cache, /tmp or /var/tmp writable")]
    why = f"{boot.root}, {'found there' if boot.cached else 'sent now'}"
    return [check("agent cache", "ok", f"{why} ({tried})" if tried else why)]


def version_checks(connection: Connection) -> list[Check]:
    hello = connection.hello
    if hello is None:
        return []
    if hello.protocol != VERSION:
        why = f"speaks protocol {hello.protocol} (mltop {hello.version}), this mltop {VERSION} ({__version__})"
        return [check("agent", "missing", why, f"install mltop {__version__} on the node, or use --via ssh")]
    if hello.version != __version__:
        why = f"mltop {hello.version}, this is {__version__}"
        return [check("agent", "warning", why, f"install mltop {__version__} on the node, or use --via ssh")]
    return [check("agent", "ok", f"mltop {hello.version}, {hello.machine}")]


def clock_checks(connection: Connection) -> list[Check]:
    """The skew includes what a sample needs to arrive, so that small ones mean nothing."""
    skew_s = connection.clock_skew_s
    if skew_s is None or connection.via == "local":
        return []
    if abs(skew_s) <= SKEW_S:
        return [check("clock", "ok", f"within {SKEW_S:g} s of this machine's")]
    direction = "ahead of" if skew_s > 0 else "behind"
    why = f"{abs(skew_s):.1f} s {direction} this machine's: events of several nodes get into the wrong order"
    return [check("clock", "warning", why, "sudo chronyc makestep")]


def nvml_check(sample: Sample) -> Check:
    """What NVML itself answered."""
    for gap in sample.gaps:
        if gap.what.partition(".")[0] == "nvml":
            state = "warning" if gap.what == "nvml.starting" else "missing"
            return check("nvml", state, gap.why, gap.fix)
    bad = [gpu for gpu in sample.gpus if gpu.state != "ok"]
    if not bad:
        return check("nvml", "ok", f"answers for {plural(len(sample.gpus), 'GPU')}")
    first, answering = bad[0], len(sample.gpus) - len(bad)
    fix = next((gap.fix for gap in sample.gaps if gap.what in ("gpu.*", f"gpu.{first.index}")), "")
    why = f"GPU {first.index}: {first.error or first.state}"
    return check("nvml", "missing", f"answers for {answering} of {plural(len(sample.gpus), 'GPU')}; {why}", fix)
