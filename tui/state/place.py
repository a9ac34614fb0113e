"""Where the state is: ``$MLTOP_STATE_DIR``, or the user's state directory (XDG_STATE_HOME/mltop)."""

from __future__ import annotations

import os
from pathlib import Path

from mltop.probes.record import write_file


class BadState(Exception):
    """A state file that cannot be used; the message is one line with its path."""


def state_file(name: str) -> Path:
    import platformdirs

    chosen = os.environ.get("MLTOP_STATE_DIR")
    return (Path(chosen) if chosen else Path(platformdirs.user_state_dir("mltop"))) / name


def write_state(path: Path, text: str) -> None:
    """Appears whole or not at all, 0600. Raises BadState."""
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise BadState(f"{path}: cannot be written: {error.strerror}") from None
