"""Frames survive the company they keep: noise before, between and after them."""

from __future__ import annotations

import msgspec
import pytest

from mltop.probes.agent.protocol import MARK, Message, Request, decode_request, encode, payload_of
from mltop.probes.model import Gap, GpuSample, RankSample, Sample
from mltop.probes.reach.receiving import own_type


def test_a_sample_arrives_as_it_was_sent() -> None:
    sample = Sample(
        "n1",
        12.5,
        gpus=[GpuSample(3, uuid="GPU-1", busy=0.0, throttle_reasons=[])],
        ranks=[RankSample(42, rank=0, children=[43])],
        gaps=[Gap("gpu.3.power_w", "not supported")],
    )
    payload = payload_of(encode(Message("sample", node="n1", sample=sample)).rstrip(b"\n"))
    assert payload is not None
    decoded = msgspec.json.decode(payload, type=Message, dec_hook=own_type)
    assert decoded.sample == sample


def test_zero_and_unknown_stay_different() -> None:
    payload = payload_of(encode(Message("sample", sample=Sample("n", 1.0, gpus=[GpuSample(0, busy=0.0)])))[:-1])
    assert payload is not None
    gpu = msgspec.json.decode(payload)["sample"]["gpus"][0]
    assert gpu["busy"] == 0.0
    assert "power_w" not in gpu


def test_what_holds_its_default_is_left_out_and_nothing_else() -> None:
    frame = encode(Message("part", id=4, expected=0))[:-1]
    assert payload_of(frame) == b'{"kind":"part","id":4,"expected":0}'
    assert payload_of(encode(Request("cancel"))[:-1]) == b'{"kind":"cancel"}'


def test_a_number_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError):
        encode(Message("sample", sample=Sample("n", float("nan"))))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Welcome to node01!",
        MARK + b"12 {}",  # cut off
        MARK + b"x {}",
        MARK + b"2",
        b"\x00\xff\x80MLT1 2 {}"[:-1],
        b"\x7fELF" + bytes(range(256)),
    ],
)
def test_noise_is_not_a_frame(line: bytes) -> None:
    assert payload_of(line) is None


def test_a_frame_is_found_behind_a_prompt_without_newline() -> None:
    assert payload_of(b"motd without newline" + MARK + b"2 {}") == b"{}"


@pytest.mark.parametrize(
    "payload",
    [b"{", b"[]", b"7", b"{}", b'{"kind":1}', b'{"kind":"request","id":[]}', b'{"kind":"request","args":"x"}', b"\xff"],
)
def test_requests_of_the_wrong_shape_are_noise(payload: bytes) -> None:
    assert decode_request(MARK + str(len(payload)).encode() + b" " + payload) is None


def test_requests_ignore_fields_they_do_not_know() -> None:
    frame = encode(Request("request", id=7, op="stacks", args={"native": True})).rstrip(b"\n")
    assert decode_request(frame) == Request("request", 7, "stacks", "", {"native": True})
    newer = b'{"kind":"ping","later":1}'
    assert decode_request(MARK + str(len(newer)).encode() + b" " + newer) == Request("ping")


def test_kinds_are_those_of_the_protocol() -> None:
    """A frame of another is not read, and a request of another is noise."""
    payload = b'{"kind":"gossip","id":1}'
    assert decode_request(b"%s%d %s" % (MARK, len(payload), payload)) is None
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(payload, type=Message, dec_hook=own_type)
