"""The command line. Thin: what a command needs is imported when the command runs (a test asserts it)."""

# ruff: noqa: E402 - Ctrl-C may come while the rest is imported

from __future__ import annotations

from mltop.tui import starting

starting.end_quietly_on_interrupt(only_as="mltop")

import sys
from functools import partial
from typing import Any

import click

from mltop.probes.reach import UsageProblem
from mltop.probes.system import as_root
from mltop.probes.version import __version__
from mltop.tui.app import output
from mltop.tui.commands.options import (
    ASCII,
    BACKEND,
    COLLECTIVE,
    DTYPE,
    INTERVAL,
    JSON,
    OF_PROBES,
    RANKS,
    READ_ONLY,
    SIZE,
    SIZES,
    TARGETS,
    TARGETS_OR_RECORDING,
    TYPED,
    Seconds,
    command,
    once,
    run_command,
    taken,
    targets_named,
    with_options,
)
from mltop.tui.config.effective import effective
from mltop.tui.exits import EXIT_INTERRUPTED, EXIT_OUTPUT, EXIT_OUTPUT_ENDED, EXIT_USAGE, interrupted_by

EPILOG = """\b
TARGETS:  -w node[01-16,20]  --hostfile FILE  --job SLURM_ID  (several add up)
          the screen, snapshot, check and stacks also take --recording PATH: a capture or a recording instead
          none: the Slurm job that mltop runs in, else the hosts in $WCOLL, else this machine
          (always this machine: --via local).
          @NAME: targets that the configuration file names (mltop config).
          -w takes ClusterShell's node sets and groups: node[1-8/2], @rack4, node[1-9]!node5, user@node1.
Nothing needs to be installed on the nodes but Python 3.9 or newer; with --via pdsh, the agent.
Shell completion:  eval "$(_MLTOP_COMPLETE=bash_source mltop)"   (or zsh_source, fish_source)
"""


class MltopGroup(click.Group):
    """`mltop @prod` and `mltop @prod check`: what the configuration names stands where commands do, as a group that is
    like the whole.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if not cmd_name.startswith("@"):
            return super().get_command(ctx, cmd_name)
        alike = MltopGroup(cmd_name, self.commands, invoke_without_command=True, params=self.params)
        alike.callback = self.callback
        return alike


@click.group(
    cls=MltopGroup,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="mltop", message="%(prog)s %(version)s")
@partial(with_options, options=TARGETS)
@once("--recording", metavar="PATH", help="Show a capture or a recording instead of machines.")
@ASCII
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal.")
@click.option("--capture-on-hang", default="", metavar="DIR", help="Save a capture there when a job hangs.")
@click.pass_context
def cli(context: click.Context, /, **values: Any) -> int:
    """Watch GPU training nodes live and find the rank that hangs a distributed job.

    Without a command: the screen.
    """
    word = context.invoked_subcommand
    named = (context.info_name or "")[1:] if context.parent is not None else ""
    if named:
        of_names = targets_named([named], effective().targets)
        nodes = (*(context.obj or {}).get("nodes", ()), *of_names.get("nodes", ()))
        context.obj = {**(context.obj or {}), **of_names, **({"nodes": nodes} if nodes else {})}
    typed = context.meta[TYPED] = {**context.meta.get(TYPED, {}), **{key: values[key] for key in OWN if values[key]}}
    if word is None and (values["recording"] or (context.obj or {}).get("recording")):
        if values.pop("capture_on_hang"):
            raise UsageProblem("--capture-on-hang", "is nothing to a recording")
        return run_command(context, "replay", {**values, **typed})
    if word is None:
        return run_command(context, "screen", {**values, **typed})
    context.obj = {**(context.obj or {}), **taken(values)}
    if word.startswith("@"):
        return 0
    if "capture_on_hang" in typed:
        raise UsageProblem("--capture-on-hang", f"is nothing to mltop {word}: it is the screen's")
    if "recording" in context.obj and not _looks_at_machines(cli.commands[word]):
        raise UsageProblem("--recording", f"is nothing to mltop {word} (check, snapshot and stacks take it)")
    return 0


OWN = ("ascii_only", "no_mouse", "capture_on_hang")  # options that are no targets


def _looks_at_machines(command: click.Command) -> bool:
    """Whether it takes nodes: such a command says itself what a recording is to it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return any(option.name == "nodes" for each in (command, *below) for option in each.params)


