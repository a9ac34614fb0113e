"""Parts of the screen that survive what fails in them."""

from __future__ import annotations

from typing import Any

from textual.message_pump import MessagePump

from mltop.tui.mishaps import MISHAPS


class Unbroken(MessagePump):
    """A part of the screen whose handlers may fail: Textual would end the program at the first one."""

    async def _dispatch_message(self, message: Any) -> None:
        try:
            await super()._dispatch_message(message)
        except Exception as error:  # noqa: BLE001 - likewise
            MISHAPS.take(f"{type(self).__name__} at {type(message).__name__}", error)
