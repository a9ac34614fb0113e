"""mltop's screen in a terminal of 120x40 beside a training job: what it shows, how it ends, and pictures of it.

Pictures go to the folder `screen` of the results: text and SVG of each pane, and all bytes that mltop wrote.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.hardware import program
from tests.hardware.checks import Check, Told, compare, within
from tests.hardware.context import Context
from tests.hardware.jobs import Job
from tests.hardware.loads import free_gpu

if TYPE_CHECKING:  # pyte and rich are not in every Python that lists the slices
    import pyte

    from tests.terminal import Terminal

START_S = 60.0  # on a busy machine; how long it took is told
SEEN_S = 8.0  # of graphs and rates
PANE_S = 1.5
LOOK_S = 0.02
END_S = 15.0
SIZE = 120, 40
PANES = {
    "1": "main",
    "2": "node",
    "3": "ranks",
    "4": "stacks",
    "5": "links",
    "6": "events",
    "7": "probes",
    "8": "wrong",
}
ROW = re.compile(r"^ *(\d+) +(\d+) +(\d+) ", re.MULTILINE)
AT_WORK = re.compile(r"works|starting|throttled")
MODES = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
USUALLY_ON = ("7", "25")  # wrapping, the cursor
KITTY_KEYS = re.compile(rb"\x1b\[([<>])\d*u")  # set, and set back
CHECKS: tuple[str, ...] = ("starts", "model", "rank", "state", "quits", "restores the terminal")


@dataclass
class Measured:
    """``started_s``: until the rank was on the screen; None: it never was. ``screen``: its text ``SEEN_S`` later.
    ``steps``: of the job meanwhile. ``left``: what is not as before on the terminal after the end.
    """

    index: int
    name: str
    pid: int
    started_s: float | None = None
    screen: str = ""
    state: str = ""
    steps: int = 0
    code: int | None = None
    left: list[str] | None = None


def run(context: Context) -> Iterator[Check]:
    gpu = free_gpu(context)
    with Job(context, "healthy", [gpu["uuid"]]) as job:
        found = Measured(gpu["index"], gpu["name"], job.pids[0])
        watch(context, job, found)
    context.record_json("screen.json", asdict(found))
    yield from checks_of(found)


def watch(context: Context, job: Job, found: Measured) -> None:
    from tests.terminal import Terminal

    folder = context.directory / "screen"
    folder.mkdir()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as state:
        own = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "MLTOP_STATE_DIR": state}
        named = {name: text for name, text in program.environment().items() if name not in ("LINES", "COLUMNS")}
        variables = [f"{name}={text}" for name, text in {**named, **own}.items()]
        with Terminal(["env", "-i", *variables, context.pythons.program, "--via", "local"], *SIZE) as terminal:
            try:
                _look(context, job, terminal, found, folder)
                terminal.send("q")
                found.code = terminal.wait(END_S)
                found.left = left_by(bytes(terminal.raw), terminal.is_cooked())
            finally:
                (folder / "raw").write_bytes(terminal.raw)


def _look(context: Context, job: Job, terminal: Terminal, found: Measured, folder: Path) -> None:
    """A picture of each pane, also of what is there when the rank is not."""
    began_s, before = time.monotonic(), len(job.steps())
    while found.started_s is None and time.monotonic() < began_s + START_S and terminal.wait(0) is None:
        if re.search(rf"\b{found.pid}\b", terminal.text()):
            found.started_s = time.monotonic() - began_s
        time.sleep(LOOK_S)
    if found.started_s is not None:
        time.sleep(min(SEEN_S, context.left_s() / 3))
    found.screen, found.steps = terminal.text(), len(job.steps()) - before
    found.state = state_of(found.screen, found.pid)
    for key, pane in PANES.items():
        if terminal.wait(0) is not None:
            return
        terminal.send(key)
        time.sleep(PANE_S)
        name = f"{key}-{pane}-{SIZE[0]}x{SIZE[1]}"
        (folder / f"{name}.txt").write_text(terminal.text() + "\n", encoding="utf-8")
        (folder / f"{name}.svg").write_text(svg_of(terminal.screen), encoding="utf-8")


def state_of(screen: str, pid: int) -> str:
    """The cell of the column STATE of this process; "" where there is none."""
    lines = screen.splitlines()
    header = next((line for line in lines if re.search(r"\bPID\b.*\bSTATE\b.*\bCPU\b", line)), "")
    row = next((line for line in lines if re.search(rf"\b{pid}\b", line)), "")
    return row[header.index("STATE") : header.index("CPU")].strip() if header else ""


def left_by(raw: bytes, is_cooked: bool) -> list[str]:
    """Modes of the terminal that a program has set and not set back."""
    modes = {name: state for names, state in MODES.findall(raw) for name in names.decode().split(";")}
    left = [f"mode {name} {'on' if state == b'h' else 'off'}" for name, state in modes.items()
            if (state == b"h") != (name in USUALLY_ON)]  # fmt: skip
    keys = KITTY_KEYS.findall(raw)
    left += ["kitty's keys"] if keys.count(b">") > keys.count(b"<") else []
    return left if is_cooked else [*left, "raw mode"]


def svg_of(screen: pyte.Screen) -> str:
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text

    def colour(name: str) -> str | None:
        if name == "default":
            return None
        word = name.replace("bright", "bright_").replace("brown", "yellow")
        return f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else word

    console = Console(record=True, width=screen.columns, file=io.StringIO(), color_system="truecolor")
    for y in range(screen.lines):
        line = Text(no_wrap=True, end="\n")
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            style = Style(color=colour(cell.fg), bgcolor=colour(cell.bg), bold=cell.bold, reverse=cell.reverse)
            line.append(cell.data, style)
        console.print(line, soft_wrap=True)
    return console.export_svg(title="mltop")


def checks_of(found: Measured) -> Iterator[Check]:
    details: dict[str, Any] = {"gpu": found.index, "source": "expected"}
    yield within("starts", found.started_s, 0, START_S, "until the rank is on the screen", "s", **details)
    model = re.search(r"\b[A-Z]{0,3}\d{2,4}[A-Z]?\b", found.name)
    word = model[0] if model else found.name
    first = next(iter(found.screen.strip().splitlines()), "")
    yield compare("model", word if word in found.screen else first, Told(word), **details)
    rows = [[int(number) for number in row] for row in ROW.findall(found.screen)]
    truth = [0, found.index, found.pid]
    yield compare("rank", truth if truth in rows else next(iter(rows), []), Told(truth), **details)
    trains = "agrees" if AT_WORK.match(found.state) else "differs"
    why = f"it made {found.steps} steps meanwhile"
    yield Check("state", trains, found.state or "none", "works, or starting", why, "", details)
    yield compare("quits", found.code, Told(0), **details)
    yield compare("restores the terminal", found.left, Told([]), **details)
