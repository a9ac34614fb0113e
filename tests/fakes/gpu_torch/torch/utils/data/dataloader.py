"""A DataLoader of one worker; the names that stacks show are torch's."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Iterator
from typing import Any

from torch.utils.data._utils.worker import _worker_loop

_STATUS_CHECK_S = 5.0


class DataLoader:
    def __init__(self, dataset: Any, batch_size: None, num_workers: int, multiprocessing_context: str) -> None:
        assert batch_size is None and num_workers == 1
        context = multiprocessing.get_context(multiprocessing_context)
        self._count = len(dataset)
        self._answers: Any = context.Queue()
        # `Process` of every context is the same class to a type checker that knows only the platform's own.
        self._worker: Any = context.Process(  # type: ignore[attr-defined]
            target=_worker_loop, args=(dataset, self._answers), daemon=True
        )
        self._worker.start()

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            yield self._get_data()

    def _get_data(self) -> Any:
        while True:
            came, row = self._try_get_data()
            if came:
                return row

    def _try_get_data(self) -> tuple[bool, Any]:
        try:
            return True, self._answers.get(timeout=_STATUS_CHECK_S)
        except queue.Empty:
            return False, None
