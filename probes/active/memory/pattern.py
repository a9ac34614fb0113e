"""What is copied: numbers that are all different, made on the device itself, so that what arrived can be checked."""

from __future__ import annotations

from typing import Any

WORD_BYTES = 8  # int64
_FACTOR = 0x5851F42D4C957F2D  # odd, so that no two products modulo 2^64 are equal (Knuth's MMIX multiplier)
_CHUNK = 1 << 24  # words that are compared at once: 128 MiB beside what was copied


def fill(torch: Any, words: Any) -> None:
    """``words``: a tensor of int64, filled in place."""
    torch.arange(words.numel(), out=words)
    words.mul_(_FACTOR)


def is_in(torch: Any, words: Any) -> bool:
    """Whether a tensor holds what ``fill`` writes, bit for bit."""
    for begin in range(0, words.numel(), _CHUNK):
        end = min(begin + _CHUNK, words.numel())
        wanted = torch.arange(begin, end, dtype=words.dtype, device=words.device).mul_(_FACTOR)
        if not torch.equal(wanted, words[begin:end]):
            return False
    return True
