"""Equal parts of many dumps kept once: 16 rounds of 4,096 ranks repeat the same stacks, commands and lists."""

from __future__ import annotations

from mltop.probes.model import Frame, RankSample, RankStacks, Sample


class Shared:
    """Replaces parts of what it is given by equal ones seen before. They are never changed after they arrived."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._numbers: dict[tuple[int, ...], list[int]] = {}
        self._frames: dict[object, list[Frame]] = {}

    def stacks(self, stacks: RankStacks) -> None:
        stacks.job, stacks.node = self._text(stacks.job), self._text(stacks.node)
        for rank in (stacks.before, stacks.after):
            if rank is not None:
                self.rank(rank)
        for digest in stacks.digests:
            places = tuple([(frame.function, frame.file, frame.line, *frame.ints.items()) for frame in digest.frames])
            digest.frames = self._frames.setdefault(places, digest.frames)
            digest.key, digest.thread = self._text(digest.key), self._text(digest.thread)
            digest.job, digest.node = self._text(digest.job), self._text(digest.node)
            digest.waiting_in = self._optional(digest.waiting_in)

    def rank(self, rank: RankSample) -> None:
        rank.job, rank.launcher = self._text(rank.job), self._text(rank.launcher)
        rank.user, rank.command = self._text(rank.user), self._text(rank.command)
        rank.python, rank.master_address = self._optional(rank.python), self._optional(rank.master_address)
        rank.cpus_allowed, rank.numa_nodes = self._optional(rank.cpus_allowed), self._optional(rank.numa_nodes)
        rank.gpus, rank.children = self._list(rank.gpus), self._list(rank.children)

    def ranks_of(self, sample: Sample) -> Sample:
        """The sample with its ranks only: all that a verdict needs of the past."""
        for rank in sample.ranks:
            self.rank(rank)
        return Sample(
            sample.node, sample.sampled_at, sample.boot_id, sample.interval_s, sample.simulated, ranks=sample.ranks
        )

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _optional(self, text: str | None) -> str | None:
        return None if text is None else self._texts.setdefault(text, text)

    def _list(self, numbers: list[int]) -> list[int]:
        return self._numbers.setdefault(tuple(numbers), numbers)
