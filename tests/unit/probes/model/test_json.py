"""JSON of the model: what no decoder takes never goes out."""

from __future__ import annotations

import json

import msgspec
import pytest

from mltop.probes.model import (
    FilesystemSample,
    Finding,
    Gap,
    HostSample,
    Incident,
    RankSample,
    Sample,
    StackClass,
    Waiting,
    to_json,
)
from mltop.probes.model.ranks import Ranges

LATIN_1 = b"/mnt/caf\xe9".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("text", ["/mnt/café", "😀", LATIN_1, f"{LATIN_1}😀"])
def test_every_text_can_be_decoded(text: str) -> None:
    (found,) = msgspec.json.decode(to_json([Gap(text, "why")]))
    shown = text.replace("\udce9", "\ufffd")
    assert found["what"] == shown


def test_a_path_that_is_no_utf_8_costs_no_sample() -> None:
    host = HostSample(filesystems=[FilesystemSample(LATIN_1)])
    sample = Sample("n1", 1.0, host=host, ranks=[RankSample(7, python=LATIN_1, wchan=LATIN_1)])
    assert msgspec.json.decode(to_json(sample))


def test_what_a_decoder_left_out_is_there_again() -> None:
    decoded = msgspec.json.decode(b'{"what":"a","why":"b"}', type=Gap)
    assert msgspec.json.decode(to_json(decoded)) == {
        "what": "a",
        "why": "b",
        "fix": "",
        "kind": "unknown",
        "code": "",
        "source": "a",
        "item": "",
        "fields": [],
    }


def test_ranks_are_folded() -> None:
    made = StackClass(Ranges.of([0, 1, 2, 4]), 4, "all_reduce")
    assert msgspec.json.decode(to_json([made, Waiting(Ranges(), "send")])) == [
        {"ranks": "0-2,4", "count": 4, "waiting_in": "all_reduce", "frames": []},
        {"ranks": "", "where": "send"},
    ]


def test_what_mltop_itself_does_is_a_command_in_the_action() -> None:
    findings = [
        Finding("x", "critical", "n", "GPU 3", "m", "look", act="stacks"),
        Finding("y", "info", "n", "s", "m", "z"),
    ]
    told = json.loads(to_json(findings))
    assert [one["action"] for one in told] == ["mltop stacks; look", "z"]
    (incident,) = json.loads(to_json([Incident("a", "hang", "critical", "h", act="stacks", next_act="probe_pairs")]))
    assert (incident["action"], incident["next"]) == ("mltop stacks", "mltop probe pairs")
