"""Reading the small files of /sys that are rarely looked at."""

from __future__ import annotations

import os

READ_BYTES = 4096  # a page: no attribute is longer


def read_small(path: str) -> bytes | None:
    """None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(descriptor, READ_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
