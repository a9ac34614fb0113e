"""What a node says that its ranks have on record: as it travels, and within which bounds it is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mltop.probes.agent.protocol import Message, encode, payload_of
from mltop.probes.model import Gap
from mltop.probes.model.evidence.collectives import Group, GroupProgress, Operation
from mltop.probes.model.evidence.ras import RasAnswer, RasCommunicator, RasRank, admit_answer
from mltop.probes.model.evidence.records import RankRecords, admit_records
from mltop.probes.model.receipt import Refused
from mltop.probes.reach.receiving import own_type
from tests.builders.flight_records import done_to, operation, progress_of, record

TOLD = progress_of({3: record(done_to(39, operation(40, state="scheduled")), status={0: (40, -1, 39)},
                              members={"0": range(8)})})  # fmt: skip
RECORDS = RankRecords(42, 3, "train", 1000, "n1", TOLD, [Gap.about("flight_recorder", item="3", why="x")], "/p/3.pipe")


def received(records: RankRecords) -> RankRecords:
    payload = payload_of(encode(Message("part", id=7, records=records))[:-1])
    assert payload is not None
    message = msgspec.json.Decoder(Message, dec_hook=own_type).decode(payload)
    assert message.records is not None
    admit_records(message.records)
    return message.records


def test_it_arrives_as_it_was_sent() -> None:
    assert received(RECORDS) == RECORDS


def changed(**progress: Any) -> RankRecords:
    return replace(RECORDS, progress=[replace(TOLD[0], **progress)])


@pytest.mark.parametrize(
    "records",
    [
        replace(RECORDS, pid=0),
        replace(RECORDS, pid=1 << 40),
        replace(RECORDS, rank=-1),
        replace(RECORDS, rank=1 << 40),
        replace(RECORDS, job="x" * 100_000),
        replace(RECORDS, progress=TOLD * 2000),
        replace(RECORDS, gaps=RECORDS.gaps * 100),
        changed(enqueued=10**30),
        changed(rank=1 << 40),
        changed(at=1e30),
        changed(operations=(Operation(1),) * 100),
        changed(operations=(Operation(1, created_at=-1.0),)),
        changed(operations=(Operation(1, name="x" * 100_000),)),
        changed(operations=(Operation(1, sizes_in=((1,),) * 100),)),
        changed(operations=(Operation(1, frames=("f",) * 100),)),
        changed(group=Group("0", ranks=tuple(range(100_000)))),
        changed(group=Group("0", ranks=(0, -1))),
        changed(group=Group("x" * 100_000)),
    ],
)
def test_what_cannot_be_is_refused(records: RankRecords) -> None:
    with pytest.raises((Refused, msgspec.ValidationError)) as why:
        received(records)
    assert "\n" not in str(why.value)
    assert len(str(why.value)) < 300


def test_words_that_nobody_knows_are_refused() -> None:
    for wrong in ({"source": "oracle"}, {"operations": [{"sequence": 1, "state": "exploded"}]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"group": {"name": "0"}, "rank": 1, **wrong}, GroupProgress)


@pytest.mark.parametrize(
    "answer",
    [
        RasAnswer("2.30.7", "json", received_at=-1.0),
        RasAnswer("2.30.7", "json", (RasCommunicator("x" * 1000),)),
        RasAnswer("2.30.7", "json", (RasCommunicator("x", size=-1),)),
        RasAnswer("2.30.7", "json", (RasCommunicator("x", ranks=(RasRank(-1),)),)),
        RasAnswer("2.30.7", "json", (RasCommunicator("x", ranks=(RasRank(1, "h" * 1000),)),)),
        RasAnswer("2.30.7", "json", (RasCommunicator("x", ranks=(RasRank(1, counts=(("a", -1),)),)),)),
        RasAnswer("2.30.7", "json", (RasCommunicator("x", ranks=(RasRank(1, counts=(("a", 1),) * 100),)),)),
        RasAnswer("2.30.7", "json", (RasCommunicator("x"),) * 70_000),
    ],
)
def test_answers_of_ras_that_cannot_be(answer: RasAnswer) -> None:
    with pytest.raises(Refused):
        admit_answer(answer)
