"""One request answered and the end: for carriers whose stdin does not reach the nodes (pdsh)."""

from __future__ import annotations

import os
import threading
from typing import Any

from mltop.probes.agent.protocol import Message, Request
from mltop.probes.agent.requests import Requests
from mltop.probes.agent.wire import Wire
from mltop.probes.collect.ranks import RankSource


def answer(op: str, args: dict[str, Any], wire: Wire, out_fd: int = 1) -> int:
    """Frames of one answer to ``out_fd``; returns the exit code once its last frame is written."""
    raise NotImplementedError
