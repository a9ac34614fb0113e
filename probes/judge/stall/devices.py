"""The GPUs and ports of one node: what they did around a sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mltop.probes.judge.stall import thresholds as limit
from mltop.probes.judge.stall.activity import COPIED, IDLE, RESIDENT, UNREAD, IdlePower, gpu_state
from mltop.probes.judge.values import sum_of
from mltop.probes.model import GpuSample, Sample


class Devices:
    """The GPUs and ports of one sample, looked at when a rank asks for them. ``memory``: what GPUs had in use before.

    ``alone``: the node has one job.
    """

    __slots__ = ("_all", "_by_index", "_idle", "_memory", "_sample", "_silent", "_states", "alone")

    def __init__(self, sample: Sample, idle: IdlePower, memory: dict[int, int | None], alone: bool) -> None:
        self._sample, self._idle, self._memory = sample, idle, memory
        self.alone = alone
        self._by_index: dict[int, GpuSample] | None = None
        self._states: dict[int, int] = {}
        self._all: int | None = None
        self._silent: bool | None = None

    def of(self, indexes: Sequence[int]) -> int:
        """What the GPUs of a rank did. Of one whose GPUs are not known, and the only job here: what any did."""
        if not self._sample.gpus:
            return UNREAD
        if not indexes:
            return self._any() if self.alone else UNREAD
        if len(indexes) == 1:
            return self._state(indexes[0])
        return max(map(self._state, indexes))

    def _state(self, index: int) -> int:
        state = self._states.get(index)
        if state is None:
            gpu = self._gpus().get(index)
            state = UNREAD if gpu is None else gpu_state(gpu, self._idle, self._memory.get(index))
            self._states[index] = state
        return state

    def _any(self) -> int:
        """Spinning and idle ones together tell nothing of a single rank, but that none works is true of all."""
        if self._all is None:
            states = [self._state(gpu.index) for gpu in self._sample.gpus]
            self._all = max(states)
            if self._all == RESIDENT and IDLE in states:
                self._all = IDLE
            if self._all < COPIED and UNREAD in states:
                self._all = UNREAD
        return self._all

    @property
    def silent(self) -> bool:
        """Whether NVLinks or ports can be read, and carry next to nothing."""
        if self._silent is None:
            moved = self.link_bytes_per_s()
            self._silent = moved is not None and moved < limit.PORT_BYTES_PER_S
        return self._silent

    def link_bytes_per_s(self) -> float | None:
        ports = (link for link in self._sample.links if link.kind != "ethernet")
        moved = [sum_of(port.rx_bytes_per_s, port.tx_bytes_per_s) for port in ports]
        moved += [sum_of(gpu.nvlink.rx_bytes_per_s, gpu.nvlink.tx_bytes_per_s) for gpu in self._sample.gpus]
        return sum_of(*moved)

    def shares(self, indexes: Iterable[int]) -> tuple[float | None, float | None]:
        """Of these GPUs: power drawn of what they may draw, and SMs in use; None: unknown."""
        power_w = limit_w = sm = 0.0
        count = 0
        by_index = self._gpus()
        for gpu in (by_index[index] for index in indexes if index in by_index):
            if gpu.power_w is not None and gpu.power_limit_w:
                power_w += gpu.power_w
                limit_w += gpu.power_limit_w
            if gpu.sm_active is not None:
                sm += gpu.sm_active
                count += 1
        return (power_w / limit_w if limit_w else None), (sm / count if count else None)

    def _gpus(self) -> dict[int, GpuSample]:
        if self._by_index is None:
            self._by_index = {gpu.index: gpu for gpu in self._sample.gpus}
        return self._by_index

    def remember(self) -> None:
        """For the next sample, of the GPUs that were looked at."""
        for index in self._states:
            gpu = self._gpus().get(index)
            self._memory[index] = gpu.memory_used_bytes if gpu is not None else None
