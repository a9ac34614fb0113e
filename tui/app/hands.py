"""What keys and typed orders do on every pane: where they lead, what they change, and that a key does nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from textual.events import Key

from mltop.probes.reach.view import NodeView
from mltop.probes.system.files import new_file
from mltop.tui.app.acting import READ_ONLY, ActingApp
from mltop.tui.app.keys import APP_BINDINGS, action_names, key_name
from mltop.tui.app.looks import THEMES
from mltop.tui.app.navigation import Location, Trail
from mltop.tui.app.resources import DEFAULT, Order, Scene
from mltop.tui.app.selection import Looked
from mltop.tui.app.shapes import Shapes, columns_of, sort_of
from mltop.tui.render.acts import shell_lines
from mltop.tui.render.advice import KEYCAPS
from mltop.tui.screens.bars import LineHistory, Notice, TypedBox
from mltop.tui.terminal.driver import Guest

if TYPE_CHECKING:
    from textual.binding import Binding

    from mltop.tui.app.feed import Picture
    from mltop.tui.app.stalls import StallWatch
    from mltop.tui.config.settings import Config
    from mltop.tui.filters import Filter
    from mltop.tui.widgets.line_table import LineTable

MOST_OF_ONE_SECOND = 100  # files
ARRIVED_S = 1.0  # a pane that takes longer to come is not waited for by the next key
NOT_BOUND = "not bound here"


class PaneScreen(Protocol):
    """What the app asks of the pane the user is in: ``screens.pane.Pane``."""

    filter: Filter

    @property
    def typing(self) -> bool: ...

    @classmethod
    def pane_bindings(cls) -> list[Binding]: ...

    def draw(self) -> None: ...

    def prepare(self, picture: Picture) -> Iterator[None]: ...

    def clear_filter(self) -> bool: ...

    def node_at_cursor(self) -> str: ...

    def set_filter(self, text: str) -> None: ...

    def sortable_tables(self) -> Sequence[LineTable]: ...

    def open_command_line(self, text: str, scene: Scene) -> None: ...

    async def perform(self, action: str) -> None: ...


class HandsApp(ActingApp):
    """``looked``: the one thing that the user looks at, on whichever pane; ``guest``: a shell that has the terminal."""

    config: Config
    shapes: Shapes
    trail: Trail
    stalls: StallWatch
    looked: Looked
    command_history: LineHistory
    guest: Guest | None = None
    exporting: threading.Thread | None = None  # the last export: leaving waits for it
    notice: Notice | None
    _terminal_title: str
    _arriving = False  # whether the pane where the user is has not been shown yet
    unbound: str  # the key that was said to do nothing last, until another one does something

    @property
    def pane(self) -> PaneScreen:
        """The pane of the current mode, also while a question lies over it."""
        return cast("PaneScreen", self.screen_stack[0])

    # Where keys lead.

    def drill(self, location: Location) -> None:
        """Go deeper; Esc comes back here."""
        self.trail.drill(location)
        self.look_at(location)
        self.arrive()

    def arrive(self) -> None:
        """Show the pane where the user is now."""
        self.notice, self._arriving = None, True
        self.call_later(self._show_here)

    async def _show_here(self) -> None:
        """Several keys may have come since this call was made."""
        self._arriving = False
        if self.current_mode != self.trail.here.pane:
            await self.open_mode(self.trail.here.pane)
        else:
            self.redraw()

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        """As ``App._check_bindings``. Of several keys that come in one go each means the pane that those before it lead
        to, with its rows and its cursor.
        """
        if self._arriving and not priority:
            await self._show_here()
            resumed = asyncio.Event()
            if self.screen.call_later(resumed.set):  # behind what gives the focus to a table
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(resumed.wait(), ARRIVED_S)
            self.pane.draw()
        return await super()._check_bindings(key, priority)

    def beside(self, location: Location) -> None:
        """Go to a neighbour of what is shown."""
        self.trail.replace(location)
        self.look_at(location)
        self.pane.draw()

    def look_at(self, location: Location) -> None:
        """Who goes somewhere looks at what that is about."""
        if location.node:
            same = location.node == self.looked.node
            gpu = location.gpu if location.gpu is not None or not same else self.looked.gpu
            self.looked = Looked(location.node, gpu, location.pid or (self.looked.pid if same else 0))

    def say_if_unbound(self, event: Key) -> None:
        """Say once that a key does nothing here; what is typed into a line is no key."""
        if len(self.screen_stack) > 1 or isinstance(self.focused, TypedBox):
            return
        if event.key in self.active_bindings:
            self.unbound = ""
        elif event.key != self.unbound:
            self.unbound = event.key
            shown = event.character if event.is_printable and event.character else key_name(event.key)
            self.tell(Notice(f"{shown}: {NOT_BOUND} - {KEYCAPS['help']} help", "dim"))

    # Typed orders.

    def action_command_line(self) -> None:
        self.open_command_line("")

    def open_command_line(self, text: str) -> None:
        if len(self.screen_stack) == 1:
            self.pane.open_command_line(text, self.scene())

    def scene(self) -> Scene:
        nodes = self.picture.view.nodes if self.picture is not None else ()
        return Scene(
            nodes,
            self.pane.node_at_cursor() or self.looked.node or (nodes[0].node if nodes else ""),
            [(table.kind, table.columns) for table in self.pane.sortable_tables() if table.kind],
            [name for name in THEMES if name in self.available_themes],
            action_names([*self.pane.pane_bindings(), *APP_BINDINGS]),
        )

    def run_order(self, order: Order) -> None:
        if order.place is not None:
            self.trail.jump(order.place)
            self.look_at(order.place)
            self.arrive()
        elif order.action:
            self.call_later(self.pane.perform, order.action)
        else:
            getattr(self, f"order_{order.verb}")(*order.words)

    def order_quit(self) -> None:
        self.exit()

    def order_filter(self, *words: str) -> None:
        self.pane.set_filter(" ".join(words))

    def order_sort(self, kind: str, word: str) -> None:
        self.shapes.sort(kind, None if word == DEFAULT else sort_of(kind, word))
        self.pane.draw()

    def order_columns(self, kind: str, *words: str) -> None:
        self.shapes.choose(kind, () if DEFAULT in words else columns_of(kind, words))
        self.pane.draw()

    def order_theme(self, name: str) -> None:
        self.theme = name
        self.shapes.chosen("theme", name)
        self.tell(Notice(f"theme {name}", "accent"))

    def order_shell(self, node: str = "") -> None:
        self.ask_shell(node or self.pane.node_at_cursor() or self.looked.node)

    # A file.

    def export(self, content: Mapping[str, object]) -> None:
        """Write what a pane shows, as JSON, 0600, where captures go; says where to, or why not."""
        if self.read_only:
            self.tell(READ_ONLY)
            return
        here, captures = self.trail.here, self.stalls.captures
        about = {
            "pane": here.pane,
            "title": here.title,
            "taken_at": self.picture.view.taken_at if self.picture else None,
        }
        text = json.dumps({"mltop_export": 1, **about, **content}, indent=1)
        name = f"mltop-{here.pane}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder, before = captures.directory if captures is not None else Path(), self.exporting

        def write() -> None:
            if before is not None:
                before.join()
            try:
                path = _written(folder.absolute(), name, text.encode())
            except OSError as error:
                said = Notice(f"not exported: {error.strerror}", "crit")
            else:
                said = Notice("exported to ", "ok", str(path))
            self.call_later(self.tell, said)

        # A file server that does not answer must not hold up the screen.
        self.exporting = threading.Thread(target=write, name="export", daemon=True)
        self.exporting.start()

    # A shell.

    def ask_shell(self, node: str) -> None:
        """Ask, then leave the screen to a shell on this node until that ends."""
        if self.read_only:
            self.tell(READ_ONLY)
            return
        view = next((each for each in self.newest_view().nodes if each.node == node), None)
        if view is None:
            self.tell(Notice("no node is under the cursor for a shell", "warn"))
            return
        if (why := no_shell(view, self.player is not None)) is not None:
            self.tell(Notice(why, "warn"))
            return
        command = shell_command(node, view.connection.via, os.environ)

        def run() -> None:
            self.run_worker(self._shell(command), name="shell")

        self.ask("open a shell?", "open", partial(shell_lines, node, command), run)

    async def _shell(self, command: list[str]) -> None:
        """Leave the terminal to it until it ends. The program goes on meanwhile: who watches it captures hangs."""
        from textual.app import SuspendNotSupported

        said: Notice | None = None
        try:
            with self.suspend():
                try:
                    self.guest = Guest(command)
                    if code := await self.guest.ended():
                        said = Notice(f"{' '.join(command)} ended with {code}", "warn")
                except OSError as error:
                    said = Notice(f"{command[0]}: {error.strerror}", "crit")
                finally:
                    if self.guest is not None:
                        self.guest.hang_up()
                    self.guest = None
                if self._exit:
                    raise asyncio.CancelledError  # nothing is drawn any more
        except SuspendNotSupported:
            said = Notice(f"{command[0]}: cannot run here", "crit")
        self._terminal_title = ""  # it may have set another one
        self.tell(said)


def _written(folder: Path, name: str, data: bytes) -> Path:
    """A new file; one that is there is never replaced. Raises OSError."""
    for number in range(MOST_OF_ONE_SECOND):
        path = folder / f"{name}{f'-{number}' * bool(number)}.json"
        try:
            with new_file(path) as file:
                file.write(data)
        except FileExistsError:
            continue
        except OSError:
            path.unlink(missing_ok=True)  # half a file is none
            raise
        return path
    raise FileExistsError(0, "too many files of this name")


# What ssh takes as a host, and nothing that a shell or ssh's own configuration would expand.
_HOST = re.compile(r"[A-Za-z0-9_\[][\w.@:%\[\]-]*")


def no_shell(view: NodeView, recorded: bool) -> str | None:
    """Why there is no shell on this node: nobody may type into another machine than the one that is named."""
    if recorded:
        return "a recording has no machines: there is nothing to open a shell on"
    if view.connection.via == "local" and view.whole is not None and view.whole.simulated:
        return f"{view.node} is simulated"
    if view.connection.via == "local" and view.connection.hello is None:
        return f"{view.node} has not been reached yet"
    return None if _HOST.fullmatch(view.node) else f"{view.node!r} is no name that ssh is given"


def shell_command(node: str, via: str, environ: Mapping[str, str]) -> list[str]:
    """The user's shell for this machine, else ssh by the user's own configuration."""
    if via == "local":
        return [environ.get("SHELL") or "/bin/sh", "-l"]
    return [shutil.which("ssh") or "ssh", "--", node]
