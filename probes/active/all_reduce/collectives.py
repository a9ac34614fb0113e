"""The four collectives in one rank: buffers of small whole numbers, and the exact check of the result.

fp32 holds whole numbers up to 2^24 exactly and adds them exactly in any order, so one wrong element is one fault.
Sizes are nccl-tests': of the whole buffer, so all-gather's output and reduce-scatter's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from mltop.probes.model.probe_kinds import COLLECTIVES
from mltop.probes.model.units import size_words

PERIOD = 1021  # a prime: no chunk of a power of two repeats the pattern at the same place
VALUES = 13
RANK_VALUES = 7
_CHECK_ELEMENTS = 1 << 22  # at a time, so that the check needs no buffer as large as the result
_BYTES = 4


class Unsupported(Exception):
    """The sentence why this backend cannot do it; raised alike in every rank, before anything is sent."""


class Collective:
    """One collective of one size. ``run()`` does it once, ``fill()`` sets ``input``, ``wrong()`` checks ``output``.

    The input of rank r: value(i) + r % 7 where value(i) = (i % 1021) % 13; for all-to-all chunk c gets + c % 7 too.
    """

    def __init__(self, name: str, size_bytes: int, rank: int, ranks: int, device: Any) -> None:
        """Raises RuntimeError when memory does not suffice."""
        import torch

        self.name, self.size_bytes = name, size_bytes
        self._rank, self._ranks = rank, ranks
        self._share = max(1, size_bytes // _BYTES // ranks)
        whole = max(1, size_bytes // _BYTES) if name == "all-reduce" else self._share * ranks
        self._base = ((torch.arange(PERIOD, device=device) % PERIOD) % VALUES).to(torch.float32)
        self.input = torch.empty(self._share if name == "all-gather" else whole, device=device)
        self.output = self.input
        if name != "all-reduce":
            self.output = torch.empty(self._share if name == "reduce-scatter" else whole, device=device)

    def run(self) -> None:
        """Raises Unsupported, or RuntimeError as torch does when a peer is gone."""
        import torch.distributed as dist

        try:
            if self.name == "all-reduce":
                dist.all_reduce(self.input)
            elif self.name == "all-gather":
                dist.all_gather_into_tensor(self.output, self.input)
            elif self.name == "reduce-scatter":
                dist.reduce_scatter_tensor(self.output, self.input)
            else:
                dist.all_to_all_single(self.output, self.input)
        except (NotImplementedError, AttributeError) as error:
            raise Unsupported(f"this torch cannot do it: {error}") from None
        except RuntimeError as error:
            # gloo says so before anything is sent, in every rank; an error of NCCL's is a failure.
            if self.input.device.type == "cpu" and "support" in str(error).lower():
                raise Unsupported(str(error).splitlines()[0]) from None
            raise

    def fill(self) -> None:
        """The input as described; the output so that a collective that does nothing is noticed."""
        if self.name != "all-reduce":
            self.output.fill_(-1.0)
        if self.name == "all-to-all":
            for chunk in range(self._ranks):
                part = self.input[chunk * self._share : (chunk + 1) * self._share]
                write(part, self._base, self._rank % RANK_VALUES + chunk % RANK_VALUES)
        else:
            write(self.input, self._base, self._rank % RANK_VALUES)

    def wrong(self) -> bool:
        """Is any element of the result not what it must be? After ``fill()`` and one ``run()``."""
        if self.name in ("all-reduce", "reduce-scatter"):
            summed = sum(rank % RANK_VALUES for rank in range(self._ranks))
            first = self._rank * self._share if self.name == "reduce-scatter" else 0
            return not equal(self.output, self._base * self._ranks, float(summed), first)
        own = self._rank % RANK_VALUES if self.name == "all-to-all" else 0
        return not all(
            equal(self.output[rank * self._share : (rank + 1) * self._share], self._base, rank % RANK_VALUES + own)
            for rank in range(self._ranks)
        )


def write(target: Any, base: Any, offset: float) -> None:
    """``base`` over and over, plus ``offset``."""
    whole = target.numel() // PERIOD * PERIOD
    target[:whole].view(-1, PERIOD).copy_(base)
    target[whole:].copy_(base[: target.numel() - whole])
    target.add_(offset)


def equal(result: Any, base: Any, offset: float, first: int = 0) -> bool:
    """Is ``result`` bit for bit ``base`` over and over from element ``first`` on, plus ``offset``?"""
    import torch

    # As words: 0.0 and -0.0 are equal numbers.
    words = result.view(torch.int32)
    expected = (torch.roll(base, -(first % PERIOD)) + offset).view(torch.int32)
    step = _CHECK_ELEMENTS // PERIOD * PERIOD
    for start in range(0, words.numel(), step):
        part = words[start : start + step]
        whole = part.numel() // PERIOD * PERIOD
        if not bool((part[:whole].view(-1, PERIOD) == expected).all()):
            return False
        if not bool((part[whole:] == expected[: part.numel() - whole]).all()):
            return False
    return True


WARM_UPS = 3
LEAST, MOST = 5, 20


def iterations(typical_s: float, budget_s: float) -> int:
    """How many fit into the budget, from 5 to 20."""
    return max(LEAST, min(MOST, int(budget_s / max(typical_s, 1e-9))))


def fits(first_s: float, deadline_s: float) -> bool:
    """Would the warm-ups, the fewest iterations and the check be done before the deadline, judged by the first?

    The first one is slow: it makes buffers and connections. Only half of its time counts.
    """
    return first_s + (WARM_UPS - 1 + LEAST + 1) * first_s / 2 < deadline_s


CPU_SIZE = 256  # 33 MFLOP: a third of a millisecond of one core
GPU_SIZE = 4096  # 137 GFLOP: about 0.2 ms of an H100


def own_work(device: Any) -> Callable[[], object]:
    """What a rank does between two collectives: one small GEMM, so that a slow rank is named by what it does alone.

    Raises RuntimeError when memory does not suffice.
    """
    import torch

    size, dtype = (GPU_SIZE, torch.float16) if device.type == "cuda" else (CPU_SIZE, torch.float32)
    source = torch.Generator().manual_seed(1)
    a, b = (torch.randn(size, size, generator=source).to(dtype).to(device) for _ in range(2))
    return partial(torch.mm, a, b, out=torch.empty(size, size, dtype=dtype, device=device))


# Input and output, or input and what gloo and the check keep beside it.
COPIES = 2


def stage_of(collective: str, size_bytes: int) -> str:
    """The stage's name: "measure 256 MiB", with the collective's name where it is not the all-reduce."""
    which = "" if collective == COLLECTIVES[0] else f"{collective} "
    return f"measure {which}{size_words(size_bytes)}"


def too_big(sizes_bytes: Iterable[int], of_bytes: int | None, ranks: int | None = None) -> dict[int, str]:
    """Size -> the sentence why it is refused: all ``ranks`` of a node together may take half of its available memory,
    each of those on GPUs (None) half of its GPU's free memory.
    """
    each, what = f"({COPIES} buffers)", "GPU's free memory"
    if ranks is not None:
        each, what = f"for each of {ranks} ranks ({COPIES} buffers each)", "available memory"
    half = (of_bytes or 0) // 2
    sizes = [size for size in sizes_bytes if of_bytes is not None and size * COPIES * max(1, ranks or 1) > half]
    return {
        size: f"{size_words(size)} {each} does not fit into half of the {what} ({size_words(half)})" for size in sizes
    }
