"""Whether the terminal keeps up with what is drawn."""

from __future__ import annotations

from typing import Any

from textual.app import App


def terminal_busy(app: App[Any]) -> bool:
    """True while output still waits to be written: drawing now would only delay what the next key shows.

    Textual's writer thread holds at most 30 writes and then blocks the whole loop, and no public API tells
    how many wait (``textual.drivers._writer_thread``). Where that thread does not exist, the answer is False.
    """
    driver = getattr(app, "_driver", None)
    writer = getattr(driver, "_writer_thread", None)
    queue = getattr(writer, "_queue", None)
    waiting = getattr(queue, "qsize", None)
    return bool(waiting is not None and waiting() > 0)
