"""What the probes of memory and copies share: what they are asked, how much is copied, and whether it arrived."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Any

from mltop.probes.active.device import GPU_CAP_BYTES
from mltop.probes.active.host import available_memory_bytes

MIB = 1 << 20
LEAST_BYTES = MIB
LEAST_ASKED_BYTES = 4096  # all sizes are multiples of it
WORD_BYTES = 8  # int64
_SPARE_BYTES = 256 * MIB  # for checks and the context's own needs
_UNKNOWN_BYTES = 1 << 30  # little, where nobody tells what is available
_FACTOR = 0x5851F42D4C957F2D  # odd, so that no two products modulo 2^64 are equal (Knuth's MMIX multiplier)
_CHUNK = 1 << 24  # words that are compared at once: 128 MiB beside what was copied


@dataclass(frozen=True)
class Options:
    """``size_bytes`` 0: as much as fits the device. ``warm_s``: a GPU's memory clock needs a while to rise."""

    size_bytes: int = 0
    iterations: int = 20
    warm_s: float = 0.5


def options_of(options: dict[str, Any]) -> Options:
    """Raises ValueError with a sentence."""
    for name in ("size_bytes", "iterations"):
        value = options.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be a count, not {value!r}")
    size, iterations = options.get("size_bytes", Options.size_bytes), options.get("iterations", Options.iterations)
    warm_s = options.get("warm_s", Options.warm_s)
    if size and size < LEAST_ASKED_BYTES:
        raise ValueError(f"size_bytes is {size}: at least {LEAST_ASKED_BYTES}")
    if not 1 <= iterations <= 10_000:
        raise ValueError(f"iterations is {iterations}: 1 to 10000")
    if isinstance(warm_s, bool) or not isinstance(warm_s, (int, float)) or not 0 <= warm_s <= 10:
        raise ValueError(f"warm_s is {warm_s!r}: 0 to 10 seconds")
    return Options(size, iterations, float(warm_s))


def fitting(wanted_bytes: int, room_bytes: int, count: int) -> int:
    """``wanted_bytes``, halved until ``count`` buffers of it fit; 0 when not even small ones do."""
    size = wanted_bytes
    while size * count > room_bytes:
        size //= 2
        if size < LEAST_BYTES:
            return 0
    return size // LEAST_ASKED_BYTES * LEAST_ASKED_BYTES


def room_on_gpu(free_bytes: int) -> int:
    return min(free_bytes, GPU_CAP_BYTES) - _SPARE_BYTES


def room_on_host() -> int:
    """A quarter of what is available, and what this process's own limit leaves."""
    available = available_memory_bytes()
    available = _UNKNOWN_BYTES if available is None else available
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return min(available // 4, available if soft == resource.RLIM_INFINITY else soft // 2)


def fill(torch: Any, words: Any) -> None:
    """``words``: a tensor of int64, filled in place with numbers that are all different, made on the device itself."""
    torch.arange(words.numel(), out=words)
    words.mul_(_FACTOR)


def is_filled(torch: Any, words: Any) -> bool:
    """Whether a tensor holds what ``fill`` writes, bit for bit."""
    for begin in range(0, words.numel(), _CHUNK):
        end = min(begin + _CHUNK, words.numel())
        wanted = torch.arange(begin, end, dtype=words.dtype, device=words.device).mul_(_FACTOR)
        if not torch.equal(wanted, words[begin:end]):
            return False
    return True
