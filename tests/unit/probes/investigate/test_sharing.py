"""Equal parts of many dumps are kept once, and nothing else changes."""

from __future__ import annotations

from mltop.probes.model import Frame, GpuSample, RankSample, RankStacks, Sample, StackDigest, to_json
from mltop.probes.reach.sharing import Sharing


def dump(rank: int, step: int) -> RankStacks:
    sample = RankSample(100 + rank, rank, job="j" * 3, command="python " + "train.py", gpus=[0], cpus_allowed="0-7")
    frames = [Frame("load", "data.py", 9), Frame("train", "train.py", 40, {"step": step})]
    digest = StackDigest(rank, 100 + rank, frames=frames, key="k" * 3, waiting_in="all_" + "reduce")
    return RankStacks(100 + rank, rank, "j" * 3, "h1", 5.0, 0.1, sample, sample, [digest])


def test_equal_stacks_are_one_and_different_locals_are_not() -> None:
    shared, dumps = Sharing(), [dump(0, 7), dump(1, 7), dump(2, 1 << 70)]
    before = [to_json(one) for one in dumps]
    for one in dumps:
        shared.stacks(one)
    frames = [one.digests[0].frames for one in dumps]
    assert frames[0] is frames[1]
    assert frames[0] is not frames[2]
    assert frames[2][1].ints == {"step": 1 << 70}
    assert [to_json(one) for one in dumps] == before


def test_of_the_past_only_the_ranks_are_kept() -> None:
    sample = Sample("h1", 5.0, "boot", 2.0, gpus=[GpuSample(0)], ranks=[RankSample(1, 0, job="j")])
    kept = Sharing().ranks_of(sample)
    assert (kept.node, kept.sampled_at, kept.interval_s) == ("h1", 5.0, 2.0)
    assert kept.ranks == sample.ranks
    assert kept.gpus == []
