"""What every test leaves behind as it was."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def _psutil_reads_this_machine() -> Iterator[None]:
    """A host source over a made-up /proc points psutil at it, for the whole process."""
    yield
    psutil.PROCFS_PATH = "/proc"
