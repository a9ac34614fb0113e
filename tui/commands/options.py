"""The options that say which machines are meant, and how a command of the command line is run with them.

`mltop probe …` on the command line: one command per kind, each with the options it understands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mltop.probes.investigate.probing.kinds import COLLECTIVES, DTYPES
from mltop.probes.reach.launchers import LAUNCHERS

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
                type=click.Choice(list(LAUNCHERS)),
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


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
MOST_BYTES = 64 << 30
_LONGEST_SIZE = 40  # more digits than any size has
# nvidia-smi -L: an index, a UUID, and of older drivers "MIG-GPU-UUID/GI/CI".
_GPU = re.compile(r"\d{1,4}|(?:GPU|MIG)-[\w/-]{1,100}", re.ASCII | re.IGNORECASE)


class Sizes(click.ParamType[Any]):
    """ "1M,256M,1G": binary units, at least 4 bytes each."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found = []
        for text in str(value).split(","):
            match = _SIZE.fullmatch(text.strip())
            size = int(float(match[1]) * _UNITS[match[2].lower()]) if match and len(text) <= _LONGEST_SIZE else 0
            if not 4 <= size <= MOST_BYTES:
                self.fail(f"{_shown(text.strip())} is no size between 4 bytes and 64G, e.g. 256M", param, ctx)
            found.append(size // 4 * 4)
        return tuple(dict.fromkeys(found))


class Gpus(click.ParamType[Any]):
    """ "0,3" or UUIDs."""

    name = "gpus"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        found = tuple(dict.fromkeys(part.strip() for part in str(value).split(",")))
        for part in found:
            if not _GPU.fullmatch(part):
                self.fail(f"{_shown(part)} is neither an index nor a UUID", param, ctx)
        return found


class Program(click.ParamType[Any]):
    """A program on the nodes: a full path, or a name to be found on PATH there."""

    name = "program"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from mltop.probes.system.spawn import why_no_program

        word = str(value)
        why = why_no_program(word)
        if not why and "/" in word and not word.startswith("/"):
            why = "is no full path"
        if why:
            self.fail(f"{_shown(word)} {why}", param, ctx)
        return word


def _shown(word: str) -> str:
    from mltop.probes.reach.targets.nodesets import shown

    return shown(word)


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--gpus", type=Gpus(), default=(), metavar="LIST", help="These only: indexes or UUIDs."),
        click.option("--force", is_flag=True, help="Also GPUs in use; the node's name must be typed."),
        click.option(
            "--torch-python", "torch_python", type=Program(), metavar="PATH", help="Python with torch, on the nodes."
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object."),
        click.option("-v", "--verbose", is_flag=True, help="Every device, also those that are alike."),
    )
    for option in reversed(options):
        function = option(function)
    return target_options(function)


SIZES = click.option("--sizes", "sizes_bytes", type=Sizes(), default=(), metavar="LIST", help="E.g. 1M,256M,1G.")
SIZE = click.option("--size", "sizes_bytes", type=Sizes(), default=(), metavar="SIZE", help="E.g. 256M.")
RANKS = click.option("--ranks", type=click.IntRange(0, 128), default=0, metavar="N", help="Per node (one per GPU).")
BACKEND = click.option("--backend", type=click.Choice(["nccl", "gloo"]), help="What the devices need.")


@click.group()
@click.pass_context
def probe(context: click.Context, /) -> None:
    """Measure what the hardware gives: exit 0 fine, 1 somebody is slow or wrong, 3 something was not measured.

    GPUs in use are left alone. Nothing of it stays on the nodes.
    """


@probe.command()
@_common
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", help="(default: bf16)")
@click.pass_context
def matmul(context: click.Context, /, **values: Any) -> int:
    """Matrix products on every GPU: burst (as mamf-finder) and sustained, with clocks, power and bit errors."""
    return _run(context, "matmul", values)


@probe.command("all-reduce")
@_common
@click.option("--collective", type=click.Choice(COLLECTIVES), default="all-reduce", help="(default: all-reduce)")
@SIZES
@click.option("--sweep", is_flag=True, help="Many sizes, for the curve.")
@RANKS
@BACKEND
@click.option("--script", is_flag=True, help="Only print the script of the equivalent torchrun command.")
@click.pass_context
def all_reduce(context: click.Context, /, **values: Any) -> int:
    """All-reduce over all GPUs of one node or many: bus bandwidth, and who is late."""
    if values.pop("script"):
        from mltop.tui.commands.probe import print_script

        return print_script()
    return _run(context, "all-reduce", values)


@probe.command()
@_common
@SIZE
@click.pass_context
def memory(context: click.Context, /, **values: Any) -> int:
    """Copy within each GPU's memory."""
    return _run(context, "memory", values)


@probe.command()
@_common
@SIZE
@click.pass_context
def copies(context: click.Context, /, **values: Any) -> int:
    """Host to GPU and back, each alone and all at once, and between GPUs."""
    return _run(context, "copies", values)


@probe.command()
@_common
@SIZE
@click.option("--round-robin", is_flag=True, help="Every pair once: finds bad links between good nodes.")
@RANKS
@BACKEND
@click.pass_context
def pairs(context: click.Context, /, **values: Any) -> int:
    """All-reduce between pairs of nodes: which of them is the bad one."""
    return _run(context, "pairs", values)


def _run(context: click.Context, kind: str, values: dict[str, Any]) -> int:
    from mltop.probes.investigate.probing.wanted import ProbeWanted

    timeout_s = values.get("timeout_s") or (context.obj or {}).get("timeout_s")
    names = set(ProbeWanted.__dataclass_fields__) - {"nodes", "python"}  # these are target options, too
    own = {name: values.pop(name) for name in tuple(values) if name in names}
    own["backend"] = own.get("backend") or ""
    wanted = ProbeWanted(kind, python=values.pop("torch_python") or "", deadline_s=timeout_s or 0.0, **own)
    return run_command(context, "probe", {**values, "wanted": wanted})
