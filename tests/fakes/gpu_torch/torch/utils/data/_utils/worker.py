"""What a worker runs."""

from __future__ import annotations

from typing import Any


def _worker_loop(dataset: Any, answers: Any) -> None:
    for index in range(len(dataset)):
        answers.put(dataset[index])
