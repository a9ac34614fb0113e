"""Folding, classes and the merged tree."""

from __future__ import annotations

import random

import pytest

from mltop.probes.judge.hang.classes import TreeLine, merge, merged_tree
from mltop.probes.judge.hang.verdict import report
from mltop.probes.model import Frame, StackClass, StackDigest
from mltop.probes.model.ranks import Ranges, fold, ranks_text
from tests.builders.stack_evidence import (
    Rank,
    all_reduce,
    dataset,
    evidence,
    main_frames,
    spin,
    stack,
    waiters,
)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0-1"),
        ([5, 3, 4, 3], "3-5"),
        ([*range(13), *range(14, 64)], "0-12,14-63"),
    ],
)
def test_folding(numbers: list[int], text: str) -> None:
    assert fold(numbers) == text
    assert list(Ranges.of(numbers)) == sorted(set(numbers))


def test_folding_is_reversible() -> None:
    dice = random.Random(3)
    for _ in range(300):
        numbers = {dice.randrange(200) for _ in range(dice.randrange(150))}
        assert list(Ranges.of(numbers)) == sorted(numbers)


def test_what_cannot_be_folded_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        fold([-1, 2])


def test_ranks_in_words() -> None:
    assert (ranks_text([4]), ranks_text([4, 5])) == ("rank 4", "ranks 4-5")


def _digest(rank: int | None, made: object, **more: object) -> StackDigest:
    return StackDigest(rank, 4000 + (rank or 0), frames=made.frames, waiting_in=made.waiting_in, **more)  # type: ignore[attr-defined,arg-type]


def test_classes_are_ordered_non_waiters_first_then_by_size() -> None:
    digests = [_digest(rank, all_reduce(step=rank)) for rank in range(4, 12)]
    digests += [_digest(rank, all_reduce(66)) for rank in (2, 3)]
    digests += [_digest(rank, dataset()) for rank in (1, 13)] + [_digest(0, spin(0))]
    assert [(str(one.ranks), one.count, one.waiting_in) for one in merge(digests)] == [
        ("0", 1, None),
        ("1,13", 2, None),
        ("2-3", 2, "all_reduce"),
        ("4-11", 8, "all_reduce"),
    ]


def test_only_readable_main_threads_of_ranks_are_merged() -> None:
    digests = [
        _digest(0, dataset()),
        _digest(0, dataset(), child_of=4000),
        _digest(0, spin(1), thread="Thread-3"),
        StackDigest(1, 4001, error="permission denied"),
    ]
    assert [(str(one.ranks), one.count) for one in merge(digests)] == [("0", 1)]


def test_the_nodes_key_decides_when_there_is_one() -> None:
    digests = [_digest(0, dataset(), key="x"), _digest(1, spin(1), key="x"), _digest(2, dataset(), key="y")]
    assert [str(one.ranks) for one in merge(digests)] == ["2", "0-1"]


def test_processes_without_a_rank_are_counted() -> None:
    assert [(str(one.ranks), one.count) for one in merge([_digest(None, dataset())])] == [("", 1)]


def _shape(lines: list[TreeLine]) -> list[tuple[int, str, str, int]]:
    return [(line.depth, line.function or f"… {line.elided}", str(line.ranks), line.count) for line in lines]


def test_the_tree_shares_what_the_classes_share() -> None:
    classes = merge([_digest(rank, all_reduce() if rank != 2 else dataset()) for rank in range(4)])
    lines = merged_tree(classes)
    assert _shape(lines) == [
        (0, "<module>", "0-3", 4),
        (1, "main", "0-3", 4),
        (2, "train", "2", 1),
        (3, "… 2", "2", 1),
        (4, "DS.__getitem__", "2", 1),
        (2, "train", "0-1,3", 3),
        (3, "all_reduce_grads", "0-1,3", 3),
    ]
    assert [(line.waiting_in, line.called) for line in lines if line.waiting_in] == [("all_reduce", "all_reduce")]
    assert [line.class_indexes for line in lines[:3]] == [(0, 1), (0, 1), (0,)]


def test_long_chains_are_elided_but_the_users_line_stays() -> None:
    inside = tuple((f"inner_{depth}", "torch/nn/modules/x.py", depth) for depth in range(14))
    deep = stack(("forward", "job/net.py", 1), *inside, *main_frames(), waiting_in="all_reduce")
    lines = merged_tree(merge([_digest(0, deep)]))
    assert [(line.function, line.elided) for line in lines] == [("<module>", 0), ("", 16), ("forward", 0)]


def test_a_stack_ends_at_the_users_line_with_what_it_called() -> None:
    """Told by the mark: the library's own file looks like the user's."""
    gzip = [Frame("GzipFile.__init__", "gzip.py", 174), Frame("open", "gzip.py", 57)]
    shards = [Frame("read", "shards/reader.py", 9), Frame("DS.__getitem__", "job/data.py", 53, user=True)]
    module = Frame("<module>", "job/train.py", 90, user=True)
    made = [StackClass(Ranges.of([at]), 1, None, [*library, module]) for at, library in enumerate([gzip, shards])]
    lines = merged_tree(made)
    assert [(line.function, line.called) for line in lines] == [
        ("<module>", ""),
        ("open", ""),  # the line above it is the other rank's, too
        ("GzipFile.__init__", ""),
        ("DS.__getitem__", "read, shards/reader.py:9"),
    ]
    alone = merged_tree(made[:1])
    assert [(line.function, line.called) for line in alone] == [("<module>", "open, gzip.py:57")]


def test_a_class_that_ends_inside_another_ones_path_keeps_its_line() -> None:
    short = [Frame("train", "job/case.py", 60), Frame("main", "job/case.py", 80)]
    deep = [Frame("helper", "job/case.py", 5), *short]
    lines = merged_tree([StackClass(Ranges.of([0]), 1, "work.wait", short), StackClass(Ranges.of([1]), 1, None, deep)])
    assert [(line.depth, line.function, str(line.ranks), line.waiting_in) for line in lines] == [
        (0, "main", "0-1", None),
        (1, "train", "0-1", "work.wait"),
        (2, "helper", "1", None),
    ]


def test_a_stack_of_a_thousand_frames_is_no_trouble() -> None:
    deep = [Frame("recurse", "job/case.py", depth) for depth in range(2000)]
    lines = merged_tree([StackClass(Ranges.of([0]), 1, None, deep)])
    assert [line.elided for line in lines] == [0, 1998, 0]


@pytest.mark.parametrize("kinds", [1, 3, 40, 512])
def test_512_ranks_fit_24_lines(kinds: int) -> None:
    ranks = {rank: Rank(dataset(rank)) for rank in range(kinds - 1)}
    ranks |= waiters(*range(kinds - 1, 512))
    made = report(evidence(ranks, rounds=4))
    lines = merged_tree(made.classes, max_lines=12)
    assert len(lines) <= 12
    assert {index for line in lines for index in line.class_indexes} == set(range(len(made.classes)))
    verdict = made.verdict
    # Kind and confidence, the first culprit and how many more, waiting, evidence, gaps.
    text = 1 + min(len(verdict.culprits), 2) + len(verdict.waiting) + len(verdict.evidence) + len(verdict.gaps)
    assert text <= 12
