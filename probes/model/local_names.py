"""What an integer local of a training script counts, told by its name: the node keeps only what matters to the verdict,
and the verdict looks for loop counters among what was kept.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

# A step counts the training loop, a counter another one, a bound is a counter's end; shapes and places are told by
# sizes and ranks.
Meaning = Literal["step", "counter", "bound", "size", "rank", "other"]

_WORDS = re.compile(r"[a-z]+|[A-Z][a-z]*")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STEPS = _set("step iter iteration it epoch")
_COUNTERS = _set(
    """
    i j k t idx index batch microbatch mb micro minibatch count counter round turn tick update episode chunk task seq
    """
)
# In front of a plural they make a bound: num_steps, max_train_iters. step_num, n_iter and num_batches_done count.
_BOUNDS = _set("num n max total")
# No counter, whatever else is in the name: batch_size, rank_index, log_every_step.
_SIZES = _set("size len length world stride bytes dim shape numel")
_RANKS = _set("rank stage device gpu")
_NO_COUNTERS = _set("per port id seed offset every interval freq pid fd start end first")
# Of names that count nothing: still a size or a place.
_MORE_SIZES = _set(
    """
    n m num min max total limit width height depth rows cols row col layer layers head heads hidden vocab channels
    tokens samples examples items elements shards workers nodes groups remaining position pos
    """
)
_MORE_RANKS = _set("group src dst root peer shard worker node")


@lru_cache(maxsize=4096)
def meaning_of(name: str) -> Meaning:
    """``global_step``: step; ``micro_idx``: counter; ``num_steps``: bound; ``batch_size``: size; ``rank``: rank."""
    words = [word.lower() for word in _WORDS.findall(name)]
    parts = {_singular(word) for word in words} | set(words)
    is_bound = bool(words) and words[0] in _BOUNDS and _singular(words[-1]) != words[-1]
    meanings: tuple[tuple[Meaning, object], ...] = (
        ("other", parts & _NO_COUNTERS),
        ("rank", parts & _RANKS),
        ("size", parts & _SIZES),
        ("bound", is_bound),
        ("step", parts & _STEPS),
        ("counter", parts & _COUNTERS),
        ("rank", parts & _MORE_RANKS),
        ("size", parts & _MORE_SIZES),
    )
    return next((meaning for meaning, holds in meanings if holds), "other")


def _singular(word: str) -> str:
    """Of the counters' names; others come back as they are."""
    singulars = _STEPS | _COUNTERS
    return next((word[:-cut] for cut in (1, 2) if word.endswith("s") and word[:-cut] in singulars), word)
