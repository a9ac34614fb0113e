"""What every test leaves behind as it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psutil
import pytest

if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    # Under nohup: we go on ignoring it, what the tests start does not (a handler ends with exec, SIG_IGN does not).
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever mltop keeps for its user is not kept for ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _psutil_reads_this_machine() -> Iterator[None]:
    """A host source over a made-up /proc points psutil at it, for the whole process."""
    yield
    psutil.PROCFS_PATH = "/proc"
