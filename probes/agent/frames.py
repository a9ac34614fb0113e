"""What goes out of each sample: a row every second, the rest when it has changed or somebody looks.

A quiet node sends a row of some 400 bytes each second. Its whole sample, a hundred times as large, goes out when
something that matters has changed, once a minute, and with every sample while the caller watches the node. What its
ranks do and what its health rules find go out when they have changed; the numbers beside a row are about the parts that
were sent last.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from mltop.probes.agent.protocol import Message, Row
from mltop.probes.agent.sampler import failure_gap
from mltop.probes.collect.redaction.values import shown_text
from mltop.probes.judge.stall.node import NodeMotion
from mltop.probes.model import Sample
from mltop.probes.model.news.judged import JobPart, PartNumbers
from mltop.probes.model.news.row import pack_row, row_of
from mltop.probes.model.sample import Reads

if TYPE_CHECKING:
    from mltop.probes.judge.health.node import NodeJudge
    from mltop.probes.model.news.judged import Fact, Judged

WHOLE_EVERY_S = 60.0
JUDGED_EVERY_S, FACTS_EVERY_S = 10.0, 60.0
PASSING = frozenset(("gpu.sm_clock_mhz.busy", "gpu.power_w.busy", "ib.works"))  # topics of facts
UNASKED_EVERY_S = 4.5  # of a caller that cannot ask: five seconds at one sample per second, with room for its jitter
NO_THRESHOLDS: Mapping[str, float] = MappingProxyType({})


class Frames:
    """Of one node. ``of`` takes its samples in the order of time; ``watch`` may be called from another thread.

    ``attended``: the caller can ask for whole samples.
    """

    def __init__(
        self,
        node: str,
        attended: bool = True,
        *,
        thresholds: Mapping[str, float] = NO_THRESHOLDS,
        judged_every_s: float = 0.0,
    ) -> None:
        """``judged_every_s``: between two samples that the rules look at, but where something changes."""
        self._node, self._thresholds = node, thresholds
        self._judge: NodeJudge | None = None
        self._judged_every_s, self._looked_at = judged_every_s, float("-inf")
        self._judged: Mapping[str, object] = {}
        self._judged_at = self._facts_at = float("-inf")
        self._lasting: Sequence[Fact] = ()
        self._every_s = WHOLE_EVERY_S if attended else UNASKED_EVERY_S
        self._motion = NodeMotion(node)
        self._reads = Reads()
        self._watched_until = float("-inf")  # monotonic s
        self._whole_at = float("-inf")
        self._whole: object = None
        self._parts: object = None

    def watch(self, seconds: float) -> None:
        """Send whole samples for so long."""
        self._watched_until = time.monotonic() + seconds

    def of(self, sample: Sample) -> list[Message]:
        """The frames of one sample, in the order in which they are to go out. A failure of ours is a gap in it."""
        messages: list[Message] = []
        try:
            self._motion.see(sample)
            has_news = self._has_news(sample)
            if has_news or not 0 <= sample.sampled_at - self._looked_at < self._judged_every_s:
                messages += self._judge_it(sample)
        except Exception as error:  # noqa: BLE001 - said, and samples go on
            sample.gaps.append(failure_gap("judging", error, f"{type(error).__name__}: {shown_text(str(error))}"))
            has_news = self._has_news(sample)
        since_s = sample.sampled_at - self._whole_at
        if has_news or not 0 <= since_s < self._every_s or time.monotonic() < self._watched_until:
            # Every node has its own second of the minute: hundreds that started together are not read together.
            early_s = zlib.crc32(self._node.encode()) % self._every_s if self._whole_at < 0 else 0.0
            self._whole_at = sample.sampled_at - early_s
            messages.insert(0, Message("sample", node=self._node, sample=sample))
        parts = [_comparable(part) for part in self._motion.parts]
        if parts != self._parts:
            self._parts = parts
            messages.append(Message("parts", node=self._node, parts=self._motion.parts))
        lanes = base64.b64encode(pack_row(row_of(sample))).decode("ascii")
        numbers = [  # to four digits after the point: a row is to be short
            PartNumbers._make(round(value, 4) if isinstance(value, float) else value for value in part)
            for part in self._motion.numbers
        ]
        row = Row(sample.sampled_at, lanes, numbers)
        return [*messages, Message("row", node=self._node, row=row)]

    def _judge_it(self, sample: Sample) -> list[Message]:
        if self._looked_at < 0:  # the first row does not wait for the rules to be loaded
            self._looked_at = 0.0
            return []
        if self._judge is None:
            from mltop.probes.judge.health.node import NodeJudge
            from mltop.probes.judge.health.rule import Expectations

            self._judge = NodeJudge(self._node, expectations=Expectations(thresholds=self._thresholds), eager=True)
        self._looked_at = sample.sampled_at
        self._judge.see(sample)
        judged = self._judge.judged()
        messages = []
        if self._are_to_be_sent(judged.facts, judged.at):
            messages.append(Message("facts", node=self._node, facts=judged.facts))
        judged = replace(judged, facts=[])
        if self._is_to_be_sent(judged):
            messages.append(Message("judged", node=self._node, judged=judged))
        return messages

    def _are_to_be_sent(self, facts: Sequence[Fact], at: float) -> bool:
        """What is usual among nodes is made of lasting facts, and of clocks and power while busy, now and then."""
        lasting = [fact for fact in facts if fact[0] not in PASSING]
        if lasting == self._lasting and 0 <= at - self._facts_at < FACTS_EVERY_S:
            return False
        self._lasting, self._facts_at = lasting, at
        return True

    def _has_news(self, sample: Sample) -> bool:
        """Whether something that matters is not as in the sample before."""
        self._reads.see(sample)
        # That all counters were read a second time: somebody may wait to see whether they grow.
        matters = (all(map(self._reads.twice, sample.counters_read_at)), *_what_matters(sample))
        has_news, self._whole = matters != self._whole, matters
        return has_news

    def _is_to_be_sent(self, judged: Judged) -> bool:
        """At once what begins or ends; numbers in texts now and then."""
        kinds = {(one.id, one.subject, one.key, one.severity, one.until is None) for one in judged.findings}
        new = {"kinds": kinds, "findings": judged.findings, "ranks": judged.ranks}
        is_due = not 0 <= judged.at - self._judged_at < JUDGED_EVERY_S
        if self._judged and kinds == self._judged["kinds"] and (not is_due or new == self._judged):
            return False
        self._judged, self._judged_at = new, judged.at
        return True


def _comparable(part: JobPart) -> tuple[object, ...]:
    """Its values as they are now: the part itself goes on."""
    ranks = [
        (rank.pid, rank.rank, rank.gpu, rank.state, rank.wchan, rank.level, rank.flat, rank.gpu_state)
        for rank in part.ranks
    ]
    return part.job, part.uid, part.is_here_only, part.user, part.world_size, part.oldest_start, ranks, part.gone


def _what_matters(sample: Sample) -> tuple[object, ...]:
    newest = sample.kernel_events[-1].at if sample.kernel_events else None
    return (
        len(sample.kernel_events),
        newest,
        [(link.device, link.port, link.state, link.error) for link in sample.links],
        len(sample.pci),
        [(gpu.uuid, gpu.state, gpu.recovery_action, gpu.mig_enabled) for gpu in sample.gpus],
        [gpu.remap for gpu in sample.gpus],
        [gpu.ecc.uncorrected_volatile for gpu in sample.gpus],
        [(rank.pid, rank.rank, rank.job) for rank in sample.ranks],
        [rank.pid for rank in sample.unassigned],
        [(death.pid, death.at, death.how, death.error) for death in sample.deaths],
        [(line.at, line.where) for line in sample.log_lines[-1:]],
        [(gap.what, gap.kind) for gap in sample.gaps],
    )
