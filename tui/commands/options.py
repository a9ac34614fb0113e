"""The options of the command line, and how a command is run with them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from mltop.probes.model.probe_kinds import COLLECTIVES, DTYPE_OF, DTYPES
from mltop.probes.model.vocabulary import ProbeKind
from mltop.probes.reach import INTERVAL_S, TIMEOUT_S, UsageProblem
from mltop.probes.reach.launchers import LAUNCHERS
from mltop.tui.app.output import only_ascii, put_lines, say
from mltop.tui.config.effective import effective
from mltop.tui.config.effective import with_options as settings_with
from mltop.tui.config.settings import Config, Named

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
MOST_BYTES = 64 << 30
_LONGEST_SIZE = 40  # more digits than any size has
# nvidia-smi -L: an index, a UUID, and of older drivers "MIG-GPU-UUID/GI/CI".
_GPU = re.compile(r"\d{1,4}|(?:GPU|MIG)-[\w/-]{1,100}", re.ASCII | re.IGNORECASE)

TYPED = "mltop.typed"  # in the context: options before the command that are no targets

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


# What is typed.


def sizes(text: str) -> tuple[int, ...]:
    """The bytes of e.g. "1M,256M,1G": binary units, at least 4 bytes each. Raises BadParameter."""
    sizes_bytes = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        size = int(float(match[1]) * _UNITS[match[2].lower()]) if match and len(part) <= _LONGEST_SIZE else 0
        if not 4 <= size <= MOST_BYTES:
            raise click.BadParameter(f"{_shown(part.strip())} is no size between 4 bytes and 64G, e.g. 256M")
        sizes_bytes.append(size // 4 * 4)
    return tuple(dict.fromkeys(sizes_bytes))


def gpus(text: str) -> tuple[str, ...]:
    """The parts of e.g. "0,3", indexes or UUIDs. Raises BadParameter."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if not _GPU.fullmatch(name):
            raise click.BadParameter(f"{_shown(name)} is neither an index nor a UUID")
    return names


