"""nvidia-smi asked again and again beside something else that runs."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.hardware.checks import Told
from tests.hardware.rows.row import number
from tests.hardware.sources import Query, SmiError

END_S = 70.0  # beyond nvidia-smi's own limit
SLOW_S = 3.5  # an answer that took longer than the shortest load, and came after its end, may be of no load at all


@dataclass
class Watched:
    """``rows``: of one GPU, by field, each asked for between ``start`` and ``stop``. ``why``: why there is none.
    ``refused``: by field, why this nvidia-smi does not tell it.
    """

    rows: list[dict[str, str]] = field(default_factory=list)
    why: str = "nvidia-smi was not asked"
    refused: dict[str, str] = field(default_factory=dict)

    def told(self, *fields: str, over: Any = statistics.fmean) -> Told:
        """``over`` all rows, of the first of these fields that has numbers."""
        query, answer = Query([], self.refused), Told(why=self.why)
        for name in fields:
            found = [query.told({"0": row}, "0", name) for row in self.rows]
            known = [number(one.value) for one in found if one.value is not None]
            if known:
                return Told(over(known))
            answer = found[-1] if found else answer
        return answer


class Watch(Watched):
    """Asks while it runs."""

    def __init__(self, index: int, fields: list[str], pause_s: float = 0.2) -> None:
        query = Query(list(fields))
        super().__init__(refused=query.refused)
        self._index, self._query, self._pause_s = str(index), query, pause_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Once; later calls do nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="nvidia-smi", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(END_S)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stops on the way out, whoever started it."""
        try:
            yield
        finally:
            self.stop()

    def _ask(self) -> None:
        while not self._stopped.is_set():
            began_s = time.monotonic()
            try:
                row = self._query.ask().get(self._index)
            except SmiError as error:
                self.why = str(error)
                return
            if row is None:
                self.why = f"nvidia-smi does not list GPU {self._index}"
                return
            took_s = time.monotonic() - began_s
            if not self._stopped.is_set() or (not self.rows and took_s < SLOW_S):
                self.rows.append(row)
            elif not self.rows:
                self.why = f"nvidia-smi answered after {took_s:.1f} s, when the load was over"
            self._stopped.wait(self._pause_s)