@command(cli, *TARGETS_OR_RECORDING, JSON)
def snapshot() -> None:
    """One sample of everything."""


@command(
    cli,
    *TARGETS_OR_RECORDING,
    JSON,
    click.option("--expect-gpus", type=click.IntRange(0, 64), metavar="N", help="GPUs every node must have."),
    click.option(
        "--allow-unknown",
        "allowed_unknown",
        multiple=True,
        metavar="WHAT",
        help="What may be unknown, e.g. kernel_log.",
    ),
    click.option("-v", "--verbose", is_flag=True, help="What is only worth knowing, and evidence, too."),
)
def check() -> None:
    """Health rules, for prolog and epilog: exit 0 fine, 1 warnings, 2 critical, 3 unreachable or unknown.

    Prints nothing when all is well. With --recording: everything that was wrong in it.
    """


@command(
    cli,
    *TARGETS_OR_RECORDING,
    click.option("--samples", type=click.IntRange(1, 100), metavar="N", help="Dump N times (default: until sure)."),
    once("--pid", "pids", metavar="PID[,PID]", help="These processes of one node, of a job or of none."),
    click.option("--native", is_flag=True, help="C frames too (slower, stops each process for ~20 ms)."),
    click.option(
        "--locals", "locals_", type=click.Choice(["ints", "none"]), default="ints", help="Integer locals, or none."
    ),
    JSON,
    click.option("--raw", is_flag=True, help="Every process's stack as py-spy saw it, a JSON line each."),
    click.option("--ras", is_flag=True, help="Ask NCCL's RAS, too, about stuck jobs (a minute; see above)."),
    click.option("--ras-any-version", is_flag=True, help="--ras, also where NCCL is older than 2.29.2, or unknown."),
)
def stacks() -> None:
    """Dump every rank's stack, merge them, and say which rank hangs and where.

    Flight records that ranks have left are read, too. --ras asks NCCL itself, twice, half a minute apart: who has
    launched less than others, who does not answer. NCCL has had errors by which a question crashes the rank that
    answers, and with it the job: in versions before 2.29.2 where a rank is gone, in all while communicators are made.
    So it is asked only about a job that is seen to stand, that is older than five minutes, and that makes none.
    """


@command(
    cli,
    *TARGETS,
    click.option(
        "-o",
        "directory",
        metavar="PATH",
        help="A new directory or .tar.gz (default: mltop-capture-TIME here).",
    ),
    click.option("--tar", "packed", is_flag=True, help="One file to send: .tar.gz."),
)
def capture() -> None:
    """Save everything needed to explain a hang later, in one directory or .tar.gz."""


@command(
    cli,
    click.argument("paths", metavar="[PATH]...", nargs=-1),
    once("--job", metavar="ID", help="A Slurm job: sacct and scontrol say where its output is."),
    JSON,
    click.option("-v", "--verbose", is_flag=True, help="All quoted lines, and every way in which ranks ended."),
)
def explain() -> None:
    """Who failed first in a job that is dead, from its logs alone.

    Exit 0: it ended well, or was stopped from outside; 1: explained; 3: it cannot be told.

    PATH: log files, folders of them, Slurm's outputs, torchrun's log folder, error files; plain or compressed; - for
    standard input. Nodes and rights are not needed.
    """


@command(
    cli,
    *TARGETS,
    click.option("-o", "path", required=True, metavar="FILE", help="A new file, .jsonl or .jsonl.gz."),
    click.option("--for", "duration_s", type=Seconds(1.0, 1e8), metavar="S", help="For so long; else until Ctrl-C."),
)
def record() -> None:
    """Write samples into a file as they come, for mltop replay."""


@command(cli, click.argument("path", metavar="PATH"), once("--job", metavar="ID", help="Stacks of this job only."))
def replay() -> None:
    """Show a recording or a capture on the screen: play, pause, step, jump to what happened."""


@command(
    cli,
    click.option(
        "--nodes", "node_count", type=click.IntRange(1, 4096), default=1, metavar="N", help="Simulate a fleet."
    ),
    INTERVAL,
    READ_ONLY,
)
def demo() -> None:
    """Show mltop without a GPU: a real CPU job that hangs, simulated GPUs."""


@command(cli, click.argument("topic", required=False))
def help() -> None:  # noqa: A001 - the command's name
    """Explain a topic, offline; without one: list the topics."""


