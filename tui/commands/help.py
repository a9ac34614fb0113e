"""`mltop help [TOPIC]`: the Markdown files of ``tui/help``, the judge's tables and the terms; of a command, its
``--help``.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click
from rich.console import Console

from mltop.probes.reach import UsageProblem
from mltop.probes.reach.targets import TargetOptions
from mltop.tui.app.output import put, put_lines
from mltop.tui.report.page import Page
from mltop.tui.screens.help.terms import TERMS

ROOT = Path(__file__).parents[2]
PLACES = ("tui/help/*.md", "probes/judge/health/RULES.md", "probes/judge/probes/hardware/PEAKS.md")
MOST_COLUMNS = 120  # longer lines are hard to read


def files() -> dict[str, Path]:
    """Each topic's file, by the topic's name."""
    found = {path.stem.lower(): path for place in PLACES for path in ROOT.glob(place)}
    return dict(sorted(found.items()))


def terms() -> str:
    """What the words and marks of the screen mean, as Markdown."""
    table = "| term | means |\n|---|---|\n"
    parts = [
        f"## {title}\n\n{table}" + "".join(f"| {term} | {what} |\n" for term, what in rows) for title, rows in TERMS
    ]
    return "\n".join(["# Terms: words and marks of the screen\n", *parts])


def topics() -> dict[str, str]:
    """The text of each topic, by its name; the first line is its title."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in files().items()}
    return dict(sorted({**texts, "terms": terms()}.items()))


def run(options: TargetOptions, topic: str | None) -> int:  # noqa: ARG001 - no machine is asked
    """Print a topic; a command that has none prints its ``--help``."""
    texts = topics()
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    if topic is None:
        width = max(map(len, texts))
        for name, text in texts.items():
            put(f"{name:<{width}}  {text.splitlines()[0].removeprefix('# ')}")
    elif topic in texts:
        console = Console()
        console.width = min(console.width, MOST_COLUMNS)
        Page(console).markdown(texts[topic])
    elif (command := root.command.get_command(root, topic)) is not None and not topic.startswith("@"):
        put_lines(command.get_help(click.Context(command, parent=root, info_name=topic)))
    else:
        near = get_close_matches(topic, [*texts, *root.command.commands])
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageProblem(f"help {topic}", "no such topic", f"{meant}mltop help lists them")
    return 0
