"""Probes that every node does by itself: matmul, memory, copies. One request to each, all at once."""

from __future__ import annotations

from collections.abc import Callable

from mltop.probes.investigate.probing.asking import Asking
from mltop.probes.investigate.probing.setting import Setting
from mltop.probes.investigate.probing.wanted import ProbeWanted
from mltop.probes.judge.active.peaks import PEAKS
from mltop.probes.model.probe import ProbeEvent

END_S = 4.0  # for what was cancelled to be gone: SIGTERM, 2 s, SIGKILL
DEADLINE_S = {"matmul": 120.0, "memory": 90.0, "copies": 180.0}  # import torch alone may take 30 s on a cold disk
WORDS = {"matmul": "matmul", "memory": "memory copy", "copies": "host and peer copies"}


def options_of(wanted: ProbeWanted) -> dict[str, object]:
    """The ``options`` of the request. Nodes have no table of their own: the shapes that were best are sent."""
    options: dict[str, object] = {}
    if wanted.kind == "matmul":
        options["dtype"] = wanted.dtype
        options["first_shapes"] = best_shapes(wanted.dtype)
    if wanted.sizes_bytes:
        options["size_bytes"] = wanted.sizes_bytes[0]
    return options


def best_shapes(dtype: str) -> list[list[int]]:
    """The shapes (M, N, K) that mamf-finder found best on any product: few, and all are worth a try on each."""
    found = [peak.best_shapes[dtype] for peak in PEAKS if dtype in peak.best_shapes]
    return [list(shape) for shape in dict.fromkeys(found)]


class LocalProbe:
    """``run`` returns when every node has answered or ``stop`` says so."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._nodes, self._board, self._stop = setting, setting.nodes, setting.board, setting.stop
        self._asking = Asking(setting.hub, self._take, self._end)
        self._stages: dict[str, str] = {}

    def run(self, tell: Callable[[str], None]) -> None:
        wanted = self._setting.wanted
        self._asking.ask(self._setting.args(wanted.kind, options_of(wanted)), self._nodes)
        while self._asking.open_nodes and not self._stop.now:
            self._asking.step()
            tell(self._text())
        late = self._asking.open_nodes
        if late:
            self._asking.cancel(END_S)
            if not self._stop.cancelled.is_set():
                self._too_late(late)

    def _take(self, node: str, event: ProbeEvent) -> None:
        if event.event == "stage":
            self._stages[node] = event.stage
        self._board.take(node, event)

    def _end(self, node: str, why: str, fix: str) -> None:
        if why and not (self._stop.now and self._board.has_failed(node)):
            self._board.fail_node(node, why, fix)

    def _too_late(self, nodes: set[str]) -> None:
        for node in sorted(nodes):
            if not self._board.has_failed(node):
                stage = self._stages.get(node, "")
                where = f"was in stage '{stage}'" if stage else "had not begun (not reached yet?)"
                why = f"not done within {self._stop.deadline_s:.0f} s: {where}"
                self._board.fail_node(node, why, stage=stage)

    def _text(self) -> str:
        done = len(self._nodes) - len(self._asking.open_nodes)
        stages = sorted({stage for node, stage in self._stages.items() if node in self._asking.open_nodes})
        of = f"{done} of {len(self._nodes)} nodes done" if len(self._nodes) > 1 else ""
        return ", ".join(part for part in (of, " / ".join(stages[:3])) if part) or "starting"
