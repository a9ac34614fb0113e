"""`python -m tests.screenshots [DIR]`: the README's pictures. `--scenes [NAME ...]`: every state that the first screen
is judged in, and the other panes in a hang, at three sizes, in every kind of terminal.

SVG always, PNG too where ``rsvg-convert`` is installed, of scenes also the text. Two runs give the same pictures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mltop.tui.app.output import say
from tests.scenes import NOW, SCENES, Scene, shown, svg_of, text_of, watched

SIZES = ((80, 24), (120, 40), (200, 60))
# What the environment says of each kind of terminal.
TERMINALS = {
    "dark": {},
    "light": {"COLORFGBG": "0;15"},
    "256": {"COLORTERM": "", "TERM": "xterm-256color"},
    "16": {"COLORTERM": "", "TERM": "xterm"},
    "nocolor": {"NO_COLOR": "1"},
    "ascii": {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"},
}
# The other panes, of a hang: the pictures are looked at as those of the first screen are.
PANES: dict[str, tuple[Scene, tuple[str, ...]]] = {
    "pane-node": (SCENES["hung"], ("2",)),
    "pane-gpu": (SCENES["throttled"], ("2", "j", "enter")),
    "pane-gpu-then": (SCENES["throttled"], ("2", "j", "enter", *["left_square_bracket"] * 9)),
    "pane-ranks": (SCENES["hung"], ("3",)),
    "pane-rank": (SCENES["hung"], ("t", "3", "enter")),
    "pane-stacks": (SCENES["hung"], ("t",)),
    "pane-undumped": (replace(SCENES["hung"], kept=False), ("4",)),
    "pane-links": (SCENES["hung"], ("5",)),
    "pane-events": (SCENES["hung"], ("6",)),
    "pane-incidents": (SCENES["hung"], ("8",)),
    "pane-incident": (SCENES["hung"], ("enter",)),
    "pane-log": (SCENES["hung"], ("3", "l")),
    "pane-help": (SCENES["hung"], ("question_mark",)),
}
SHOWN = {**{name: (scene, ()) for name, scene in SCENES.items()}, **PANES}
CHILD = "MLTOP_SCENES_OF_ONE_TERMINAL"


@dataclass(frozen=True)
class Picture:
    """What to press before the picture is taken."""

    name: str
    scene: Scene
    keys: tuple[str, ...] = ()
    size: tuple[int, int] = (120, 36)


HUNG = Scene(hung_s=95.0)
PICTURES = (
    Picture("overview", SCENES["hung"], ("n",), size=(120, 40)),
    Picture("fine", SCENES["fine"], size=(120, 36)),
    Picture("ranks", HUNG, ("n", "3"), size=(120, 16)),
    Picture("stacks", HUNG, ("n", "t"), size=(120, 30)),
    Picture("gpu", SCENES["throttled"], ("2", "j", "enter"), size=(120, 40)),
    Picture("links", Scene(nodes=8), ("2", "n", "n", "n", "n", "n", "5"), size=(120, 32)),
    Picture("help", HUNG, ("n", "question_mark"), size=(120, 30)),
    Picture("fleet", SCENES["hung-64"], ("n",), size=(120, 40)),
    Picture("probes", Scene(nodes=3), ("M", "enter")),
)


# The demo's story, as (how long it has hung, keys, s that the picture is shown).
STORY: tuple[tuple[float, tuple[str, ...], float], ...] = (
    (-20.0, (), 2.5),
    (4.0, (), 1.5),
    (9.0, (), 2.5),
    (24.0, ("n",), 4.0),
    (27.0, ("n", "enter"), 5.0),
    (33.0, ("n", "t"), 5.0),
)


async def take(scene: Scene, keys: Sequence[str], size: tuple[int, int]) -> tuple[str, str]:
    """The SVG and the text of one picture."""
    app = watched(scene)
    async with app.run_test(size=size) as pilot:
        await shown(app, pilot, keys)
        return svg_of(app), text_of(app)


def write_png(svg: Path) -> bool:
    """PNG beside the SVG; False when no converter is installed. Raises CalledProcessError when it fails."""
    converter = shutil.which("rsvg-convert")
    if converter is None:
        return False
    subprocess.run([converter, "--zoom", "1", "-o", str(svg.with_suffix(".png")), str(svg)], check=True)
    return True


def animate(path: Path) -> None:
    """The demo's story as an animated picture. Needs rsvg-convert, and Pillow."""
    from PIL import Image

    frames = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (hung_s, keys, _) in enumerate(STORY):
            scene = Scene(ranks=4, hung_s=hung_s, dumped=hung_s > 20.0, kept=True, at=NOW + hung_s, step_s=1.0)
            svg, _ = asyncio.run(take(scene, keys, (120, 40)))
            file = Path(folder) / f"{number}.svg"
            file.write_text(svg, encoding="utf-8")
            if not write_png(file):
                say(f"screenshots: no {path.name}: rsvg-convert is not installed (librsvg2-bin)")
                return
            frames.append(Image.open(file.with_suffix(".png")).convert("RGB").quantize(64))
        first, *others = frames
        milliseconds = [round(1000 * seconds) for _, _, seconds in STORY]
        first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True)


def in_terminal(**environment: str) -> None:
    """Pictures must not depend on where or in which terminal they are made."""
    os.environ.update(TZ="UTC", TERM="xterm-256color", COLORTERM="truecolor")
    for name in ("NO_COLOR", "COLORFGBG"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    time.tzset()


def write(svg: str, path: Path) -> None:
    path.write_text(svg, encoding="utf-8")
    if not write_png(path):
        say(f"screenshots: no {path.stem}.png: rsvg-convert is not installed (librsvg2-bin)")


def scenes(directory: Path, names: Sequence[str], sizes: Sequence[tuple[int, int]], terminal: str) -> None:
    """Those of one kind of terminal: which glyphs and colours there are is decided once in a process."""
    in_terminal(**TERMINALS[terminal])
    for name in names:
        scene, keys = SHOWN[name]
        for size in sizes:
            svg, text = asyncio.run(take(scene, keys, size))
            path = directory / f"{name}-{size[0]}x{size[1]}-{terminal}.svg"
            write(svg, path)
            path.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.screenshots", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("screenshots"))
    parser.add_argument("--scenes", nargs="*", metavar="NAME", help=f"of {', '.join(SHOWN)}; none: all")
    parser.add_argument("--terminal", choices=TERMINALS, help="of scenes: this kind only")
    asked = parser.parse_args(arguments)
    asked.directory.mkdir(parents=True, exist_ok=True)
    if asked.scenes is None:
        in_terminal()
        for picture in PICTURES:
            svg, _ = asyncio.run(take(picture.scene, picture.keys, picture.size))
            write(svg, asked.directory / f"{picture.name}.svg")
        animate(asked.directory / "demo.gif")
        return
    names = asked.scenes or list(SHOWN)
    if os.environ.get(CHILD):
        scenes(asked.directory, names, SIZES, asked.terminal)
        return
    for terminal in [asked.terminal] if asked.terminal else TERMINALS:
        variables = {**TERMINALS[terminal], CHILD: "1"}
        command = [sys.executable, "-m", "tests.screenshots", str(asked.directory), "--terminal", terminal]
        environment = {name: value for name, value in {**os.environ, **variables}.items() if value}
        subprocess.run([*command, "--scenes", *names], check=True, env=environment)


if __name__ == "__main__":
    main(sys.argv[1:])
