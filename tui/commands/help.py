"""`mltop help [TOPIC]`: the Markdown files of ``tui/help`` and the judge's tables; of a command, its ``--help``."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click
from rich.console import Console

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import put, put_lines
from mltop.tui.report.page import Page

ROOT = Path(__file__).parents[2]
PLACES = ("tui/help/*.md", "probes/judge/health/RULES.md", "probes/judge/probes/hardware/PEAKS.md")
MOST_COLUMNS = 120  # longer lines are hard to read


def files() -> dict[str, Path]:
    """Each topic's file, by the topic's name."""
    found = {path.stem.lower(): path for place in PLACES for path in ROOT.glob(place)}
    return dict(sorted(found.items()))


def run(options: TargetOptions, topic: str | None) -> int:  # noqa: ARG001 - no machine is asked
    """Print a topic; a command that has none prints its ``--help``. The first line of a topic is its title."""
    topics = {name: path.read_text(encoding="utf-8") for name, path in files().items()}
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    if topic is None:
        width = max(map(len, topics))
        for name, text in topics.items():
            put(f"{name:<{width}}  {text.splitlines()[0].removeprefix('# ')}")
    elif topic in topics:
        console = Console()
        console.width = min(console.width, MOST_COLUMNS)
        Page(console).markdown(topics[topic])
    elif (command := root.command.get_command(root, topic)) is not None and not topic.startswith("@"):
        put_lines(command.get_help(click.Context(command, parent=root, info_name=topic)))
    else:
        near = get_close_matches(topic, [*topics, *root.command.commands])
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageProblem(f"help {topic}", "no such topic", f"{meant}mltop help lists them")
    return 0
