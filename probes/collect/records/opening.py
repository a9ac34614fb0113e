"""Opens a record: a regular file of bounded size, of whom it should be, and not older than the process that it is of.

Its path is a stranger's word: pipes and devices are not opened, and what belongs to another user is not read for this
one (whoever runs mltop as root lends nobody his eyes). Python 3.9.
"""

from __future__ import annotations

import os
from pathlib import Path

from mltop.probes.model.units import size_words
from mltop.probes.system.files import BadFile, blocks, open_regular

MOST_BYTES = 32 << 20  # 2,000 entries with their stacks have 8 MB
STALE_SLACK_S = 2.0  # starts are told by the boot time, which is cut to seconds


class Unusable(Exception):
    """It cannot be used; the text says why in a few words, without the path."""


def read_of(
    path: Path | str, most_bytes: int, *, started_at: float | None = None, uid: int | None = None
) -> tuple[bytes, float]:
    """The content, and when it was written (unix s). Raises Unusable."""
    try:
        descriptor = open_regular(path)
    except BadFile:
        raise Unusable("it is no regular file") from None
    except OSError as error:
        raise Unusable(f"it cannot be opened: {error.strerror or error}") from None
    try:
        status = os.fstat(descriptor)
        if uid is not None and status.st_uid != uid:
            raise Unusable("it belongs to another user than the rank")
        if started_at is not None and status.st_mtime < started_at - STALE_SLACK_S:
            raise Unusable("it is older than the process: an earlier job wrote it")
        if status.st_size > most_bytes:
            raise Unusable(f"it is larger than {size_words(most_bytes)}, the most that mltop reads of such a file")
        return b"".join(blocks(descriptor, most_bytes, Path(path))), status.st_mtime
    except BadFile:
        raise Unusable(
            f"it is larger than {size_words(most_bytes)}, the most that mltop reads of such a file"
        ) from None
    except OSError as error:
        raise Unusable(f"it cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
