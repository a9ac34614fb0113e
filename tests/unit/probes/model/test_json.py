"""JSON of the model: what no decoder takes never goes out."""

from __future__ import annotations

import msgspec
import pytest

from mltop.probes.agent.light import light_fields
from mltop.probes.agent.protocol import encode_light, payload_of
from mltop.probes.model import FilesystemSample, Gap, HostSample, RankSample, Sample, to_json

LATIN_1 = b"/mnt/caf\xe9".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("text", ["/mnt/café", "😀", LATIN_1, f"{LATIN_1}😀"])
def test_every_text_can_be_decoded(text: str) -> None:
    (found,) = msgspec.json.decode(to_json([Gap(text, "why")]))
    shown = text.replace("\udce9", "\ufffd")
    assert found["what"] == shown


def test_a_path_that_is_no_utf_8_costs_no_sample() -> None:
    host = HostSample(filesystems=[FilesystemSample(LATIN_1)])
    sample = Sample("n1", 1.0, host=host, ranks=[RankSample(7, python=LATIN_1, wchan=LATIN_1)])
    light = payload_of(encode_light(sample)[:-1])
    assert light is not None
    for text in (to_json(sample).encode(), b'{"sample":' + light.partition(b'"sample":')[2]):
        assert msgspec.json.decode(text)
    assert "wchan" in light_fields(sample.ranks[0])


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
