"""`mltop doctor`: what works here and on every node, what does not, and the command that fixes it."""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import TypeAlias

from mltop.probes.agent.protocol import VERSION, Message
from mltop.probes.investigate.advice import is_known
from mltop.probes.model import GpuGaps, Sample
from mltop.probes.model.units import counted
from mltop.probes.reach.launchers import LAUNCHERS
from mltop.probes.reach.targets import TargetOptions
from mltop.probes.reach.view import Connection, NodeView
from mltop.probes.version import __version__
from mltop.tui.commands.live import Machines, Reached, live_targets, put_answer, unreached
from mltop.tui.commands.screen import NO_CURSOR
from mltop.tui.exits import EXIT_FINE, EXIT_INCOMPLETE, EXIT_UNREACHABLE

Check: TypeAlias = dict[str, str]
_NAMES = ("name", "state", "why", "fix")
ANSWER_S = 10.0  # a node that was reached answers at once, unless its disks hang
NVML_START_S = 20.0  # nvmlInit takes seconds on machines without persistence mode
HERE = "(this machine)"
VERSION_S = 5.0
SKEW_S = 1.0  # more between two clocks puts events of several nodes into the wrong order
SLOW_S = 5.0  # to connect: half of what ssh is given
MOST_NOTES = 3
MOST_CHECKS = 256  # of one agent, which knows of some ten


def check(name: str, state: str, why: str, fix: str = "") -> Check:
    """A line of the answer. ``state``: ok | info | warning | missing; ``fix``: a command or ""."""
    return {"name": name, "state": state, "why": why, "fix": fix}


def answer_of(message: Message | None) -> list[Check] | str:
    """The checks of a node's agent, or why they are not known."""
    if message is None:
        return f"did not answer within {ANSWER_S:g} s"
    if message.kind == "error":
        return message.error
    entries = message.data.get("checks")
    if not isinstance(entries, list) or len(entries) > MOST_CHECKS:
        return "its answer cannot be read"
    if not all(isinstance(each, dict) and all(isinstance(each.get(name), str) for name in _NAMES) for each in entries):
        return "its answer cannot be read"
    return [{name: each[name] for name in _NAMES} for each in entries]


def node_checks(view: NodeView, answers: Mapping[str, list[Check] | str]) -> list[Check]:
    """``answers``: the agents' checks, or why they are not known, by node; none for nodes that were not asked."""
    if view.sample is None:
        return [reach_check(view)]
    answer = answers.get(view.node, "was not asked")
    abilities = answer if isinstance(answer, list) else [check("agent's checks", "missing", answer)]
    nvml = nvml_check(view.sample)
    needless = set() if view.connection.boot is None else {"torch"}  # only the demo needs it, where mltop is installed
    if nvml["state"] in ("ok", "info"):  # WSL and some containers hide the module; without a GPU nobody needs it
        needless |= {ability["name"] for ability in abilities if ability["state"] == "warning"} & {"nvidia driver"}
    return [
        reach_check(view),
        *cache_checks(view.connection),
        *version_checks(view.connection),
        *clock_checks(view.connection),
        nvml,
        *(ability for ability in abilities if ability["name"] not in needless),
        *never_known(view.sample),
    ]


def reach_check(view: NodeView) -> Check:
    state, connection = view.state, view.connection
    if view.sample is None or state.state not in ("live", "stale"):
        why, fix = state.why, state.fix
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
    fix = f"install mltop {__version__} on the node, or use --via ssh"
    if hello.protocol != VERSION:
        why = f"speaks protocol {hello.protocol} (mltop {hello.version}), this mltop {VERSION} ({__version__})"
        return [check("agent", "missing", why, fix)]
    if hello.version != __version__:
        return [check("agent", "warning", f"mltop {hello.version}, this is {__version__}", fix)]
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
        if gap.source == "nvml" and gap.kind == "unsupported":
            return check("nvml", "info", gap.why)
        if gap.source == "nvml":
            state = "warning" if gap.kind == "starting" else "missing"
            return check("nvml", state, gap.why, gap.fix)
    bad = [gpu for gpu in sample.gpus if gpu.state != "ok"]
    if not bad:
        return check("nvml", "ok", f"answers for {counted(len(sample.gpus), 'GPU')}")
    first, answering = bad[0], len(sample.gpus) - len(bad)
    gap_of_gpu = GpuGaps(sample.gaps, first.index).of("")
    why = f"GPU {first.index}: {first.error or first.state}"
    answers = f"answers for {answering} of {counted(len(sample.gpus), 'GPU')}; {why}"
    return check("nvml", "missing", answers, gap_of_gpu.fix if gap_of_gpu is not None else "")


