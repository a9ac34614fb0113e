"""`mltop snapshot`: one sample of everything, with what the health rules say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mltop.probes.model.unread import unread_gpus, unread_ranks
from mltop.probes.reach.targets import TargetOptions, resolve
from mltop.tui.app.output import say
from mltop.tui.commands.live import Complete, Machines, put_answer, saved, unreached
from mltop.tui.config.settings import DEFAULTS, Config
from mltop.tui.exits import EXIT_UNREACHABLE

if TYPE_CHECKING:
    from rich.console import Console

FIRST_LOOK_S = 0.5  # between the two samples that rates are made of


def run(options: TargetOptions, as_json: bool, config: Config = DEFAULTS) -> int:
    """Exit 0: every node answered; 3: some did not, or their GPUs or ranks could not be read."""
    targets = resolve(options)
    path = targets.recording
    machines = Machines(targets, options, "samples", most_interval_s=FIRST_LOOK_S) if path is None else None
    from mltop.probes.investigate.diagnosis import diagnosed  # while the agents start
    from mltop.probes.judge.states import states_of
    from mltop.tui.report import print_snapshot

    if machines is not None:
        with machines:
            views = machines.await_nodes(Complete(machines.deadline))
            machines.stderr.last_failures(unreached(views))
        nodes = [view.state for view in views]
        samples = [view.sample for view in views if view.sample is not None]
    elif path is not None:
        content = saved(path)
        nodes, samples = content.nodes, content.newest
        if not samples:
            say(f"{path}: no samples in it")
    diagnosis = diagnosed(samples, config.thresholds)
    findings, incidents = diagnosis.health.findings(), diagnosis.incidents()
    # Of one sample nobody can say that a job is starting: it may have run, or hung, for days.
    motions = [motion for motion in diagnosis.motions.motions() if motion.phase != "starting"]
    answer = {"nodes": nodes, "samples": samples, "findings": findings, "incidents": incidents}

    def show(console: Console) -> None:
        print_snapshot(samples, findings, nodes, console, states_of(motions, incidents))

    put_answer(as_json, answer, show)
    unread = any(unread_ranks(sample) or unread_gpus(sample) for sample in samples)
    return 0 if samples and len(samples) == len(nodes) and not unread else EXIT_UNREACHABLE
