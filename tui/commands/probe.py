"""`mltop probe`: put load on the hardware, and say whether it gives what it should.

The result is on stdout; what happens meanwhile and what fails is on stderr.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, replace

from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
from mltop.probes.judge.nodes import folded
from mltop.probes.model.probe import ProbeReport
from mltop.probes.reach import UsageProblem
from mltop.probes.reach.launchers import LAUNCHERS
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import ask, say
from mltop.tui.commands.live import Machines, live_targets, put_answer, refuse_read_only
from mltop.tui.exits import EXIT_INTERRUPTED, EXIT_SUSPECTS, EXIT_UNREACHABLE
from mltop.tui.state.probe_history import HistoryFile

LOOK_S = 0.1
CANCEL_S = 8.0  # for probes that were cancelled to be gone


def run(options: TargetOptions, wanted: ProbeWanted, as_json: bool, verbose: bool) -> int:
    """Exit 0: measured, nobody accused; 1: somebody is; 3: some of it was not measured; 130: interrupted."""
    refuse_read_only(options, "probe")
    targets = live_targets(options, "a probe needs machines (mltop probe without it)")
    memory = HistoryFile()
    with Machines(targets, options, "probe", memory=memory) as machines:
        nodes = [view.node for view in machines.session.view().nodes]
        _check(wanted, nodes, options)
        if wanted.force:
            # Load on GPUs that a job uses: only a person may want that, and types the name of what is hit.
            name = folded(nodes)
            if ask(f"--force also takes GPUs that are in use. Type {name} to go on: ") != name:
                raise UsageProblem("--force", f"the name {name} was not typed; nothing was started")
        newest = deque[ProbeProgress](maxlen=1)  # filled in the run's thread
        run = machines.session.run_probe(replace(wanted, nodes=tuple(nodes)), newest.append)
        interrupted = False
        try:
            while not run.wait(LOOK_S):
                machines.stderr.show(progress_line(newest[0]) if newest else "probe: connecting")
        except KeyboardInterrupt:
            interrupted = True
            run.cancel()
            run.wait(CANCEL_S)
        states = [view.state for view in machines.session.view().nodes]
    for problem in memory.problems:
        say(problem)
    if run.report is None:
        say(run.error or "the probe did not end")
        return EXIT_INTERRUPTED if interrupted else EXIT_UNREACHABLE
    code = exit_code(run.report, interrupted)
    from mltop.tui.report.probe import print_probe

    report = run.report
    answer = {"nodes": states, **asdict(report), "exit": code}
    put_answer(as_json, answer, lambda console: print_probe(report, states, console, verbose, memory.before))
    return code


def exit_code(report: ProbeReport, interrupted: bool = False) -> int:
    if interrupted:
        return EXIT_INTERRUPTED
    if report.verdict.suspects:
        return EXIT_SUSPECTS
    return EXIT_UNREACHABLE if report.failures or not report.results else 0


def progress_line(progress: ProbeProgress) -> str:
    """ "matmul: node01: warming up, 3 s"."""
    return f"{progress.wanted.kind}: {progress.text or progress.phase}, {progress.elapsed_s:.0f} s"


def _check(wanted: ProbeWanted, nodes: list[str], options: TargetOptions) -> None:
    """Raises UsageProblem for what can be refused before anything is started."""
    row = wanted.row
    if len(nodes) < row.least_nodes:
        raise UsageProblem(f"probe {row.name}", "needs at least two nodes (-w node[01-16])")
    if wanted.sizes_bytes and wanted.sizes_bytes[0] < row.least_size_bytes:
        raise UsageProblem("--size", f"a copy has at least {row.least_size_bytes} bytes")
    if not row.one_gpu and wanted.ranks == 1 and len(nodes) == 1:
        raise UsageProblem("--ranks 1", "one rank on one node has nobody to reduce with", "--ranks 2")
    if options.via and not LAUNCHERS[options.via].tells_agents and not row.one_gpu:
        raise UsageProblem(f"--via {options.via}", "carries no messages to a running probe", "--via ssh")
