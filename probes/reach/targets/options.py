"""The TARGETS options as typed."""

from __future__ import annotations

from dataclasses import dataclass

from mltop.probes.reach.errors import UsageProblem


@dataclass(frozen=True)
class TargetOptions:
    """() or "" where not given. ``via``: ssh, pdsh, srun, local, or "" for what suits each node."""

    nodes: tuple[str, ...] = ()
    hostfile: str = ""
    job: str = ""
    recording: str = ""
    via: str = ""
    python: str = ""
    interval_s: float = 1.0
    timeout_s: float = 30.0
    user: str = ""
    accept_new: bool = False

    def merged(self, over: TargetOptions) -> TargetOptions:
        """Options given before the command hold unless they are given again after it."""
        default = TargetOptions()
        values = {
            name: getattr(over, name) if getattr(over, name) != getattr(default, name) else value
            for name, value in vars(self).items()
        }
        return TargetOptions(**values)


def check_numbers(options: TargetOptions) -> None:
    """UsageProblem names an interval or a timeout that makes no sense."""
    if not 0.1 <= options.interval_s <= 3600:
        raise UsageProblem(f"--interval {options.interval_s:g}", "must be between 0.1 and 3600 seconds")
    if not 0.1 <= options.timeout_s <= 86400:
        raise UsageProblem(f"--timeout {options.timeout_s:g}", "must be between 0.1 and 86400 seconds")
