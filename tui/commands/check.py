"""`mltop check`: the health rules over machines (prolog, epilog) or over a whole recording. Quiet when all is well."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from mltop.probes.reach.targets import TargetOptions, resolve
from mltop.tui.app.output import say
from mltop.tui.commands.live import Machines, put_answer
from mltop.tui.config.settings import DEFAULTS, Config
from mltop.tui.state import BadState, NotOurs
from mltop.tui.state.lists import known_lemons

BETWEEN_SAMPLES_S = 0.5


def run(
    options: TargetOptions,
    *,
    as_json: bool,
    expect_gpus: int | None = None,
    allowed_unknown: Sequence[str] = (),
    verbose: bool = False,
    config: Config = DEFAULTS,
) -> int:
    """Exit 0: fine; 1: warnings; 2: something critical; 3: something unreachable or unknown."""
    known_bad, lemon_problem = lemons()
    targets = resolve(options)
    if allowed_unknown:
        from mltop.tui.commands.rules import check_allowed

        check_allowed(allowed_unknown)
    path = targets.recording
    machines = Machines(targets, options, "check", most_interval_s=BETWEEN_SAMPLES_S) if path is None else None
    from mltop.probes.judge.health.rule import Expectations  # while the agents start
    from mltop.probes.model import Unknown
    from mltop.tui.commands.rules import LEMON_LIST, changed, live, recorded
    from mltop.tui.report.check import print_check

    expectations = Expectations(expect_gpus, known_bad, thresholds=config.thresholds)
    if machines is not None:
        with machines:
            checked = live(machines, expectations)
    elif path is not None:
        checked = recorded(path, expectations)
    if lemon_problem:
        checked.unknown.append(Unknown("", LEMON_LIST, lemon_problem))
    checked.unknown = [
        unknown for unknown in checked.unknown if not any(fnmatchcase(unknown.what, glob) for glob in allowed_unknown)
    ]
    own = changed(config.thresholds)
    answer = {
        "nodes": checked.nodes,
        "incidents": checked.incidents,
        "findings": checked.findings,
        "unknown": checked.unknown,
        "exit": checked.exit,
        **({"thresholds": own} if own else {}),
    }
    put_answer(as_json, answer, lambda console: print_check(checked, console, verbose, own), wide=True)
    return checked.exit


def lemons() -> tuple[dict[str, str], str]:
    """The GPUs that are known to be bad, and why the list of them cannot be read: 2 would say that a node is broken."""
    try:
        return known_lemons(), ""
    except NotOurs as problem:
        say(f"known bad GPUs are not available: {problem}")
        return {}, ""
    except BadState as problem:
        return {}, str(problem)
