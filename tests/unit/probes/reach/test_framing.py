"""Bytes into frames: any cut, any noise, bounded memory."""

from __future__ import annotations

import random

import pytest

from mltop.probes.agent.protocol import MARK, TEXT_MARK, Message, encode, payload_of, split
from mltop.probes.reach.framing import LINE_BYTES, NOISE_BYTES, FrameReader

FRAMES = [encode(Message("done", id=n, data={"text": "x" * (n * 37 % 3000)})) for n in range(1, 40)]
PAYLOADS = [payload_of(frame[:-1]) for frame in FRAMES]


@pytest.mark.parametrize("size", [1, 7, 1000, 65_536])
def test_any_cut_gives_the_same_frames(size: int) -> None:
    stream = b"motd\n" + b"".join(FRAMES)
    reader = FrameReader()
    found = [frame.payload for at in range(0, len(stream), size) for frame in reader.feed(stream[at : at + size])]
    assert found == PAYLOADS
    assert reader.noise == "motd\n"


def test_noise_anywhere_between_frames() -> None:
    chance = random.Random(2)
    noise = [
        b"\xff\x00" * 50,
        b"no newline here ",
        b"\n\n\n",
        MARK,
        TEXT_MARK + b"12 {",
        b"@MLT1+ a b\n",
        b"x" * 70_000,
    ]
    stream = b"".join(chance.choice(noise) + b"\n" + frame for frame in FRAMES)
    reader = FrameReader()
    found = [frame.payload for at in range(0, len(stream), 4096) for frame in reader.feed(stream[at : at + 4096])]
    assert found == PAYLOADS


def test_a_frame_behind_noise_without_newline_also_a_long_one() -> None:
    big = encode(Message("done", id=1, data={"text": "y" * 300_000}))
    for noise in (b"prompt$ ", b"z" * 10_000_000, b"\0" * 200_000):
        reader = FrameReader()
        stream = noise + big
        found = [
            frame.payload for at in range(0, len(stream), 65_536) for frame in reader.feed(stream[at : at + 65_536])
        ]
        assert found == [payload_of(big[:-1])]


def test_pieces_and_whole_frames() -> None:
    payload = PAYLOADS[20]
    assert payload is not None
    lines = split(payload, "n1:1:1", 200)
    found = [frame.payload for frame in FrameReader().feed(FRAMES[0] + b"".join(lines) + FRAMES[1])]
    assert found == [PAYLOADS[0], payload, PAYLOADS[1]]


@pytest.mark.parametrize(
    "endless", [b"x" * 65_536, MARK + b"12 " + b"x" * 65_000, (MARK + b"99999 x") * 5000, b"\x00MLT1" * 10_000]
)
def test_a_line_that_never_ends_takes_bounded_memory(endless: bytes) -> None:
    reader = FrameReader()
    for _ in range(100):
        assert reader.feed(endless) == []
        assert len(reader._buffer) <= 4 * LINE_BYTES
    assert reader.noise_bytes > 10 * LINE_BYTES
    assert [frame.payload for frame in reader.feed(b"\n" + FRAMES[0])] == [PAYLOADS[0]]


def test_the_newest_noise_is_kept() -> None:
    reader = FrameReader()
    reader.feed(b"a" * 1_000_000 + b"\n" + b"the last line\n" + FRAMES[0])
    assert reader.noise.endswith("a\nthe last line\n") and len(reader.noise) <= NOISE_BYTES
    reader.feed(b"a prompt: ")
    assert reader.noise.endswith("the last line\na prompt: ")
