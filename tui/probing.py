"""The active probe that runs, those of this session before, and what is kept of earlier ones. In the UI loop only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual.message import Message

from mltop.tui.session import Cancellable, Probes, RemembersProbes, Session

if TYPE_CHECKING:  # not before the first paint
    from mltop.probes.investigate.probing.wanted import ProbeProgress, ProbeWanted
    from mltop.probes.model.probe import PastResult

MOST_KEPT = 20  # runs of this session


class ProbeMoved(Message):
    """Progress of run number ``run``, posted from the session's thread; of several that wait the last is enough."""

    def __init__(self, run: int, progress: ProbeProgress) -> None:
        super().__init__()
        self.run = run
        self.progress = progress

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ProbeMoved)


class PastRead(Message):
    def __init__(self, past: Sequence[PastResult]) -> None:
        super().__init__()
        self.past = past


class Probing:
    """At most one probe at a time; late progress of an earlier one is dropped.

    ``past``: earlier results by device (uuid), the oldest first.
    """

    def __init__(self, session: Session, post: Callable[[Message], bool]) -> None:
        self._session = session
        self._post = post
        self._run = 0
        self._probe: Cancellable | None = None
        self._runs: list[ProbeProgress] = []
        self._looked_at = -1  # in _runs, from the end
        self._past_asked = False
        self.cancelling = False
        self.past: Mapping[str, Sequence[PastResult]] = {}

    @property
    def running(self) -> ProbeProgress | None:
        """How far the running probe is; None while none runs."""
        return self._runs[-1] if self._probe is not None else None

    @property
    def shown(self) -> ProbeProgress | None:
        """The run that the user looks at: the newest, unless ``look`` was used."""
        return self._runs[self._looked_at] if self._runs else None

    @property
    def looked_at(self) -> tuple[int, int]:
        """Which run that is, counted from 1, and how many there are."""
        return len(self._runs) + self._looked_at + 1, len(self._runs)

    def look(self, step: int) -> None:
        """Look at the run before (-1) or after (1)."""
        self._looked_at = min(-1, max(-len(self._runs), self._looked_at + step)) if self._runs else -1

    def start(self, wanted: ProbeWanted) -> None:
        """Call it only while none runs, of a session that can run probes."""
        from mltop.probes.investigate.probing.wanted import ProbeProgress

        assert isinstance(self._session, Probes) and self._probe is None
        self._run += 1
        run = self._run
        self._runs = [*self._runs[-MOST_KEPT + 1 :], ProbeProgress(wanted, "connecting")]
        self._looked_at, self.cancelling = -1, False

        def on_progress(progress: ProbeProgress) -> None:
            self._post(ProbeMoved(run, progress))

        self._probe = self._session.run_probe(wanted, on_progress)

    def cancel(self) -> bool:
        """False when nothing runs, or it is being cancelled already."""
        if self._probe is None or self.cancelling:
            return False
        self.cancelling = True
        self._probe.cancel()
        return True

    def take(self, message: ProbeMoved) -> None:
        """The last report of a probe ends it."""
        if message.run != self._run or self._probe is None:
            return
        self._runs[-1] = message.progress
        if message.progress.finished:
            self._probe, self.cancelling = None, False
            self._read_past()

    def want_past(self) -> None:
        """Have earlier results read, once; ``PastRead`` brings them."""
        if not self._past_asked:
            self._past_asked = True
            self._read_past()

    def take_past(self, message: PastRead) -> None:
        by_device: dict[str, list[PastResult]] = {}
        for result in sorted(message.past, key=lambda result: result.at):
            by_device.setdefault(result.uuid, []).append(result)
        self.past = by_device

    def _read_past(self) -> None:
        """In a thread of its own: it reads files."""
        session = self._session
        if isinstance(session, RemembersProbes):
            reads = session.past
            threading.Thread(target=lambda: self._post(PastRead(reads())), name="past-probes", daemon=True).start()