class Seconds(click.FloatRange):
    """Not nan either, which no comparison finds out of range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


def program(word: str) -> str:
    """``word``, a program on the nodes: a full path, or a name to be found on PATH there. Raises BadParameter."""
    from mltop.probes.system.spawn import why_no_program

    why = why_no_program(word)
    if not why and "/" in word and not word.startswith("/"):
        why = "is no full path"
    if why:
        raise click.BadParameter(f"{_shown(word)} {why}")
    return word


def _shown(word: str) -> str:
    from mltop.probes.reach.targets.nodesets import shown

    return shown(word)


# The options, in the order of the help.


def once(*names: str, **attributes: Any) -> Option:
    """An option that says what is looked at, and may be given once: of two, one would be left out silently."""

    def only(context: click.Context, option: click.Parameter, values: tuple[Any, ...]) -> Any:
        if len(values) > 1:
            raise click.UsageError(f"{option.opts[0]} is given {len(values)} times and takes one value", context)
        return values[0] if values else None

    return click.option(*names, multiple=True, callback=only, **attributes)


INTERVAL_HELP = f"Between samples (default: {INTERVAL_S:g})."
TIMEOUT_HELP = f"For the whole command (default: {TIMEOUT_S:g}; of probes: what they need). On the screen: for a login."
INTERVAL = click.option("--interval", "interval_s", type=float, metavar="S", help=INTERVAL_HELP)
READ_ONLY = click.option(
    "--read-only",
    is_flag=True,
    envvar="MLTOP_READ_ONLY",
    help="Touch no process, load no machine, write no file (or MLTOP_READ_ONLY=1).",
)
ASCII = click.option("--ascii", "ascii_only", is_flag=True, help="No character above 127 (also with LANG=C).")
# Which machines are meant; given to nearly every command.
TARGETS: tuple[Option, ...] = (
    click.option("-w", "nodes", multiple=True, metavar="NODES", help="Nodes, e.g. node[01-16,20] or @group."),
    once("--hostfile", metavar="FILE", help="Nodes from a host file (DeepSpeed's, MPI's)."),
    once("--job", metavar="SLURM_ID", help="The nodes and ranks of a Slurm job."),
    click.option(
        "--via",
        type=click.Choice(list(LAUNCHERS)),
        default=None,
        help="How nodes are reached (default: ssh; inside of a Slurm job its nodes by srun).",
    ),
    click.option("--python", metavar="PATH", help="Python on the nodes (default: the first one)."),
    INTERVAL,
    click.option("--timeout", "timeout_s", type=float, metavar="S", help=TIMEOUT_HELP),
    click.option("--user", metavar="NAME", help="Login name on the nodes."),
    click.option("--accept-new", is_flag=True, help="Accept host keys never seen before (ssh)."),
    READ_ONLY,
)
# Of a command that can look at what was recorded as well.
TARGETS_OR_RECORDING: tuple[Option, ...] = (
    *TARGETS,
    once("--recording", metavar="PATH", help="A capture or recording instead of machines."),
)
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")

# Of every probe, and of some.
OF_PROBES: tuple[Option, ...] = (
    *TARGETS,
    once("--gpus", type=gpus, metavar="LIST", help="These only: indexes or UUIDs."),
    click.option("--force", is_flag=True, help="Also GPUs in use; the node's name must be typed."),
    click.option("--torch-python", type=program, metavar="PATH", help="Python with torch, on the nodes."),
    click.option("--trust-python", is_flag=True, help="As root: also one that other users can change."),
    JSON,
    click.option("-v", "--verbose", is_flag=True, help="Every device, also those that are alike."),
)
DTYPE = click.option(
    "--dtype", type=click.Choice(tuple(DTYPE_OF)), default=DTYPES[0].name, help=f"(default: {DTYPES[0].name})"
)
COLLECTIVE = click.option(
    "--collective", type=click.Choice(COLLECTIVES), default=COLLECTIVES[0], help=f"(default: {COLLECTIVES[0]})"
)
SIZES = once("--sizes", "sizes_bytes", type=sizes, metavar="LIST", help="E.g. 1M,256M,1G.")
SIZE = once("--size", "sizes_bytes", type=sizes, metavar="SIZE", help="E.g. 256M.")
RANKS = click.option("--ranks", type=click.IntRange(0, 128), default=0, metavar="N", help="Per node (one per GPU).")
BACKEND = click.option("--backend", type=click.Choice(["nccl", "gloo"]), help="What the devices need.")


class NamedTargets(click.Argument):
    """ "@prod": targets that the configuration file names."""

    def make_metavar(self, *_: Any, **__: Any) -> str:
        return "[@NAME]"

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        words = super().type_cast_value(ctx, value) or ()
        for word in words:
            if not word.startswith("@"):
                raise click.UsageError(f"got unexpected extra argument ({word})", ctx)
        return tuple(word[1:] for word in words)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        names = [f"@{name}" for name in effective().targets]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


NAMED: Option = click.argument("named", nargs=-1, cls=NamedTargets)


# Running a command.


def with_options(function: Callable[..., Any], options: tuple[Option, ...]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function


def command(group: click.Group, *options: Option) -> Callable[[Callable[[], None]], None]:
    """Add a command with these options, named after the function below, whose docstring is its help.

    It runs ``commands.<name>``, in a group ``commands.<group>``.
    """

    common = (ASCII, NAMED) if TARGETS[0] in options else (ASCII,)

    def add(function: Callable[[], None]) -> None:
        name = function.__name__.replace("_", "-")

        def run(**values: Any) -> int:
            context = click.get_current_context()
            if group.name == "probe":  # its commands are named after the kinds
                return run_probe(context, cast(ProbeKind, name), values)
            if group.name == "lemon":
                return run_command(context, "lemon", {"verb": name, **values})
            return run_command(context, name, values)

        run.__doc__ = function.__doc__
        group.command(name)(with_options(run, (*options, *common)))

    return add


def run_command(context: click.Context, module: str, values: dict[str, Any]) -> int:
    """Import ``mltop.tui.commands.<module>`` and run it with the merged target options."""
    from importlib import import_module

    from mltop.probes.reach.targets import options_from

    config = settings(context, values, module)
    named = targets_named(values.pop("named", ()), config.targets)
    of_config = {"interval_s": config.interval_s} if config.source("interval").origin == "file" else {}
    if config.read_only:
        of_config["read_only"] = True
    options = options_from({**of_config, **(context.obj or {}), **named, **taken(values)})
    if module in CONFIGURED:
        values["config"] = config
    code = import_module(f"mltop.tui.commands.{module}").run(options, **values)
    assert isinstance(code, int)
    return code


CONFIGURED = ("screen", "replay", "demo", "check", "config", "snapshot", "stacks")
SETTINGS_ONLY = ("ascii_only", "no_mouse")  # options that only change settings
_ON_SCREEN = ("screen", "replay", "demo", "config")


def settings(context: click.Context, values: dict[str, Any], module: str = "") -> Config:
    """What holds for this command; mistakes in it are said. Also whether anything above 127 may be drawn."""
    from mltop.tui.config.effective import check_rules, check_screen, check_tables

    typed = {**context.meta.get(TYPED, {}), **{key: value for key, value in values.items() if value}}
    # The list of bad GPUs is in the same folder as what was changed on the screen: it says itself what is wrong there.
    config = settings_with(effective(remembers=module != "lemon"), {**(context.obj or {}), **typed})
    for option in SETTINGS_ONLY:
        values.pop(option, None)
    if config.ascii:
        only_ascii()
    config = check_rules(check_screen(config) if module in _ON_SCREEN else check_tables(config))
    for mistake in config.mistakes:
        say(mistake)
    return config


def targets_named(names: Sequence[str], targets: Mapping[str, Named]) -> dict[str, Any]:
    """The target options of `@NAME`s, whose nodes add up. Raises UsageProblem."""
    given: dict[str, Any] = {}
    for name in names:
        if name not in targets:
            known = ", ".join(f"@{each}" for each in targets) or "none is named yet: [targets]"
            raise UsageProblem(f"@{name}", f"the configuration names no such targets ({known})", "mltop config")
        own = {key: value for key, value in asdict(targets[name]).items() if value}
        for key, value in own.items():
            if key != "nodes" and given.get(key, value) != value:
                raise UsageProblem(f"@{name}", f"has another {key} than the targets before it", "one after the other")
        given = {**given, **own, "nodes": (*given.get("nodes", ()), *own.get("nodes", ()))}
    return {key: value for key, value in given.items() if value}


def run_probe(context: click.Context, kind: ProbeKind, values: dict[str, Any]) -> int:
    from mltop.probes.investigate.probing.wanted import ProbeWanted

    if values.pop("script", False):
        from mltop.probes.investigate.probing.report import script

        put_lines(script())
        return 0
    timeout_s = values.get("timeout_s") or (context.obj or {}).get("timeout_s")
    names = set(ProbeWanted.__dataclass_fields__) - {"nodes", "python"}  # these are target options, too
    own = {name: value for name in names & values.keys() if (value := values.pop(name)) is not None}
    wanted = ProbeWanted(kind, python=values.pop("torch_python") or "", deadline_s=timeout_s or 0.0, **own)
    return run_command(context, "probe", {**values, "wanted": wanted})


def taken(values: dict[str, Any]) -> dict[str, Any]:
    """The target options that were given, out of ``values``: those before the command hold unless given again after it.

    What was not given is None, False for a flag, or () where several may be.
    """
    from mltop.probes.reach.targets import TargetOptions

    given = {name: values.pop(name) for name in TargetOptions.__dataclass_fields__ if name in values}
    return {name: value for name, value in given.items() if value is not None and value is not False and value != ()}
