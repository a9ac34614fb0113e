"""The lines at the bottom of every pane: what runs or was said last, the filter while it is typed, and the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widgets import Input

from mltop.probes.investigate.progress import CaptureResult, StackProgress
from mltop.probes.model.text import clean
from mltop.probes.reach.view import FleetView
from mltop.tui.app.selection import first_of
from mltop.tui.filters import Filter
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.render.cells import Cell, clip, flow, line_width
from mltop.tui.render.findings import folded_names
from mltop.tui.render.glyphs import bar
from mltop.tui.render.states import elapsed_text
from mltop.tui.widgets.cell_view import FailSafe

if TYPE_CHECKING:
    from mltop.probes.investigate.probing.wanted import ProbeProgress

PLACEHOLDER = "filter: words, !word, node=gpu0*, sm<20% & power>300W"
MOST_KEPT = 50
BAR_WIDTH = 12
MIN_PATH = 24  # cells: the name of a capture's directory


@dataclass(frozen=True)
class Notice:
    """One sentence for the user: text, path, more; ``style`` as in Cell. It stays until the next one or Esc."""

    text: str
    style: str = ""
    path: str = ""
    more: str = ""


def notice_line(notice: Notice, width: int) -> list[Cell]:
    """Where the line is too long, the path loses its beginning, down to MIN_PATH cells; then the end is cut."""
    parts = [notice.text, notice.path, notice.more]
    room = max(MIN_PATH, width - line_width([Cell(notice.text), Cell(notice.more)]))
    if line_width([Cell(notice.path)]) > room:
        parts[1] = clip(notice.path, room, tail=True)
    return [Cell(part, notice.style) for part in parts if part]


def waiting_for(progress: StackProgress, view: FleetView, dumped: Sequence[str] = ()) -> str:
    """ "waiting for node07 (stale) and 2 more": nodes that are not live and not yet given up; "": there are none.

    ``dumped``: the nodes that the dump is of, none given: all.
    """
    given_up = {node.node for node in progress.not_answered}
    nodes = [node.state for node in view.nodes if not dumped or node.node in dumped]
    silent = [state for state in nodes if state.state != "live" and state.node not in given_up]
    if not silent or progress.phase == "judging":
        return ""
    return f"waiting for {first_of([f'{state.node} ({state.state})' for state in silent], 1)}"


def dump_line(
    progress: StackProgress, width: int, waiting: str = "", scope: str = "", *, cancelling: bool = False
) -> list[Cell]:
    """E.g. ``stacks: dumping  2/4 ranks ━━━───  round 1/2  0.9 s  waiting for n3 (stale)  Esc cancels``.

    ``scope``: "of 3 marked nodes", where that is not all that is watched.
    """
    expected = progress.ranks_expected
    count = f"{progress.ranks_done}/{'?' if expected is None else expected} ranks"
    share = progress.ranks_done / expected if expected else None
    phase = Cell("cancelling", "warn") if cancelling else Cell(progress.phase, "accent")
    parts = [
        (0, [Cell(f"stacks{scope and ' '}{scope}: ", "bold"), phase]),
        (0, [Cell(count)]),
        (5, [Cell(bar(share, BAR_WIDTH), "accent")] if share is not None else []),
        (3, [Cell(f"round {progress.round}/{progress.rounds}")] if progress.rounds else []),
        (1, [Cell(f"{progress.elapsed_s:.1f} s")]),
        (2, [Cell(waiting, "warn")] if waiting else []),
        (4, [] if cancelling else [Cell(f"{KEYCAPS['back']} cancels", "dim")]),
    ]
    return flow(parts, width)


def typing_line(draft: Filter, refused: bool, width: int) -> list[Cell]:
    """What a filter that is typed lacks, else the keys. ``refused``: Enter was pressed all the same."""
    if draft.problem:
        return flow([(0, [Cell(draft.problem, "warn" if refused else "dim")])], width)
    keys = [(0, "Enter keeps"), (1, "Esc clears"), (2, "Up recalls"), (3, "sm=? finds what is unknown")]
    return flow([(priority, [Cell(text, "dim")]) for priority, text in keys], width)


def filter_line(keep: Filter, width: int, counts: tuple[int, int] | None, lines_are: str = "") -> list[Cell]:
    """The filter in force and how many rows of how many it keeps, or why none: ``lines_are`` have no fields."""
    text = [Cell("filter: ", "dim"), Cell(keep.text, "accent")]
    if lines_are and keep.fields:
        why = f"not asked: {lines_are} have no field {keep.fields[0].name!r}, only words"
        return flow([(1, text), (0, [Cell(why, "warn")]), (2, [Cell(f"{KEYCAPS['back']} clears", "dim")])], width)
    count = [Cell(f"shows {counts[0]} of {counts[1]}", "dim")] if counts is not None and not lines_are else []
    return flow([(0, text), (2, count), (1, [Cell(f"{KEYCAPS['back']} clears", "dim")])], width)


def connecting_line(view: FleetView, width: int) -> list[Cell] | None:
    """Which nodes of several have not answered yet; None when all have, or ended."""
    waiting = [node.node for node in view.nodes if node.state.state == "connecting"]
    answered = sum(node.newest is not None for node in view.nodes)
    if not waiting or not answered or len(view.nodes) < 2:
        return None  # where nobody has answered the pane says who is tried
    parts = [
        (0, [Cell("connecting: ", "dim"), Cell(f"{answered} of {len(view.nodes)} nodes have answered", "accent")]),
        (1, [Cell(f"waiting for {folded_names(tuple(waiting))}", "dim")]),
    ]
    return flow(parts, width)


def end_of_dump(progress: StackProgress) -> Notice | None:
    """What to say when a dump is over; a finished one speaks for itself, unless machines did not answer."""
    if progress.phase == "failed":
        return Notice(f"stacks failed: {progress.error}", "crit")
    if progress.phase == "cancelled":
        return Notice(f"stacks: cancelled, {KEYCAPS['dump']} dumps again", "warn")
    silent = [f"{state.node}: {state.reason or state.state}" for state in progress.not_answered]
    return Notice(f"stacks: no full answer from {first_of(silent, 1)}", "warn") if silent else None


def probe_line(progress: ProbeProgress, cancelling: bool, width: int) -> list[Cell]:
    """A running probe, in any pane but its own: ``matmul: running  12 of 125 s  18/24 GPUs  7 shows it``."""
    ended = sum(device.result is not None or bool(device.problem) for device in progress.devices)
    count = f"{ended}/{len(progress.devices)} measured" if progress.devices else ""
    phase = Cell("cancelling", "warn") if cancelling else Cell(progress.phase, "accent")
    parts = [
        (0, [Cell(f"{progress.wanted.kind}: ", "bold"), phase]),
        (1, [Cell(elapsed_text(progress))]),
        (2, [Cell(count)] if count else []),
        (5, [Cell(progress.text, "dim")] if progress.text else []),
        (3, [Cell(f"{KEYCAPS['probes']} shows it", "dim")]),
        (4, [] if cancelling else [Cell(f"{KEYCAPS['back']} cancels", "dim")]),
    ]
    return flow(parts, width)


def end_of_probe(progress: ProbeProgress) -> Notice:
    """What to say in another pane when a probe is over."""
    kind, report = progress.wanted.kind, progress.report
    if progress.phase == "failed":
        return Notice(f"{kind} failed: {progress.text or 'no reason given'}, {KEYCAPS['probes']} shows more", "crit")
    if progress.phase == "cancelled":
        return Notice(f"{kind}: cancelled, {KEYCAPS['probes']} shows what was measured", "warn")
    verdict = report.verdict if report is not None else None
    text = (verdict.text if verdict is not None else "") or "finished"
    return Notice(
        f"{kind}: {text}, {KEYCAPS['probes']} shows all",
        "crit" if verdict is not None and verdict.suspects else "accent",
    )


def end_of_capture(result: CaptureResult) -> Notice:
    """Where the capture went, and what is missing from it."""
    path = str(result.directory)
    if result.error:
        return Notice(f"capture failed: {result.error}", "crit")
    if result.cancelled:
        return Notice("capture cancelled; what was known is in ", "warn", path)
    if not result.problems:
        return Notice("captured to ", "ok", path)
    return Notice("captured to ", "warn", path, f", missing: {first_of(result.problems, 1)}")


class TypedBox(Input):
    """Give it the focus by ``Screen.set_focus``: it is there at once then, ``focus()`` comes too late for the Enter."""

    def __init__(self, **options: Any) -> None:
        super().__init__(compact=True, select_on_focus=False, **options)  # the first letters may come before its focus

    def validate_value(self, value: str) -> str:
        """Cleans what is pasted, as all that is drawn."""
        return clean(value)

    def take(self, event: Key) -> bool:
        """Take a key that went elsewhere as it was typed before this line had the focus; False where it is no text."""
        if event.is_printable and event.character is not None:
            self.replace(event.character, *self.selection)
            return True
        return False


class LineHistory:
    """Lines that were kept with Enter, the newest last."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        if text.strip():
            self._texts = [*(earlier for earlier in self._texts if earlier != text), text][-MOST_KEPT:]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, age: int) -> str:
        """0 is the newest."""
        return self._texts[-1 - age]