def never_known(sample: Sample) -> list[Check]:
    """What such a machine or GPU never shows, a line for each reason: nothing that `mltop check` counts as unknown."""
    fields_of: dict[tuple[str, str], dict[str, None]] = {}
    for gap in sample.gaps:
        of_gpu = gap.source == "gpu" and gap.kind == "unsupported"
        if of_gpu or gap.code == "not_here":
            why = "this GPU or its driver does not report it" if of_gpu else gap.why
            fields_of.setdefault((gap.source, why), {}).update(dict.fromkeys(gap.fields))
    return [
        check("never known", "info", f"{why} ({source}: {', '.join(fields)})")
        for (source, why), fields in fields_of.items()
    ]


# (program, what it is for, the package that has it)
_PROGRAMS = (
    *((each.program, f"--via {each.name}", each.package) for each in LAUNCHERS.values() if each.program),
    ("squeue", "--job", "slurm-client"),
)


def terminal_check() -> Check:
    size = shutil.get_terminal_size()
    term = os.environ.get("TERM", "")
    if not sys.stdout.isatty():
        return check("terminal", "ok", "output is not a terminal: text and --json only")
    if term in NO_CURSOR:
        return check("terminal", "warning", f"TERM={term} cannot show the screen", "export TERM=xterm-256color")
    if size.columns < 80 or size.lines < 24:
        return check("terminal", "warning", f"{size.columns}x{size.lines} is small (80x24 holds 8 GPUs)", "enlarge it")
    return check("terminal", "ok", f"{term}, {size.columns}x{size.lines}")


def glyphs_check() -> Check:
    encoding = (getattr(sys.__stderr__, "encoding", "") or locale.getpreferredencoding(False)).lower()
    if "utf" in encoding:
        return check("glyphs", "ok", encoding)
    return check("glyphs", "warning", f"{encoding}: ASCII is drawn instead", "export LC_ALL=C.UTF-8")


def program_check(program: str, option: str, package: str, via: Collection[str]) -> Check:
    path = shutil.which(program)
    if path is None:
        needed = program in via
        fix = f"sudo apt install {package}" if needed else ""
        return check(program, "missing" if needed else "info", f"not here: {option} cannot be used", fix)
    return check(program, "ok", f"{ssh_version(path)} at {path}" if program == "ssh" else path)


def ssh_version(path: str) -> str:
    """E.g. "OpenSSH_9.2p1", which `ssh -V` says on stderr."""
    try:
        done = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    words = (done.stderr or done.stdout).replace(",", " ").split()
    return words[0] if words else "of unknown version"


def run(options: TargetOptions, as_json: bool) -> int:
    """Exit 0: nothing is missing; 1: something is; 3: a node did not answer."""
    targets = live_targets(options, "doctor looks at machines, not at recordings")
    with Machines(targets, options, "doctor") as machines:
        from mltop.tui.report import print_doctor  # while the agents start

        via = {route.via for route in targets.routes}
        here = [terminal_check(), glyphs_check(), *(program_check(*program, via) for program in _PROGRAMS)]
        waits = Reached(min(machines.deadline, machines.began + NVML_START_S))
        reached = [view.node for view in machines.await_nodes(waits) if view.sample is not None]
        answers = {node: answer_of(message) for node, message in machines.ask("doctor", reached, ANSWER_S).items()}
        views = machines.views()
    checks = [{"node": HERE, **check} for check in here]
    checks += [{"node": view.node, **check} for view in views for check in node_checks(view, answers)]
    answer = {"nodes": [view.state for view in views], "checks": checks}
    put_answer(as_json, answer, lambda console: print_doctor(checks, console))
    if unreached(views):
        return EXIT_UNREACHABLE
    return EXIT_INCOMPLETE if any(check["state"] == "missing" for check in checks) else EXIT_FINE
