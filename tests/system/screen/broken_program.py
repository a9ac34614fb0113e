"""Run by tests in a terminal of its own: `mltop demo` with one fault in the screen, named by the first argument."""

from __future__ import annotations

import sys
from typing import Any

from mltop.tui import cli
from mltop.tui.app import app as screen
from mltop.tui.app.feed import Feed
from mltop.tui.screens.node.screen import OverviewScreen
from mltop.tui.screens.ranks.screen import RanksScreen
from mltop.tui.terminal.driver import WaitingDriver
from mltop.tui.widgets.cell_lines import CellLines
from mltop.tui.widgets.cell_view import CursorView

SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"


def fail(*_: Any, **__: Any) -> Any:
    data = "the user's data"
    raise ValueError(f"a made-up fault {len(data)}, token={SECRET}\x1b[31m\nTraceback of nobody")


async def fail_later() -> None:
    fail()


def timer(self: Any) -> None:
    self.set_interval(0.05, fail)


def worker(self: Any) -> None:
    self.run_worker(fail_later())


def callback(self: Any) -> None:
    self.app._loop.call_soon(fail)


def thread(self: Any) -> None:
    import threading

    threading.Thread(target=fail, name="a-thread").start()


FAULTS: dict[str, tuple[type, str, Any]] = {
    "compose": (OverviewScreen, "compose", fail),
    "mount": (OverviewScreen, "on_mount", fail),
    "made": (OverviewScreen, "__init__", fail),
    "later pane": (RanksScreen, "compose", fail),
    "layout": (CellLines, "_get_box_model", fail),
    "paint": (CellLines, "paint_line", fail),
    "whole paint": (CursorView, "render_lines", fail),
    "draw": (OverviewScreen, "fill", fail),
    "timer": (OverviewScreen, "on_show", timer),
    "worker": (OverviewScreen, "on_show", worker),
    "callback": (OverviewScreen, "on_show", callback),
    "thread": (OverviewScreen, "on_show", thread),
    "keys": (WaitingDriver, "run_input_thread", fail),
    "app": (screen.MltopApp, "__init__", fail),
    "app's mount": (screen.MltopApp, "on_mount", fail),
    "feed": (Feed, "start", fail),
    "end": (screen.MltopApp, "_close_all", fail),
}


def main() -> None:
    owner, name, fault = FAULTS[sys.argv[1]]
    setattr(owner, name, fault)
    sys.argv = ["mltop", "demo", *sys.argv[2:]]
    cli.main()


if __name__ == "__main__":
    main()
