"""Being somebody else, and having to do with somebody else's files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

NOBODY_KNOWN = 12345  # a uid without an entry in passwd
# Also for root: the process keeps its rights, but its uid is one that nobody knows.
AS_NOBODY_KNOWN = ["unshare", "--user", f"--map-user={NOBODY_KNOWN}", f"--map-group={NOBODY_KNOWN}", "--"]


def without_home() -> dict[str, str]:
    """The environment without anything that says who the user is and where the user's home is."""
    gone = ("HOME", "USER", "LOGNAME", "XDG_", "MLTOP_STATE_DIR")
    return {name: value for name, value in os.environ.items() if not name.startswith(gone)}


def ordinary(argv: Sequence[str]) -> list[str]:
    """The command without root's power over other users' files and modes."""
    if os.geteuid() != 0:
        return list(argv)
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", *argv]


def somebody_elses(tmp_path: Path) -> Path:
    """A folder of another user: one that root gives away, or one of root's."""
    if os.geteuid() != 0:
        return Path("/usr")
    folder = tmp_path / "somebody-elses"
    folder.mkdir()
    os.chown(folder, NOBODY_KNOWN, NOBODY_KNOWN)
    return folder
