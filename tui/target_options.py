"""The options that say which machines are meant, and how a command of the command line is run with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

INTERVAL = "Between samples (default: 1)."
TIMEOUT = "For the whole command (default: 30; of probes: what they need; the screen has none)."
RECORDING = "A capture or recording instead of machines."
Function = TypeVar("Function", bound=Callable[..., Any])


def machines_or_recording(function: Function) -> Function:
    """The target options of a command that can look at what was recorded as well."""
    return target_options(click.option("--recording", metavar="PATH", help=RECORDING)(function))


def target_options(function: Function) -> Function:
    """The options that say which machines are meant; given to every command."""
    for option in reversed(
        (
            click.option("-w", "nodes", multiple=True, metavar="NODES", help="Nodes, e.g. node[01-16,20] or @group."),
            click.option("--hostfile", metavar="FILE", help="Nodes from a host file (DeepSpeed's, MPI's)."),
            click.option("--job", metavar="SLURM_ID", help="The nodes and ranks of a Slurm job."),
            click.option(
                "--via",
                type=click.Choice(["ssh", "pdsh", "srun", "local"]),
                default=None,
                help="How nodes are reached (default: ssh; inside of a Slurm job its nodes by srun).",
            ),
            click.option("--python", metavar="PATH", help="Python on the nodes (default: the first one)."),
            click.option("--interval", "interval_s", type=float, metavar="S", help=INTERVAL),
            click.option("--timeout", "timeout_s", type=float, metavar="S", help=TIMEOUT),
            click.option("--user", metavar="NAME", help="Login name on the nodes."),
            click.option("--accept-new", is_flag=True, help="Accept host keys never seen before (ssh)."),
        )
    ):
        function = option(function)
    return function


def run_command(context: click.Context, module: str, values: dict[str, Any]) -> int:
    """Import ``mltop.tui.commands.<module>`` and run it with the merged target options."""
    from importlib import import_module

    from mltop.probes.reach.targets import options_from

    options = options_from({**(context.obj or {}), **taken(values)})
    code = import_module(f"mltop.tui.commands.{module}").run(options, **values)
    assert isinstance(code, int)
    return code


def taken(values: dict[str, Any]) -> dict[str, Any]:
    """The target options that were given, out of ``values``: those before the command hold unless given again after it.

    What was not given is None, False for a flag, or () where several may be.
    """
    from mltop.probes.reach.targets import TargetOptions

    found = {name: values.pop(name) for name in TargetOptions.__dataclass_fields__ if name in values}
    return {name: value for name, value in found.items() if value is not None and value is not False and value != ()}