class LineOfScreen(FailSafe, TypedBox):
    """A line at the bottom of a pane that is typed, with earlier ones. ``age``: of the earlier one that is shown; -1:
    what is being typed.
    """

    DEFAULT_CSS = """
    LineOfScreen {
        dock: bottom; height: 1; border: none; padding: 0; display: none; background: $background;
    }
    """
    prompt = ""

    def __init__(self, history: LineHistory, **options: Any) -> None:
        super().__init__(**options)
        self.history, self.age = history, -1
        self._typed = ""

    def open_with(self, text: str) -> None:
        self.age, self.display = -1, True
        self.write(text)

    def write(self, text: str) -> None:
        """Put this in place of what is there."""
        self.value = self.prompt + text
        self.cursor_position = len(self.value)

    def action_recall(self, step: int) -> None:
        """Go to an earlier line, or back towards what was being typed."""
        age = self.age + step
        if not -1 <= age < len(self.history):
            return
        if self.age == -1:
            self._typed = self.value.removeprefix(self.prompt)
        self.age = age
        self.write(self._typed if age == -1 else self.history[age])

    async def on_key(self, event: Key) -> None:
        """Keys of this line count at once, not after the text that came behind them; what was still under way when the
        line was closed goes on to those that it is for.
        """
        if not self.display:
            event.prevent_default()
            return
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            event.stop()
            event.prevent_default()
            await self.app.run_action(binding.action, self)

    async def action_submit(self) -> None:
        """Enter is obeyed at once: what is pressed next is a key again, not text."""
        self.take_typed()

    def take_typed(self) -> None:
        raise NotImplementedError


class FilterBox(LineOfScreen):
    """The line in which a filter is typed. ``keep`` is called by Enter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "recall(1)", "earlier", show=False),
        Binding("down", "recall(-1)", "later", show=False),
    ]
    DEFAULT_CSS = "FilterBox { margin-bottom: 2; }"

    def __init__(self, history: LineHistory, keep: Callable[[str], None], **options: Any) -> None:
        super().__init__(history, placeholder=PLACEHOLDER, **options)
        self._keep = keep

    def open_with(self, text: str) -> None:
        super().open_with(text)
        self.select_all()

    def take_typed(self) -> None:
        self._keep(self.value)