@command(cli, JSON)
def config() -> None:
    """The configuration that holds, as a file, and where each value comes from."""


@command(cli, *TARGETS, JSON)
def doctor() -> None:
    """What works here, what does not, and the command that fixes it."""


@command(
    cli,
    *TARGETS,
    click.option("--learn", "do_learn", is_flag=True, help="From now on the lines found are known."),
    click.option(
        "--all", "everything", is_flag=True, help="Also lines that are known, or that most of the nodes have."
    ),
    JSON,
)
def kernel() -> None:
    """Lines in the kernel logs that were never seen before, here or on other nodes."""


@cli.group(invoke_without_command=True)
@click.pass_context
def lemon(context: click.Context, /) -> int:
    """GPUs that gave trouble before: check and the screen know them when they come back."""
    return run_command(context, "lemon", {}) if context.invoked_subcommand is None else 0


@command(lemon, click.argument("gpu"), click.argument("why", nargs=-1))
def add() -> None:
    """Note a GPU by its UUID or serial number, and why."""


@command(lemon, click.argument("gpu"))
def remove() -> None:
    """Take a GPU off the list."""


@cli.group(no_args_is_help=False)  # its help would be one line of 600 characters on stderr
def probe() -> None:
    """Measure what the hardware gives: exit 0 fine, 1 somebody is slow or wrong, 3 something was not measured.

    GPUs in use are left alone. Nothing of it stays on the nodes.
    """


@command(probe, *OF_PROBES, DTYPE)
def matmul() -> None:
    """Matrix products on every GPU: burst (mamf-finder's method) and sustained, with clocks, power and bit errors."""


@command(
    probe,
    *OF_PROBES,
    COLLECTIVE,
    SIZES,
    click.option("--sweep", is_flag=True, help="Many sizes, for the curve."),
    RANKS,
    BACKEND,
    click.option("--script", is_flag=True, help="Only print the script of the equivalent torchrun command."),
)
def all_reduce() -> None:
    """All-reduce over all GPUs of one node or many: bus bandwidth, and who is late."""


@command(probe, *OF_PROBES, SIZE)
def memory() -> None:
    """Copy within each GPU's memory."""


@command(probe, *OF_PROBES, SIZE)
def copies() -> None:
    """Host to GPU and back, each alone and all at once, and between GPUs."""


@command(
    probe,
    *OF_PROBES,
    SIZE,
    click.option("--round-robin", is_flag=True, help="Every pair once: finds bad links between good nodes."),
    RANKS,
    BACKEND,
)
def pairs() -> None:
    """All-reduce between pairs of nodes: which of them is the bad one."""


def main() -> None:
    """The `mltop` command. Bad usage: one line on stderr and exit code 2, never a traceback."""
    try:
        starting.interrupt_again()
        output.open_streams()
        output.one_line_for_crashes()
        if output.wants_ascii():
            output.only_ascii()
        as_root.clean_here()
        if as_root.LEFT_OUT:
            output.say(f"root takes nothing from its environment that others can change, not {as_root.in_words()}")
        code = cli.main(prog_name="mltop", standalone_mode=False)
        output.flush()
    except click.ClickException as error:
        code = complain(usage_sentence(error))
    except UsageProblem as problem:
        code = complain(str(problem))
    except KeyboardInterrupt as interrupt:
        code = interrupted_by(interrupt)
    except click.Abort:
        code = EXIT_INTERRUPTED
    except output.OutputEnded:
        code = EXIT_OUTPUT_ENDED
    except output.OutputFailed as failure:
        code = complain(f"output: {failure}", EXIT_OUTPUT)
    except Exception as error:  # noqa: BLE001 - the last resort: the exit code says that nothing was judged
        from mltop.tui.app.crash import end_by

        code = end_by([error])
    output.finish()
    if code == EXIT_USAGE:
        sys.exit(code)  # nothing was begun
    starting.leave(code or 0)


def complain(sentence: str, code: int = EXIT_USAGE) -> int:
    output.say(sentence)
    return code


def usage_sentence(error: click.ClickException) -> str:
    """click's message as ``what: why (what to do)`` on one line."""
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "mltop"
    if isinstance(error, click.NoSuchOption):
        near = f", did you mean {' or '.join(error.possibilities)}" if error.possibilities else ""
        return f"{error.option_name}: no such option{near} (see {command} --help)"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message[:1].lower()}{message[1:]} (see {command} --help)"
